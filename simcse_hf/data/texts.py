"""One column of texts, streamed from a file of any size."""

import os
from collections.abc import Iterator
from pathlib import Path

from .columns import resolve_columns
from .files import TextTable, open_table


def text_column(path: str | os.PathLike, column: str | None = None) -> tuple[TextTable, str]:
    """Opens a file and chooses its column of texts.

    Args:
        path: a txt, csv, tsv, json, jsonl or parquet file, or one of these gzipped.
        column: its column; default: the only one, or the one named `sent0`, `text` or `sentence`.

    Returns:
        The open table and the column's name.

    Raises:
        ValueError: an unreadable file, no such column, or several that could be meant.
    """
    table = open_table(Path(path))
    if column is not None:
        resolve_columns(table.columns, name=table.name, columns=[column])
        return table, column
    if len(table.columns) == 1:
        return table, table.columns[0]
    known = [name for name in table.columns if name in ("sent0", "text", "sentence")]
    if len(known) != 1:
        raise ValueError(
            f"{table.name}: which of the columns {', '.join(map(repr, table.columns))} holds the texts? Name it."
        )
    return table, known[0]


def stream_texts(path: str | os.PathLike, column: str | None = None) -> Iterator[tuple[int, str]]:
    """The texts of a file, one after the other, whatever its size.

    Blank lines of a txt file are skipped; an empty cell of a table is a text like any other, so that vectors can be
    laid beside the table's rows.

    Args:
        path: as in [`text_column`].
        column: as in [`text_column`].

    Yields:
        (1-based line or row number, text).

    Raises:
        ValueError: as [`text_column`]; a cell that is no text, with its place.
    """
    table, column = text_column(path, column)
    for number, (text,) in table.rows([column]):
        if not isinstance(text, str):
            raise ValueError(
                f"{table.at(number)}, column {column!r}: expected a text, got {text!r}; fill or drop such rows first."
            )
        yield number, text
