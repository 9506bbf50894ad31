"""The folder of vectors that `simcse-hf encode` writes: shards, the array made of them, and their manifest."""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from ..runtime.files import ARRAY_DAMAGE, StrPath, read_json, write_atomically, write_json, write_npy
from ..runtime.identity import digest_texts

#: Readers of parquet data sets, such as pandas and datasets, skip files whose names begin with `_`.
MANIFEST = "_manifest.json"
RANGES = "_ranges.npy"
#: What `--format npy` makes of all shards.
ARRAY = "vectors.npy"
MAX_SHARDS = 1_000_000
_DTYPE = b"dtype"  # the entry of a shard's metadata that names the type of vectors written as bytes

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
            ValueError: If the file is missing or damaged.
        """
        path = self.path
        if not path.exists():
            raise ValueError(f"{path} is missing, because the run was interrupted: finish it with resume.")
        try:
            if path.suffix == ".npy":
                vectors = np.asarray(np.lib.format.open_memmap(path, mode="c"))  # changes never reach the file
            else:
                table = pq.read_table(path, columns=["vector"], memory_map=True)
                column = table["vector"].combine_chunks()
                if pa.types.is_fixed_size_binary(column.type):
                    kind = (table.schema.metadata or {})[_DTYPE].decode()
                    vectors = np.frombuffer(column.buffers()[1], kind).reshape(len(column), -1)
                elif pa.types.is_fixed_size_list(column.type) and not column.null_count:
                    vectors = column.flatten().to_numpy().reshape(len(column), -1)
                else:
                    raise ValueError(f"the column 'vector' holds {column.type} with {column.null_count} nulls")
            if vectors.ndim != 2 or len(vectors) != self.rows or not vectors.shape[1]:
                raise ValueError(f"it holds an array of shape {vectors.shape}")
        except _DAMAGE as error:
            raise ValueError(f"{path}: damaged ({error}); {_AGAIN}") from error
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

    def write(self, rows: Sequence[Row], vectors: np.ndarray, as_bytes: bool) -> None:
        """Write a parquet file completely or not at all.

        Args:
            rows (`Sequence[Row]`): The texts.
            vectors (`np.ndarray`): Their vectors, of shape `(rows, dim)`, contiguous.
            as_bytes (`bool`): Write the bytes of the vectors alone, of which an array is made soon: five times as
                fast. Otherwise write the columns `row`, `text` and `vector`.
        """
        if as_bytes:
            buffers = [None, pa.py_buffer(vectors)]
            column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(vectors[0].nbytes), len(vectors), buffers)
            table = pa.table({"vector": column}).replace_schema_metadata({_DTYPE: vectors.dtype.str})
        else:
            numbers, texts = zip(*rows, strict=True)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
            table = pa.table({"row": numbers, "text": texts, "vector": lists})
        with write_atomically(self.path) as temporary:
            compression = "none" if as_bytes else "snappy"
            pq.write_table(table, temporary, use_dictionary=not as_bytes, compression=compression)


def read_manifest(folder: StrPath) -> Manifest:
    """Read what the vectors of a folder were made from.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode`] wrote.

    Returns:
        `Manifest`: The sections `input` (with `rows`), `model` and `settings` (with `precision`, `shard_size` and
        `format`).

    Raises:
        ValueError: If there is no manifest, or it is damaged.
    """
    path = Path(folder).expanduser() / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder}: no {MANIFEST}, so it is not a folder that `simcse-hf encode` wrote.")
    manifest = read_json(path, "Encode into a new folder.")
    match manifest:
        case {
            "input": {"rows": int(rows)},
            "model": {},
            "settings": {"shard_size": int(size), "format": "npy" | "parquet", "precision": str()},
        } if type(rows) is type(size) is int and 1 <= rows <= size * MAX_SHARDS:
            return manifest
    raise ValueError(f"{path}: damaged (no sound rows, shard_size, format or precision); encode into a new folder.")


def shards_of(folder: StrPath, manifest: Manifest, suffix: str = "parquet") -> list[Shard]:
    """Return the shards of a folder, including those that are not written yet.

    Args:
        folder (`str` or `os.PathLike`): The folder.
        manifest (`Manifest`): What [`read_manifest`] returned.
        suffix (`str`, *optional*, defaults to `"parquet"`): How their names end. Version 0.4.0 wrote `"npy"` as well.

    Returns:
        `list[Shard]`: The shards in order.
    """
    rows = manifest["input"]["rows"]
    size = manifest["settings"]["shard_size"]
    count = math.ceil(rows / size)
    shards = []
    for number in range(count):
        path = Path(folder).expanduser() / f"vectors-{number:05d}-of-{count:05d}.{suffix}"
        shards.append(Shard(path, number, min(size, rows - number * size)))
    return shards


def files_of(folder: StrPath, manifest: Manifest) -> list[Shard]:
    """Return the files of a finished run: shards in parquet, or the array of them all; arguments as in [`shards_of`].

    Version 0.4.0 left shards in npy.
    """
    file_format = manifest["settings"]["format"]
    shards = shards_of(folder, manifest, file_format)
    if file_format == "parquet" or shards[0].path.exists():
        return shards
    return [Shard(shards[0].path.with_name(ARRAY), 0, manifest["input"]["rows"])]


def read_shards(folder: StrPath) -> Iterator[np.ndarray]:
    """Read the vectors of a folder, shard by shard.

    Args:
        folder (`str` or `os.PathLike`): A folder that [`encode`] wrote.

    Yields:
        `np.ndarray`: The embeddings or codes of `shard_size` texts, of shape `(n, dim)`, in the order of the texts.

    Raises:
        ValueError: If a file is missing or damaged.

    Examples:
        >>> from simcse_hf import encode
        >>> from simcse_hf.encoding.shards import read_shards
        >>> written = encode("outputs/my-model", "sentences.txt", "vectors", shard_size=150)
        >>> [shard.shape for shard in read_shards("vectors")]
        [(150, 64), (50, 64)]
    """
    manifest = read_manifest(folder)
    size = manifest["settings"]["shard_size"]
    first = None
    for file in files_of(folder, manifest):
        vectors = file.read()
        kind = f"{vectors.dtype} in {vectors.shape[1]} dimensions"
        first = first or kind
        if kind != first:
            raise ValueError(f"{file.path}: damaged (it holds {kind}, unlike the shards before it, {first}); {_AGAIN}")
        for start in range(0, len(vectors), size):
            yield vectors[start : start + size]


def join_shards(folder: Path, manifest: Manifest) -> Generator[Shard]:
    """Make one array of all shards, if that is the format, and remove them. One shard is in memory at a time.

    Each is appended as soon as it is whole, so that little is left to do after the last one.

    Args:
        folder (`Path`): The folder.
        manifest (`Manifest`): What [`read_manifest`] returned.

    Yields:
        `Shard`: The next shard, as long as it is not whole.
    """
    array = files_of(folder, manifest)[0]
    if array.path.name != ARRAY:
        return
    shards = shards_of(folder, manifest)
    if not array.is_whole():
        with write_atomically(array.path) as temporary, open(temporary, "wb") as stream:
            for shard in shards:
                while not shard.is_whole():
                    yield shard
                part = shard.read()
                if shard.number == 0:
                    header = {"descr": part.dtype.str, "fortran_order": False, "shape": (array.rows, part.shape[1])}
                    np.lib.format.write_array_header_1_0(stream, header)
                stream.write(part.data)
    for shard in shards:
        shard.path.unlink(missing_ok=True)


def remove_run(folder: Path) -> None:
    """Remove the files that the manifest of a folder names, if it has one, and then the manifest.

    Args:
        folder (`Path`): A folder. Its other files stay.

    Raises:
        ValueError: If the manifest was not written by [`encode`].
    """
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder)
        remove_leftovers(folder)
        for shard in shards_of(folder, manifest) + shards_of(folder, manifest, "npy"):
            shard.path.unlink(missing_ok=True)
        for name in (ARRAY, RANGES, MANIFEST):
            (folder / name).unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of [`write_atomically`] that a killed run has left in a folder."""
    for name in (MANIFEST, RANGES, "vectors*"):
        for path in folder.glob(f".{name}.*.partial"):
            path.unlink()


def write_vectors(folder: StrPath, rows: Dataset, vectors: np.ndarray, model: str, shard_size: int = 50_000) -> None:
    """Write vectors that come from elsewhere, such as an API, as [`encode`] writes a model's.

    Args:
        folder (`str` or `os.PathLike`): A new or empty folder.
        rows (`Dataset`): What [`load_text_dataset`] returned for the file.
        vectors (`np.ndarray`): Of shape `(rows, columns, dim)`, or `(rows, dim)` for rows of one text.
        model (`str`): What made the vectors.
        shard_size (`int`, *optional*, defaults to `50_000`): Vectors that [`read_shards`] yields together.

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
    write_npy(folder / ARRAY, vectors)
    manifest = {
        "input": {"file": "rows", "rows": count, "texts": texts},
        "model": {"name_or_path": model, "weights": blake2b(vectors.tobytes()).hexdigest()},
        "settings": {"precision": "float32", "shard_size": shard_size, "format": "npy"},
    }
    write_json(folder / MANIFEST, manifest)


def texts_of_rows(rows: Dataset) -> Iterator[Row]:
    """Yield the number of a row, from 1, with each of its texts."""
    number = 0
    for batch in rows.with_format(None).iter(10_000):
        for texts in zip(*batch.values(), strict=True):
            number += 1
            for text in texts:
                yield number, text or ""  # a hard negative that a row does not have
