"""Encode a file of texts into shards of embeddings, each of which is whole or absent, and read them again."""

import os
from collections.abc import Callable, Container, Iterator, Mapping
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm.auto import tqdm

from ..data.read import stream_texts, text_column
from ..ops.distributed import on_first_process, world
from ..ops.errors import NotFiniteError, refuse
from ..ops.files import ARRAY_DAMAGE, digest, read_json_object, read_npy, write_atomically, write_json
from .encoding import one_ahead
from .quantization import (
    SCALAR_PRECISIONS,
    calibrate_ranges,
    check_precision,
    check_ranges,
    check_truncate_dim,
    quantize,
)
from .simcse import SimCSE

MANIFEST = "manifest.json"
RANGES = "ranges.npy"
FORMATS = ("npy", "parquet")

_MAX_SHARDS = 1_000_000
_RANGE_TEXTS = 10_000  # texts at the start of the file whose embeddings give the ranges of 8-bit codes
#: Entries of the manifest that a resumed run may change: the names of an input and a model with the same content.
_NAMES = (("input", "file"), ("model", "name_or_path"), ("model", "revision"))
Row = tuple[int, str]  # the line or row number, from 1, and the text
#: Exceptions for a damaged shard.
_DAMAGE = (*ARRAY_DAMAGE, KeyError, pa.ArrowException)


def encode_file(
    model: SimCSE,
    source: str | os.PathLike,
    output_dir: str | os.PathLike,
    *,
    column: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    precision: str = "float32",
    ranges: np.ndarray | None = None,
    shard_size: int = 50_000,
    file_format: str = "npy",
    resume: bool = False,
    show_progress_bar: bool = False,
    **options: Any,
) -> list[Path]:
    """Write the embeddings of a file's texts, in their order, to `vectors-00000-of-00020.npy` and so on.

    A first pass over the file counts and checks its rows, so that a bad row is found before hours of encoding. The
    file is then streamed. A shard gets its name when it is complete, and `resume` writes those that are missing or
    damaged. `manifest.json` records the settings and digests of the input and the weights; a run that differs in any
    of them is refused.

    Under several processes (`accelerate launch` or `torchrun`, on one machine or on several with a shared folder),
    each process writes every W-th shard. The first process makes the first pass.

    Args:
        model (`SimCSE`): The model.
        source (`str` or `os.PathLike`): A txt, csv, tsv, json, jsonl or parquet file, or one of these gzipped.
        output_dir (`str` or `os.PathLike`): A new or empty folder, or with `resume` the folder of the same run.
        column (`str`, *optional*): The column of texts, if the file has several columns.
        prompt (`str`, *optional*): Put this before each text.
        prompt_name (`str`, *optional*): Put this prompt of the model before each text. The default is the model's
            default prompt, if it has one.
        precision (`str`, *optional*, defaults to `"float32"`): One of `quantization.PRECISIONS`.
        ranges (`np.ndarray`, *optional*): For int8 and uint8, of shape `(2, dim)`. The default are the ranges of the
            first 10,000 embeddings. The ranges are written to `ranges.npy`.
        shard_size (`int`, *optional*, defaults to `50_000`): Embeddings of a shard. One shard and the texts of the
            next one are in memory at a time.
        file_format (`str`, *optional*, defaults to `"npy"`): `"npy"`, or `"parquet"` with the columns `row` (1-based
            line or row of the source), `text` and `vector`.
        resume (`bool`, *optional*, defaults to `False`): Continue an interrupted run.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process, over
            its own rows.
        **options (`Any`): `normalize_embeddings`, `truncate_dim` and `token_budget`, as in [`SimCSE.encode`].

    Returns:
        `list[Path]`: The paths of all shards.

    Raises:
        ValueError: If the input, a setting or the folder is invalid, or an embedding is not finite.
    """
    check_precision(precision)
    options = {"normalize_embeddings": True, "truncate_dim": None, "token_budget": None} | options
    check_truncate_dim(options["truncate_dim"], model.dim)
    dim = options["truncate_dim"] or model.dim
    foreign = ranges is not None and precision not in SCALAR_PRECISIONS
    problems = {
        f"file_format must be one of {', '.join(FORMATS)}, got {file_format!r}": file_format not in FORMATS,
        f"ranges are for precision int8 and uint8, not {precision!r}: leave them out": foreign,
    }
    refuse(problems)
    source, folder = Path(source).expanduser(), Path(output_dir).expanduser()
    column = text_column(source, column)[1]
    prefix, version = model.resolve_prompt(prompt, prompt_name), _version(source)
    shape = {"precision": precision, "shard_size": shard_size, "format": file_format}
    settings = {"column": column, "prompt": prefix or None, **options, **shape, "ranges": _digest(ranges, dim)}
    manifest = on_first_process(lambda: _start(folder, model, source, settings, resume))
    paths, sizes = _paths(folder, manifest), _sizes(manifest)
    rank, processes = world()
    missing = {n for n in range(rank, len(paths), processes) if _count(paths[n]) != sizes[n]}

    def check_source() -> None:
        if _version(source) != version:
            raise ValueError(f"{source}: the file was changed while it was encoded. Encode it again from new.")

    def tokenized(chosen: Container[int], size: int = shard_size) -> Iterator[tuple[int, list[Row], list[list[int]]]]:
        for number, rows in _read(source, column, size, chosen):
            check_source()
            yield number, rows, model.tokenize([text for _, text in rows], prefix)

    def embed(rows: list[Row], token_ids: list[list[int]]) -> np.ndarray:
        return _embed(model, source, rows, token_ids, options)

    if precision in SCALAR_PRECISIONS:
        first = tokenized({0}, min(shard_size, _RANGE_TEXTS))
        ranges = on_first_process(
            lambda: _common_ranges(folder / RANGES, ranges, dim, lambda: embed(*next(first)[1:]))
        )
    total, hidden = sum(sizes[number] for number in missing), not show_progress_bar or rank != 0
    with tqdm(total=total, desc="Encoding", unit="text", disable=hidden) as bar:
        for number, rows, token_ids in one_ahead(tokenized(missing)):
            _write(paths[number], rows, quantize(embed(rows, token_ids), precision, ranges))
            bar.update(len(rows))
    check_source()
    return paths


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """Read what the shards of a folder were made from.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode_file`] wrote.

    Returns:
        `dict[str, Any]`: The sections `input` (with `rows`), `model` and `settings` (with `precision`, `shard_size`
            and `format`).

    Raises:
        ValueError: If there is no manifest, or it is damaged.
    """
    path = Path(folder).expanduser() / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder}: no {MANIFEST}, so it is not a folder that `simcse-hf encode` wrote; name one that is."
        )
    manifest = read_json_object(path, "input", "model", "settings", advice="Encode into a new folder.")
    try:
        rows, size = manifest["input"]["rows"], manifest["settings"]["shard_size"]
        known = manifest["settings"]["format"] in FORMATS and isinstance(manifest["settings"]["precision"], str)
        sound = known and type(rows) is type(size) is int and size >= 1 and 1 <= rows <= size * _MAX_SHARDS
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise ValueError(
            f"{path}: damaged (no sound rows, shard_size, format or precision); encode into a new folder."
        )
    return manifest


def read_shards(folder: str | os.PathLike) -> Iterator[np.ndarray]:
    """Read the shards of a folder one after the other.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode_file`] wrote.

    Yields:
        `np.ndarray`: The embeddings or codes of a shard, of shape `(n, dim)`, in the order of the texts.

    Raises:
        ValueError: If a shard is missing or damaged.
    """
    manifest, kind = read_manifest(folder), None
    for path, rows in zip(_paths(folder, manifest), _sizes(manifest), strict=True):
        if not path.exists():
            raise ValueError(f"{path} is missing, because the run was interrupted: finish it with --resume.")
        try:
            shard = _read_shard(path)
            if shard.ndim != 2 or len(shard) != rows or not shard.shape[1]:
                raise ValueError(f"it holds an array of shape {shard.shape}")
            kind = kind or (shard.dtype, shard.shape[1])
            if (shard.dtype, shard.shape[1]) != kind:
                raise ValueError(f"it holds {shard.dtype} of shape {shard.shape}, unlike the shards before it")
        except _DAMAGE as error:
            raise ValueError(
                f"{path}: damaged ({error}); delete it and run `simcse-hf encode` again with --resume."
            ) from error
        yield shard


def shard_paths(folder: str | os.PathLike) -> list[Path]:
    """Return the paths of all shards of a folder, including those that are not written yet."""
    return _paths(folder, read_manifest(folder))


def remove_run(folder: str | os.PathLike) -> None:
    """Remove the files that the manifest of a folder names, if it has one, and then the manifest.

    Args:
        folder (`str` or `os.PathLike`): A folder. Its other files stay.

    Raises:
        ValueError: If the manifest was not written by [`encode_file`].
    """
    manifest = Path(folder).expanduser() / MANIFEST
    if manifest.exists():
        for path in (
            *shard_paths(manifest.parent),
            manifest.with_name(RANGES),
            *_leftovers(manifest.parent),
            manifest,
        ):
            path.unlink(missing_ok=True)


def describe_model(model: SimCSE) -> dict[str, Any]:
    """Return what decides a model's embeddings, with a digest of its weights, as the manifest holds it."""
    # A checkpoint without a head loads with a random one; a pooler that does not use it must not depend on it.
    unused = set() if model.pooler_type == "cls" else {id(p) for p in model.model.contrastive_head.parameters()}
    transform = {} if model.postprocessing is None else model.postprocessing.state_dict()
    weights = blake2b()
    for name, tensor in [*sorted(model.model.named_parameters()), *transform.items()]:
        if id(tensor) not in unused:
            weights.update(name.encode())
            weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {
        "name_or_path": model.name_or_path,
        "revision": model.revision,
        "pooler": model.pooler_type,
        "max_length": model.max_length,
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "weights": weights.hexdigest(),
        "postprocessing": None if model.postprocessing is None else model.postprocessing.method,
    }


def _start(folder: Path, model: SimCSE, source: Path, settings: Mapping[str, Any], resume: bool) -> dict[str, Any]:
    """Write the manifest of a new run, or compare with that of the run to resume; return it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {
        "input": {"file": source.name, "blake2b": digest(source)},
        "model": describe_model(model),
        "settings": dict(settings),
    }
    leftovers = _leftovers(folder)
    if (folder / MANIFEST).exists():
        if not resume:
            raise ValueError(f"{folder} holds a run already: continue it with --resume, or name another folder.")
        earlier = read_manifest(folder)
        differences = [
            f"{section} {key} was {earlier[section].get(key)!r} and is now {value!r}"
            for section, entries in manifest.items()
            for key, value in entries.items()
            if (section, key) not in _NAMES and earlier[section].get(key) != value
        ]
        if differences:
            raise ValueError(
                f"{folder} holds a different run ({'; '.join(differences)}). Name another folder, or run with what it "
                "was started with."
            )
        manifest = earlier
    elif set(folder.iterdir()) - set(leftovers):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}: name a new folder.")
    else:
        rows = manifest["input"]["rows"] = sum(1 for _ in stream_texts(source, settings["column"]))
        size = settings["shard_size"]
        few_and_large = size >= 1 and rows <= size * _MAX_SHARDS
        refuse(
            {
                f"{source}: there is no text to encode.": not rows,
                f"shard_size {size} does not make 1 to {_MAX_SHARDS} shards of {rows} texts.": not few_and_large,
            }
        )
        write_json(folder / MANIFEST, manifest)
    for path in leftovers:
        path.unlink()
    return manifest


def _leftovers(folder: Path) -> list[Path]:
    """List the temporary files of [`write_atomically`] that a killed run has left in a folder."""
    return [path for name in (MANIFEST, RANGES, "vectors-*") for path in folder.glob(f".{name}.*.partial")]


def _paths(folder: str | os.PathLike, manifest: Mapping[str, Any]) -> list[Path]:
    count = -(-manifest["input"]["rows"] // manifest["settings"]["shard_size"])
    suffix = manifest["settings"]["format"]
    return [Path(folder) / f"vectors-{number:05d}-of-{count:05d}.{suffix}" for number in range(count)]


def _sizes(manifest: Mapping[str, Any]) -> list[int]:
    """Return the number of rows of each shard."""
    rows, size = manifest["input"]["rows"], manifest["settings"]["shard_size"]
    return [min(size, rows - first) for first in range(0, rows, size)]


def _version(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time of its last change, to notice that it was written to."""
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _digest(ranges: np.ndarray | None, dim: int) -> str | None:
    if ranges is None:
        return None
    check_ranges(np.asarray(ranges), dim)
    return blake2b(np.asarray(ranges, dtype=np.float32).tobytes()).hexdigest()


def _read(source: Path, column: str, shard_size: int, chosen: Container[int]) -> Iterator[tuple[int, list[Row]]]:
    """Yield the number of each chosen shard with its rows."""
    rows = stream_texts(source, column)
    for number in count():
        if not (shard := list(islice(rows, shard_size))):
            return
        if number in chosen:
            yield number, shard


def _embed(
    model: SimCSE, source: Path, rows: list[Row], token_ids: list[list[int]], options: Mapping[str, Any]
) -> np.ndarray:
    try:
        return model.embed(token_ids, [text for _, text in rows], split_over_processes=False, **options).numpy()
    except NotFiniteError as error:
        subject = f"{source}: the text of line or row {rows[error.position][0]}"
        raise NotFiniteError(subject, error.position) from None


def _count(path: Path) -> int | None:
    """Return the number of rows of a shard without reading them; `None` if it is missing or damaged."""
    try:
        if path.suffix == ".npy":  # the file is as long as its header says, or mapping it fails
            return len(np.lib.format.open_memmap(path, mode="r"))
        return pq.read_metadata(path).num_rows
    except _DAMAGE:
        return None


def _read_shard(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return read_npy(path)
    column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise ValueError(f"the column 'vector' holds {column.type} with {column.null_count} nulls")
    return column.flatten().to_numpy().reshape(len(column), -1)


def _common_ranges(
    path: Path, ranges: np.ndarray | None, dim: int, first_embeddings: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return the ranges of all shards: those given, those of the file, or of the first embeddings; write the file."""
    if ranges is None and path.exists():
        try:
            ranges = read_npy(path)
            check_ranges(ranges, dim)
        except ARRAY_DAMAGE as error:
            raise ValueError(f"{path}: damaged ({error}). Encode into a new folder.") from error
        return ranges
    ranges = calibrate_ranges(first_embeddings()) if ranges is None else np.asarray(ranges, dtype=np.float32)
    with write_atomically(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, ranges)
    return ranges


def _write(path: Path, rows: list[Row], vectors: np.ndarray) -> None:
    with write_atomically(path) as temporary, open(temporary, "wb") as stream:
        if path.suffix == ".npy":
            np.save(stream, vectors)
            return
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        flat = pa.array(vectors.reshape(-1))
        columns.append(pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
        pq.write_table(pa.table(columns, names=["row", "text", "vector"]), stream)
