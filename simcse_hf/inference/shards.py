"""Encode a file of texts into shards of embeddings, each of which is whole or absent, and read them again."""

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from tqdm.auto import tqdm

from ..data.read import load_text_dataset
from ..data.table import open_table, stream_texts, text_column
from ..names import FORMATS, PRECISIONS
from ..ops.checks import check_values
from ..ops.distributed import hold_together, on_first_process, world
from ..ops.errors import NotFiniteError, check_finite, refuse_changes
from ..ops.files import (
    ARRAY_DAMAGE,
    digest,
    entries,
    read_json,
    read_npy,
    write_atomically,
    write_json,
    write_npy,
)
from ..ops.identity import digest_texts
from .quantization import (
    SCALAR_PRECISIONS,
    calibrate_ranges,
    check_ranges,
    check_truncate_dim,
    quantize,
)
from .simcse import SimCSE

#: Readers of parquet data sets, such as pandas and datasets, skip files whose names begin with `_`.
MANIFEST = "_manifest.json"
RANGES = "_ranges.npy"

_MAX_SHARDS = 1_000_000
_RANGE_TEXTS = 10_000  # texts at the start of the file whose embeddings give the ranges of 8-bit codes
#: Entries of the manifest that a resumed run may change: the names of an input and a model with the same content, the
#: size of a batch, and what the settings say, too (the prompt that is used, and whether vectors have unit length).
_MAY_CHANGE = (
    *("input file", "settings token_budget", "model name_or_path", "model revision"),
    *("model prompts", "model default_prompt_name", "model similarity"),
)
Row = tuple[int, str]  # the line or row number, from 1, and the text
_AGAIN = "delete it and run `simcse-hf encode` again with --resume."
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
    overwrite: bool = False,
    show_progress_bar: bool = False,
    **options: Any,
) -> list[Path]:
    """Write the embeddings of a file's texts, in their order, to `vectors-00000-of-00020.npy` and so on.

    A first pass over the file counts and checks its rows, so that a bad row is found before hours of encoding. The
    file is then streamed. A shard gets its name when it is complete, and `resume` writes those that are missing or
    damaged. `_manifest.json` records the settings and digests of the input and the weights; a run that differs in any
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
            first 10,000 embeddings. The ranges are written to `_ranges.npy`.
        shard_size (`int`, *optional*, defaults to `50_000`): Embeddings of a shard. One shard and the texts of the
            next one are in memory at a time.
        file_format (`str`, *optional*, defaults to `"npy"`): `"npy"`, or `"parquet"` with the columns `row` (1-based
            line or row of the source), `text` and `vector`.
        resume (`bool`, *optional*, defaults to `False`): Continue an interrupted run.
        overwrite (`bool`, *optional*, defaults to `False`): Remove an earlier run, once the input and the settings of
            this one are checked.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process, over
            its own rows.
        **options (`Any`): `normalize_embeddings`, `truncate_dim` and `token_budget`, as in [`SimCSE.encode`].

    Returns:
        `list[Path]`: The paths of all shards.

    Raises:
        ValueError: If the input, a setting or the folder is invalid, or an embedding is not finite.
    """
    check_values(PRECISIONS, precision=precision)
    is_cosine = model.similarity_fn_name == "cosine"
    options = {"normalize_embeddings": is_cosine, "truncate_dim": None, "token_budget": None} | options
    check_truncate_dim(options["truncate_dim"], model.dim)
    check_values(FORMATS, file_format=file_format)
    if ranges is not None:
        if precision not in SCALAR_PRECISIONS:
            raise ValueError(f"ranges are for precision int8 and uint8, not {precision!r}: leave them out")
        ranges = np.asarray(ranges, dtype=np.float32)
        check_ranges(ranges, options["truncate_dim"] or model.dim)
    if column is not None and columns is not None:
        raise ValueError("column and columns are both given: name one of them")
    if resume and overwrite:
        raise ValueError("resume keeps the shards that overwrite would replace: give one of the two")
    texts = _Source(source, column, columns)
    prefix = model.resolve_prompt(prompt, prompt_name)
    settings = {
        "column": texts.column,
        "prompt": prefix or None,
        **options,
        "precision": precision,
        "shard_size": shard_size,
        "format": file_format,
        "ranges": None if ranges is None else blake2b(ranges.tobytes()).hexdigest(),
    }
    if columns is not None:
        settings["columns"] = list(columns)

    def windows(chosen: Collection[int], size: int) -> Iterator[tuple[list[Row], list[Any]]]:
        stream = texts.read()
        for number in range(max(chosen, default=-1) + 1):
            rows = list(islice(stream, size))
            if number in chosen:
                yield rows, model.tokenize([text for _, text in rows], prefix)

    def encode(chosen: Collection[int], size: int) -> Iterator[tuple[list[Row], np.ndarray]]:
        """Yield the rows and the vectors of the shards of these numbers, which ascend."""
        encoded = model.encode_stream(windows(chosen, size), split_over_processes=False, **options)
        for rows, vectors in encoded:
            texts.check_unchanged()
            try:
                check_finite(vectors, "")
            except NotFiniteError as error:
                line, _ = rows[error.position]
                raise NotFiniteError(f"{texts.name}: the text of line or row {line}", error.position) from None
            yield rows, vectors.numpy()

    def sample() -> np.ndarray:
        _, vectors = next(encode([0], min(shard_size, _RANGE_TEXTS)))
        return vectors

    folder = Path(output_dir).expanduser()
    rank, processes = world()
    with hold_together(folder):
        manifest = on_first_process(lambda: _start(folder, model, texts, settings, resume, overwrite))
        shards = _shards(folder, manifest)
        missing = {}  # of those that this process has to write
        for number, (path, count) in enumerate(shards.items()):
            if number % processes == rank and not _is_whole(path, count):
                if path.is_symlink():
                    raise ValueError(f"{path} is a link to a shard that is missing or damaged: remove the link.")
                missing[number] = path
        if precision in SCALAR_PRECISIONS:
            ranges = on_first_process(lambda: _common_ranges(find_own(folder, RANGES), ranges, sample))
        hidden = not show_progress_bar or rank != 0
        total = sum(shards[path] for path in missing.values())
        with tqdm(total=total, desc="Encoding", unit="text", disable=hidden) as bar:
            for path, (rows, vectors) in zip(missing.values(), encode(missing, shard_size), strict=True):
                _write(path, rows, quantize(vectors, precision, ranges))
                bar.update(len(rows))
    return list(shards)


class _Source:
    """The texts of a file or of training rows, which are read more than once; see [`encode_file`]."""

    def __init__(self, source: str | os.PathLike | Dataset, column: str | None, columns: Sequence[str] | None):
        self.column = column
        self.path: Any = None
        if isinstance(source, Dataset):
            self.name = "the training rows"
            self.read = partial(texts_of_rows, source)
            return
        self.path = Path(source).expanduser()
        self.name = str(self.path)
        open_table(self.path)  # refuses a file that is missing
        self._before = self._version()
        if columns is None:
            self.column = text_column(self.path, column)[1]
            self.read = partial(stream_texts, self.path, self.column)
        else:
            rows = load_text_dataset(self.path, columns=columns)
            self.read = partial(texts_of_rows, rows)

    def _version(self) -> tuple[int, int]:
        state = os.stat(self.path)
        return state.st_size, state.st_mtime_ns

    def check_unchanged(self) -> None:
        """Refuse a file that was written to."""
        if self.path is not None and self._version() != self._before:
            raise ValueError(f"{self.path}: the file was changed while it was encoded. Encode it again from new.")

    @cached_property
    def content(self) -> tuple[int, str]:
        """The number of texts and their digest."""
        return digest_texts(text for _, text in self.read())


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
    folder = Path(folder).expanduser()
    vectors = np.asarray(vectors, dtype=np.float32)
    vectors = vectors.reshape(-1, vectors.shape[-1])
    count, texts = digest_texts(text for _, text in texts_of_rows(rows))
    if len(vectors) != count:
        raise ValueError(f"there are {len(vectors)} vectors for {count} texts")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder")
    manifest = {
        "input": {"file": "rows", "rows": count, "texts": texts},
        "model": {"name_or_path": model, "weights": blake2b(vectors.tobytes()).hexdigest()},
        "settings": {"precision": "float32", "shard_size": shard_size, "format": "npy"},
    }
    for number, path in enumerate(_shards(folder, manifest)):
        start = number * shard_size
        write_npy(path, vectors[start : start + shard_size])
    write_json(folder / MANIFEST, manifest)


def find_own(folder: Path, name: str) -> Path:
    """Return where `MANIFEST` or `RANGES` is, or will be: up to version 0.3 their names began without `_`."""
    old = folder / name.removeprefix("_")
    return old if old.exists() else folder / name


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
    path = find_own(Path(folder).expanduser(), MANIFEST)
    if not path.is_file():
        raise ValueError(
            f"{folder}: no {MANIFEST}, so it is not a folder that `simcse-hf encode` wrote; name one that is."
        )
    manifest = read_json(path, "Encode into a new folder.")
    match manifest:
        case {
            "input": {"rows": int(rows)},
            "model": {},
            "settings": {"shard_size": int(size), "format": "npy" | "parquet", "precision": str()},
        } if type(rows) is type(size) is int and 1 <= rows <= size * _MAX_SHARDS:
            return manifest
    raise ValueError(f"{path}: damaged (no sound rows, shard_size, format or precision); encode into a new folder.")


def read_shards(folder: str | os.PathLike) -> Iterator[np.ndarray]:
    """Read the shards of a folder one after the other.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode_file`] wrote.

    Yields:
        `np.ndarray`: The embeddings or codes of a shard, of shape `(n, dim)`, in the order of the texts.

    Raises:
        ValueError: If a shard is missing or damaged.
    """
    first = None
    for path, rows in _shards(folder, read_manifest(folder)).items():
        shard = _read(path, rows)
        kind = f"{shard.dtype} in {shard.shape[1]} dimensions"
        first = first or kind
        if kind != first:
            raise ValueError(f"{path}: damaged (it holds {kind}, unlike the shards before it, {first}); {_AGAIN}")
        yield shard


def shard_paths(folder: str | os.PathLike) -> list[Path]:
    """Return the paths of all shards of a folder, including those that are not written yet."""
    return list(_shards(folder, read_manifest(folder)))


def remove_run(folder: str | os.PathLike) -> None:
    """Remove the files that the manifest of a folder names, if it has one, and then the manifest.

    Args:
        folder (`str` or `os.PathLike`): A folder. Its other files stay.

    Raises:
        ValueError: If the manifest was not written by [`encode_file`].
    """
    folder = Path(folder).expanduser()
    manifest = find_own(folder, MANIFEST)
    if manifest.exists():
        _remove_leftovers(folder)
        for path in [*shard_paths(folder), find_own(folder, RANGES), manifest]:
            path.unlink(missing_ok=True)


def _start(
    folder: Path, model: SimCSE, source: _Source, settings: dict[str, Any], resume: bool, overwrite: bool
) -> dict[str, Any]:
    """Write the manifest of a new run, or compare with that of the run to resume; return it."""
    size = settings["shard_size"]
    if overwrite:
        _sound_content(source, size)
        remove_run(folder)
    if source.path is None:
        described = {"file": source.name, "blake2b": source.content[1]}
    else:
        described = {"file": source.path.name, "blake2b": digest(source.path)}
    manifest: dict[str, Any] = {"input": described, "model": model.identity().to_dict(), "settings": settings}
    if find_own(folder, MANIFEST).exists():
        if not resume:
            raise ValueError(f"{folder} holds a run already: continue it with --resume, or name another folder.")
        earlier = read_manifest(folder)
        before = {}
        now = {}
        for section, entries_now in manifest.items():
            for key, value in entries_now.items():
                name = f"{section} {key}"
                if name not in _MAY_CHANGE:
                    before[name] = earlier[section].get(key)
                    now[name] = value
        advice = "Name another folder, or run with what it was started with."
        refuse_changes(before, now, f"{folder}: the run that it holds", advice)
        manifest = earlier
    elif entries(folder):
        raise ValueError(f"{folder} holds other files and no {MANIFEST}: name a new folder.")
    else:
        rows, texts = _sound_content(source, size)
        manifest["input"] |= {"rows": rows, "texts": texts}
        write_json(folder / MANIFEST, manifest)
    _remove_leftovers(folder)
    return manifest


def _sound_content(source: _Source, size: int) -> tuple[int, str]:
    """Return the number of texts and their digest, which can be encoded in shards of this size.

    Args:
        source (`_Source`): The texts.
        size (`int`): Texts of a shard.

    Returns:
        `tuple[int, str]`: The number and the digest.

    Raises:
        ValueError: If there are no texts, or too many shards.
    """
    rows, texts = source.content
    if not rows:
        raise ValueError(f"{source.name}: there is no text to encode.")
    if size < 1 or rows > size * _MAX_SHARDS:
        raise ValueError(f"shard_size {size} does not make 1 to {_MAX_SHARDS} shards of {rows} texts.")
    return rows, texts


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of [`write_atomically`] that a killed run has left in a folder."""
    for name in (MANIFEST, RANGES, "vectors-*"):
        for path in folder.glob(f".{name}.*.partial"):
            path.unlink()


def _shards(folder: str | os.PathLike, manifest: Mapping[str, Any]) -> dict[Path, int]:
    """Return the number of rows of each shard, by its path."""
    rows = manifest["input"]["rows"]
    size = manifest["settings"]["shard_size"]
    suffix = manifest["settings"]["format"]
    count = math.ceil(rows / size)
    shards = {}
    for number in range(count):
        path = Path(folder, f"vectors-{number:05d}-of-{count:05d}.{suffix}")
        shards[path] = min(size, rows - number * size)
    return shards


def texts_of_rows(rows: Dataset) -> Iterator[Row]:
    """Yield the number of a row, from 1, with each of its texts."""
    number = 0
    for batch in rows.with_format(None).iter(10_000):
        for texts in zip(*batch.values(), strict=True):
            number += 1
            for text in texts:
                yield number, text or ""  # a hard negative that a row does not have


def _read(path: Path, rows: int) -> np.ndarray:
    """Map a shard of this many rows from its npy file, or read it from parquet; refuse a missing or damaged one."""
    if not path.exists():
        raise ValueError(f"{path} is missing, because the run was interrupted: finish it with --resume.")
    try:
        if path.suffix == ".npy":
            shard = np.asarray(np.lib.format.open_memmap(path, mode="c"))  # changes never reach the file
        else:
            column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
            if not pa.types.is_fixed_size_list(column.type) or column.null_count:
                raise ValueError(f"the column 'vector' holds {column.type} with {column.null_count} nulls")
            shard = column.flatten().to_numpy().reshape(len(column), -1)
        if shard.ndim != 2 or len(shard) != rows or not shard.shape[1]:
            raise ValueError(f"it holds an array of shape {shard.shape}")
    except _DAMAGE as error:
        raise ValueError(f"{path}: damaged ({error}); {_AGAIN}") from error
    return shard


def _is_whole(path: Path, rows: int) -> bool:
    """Return whether a shard has this many rows.

    Of a parquet file, which takes seconds to read, only the metadata at its end are read.
    """
    try:
        if path.suffix == ".parquet":
            return pq.read_metadata(path).num_rows == rows
        _read(path, rows)
    except _DAMAGE:
        return False
    return True


def _common_ranges(path: Path, ranges: np.ndarray | None, sample: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the ranges of all shards: those given, those of the file, or those of a sample; write the file."""
    if ranges is None and path.exists():
        try:
            ranges = read_npy(path)
            check_ranges(ranges, ranges.shape[-1])
        except ARRAY_DAMAGE as error:
            raise ValueError(f"{path}: damaged ({error}). Encode into a new folder.") from error
    elif ranges is None:
        ranges = calibrate_ranges(sample())
    write_npy(path, ranges)
    return ranges


def _write(path: Path, rows: list[Row], vectors: np.ndarray) -> None:
    if path.suffix == ".npy":
        write_npy(path, vectors)
        return
    numbers, texts = zip(*rows, strict=True)
    values = pa.array(vectors.reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    table = pa.table({"row": numbers, "text": texts, "vector": lists})
    with write_atomically(path) as temporary:
        pq.write_table(table, temporary)
