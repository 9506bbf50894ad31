"""Folders that are whole: locked against other processes, replaced in one step, and compared with their manifest."""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .files import StrPath, digest, explain_full_disk, put_in_place, read_json_object, remove, sync, write_json

#: The lock of a folder that a process holds, and the file that names the process. Neither is uploaded.
LOCK = "_run.lock"
HOLDER = "_run.pid"
#: Lists the files of a checkpoint or a cache with their sizes and digests. It is written last.
MANIFEST = "manifest.json"
#: The folder in which a checkpoint or a model is written before its files take their places.
STAGING = "_saving"


@contextmanager
def lock(folder: StrPath, timeout: float = 0) -> Iterator[None]:
    """Lock a folder during the block, so that no second process writes there; the same process may lock it again.

    The operating system frees the lock of a process that dies.

    Args:
        folder (`str` or `os.PathLike`): The folder. It is created if necessary.
        timeout (`float`, *optional*, defaults to `0`): Seconds to wait for another process; -1 for no limit.

    Raises:
        ValueError: If another process has locked the folder, which the message names, or the folder is a file.
    """
    path = Path(folder).expanduser().resolve()
    if path.is_file():
        raise ValueError(f"{folder} is a file: name a folder.")
    path.mkdir(parents=True, exist_ok=True)
    file = FileLock(path / LOCK, is_singleton=True)
    holder = path / HOLDER
    try:
        file.acquire(timeout=timeout)
    except Timeout:
        name = "another process"
        if holder.exists():
            name = holder.read_text(encoding="utf-8")
        raise ValueError(
            f"{folder}: {name} is writing there. Wait until it has ended, or name another folder."
        ) from None
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
    patterns: Sequence[str],
    writes: bool = True,
) -> Iterator[Path]:
    """Yield a staging folder, whose files replace an earlier set of files in `folder` if the block ends without error.

    One file makes the set usable. It is removed first and written last, so a reader finds the earlier set, the new set
    or no usable set, but no mixture of two.

    Args:
        folder (`str` or `os.PathLike`): Where the files are to stand. It is created if necessary.
        last (`str`): The name of the file without which the others are not used.
        patterns (`Sequence[str]`): The names of all files and folders of an earlier set, with wildcards.
        writes (`bool`, *optional*, defaults to `True`): `False` in a process that only accompanies the one that
            writes.

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
        if (staging / last).exists():
            for pattern in [last, *patterns]:
                for path in folder.glob(pattern):
                    remove(path)
        others_first = sorted(staging.iterdir(), key=lambda path: path.name == last)
        for path in others_first:
            put_in_place(path, folder / path.name)
    except Exception as error:
        explain_full_disk(error, folder)
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
        files = read_json_object(folder / MANIFEST, "files")["files"]
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
