"""Groups labelled natural language inference pairs by their premise, for the objectives that read relations."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value
from transformers.utils import logging

from .nli import LABELS, describe_skipped, read_premises

logger = logging.get_logger(__name__)

#: At most how many positives and negatives of a premise a row takes; None: all.
_LIMITS = {"3p3n": (3, 3), "3all3n": (3, 3), "3palln": (3, None), "allpalln": (None, None)}

SAMPLINGS = ("pairs", *_LIMITS)


def build_nli_groups(
    source: str | Path | Dataset | Iterable[Mapping[str, Any]] | Sequence[str | Path],
    *,
    sampling: str = "allpalln",
    seed: int = 42,
) -> Dataset:
    """Builds rows of a premise and its hypotheses, which stay together however the rows are shuffled or shared out.

    The names of `sampling` are those of Table 2 of Liao 2021, arXiv:2106.04791. A positive is an entailed hypothesis
    of the row's premise, a negative a neutral or contradictory one:

    - `pairs`: each labelled pair is a row of its own. With the objective `softmax`, the "SBERT baseline".
    - `3p3n`: at most 3 positives and at most 3 negatives, drawn without replacement where there are more.
    - `3palln`: at most 3 positives, all negatives.
    - `allpalln`: all.
    - `3all3n`: the same as `3p3n`. The text does not explain this name; in the table it stands at lambda = 1.0 where
      `3p3n` stands at lambda = 0.5, before `3palln` and `allpalln`.

    The models "-SCL" are the objectives `supcon` and `softmax+supcon` on such rows. The baselines "3p3n-Augment" and
    "allpalln-Augment" are the objective `softmax`, pure cross-entropy, on the very same rows.

    The limits are on a premise's own hypotheses. In the loss, the hypotheses of the other premises in the batch are
    negatives besides, as after the paper's definition; its text can also be read so that 3 negatives are drawn from
    all of these together.

    Premises, duplicates and pairs without a label are treated as in `build_nli_triplets`. Left out as well, with a
    count in the log, unless sampling is `pairs`: a premise without a positive. Rows stand in the order in which the
    premises were first seen, and in a row positives come before negatives, each in the order in which they were seen.

    Args:
        source: As in `build_nli_triplets`.
        sampling: One of the names above.
        seed: Of the draws.

    Returns:
        A dataset with the columns `texts`, the premise and then its hypotheses, and `relations`, for each hypothesis
        0 entailment, 1 neutral or 2 contradiction.

    Raises:
        DataFileNotFoundError: A file does not exist (also a ValueError).
        ValueError: An unknown sampling, a column is missing, a label is unknown, or nothing is left; the message names
            the file and the line or row.
    """
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}.")
    skipped: Counter[str] = Counter()
    premises = read_premises(source, skipped)
    generator = random.Random(seed)
    texts, relations = [], []
    for premise in premises:
        labelled = [(text, LABELS.index(*labels)) for text, labels in premise.hypotheses.items() if len(labels) == 1]
        positives = [each for each in labelled if each[1] == 0]
        if sampling == "pairs":
            rows = [[each] for each in labelled]
        elif positives:
            negatives = [each for each in labelled if each[1] != 0]
            at_most = zip((positives, negatives), _LIMITS[sampling], strict=True)
            rows = [[each for group, limit in at_most for each in _draw(group, limit, generator)]]
        else:
            skipped["premises without an entailed hypothesis"] += 1
            rows = []
        texts += [[premise.text, *(text for text, _ in row)] for row in rows]
        relations += [[relation for _, relation in row] for row in rows]
    left_out = describe_skipped(skipped)
    if not texts:
        raise ValueError(f"no row could be built from {len(premises)} premise(s); left out: {left_out}.")
    logger.info(
        "%d rows of up to %d hypotheses from %d premises; left out: %s.",
        len(texts),
        max(map(len, relations)),
        len(premises),
        left_out,
    )
    return Dataset.from_dict(
        {"texts": texts, "relations": relations},
        features=Features({"texts": List(Value("string")), "relations": List(Value("int64"))}),
    )


def _draw(group: list, limit: int | None, generator: random.Random) -> list:
    if limit is None or len(group) <= limit:
        return group
    return [group[index] for index in sorted(generator.sample(range(len(group)), limit))]
