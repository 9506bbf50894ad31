"""Rows of cells become rows of strings: check each cell, drop rows with empty cells, and expand lists."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers.utils import logging

from .table import TextTable

logger = logging.get_logger(__name__)

_SHOWN_ROWS = 5


@dataclass
class RowReport:
    """What became of the rows of one table.

    Args:
        rows (`int`, *optional*, defaults to `0`): Rows that were kept.
        blank_lines (`int`, *optional*, defaults to `0`): Blank lines that were skipped.
        dropped (`int`, *optional*, defaults to `0`): Rows that were dropped because a cell is empty.
        first_dropped (`list[int]`, *optional*): The line or row numbers of the first of these.
        empty_texts (`int`, *optional*, defaults to `0`): Empty texts that were left out of the lists of kept rows.
        first_empty (`list[int]`, *optional*): The line or row numbers of the first rows with such texts.
        longer (`int`, *optional*, defaults to `0`): Rows that list more hard negatives than are taken.
        width (`int`, *optional*, defaults to `0`): Texts in each row that is kept.
        logged (`int`, *optional*, defaults to `0`): Dropped rows and empty texts at the last message of
            [`log_so_far`].
    """

    rows: int = 0
    blank_lines: int = 0
    dropped: int = 0
    first_dropped: list[int] = field(default_factory=list)
    empty_texts: int = 0
    first_empty: list[int] = field(default_factory=list)
    longer: int = 0
    width: int = 0
    logged: int = 0

    def drop(self, number: int) -> None:
        """Count a row that is dropped.

        Args:
            number (`int`): Its line or row number.
        """
        self.dropped += 1
        if len(self.first_dropped) < _SHOWN_ROWS:
            self.first_dropped.append(number)

    def leave_out(self, count: int, number: int) -> None:
        """Count the empty texts in the lists of a row that is kept.

        Args:
            count (`int`): How many its lists hold.
            number (`int`): Its line or row number.
        """
        self.empty_texts += count
        if count and len(self.first_empty) <= _SHOWN_ROWS:  # one more than shown, to know whether there are more
            self.first_empty.append(number)

    def log(self, name: str, unit: str) -> None:
        """Log what was skipped, dropped and left out.

        Args:
            name (`str`): The table's name.
            unit (`str`): What numbers count, `"line"` or `"row"`.
        """
        if self.blank_lines:
            logger.info("%s: skipped %d blank line(s).", name, self.blank_lines)
        if self.dropped:
            where = ", ".join(map(str, self.first_dropped)) + (", ..." if self.dropped > _SHOWN_ROWS else "")
            logger.warning(
                "%s: dropped %d of %d rows for an empty cell: %s %s.",
                name, self.dropped, self.rows + self.dropped, unit, where,
            )  # fmt: skip
        if self.empty_texts:
            shown = ", ".join(map(str, self.first_empty[:_SHOWN_ROWS]))
            logger.warning(
                "%s: left %d empty text(s) out of lists of positives or hard negatives: %s %s.",
                name, self.empty_texts, unit, shown + (", ..." if len(self.first_empty) > _SHOWN_ROWS else ""),
            )  # fmt: skip
        if self.longer:
            logger.warning(
                "%s: %d rows list more than %d hard negative(s), the fewest that any row lists; only the first %d of "
                "each row are used.",
                name, self.longer, self.width - 2, self.width - 2,
            )  # fmt: skip

    def log_so_far(self, name: str, unit: str) -> None:
        """Log as [`log`] does, for a stream, which may have no end: whenever there is twice as much to tell.

        Args:
            name (`str`): The stream's name.
            unit (`str`): What numbers count, `"line"` or `"row"`.
        """
        found = self.dropped + self.empty_texts + self.longer
        if found >= max(1, 2 * self.logged):
            self.logged = found
            self.log(f"{name}, so far", unit)


def is_list(cell: Any) -> bool:
    """Say whether a cell lists several texts.

    Args:
        cell (`Any`): The cell.

    Returns:
        `bool`: Whether it is a list or a tuple.
    """
    return isinstance(cell, (list, tuple))


def row_width(rows: Iterable[Sequence[Any]]) -> int:
    """Count the texts of a row, where cells may list several hard negatives.

    Args:
        rows (`Iterable[Sequence[Any]]`): Rows of an anchor, a positive and cells of hard negatives.

    Returns:
        `int`: Two more than the fewest hard negatives of any row that has some, or the number of cells if no cell is a
        list. Empty texts do not count, so a row with one of them is narrower, and not dropped.
    """
    width, counts = 0, set()
    lists = False
    for cells in rows:
        width = len(cells)
        lists = lists or any(map(is_list, cells))
        counts.add(sum(not isinstance(text, str | None) or _has_text(text) for text in _flatten(cells[2:])))
    return 2 + min(counts - {0}, default=0) if lists else width


def clean_rows(
    table: TextTable, columns: Sequence[str], width: int, report: RowReport, max_rows: int | None = None
) -> Iterator[list[str]]:
    """Yield the rows of a table that have text in every cell.

    A positive that is a list gives one row for each of its texts. Hard negatives that are lists are joined and cut to
    `width`. With `width` 3, the cells `q`, `[p1, p2]` and `[n1, n2]` become the rows `q, p1, n1` and `q, p2, n1`.

    Args:
        table (`TextTable`): The table.
        columns (`Sequence[str]`): The columns to read: anchor, positive, hard negatives.
        width (`int`): Texts in each row; see [`row_width`].
        report (`RowReport`): Counts what is kept, dropped and skipped.
        max_rows (`int`, *optional*): Stop after so many rows.

    Yields:
        `list[str]`: A row of `width` texts.

    Raises:
        ValueError: If a cell holds no string, or every row has an empty cell. The message names the line or row.
    """
    report.width = width
    for number, cells in table.rows(columns):
        for row in clean_row(table, number, cells, columns, width, report):
            report.rows += 1
            yield row
            report.blank_lines = table.blank_lines
            if report.rows == max_rows:
                return
    report.blank_lines = table.blank_lines
    if report.rows == 0:
        raise ValueError(
            f"{table.name}: every one of the {report.dropped} row(s) has an empty cell in {', '.join(columns)}."
        )


def clean_row(
    table: TextTable, number: int, cells: Sequence[Any], columns: Sequence[str], width: int, report: RowReport
) -> list[list[str]]:
    """Return the rows that a row of a table gives: none if a cell is empty, and several if a positive is a list.

    Args:
        table (`TextTable`): The table, for messages.
        number (`int`): The line or row number.
        cells (`Sequence[Any]`): The cells of `columns`.
        columns (`Sequence[str]`): Anchor, positive, hard negatives.
        width (`int`): Texts in each row; see [`row_width`].
        report (`RowReport`): Counts what is dropped or left out; the caller counts what is kept.

    Returns:
        `list[list[str]]`: Rows of `width` texts.

    Raises:
        ValueError: If a cell holds no string. The message names the line or row.
    """
    for index, cell in enumerate(cells):
        texts = cell if is_list(cell) and index > 0 else [cell]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise ValueError(f"{table.at(number)}, column {columns[index]!r}: expected a string, got {cell!r}.")
    rows = _expand(cells, width, report)
    if rows:
        lists = [cell for cell in cells if is_list(cell)]
        report.leave_out(sum(not _has_text(text) for text in _flatten(lists)), number)
    else:
        report.drop(number)
    for row in rows:
        for text in row:
            check_encodable(text, partial(table.at, number))
    return rows


def _expand(cells: Sequence[Any], width: int, report: RowReport) -> list[list[str]]:
    if not any(map(is_list, cells)):
        return [list(cells)] if len(cells) == width and all(map(_has_text, cells)) else []
    positives = _flatten(cells[1:2])
    negatives = [text for text in _flatten(cells[2:]) if _has_text(text)]
    report.longer += len(negatives) > width - 2
    rows = [[cells[0], positive, *negatives[: width - 2]] for positive in positives]
    return [row for row in rows if len(row) == width and all(map(_has_text, row))]


def _flatten(cells: Sequence[Any]) -> list[Any]:
    return [text for cell in cells for text in (cell if is_list(cell) else [cell])]


def _has_text(cell: str | None) -> bool:
    return cell is not None and bool(cell) and not cell.isspace()


def check_encodable(text: str, where: Callable[[], str]) -> None:
    """Refuse a text that UTF-8 cannot encode, because it holds half of a surrogate pair.

    Args:
        text (`str`): The text. JSON can hold such a half as an escape.
        where (`Callable[[], str]`): Says for the message where the text stands.

    Raises:
        ValueError: If the text holds a half.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where()}: the text {text[:50]!r} holds half of a surrogate pair, {text[error.start]!r}, which is no "
            "character. Write the character itself or both halves of the pair."
        ) from None
