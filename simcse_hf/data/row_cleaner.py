"""Turn the cells of rows into rows of texts, and count what is left out."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from transformers.utils import logging

from .texts import check_text, flatten, has_text, is_list, is_plain

logger = logging.get_logger(__name__)

_SHOWN_ROWS = 5
_NOTES = {
    "dropped": "dropped for an empty cell",
    "empty": "with an empty text in a list, which is left out",
    "fewer": "with fewer hard negatives than others",
    "longer": "with more hard negatives than are taken",
}


class RowCleaner:
    """Turn the cells of a row into rows of texts, and count what is left out.

    Args:
        name (`str`): What messages call the source.
        columns (`Sequence[str]`): The columns of the cells: anchor, positive, hard negatives.
        unit (`str`, *optional*, defaults to `"row"`): What numbers count, `"line"` or `"row"`.

    Attributes:
        width (`int`): Texts in each row.
        kept (`int`): Rows of texts that were kept.
        counts (`Counter[str]`): Rows that were `dropped` for an empty cell, that had `empty` texts in lists, and that
            have `fewer` or `longer` lists of hard negatives.
        places (`dict[str, list[int]]`): The numbers of the first of these rows.
    """

    def __init__(self, name: str, columns: Sequence[str], unit: str = "row"):
        self.name = name
        self.columns = columns
        self.unit = unit
        self.width = len(columns)
        self.kept = 0
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[int]] = {what: [] for what in _NOTES}

    def widen(self, rows: Iterable[Sequence]) -> None:
        """Make room for the longest list of hard negatives of some rows."""
        for cells in rows:
            negatives = sum(map(has_text, flatten(cells[2:])))
            self.width = max(self.width, 2 + negatives)

    def clean(self, number: int, cells: Sequence) -> list[list[str | None]]:
        """Return the rows of texts that a row gives: none if it lacks a text, and several if its positive is a list.

        Hard negatives that are lists are joined. A row may have fewer than others, and ends in `None` then. With
        `width` 4, the cells `q`, `[p1, p2]` and `[n1]` give the rows `q, p1, n1, None` and `q, p2, n1, None`.

        Args:
            number (`int`): The line or row number.
            cells (`Sequence[Any]`): The cells of `columns`.

        Returns:
            `list[list[str | None]]`: Rows of `width` texts.

        Raises:
            ValueError: If a cell holds no string, or half of a surrogate pair. The message names the line or row.
        """
        for place, cell in enumerate(cells):
            for text in cell if place and is_list(cell) else (cell,):
                if text is not None and not is_plain(text):
                    check_text(text, f"{self.name}, {self.unit} {number}, column {self.columns[place]!r}")
        rows: list[list] = []
        if len(cells) == self.width and all(map(has_text, cells)):
            rows = [list(cells)]
        elif has_text(cells[0]) and len(cells) > 1:
            room = self.width - 2
            negatives = list(filter(has_text, flatten(cells[2:])))
            if len(negatives) != room:
                self.note("fewer" if len(negatives) < room else "longer", [number])
            filled = [*negatives, *[None] * room][:room]
            positives = flatten(cells[1:2])
            rows = [[cells[0], positive, *filled] for positive in filter(has_text, positives)]
            if rows and not all(map(has_text, flatten(filter(is_list, cells)))):
                self.note("empty", [number])
        if not rows:
            self.note("dropped", [number])
        self.kept += len(rows)
        return rows

    def clean_all(self, rows: Iterable[tuple[int, Sequence]]) -> Iterator[list[str | None]]:
        """Yield the rows of texts that numbered rows give, and refuse a source without any."""
        for number, cells in rows:
            yield from self.clean(number, cells)
        self.check_any()

    def check_any(self) -> None:
        """Raise a `ValueError` if no row was kept."""
        if not self.kept:
            raise ValueError(
                f"{self.name}: every one of the {self.counts['dropped']} row(s) has an empty cell in "
                f"{', '.join(self.columns)}."
            )

    def note(self, what: str, numbers: Sequence[int]) -> None:
        """Count rows by what was found in them."""
        self.counts[what] += len(numbers)
        places = self.places[what]
        places += numbers[: _SHOWN_ROWS + 1 - len(places)]  # one more than is shown

    def log(self, so_far: str = "") -> None:
        """Log what was dropped and left out."""
        for what, message in _NOTES.items():
            places = [str(number) for number in self.places[what]]
            places[_SHOWN_ROWS:] = ["..."] if len(places) > _SHOWN_ROWS else []
            if places:
                rows = self.kept + self.counts["dropped"]
                logger.warning(
                    f"{self.name}{so_far}: {self.counts[what]} of {rows} rows {message}: {self.unit} "
                    f"{', '.join(places)}."
                )
