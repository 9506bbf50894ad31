"""Which columns of a table hold the anchor, the positive and the hard negatives."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from transformers.utils import logging

from .memory import DatasetTable
from .rows import RowReport, clean_rows, is_list, row_width
from .table import SAMPLE_ROWS

logger = logging.get_logger(__name__)

#: The names of a sentence column that stands alone.
SENTENCE_NAMES = ("sent0", "text", "sentence")
_NO_NEGATIVE = r"(?!)"
#: Anchor, positive and a pattern for hard negatives, whose optional group is the number of the negative.
_PAIR_NAMES = (
    ("sent0", "sent1", r"(?:hard_neg_?|sent(?=[2-9]|[1-9]\d))(\d{1,9})?"),
    ("anchor", "positive", r"negatives?_?(\d{1,9})?"),
    ("query", "pos", r"negs?_?(\d{1,9})?"),
    ("query", "positive", r"negatives?_?(\d{1,9})?"),
    ("sentence1", "sentence2", _NO_NEGATIVE),
    ("premise", "hypothesis", _NO_NEGATIVE),
)
_ROLE_NAME = re.compile("|".join(f"{positive}|{pattern}" for _, positive, pattern in _PAIR_NAMES))
_JUDGEMENT = re.compile(r"(.*_)?(labels?|scores?)", re.IGNORECASE)
_NOT_TEXT = re.compile(
    rf"|unnamed: \d+|__index_level_\d+__|(.*_)?(idx|id|guid|pairid|index|split|category|class)|{_JUDGEMENT.pattern}",
    re.IGNORECASE,
)
_STRINGS = (Value("string"), Value("large_string"))


def output_columns(count: int) -> list[str]:
    """Name the columns of training data: `sent0`, `sent1`, `sent2`, ...

    `sent0` is the anchor, `sent1` its positive, and the others are its hard negatives. A single column holds sentences
    for unsupervised training.

    Args:
        count (`int`): Number of columns.

    Returns:
        `list[str]`: The names.
    """
    return [f"sent{index}" for index in range(count)]


def resolve_columns(
    column_names: Sequence[str],
    *,
    name: str,
    sample: Sequence[Sequence[Any]] = (),
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> list[str]:
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
        expected_columns (`int`, *optional*): How many columns there must be: 1 for sentences, 2 for pairs, 2 + k for
            pairs with k hard negatives.

    Returns:
        `list[str]`: The names of the chosen columns.

    Raises:
        ValueError: If `columns` names a missing column or one column twice, if negatives come without a positive, if
            the names do not say which columns to take, or if there are not `expected_columns`.
    """
    if columns is None:
        resolved = _resolve_by_name(column_names, sample, name)
    else:
        resolved = _check_requested(column_names, columns, name)
    if not any(is_list(row[column_names.index(column)]) for row in sample for column in resolved):
        check_column_count(len(resolved), expected_columns, resolved, name, column_names)
    _log_roles(column_names, resolved, name)
    return resolved


def check_column_count(
    count: int, expected: int | None, resolved: Sequence[str], name: str, column_names: Sequence[str]
) -> None:
    """Check that a table gives the number of text columns that the caller needs.

    Args:
        count (`int`): The number of columns that the table gives.
        expected (`int`, *optional*): The number that is needed, or `None` for any.
        resolved (`Sequence[str]`): The columns that they come from.
        name (`str`): The table's name.
        column_names (`Sequence[str]`): All columns of the table.

    Raises:
        ValueError: If the two numbers differ.
    """
    if expected is not None and count != expected:
        parts = ("sentences", "anchor and positive", f"anchor, positive and {expected - 2} hard negative(s)")
        raise ValueError(
            f"{name}: {count} text column(s) ({_quote(resolved)}) where {expected} are expected "
            f"({parts[min(expected, 3) - 1]}). Name them with --columns (columns=[...]); the columns are "
            f"{_quote(column_names)}."
        )


def resolve_dataset_columns(
    dataset: Dataset,
    columns: Sequence[str] | None = None,
    *,
    name: str = "the dataset",
    expected_columns: int | None = None,
    keep: str | None = None,
) -> Dataset:
    """Select the text columns of a dataset and name them `sent0`, `sent1`, `sent2`, ... in the order of their parts.

    A dataset that is already tokenised (`input_ids`) or grouped (`texts` and `relations`) is returned as it is. Rows
    with an empty cell are dropped with a warning. A cell may hold a list: each positive of a list becomes a row of its
    own, and negatives of a list become columns.

    Args:
        dataset (`datasets.Dataset`): The dataset.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.
        expected_columns (`int`, *optional*): How many columns there must be; see [`resolve_columns`].
        keep (`str`, *optional*): A further column that stays as it is.

    Returns:
        `datasets.Dataset`: The dataset with string columns only, and the column to `keep`.

    Raises:
        ValueError: If the dataset has no rows, its columns are unclear or hold no strings, or every row has an empty
            cell.
    """
    column_names = [column for column in dataset.column_names if column != keep]
    if "input_ids" in column_names or {"texts", "relations"} <= set(column_names):
        return dataset
    if len(dataset) == 0:
        raise ValueError(f"{name}: there are no rows.")
    dataset = dataset.with_format(None)
    head = dataset[:SAMPLE_ROWS]
    sample = list(zip(*(head[column] for column in column_names), strict=True))
    resolved = resolve_columns(
        column_names, name=name, sample=sample, columns=columns, expected_columns=expected_columns
    )
    features = [dataset.features[column] for column in resolved]
    for column, feature in zip(resolved, features, strict=True):
        if feature not in _STRINGS and getattr(feature, "feature", None) not in _STRINGS:
            raise ValueError(
                f"{name}: column {column!r} holds {feature}, not strings. Name the text columns with --columns "
                f"(columns=[...]); the columns are {_quote(column_names)}."
            )
    if any(feature not in _STRINGS for feature in features):
        if keep is not None:
            raise ValueError(f"{name}: a cell holds a list, but beside the column {keep!r} it must hold one text.")
        return _expand_lists(dataset, resolved, name, expected_columns)
    names = output_columns(len(resolved))
    kept = [] if keep is None else [keep]
    dataset = dataset.select_columns([*resolved, *kept]).rename_columns(dict(zip(resolved, names, strict=True)))
    has_text, report = _find_rows_with_text(dataset.select_columns(names))
    report.log(name, "row")
    if not report.rows:
        raise ValueError(f"{name}: every one of the {report.dropped} rows has an empty cell.")
    if report.dropped:
        dataset = dataset.select(has_text)
    string_features = Features(dataset.features | {column: Value("string") for column in names})
    return dataset if dataset.features == string_features else dataset.cast(string_features)


def _expand_lists(dataset: Dataset, resolved: Sequence[str], name: str, expected_columns: int | None) -> Dataset:
    table = DatasetTable(dataset, name)
    width = row_width(cells for _, cells in table.rows(resolved))
    check_column_count(width, expected_columns, resolved, name, dataset.column_names)
    report = RowReport()
    rows = list(clean_rows(table, resolved, width, report))
    report.log(name, "row")
    return Dataset.from_dict(dict(zip(output_columns(width), map(list, zip(*rows, strict=True)), strict=True)))


def _find_rows_with_text(dataset: Dataset) -> tuple[np.ndarray, RowReport]:
    masks = []
    for batch in dataset.with_format("arrow").iter(10_000):
        lengths = [pc.utf8_length(pc.utf8_trim_whitespace(column)) for column in batch.columns]
        masks.append(np.all([pc.fill_null(length, 0).to_numpy() > 0 for length in lengths], axis=0))
    has_text = np.concatenate(masks)
    report = RowReport(rows=int(has_text.sum()))
    for index in np.flatnonzero(~has_text).tolist():
        report.drop(index + 1)
    return np.flatnonzero(has_text), report


def _check_requested(column_names: Sequence[str], columns: Sequence[str], name: str) -> list[str]:
    if isinstance(columns, str) or not columns:
        raise ValueError(f"columns must be a non-empty list of column names, got {columns!r}.")
    missing = [column for column in columns if column not in column_names]
    if missing:
        raise ValueError(f"{name}: no column {_quote(missing)}; the columns are {_quote(column_names)}.")
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns={list(columns)!r} names a column twice.")
    return list(columns)


def _resolve_by_name(column_names: Sequence[str], sample: Sequence[Sequence[Any]], name: str) -> list[str]:
    if len(column_names) == 1:  # there is nothing to confuse it with
        return list(column_names)
    pairs = []
    for anchor, positive, pattern in _PAIR_NAMES:
        if anchor in column_names:
            negatives = _find_negatives(column_names, pattern, name)
            if positive in column_names:
                pairs.append([anchor, positive, *negatives])
            elif negatives and not any(p in column_names for a, p, _ in _PAIR_NAMES if a == anchor):
                raise ValueError(
                    f"{name}: there are {anchor!r} and {_quote(negatives)}, but no {positive!r}. Rename its "
                    "column, or name the columns with --columns (columns=[...])."
                )
    if len(pairs) == 1:
        return pairs[0]
    texts = [column for i, column in enumerate(column_names) if not _is_not_text(column, [row[i] for row in sample])]
    named = [column for column in texts if column in SENTENCE_NAMES]
    if not pairs and len(texts) == 1:
        return texts
    if not pairs and len(named) == 1 and not any(map(_ROLE_NAME.fullmatch, texts)):
        return named
    excluded = [column for column in column_names if column not in texts]
    raise ValueError(
        f"{name}: the column names do not say which columns hold the anchor, the positive and the hard negatives"
        f"{f' ({_quote(excluded)} cannot be text)' if excluded else ''}. Name them with --columns (columns=[...]), in "
        f"the order anchor, positive, hard negatives; the columns are {_quote(column_names)}."
    )


def _is_not_text(column: str, cells: Sequence[Any]) -> bool:
    cells = [cell for cell in cells if cell is not None and cell != ""]
    return bool(_NOT_TEXT.fullmatch(column)) or (bool(cells) and all(map(_is_number, cells)))


def _is_number(cell: Any) -> bool:
    if not isinstance(cell, str):
        return not is_list(cell)
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _find_negatives(column_names: Sequence[str], pattern: str, name: str) -> list[str]:
    matches = [match for column in column_names if (match := re.fullmatch(pattern, column))]
    numbered = sorted((int(match[1] or -1), match[0]) for match in matches)
    for (first, a), (second, b) in zip(numbered, numbered[1:], strict=False):
        if first == second:
            raise ValueError(
                f"{name}: columns {a!r} and {b!r} have the same number. Name the columns to take with --columns "
                "(columns=[...])."
            )
    return [column for _, column in numbered]


def _log_roles(column_names: Sequence[str], resolved: Sequence[str], name: str) -> None:
    if len(resolved) == 1:
        message = f"{name}: the sentences are in column {resolved[0]!r}"
    else:
        message = f"{name}: anchor {resolved[0]!r}, positive {resolved[1]!r}"
        message += f", hard negatives {_quote(resolved[2:])}" if len(resolved) > 2 else ""
    ignored = [column for column in column_names if column not in resolved]
    message += f"; ignored {_quote(ignored)}." if ignored else "."
    if len(resolved) > 1 and any(map(_JUDGEMENT.fullmatch, ignored)):
        logger.warning(
            "%s Every row counts as a positive pair, whatever its label or score says; `simcse-hf build-nli` turns "
            "labelled pairs into triplets.",
            message,
        )
    else:
        logger.info(message)


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
