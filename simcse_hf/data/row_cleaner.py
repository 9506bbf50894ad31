"""Turn the cells of rows into rows of texts without an empty one, and count what is left out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transformers.utils import logging

from .texts import check_text, flatten, has_text, is_list

logger = logging.get_logger(__name__)

_SHOWN_ROWS = 5


class RowCleaner:
    """Turn the cells of a row into rows of texts, and count what is left out.

    Args:
        name (`str`): What messages call the source.
        columns (`Sequence[str]`): The columns of the cells: anchor, positive, hard negatives.
        width (`int`): Texts in each row; see [`resolve_columns`].
        unit (`str`, *optional*, defaults to `"row"`): What numbers count, `"line"` or `"row"`.

    Attributes:
        counts (`Counter[str]`): Rows that were `kept`, rows that were `dropped` for an empty cell, `empty` texts that
            were left out of lists, and rows that list `longer` hard negatives than are taken.
        places (`dict[str, list[int]]`): The numbers of the first rows that were `dropped`, or had `empty` texts.
    """

    def __init__(self, name: str, columns: Sequence[str], width: int, unit: str = "row"):
        self.name, self.columns, self.width, self.unit = name, columns, width, unit
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[int]] = {"dropped": [], "empty": []}

    def clean(self, number: int, cells: Sequence[Any]) -> list[list[str]]:
        """Return the rows of texts that a row gives: none if a cell is empty, and several if a positive is a list.

        A positive that is a list gives one row for each of its texts. Hard negatives that are lists are joined and cut
        to `width`. With `width` 3, the cells `q`, `[p1, p2]` and `[n1, n2]` give the rows `q, p1, n1` and `q, p2, n1`.

        Args:
            number (`int`): The line or row number.
            cells (`Sequence[Any]`): The cells of `columns`.

        Returns:
            `list[list[str]]`: Rows of `width` texts.

        Raises:
            ValueError: If a cell holds no string, or half of a surrogate pair. The message names the line or row.
        """
        where = f"{self.name}, {self.unit} {number}"
        for index, cell in enumerate(cells):
            for text in cell if index and is_list(cell) else (cell,):
                if text is not None:
                    check_text(text, f"{where}, column {self.columns[index]!r}")
        lists = [cell for cell in cells if is_list(cell)]
        rows = [list(cells)]
        if lists:
            negatives = list(filter(has_text, flatten(cells[2:])))
            self.counts["longer"] += len(negatives) > self.width - 2
            rows = [[cells[0], positive, *negatives[: self.width - 2]] for positive in flatten(cells[1:2])]
        rows = [row for row in rows if len(row) == self.width and all(map(has_text, row))]
        if rows:
            self._note("empty", [number for text in flatten(lists) if not has_text(text)])
        else:
            self._note("dropped", [number])
        self.counts["kept"] += len(rows)
        return rows

    def clean_all(self, rows: Iterable[tuple[int, Sequence[Any]]]) -> Iterator[list[str]]:
        """Yield the rows of texts that numbered rows give, and refuse a source without any."""
        for number, cells in rows:
            yield from self.clean(number, cells)
        self.count()

    def count(self, kept: int = 0, dropped: Iterable[int] = ()) -> None:
        """Count rows that were kept and rows that were dropped; raise a `ValueError` if none is kept."""
        self.counts["kept"] += kept
        self._note("dropped", list(dropped))
        if not self.counts["kept"]:
            raise ValueError(
                f"{self.name}: every one of the {self.counts['dropped']} row(s) has an empty cell in "
                f"{', '.join(self.columns)}."
            )

    def _note(self, what: str, numbers: list[int]) -> None:
        self.counts[what] += len(numbers)
        room = _SHOWN_ROWS + 1 - len(self.places[what])  # one more than is shown
        self.places[what] += list(dict.fromkeys(numbers[: 10 * room]))[:room] if numbers and room else []

    def log(self, so_far: str = "") -> None:
        """Log what was dropped and left out."""
        kept, dropped, empty, longer = (self.counts[name] for name in ("kept", "dropped", "empty", "longer"))
        shown = {what: ", ".join(map(str, places[:_SHOWN_ROWS])) for what, places in self.places.items()}
        shown = {k: f"{self.unit} {v}{', ...' * (len(self.places[k]) > _SHOWN_ROWS)}." for k, v in shown.items()}
        for count, message in (
            (dropped, f"dropped {dropped} of {kept + dropped} rows for an empty cell: {shown['dropped']}"),
            (empty, f"left {empty} empty text(s) out of lists of positives or hard negatives: {shown['empty']}"),
            (longer, f"{longer} rows list more than {self.width - 2} hard negative(s), and only so many are used."),
        ):
            if count:
                logger.warning(f"{self.name}{so_far}: {message}")
