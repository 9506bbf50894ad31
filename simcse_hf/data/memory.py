"""Read a dataset or a list of texts in memory row by row, like a file."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from datasets import Dataset

from .table import Row, TextTable

_BATCH_ROWS = 10_000


class DatasetTable(TextTable):
    """A dataset in memory or in a memory-mapped file.

    Args:
        dataset (`datasets.Dataset`): The dataset.
        name (`str`): What messages call it.
    """

    unit = "row"

    def __init__(self, dataset: Dataset, name: str):
        super().__init__(name)
        self._dataset = dataset.with_format(None)
        self.columns = dataset.column_names

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        batches = self._dataset.select_columns(list(columns)).iter(_BATCH_ROWS)
        yield from enumerate(chain.from_iterable(zip(*map(b.get, columns), strict=True) for b in batches), 1)


class MemoryTable(TextTable):
    """A list of sentences, of tuples or of dicts.

    Args:
        rows (`Sequence[Any]`): The list.

    Raises:
        ValueError: If the list is empty or its first row is none of these.
    """

    unit = "row"

    def __init__(self, rows: Sequence[Any]):
        super().__init__(f"list of {len(rows)} rows")
        if not rows:
            raise ValueError("the list of rows is empty.")
        first = rows[0]
        if not isinstance(first, (str, dict, tuple, list)) or not first:
            raise ValueError(f"{self.at(1)}: expected a string, tuple or dict, got {first!r}.")
        self._rows = rows
        self.positional = isinstance(first, (tuple, list))
        if isinstance(first, str):
            self.columns = ["text"]
        elif isinstance(first, dict):
            self.columns = list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
        else:
            self.columns = [str(index) for index in range(len(first))]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        first = self._rows[0]
        indices = [self.columns.index(column) for column in columns]
        for number, row in enumerate(self._rows, 1):
            if isinstance(first, str):
                yield number, (row,)
            elif isinstance(row, dict) and isinstance(first, dict):
                yield number, [row.get(column) for column in columns]
            elif isinstance(row, (tuple, list)) and len(row) == len(self.columns):
                yield number, [row[index] for index in indices]
            else:
                raise ValueError(f"{self.at(number)}: {row!r} does not have the {len(self.columns)} cells of row 1.")
