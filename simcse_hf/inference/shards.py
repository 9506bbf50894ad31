"""A file of texts to shards of vectors, each written whole or not at all: a killed run goes on where it was."""

import json
import os
import time
from collections.abc import Iterator
from hashlib import blake2b, file_digest
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.texts import stream_texts, text_column
from ..ops.distributed import world
from .quantization import calibrate_ranges, check_precision, check_ranges, check_truncate_dim, quantize
from .simcse import SimCSE

logger = logging.get_logger(__name__)

FORMATS = ("npy", "parquet")
MANIFEST = "manifest.json"
RANGES = "ranges.npy"

_LAYOUT = 1  # of the folder
_WINDOW = 10_000  # texts that are tokenised and sorted by length together
_POLL_SECONDS = 0.5
#: What may differ between the runs that write one folder: names, where the content is the same.
_NAMES = (("input", "file"), ("model", "name_or_path"), ("model", "revision"))


def encode_file(
    model: SimCSE,
    source: str | os.PathLike,
    output_dir: str | os.PathLike,
    *,
    column: str | None = None,
    normalize: bool = True,
    truncate_dim: int | None = None,
    precision: str = "float32",
    ranges: np.ndarray | None = None,
    shard_size: int = 50_000,
    file_format: str = "npy",
    token_budget: int | None = None,
    resume: bool = False,
    show_progress: bool = False,
) -> list[Path]:
    """Writes the vectors of a file's texts, in their order, to `vectors-00000-of-00020.npy` and so on.

    A first pass over the file counts and checks its rows, so that a bad one is found before hours of encoding. The
    file is then streamed, a shard in memory at a time. A shard gets its name when it is complete; `resume` writes the
    missing ones. `manifest.json` says what they were made of and with, down to a digest of the input and of the
    model's weights and transform, and a run with anything else is refused. So an interrupted run ends with the same
    bytes as one that was not.

    Under several processes (`accelerate launch`, `torchrun`, on one machine or on many with a common folder) each
    writes every W-th shard. They meet once, at the start.

    Args:
        model: what encodes.
        source: a txt, csv, tsv, json, jsonl or parquet file, or one of these gzipped.
        output_dir: created; must be new, empty, or with `resume` that of the same run.
        column: of texts, where the file has several.
        normalize: to unit length, after truncation.
        truncate_dim: keep so many leading dimensions.
        precision: see [`quantize`]. For int8 without `ranges` those of the first shard are taken, and written to
            `ranges.npy`.
        ranges: (2, dim), for int8.
        shard_size: vectors of a shard; with their texts, what is in memory at a time.
        file_format: `"npy"`, or `"parquet"` with the columns `row` (1-based line or row of the source), `text` and
            `vector`.
        token_budget: tokens of a padded batch; None: the default of [`SimCSE.encode`].
        resume: go on with a run that was interrupted.
        show_progress: a progress bar on the first process, over its own rows.

    Returns:
        The paths of all shards.

    Raises:
        ValueError: bad input, settings or place; vectors that are not finite; a full disk.
    """
    check_precision(precision)
    dim = model.dim
    check_truncate_dim(truncate_dim, dim)
    if file_format not in FORMATS:
        raise ValueError(f"file_format must be one of {', '.join(FORMATS)}, got {file_format!r}")
    if shard_size < 1 or token_budget is not None and token_budget < 1:
        raise ValueError(f"shard_size and token_budget must be at least 1, got {shard_size} and {token_budget}")
    if ranges is not None:
        if precision != "int8":
            raise ValueError(f"ranges are for precision 'int8', not {precision!r}")
        ranges = np.asarray(ranges, dtype=np.float32)
        check_ranges(ranges, truncate_dim or dim)
    rank, processes = world()
    source, folder = Path(source).expanduser(), Path(output_dir).expanduser()
    settings = {
        "column": text_column(source, column)[1],
        "normalize": normalize,
        "truncate_dim": truncate_dim,
        "precision": precision,
        "ranges": None if ranges is None else blake2b(ranges.tobytes()).hexdigest(),
        "shard_size": shard_size,
        "format": file_format,
        "token_budget": token_budget,
    }
    if rank == 0:
        _prepare(folder, {"model": _describe_model(model), "settings": settings}, source, resume)
    if processes > 1:
        dist.barrier()
    rows = read_manifest(folder)["input"]["rows"]
    paths = shard_paths(folder)

    def vectors_of(texts: list[str], first_row: int) -> np.ndarray:
        vectors = model.encode(
            texts,
            normalize=normalize,
            truncate_dim=truncate_dim,
            convert_to="numpy",
            token_budget=token_budget,
            split_over_processes=False,
        )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"{source}: text {first_row + int(finite.argmin()) + 1} has a vector that is not finite; "
                "encode in float32 or bfloat16."
            )
        return vectors

    mine = [number for number in range(rank, len(paths), processes) if not paths[number].exists()]
    stream = stream_texts(source, settings["column"])
    position = 0
    bar = tqdm(
        total=sum(min(shard_size, rows - number * shard_size) for number in range(rank, len(paths), processes)),
        desc="Encoding",
        unit="text",
        disable=not show_progress or rank != 0,
    )
    bar.update(bar.total - sum(min(shard_size, rows - number * shard_size) for number in mine))
    for number in mine:
        for _ in islice(stream, number * shard_size - position):  # other processes' shards and finished ones
            pass
        shard = list(islice(stream, shard_size))
        position = number * shard_size + len(shard)
        if position != min(rows, (number + 1) * shard_size):
            raise ValueError(f"{source}: the file has become shorter while it was read; start anew.")
        parts = []
        for start in range(0, len(shard), _WINDOW):
            texts = [text for _, text in shard[start : start + _WINDOW]]
            parts.append(vectors_of(texts, number * shard_size + start))
            bar.update(len(texts))
        vectors = np.concatenate(parts)
        if precision == "int8":
            ranges = _shared_ranges(folder, number, vectors, ranges)
        _write_shard(paths[number], shard, quantize(vectors, precision, ranges))
    bar.close()
    return paths


def read_manifest(folder: str | os.PathLike) -> dict:
    """What a folder of shards was made of: the sections `input`, `model` and `settings`.

    Raises:
        ValueError: no manifest, or an unreadable one.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder}: no {MANIFEST}: not a folder that `simcse-hf encode` wrote.") from None
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); encode into a new folder.") from error
    if manifest.get("layout") != _LAYOUT:
        raise ValueError(f"{path}: layout {manifest.get('layout')!r}, where this version reads {_LAYOUT}.")
    return manifest


def shard_paths(folder: str | os.PathLike) -> list[Path]:
    """The paths of all shards of a folder, whether they are there yet or not."""
    manifest = read_manifest(folder)
    size, suffix = manifest["settings"]["shard_size"], manifest["settings"]["format"]
    count = -(-manifest["input"]["rows"] // size)
    return [Path(folder) / f"vectors-{number:05d}-of-{count:05d}.{suffix}" for number in range(count)]


def read_shards(folder: str | os.PathLike) -> Iterator[np.ndarray]:
    """The vectors of a folder, (n, dim) a shard, in the order of the texts.

    Raises:
        ValueError: a shard is missing or damaged.
    """
    for path in shard_paths(folder):
        if not path.exists():
            raise ValueError(f"{path} is missing: the run was interrupted; finish it with --resume.")
        try:
            if path.suffix == ".npy":
                yield np.load(path, allow_pickle=False)
            else:
                column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
                yield column.flatten().to_numpy().reshape(len(column), -1)
        except (ValueError, EOFError, pa.ArrowException) as error:
            raise ValueError(f"{path}: damaged ({error}); delete it and run again with --resume.") from error


def _describe_model(model: SimCSE) -> dict:
    digest = blake2b()
    # Without use for the head, a checkpoint that has none loads with a random one.
    unused = set() if model.pooler_type == "cls" else {id(p) for p in model.model.contrastive_head.parameters()}
    for name, tensor in sorted(model.model.named_parameters()):
        if id(tensor) in unused:
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    if model.postprocessing is not None:
        for name, tensor in model.postprocessing.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return {
        "name_or_path": model.name_or_path,
        "revision": model.revision,
        "pooler": model.pooler_type,
        "max_length": model.max_length,
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "weights": digest.hexdigest(),
        "postprocessing": None if model.postprocessing is None else model.postprocessing.method,
    }


def _prepare(folder: Path, manifest: dict, source: Path, resume: bool) -> None:
    """Writes the manifest of a new run, or checks that of the one to resume."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error}") from error
    started = (folder / MANIFEST).exists()
    if started and not resume:
        raise ValueError(f"{folder} holds a run already: go on with it by --resume, or name another folder.")
    for leftover in folder.glob("*.partial"):
        leftover.unlink()
    if not started and any(folder.iterdir()):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}: name a new folder.")
    with open(source, "rb") as stream:
        digest = file_digest(stream, "blake2b").hexdigest()
    manifest = {
        "layout": _LAYOUT,
        "input": {"file": source.name, "bytes": source.stat().st_size, "blake2b": digest},
        **manifest,
    }
    if not started:
        manifest["input"]["rows"] = sum(1 for _ in stream_texts(source, manifest["settings"]["column"]))
        if not manifest["input"]["rows"]:
            raise ValueError(f"{source}: there is no text to encode.")
        _write(folder / MANIFEST, lambda stream: stream.write((json.dumps(manifest, indent=2) + "\n").encode()))
        return
    found = read_manifest(folder)
    different = [
        f"{section} {key}: {found[section].get(key)!r} there, {value!r} now"
        for section in ("input", "model", "settings")
        for key, value in manifest[section].items()
        if (section, key) not in _NAMES and found[section].get(key) != value
    ]
    if different:
        raise ValueError(
            f"{folder} was begun with something else ({'; '.join(different)}). Name another folder, or give the same."
        )


def _shared_ranges(folder: Path, number: int, vectors: np.ndarray, given: np.ndarray | None) -> np.ndarray:
    """The ranges of all shards: those given, or of the first shard, for which other processes wait."""
    path = folder / RANGES
    if given is None and number == 0:
        given = calibrate_ranges(vectors)
    if given is not None:
        if number == 0:
            _write(path, lambda stream: np.save(stream, given))
        return given
    if not path.exists():
        logger.info("Waiting for the ranges of the first shard, %s.", path)
    while not path.exists():
        time.sleep(_POLL_SECONDS)
    return np.load(path, allow_pickle=False)


def _write_shard(path: Path, shard: list[tuple[int, str]], vectors: np.ndarray) -> None:
    if path.suffix == ".npy":
        _write(path, lambda stream: np.save(stream, vectors))
        return
    numbers, texts = zip(*shard, strict=True)
    flat = pa.array(vectors.reshape(-1))
    table = pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "text": pa.array(texts, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
    )
    _write(path, lambda stream: pq.write_table(table, stream))


def _write(path: Path, write) -> None:
    """Writes a file under another name first: what has its name is complete and on the disk."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ValueError(
            f"cannot write {path}: {error}. Finished shards are kept: make room and run again with --resume."
        ) from error
