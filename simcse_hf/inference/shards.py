"""Encode a file of texts into shards of embeddings, each of which is whole or absent, and read them again."""

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.file_texts import stream_texts, text_column
from ..data.read import load_text_dataset
from ..ops.distributed import hold_together, on_first_process, world
from ..ops.errors import NotFiniteError, refuse, refuse_changes
from ..ops.files import ARRAY_DAMAGE, digest, entries, read_json_object, read_npy, write_atomically, write_json
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
#: Entries of the manifest that a resumed run may change: the names of an input and a model with the same content, and
#: the size of a batch.
_NAMES = (("input", "file"), ("model", "name_or_path"), ("model", "revision"), ("settings", "token_budget"))
_NEW = ("tokenizer", "templates")  # of the model; 0.3 did not write them
Row = tuple[int, str]  # the line or row number, from 1, and the text
TokenIds = list[list[int]]
#: Exceptions for a damaged shard.
_DAMAGE = (*ARRAY_DAMAGE, KeyError, pa.ArrowException)


def encode_file(
    model: SimCSE,
    source: str | os.PathLike | Dataset,
    output_dir: str | os.PathLike,
    *,
    column: str | None = None,
    columns: Sequence[str] | None = None,
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
        source (`str`, `os.PathLike` or `Dataset`): A txt, csv, tsv, json, jsonl or parquet file, or one of these
            gzipped; or training rows, with columns of texts only.
        output_dir (`str` or `os.PathLike`): A new or empty folder, or with `resume` the folder of the same run.
        column (`str`, *optional*): The column of texts, if the file has several columns.
        columns (`Sequence[str]`, *optional*): Encode the texts of these columns as the rows of training data (see
            [`load_text_dataset`]): row by row, each in the order of the columns.
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
        "column and columns are both given: name one of them": column is not None and columns is not None,
    }
    refuse(problems)
    folder, texts = Path(output_dir).expanduser(), _Source(source, column, columns)
    prefix = model.resolve_prompt(prompt, prompt_name)
    shape = {"precision": precision, "shard_size": shard_size, "format": file_format}
    settings = {"column": texts.column, "prompt": prefix or None, **options, **shape, "ranges": _digest(ranges, dim)}
    settings |= {} if columns is None else {"columns": list(columns)}
    with hold_together(folder):
        manifest = on_first_process(lambda: _start(folder, model, texts, settings, resume))
        paths, sizes = _paths(folder, manifest), _sizes(manifest)
        missing = _missing(paths, sizes)

        def tokenized(chosen: Container[int], size: int = shard_size) -> Iterator[tuple[int, list[Row], TokenIds]]:
            for number, rows in _read(texts.read(), size, chosen):
                texts.check_unchanged()
                yield number, rows, model.tokenize([text for _, text in rows], prefix)

        embed = partial(_embed, model, texts.name, options)
        if precision in SCALAR_PRECISIONS:
            first = tokenized({0}, min(shard_size, _RANGE_TEXTS))
            ranges = on_first_process(
                lambda: _common_ranges(folder / RANGES, ranges, dim, lambda: embed(*next(first)[1:]))
            )
        total, hidden = sum(sizes[number] for number in missing), not show_progress_bar or world()[0] != 0
        with tqdm(total=total, desc="Encoding", unit="text", disable=hidden) as bar:
            for number, rows, token_ids in one_ahead(tokenized(missing)):
                _write(paths[number], rows, quantize(embed(rows, token_ids), precision, ranges))
                bar.update(len(rows))
        texts.check_unchanged()
        return paths


class _Source:
    """The texts of a file or of training rows, which are read more than once; see [`encode_file`]."""

    def __init__(self, source: str | os.PathLike | Dataset, column: str | None, columns: Sequence[str] | None):
        self.column, self.path = column, None
        if isinstance(source, Dataset):
            self.name, self.read = "the training rows", partial(texts_of_rows, source)
            return
        self.path = Path(source).expanduser()
        self.name, self._version = str(self.path), _version(self.path)
        if columns is None:
            self.column = text_column(self.path, column)[1]
            self.read = partial(stream_texts, self.path, self.column)
        else:
            self.read = partial(texts_of_rows, load_text_dataset(self.path, columns=columns))

    def check_unchanged(self) -> None:
        """Refuse a file that was written to."""
        if self.path is not None and _version(self.path) != self._version:
            raise ValueError(f"{self.path}: the file was changed while it was encoded. Encode it again from new.")

    def describe(self) -> dict[str, str]:
        """Return the name and the digest for the manifest."""
        if self.path is None:
            return {"file": self.name, "blake2b": describe_texts(text for _, text in self.read())[1]}
        return {"file": self.path.name, "blake2b": digest(self.path)}


def describe_texts(texts: Iterable[str]) -> tuple[int, str]:
    """Return the number of texts, and a digest of them in their order.

    Args:
        texts (`Iterable[str]`): The texts. Those of a row follow each other.

    Returns:
        `tuple[int, str]`: The number and the digest, by which vectors are matched with training rows.
    """
    number, total = 0, blake2b(digest_size=16)
    for text in texts:
        number += 1
        total.update(f"{len(text)} {text}".encode())
    return number, total.hexdigest()


def write_vectors(
    folder: str | os.PathLike, rows: Dataset, vectors: np.ndarray, model: str, shard_size: int = 50_000
) -> None:
    """Write vectors that come from elsewhere, such as an API, as [`encode_file`] writes a model's.

    Args:
        folder (`str` or `os.PathLike`): A new or empty folder.
        rows (`Dataset`): What [`load_text_dataset`] returned for the file.
        vectors (`np.ndarray`): Of shape `(rows, columns, dim)`, or `(rows, dim)` for rows of one text.
        model (`str`): What made the vectors.
        shard_size (`int`, *optional*, defaults to `50_000`): Vectors of a shard.

    Raises:
        ValueError: If there is not a vector for each text, or the folder is not empty.
    """
    folder, vectors = Path(folder).expanduser(), np.asarray(vectors)
    vectors = vectors.reshape(-1, vectors.shape[-1]).astype(np.float32, copy=False)
    count, texts = describe_texts(text for _, text in texts_of_rows(rows))
    folder.mkdir(parents=True, exist_ok=True)
    refuse(
        {
            f"there are {len(vectors)} vectors for {count} texts": len(vectors) != count,
            f"{folder} is not empty: name a new folder": any(folder.iterdir()),
        }
    )
    settings = {"precision": "float32", "shard_size": shard_size, "format": "npy"}
    manifest: dict[str, Any] = {"input": {"file": "rows", "rows": count, "texts": texts}, "settings": settings}
    manifest["model"] = {"name_or_path": model, "weights": blake2b(vectors.tobytes()).hexdigest()}
    for path, start in zip(_paths(folder, manifest), range(0, count, shard_size), strict=True):
        _write(path, [], vectors[start : start + shard_size])
    write_json(folder / MANIFEST, manifest)


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
    """Return what decides a model's embeddings, as the manifest holds it, and what the model is called.

    Args:
        model (`SimCSE`): The model.

    Returns:
        `dict[str, Any]`: The name and the settings, and digests of the weights (with the transform) and the tokenizer.
    """
    # A checkpoint without a head loads with a random one; a pooler that does not use it must not depend on it.
    head = None if model.pooler_type == "cls" else getattr(model.model, "contrastive_head", None)
    unused = set() if head is None else {id(p) for p in head.parameters()}
    transform = {} if model.postprocessing is None else model.postprocessing.state_dict()
    weights = blake2b()
    for name, tensor in [*sorted(model.model.named_parameters()), *transform.items()]:
        if id(tensor) not in unused:
            weights.update(name.encode())
            weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    for path in getattr(model.model, "files", ()):  # of an exported graph
        weights.update(digest(path).encode())
    return {
        "name_or_path": model.name_or_path,
        "revision": model.revision,
        "pooler": model.pooler_type,
        "max_length": model.max_length,
        "long_texts": None if model.long_texts == "cut" else model.long_texts,  # 0.3 cut all texts and wrote nothing
        "backend": None if model.backend == "torch" else model.backend,  # 0.3 wrote nothing
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "tokenizer": _digest_of_tokenizer(model.tokenizer),
        "templates": list(model.model.settings.templates),
        "weights": weights.hexdigest(),
        "postprocessing": None if model.postprocessing is None else model.postprocessing.method,
    }


def _digest_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.is_fast:
        return blake2b(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
    # The truncation and the padding are those of the last call.
    rules = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return blake2b(json.dumps(rules).encode()).hexdigest()


def _start(
    folder: Path,
    model: SimCSE,
    source: _Source,
    settings: Mapping[str, Any],
    resume: bool,
) -> dict[str, Any]:
    """Write the manifest of a new run, or compare with that of the run to resume; return it."""
    manifest: dict[str, Any] = {
        "input": source.describe(),
        "model": describe_model(model),
        "settings": dict(settings),
    }
    if (folder / MANIFEST).exists():
        if not resume:
            raise ValueError(f"{folder} holds a run already: continue it with --resume, or name another folder.")
        earlier = read_manifest(folder)
        compared = [
            (section, key)
            for section in manifest
            for key in manifest[section]
            if (section, key) not in _NAMES and (key not in _NEW or key in earlier["model"])
        ]
        before, now = ({f"{name} {key}": x[name].get(key) for name, key in compared} for x in (earlier, manifest))
        advice = "Name another folder, or run with what it was started with."
        refuse_changes(before, now, f"{folder}: the run that it holds", advice)
        manifest = earlier
    elif entries(folder):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}: name a new folder.")
    else:
        rows, texts = describe_texts(text for _, text in source.read())
        size = settings["shard_size"]
        manifest["input"] |= {"rows": rows, "texts": texts}
        few_and_large = size >= 1 and rows <= size * _MAX_SHARDS
        refuse(
            {
                f"{source.name}: there is no text to encode.": not rows,
                f"shard_size {size} does not make 1 to {_MAX_SHARDS} shards of {rows} texts.": not few_and_large,
            }
        )
        write_json(folder / MANIFEST, manifest)
    for path in _leftovers(folder):
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


def texts_of_rows(rows: Dataset) -> Iterator[Row]:
    """Yield the number of a row, from 1, with each of its texts."""
    row_texts = (texts for batch in rows.with_format(None).iter(10_000) for texts in zip(*batch.values(), strict=True))
    for number, texts in enumerate(row_texts, 1):
        yield from ((number, text) for text in texts)


def _read(texts: Iterator[Row], shard_size: int, chosen: Container[int]) -> Iterator[tuple[int, list[Row]]]:
    """Yield the number of each chosen shard with its rows."""
    for number in count():
        if not (shard := list(islice(texts, shard_size))):
            return
        if number in chosen:
            yield number, shard


def _embed(model: SimCSE, source: str, options: Mapping[str, Any], rows: list[Row], token_ids: TokenIds) -> np.ndarray:
    try:
        return model.embed(token_ids, [text for _, text in rows], split_over_processes=False, **options).numpy()
    except NotFiniteError as error:
        subject = f"{source}: the text of line or row {rows[error.position][0]}"
        raise NotFiniteError(subject, error.position) from None


def _missing(paths: list[Path], sizes: list[int]) -> set[int]:
    """Return the numbers of the shards that this process has to write."""
    rank, processes = world()
    missing = {n for n in range(rank, len(paths), processes) if _count(paths[n]) != sizes[n]}
    linked = [str(paths[n]) for n in missing if paths[n].is_symlink()]
    refuse({f"{''.join(linked[:1])} is a link to a shard that is missing or damaged: remove the link.": linked})
    return missing


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
