"""The folder of a saved index: a description, one data folder with digests of its files, and one writer at a time."""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from ..ops.files import digest, write_atomically

DESCRIPTION = "index.json"
_LOCK = ".lock"
_LAYOUT_VERSION = 2
#: A save writes a new data folder, so the old one is whole until the description names the new one.
_DATA = re.compile(r"data-[0-9a-f]{16}")
#: The description before it gets its name, see `ops.files.write_atomically`.
_TEMPORARY = re.compile(r"\.index\.json\.\d+\.partial")
_DATA_FILES = ("sentences.arrow", "vectors.npy", "index.faiss", "lists.ivfdata")
#: The keys of a description, and the types of their values.
_KEYS: dict[str, type | tuple[type, ...]] = {
    "model": (str, type(None)),
    "revision": (str, type(None)),
    "pooler": (str, type(None)),
    "max_length": (int, type(None)),
    "document_prompt": (str, type(None)),
    "dim": int,
    "truncate_dim": (int, type(None)),
    "count": int,
    "backend": str,
    "options": dict,
    "probe": list,
}


def describe(folder: str | os.PathLike) -> dict[str, Any]:
    """Read the description of a saved index.

    Args:
        folder (`str` or `os.PathLike`): The folder that it was saved in.

    Returns:
        `dict[str, Any]`: `model`, `pooler`, `dim`, `count`, `backend` and more.

    Raises:
        ValueError: If there is no index, or its description is damaged.
    """
    path = Path(folder).expanduser() / DESCRIPTION
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        layout = described["layout"]
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: no {DESCRIPTION}, so it is not a folder that an index was saved in.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged ({error}); build the index again.") from error
    if layout == 1 and isinstance(described.get("bytes"), dict):  # without digests, and without a data folder
        described |= {"data": ".", "files": {name: {"bytes": size} for name, size in described["bytes"].items()}}
    elif layout != _LAYOUT_VERSION:
        raise ValueError(f"{path} has layout {layout!r} instead of {_LAYOUT_VERSION}; build the index again.")
    wrong = [key for key, kind in _KEYS.items() if key not in described or not isinstance(described[key], kind)]
    if wrong or not _names_own_files(described):
        raise ValueError(f"{path}: damaged (no valid {', '.join(wrong) or 'list of files'}); build the index again.")
    return described


def _names_own_files(described: dict[str, Any]) -> bool:
    """Return whether the description names only files that a save writes, so that no other file is read or removed."""
    data, files = described.get("data"), described.get("files")
    if not isinstance(data, str) or not (data == "." or _DATA.fullmatch(data)) or not isinstance(files, dict):
        return False
    return set(files) <= set(_DATA_FILES) and all(
        isinstance(entry, dict) and isinstance(entry.get("bytes"), int) for entry in files.values()
    )


def data_folder(folder: Path, described: dict[str, Any]) -> Path:
    """Return the folder of an index's data files after comparing their sizes and digests with the description.

    Args:
        folder (`Path`): The folder of the index.
        described (`dict[str, Any]`): Its description, from [`describe`].

    Returns:
        `Path`: The folder that holds the sentences and the embeddings.

    Raises:
        ValueError: If a file is missing or differs from what was saved. The message names it.
    """
    data = folder / described["data"]
    for name, entry in described["files"].items():
        path = data / name
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise ValueError(
                f"{path} is missing or not {entry['bytes']} bytes long: the index is damaged, build it again."
            )
        if "blake2b" in entry and digest(path) != entry["blake2b"]:
            raise ValueError(f"{path} is damaged (its digest is not the saved one): build the index again.")
    return data


@contextmanager
def hold_folder(folder: str | os.PathLike) -> Iterator[Path]:
    """Keep other processes from changing an index, from reading it until the changed one is saved.

    The thread that holds the folder may hold it again, as [`SentenceIndex.save`] does.

    Args:
        folder (`str` or `os.PathLike`): An existing folder.

    Yields:
        `Path`: The folder, with symbolic links resolved.

    Raises:
        ValueError: If another process or thread is changing the index.
    """
    folder = Path(folder).expanduser().resolve()
    lock = filelock.FileLock(folder / _LOCK, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(
            f"{folder}: another process is changing this index. Run the command again when it has ended."
        ) from None
    try:
        yield folder
    finally:
        lock.release()


def check_target(folder: str | os.PathLike) -> None:
    """Raise a `ValueError` unless an index can be saved here: in a new or empty folder, or over an index of ours.

    A folder that holds only what a killed first save has left counts as empty.

    Args:
        folder (`str` or `os.PathLike`): The folder.

    Raises:
        ValueError: If the folder holds anything else.
    """
    folder = Path(folder).expanduser()
    if not folder.exists():
        return
    if folder.is_dir() and (folder / DESCRIPTION).exists():
        try:
            describe(folder)
        except ValueError as error:
            raise ValueError(
                f"{folder} holds something else than an index of this package, so nothing is written there: name a "
                f"new folder. ({error})"
            ) from error
    elif not folder.is_dir() or any(path.name != _LOCK and not _may_be_left(path) for path in folder.iterdir()):
        raise ValueError(f"{folder} holds something else than an index: name a new folder.")


def write_index(
    folder: str | os.PathLike, write: Callable[[Path], dict[str, Any]], replaces: str | None = None
) -> str:
    """Save an index completely or not at all, and then remove the files of the index that it replaces.

    All other files in the folder stay. The new data lies in a folder of its own, and the index changes in the moment
    in which the new description takes the place of the old one.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`check_target`] accepts. It is created if needed.
        write (`Callable`): Writes the data files into the given folder and returns the description.
        replaces (`str`, *optional*): The data folder that the saved index was loaded from.

    Returns:
        `str`: The name of the new data folder.

    Raises:
        ValueError: If the folder holds anything else, another process is changing the index or has changed it since
            it was loaded, or the disk is full.
    """
    check_target(folder)
    try:
        Path(folder).expanduser().mkdir(parents=True, exist_ok=True)
        with hold_folder(folder) as target:
            old = describe(target) if (target / DESCRIPTION).exists() else None
            if replaces is not None and (old is None or old["data"] != replaces):
                raise ValueError(
                    f"{folder}: another process has changed this index since it was loaded, and saving would lose its "
                    "sentences. Load the index and add to it again."
                )
            data = f"data-{secrets.token_hex(8)}"
            with write_atomically(target / data) as temporary:
                temporary.mkdir()
                description = {"layout": _LAYOUT_VERSION, **write(temporary), "data": data, "files": {}}
                for path in sorted(temporary.iterdir()):
                    description["files"][path.name] = {"bytes": path.stat().st_size, "blake2b": digest(path)}
            with write_atomically(target / DESCRIPTION) as temporary:
                temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            _remove_old(target, data, old)
            return data
    except (OSError, RuntimeError) as error:  # faiss raises the latter
        raise ValueError(
            f"cannot write the index to {folder}: {error}. Make room or name another folder; an index that was there "
            "is as it was."
        ) from error


def _remove_old(folder: Path, current: str, old: dict[str, Any] | None) -> None:
    """Remove the files of the index that was replaced, and what killed processes have left."""
    if old is not None and old["data"] == ".":
        for name in old["files"]:
            (folder / name).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name == current or not _may_be_left(path):
            continue
        if path.is_file():
            path.unlink()
            continue
        for file in _DATA_FILES:
            (path / file).unlink(missing_ok=True)
        if not any(path.iterdir()):
            path.rmdir()


def _may_be_left(path: Path) -> bool:
    """Return whether a path has the name and the type of a data folder or of a temporary file of a save."""
    name = re.sub(r"^\.|\.\d+\.partial$", "", path.name)
    if path.is_symlink():
        return False
    return bool(path.is_dir() and _DATA.fullmatch(name)) or (path.is_file() and bool(_TEMPORARY.fullmatch(path.name)))
