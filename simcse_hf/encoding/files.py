"""Encode a file of texts into a folder of vectors: shards, each of which is whole or absent, or one array of them."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from tqdm.auto import tqdm

from ..data.read import load_text_dataset
from ..data.table import stream_texts, text_column
from ..names import FORMATS, PRECISIONS, ModelOptions, Precision, ShardFormat
from ..runtime.distributed import lock_together, on_first_process, wait_for_all, world
from ..runtime.errors import DataError, SettingError, check_finite, check_values, refuse_changes
from ..runtime.files import (
    ARRAY_DAMAGE,
    StrPath,
    digest,
    entries,
    read_json,
    read_npy,
    write_atomically,
    write_json,
    write_npy,
)
from ..runtime.identity import Identity, digest_texts
from ..runtime.outputs import Result
from ..runtime.upload import public_name
from .quantization import SCALAR_PRECISIONS, calibrate_ranges, check_ranges, quantize
from .simcse import SimCSE, load_model

#: Readers of parquet data sets, such as pandas and datasets, skip files whose names begin with `_`.
SHARD_MANIFEST = "_manifest.json"
RANGES = "_ranges.npy"
#: What `--format npy` makes of all shards.
ARRAY = "vectors.npy"
MAX_SHARDS = 1_000_000

Manifest = dict[str, dict[str, Any]]  # entries by their section
Row = tuple[int, str]  # the line or row number, from 1, and the text
_AGAIN = "delete it and run `simcse-hf encode` again with resume."
#: Exceptions for a damaged shard.
_DAMAGE = (*ARRAY_DAMAGE, KeyError, pa.ArrowException)


@dataclass(frozen=True)
class Shard:
    """A file of vectors.

    Args:
        path (`Path`): The file.
        number (`int`): Its number, from 0.
        rows (`int`): How many vectors it holds.
    """

    path: Path
    number: int
    rows: int

    def read(self) -> np.ndarray:
        """Return the vectors, of shape `(rows, dim)`: mapped from an npy file, or read from parquet.

        Raises:
            DataError: If the file is missing or damaged.
        """
        path = self.path
        if not path.exists():
            raise DataError(f"{path} is missing, because the run was interrupted: finish it with resume.")
        try:
            if path.suffix == ".npy":
                vectors = np.asarray(np.lib.format.open_memmap(path, mode="c"))  # changes never reach the file
            else:
                column = pq.read_table(path, columns=["vector"], memory_map=True)["vector"].combine_chunks()
                if not pa.types.is_fixed_size_list(column.type):
                    raise DataError(f"the column 'vector' holds {column.type}")
                vectors = column.flatten().to_numpy().reshape(len(column), -1)
            if vectors.ndim != 2 or len(vectors) != self.rows or not vectors.shape[1]:
                raise DataError(f"it holds an array of shape {vectors.shape}")
        except _DAMAGE as error:
            raise DataError(f"{path}: damaged ({error}); {_AGAIN}") from error
        return vectors

    def is_whole(self) -> bool:
        """Return whether the file has this many rows. Of a parquet file only the metadata at its end are read."""
        try:
            if self.path.suffix == ".parquet":
                return pq.read_metadata(self.path).num_rows == self.rows
            self.read()
        except _DAMAGE:
            return False
        return True

    def write(self, rows: Sequence[Row], vectors: np.ndarray) -> None:
        """Write the file completely or not at all: an array, or a table with the columns `row`, `text` and `vector`.

        Args:
            rows (`Sequence[Row]`): The texts.
            vectors (`np.ndarray`): Their vectors, of shape `(rows, dim)`, contiguous.
        """
        if self.path.suffix == ".npy":
            write_npy(self.path, vectors)
            return
        numbers, texts = zip(*rows, strict=True)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        with write_atomically(self.path) as temporary:
            pq.write_table(pa.table({"row": numbers, "text": texts, "vector": lists}), temporary)


def read_manifest(folder: StrPath) -> Manifest:
    """Read what the vectors of a folder were made from.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode`] wrote.

    Returns:
        `Manifest`: The sections `input` (with `rows`), `model` and `settings` (with `precision`, `shard_size` and
        `format`).

    Raises:
        DataError: If there is no manifest, or it is damaged.
    """
    path = Path(folder).expanduser() / SHARD_MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no {SHARD_MANIFEST}, so it is not a folder that `simcse-hf encode` wrote.")
    manifest = read_json(path, advice="Encode into a new folder.")
    match manifest:
        case {
            "input": {"rows": int(rows)},
            "model": {},
            "settings": {"shard_size": int(size), "format": "npy" | "parquet", "precision": str()},
        } if type(rows) is type(size) is int and 1 <= rows <= size * MAX_SHARDS:
            return manifest
    raise DataError(f"{path}: damaged (no sound rows, shard_size, format or precision); encode into a new folder.")


def shards_of(folder: StrPath, manifest: Manifest) -> list[Shard]:
    """Return the shards of a folder, including those that are not written yet.

    Args:
        folder (`str` or `os.PathLike`): The folder.
        manifest (`Manifest`): What [`read_manifest`] returned.

    Returns:
        `list[Shard]`: The shards in order.
    """
    rows = manifest["input"]["rows"]
    size = manifest["settings"]["shard_size"]
    count = math.ceil(rows / size)
    shards = []
    for number in range(count):
        name = f"vectors-{number:05d}-of-{count:05d}.{manifest['settings']['format']}"
        path = Path(folder).expanduser() / name
        shards.append(Shard(path, number, min(size, rows - number * size)))
    return shards


def files_of(folder: StrPath, manifest: Manifest) -> list[Shard]:
    """Return the files of a finished run: shards, or the array of them all; arguments as in [`shards_of`]."""
    if manifest["settings"]["format"] == "parquet":
        return shards_of(folder, manifest)
    return [Shard(Path(folder).expanduser() / ARRAY, 0, manifest["input"]["rows"])]


def read_shards(folder: StrPath) -> Iterator[np.ndarray]:
    """Read the vectors of a folder, shard by shard.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode`] wrote.

    Yields:
        `np.ndarray`: The embeddings or codes of `shard_size` texts, of shape `(n, dim)`, in the order of the texts.

    Raises:
        DataError: If a file is missing or damaged.

    Examples:
        >>> from simcse_hf import encode
        >>> from simcse_hf.encoding.files import read_shards
        >>> written = encode("outputs/my-model", "sentences.txt", "vectors", shard_size=150)
        >>> [shard.shape for shard in read_shards("vectors")]
        [(150, 64), (50, 64)]
    """
    manifest = read_manifest(folder)
    size = manifest["settings"]["shard_size"]
    for file in files_of(folder, manifest):
        vectors = file.read()
        for start in range(0, len(vectors), size):
            yield vectors[start : start + size]


def join_shards(folder: Path, manifest: Manifest) -> None:
    """Make one array of all shards and remove them. One shard is in memory at a time.

    Args:
        folder (`Path`): The folder.
        manifest (`Manifest`): What [`read_manifest`] returned.
    """
    [array] = files_of(folder, manifest)
    shards = shards_of(folder, manifest)
    if not array.is_whole():
        with write_atomically(array.path) as temporary, open(temporary, "wb") as stream:
            for shard in shards:
                part = shard.read()
                if shard.number == 0:
                    header = {"descr": part.dtype.str, "fortran_order": False, "shape": (array.rows, part.shape[1])}
                    np.lib.format.write_array_header_1_0(stream, header)
                stream.write(part.data)
    for shard in shards:
        shard.path.unlink(missing_ok=True)


def write_vectors(folder: StrPath, rows: Dataset, vectors: np.ndarray, model: str, shard_size: int = 50_000) -> None:
    """Write vectors that come from elsewhere, such as an API, as [`encode`] writes a model's.

    Args:
        folder (`str` or `os.PathLike`): A new or empty folder.
        rows (`Dataset`): What [`load_text_dataset`] returned for the file.
        vectors (`np.ndarray`): Of shape `(rows, columns, dim)`, or `(rows, dim)` for rows of one text.
        model (`str`): What made the vectors.
        shard_size (`int`, *optional*, defaults to `50_000`): Vectors that [`read_shards`] yields together.

    Raises:
        DataError: If there is not a vector for each text.
        SettingError: If the folder is not empty.
    """
    folder = Path(folder).expanduser()
    vectors = np.asarray(vectors, dtype=np.float32)
    vectors = vectors.reshape(-1, vectors.shape[-1])
    count, texts = digest_texts(text for _, text in texts_of_rows(rows))
    if len(vectors) != count:
        raise DataError(f"there are {len(vectors)} vectors for {count} texts")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SettingError(f"{folder} is not empty: name a new folder")
    write_npy(folder / ARRAY, vectors)
    manifest = {
        "input": {"file": "rows", "rows": count, "texts": texts},
        "model": {"name_or_path": model, "weights": blake2b(vectors.tobytes()).hexdigest()},
        "settings": {"precision": "float32", "shard_size": shard_size, "format": "npy"},
    }
    write_json(folder / SHARD_MANIFEST, manifest)


def texts_of_rows(rows: Dataset) -> Iterator[Row]:
    """Yield the number of a row, from 1, with each of its texts."""
    number = 0
    for batch in rows.with_format(None).iter(10_000):
        for texts in zip(*batch.values(), strict=True):
            number += 1
            for text in texts:
                yield number, text or ""  # a hard negative that a row does not have


#: Texts that are tokenized and sorted by length together, while those before them are computed. Fewer texts fill their
#: batches less: of Wikipedia sentences and 65,536 tokens, 8,192 make 44% more batches than a shard, and 16,384 16%.
_READ_AHEAD = 16_384
_RANGE_TEXTS = 10_000  # texts at the start of the file whose embeddings give the ranges of 8-bit codes
#: Entries of the manifest that a resumed run may change: the names of an input and a model with the same content, the
#: size of a batch, and what other entries say, too (the texts, the prompt, and whether vectors have unit length).
_MAY_CHANGE = (
    *("input file", "input rows", "input texts", "settings token_budget", "model name_or_path", "model revision"),
    *("model prompts", "model default_prompt_name", "model similarity"),
)


@dataclass(frozen=True)
class EncodedFile(Result):
    """The folder of vectors that `encode` wrote.

    Args:
        output (`str`): The folder.
        texts (`int`): Number of texts.
        shards (`list[str]`): The files of the vectors.
    """

    output: StrPath
    texts: int
    shards: list[str]

    def __str__(self) -> str:
        files = "1 file" if len(self.shards) == 1 else f"{len(self.shards)} files"
        return f"{self.texts} texts in {files} under {self.output}"


def encode(
    model: StrPath | SimCSE,
    input: StrPath | Dataset,
    output: StrPath,
    *,
    column: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    columns: Sequence[str] | None = None,
    normalize: bool = True,
    truncate_dim: int | None = None,
    precision: Precision = "float32",
    ranges: StrPath | np.ndarray | None = None,
    shard_size: int = 50_000,
    format: ShardFormat = "npy",
    token_budget: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    show_progress_bar: bool = True,
    **loading: Unpack[ModelOptions],
) -> EncodedFile:
    """Encode a file of texts into embeddings; an interrupted run can be resumed.

    Under `accelerate launch` each process writes every n-th shard.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        input (`str`, `os.PathLike` or `Dataset`): File of texts: txt, csv, tsv, json, jsonl or parquet, optionally
            gzipped; in Python also a data frame.
        output (`str` or `os.PathLike`): Folder for the vectors and their manifest.
        column (`str`, *optional*): Column of texts, if the file has several.
        prompt (`str`, *optional*): Put this before each text, such as 'query: '.
        prompt_name (`str`, *optional*): Put this prompt of the model before each text. The default is the model's
            prompt for this use, if it has one.
        columns (`Sequence[str]`, *optional*): Encode the texts of these columns row by row, for use as teacher or
            guide in training: the first as queries and the others as documents, if the model has prompts for them.
        normalize (`bool`, *optional*, defaults to `True`): Scale embeddings to unit length.
        truncate_dim (`int`, *optional*): Keep this many leading dimensions of an embedding, and then normalize it.
        precision (`str`, *optional*, defaults to `"float32"`): Type of the embeddings.
        ranges (`str`, `os.PathLike` or `np.ndarray`, *optional*): Npy file of lowest and highest values, of shape (2,
            dim), for int8 and uint8. The default is those of the first 10,000 embeddings.
        shard_size (`int`, *optional*, defaults to `50_000`): Embeddings of a shard. The embeddings and texts of two
            shards are in memory together.
        format (`str`, *optional*, defaults to `"npy"`): npy makes one array of all shards; parquet keeps the shards,
            with the columns row, text and vector.
        token_budget (`int`, *optional*): Number of tokens in a padded batch. The default is what suits the device.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        resume (`bool`, *optional*, defaults to `False`): Continue an interrupted run: write the shards that are
            missing. A run with another input, model or setting is refused.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar on the first process, over its
            own rows.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `EncodedFile`: What was written.

    Raises:
        DataError: If the input is invalid, or ranges cannot be read.
        SettingError: If a setting or the folder is invalid.

    Examples:
        >>> import numpy as np
        >>> from simcse_hf import encode
        >>> print(encode("outputs/my-model", "sentences.txt", "vectors"))
        200 texts in 1 file under vectors
        >>> np.load("vectors/vectors.npy").shape
        (200, 64)
    """
    # 1. Refuse what cannot be, before a model is loaded.
    check_values(PRECISIONS, precision=precision)
    check_values(FORMATS, format=format)
    check_values("an integer above 0", shard_size=shard_size)
    if column and columns:
        raise SettingError("column and columns are both given: give one of the two")
    if resume and overwrite:
        raise SettingError("resume and overwrite are both given: give one of the two")
    if ranges is not None and precision not in SCALAR_PRECISIONS:
        raise SettingError(f"ranges are for precision int8 and uint8, not {precision!r}: leave them out")
    codes = ranges if isinstance(ranges, np.ndarray) else None
    if isinstance(ranges, (str, os.PathLike)):
        try:
            codes = read_npy(ranges)
        except ARRAY_DAMAGE as error:
            raise DataError(f"ranges {ranges}: not a readable npy file: {error}") from error

    # 2. Load the model, and refuse ranges that are not for it.
    encoder = load_model(model, **loading)
    check_values(range(1, encoder.dim + 1), truncate_dim=truncate_dim)
    if codes is not None:
        codes = codes.astype(np.float32)
        check_ranges(codes, truncate_dim or encoder.dim)
    if isinstance(ranges, (str, os.PathLike)) and (Path(ranges).parent / SHARD_MANIFEST).is_file():
        before = Identity.from_dict(read_manifest(Path(ranges).parent)["model"])
        changes = before.changes(encoder.identity(), ("dtype", "backend", "max_length", "long_texts"))
        if changes:
            raise SettingError(f"ranges {ranges} are those of another model: {'; '.join(changes)}. Leave them out.")

    # 3. Encode what is missing.
    texts = InputTexts(input, column, columns)
    prompts = [encoder.resolve_prompt(prompt, prompt_name)]
    if texts.width and prompt is None and prompt_name is None:
        prompts = encoder.column_prompts(texts.width)
    settings: dict[str, Any] = {
        "column": texts.column,
        "prompt": prompts if len(set(prompts)) > 1 else prompts[0] or None,
        "normalize_embeddings": normalize and encoder.similarity_fn_name == "cosine",
        "truncate_dim": truncate_dim,
        "token_budget": token_budget,
        "precision": precision,
        "shard_size": shard_size,
        "format": format,
        "ranges": None if codes is None else blake2b(codes.tobytes()).hexdigest(),
    }
    if columns is not None:
        settings["columns"] = list(columns)
    job = EncodeJob(Path(output).expanduser(), encoder, texts, settings, codes, resume, overwrite)
    return EncodedFile(output, *job.run(show_progress_bar))


class InputTexts:
    """The texts of a file or of training rows, which are read more than once.

    Args:
        source (`str`, `os.PathLike` or `Dataset`): The file; or training rows, with columns of texts only.
        column (`str`, *optional*): The column of texts, if the file has several.
        columns (`Sequence[str]`, *optional*): The columns of texts, of which a row has one after the other.

    Attributes:
        read (`Callable`): Yields the rows.
        width (`int`): The number of columns of training rows, 0 for a file of texts.

    Raises:
        ValueError: If the file is missing, or has no such column.
    """

    def __init__(
        self, source: StrPath | Dataset, column: str | None = None, columns: Sequence[str] | None = None
    ) -> None:
        self.column = column
        self.path = Path(source).expanduser() if isinstance(source, (str, os.PathLike)) else None
        self.name = str(self.path or "the rows")
        self.width = 0
        if isinstance(source, Iterator):
            source = list(source)
        self.read: Callable[[], Iterator[Row]]
        if isinstance(source, Dataset) or columns is not None:
            rows = source if isinstance(source, Dataset) else load_text_dataset(source, columns=columns)
            self.width = len(rows.column_names)
            self.read = partial(texts_of_rows, rows)
        else:
            self.column = text_column(source, column)[1]
            self.read = partial(stream_texts, source, self.column)
        self._before = self._version()

    def _version(self) -> tuple[int, int] | None:
        if self.path is None:
            return None
        state = self.path.stat()
        return state.st_size, state.st_mtime_ns

    def check(self) -> None:
        """Refuse a file that was written to. Rows that were read before this check are those of the first pass."""
        if self._version() != self._before:
            raise DataError(f"{self.name}: the file was changed while it was encoded. Encode it again with overwrite.")


@dataclass(frozen=True)
class EncodeJob:
    """Texts, a model, and the folder for its vectors.

    Args:
        folder (`Path`): The folder, which this run holds.
        model (`SimCSE`): The model.
        texts (`InputTexts`): The texts.
        settings (`dict`): What decides the vectors beside the texts and the model, for the manifest.
        ranges (`np.ndarray`, *optional*): The ranges of 8-bit codes that are given.
        resume (`bool`): Whether a run in the folder is continued.
        overwrite (`bool`): Whether it is removed.
    """

    folder: Path
    model: SimCSE
    texts: InputTexts
    settings: dict[str, Any]
    ranges: np.ndarray | None
    resume: bool
    overwrite: bool

    def run(self, show_progress_bar: bool) -> tuple[int, list[str]]:
        """Write what is missing, with the other processes of the run.

        Args:
            show_progress_bar (`bool`): Whether the first process shows a bar over its own rows.

        Returns:
            `tuple[int, list[str]]`: The number of texts, and the names of the files of vectors.
        """
        rank, processes = world()
        precision = self.settings["precision"]
        with lock_together(self.folder):
            manifest = on_first_process(self.open)
            files = files_of(self.folder, manifest)
            missing = []
            if not all(file.is_whole() for file in files):  # this process writes every n-th shard
                shards = shards_of(self.folder, manifest)[rank::processes]
                missing = [shard for shard in shards if not shard.is_whole()]
            ranges = on_first_process(self.common_ranges) if precision in SCALAR_PRECISIONS else None
            with (
                ThreadPoolExecutor(1) as thread,
                tqdm(
                    total=sum(shard.rows for shard in missing),
                    desc="Encoding",
                    unit="text",
                    disable=not show_progress_bar or rank != 0,
                ) as bar,
            ):

                def write(shard: Shard, rows: list[Row], parts: list[torch.Tensor]) -> None:
                    shard.write(rows, self.finish(rows, parts, precision, ranges))
                    bar.update(len(rows))

                writing = thread.submit(bar.refresh)  # nothing is written yet
                for encoded in self.encode(missing):
                    writing.result()
                    writing = thread.submit(write, *encoded)
                writing.result()
            wait_for_all()
            if self.settings["format"] == "npy":
                on_first_process(lambda: join_shards(self.folder, manifest))
            return manifest["input"]["rows"], [file.path.name for file in files]

    def open(self) -> Manifest:
        """Write the manifest of a new run, or compare with that of the run to resume.

        Returns:
            `Manifest`: The manifest.

        Raises:
            SettingError: If there is no text, or the folder holds anything else than the run to continue.
        """
        folder = self.folder
        texts = self.texts
        is_there = (folder / SHARD_MANIFEST).exists()
        if is_there and not (self.resume or self.overwrite):
            raise SettingError(
                f"{folder} holds embeddings already: continue an interrupted run with resume, start again with "
                "overwrite, or name another folder."
            )
        if not is_there and entries(folder):
            raise SettingError(f"{folder} holds other files and no {SHARD_MANIFEST}: name a new folder.")
        is_new = self.overwrite or not is_there
        source: dict[str, Any] = {"file": texts.name, "blake2b": None}
        if is_new or texts.path is None:
            # This pass comes before all encoding: the names of the shards need the number of texts, and a bad row is
            # found before hours of work.
            source["rows"], source["texts"] = digest_texts(text for _, text in texts.read())
            size = self.settings["shard_size"]
            if not 1 <= source["rows"] <= size * MAX_SHARDS:
                raise SettingError(
                    f"{texts.name}: {source['rows']} texts cannot be divided into 1 to {MAX_SHARDS} shards of {size}: "
                    "raise shard_size."
                )
            source["blake2b"] = source["texts"]
        if texts.path is not None:
            source |= {"file": texts.path.name, "blake2b": digest(texts.path)}
        identity = self.model.identity()
        model = replace(identity, name_or_path=public_name(identity.name_or_path)).to_dict()
        now: Manifest = {"input": source, "model": model, "settings": self.settings}
        if is_new:
            if is_there:  # other files in the folder stay
                old = [shard.path for shard in shards_of(folder, read_manifest(folder))]
                for path in (*old, folder / ARRAY, folder / RANGES, folder / SHARD_MANIFEST):
                    path.unlink(missing_ok=True)
            write_json(folder / SHARD_MANIFEST, now)
        else:
            earlier = read_manifest(folder)
            advice = "Repeat these settings, start again with overwrite, or name another folder."
            refuse_changes(_compared(earlier), _compared(now), f"{folder}: the run there", advice)
            now = earlier
        for name in (SHARD_MANIFEST, RANGES, "vectors*"):  # what a killed run has left of its temporary files
            for path in folder.glob(f".{name}.*.partial"):
                path.unlink()
        return now

    def encode(self, shards: Sequence[Shard]) -> Iterator[tuple[Shard, list[Row], list[torch.Tensor]]]:
        """Encode the texts of some shards, while a background thread reads and tokenizes those that follow.

        Args:
            shards (`Sequence[Shard]`): The shards, in order.

        Yields:
            `tuple[Shard, list[Row], list[torch.Tensor]]`: A shard, its rows, and their embeddings in windows, which an
            accelerator has not computed yet.

        Raises:
            ValueError: If the file has changed.
        """
        prompts = self.settings["prompt"] or ""
        by_column = [prompts] if isinstance(prompts, str) else prompts
        width = len(by_column)

        def windows() -> Iterator[tuple[tuple[Shard, list[Row]], list[Any]]]:
            stream = self.texts.read()
            following = 0
            for shard in shards:
                first = shard.number * self.settings["shard_size"]
                skipped = first - following
                rows = list(islice(stream, skipped, skipped + shard.rows))
                following = first + shard.rows
                self.texts.check()
                for start in range(0, len(rows), _READ_AHEAD):
                    texts = [text for _, text in rows[start : start + _READ_AHEAD]]
                    tokens: list[Any] = [None] * len(texts)
                    for column, prompt in enumerate(by_column):
                        place = (column - first - start) % width  # a window may begin in the middle of a row
                        tokens[place::width] = self.model.tokenize(texts[place::width], prompt)
                    yield (shard, rows), tokens

        options = {name: self.settings[name] for name in ("normalize_embeddings", "truncate_dim", "token_budget")}
        parts = []
        for (shard, rows), vectors in self.model.encode_stream(windows(), split_over_processes=False, **options):
            parts.append(vectors)
            if len(parts) * _READ_AHEAD >= len(rows):
                yield shard, rows, parts
                parts = []

    def finish(self, rows: list[Row], parts: list[torch.Tensor], *codes: Any) -> np.ndarray:
        """Check and quantize embeddings where they are, and copy the result to the host. This waits for a GPU.

        Args:
            rows (`list[Row]`): The rows.
            parts (`list[torch.Tensor]`): What [`encode`] yielded for them.
            *codes (`Any`): The other arguments of [`quantize`].

        Returns:
            `np.ndarray`: The embeddings or codes.

        Raises:
            NotFiniteError: If an embedding is not finite.
        """
        if parts[0].is_cuda:  # they may be computed in another stream than that of this thread
            torch.cuda.synchronize(parts[0].device)
        vectors = torch.cat(parts)
        check_finite(vectors, lambda number: f"{self.texts.name}: the text of line or row {rows[number][0]}")
        return quantize(vectors, *codes)

    def common_ranges(self) -> np.ndarray:
        """Return the ranges of 8-bit codes: those given, those of the folder, or those of a sample; write the file."""
        path = self.folder / RANGES
        ranges = self.ranges
        if ranges is None and path.exists():
            try:
                ranges = read_npy(path)
                check_ranges(ranges, ranges.shape[-1])
            except ARRAY_DAMAGE as error:
                raise DataError(f"{path}: damaged ({error}). Encode into a new folder.") from error
        if ranges is None:
            sample = Shard(path, 0, min(self.settings["shard_size"], _RANGE_TEXTS))
            _, rows, parts = next(self.encode([sample]))
            ranges = calibrate_ranges(self.finish(rows, parts, "float32"))
        write_npy(path, ranges)
        return ranges


def _compared(manifest: Manifest) -> dict[str, object]:
    """Return the entries of a manifest that a resumed run must not change, by names such as `settings shard_size`."""
    compared: dict[str, object] = {}
    for section in ("input", "model", "settings"):
        compared |= {f"{section} {name}": value for name, value in manifest[section].items()}
    return {name: value for name, value in compared.items() if name not in _MAY_CHANGE}
