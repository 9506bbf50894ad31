"""The manifest of a folder of shards: what the shards were made from, and which files belong to the run."""

import json
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from ..data.read import Place
from ..ops.files import write_atomically

MANIFEST = "manifest.json"
RANGES = "ranges.npy"
FORMATS = ("npy", "parquet")
LAYOUT_VERSION = 1

_MAX_SHARDS = 1_000_000
#: Temporary files that a killed run has left, see `ops.files.write_atomically`.
_LEFTOVER = re.compile(r"\.(manifest\.json|ranges\.npy|vectors-\d{5,}-of-\d{5,}\.(npy|parquet))\.\d+\.partial")


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Read what the shards of a folder were made from.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode_file`] wrote.

    Returns:
        `dict[str, Any]`: The sections `input`, `model` and `settings`.

    Raises:
        ValueError: If there is no manifest, or it is damaged.
    """
    path = Path(folder).expanduser() / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder}: no {MANIFEST}, so it is not a folder that `simcse-hf encode` wrote; name one that is."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); encode into a new folder.") from error
    layout = manifest.get("layout") if isinstance(manifest, dict) else None
    if layout != LAYOUT_VERSION:
        raise ValueError(
            f"{path}: has layout {layout!r}, and this version reads layout {LAYOUT_VERSION}; encode into a new folder."
        )
    problem = _find_problem(manifest)
    if problem is not None:
        raise ValueError(f"{path}: damaged ({problem}); encode into a new folder.")
    return manifest


def _find_problem(manifest: dict[str, Any]) -> str | None:
    """Say what is wrong with a manifest whose numbers decide how many files are looked for."""
    for section in ("input", "model", "settings"):
        if not isinstance(manifest.get(section), dict):
            return f"no section {section!r}"
    settings, rows = manifest["settings"], manifest["input"].get("rows")
    for name, value in (("rows", rows), ("shard_size", settings.get("shard_size"))):
        if type(value) is not int or value < 1:
            return f"{name} is {value!r}"
    if settings.get("format") not in FORMATS:
        return f"format is {settings.get('format')!r}"
    if not isinstance(settings.get("precision"), str):
        return f"precision is {settings.get('precision')!r}"
    count = -(-rows // settings["shard_size"])
    if count > _MAX_SHARDS:
        return f"{count} shards, and {_MAX_SHARDS} are the most"
    starts = manifest.get("starts")
    if starts is not None and not _are_places(starts, count):
        return f"starts do not name the places of {count} shards"
    return None


def _are_places(starts: Any, count: int) -> bool:
    """Return whether these are as many pairs of a row number and a byte offset, both rising."""
    if not isinstance(starts, list) or len(starts) != count:
        return False
    if any(not isinstance(pair, list) or [type(entry) for entry in pair] != [int, int] for pair in starts):
        return False
    rising = all(a < b and c <= d for (a, c), (b, d) in pairwise(starts))
    return rising and starts[0][0] >= 1 and starts[0][1] >= 0


def start_of(manifest: dict[str, Any], number: int) -> Place | None:
    """Return where a shard starts in the input, if the manifest says so.

    It does not for an input that cannot be read from the middle, or if an earlier version wrote it.

    Args:
        manifest (`dict[str, Any]`): What [`read_manifest`] returned.
        number (`int`): The number of the shard, from 0.

    Returns:
        `Place`, *optional*: The place of its first row.
    """
    starts = manifest.get("starts")
    return None if starts is None else Place(*starts[number])


def check_shard_count(rows: int, shard_size: int) -> None:
    """Raise a `ValueError` if a file would become more shards than a folder can hold."""
    if rows > _MAX_SHARDS * shard_size:
        raise ValueError(
            f"shard_size {shard_size} makes more than {_MAX_SHARDS} shards of {rows} texts: choose a larger one."
        )


def shard_paths(folder: str | os.PathLike) -> list[Path]:
    """Return the paths of all shards of a folder, including those that are not written yet."""
    manifest = read_manifest(folder)
    size, suffix = manifest["settings"]["shard_size"], manifest["settings"]["format"]
    count = -(-manifest["input"]["rows"] // size)
    return [Path(folder) / f"vectors-{number:05d}-of-{count:05d}.{suffix}" for number in range(count)]


def is_leftover(path: Path) -> bool:
    """Return whether a file is a temporary file of a run, which a killed process may have left."""
    return _LEFTOVER.fullmatch(path.name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed process from the folder of a run."""
    for path in folder.iterdir():
        if is_leftover(path):
            path.unlink()


def remove_run(folder: Path) -> None:
    """Remove the manifest and the files that it names; other files in the folder stay.

    Args:
        folder (`Path`): A folder. Without a manifest nothing is removed.

    Raises:
        ValueError: If the manifest was not written by [`encode_file`].
    """
    if not (folder / MANIFEST).exists():
        return
    for path in (*shard_paths(folder), folder / RANGES):
        path.unlink(missing_ok=True)
    remove_leftovers(folder)
    (folder / MANIFEST).unlink()


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file of a run, which gets its name when it is complete.

    Args:
        path (`Path`): The file.
        write (`Callable`): Writes to the open stream that it is given.

    Raises:
        ValueError: If the file cannot be written, for example because the disk is full.
    """
    try:
        with write_atomically(path) as temporary, open(temporary, "wb") as stream:
            write(stream)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error}. Finished shards are kept: make room and run again with --resume."
        ) from error
