"""Start or resume a run of `encode_file`: write its manifest, or compare with the one that is there."""

import json
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from ..data.read import Place, Table, placed_texts
from ..ops.files import digest
from .manifest import (
    LAYOUT_VERSION,
    MANIFEST,
    check_shard_count,
    is_leftover,
    read_manifest,
    remove_leftovers,
    write_whole,
)
from .simcse import SimCSE

_POLL_SECONDS, _VISIBLE_SECONDS = 0.5, 60.0
#: Entries of the manifest that a resumed run may change: the names of an input and a model with the same content.
_NAMES = (("input", "file"), ("model", "name_or_path"), ("model", "revision"))


def describe_model(model: SimCSE) -> dict[str, Any]:
    """Return what decides a model's embeddings, with a digest of its weights, as the manifest holds it."""
    weights = blake2b()
    # A checkpoint without a head loads with a random one; a pooler that does not use it must not depend on it.
    unused = set() if model.pooler_type == "cls" else {id(p) for p in model.model.contrastive_head.parameters()}
    for name, tensor in sorted(model.model.named_parameters()):
        if id(tensor) in unused:
            continue
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    if model.postprocessing is not None:
        for name, tensor in model.postprocessing.state_dict().items():
            weights.update(name.encode())
            weights.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return {
        "name_or_path": model.name_or_path,
        "revision": model.revision,
        "pooler": model.pooler_type,
        "max_length": model.max_length,
        "batch_invariant": getattr(model, "batch_invariant", False) or None,  # absent in earlier manifests
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "weights": weights.hexdigest(),
        "postprocessing": None if model.postprocessing is None else model.postprocessing.method,
    }


def start_run(folder: Path, model: SimCSE, table: Table, settings: dict[str, Any], resume: bool) -> str:
    """Write the manifest of a new run, or compare with that of the run to resume.

    Args:
        folder (`Path`): The folder of the shards.
        model (`SimCSE`): The model.
        table (`Table`): The input.
        settings (`dict[str, Any]`): The settings as the manifest holds them.
        resume (`bool`): Whether the folder may hold this run already.

    Returns:
        `str`: The digest of the manifest, see [`await_manifest`].

    Raises:
        ValueError: If the folder or the input is invalid, or the folder holds a different run.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error}") from error
    started = (folder / MANIFEST).exists()
    if started and not resume:
        raise ValueError(f"{folder} holds a run already: continue it with --resume, or name another folder.")
    earlier = read_manifest(folder) if started else None
    if not started and not all(map(is_leftover, folder.iterdir())):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}: name a new folder.")
    remove_leftovers(folder)
    source = Path(table.name)
    manifest: dict[str, Any] = {
        "layout": LAYOUT_VERSION,
        "input": {"file": source.name, "bytes": source.stat().st_size, "blake2b": digest(source)},
        "model": describe_model(model),
        "settings": settings,
    }
    if earlier is None:
        rows, starts = _count_rows(table, settings["column"], settings["shard_size"])
        manifest["input"]["rows"] = rows
        if table.can_seek:
            manifest["starts"] = starts
        write_whole(folder / MANIFEST, lambda stream: stream.write((json.dumps(manifest, indent=2) + "\n").encode()))
        return _digest(folder)
    differences = [
        f"{section} {key} was {earlier[section].get(key)!r} and is now {value!r}"
        for section in ("input", "model", "settings")
        for key, value in manifest[section].items()
        if (section, key) not in _NAMES and earlier[section].get(key) != value
    ]
    if differences:
        raise ValueError(
            f"{folder} holds a different run ({'; '.join(differences)}). Name another folder, or run with what it was "
            "started with."
        )
    return _digest(folder)


def _count_rows(table: Table, column: str, shard_size: int) -> tuple[int, list[Place]]:
    """Check and count the rows of a file; return their number, and where each shard starts."""
    rows, starts = 0, []
    for place, _ in placed_texts(table, column):
        if rows % shard_size == 0:
            check_shard_count(rows + 1, shard_size)
            starts.append(place)
        rows += 1
    if not rows:
        raise ValueError(f"{table.name}: there is no text to encode.")
    return rows, starts


def _digest(folder: Path) -> str:
    return blake2b((folder / MANIFEST).read_bytes()).hexdigest()


def await_manifest(folder: Path, expected: str) -> dict[str, Any]:
    """Read the manifest that the first process wrote, as soon as this machine sees it in the shared folder.

    Args:
        folder (`Path`): The folder of the shards.
        expected (`str`): What [`start_run`] returned in the first process.

    Returns:
        `dict[str, Any]`: The manifest.

    Raises:
        ValueError: If another manifest, or none, is there after a minute.
    """
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while not (folder / MANIFEST).exists() or _digest(folder) != expected:
        if time.monotonic() > deadline:
            raise ValueError(
                f"{folder}: {MANIFEST} is not the one that the first process wrote, after {_VISIBLE_SECONDS:.0f} "
                "seconds. The folder must be shared by the machines of all processes."
            )
        time.sleep(_POLL_SECONDS)
    return read_manifest(folder)
