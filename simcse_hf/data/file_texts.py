"""Texts of a file one by one, aligned with its rows."""

import os
from collections.abc import Iterator, Sequence

from .columns import quote, resolve_text_column
from .open_table import open_table
from .table import Table
from .texts import check_text


def text_column(path: str | os.PathLike, column: str | None = None) -> tuple[Table, str]:
    """Open a file and choose its column of texts; see [`open_table`] and [`~data.columns.resolve_text_column`]."""
    table = open_table(path)
    table.refuse_late_keys = column is None
    return table, resolve_text_column(table.columns, table.name, column)


def stream_texts(path: str | os.PathLike, column: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the line or row number, from 1, and the text of every row of a file; see [`stream_rows`]."""
    for number, (text,) in stream_rows(path, column):
        yield number, text


def stream_rows(
    path: str | os.PathLike, column: str | None = None, keep: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield the texts of a file one by one, with the cells of other columns.

    Blank lines of a txt file are skipped. An empty cell of a table is a text like any other, so that embeddings stay
    aligned with the rows of the table.

    Args:
        path (`str | os.PathLike`): The file; see [`open_table`].
        column (`str`, *optional*): The column of texts. Defaults to the only one, or to the one named `sent0`, `text`
            or `sentence`.
        keep (`Sequence[str]`, *optional*, defaults to `()`): The other columns. Their cells are written as text; a
            missing value is an empty text.

    Yields:
        `tuple[int, list[str]]`: The line or row number, from 1; and the text, followed by the other cells.

    Raises:
        ValueError: If the file cannot be read, its columns are unclear, or a cell holds no text. The message names the
            line or row.
    """
    table, column = text_column(path, column)
    others = [name for name in table.columns if name != column]
    missing = [name for name in keep if name not in others]
    if missing:
        raise ValueError(
            f"{table.name}: no column {quote(missing)} to keep beside {column!r}; the other columns: "
            f"{quote(others) or 'none'}."
        )
    for number, (text, *cells) in table.rows([column, *keep]):
        where = table.at(number)
        row = [check_text(text, f"{where}, column {column!r}")]
        for cell in cells:
            row.append(check_text("" if cell is None else str(cell), where))
        yield number, row
