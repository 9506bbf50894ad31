"""Write files and folders completely or not at all, and read them with errors that name them."""

import errno
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from .errors import DataError, LockedError, SettingError

if TYPE_CHECKING:
    from jinja2 import Template

StrPath = str | os.PathLike[str]
#: Arrays by a task, its part and what they hold.
Arrays = dict[str, dict[str, dict[str, np.ndarray]]]
#: What numpy raises for a damaged npy file. Its header is Python text: the type `'<,f4'` is a syntax error.
ARRAY_DAMAGE = (OSError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError, TokenError)
#: The lock of a folder that a process holds, and the file that names the process. Neither is uploaded.
LOCK = "_run.lock"
HOLDER = "_run.pid"
#: Lists the files of a checkpoint or a cache with their sizes and digests. It is written last.
MANIFEST = "manifest.json"
#: The folder in which a checkpoint or a model is written before its files take their places.
STAGING = "_saving"

#: What the file system says when a disk or a quota is full.
_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def write_atomically(path: StrPath) -> Iterator[Path]:
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
    remove(temporary)  # a killed process may have left it
    try:
        yield temporary
        put_in_place(temporary, path)
    except Exception as error:
        explain_full_disk(error, path)
        raise
    finally:
        remove(temporary)


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a complete file or folder to `path` after its content has reached the disk, and replace what is there.

    Args:
        temporary (`Path`): The file or folder, on the disk of `path`.
        path (`Path`): Where it is to stand.

    Raises:
        OSError: If it cannot take its place. What was at `path` is then still there.
    """
    sync(temporary)
    if not path.is_dir():
        os.replace(temporary, path)
        return
    # A folder that holds something cannot be replaced in one step, so it steps aside and returns on failure.
    replaced = temporary.with_suffix(".replaced")
    path.rename(replaced)
    try:
        temporary.rename(path)
    except OSError:
        replaced.rename(path)
        raise
    shutil.rmtree(replaced)


def sync(path: Path) -> None:
    """Wait until a file, or all files of a folder, have reached the disk."""
    for file in [path, *path.rglob("*")]:
        if file.is_file():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())


def explain_full_disk(error: Exception, path: Path, advice: str = "") -> None:
    """Raise an error that names a file if the disk is full, which libraries report by number, text or a file's size.

    Args:
        error (`Exception`): What was raised while the file was written.
        path (`Path`): The file or folder.
        advice (`str`, *optional*): What else to say.

    Raises:
        OSError: If the disk is full.
    """
    full = os.strerror(errno.ENOSPC)
    text = f"{error} {error.__context__}"
    is_full = getattr(error, "errno", None) in _IS_FULL
    # In the words of torch.save, and of numpy: "256000 requested and 12256 written".
    signs = (full, "inline_container", "iostream error", "requested and")
    if is_full or any(sign in text for sign in signs):
        raise OSError(errno.ENOSPC, full + advice, str(path)) from error


def read_npy(path: StrPath) -> np.ndarray:
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


def write_npy(path: StrPath, array: np.ndarray) -> None:
    """Write an npy file completely or not at all."""
    with write_atomically(path) as temporary, open(temporary, "wb") as stream:  # numpy would add a suffix to a path
        np.save(stream, array)


def write_arrays(path: StrPath, arrays: Arrays) -> None:
    """Write arrays, each known by three names such as a task, its part and what it holds, into one npz file."""
    flat: dict[str, Any] = {}
    for task, parts in arrays.items():
        for part, named in parts.items():
            for name, array in named.items():
                flat[f"{task}/{part}/{name}"] = array
    with write_atomically(path) as temporary, open(temporary, "wb") as stream:  # numpy would add a suffix to a path
        np.savez_compressed(stream, **flat)


def read_arrays(path: StrPath, advice: str) -> Arrays:
    """Read what [`write_arrays`] wrote.

    Args:
        path (`str` or `os.PathLike`): The file.
        advice (`str`): A last sentence of the message that says what to do.

    Returns:
        `dict`: The arrays.

    Raises:
        DataError: If the file is damaged.
    """
    found: Arrays = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays.files:
                task, part, name = key.rsplit("/", 2)  # the name of a hub data set has a slash
                parts = found.setdefault(task, {})
                parts.setdefault(part, {})[name] = arrays[key]
    except Exception as error:  # its type depends on where zipfile or numpy finds the damage
        raise DataError(f"{path}: damaged ({error}); {advice}") from error
    return found


def read_json(path: StrPath, *entries: str, kind: type[Any] = dict, advice: str = "") -> Any:
    """Read a JSON file.

    Args:
        path (`str` or `os.PathLike`): The file, which must exist.
        *entries (`str`): Entries that the object must have.
        kind (`type`, *optional*, defaults to `dict`): What the file must hold: an object, or a `list`.
        advice (`str`, *optional*): A last sentence for the errors, which says what to do.

    Returns:
        The document.

    Raises:
        DataError: If the file is no JSON, or holds something else. The message names the file.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON file ({error}). {advice}".rstrip()) from error
    if not isinstance(document, kind) or not all(entry in document for entry in entries):
        wanted = "list" if kind is list else "object"
        if entries:
            wanted += " with the entry " + " and ".join(map('"{}"'.format, entries))
        raise DataError(f"{path}: not a JSON {wanted}. {advice}".rstrip())
    return document


@contextmanager
def as_written(path: StrPath, advice: str) -> Iterator[None]:
    """Refuse a document that has not the entries that this version writes.

    Args:
        path (`str` or `os.PathLike`): The file that it was read from.
        advice (`str`): A last sentence for the error, which says what to do.

    Raises:
        DataError: If the block misses an entry, or finds one of another kind. The message names the file.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        found = f"missing entry {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is damaged, or was written by another version ({found}). {advice}") from error


def write_json(path: StrPath, document: object) -> None:
    """Write a JSON file completely or not at all, indented and with a newline at its end.

    Args:
        path (`str` or `os.PathLike`): The file. Its folder must exist.
        document (`object`): What to write.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


def write_text(path: StrPath, text: str) -> None:
    """Write a text file completely or not at all, in UTF-8."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_template(path: StrPath, autoescape: bool = False) -> "Template":
    """Read a jinja2 template of text, in which a line that holds only a statement leaves no line behind.

    Args:
        path (`str` or `os.PathLike`): The file.
        autoescape (`bool`, *optional*, defaults to `False`): Whether values are escaped for HTML.

    Returns:
        `jinja2.Template`: The template.
    """
    from jinja2 import Environment  # which most callers of this file never need

    environment = Environment(trim_blocks=True, lstrip_blocks=True, autoescape=autoescape)
    return environment.from_string(Path(path).read_text(encoding="utf-8"))


def digest(path: StrPath) -> str:
    """Return the BLAKE2b digest of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return file_digest(stream, "blake2b").hexdigest()


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all its files, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# Folders ------------------------------------------------------------------------------------------------------------


@contextmanager
def lock(folder: StrPath, timeout: float = 0) -> Iterator[None]:
    """Lock a folder during the block, so that no second process writes there; the same process may lock it again.

    The operating system frees the lock of a process that dies.

    Args:
        folder (`str` or `os.PathLike`): The folder. It is created if necessary.
        timeout (`float`, *optional*, defaults to `0`): Seconds to wait for another process; -1 for no limit.

    Raises:
        LockedError: If another process has locked the folder, which the message names.
        SettingError: If nothing can be written there.
        OSError: If the disk is full.
    """
    path = Path(folder).expanduser().resolve()
    if path.is_file():
        raise SettingError(f"{folder} is a file: name a folder.")
    file = FileLock(path / LOCK, is_singleton=True)
    holder = path / HOLDER
    try:
        path.mkdir(parents=True, exist_ok=True)
        file.acquire(timeout=timeout)
    except Timeout:
        name = "another process"
        if holder.exists():
            name = holder.read_text(encoding="utf-8")
        raise LockedError(
            f"{folder}: {name} is writing there. Wait until it has ended, or name another folder."
        ) from None
    except OSError as error:
        if error.errno in _IS_FULL:
            raise
        raise SettingError(f"{folder}: no file can be written there ({error.strerror}): name another folder") from None
    try:
        holder.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        if file.lock_counter == 1:
            holder.unlink(missing_ok=True)
        file.release()


def entries(folder: Path) -> set[Path]:
    """Return what a folder holds, if there is one, without its lock and what a killed process has left of files."""
    if not folder.exists():
        return set()
    own = re.compile(rf"{LOCK}|{HOLDER}|\..*\.partial")
    return {path for path in folder.iterdir() if not own.fullmatch(path.name)}


@contextmanager
def replace_files(
    folder: StrPath,
    last: str,
    patterns: Sequence[str] = (),
    writes: bool = True,
    advice: str = "",
) -> Iterator[Path]:
    """Yield a staging folder, whose files replace an earlier set of files in `folder` if the block ends without error.

    One file or folder makes the set usable. It is removed first and written last, so a reader finds the earlier set,
    the new set or no usable set, but no mixture of two.

    Args:
        folder (`str` or `os.PathLike`): Where the files are to stand. It is created if necessary.
        last (`str`): The name of the file without which the others are not used.
        patterns (`Sequence[str]`, *optional*, defaults to `()`): The names of all files and folders of an earlier set,
            with wildcards. Without any, the new ones replace those of the same names.
        writes (`bool`, *optional*, defaults to `True`): `False` in a process that only accompanies the one that
            writes.
        advice (`str`, *optional*): What else to say if the disk is full.

    Yields:
        `Path`: The staging folder; `folder` itself in a process that does not write.

    Raises:
        OSError: If the disk is full. The earlier set is then untouched.
    """
    folder = Path(folder).expanduser()
    staging = folder / STAGING
    if not writes:
        yield folder
        return
    remove(staging)
    try:
        staging.mkdir(parents=True)
        yield staging
        sync(staging)
        if patterns and (staging / last).exists():
            for pattern in [last, *patterns]:
                for path in folder.glob(pattern):
                    remove(path)
        others_first = sorted(staging.iterdir(), key=lambda path: path.name == last)
        for path in others_first:
            put_in_place(path, folder / path.name)
    except Exception as error:
        explain_full_disk(error, folder, advice)
        raise
    finally:
        remove(staging)


def folder_problem(folder: StrPath) -> str | None:
    """Compare a folder with its manifest; see [`write_manifest`].

    Args:
        folder (`str` or `os.PathLike`): The folder.

    Returns:
        `str`, *optional*: What is wrong, with the name of the file, or `None` if the folder is as it was written.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).exists():
        return f"{MANIFEST} is missing"
    try:
        files = read_json(folder / MANIFEST, "files")["files"]
        for name, expected in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            size = path.stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size:,} bytes in place of {expected['bytes']:,}"
            if digest(path) != expected["blake2b"]:
                return f"the content of {name} is damaged"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    return None


def write_manifest(folder: Path) -> None:
    """Write the sizes and digests of all files in a folder to its `manifest.json`.

    Args:
        folder (`Path`): A folder in which every other file is already written.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            size = path.stat().st_size
            files[name] = {"bytes": size, "blake2b": digest(path)}
    write_json(folder / MANIFEST, {"files": files})
