"""Encode a file of texts into shards of embeddings, so that an interrupted run can be resumed."""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from itertools import islice
from pathlib import Path
from tokenize import TokenError  # numpy reads the header of an npy file as Python tokens
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.texts import stream_texts, text_column
from ..ops.distributed import world
from ..ops.files import write_atomically
from ..ops.finite import NotFiniteError
from .manifest import (
    FORMATS,
    LAYOUT_VERSION,
    MANIFEST,
    RANGES,
    check_shard_count,
    is_leftover,
    read_manifest,
    remove_leftovers,
    shard_paths,
)
from .quantization import (
    SCALAR_PRECISIONS,
    calibrate_ranges,
    check_precision,
    check_ranges,
    check_truncate_dim,
    quantize,
)
from .simcse import SimCSE

logger = logging.get_logger(__name__)

_WINDOW = 10_000  # texts that are tokenized and sorted by length together
_POLL_SECONDS = 0.5
#: Entries of the manifest that a resumed run may change: the names of an input and a model with the same content.
_NAMES = (("input", "file"), ("model", "name_or_path"), ("model", "revision"))


@dataclass(frozen=True)
class ShardSettings:
    """The settings of [`encode_file`] that decide what the shards hold. A resumed run must have the same ones.

    Args:
        column (`str`, *optional*): The column of texts, if the file has several columns.
        normalize (`bool`, *optional*, defaults to `True`): Scale embeddings to unit length, after truncation.
        truncate_dim (`int`, *optional*): Keep only the leading dimensions.
        precision (`str`, *optional*, defaults to `"float32"`): One of `quantization.PRECISIONS`.
        ranges (`np.ndarray`, *optional*): For int8 and uint8, of shape `(2, dim)`. The default are the ranges of the
            first shard, which are written to `ranges.npy`.
        shard_size (`int`, *optional*, defaults to `50_000`): Embeddings of a shard. One shard and its texts are in
            memory at a time.
        file_format (`str`, *optional*, defaults to `"npy"`): `"npy"`, or `"parquet"` with the columns `row` (1-based
            line or row of the source), `text` and `vector`.
        token_budget (`int`, *optional*): Tokens of a padded batch. The default is that of [`SimCSE.encode`].
        prompt (`str`, *optional*): Put this before each text.
        prompt_name (`str`, *optional*): Put this prompt of the model before each text. The default is the model's
            default prompt, if it has one.
    """

    column: str | None = None
    normalize: bool = True
    truncate_dim: int | None = None
    precision: str = "float32"
    ranges: np.ndarray | None = None
    shard_size: int = 50_000
    file_format: str = "npy"
    token_budget: int | None = None
    prompt: str | None = None
    prompt_name: str | None = None

    def check(self, dim: int) -> None:
        """Raise a `ValueError` for a setting that is invalid for embeddings of size `dim`."""
        check_precision(self.precision)
        check_truncate_dim(self.truncate_dim, dim)
        if self.file_format not in FORMATS:
            raise ValueError(f"file_format must be one of {', '.join(FORMATS)}, got {self.file_format!r}")
        for name, value in (("shard_size", self.shard_size), ("token_budget", self.token_budget)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.ranges is not None:
            if self.precision not in SCALAR_PRECISIONS:
                raise ValueError(f"ranges are for precision int8 and uint8, not {self.precision!r}: leave them out")
            check_ranges(np.asarray(self.ranges), self.truncate_dim or dim)

    def describe(self, source: Path, prompt: str) -> dict[str, Any]:
        """Return the settings as the manifest holds them."""
        ranges = None if self.ranges is None else np.asarray(self.ranges, dtype=np.float32)
        return {
            "column": text_column(source, self.column)[1],
            "normalize": self.normalize,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "ranges": None if ranges is None else blake2b(ranges.tobytes()).hexdigest(),
            "shard_size": self.shard_size,
            "format": self.file_format,
            "token_budget": self.token_budget,
            "prompt": prompt or None,
        }


def encode_file(
    model: SimCSE,
    source: str | os.PathLike,
    output_dir: str | os.PathLike,
    *,
    resume: bool = False,
    show_progress: bool = False,
    **settings: Any,
) -> list[Path]:
    """Write the embeddings of a file's texts, in their order, to `vectors-00000-of-00020.npy` and so on.

    A first pass over the file counts and checks its rows, so that a bad row is found before hours of encoding. The
    file is then streamed, with one shard in memory at a time. A shard gets its name when it is complete, and `resume`
    writes those that are missing. `manifest.json` records the settings and digests of the input, the weights and the
    transform; a run that differs in any of them is refused, so a resumed run ends with the same bytes as one without
    interruption.

    Under several processes (`accelerate launch` or `torchrun`, on one machine or on several with a shared folder),
    each process writes every W-th shard. They wait for one another once, at the start.

    Args:
        model (`SimCSE`): The model.
        source (`str` or `os.PathLike`): A txt, csv, tsv, json, jsonl or parquet file, or one of these gzipped.
        output_dir (`str` or `os.PathLike`): A new or empty folder, or with `resume` the folder of the same run.
        resume (`bool`, *optional*, defaults to `False`): Continue an interrupted run.
        show_progress (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process, over its
            own rows.
        **settings (`Any`): The fields of [`ShardSettings`].

    Returns:
        `list[Path]`: The paths of all shards.

    Raises:
        ValueError: If the input, a setting or the folder is invalid, an embedding is not finite, or the disk is full.
    """
    options = ShardSettings(**settings)
    options.check(model.dim)
    prompt = model.resolve_prompt(options.prompt, options.prompt_name)
    rank, processes = world()
    source, folder = Path(source).expanduser(), Path(output_dir).expanduser()
    described = options.describe(source, prompt)
    if rank == 0:
        _prepare(folder, {"model": _describe_model(model), "settings": described}, source, resume)
    if processes > 1:
        dist.barrier()
    rows, paths = read_manifest(folder)["input"]["rows"], shard_paths(folder)
    sizes = [min(options.shard_size, rows - number * options.shard_size) for number in range(len(paths))]
    assigned = range(rank, len(paths), processes)
    missing = [number for number in assigned if not paths[number].exists()]
    ranges = options.ranges
    texts = stream_texts(source, described["column"])
    position = 0
    with tqdm(
        total=sum(sizes[number] for number in assigned),
        initial=sum(sizes[number] for number in assigned if number not in missing),
        desc="Encoding",
        unit="text",
        disable=not show_progress or rank != 0,
    ) as bar:
        for number in missing:
            start = number * options.shard_size
            for _ in islice(texts, start - position):  # skip finished shards and those of other processes
                pass
            shard = list(islice(texts, options.shard_size))
            position = start + len(shard)
            if len(shard) != sizes[number]:
                raise ValueError(f"{source}: the file became shorter while it was read; encode it again.")
            embeddings = _encode_shard(model, shard, source, options, prompt, bar)
            if options.precision in SCALAR_PRECISIONS:
                ranges = _common_ranges(folder, number, embeddings, ranges)
            _write_shard(paths[number], shard, quantize(embeddings, options.precision, ranges))
    return paths


def _encode_shard(
    model: SimCSE, shard: list[tuple[int, str]], source: Path, options: ShardSettings, prompt: str, bar: tqdm
) -> np.ndarray:
    parts = []
    for start in range(0, len(shard), _WINDOW):
        numbers, texts = zip(*shard[start : start + _WINDOW], strict=True)
        try:
            embeddings = model.encode(
                texts,
                normalize=options.normalize,
                truncate_dim=options.truncate_dim,
                convert_to="numpy",
                token_budget=options.token_budget,
                prompt=prompt,
                split_over_processes=False,
            )
        except NotFiniteError as error:
            raise NotFiniteError(f"{source}: the text of line or row {numbers[error.position]}", 0) from None
        parts.append(embeddings)
        bar.update(len(texts))
    return np.concatenate(parts)


def read_shards(folder: str | os.PathLike) -> Iterator[np.ndarray]:
    """Read the shards of a folder one after the other.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode_file`] wrote.

    Yields:
        `np.ndarray`: The embeddings or codes of a shard, of shape `(n, dim)`, in the order of the texts.

    Raises:
        ValueError: If a shard is missing or damaged.
    """
    manifest, dtype, width = read_manifest(folder), None, None
    rows, size = manifest["input"]["rows"], manifest["settings"]["shard_size"]
    for number, path in enumerate(shard_paths(folder)):
        if not path.exists():
            raise ValueError(f"{path} is missing, because the run was interrupted: finish it with --resume.")
        try:
            shard = _read_shard(path)
            if shard.ndim != 2 or len(shard) != min(size, rows - number * size) or not shard.shape[1]:
                raise ValueError(f"it holds an array of shape {shard.shape}")
            if (dtype or shard.dtype, width or shard.shape[1]) != (shard.dtype, shard.shape[1]):
                raise ValueError(f"it holds {shard.dtype} of shape {shard.shape}, unlike the shards before it")
        except (OSError, ValueError, KeyError, EOFError, MemoryError, TokenError, pa.ArrowException) as error:
            raise ValueError(
                f"{path}: damaged ({error}); delete it and run `simcse-hf encode` again with --resume."
            ) from error
        dtype, width = shard.dtype, shard.shape[1]
        yield shard


def _read_shard(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        with open(path, "rb") as stream:  # never a zip archive or a pickle, which np.load would open too
            return np.lib.format.read_array(stream, allow_pickle=False)
    column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise ValueError(f"the column 'vector' holds {column.type} with {column.null_count} nulls")
    return column.flatten().to_numpy().reshape(len(column), -1)


def _describe_model(model: SimCSE) -> dict[str, Any]:
    digest = blake2b()
    # A checkpoint without a head loads with a random one; a pooler that does not use it must not depend on it.
    unused = set() if model.pooler_type == "cls" else {id(p) for p in model.model.contrastive_head.parameters()}
    for name, tensor in sorted(model.model.named_parameters()):
        if id(tensor) in unused:
            continue
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    if model.postprocessing is not None:
        for name, tensor in model.postprocessing.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return {
        "name_or_path": model.name_or_path,
        "revision": model.revision,
        "pooler": model.pooler_type,
        "max_length": model.max_length,
        "batch_invariant": getattr(model, "batch_invariant", False) or None,  # absent in earlier manifests
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "weights": digest.hexdigest(),
        "postprocessing": None if model.postprocessing is None else model.postprocessing.method,
    }


def _prepare(folder: Path, manifest: dict[str, Any], source: Path, resume: bool) -> None:
    """Write the manifest of a new run, or compare with that of the run to resume."""
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
    with open(source, "rb") as stream:
        digest = file_digest(stream, "blake2b").hexdigest()
    manifest = {
        "layout": LAYOUT_VERSION,
        "input": {"file": source.name, "bytes": source.stat().st_size, "blake2b": digest},
        **manifest,
    }
    if earlier is None:
        manifest["input"]["rows"] = sum(1 for _ in stream_texts(source, manifest["settings"]["column"]))
        if not manifest["input"]["rows"]:
            raise ValueError(f"{source}: there is no text to encode.")
        check_shard_count(manifest["input"]["rows"], manifest["settings"]["shard_size"])
        _write(folder / MANIFEST, lambda stream: stream.write((json.dumps(manifest, indent=2) + "\n").encode()))
        return
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


def _common_ranges(folder: Path, number: int, embeddings: np.ndarray, ranges: np.ndarray | None) -> np.ndarray:
    """Return the ranges of all shards: those given, or of the first shard, for which other processes wait."""
    path = folder / RANGES
    if ranges is None and number == 0:
        ranges = calibrate_ranges(embeddings)
    if ranges is not None:
        ranges = np.asarray(ranges, dtype=np.float32)
        if number == 0:
            _write(path, lambda stream: np.save(stream, ranges))
        return ranges
    if not path.exists():
        logger.info("Waiting for the ranges of the first shard, %s.", path)
    while not path.exists():
        time.sleep(_POLL_SECONDS)
    return np.load(path, allow_pickle=False)


def _write_shard(path: Path, shard: list[tuple[int, str]], embeddings: np.ndarray) -> None:
    if path.suffix == ".npy":
        _write(path, lambda stream: np.save(stream, embeddings))
        return
    numbers, texts = zip(*shard, strict=True)
    flat = pa.array(embeddings.reshape(-1))
    table = pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "text": pa.array(texts, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(flat, embeddings.shape[1]),
        }
    )
    _write(path, lambda stream: pq.write_table(table, stream))


def _write(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    try:
        with write_atomically(path) as temporary, open(temporary, "wb") as stream:
            write(stream)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error}. Finished shards are kept: make room and run again with --resume."
        ) from error
