"""Find a model's files in a directory or on the hub, read JSON objects, and write each file completely or not."""

import json
import os
import shutil
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from transformers.utils import cached_file

#: The arguments of `from_pretrained` that say where on the hub, or where in a directory, a file is.
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")

#: What numpy raises for a damaged npy file. Its header is Python text: the type `'<,f4'` is a syntax error.
ARRAY_DAMAGE = (OSError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError, TokenError)


def select_hub_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments of `from_pretrained` that [`find_file`] takes.

    Args:
        kwargs (`Mapping[str, Any]`): Any keyword arguments of `from_pretrained`.

    Returns:
        `dict[str, Any]`: Those named in `HUB_ARGUMENTS`.
    """
    return {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}


def find_file(name_or_path: str | os.PathLike | None, filename: str, **hub_kwargs: Any) -> str | None:
    """Find an optional file of a model, and download it if the model is on the hub.

    Args:
        name_or_path (`str | os.PathLike`): A local directory or the name of a model on the hub.
        filename (`str`): The file, relative to the model, such as `"modules.json"` or `"1_Pooling/config.json"`.
        hub_kwargs (`Any`): `revision`, `token`, `cache_dir`, `force_download`, `local_files_only` and `subfolder`, as
            in `from_pretrained`. `filename` is relative to `subfolder`.

    Returns:
        `str`, *optional*: The local path of the file, or `None` if the model does not have it.
    """
    if name_or_path is None or not str(name_or_path):
        return None
    folder, _, name = filename.rpartition("/")
    subfolder = "/".join(part for part in (hub_kwargs.pop("subfolder", None), folder) if part)
    return cached_file(
        str(name_or_path), name, subfolder=subfolder, _raise_exceptions_for_missing_entries=False, **hub_kwargs
    )


@contextmanager
def explain_damage(name_or_path: str | os.PathLike) -> Iterator[None]:
    """Name the folder of a model in an error that another library raises while it reads a damaged file of it.

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of the model.

    Raises:
        ValueError: If the model is a folder and a library cannot read it. Other errors pass through.
    """
    try:
        yield
    except Exception as error:  # its type depends on the library, and on what is wrong
        own = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(str(Path(__file__).parents[1]))
        own = own and isinstance(error, (ValueError, TypeError, OSError))  # compiled code has no frame of its own
        is_no_damage = isinstance(error, (MemoryError, ImportError, torch.OutOfMemoryError))
        if own or is_no_damage or not Path(name_or_path).is_dir():
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{name_or_path}: cannot be loaded, because a file is missing or damaged ({reason}). Download or save the "
            "model again."
        ) from error


@contextmanager
def write_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path and rename it to `path` when the block ends without an error.

    So `path` holds either the complete new content or what it held before, even if the process is killed. The block
    writes a file at the temporary path or makes a folder there. An existing file or folder at `path` is replaced; if
    `path` is a symbolic link, what it points to is replaced. If the block raises, the temporary file or folder is
    removed.

        with write_atomically("vectors.npy") as temporary, open(temporary, "wb") as stream:
            np.save(stream, vectors)

    Args:
        path (`str | os.PathLike`): Where the file or folder is to stand. Its parent folder must exist.

    Yields:
        `Path`: A path that does not exist yet, in the same folder as `path`. Its name ends in `.partial`.

    Raises:
        OSError: If the file or folder cannot take its place at `path`.
    """
    path = Path(path).resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    replaced = path.with_name(f".{path.name}.{os.getpid()}.replaced")
    _remove(temporary)  # a killed process with the same number may have left it
    try:
        yield temporary
        for file in temporary.rglob("*") if temporary.is_dir() else (temporary,):
            if file.is_file():
                with open(file, "rb") as stream:  # the content must reach the disk before its name does
                    os.fsync(stream.fileno())
        if not path.is_dir():
            os.replace(temporary, path)
            return
        # A folder that holds something cannot be replaced in one step, so it steps aside and returns on failure.
        path.rename(replaced)
        try:
            temporary.rename(path)
        except OSError:
            replaced.rename(path)
            raise
        shutil.rmtree(replaced)
    finally:
        _remove(temporary)


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Read an npy file. Unlike `np.load`, this opens no zip archive and no pickle.

    Args:
        path (`str` or `os.PathLike`): The file.

    Returns:
        `np.ndarray`: The array.

    Raises:
        Exception: One of `ARRAY_DAMAGE`, if the file is missing or damaged.
    """
    with open(path, "rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def read_json(path: str | os.PathLike[str], advice: str = "") -> Any:
    """Read a JSON file.

    Args:
        path (`str` or `os.PathLike`): The file, which must exist.
        advice (`str`, *optional*): A last sentence for the error, which says what to do.

    Returns:
        The document.

    Raises:
        ValueError: If the file is no JSON. The message names the file.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file ({error}). {advice}".rstrip()) from error


def read_json_object(path: str | os.PathLike[str], *entries: str, advice: str = "") -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        path (`str` or `os.PathLike`): The file, which must exist.
        entries (`str`): Entries that the object must have.
        advice (`str`, *optional*): A last sentence for the errors, which says what to do.

    Returns:
        `dict[str, Any]`: The object.

    Raises:
        ValueError: If the file is no JSON, or does not hold an object with these entries. The message names the file.
    """
    document = read_json(path, advice)
    missing = [entry for entry in entries if entry not in document] if isinstance(document, dict) else list(entries)
    if isinstance(document, dict) and not missing:
        return document
    listed = " and ".join(f'"{entry}"' for entry in missing)
    raise ValueError(f"{path}: not a JSON object{f' with the entry {listed}' if listed else ''}. {advice}".rstrip())


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Write a JSON file completely or not at all, indented and with a newline at its end.

    Args:
        path (`str` or `os.PathLike`): The file. Its folder must exist.
        document (`Any`): What to write.
    """
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def digest(path: str | os.PathLike[str]) -> str:
    """Return the BLAKE2b digest of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return file_digest(stream, "blake2b").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
