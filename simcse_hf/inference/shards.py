"""Encode a file of texts into shards of embeddings, so that an interrupted run can be resumed."""

import os
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.read import text_column
from ..ops.distributed import from_first_process, world
from ..ops.files import ARRAY_DAMAGE, read_npy
from ..ops.finite import NotFiniteError
from .encoding import TokenizeError, default_window
from .manifest import FORMATS, RANGES, read_manifest, shard_paths, start_of, write_whole
from .quantization import (
    SCALAR_PRECISIONS,
    calibrate_ranges,
    check_precision,
    check_ranges,
    check_truncate_dim,
    quantize,
)
from .shard_rows import Row, Shard, Window, file_version, read_windows
from .shard_run import await_manifest, start_run
from .simcse import SimCSE

logger = logging.get_logger(__name__)

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class ShardSettings:
    """The settings of [`encode_file`] that decide what the shards hold. A resumed run must have the same ones.

    Args:
        column (`str`, *optional*): The column of texts, if the file has several columns.
        normalize_embeddings (`bool`, *optional*, defaults to `True`): Scale embeddings to unit length, after
            truncation.
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
    normalize_embeddings: bool = True
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

    def describe(self, column: str, prompt: str) -> dict[str, Any]:
        """Return the settings as the manifest holds them, with the names that were found for column and prompt."""
        ranges = None if self.ranges is None else np.asarray(self.ranges, dtype=np.float32)
        return {
            "column": column,
            "normalize_embeddings": self.normalize_embeddings,
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
    show_progress_bar: bool = False,
    **settings: Any,
) -> list[Path]:
    """Write the embeddings of a file's texts, in their order, to `vectors-00000-of-00020.npy` and so on.

    A first pass over the file counts and checks its rows, so that a bad row is found before hours of encoding. The
    file is then streamed: one shard and the one that is being written are in memory, and one window of texts that is
    read and tokenized ahead. A shard gets its name when it is complete, and `resume` writes those that are missing.
    `manifest.json` records the settings and digests of the input, the weights and the transform; a run that differs
    in any of them is refused, so a resumed run ends with the same bytes as one without interruption.

    Under several processes (`accelerate launch` or `torchrun`, on one machine or on several with a shared folder),
    each process writes every W-th shard. The first process makes the first pass, however long it takes, and writes
    where each shard starts in the file, so that the others read only their own rows. Files that cannot be read from
    the middle (gzipped ones, and a json file that is one array) are read from the start by each process.

    Args:
        model (`SimCSE`): The model.
        source (`str` or `os.PathLike`): A txt, csv, tsv, json, jsonl or parquet file, or one of these gzipped.
        output_dir (`str` or `os.PathLike`): A new or empty folder, or with `resume` the folder of the same run.
        resume (`bool`, *optional*, defaults to `False`): Continue an interrupted run.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process, over its
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
    source, folder = Path(source).expanduser(), Path(output_dir).expanduser()
    version = file_version(source) if source.exists() else None
    table, column = text_column(source, options.column)
    digest = from_first_process(
        lambda: start_run(folder, model, table, options.describe(column, prompt), resume),
        f"checks {source} and counts its rows",
    )
    manifest = await_manifest(folder, digest)
    size, paths = options.shard_size, shard_paths(folder)
    sizes = [min(size, manifest["input"]["rows"] - number * size) for number in range(len(paths))]
    rank, processes = world()
    assigned = range(rank, len(paths), processes)
    missing = [number for number in assigned if not paths[number].exists()]
    if not table.can_seek and rank == 0 and processes > 1:
        logger.warning(
            f"{source} cannot be read from the middle, so each of the {processes} processes reads it from its start. "
            "Unpack it, or write it as JSON Lines, to let each process read only the rows of its own shards."
        )
    shards = [Shard(number, number * size, sizes[number], start_of(manifest, number)) for number in missing]
    windows = read_windows(table, column, shards, default_window(model.device), version)
    ranges = options.ranges
    with (
        ThreadPoolExecutor(1, thread_name_prefix="simcse-write") as writer,
        tqdm(
            total=sum(sizes[number] for number in assigned),
            initial=sum(sizes[number] for number in assigned if number not in set(missing)),
            desc="Encoding",
            unit="text",
            disable=not show_progress_bar or rank != 0,
        ) as bar,
        closing(_encode_shards(model, source, windows, options, prompt, bar)) as encoded,
    ):
        writing: Future[None] | None = None
        for number, rows, embeddings in encoded:
            if options.precision in SCALAR_PRECISIONS:
                ranges = _common_ranges(folder, number, embeddings, ranges)
            if writing is not None:
                writing.result()
            writing = writer.submit(_write_shard, paths[number], rows, embeddings, options.precision, ranges)
        if writing is not None:
            writing.result()
    return paths


def _encode_shards(
    model: SimCSE, source: Path, windows: Generator[Window], options: ShardSettings, prompt: str, bar: tqdm
) -> Generator[tuple[int, list[Row], np.ndarray]]:
    """Yield the number, the rows and the embeddings of each shard whose windows are read in the background."""
    in_flight: deque[Window] = deque()

    def texts() -> Iterator[list[str]]:
        with closing(windows):
            for window in windows:
                in_flight.append(window)
                yield [text for _, text in window.rows]

    settings = {name: getattr(options, name) for name in ("normalize_embeddings", "truncate_dim", "token_budget")}
    rows: list[Row] = []
    parts: list[np.ndarray] = []
    finished = 0
    with closing(model.encode_windows(texts(), prompt=prompt, split_over_processes=False, **settings)) as embedded:
        try:
            for embeddings in embedded:
                window = in_flight.popleft()
                finished += len(window.rows)
                bar.update(len(window.rows))
                rows += window.rows
                parts.append(embeddings.numpy())
                if window.ends_shard:
                    yield window.shard, rows, np.concatenate(parts)
                    rows, parts = [], []
        except (NotFiniteError, TokenizeError) as error:
            waiting = chain.from_iterable(window.rows for window in in_flight)
            number, _ = next(islice(waiting, error.position - finished, None))
            subject = f"{source}: the text of line or row {number}"
            if isinstance(error, TokenizeError):
                raise TokenizeError(subject, error.reason, error.position) from None
            raise NotFiniteError(subject, error.position) from None


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
        except (*ARRAY_DAMAGE, KeyError, pa.ArrowException) as error:
            raise ValueError(
                f"{path}: damaged ({error}); delete it and run `simcse-hf encode` again with --resume."
            ) from error
        dtype, width = shard.dtype, shard.shape[1]
        yield shard


def sample_shards(folder: str | os.PathLike, count: int, seed: int = 0) -> np.ndarray:
    """Draw embeddings from all shards of a folder, for an index to learn its cells from.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode_file`] wrote.
        count (`int`): How many to draw; all of them if there are fewer.
        seed (`int`, *optional*, defaults to `0`): Seed of the draw.

    Returns:
        `np.ndarray`: Different embeddings, of shape `(count, dim)`, in the order of the texts.

    Raises:
        ValueError: If a shard is missing or damaged.
    """
    rows = read_manifest(folder)["input"]["rows"]
    chosen = np.sort(np.random.default_rng(seed).choice(rows, min(count, rows), replace=False))
    parts, start = [], 0
    for shard in read_shards(folder):
        first, end = np.searchsorted(chosen, (start, start + len(shard)))
        parts.append(shard[chosen[first:end] - start])
        start += len(shard)
    return np.concatenate(parts)


def _read_shard(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return read_npy(path)
    column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise ValueError(f"the column 'vector' holds {column.type} with {column.null_count} nulls")
    return column.flatten().to_numpy().reshape(len(column), -1)


def _common_ranges(folder: Path, number: int, embeddings: np.ndarray, ranges: np.ndarray | None) -> np.ndarray:
    """Return the ranges of all shards: those given, or of the first shard, for which other processes wait."""
    path = folder / RANGES
    if ranges is None and number == 0:
        ranges = calibrate_ranges(embeddings)
    if ranges is not None:
        ranges = np.asarray(ranges, dtype=np.float32)
        if number == 0:
            write_whole(path, lambda stream: np.save(stream, ranges))
        return ranges
    first = shard_paths(folder)[0]
    if not path.exists():
        logger.info("Waiting for the ranges of the first shard, %s.", path)
    while not path.exists():
        if first.exists() and not path.exists():  # the ranges are written before the first shard
            raise ValueError(f"{path} is missing. Delete {first} too, and run `simcse-hf encode` again with --resume.")
        time.sleep(_POLL_SECONDS)
    try:
        written = read_npy(path)
        check_ranges(written, embeddings.shape[1])
    except ARRAY_DAMAGE as error:
        raise ValueError(
            f"{path}: damaged ({error}). Delete it and {first}, and run `simcse-hf encode` again with --resume."
        ) from error
    return written


def _write_shard(
    path: Path, rows: list[Row], embeddings: np.ndarray, precision: str, ranges: np.ndarray | None
) -> None:
    embeddings = quantize(embeddings, precision, ranges)
    if path.suffix == ".npy":
        write_whole(path, lambda stream: np.save(stream, embeddings))
        return
    numbers, texts = zip(*rows, strict=True)
    flat = pa.array(embeddings.reshape(-1))
    table = pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "text": pa.array(texts, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(flat, embeddings.shape[1]),
        }
    )
    write_whole(path, lambda stream: pq.write_table(table, stream))
