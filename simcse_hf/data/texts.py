"""Stream one column of texts from a file of any size."""

import os
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from .columns import SENTENCE_NAMES, resolve_columns
from .files import JsonFile, open_table
from .lines import FIRST, Place
from .rows import check_encodable
from .table import FileTable


def text_column(path: str | os.PathLike[str], column: str | None = None) -> tuple[FileTable, str]:
    """Open a file and choose its column of texts.

    Args:
        path (`str | os.PathLike`): A txt, csv, tsv, json, jsonl or parquet file, or one of these followed by .gz.
        column (`str`, *optional*): The column. Defaults to the only one, or to the one named `sent0`, `text` or
            `sentence`.

    Returns:
        `tuple[FileTable, str]`: The open table and the name of the column.

    Raises:
        ValueError: If the file cannot be read, has no such column, or has several that may be meant.
    """
    table = open_table(Path(path))
    if column is not None:
        resolve_columns(table.columns, name=table.name, columns=[column])
        return table, column
    if isinstance(table, JsonFile):
        table.refuse_late_keys = True
    if len(table.columns) == 1:
        return table, table.columns[0]
    known = [name for name in table.columns if name in SENTENCE_NAMES]
    if len(known) != 1:
        raise ValueError(
            f"{table.name}: which of the columns {', '.join(map(repr, table.columns))} holds the texts? Name it."
        )
    return table, known[0]


def stream_texts(path: str | os.PathLike[str], column: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file one by one.

    Blank lines of a txt file are skipped. An empty cell of a table is a text like any other, so that embeddings stay
    aligned with the rows of the table.

    Args:
        path (`str | os.PathLike`): The file; see [`text_column`].
        column (`str`, *optional*): The column; see [`text_column`].

    Yields:
        `tuple[int, str]`: The line or row number, from 1, and the text.

    Raises:
        ValueError: If the file cannot be read, its column is unclear, or a cell holds no text. The message names the
            line or row.
    """
    table, column = text_column(path, column)
    for place, text in placed_texts(table, column):
        yield place.number, text


def placed_texts(table: FileTable, column: str, start: Place = FIRST) -> Generator[tuple[Place, str]]:
    """Yield the texts of a column with their places, from some place on.

    Args:
        table (`FileTable`): The table.
        column (`str`): The column.
        start (`Place`, *optional*, defaults to `FIRST`): The place of a row, as yielded before.

    Yields:
        `tuple[Place, str]`: The place and the text.

    Raises:
        ValueError: If the file cannot be read, or a cell holds no text. The message names the line or row.
    """
    for place, (text,) in _placed_rows(table, [column], start):
        yield place, text


def stream_rows(
    path: str | os.PathLike[str], column: str | None = None, keep: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield the texts of a file with the cells of other columns, as [`stream_texts`] yields the texts alone.

    Args:
        path (`str | os.PathLike`): The file; see [`text_column`].
        column (`str`, *optional*): The column of texts; see [`text_column`].
        keep (`Sequence[str]`, *optional*, defaults to `()`): The other columns. Their cells are written as text; a
            missing value is an empty text.

    Yields:
        `tuple[int, list[str]]`: The line or row number, from 1; and the text, followed by the other cells.

    Raises:
        ValueError: If the file cannot be read, has no such columns, or a cell holds no text. The message names the
            line or row.
    """
    table, column = text_column(path, column)
    if wrong := [name for name in keep if name not in table.columns or name == column]:
        others = ", ".join(repr(name) for name in table.columns if name != column) or "none"
        raise ValueError(
            f"{table.name}: no column {wrong[0]!r} to keep beside {column!r}; the other columns: {others}."
        )
    for place, row in _placed_rows(table, [column, *keep], FIRST):
        yield place.number, row


def _placed_rows(table: FileTable, columns: list[str], start: Place) -> Iterator[tuple[Place, list[str]]]:
    """Yield the text in the first of some columns, and the other cells as text."""
    for place, (text, *cells) in table.placed_rows(columns, start):
        if not isinstance(text, str):
            raise ValueError(
                f"{table.at(place.number)}, column {columns[0]!r}: expected a text, got {text!r}. Fill or drop such "
                "rows first."
            )
        row = [text, *("" if cell is None else str(cell) for cell in cells)]
        for cell in row:
            check_encodable(cell, partial(table.at, place.number))
        yield place, row


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """Return one text or several as a list.

    Args:
        texts (`str` or `Sequence[str]`): The texts.

    Returns:
        `list[str]`: The texts.

    Raises:
        ValueError: If an item is not a text, or holds half of a surrogate pair. The message names its position.
    """
    items = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(items):
        if not isinstance(text, str):
            raise ValueError(f"sentence {position} is not a text but {type(text).__name__}: {text!r}")
        check_encodable(text, partial("sentence {}".format, position))
    return items
