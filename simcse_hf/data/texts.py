"""What a text is: checks of single texts, and of those that a caller gives."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Characters of a line or a text: a tokenizer took more than 7 GB of memory for 100 million.
LONGEST_TEXT = 2**24
TOO_LONG = "more than 16 million characters, which is no sentence. Write each text on a line of its own."


def is_list(cell: Any) -> bool:
    """Say whether a cell lists several texts."""
    return isinstance(cell, (list, tuple))


def has_text(cell: Any) -> bool:
    """Say whether a cell holds a text of more than white space."""
    return isinstance(cell, str) and cell != "" and not cell.isspace()


def is_plain(text: Any) -> bool:
    """Say whether a text needs no other check, as most do."""
    return isinstance(text, str) and text.isascii() and len(text) <= LONGEST_TEXT


def check_text(text: Any, where: str) -> str:
    """Return a text; raise a `ValueError` if it is no string, too long, or holds half of a surrogate pair."""
    if not isinstance(text, str):
        raise ValueError(f"{where}: expected a text, got {text!r}. Fill or remove the row.")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{where}: {TOO_LONG}")
    try:
        text.encode()  # JSON can hold half of a surrogate pair as an escape
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: the text {text[:50]!r} holds half of a surrogate pair, {text[error.start]!r}, which is no "
            "character. Write the character itself or both halves of the pair."
        ) from None
    return text


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """Return one text or several as a list, or raise a `ValueError` that names what is no text or no list of them."""
    if isinstance(texts, (Mapping, set, frozenset)) or hasattr(texts, "columns"):
        kind = type(texts).__name__
        raise ValueError(f"expected a text or a list of texts, got a {kind}: pass its texts as a list.")
    items = [texts] if isinstance(texts, str) else list(texts)
    return [check_text(text, f"sentence {position}") for position, text in enumerate(items)]


def flatten(cells: Iterable) -> list:
    """Return the texts of cells, of which each is a text or a list of them."""
    return [text for cell in cells for text in (cell if is_list(cell) else [cell])]
