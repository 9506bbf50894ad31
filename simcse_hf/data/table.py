"""Rows of cells in named columns, from a file or from memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .columns import SAMPLE_ROWS, quote
from .texts import is_list

Row = tuple[int, Sequence]
Rows = Callable[[Sequence[str]], Iterator[Row]]


@dataclass
class Table:
    """Rows of cells in named columns.

    Args:
        name (`str`): What messages call the table: the file's path, or a description of an object in memory.
        columns (`list[str]`): The names of the columns, in the table's own order.
        rows (`Callable`): Yields the line or row number, from 1, and the cells of the given columns for every row.
        format (`str`): `"txt"`, `"csv"` (also for tsv), `"json"` (also for jsonl), `"parquet"` or `"memory"`.
        unit (`str`, *optional*, defaults to `"line"`): What numbers of rows count, a `"line"` or a `"row"`.
        positional (`bool`, *optional*, defaults to `False`): Whether columns have no names but their positions.
        refuse_late_keys (`bool`, *optional*, defaults to `False`): Whether a key of a json file is refused that comes
            after the rows that name the columns. Where columns are chosen by name, it would be lost without a word.
    """

    name: str
    columns: list[str]
    rows: Rows
    format: str
    unit: str = "line"
    positional: bool = False
    refuse_late_keys: bool = False

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.columns).items() if count > 1]
        if repeated:
            raise ValueError(f"{self.name}: column name(s) {quote(repeated)} occur more than once.")

    def sample(self) -> list[Sequence]:
        """Return the cells of the first rows, in all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """Return the place of a row for a message, such as `train.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"


def open_records(
    name: str,
    values: Callable[[], Iterable[tuple[int, Any]]],
    format: str,
    unit: str,
) -> Table:
    """Open rows that are objects, arrays of equal length or, in memory, texts."""
    first = next((value for _, value in values()), None)
    if first is None:
        raise ValueError(f"{name}: the {'list of rows is empty' if format == 'memory' else 'file holds no rows'}.")

    def records() -> Iterator[tuple[int, dict]]:
        for number, value in values():
            record = None
            if is_list(first) and is_list(value) and len(value) == len(first):
                record = {str(index): cell for index, cell in enumerate(value)}
            elif isinstance(first, dict) and isinstance(value, dict):
                record = value
            elif isinstance(first, str) and format == "memory":
                record = {"text": value}
            if record is None:
                as_before = f" of {len(first)} cells as before" if is_list(first) else ""
                raise ValueError(
                    f'{name}, {unit} {number}: expected an object such as {{"sent0": "..."}}, an array{as_before}, or '
                    f"in a list a text; got {value!r:.100}."
                )
            yield number, record

    keys: dict = {}  # a set that keeps its order
    for _, record in islice(records(), SAMPLE_ROWS):
        keys |= record
    columns = list(keys)

    def rows(chosen: Sequence[str]) -> Iterator[Row]:
        for number, record in records():
            late = [key for key in record if key not in columns]
            if late and table.refuse_late_keys:
                raise ValueError(
                    f"{name}, {unit} {number}: the key {late[0]!r} does not occur in the first {SAMPLE_ROWS} rows, "
                    "whose keys are the columns. Add it to the first row (null is no text), or name the columns to "
                    "take with --columns or load_text_dataset(..., columns=[...])."
                )
            yield number, [record.get(column) for column in chosen]

    table = Table(name, columns, rows, format, unit, positional=is_list(first))
    return table
