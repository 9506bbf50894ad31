"""Read the columns of a user's file by the parts that they play, and check every cell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...data.columns import find_parts
from ...data.read import SUFFIX, open_table


def read_columns(path: Path, *roles: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the place of each row, for messages, and its cells in the columns of `roles`."""
    table = open_table(path)
    for number, cells in table.rows(find_parts(table.columns, roles, table.name)):
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
