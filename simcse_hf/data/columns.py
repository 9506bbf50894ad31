"""Which column of a table plays which part."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformers.utils import logging

from ..ops.errors import refuse
from .texts import flatten, has_text, is_list

logger = logging.get_logger(__name__)

#: Rows that the columns of a table are judged by.
SAMPLE_ROWS = 100
#: Column of the similarity of a pair, for objectives that learn from graded pairs.
SCORE = "score"
#: Column of the class of a text, for objectives that learn from classes.
LABEL = "label"
#: Columns of rows that hold no texts, and stay as they are when the texts are tokenised.
NO_TEXT = (SCORE, LABEL, "relations")

#: Names, in any case, by which a column of a dev set, a task or labelled pairs is known; messages use the first one.
PART_NAMES = {
    "score": ("score", "similarity_score", "relatedness_score", "label"),
    "sentence1": ("sentence1", "sent1", "sentence_a"),
    "sentence2": ("sentence2", "sent2", "sentence_b"),
    "text": ("text", "sentence", "sent0"),
    "label": ("label", "category", "class", "intent"),
    "split": ("split",),
    "query": ("query", "question", "anchor"),
    "positive": ("positive", "positives", "pos"),
    "negative": ("negative", "negatives", "neg"),
    "premise": ("premise", "sentence1", "context"),
    "hypothesis": ("hypothesis", "sentence2"),
    "relation": ("label", "gold_label"),
}
_NO_NEGATIVE = r"(?!)"
#: Anchor, positive and a pattern for hard negatives of training rows, whose group is the number of the negative.
_PAIR_NAMES = (
    ("sent0", "sent1", r"(?:hard_neg_?|sent(?=[2-9]|[1-9]\d))(\d{1,9})?"),
    ("anchor", "positive", r"negatives?_?(\d{1,9})?"),
    ("anchor", "positives", r"negatives?_?(\d{1,9})?"),
    ("query", "pos", r"negs?_?(\d{1,9})?"),
    ("query", "positive", r"negatives?_?(\d{1,9})?"),
    ("query", "positives", r"negatives?_?(\d{1,9})?"),
    ("sentence1", "sentence2", _NO_NEGATIVE),
    ("premise", "hypothesis", _NO_NEGATIVE),
)

_ROLE_NAME = re.compile("|".join(f"{positive}|{pattern}" for _, positive, pattern in _PAIR_NAMES))

_JUDGEMENT = re.compile(r"(.*_)?(labels?|scores?)", re.IGNORECASE)

_NOT_TEXT = re.compile(
    rf"|unnamed: \d+|__index_level_\d+__|(.*_)?(idx|id|guid|pairid|index|split|category|class)|{_JUDGEMENT.pattern}",
    re.IGNORECASE,
)

ADVICE = (
    "Name the columns with --columns or, in Python, load_text_dataset(..., columns=[...]), in the order anchor, "
    "positive, hard negatives"
)


def resolve_columns(
    column_names: Sequence[str],
    *,
    name: str,
    sample: Sequence[Sequence[Any]] = (),
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> tuple[list[str], int]:
    """Choose the text columns of a table: first the anchor, then the positive, then the hard negatives.

    Columns are chosen by the names that the field uses: `sent0, sent1, hard_neg`; `anchor, positive, negative`;
    `query, pos, neg`; `query, positive, negative`; `sentence1, sentence2`; `premise, hypothesis`; or a single `sent0`,
    `text` or `sentence`. Several negatives are numbered, as in `hard_neg_1, hard_neg_2` or `sent2, sent3`. Otherwise
    the only text column is taken. Columns of identifiers, labels, scores or numbers are never taken for text. A log
    line says which column plays which part.

    Args:
        column_names (`Sequence[str]`): The columns of the table, in its own order.
        name (`str`): The table's name, for messages.
        sample (`Sequence[Sequence[Any]]`, *optional*, defaults to `()`): Cells of the first rows, one sequence as long
            as `column_names` for each row.
        columns (`Sequence[str]`, *optional*): The columns to take instead, in the same order of parts.
        expected_columns (`int`, *optional*): How many texts a row must have: 1 for sentences, 2 for pairs, 2 + k for
            pairs with k hard negatives.

    Returns:
        `tuple[list[str], int]`: The names of the chosen columns, and the number of texts in a row. Where cells list
        several hard negatives, this is two more than the fewest of any row that has some. Empty texts do not count,
        so a row with one of them is narrower, and not dropped.

    Raises:
        ValueError: If `columns` names a missing column or one column twice, if negatives come without a positive, if
            the names do not say which columns to take, or if there are not `expected_columns` texts.
    """
    column_names = list(column_names)
    chosen = _by_name(column_names, sample, name) if columns is None else _requested(column_names, columns, name)
    rows = [[row[column_names.index(column)] for column in chosen] for row in sample]
    width = len(chosen)
    if any(is_list(cell) for row in rows for cell in row):
        counts = {sum(not isinstance(x, str | None) or has_text(x) for x in flatten(row[2:])) for row in rows}
        width = 2 + min(counts - {0}, default=0)
    refuse(
        {
            f"{name}: {width} text column(s) ({quote(chosen)}) where {expected_columns} are expected. {ADVICE}; the "
            f"columns are {quote(column_names)}.": expected_columns not in (None, width)
        }
    )
    parts = ", ".join(
        f"{part} {quote(names)}"
        for part, names in (("anchor", chosen[:1]), ("positive", chosen[1:2]), ("hard negatives", chosen[2:]))
        if names
    )
    ignored = [column for column in column_names if column not in chosen]
    message = f"{name}: {parts if len(chosen) > 1 else f'the sentences are in column {chosen[0]!r}'}"
    message += f"; ignored {quote(ignored)}." if ignored else "."
    if len(chosen) > 1 and any(map(_JUDGEMENT.fullmatch, ignored)):
        logger.warning(
            f"{message} Every row counts as a positive pair, whatever its label or score says; `simcse-hf build-nli` "
            "turns labelled pairs into triplets."
        )
    else:
        logger.info(message)
    return chosen, width


def resolve_text_column(column_names: Sequence[str], name: str, column: str | None = None) -> str:
    """Choose the one column of texts: the requested one, the only one, or the one named `sent0`, `text` or `sentence`.

    Args:
        column_names (`Sequence[str]`): The columns of the table.
        name (`str`): The table's name, for messages.
        column (`str`, *optional*): The column to take.

    Returns:
        `str`: The name of the column.

    Raises:
        ValueError: If the column is missing, or there are several that may be meant.
    """
    if column is not None:
        return _requested(column_names, [column], name)[0]
    known = [name for name in column_names if len(column_names) == 1 or name in PART_NAMES["text"]]
    refuse({f"{name}: which of the columns {quote(column_names)} holds the texts? Name it.": len(known) != 1})
    return known[0]


def class_columns(
    column_names: Sequence[str], sample: Sequence[Sequence[Any]] = (), columns: Sequence[str] | None = None
) -> list[str] | None:
    """Find the columns of texts and of their class labels.

    Args:
        column_names (`Sequence[str]`): The columns of the table.
        sample (`Sequence[Sequence[Any]]`, *optional*, defaults to `()`): Cells of the first rows.
        columns (`Sequence[str]`, *optional*): The columns of texts that were asked for.

    Returns:
        `list[str]`: The column of texts and the column of labels (`label`, `category`, `class` or `intent`); `None` if
            there is no such column, or a row has several texts.
    """
    label = find_part(column_names, "label")
    if label is None or len(column_names) == 1:
        return None
    others = [name for name in column_names if name != label]
    cells = [[row[column_names.index(name)] for name in others] for row in sample]
    try:
        chosen = _by_name(others, cells, "") if columns is None else list(columns)
    except ValueError:
        return None
    return [*chosen, label] if len(chosen) == 1 else None


def find_part(column_names: Iterable[str], part: str) -> str | None:
    """Return the column that plays a part of [`PART_NAMES`], or `None`."""
    lowered = {column.strip().lower(): column for column in reversed(list(column_names))}
    return next((lowered[name] for name in PART_NAMES[part] if name in lowered), None)


def find_parts(column_names: Iterable[str], parts: Sequence[str], name: str) -> list[str]:
    """Find the columns that play some parts.

    Args:
        column_names (`Iterable[str]`): The columns of the table.
        parts (`Sequence[str]`): Keys of [`PART_NAMES`].
        name (`str`): The table's name, for messages.

    Returns:
        `list[str]`: The column of each part.

    Raises:
        ValueError: If a part has no column. The message lists the columns that there are.
    """
    column_names = list(column_names)
    found = {part: find_part(column_names, part) for part in parts}
    missing = [PART_NAMES[part] for part, column in found.items() if column is None]
    if missing:
        raise ValueError(
            f"{name}: no column {' and no column '.join(repr(names[0]) for names in missing)} (also accepted: "
            f"{'; '.join(', '.join(names[1:]) or 'no other name' for names in missing)}). The columns are "
            f"{quote(column_names)}. Rename one."
        )
    return [column for column in found.values() if column is not None]


def _requested(column_names: Sequence[str], columns: Sequence[str], name: str) -> list[str]:
    is_wrong = isinstance(columns, str) or not columns or len(set(columns)) < len(columns)
    missing = [column for column in columns if column not in column_names]
    refuse(
        {
            f"columns must be a non-empty list of different column names, got {columns!r}.": is_wrong,
            f"{name}: no column {quote(missing)}; the columns are {quote(column_names)}.": missing,
        }
    )
    return list(columns)


def _by_name(column_names: Sequence[str], sample: Sequence[Sequence[Any]], name: str) -> list[str]:
    if len(column_names) == 1:  # there is nothing to confuse it with
        return list(column_names)
    pairs = []
    for anchor, positive, pattern in _PAIR_NAMES:
        if anchor in column_names:
            matches = [match for column in column_names if (match := re.fullmatch(pattern, column))]
            negatives = {int(match[1] or -1): match[0] for match in matches}
            if len(negatives) < len(matches):
                raise ValueError(
                    f"{name}: two of {quote(match[0] for match in matches)} have the same number. {ADVICE}."
                )
            if positive in column_names:
                pairs.append([anchor, positive, *(negatives[number] for number in sorted(negatives))])
            elif negatives and not any(p in column_names for a, p, _ in _PAIR_NAMES if a == anchor):
                raise ValueError(
                    f"{name}: there are {anchor!r} and {quote(negatives.values())}, but no {positive!r}. {ADVICE}."
                )
    if len(pairs) == 1:
        return pairs[0]
    texts = [column for i, column in enumerate(column_names) if not _is_not_text(column, [row[i] for row in sample])]
    named = [column for column in texts if column in PART_NAMES["text"]]
    if not pairs and len(texts) == 1:
        return texts
    if not pairs and len(named) == 1 and not any(map(_ROLE_NAME.fullmatch, texts)):
        return named
    excluded = [column for column in column_names if column not in texts]
    raise ValueError(
        f"{name}: the column names do not say which columns hold the texts"
        f"{f' ({quote(excluded)} cannot be text)' if excluded else ''}. {ADVICE}; the columns are "
        f"{quote(column_names)}."
    )


def _is_not_text(column: str, cells: Iterable[Any]) -> bool:
    cells = [cell for cell in cells if cell is not None and cell != ""]
    return bool(_NOT_TEXT.fullmatch(column)) or (bool(cells) and all(map(_is_number, cells)))


def _is_number(cell: Any) -> bool:
    try:
        return not is_list(cell) and (not isinstance(cell, str) or float(cell) is not None)
    except ValueError:
        return False


def quote(names: Iterable[str]) -> str:
    """Return names in quotation marks, for a message."""
    return ", ".join(map(repr, names))
