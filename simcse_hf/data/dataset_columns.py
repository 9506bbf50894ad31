"""Select the texts, and scores, of data sets in memory."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, Value

from ..ops.errors import refuse
from .columns import ADVICE, SAMPLE_ROWS, SCORE, quote, resolve_columns
from .row_cleaner import RowCleaner

_STRINGS = (Value("string"), Value("large_string"))

_resolved: set[str] = set()  # fingerprints of data sets that need not be scanned again


def text_features(width: int) -> Features:
    """Return the features of rows of texts: `sent0` (the anchor), `sent1` (its positive), `sent2`, ... (negatives)."""
    return Features({f"sent{index}": Value("string") for index in range(width)})


def mark_resolved(dataset: Dataset) -> Dataset:
    """Remember that a dataset has the columns `sent0`, `sent1`, ... and no empty cell, and return it."""
    _resolved.add(dataset._fingerprint)
    return dataset


def is_resolved(dataset: Dataset) -> bool:
    """Say whether [`mark_resolved`] remembers a dataset."""
    return dataset._fingerprint in _resolved


def resolve_dataset_columns(
    dataset: Dataset,
    columns: Sequence[str] | None = None,
    *,
    name: str = "the dataset",
    expected_columns: int | None = None,
    keep: str | None = None,
) -> Dataset:
    """Select the text columns of a dataset and name them `sent0`, `sent1`, `sent2`, ... in the order of their parts.

    A dataset that is already tokenised (`input_ids`) or grouped (`texts` and `relations`) is returned as it is, and so
    is one that was resolved before. Rows with an empty cell are dropped with a warning. A cell may hold a list: each
    positive of a list becomes a row of its own, and negatives of a list become columns.

    Args:
        dataset (`datasets.Dataset`): The dataset.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.
        expected_columns (`int`, *optional*): How many texts a row must have; see [`resolve_columns`].
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
    if columns is None and is_resolved(dataset) and expected_columns in (None, len(column_names)):
        return dataset
    refuse({f"{name}: there are no rows.": len(dataset) == 0})
    dataset = dataset.with_format(None)
    head = dataset[:SAMPLE_ROWS]
    sample = list(zip(*(head[column] for column in column_names), strict=True))
    chosen, width = resolve_columns(
        column_names, name=name, sample=sample, columns=columns, expected_columns=expected_columns
    )
    lists = False
    for column in chosen:
        feature = dataset.features[column]
        lists = lists or feature not in _STRINGS
        if feature not in _STRINGS and (keep is not None or getattr(feature, "feature", None) not in _STRINGS):
            raise ValueError(f"{name}: column {column!r} holds {feature}, not strings. {ADVICE}.")
    cleaner = RowCleaner(name, chosen, width)
    if lists:
        batches = dataset.select_columns(chosen).iter(10_000)
        rows = enumerate((cells for batch in batches for cells in zip(*map(batch.get, chosen), strict=True)), 1)
        names, cleaned = list(text_features(width)), list(cleaner.clean_all(rows))
        dataset = Dataset.from_dict(dict(zip(names, map(list, zip(*cleaned, strict=True)), strict=True)))
    else:
        kept = [] if keep is None else [keep]
        dataset = dataset.select_columns([*chosen, *kept]).rename_columns(
            dict(zip(chosen, text_features(width), strict=True))
        )
        masks = [
            np.all(
                [pc.fill_null(pc.utf8_length(pc.utf8_trim_whitespace(x)), 0).to_numpy() > 0 for x in batch.columns], 0
            )
            for batch in dataset.select_columns(list(text_features(width))).with_format("arrow").iter(10_000)
        ]
        has_texts = np.concatenate(masks)
        cleaner.count(int(has_texts.sum()), np.flatnonzero(~has_texts) + 1)
        dataset = dataset if has_texts.all() else dataset.select(np.flatnonzero(has_texts))
        features = Features(dataset.features | text_features(width))
        dataset = dataset if dataset.features == features else dataset.cast(features)
    cleaner.log()
    return mark_resolved(dataset)


def resolve_scored_pairs(dataset: Dataset, name: str = "the dataset") -> Dataset:
    """Select the two text columns and the score of a dataset.

    A dataset that is already tokenised (`input_ids`) is returned as it is. Rows with an empty text are dropped with a
    warning.

    Args:
        dataset (`datasets.Dataset`): A dataset with the column `score` and two columns of texts, such as `sentence1`
            and `sentence2`; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.

    Returns:
        `datasets.Dataset`: The columns `sent0`, `sent1` and `score`, a float.

    Raises:
        ValueError: If the column `score` is missing, a score is not a finite number, or the text columns are unclear.
    """
    if "input_ids" in dataset.column_names:
        return dataset
    columns = dataset.column_names
    refuse(
        {
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {quote(columns)}.": SCORE not in columns
        }
    )
    if is_resolved(dataset):
        return dataset
    values = dataset.with_format(None)[SCORE][:]
    scores = [parse_score(value, f"{name}, row {n}", "Correct or remove the row") for n, value in enumerate(values, 1)]
    scored = dataset.remove_columns(SCORE).add_column(SCORE, scores, feature=Value("float64"))
    return resolve_dataset_columns(scored, name=name, expected_columns=2, keep=SCORE)


def parse_score(value: Any, where: str, advice: str = "Correct it, or leave it blank to skip the row") -> float:
    """Return a score as a finite float.

    Args:
        value (`Any`): The cell.
        where (`str`): Its place, for the message.
        advice (`str`, *optional*): The last sentence of the message, without its full stop.

    Returns:
        `float`: The score.

    Raises:
        ValueError: If it is not a finite number.
    """
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    refuse({f"{where}: the score {value!r} is not a finite number. {advice}.": not math.isfinite(score)})
    return score
