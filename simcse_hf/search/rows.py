"""The sentences of an index and the columns kept beside them, as one Arrow table that may exceed the memory."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .interface import Selection

FILE = "sentences.arrow"
_SENTENCE = "sentence"
#: Kept columns have this before their names, so that none can be taken for the sentences.
_KEPT = "column:"
#: Rows are held in memory up to this size, and then moved to a temporary file that is mapped.
_MEMORY_BYTES = 2**26


class SentenceRows:
    """Sentences with the cells of kept columns, by position.

    Args:
        kept (`Sequence[str]`, *optional*, defaults to `()`): Names of the kept columns.
    """

    def __init__(self, kept: Sequence[str] = ()) -> None:
        self.kept = tuple(kept)
        names = [_SENTENCE, *(_KEPT + name for name in self.kept)]
        self._schema = pa.schema([(name, pa.large_string()) for name in names])
        self._batches: list[pa.RecordBatch] = []
        self._in_memory, self._bytes = 0, 0  # of the last batches, which no file holds
        self._count = 0
        self._whole: pa.Table | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def _table(self) -> pa.Table:
        """All batches as one table, which is put together again when batches were appended."""
        if self._whole is None:
            self._whole = pa.Table.from_batches(self._batches, self._schema)
        return self._whole

    def __getitem__(self, position: int) -> str:
        """Return the sentence at a position."""
        sentence: str = self._table[_SENTENCE][position].as_py()
        return sentence

    def batch(self, rows: Sequence[Sequence[str]]) -> pa.RecordBatch:
        """Turn rows, each a sentence and its kept cells, into a batch for `append` and for a database."""
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        return pa.record_batch([pa.array(column, pa.large_string()) for column in columns], schema=self._schema)

    def append(self, batch: pa.RecordBatch) -> None:
        """Append rows that `batch` made."""
        self._batches.append(batch)
        self._count += len(batch)
        self._in_memory += 1
        self._bytes += batch.nbytes
        self._whole = None
        if self._bytes > _MEMORY_BYTES:
            self._move_to_file()

    def _move_to_file(self) -> None:
        """Write the batches in memory to a temporary file and map it. The file is removed at once; the map stays."""
        recent = self._batches[-self._in_memory :]
        descriptor, name = tempfile.mkstemp(prefix="simcse-sentences-", suffix=".arrow")
        os.close(descriptor)
        try:
            _write(Path(name), self._schema, recent)
            self._batches[-self._in_memory :] = _read(Path(name)).to_batches()
        finally:
            os.unlink(name)
        self._in_memory, self._bytes = 0, 0

    def select(self, filters: Mapping[str, str]) -> Selection:
        """Find the rows in which every named column holds the given value.

        Args:
            filters (`Mapping[str, str]`): The values by kept column.

        Returns:
            `Selection`: The filters and the positions of the rows.

        Raises:
            ValueError: If a column was not kept.
        """
        mask: pa.ChunkedArray | None = None
        for name, value in filters.items():
            if name not in self.kept:
                kept = ", ".join(map(repr, self.kept)) or "none"
                raise ValueError(
                    f"filter: the index has no column {name!r}; the columns kept when it was built: {kept}. Build it "
                    "again and keep this column (--keep, in Python keep=[...])."
                )
            equal = pc.equal(self._table[_KEPT + name], pa.scalar(str(value), pa.large_string()))
            mask = equal if mask is None else pc.and_(mask, equal)
        chosen = np.arange(len(self)) if mask is None else np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        return Selection({name: str(value) for name, value in filters.items()}, chosen.astype(np.int64))

    def save(self, folder: Path) -> None:
        """Write the file of the sentences."""
        _write(folder / FILE, self._schema, self._batches)

    @classmethod
    def load(cls, folder: Path) -> "SentenceRows":
        """Map the sentences from their file; every offset and byte is checked, because Arrow trusts them later.

        Args:
            folder (`Path`): The folder that `save` wrote to.

        Returns:
            `SentenceRows`: The sentences.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        path = folder / FILE
        try:
            table = _read(path)
            table.validate(full=True)
        except (OSError, KeyError, pa.ArrowException) as error:
            raise ValueError(f"{path}: missing or damaged ({error}); build the index again.") from error
        rows = cls([name.removeprefix(_KEPT) for name in table.column_names[1:]])
        nulls = sum(column.null_count for column in table.columns)
        if table.schema != rows._schema or nulls:
            raise ValueError(
                f"{path}: damaged (holds the columns {table.schema.to_string()!r} with {nulls} nulls, not sentences); "
                "build the index again."
            )
        rows._whole, rows._batches, rows._count = table, table.to_batches(), len(table)
        return rows


def _write(path: Path, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _read(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
