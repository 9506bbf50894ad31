"""Rows of premises and labelled hypotheses, for the objectives that read relations."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from transformers.utils import logging

from .nli import LABELS, describe_skipped, describe_source, read_premises

logger = logging.get_logger(__name__)

SAMPLINGS = ("pairs", "premises")


def build_nli_groups(
    source: str | Path | Dataset | Iterable[Mapping[str, Any]] | Sequence[str | Path], *, sampling: str = "pairs"
) -> Dataset:
    """Build rows of a premise and its labelled hypotheses.

    - `pairs`: each labelled pair is a row, and the pairs of a premise are adjacent. This is the data of Liao 2021,
      arXiv:2106.04791, whose batches are 64 pairs in this order: train with `train_sampling_strategy="sequential"`
      (the default of the training scripts), or the pairs of a premise end up in different batches.
    - `premises`: a premise and all its hypotheses are one row, which stays together however the rows are shuffled or
      distributed over processes. A batch then has about 3 times as many pairs as rows.

    The models "3p3n", "3palln" and "allpalln" of Table 2 have the same rows. They differ in the options
    `max_positives` and `max_negatives` of the objectives `supcon` and `softmax+supcon`, and the baselines "-Augment"
    in the option `augment` of `softmax`.

    Premises, duplicates and pairs without a label are treated as in `build_nli_triplets`. Rows stand in the order in
    which the premises were first seen. In a row of `premises`, entailed hypotheses come first.

    Args:
        source (`str`, `Path`, `Dataset` or `Iterable`): See `build_nli_triplets`.
        sampling (`str`, *optional*, defaults to `"pairs"`): `"pairs"` or `"premises"`.

    Returns:
        `Dataset`: The column `texts` has the premise and then its hypotheses. The column `relations` has, for each
            hypothesis, 0 for entailment, 1 for neutral or 2 for contradiction.

    Raises:
        DataFileNotFoundError: If a file does not exist (also a ValueError).
        ValueError: If the sampling is unknown, a column is missing, a label is unknown, or nothing is left. The
            message names the file and the line or row.
    """
    if sampling not in SAMPLINGS:
        raise ValueError(
            f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}. For 3p3n, 3palln and allpalln of Liao "
            "2021 set the objective's options max_positives and max_negatives"
        )
    skipped: Counter[str] = Counter()
    premises = read_premises(source, skipped)
    texts, relations = [], []
    for premise in premises:
        labelled = [
            (text, LABELS.index(next(iter(labels)))) for text, labels in premise.hypotheses.items() if len(labels) == 1
        ]
        if sampling == "pairs":
            rows = [[pair] for pair in labelled]
        else:
            rows = [sorted(labelled, key=lambda pair: pair[1] != 0)] if labelled else []
        texts += [[premise.text, *(text for text, _ in row)] for row in rows]
        relations += [[relation for _, relation in row] for row in rows]
    left_out = describe_skipped(skipped)
    if not texts:
        raise ValueError(
            f"{describe_source(source)}: no row could be built from {len(premises)} premise(s); left out: {left_out}."
        )
    logger.info(f"Built {len(texts)} rows from {len(premises)} premises; left out: {left_out}.")
    return Dataset.from_dict(
        {"texts": texts, "relations": relations},
        features=Features({"texts": List(Value("string")), "relations": List(Value("int64"))}),
    )
