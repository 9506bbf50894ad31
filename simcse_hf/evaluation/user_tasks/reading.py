"""Read the columns of a user's file by the names that are usual for them, and check every cell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...data.files import SUFFIX, open_table
from ...data.table import TextTable

#: The names under which a column is recognised, in any case. The first one is the name that messages use.
COLUMN_NAMES = {
    "text": ("text", "sentence", "sent0"),
    "label": ("label", "category", "class", "intent"),
    "split": ("split",),
    "query": ("query", "question", "anchor"),
    "positive": ("positive", "positives", "pos"),
    "negative": ("negative", "negatives", "neg"),
}


def find_columns(table: TextTable, *roles: str) -> list[str]:
    """Find the columns that a task needs.

    Args:
        table (`TextTable`): The open file.
        roles (`str`): Keys of [`COLUMN_NAMES`].

    Returns:
        `list[str]`: The name of each column in the file.

    Raises:
        ValueError: If a column is missing. The message lists the columns that there are.
    """
    lowered = {column.strip().lower(): column for column in reversed(table.columns)}
    found = {role: next((lowered[name] for name in COLUMN_NAMES[role] if name in lowered), None) for role in roles}
    missing = [role for role, column in found.items() if column is None]
    if missing:
        raise ValueError(
            f"{table.name}: no column {' and no column '.join(map(repr, missing))} (also accepted: "
            f"{'; '.join(', '.join(COLUMN_NAMES[role][1:]) or 'no other name' for role in missing)}). The columns are "
            f"{', '.join(map(repr, table.columns))}. Rename one."
        )
    return [column for column in found.values() if column is not None]


def has_column(table: TextTable, role: str) -> bool:
    """Return whether a file has a column of this role."""
    return not {column.strip().lower() for column in table.columns}.isdisjoint(COLUMN_NAMES[role])


def read_columns(path: Path, *roles: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the place of each row, for messages, and its cells in the columns of `roles`."""
    table = open_table(path)
    for number, cells in table.rows(find_columns(table, *roles)):
        yield table.at(number), list(cells)


def checked_text(value: Any, where: str) -> str:
    """Return a text without the white space around it, or raise a `ValueError` that says where it is missing."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected a text, got {value!r}. Fill or remove the row.")
    if not value.strip():
        raise ValueError(f"{where}: the text is empty. Fill or remove the row.")
    return value.strip()


def checked_label(value: Any, where: str) -> str:
    """Return a label as a string, or raise a `ValueError` that says where it is missing."""
    if value is None or not str(value).strip():
        raise ValueError(f"{where}: the label is empty. Fill or remove the row.")
    return str(value).strip()


def file_of(folder: Path, stem: str) -> Path | None:
    """Return the table `stem.*` in a folder, such as `train.csv`, or `None`.

    Args:
        folder (`Path`): The folder.
        stem (`str`): The file's name without its extension.

    Returns:
        `Path`, *optional*: The file.

    Raises:
        ValueError: If there are several.
    """
    files = sorted(path for path in folder.iterdir() if SUFFIX.search(path.name) and SUFFIX.sub("", path.name) == stem)
    if len(files) > 1:
        raise ValueError(f"{folder}: both {files[0].name} and {files[1].name} are there. Keep one of them.")
    return files[0] if files else None


def short_name(path: Path) -> str:
    """Return the name of a file without its extension, or the name of a folder."""
    return SUFFIX.sub("", path.name) or path.resolve().name
