"""A table of texts with named columns, read row by row."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from .lines import FIRST, Place

#: The rows that a table's columns are judged by.
SAMPLE_ROWS = 100

Row = tuple[int, Sequence[Any]]


class TextTable(ABC):
    """A table with named columns, read row by row.

    Args:
        name (`str`): What messages call the table: the file's path, or a description of an object in memory.

    Attributes:
        unit (`str`): What numbers of rows count, from 1: `"line"` of the file or `"row"` of the table.
        columns (`list[str]`): The names of the columns, in the table's own order.
        positional (`bool`): Whether columns have no names of their own, so that their position says what they hold.
        blank_lines (`int`): Blank lines that the latest pass of `rows` has skipped.
    """

    unit = "line"
    positional = False

    def __init__(self, name: str):
        self.name = name
        self.columns: list[str] = []
        self.blank_lines = 0

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the line or row number, from 1, and the cells of some columns for every row.

        Args:
            columns (`Sequence[str]`): The columns.

        Yields:
            `tuple[int, Sequence[Any]]`: The number and the cells.
        """

    def sample(self) -> list[Sequence[Any]]:
        """Return the cells of the first rows, in all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """Return the place of a row for a message, such as `train.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"


class FileTable(TextTable):
    """A file of rows, which can be read from the place of any row on.

    Attributes:
        can_seek (`bool`): Whether reading from a place takes no longer than reading from the start. It does for a
            gzipped file, which is unpacked up to the place, and for a json array, which is parsed as a whole.
    """

    can_seek = True

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        return ((place.number, cells) for place, cells in self.placed_rows(columns))

    @abstractmethod
    def placed_rows(self, columns: Sequence[str], start: Place = FIRST) -> Iterator[tuple[Place, Sequence[Any]]]:
        """Yield the place and the cells of some columns for every row from some place on.

        Args:
            columns (`Sequence[str]`): The columns.
            start (`Place`, *optional*, defaults to `FIRST`): The place of a row, as yielded before.

        Yields:
            `tuple[Place, Sequence[Any]]`: The place and the cells.
        """
