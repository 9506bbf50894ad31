"""Select the texts, and scores, of data sets in memory."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset, is_caching_enabled
from transformers.utils import logging

from .columns import SCORE, quote
from .table import Row, Table
from .table_dataset import dataset_of_tables, is_resolved, mark_resolved, table_cleaners

logger = logging.get_logger(__name__)


def apply_transform(dataset: Dataset) -> Dataset:
    """Return the rows that a dataset shows, which `set_transform` may have changed."""
    if dataset.format["type"] != "custom":
        return dataset
    logger.warning(
        "The transform of a dataset is applied once, before training: what it draws stays the same in all epochs."
    )
    names = dataset.column_names
    shown = dataset.map(lambda rows: rows, batched=True, remove_columns=names, load_from_cache_file=False)
    return shown.with_format(None)


def dataset_table(dataset: Dataset, name: str) -> Table:
    """Return the rows of a dataset as a table."""
    dataset = apply_transform(dataset).with_format(None)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        for batch in dataset.select_columns(list(columns)).iter(1000):
            for cells in zip(*batch.values(), strict=True):
                number += 1
                yield number, cells

    return Table(name, dataset.column_names, rows, "memory", "row")


def resolve_dataset_columns(
    dataset: Dataset,
    columns: Sequence[str] | None = None,
    *,
    name: str = "the dataset",
    expected_columns: int | None = None,
) -> Dataset:
    """Select the text columns of a dataset and name them `sent0`, `sent1`, `sent2`, ... in the order of their parts.

    A dataset that is already tokenized (`input_ids`) or grouped (`texts` and `relations`) is returned as it is, and so
    is one that was resolved before. Rows with an empty cell are dropped with a warning. A cell may hold a list: each
    positive of a list becomes a row of its own, and negatives of a list become columns. A row may have fewer negatives
    than others; its last columns are empty then.

    Args:
        dataset (`datasets.Dataset`): The dataset.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.
        expected_columns (`int`, *optional*): How many texts a row must have; see [`resolve_columns`].

    Returns:
        `datasets.Dataset`: The dataset with string columns only.

    Raises:
        ValueError: If the dataset has no rows, its columns are unclear or hold no strings, or every row has an empty
            cell.
    """
    if "input_ids" not in dataset.column_names:
        dataset = apply_transform(dataset)
    column_names = set(dataset.column_names)
    if "input_ids" in column_names or {"texts", "relations"} <= column_names:
        return dataset
    if columns is None and is_resolved(dataset) and expected_columns in (None, len(column_names)):
        return dataset
    is_on_disk = dataset.cache_files and is_caching_enabled()
    content = [dataset._fingerprint] if is_on_disk else []
    table = dataset_table(dataset, name)
    return dataset_of_tables([table], content, columns=columns, expected_columns=expected_columns)


def resolve_scored_pairs(dataset: Dataset, name: str = "the dataset") -> Dataset:
    """Select the two text columns and the score of a dataset.

    A dataset that is already tokenized (`input_ids`) is returned as it is. Rows with an empty text are dropped with a
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
    dataset = apply_transform(dataset)
    columns = dataset.column_names
    if "input_ids" in columns or (is_resolved(dataset) and SCORE in columns):
        return dataset
    if SCORE not in columns:
        raise ValueError(
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {quote(columns)}."
        )
    table = dataset_table(dataset.select_columns([column for column in columns if column != SCORE]), name)
    [cleaner] = table_cleaners([table], None, expected_columns=2)
    texts = []
    scores = []
    values = dataset.with_format(None)[SCORE]
    for (number, cells), value in zip(table.rows(cleaner.columns), values, strict=True):
        score = parse_score(value, table.at(number), "Correct or remove the row")
        pairs = cleaner.clean(number, cells)
        texts += pairs
        scores += [score] * len(pairs)
    cleaner.check_any()
    cleaner.log()
    check_scores(scores, name)
    first, second = zip(*texts, strict=True)
    return mark_resolved(Dataset.from_dict({"sent0": first, "sent1": second, SCORE: scores}))


def check_scores(scores: Sequence[float], name: str) -> None:
    """Warn of scores of -1 among others that are not negative, because they often mean that there is none."""
    missing = list(scores).count(-1)
    if missing and missing == sum(score < 0 for score in scores):
        logger.warning(
            f"{name}: {missing} of {len(scores)} scores are -1, which counts as the lowest score. If it means that "
            "there is none, remove these rows."
        )


def parse_score(
    value: Any,
    where: str,
    advice: str = "Correct it, or leave it blank to skip the row",
) -> float:
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
    if not math.isfinite(score):
        raise ValueError(f"{where}: the score {value!r} is not a finite number. {advice}.")
    return score
