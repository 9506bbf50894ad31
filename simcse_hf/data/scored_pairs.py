"""Rows of two sentences and the score of their similarity, for objectives that learn from graded pairs."""

import math
from typing import Any, cast

from datasets import Dataset, Value

from .columns import resolve_dataset_columns

SCORE = "score"


def resolve_scored_pairs(dataset: Dataset, name: str = "the dataset") -> Dataset:
    """Select the two text columns and the score of a dataset.

    A dataset that is already tokenised (`input_ids`) is returned as it is. Rows with an empty text are dropped with a
    warning.

    Args:
        dataset (`datasets.Dataset`): A dataset with the column `score` and two columns of texts, such as `sentence1`
            and `sentence2`; see [`~data.columns.resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.

    Returns:
        `datasets.Dataset`: The columns `sent0`, `sent1` and `score`, a float.

    Raises:
        ValueError: If the column `score` is missing, a score is not a finite number, or the text columns are unclear.
    """
    columns = dataset.column_names
    if "input_ids" in columns:
        return dataset
    if SCORE not in columns:
        raise ValueError(
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {', '.join(map(repr, columns))}."
        )
    scores = []
    for number, value in enumerate(dataset.with_format(None)[SCORE], 1):
        try:
            score = float(cast(Any, value))
        except (TypeError, ValueError):
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(
                f"{name}, row {number}: the score {value!r} is not a finite number. Correct or remove the row."
            )
        scores.append(score)
    scored = dataset.remove_columns(SCORE).add_column(SCORE, scores)
    return resolve_dataset_columns(scored, name=name, expected_columns=2, keep=SCORE).cast_column(
        SCORE, Value("float64")
    )
