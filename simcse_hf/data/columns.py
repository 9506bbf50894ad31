"""Which columns of a table are the anchor, the positive and the hard negatives."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from transformers.utils import logging

logger = logging.get_logger(__name__)

# (anchor, positive, pattern of a hard negative's name), the first that fits wins.
_NAMED = (
    ("sent0", "sent1", r"hard_neg(?:_?(\d+))?"),
    ("sent0", "sent1", r"sent([2-9]|[1-9]\d+)"),
    ("anchor", "positive", r"negative(?:_?(\d+))?"),
    ("sentence1", "sentence2", r"(?!)"),
)
_SINGLE = ("sent0", "text", "sentence")
_NOT_TEXT = re.compile(r"|unnamed: \d+|(.*_)?(idx|id|index|labels?|scores?)", re.IGNORECASE)
_JUDGED = re.compile(r"(.*_)?(labels?|scores?)", re.IGNORECASE)


def output_columns(count: int) -> list[str]:
    """Names of the columns of training data: `sent0`, `sent1`, `sent2`, ...

    `sent0` is the anchor, `sent1` its positive, the others its hard negatives; one column alone is unsupervised text.
    """
    return [f"sent{index}" for index in range(count)]


def resolve_columns(
    found: Sequence[str],
    *,
    name: str,
    sample: Sequence[Sequence[Any]] = (),
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> list[str]:
    """Chooses the text columns of a table, in the order anchor, positive, hard negatives.

    In this order: the columns asked for; known names (`sent0, sent1, hard_neg`, with `hard_neg_1, hard_neg_2 ...` or
    `sent2, sent3 ...` for several hard negatives; `anchor, positive, negative`, with `negative_1 ...`;
    `sentence1, sentence2`; `sent0`, `text` or `sentence` as the only text); else the reference implementation's rule:
    all columns in their own order, of which the first is the anchor, the second its positive, the others hard
    negatives (train.py of princeton-nlp/SimCSE), which is logged.

    Args:
        found: The table's column names, in its own order.
        name: The table's name, for messages.
        sample: Cells of the table's first rows, one sequence as long as `found` for each row; a column whose cells
            are all numbers there is not text.
        columns: The columns to take.
        expected_columns: How many columns there must be: 1 unsupervised, 2 pairs, 2 + k with k hard negatives.

    Returns:
        The names of the chosen columns.

    Raises:
        ValueError: A column asked for is missing or named twice, negatives come without a positive, a column that is
            no text stands where position decides, or there are not `expected_columns`.
    """
    listed = ", ".join(map(repr, found))
    if columns is not None:
        chosen = _asked(found, columns, name, listed)
    else:
        no_text = [column for i, column in enumerate(found) if _not_text(column, [row[i] for row in sample])]
        if len(found) == 1:  # there is nothing that position could confuse
            no_text = []
        chosen = _by_name(found, no_text, name)
        if chosen is None:
            chosen = _by_position(found, no_text, name, listed)
        else:
            _report_ignored(found, chosen, name)
    if expected_columns is not None and len(chosen) != expected_columns:
        raise ValueError(
            f"{name}: {len(chosen)} text column(s) ({', '.join(map(repr, chosen))}) where {expected_columns} are "
            f"expected ({_roles(expected_columns)}); the columns are {listed}."
        )
    return chosen


def _asked(found: Sequence[str], columns: Sequence[str], name: str, listed: str) -> list[str]:
    if isinstance(columns, str) or not columns:
        raise ValueError(f"columns must be a non-empty list of column names, got {columns!r}.")
    missing = [column for column in columns if column not in found]
    if missing:
        raise ValueError(f"{name}: no column {', '.join(map(repr, missing))}; the columns are {listed}.")
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns={list(columns)!r} names a column twice.")
    return list(columns)


def _not_text(column: str, cells: Sequence[Any]) -> bool:
    cells = [cell for cell in cells if cell is not None and cell != ""]
    return bool(_NOT_TEXT.fullmatch(column)) or (bool(cells) and all(map(_is_number, cells)))


def _is_number(cell: Any) -> bool:
    if not isinstance(cell, str):
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _by_name(found: Sequence[str], no_text: Collection[str], name: str) -> list[str] | None:
    for anchor, positive, pattern in _NAMED:
        if anchor not in found:
            continue
        negatives = _numbered(found, pattern, name)
        if positive in found:
            # Of the two ways to name the negatives of sent0 and sent1, the one that is there.
            if negatives or not any(_numbered(found, other, name) for a, _, other in _NAMED if a == anchor):
                return [anchor, positive, *negatives]
        elif negatives:
            raise ValueError(f"{name}: {anchor!r} and {', '.join(map(repr, negatives))}, but no {positive!r}.")
    text = [column for column in found if column not in no_text]
    return text if len(text) == 1 and text[0] in _SINGLE else None


def _numbered(found: Sequence[str], pattern: str, name: str) -> list[str]:
    matches = [match for column in found if (match := re.fullmatch(pattern, column))]
    numbered = sorted((int(match[1] or -1), match[0]) for match in matches)
    for (first, a), (second, b) in zip(numbered, numbered[1:], strict=False):
        if first == second:
            raise ValueError(
                f"{name}: columns {a!r} and {b!r} have the same number; name the ones to take with columns=[...]."
            )
    return [column for _, column in numbered]


def _by_position(found: Sequence[str], no_text: Sequence[str], name: str, listed: str) -> list[str]:
    if no_text:
        raise ValueError(
            f"{name}: column(s) {', '.join(map(repr, no_text))} look like no text, and the names are not known, so "
            f"position cannot decide; name the columns to take, in the order anchor, positive, hard negatives, with "
            f"columns=[...]. The columns are {listed}."
        )
    logger.info("%s: columns taken by position: %s (%s).", name, listed, _roles(len(found)))
    return list(found)


def _report_ignored(found: Sequence[str], chosen: Sequence[str], name: str) -> None:
    ignored = [column for column in found if column not in chosen]
    if not ignored:
        return
    message = f"{name}: took the columns {', '.join(chosen)}; ignored {', '.join(map(repr, ignored))}."
    if len(chosen) > 1 and any(map(_JUDGED.fullmatch, ignored)):
        logger.warning("%s Every row counts as a positive pair, whatever its label or score says.", message)
    else:
        logger.info(message)


def _roles(count: int) -> str:
    if count <= 2:
        return ("sentences, unsupervised", "anchor and positive")[count - 1]
    return f"anchor, positive and {count - 2} hard negative(s)"
