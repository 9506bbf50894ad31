"""Pair classification: how well the cosine of two texts tells pairs that belong together from pairs that do not."""

from pathlib import Path
from typing import Self

import numpy as np
from sklearn.metrics import average_precision_score

from ..metrics import cosine_similarity_pairs
from ..pairs import ScoredPairs, read_scored_pairs
from .base import TaskResult, UserTask, distinct, fingerprints
from .reading import short_name
from .splitting import connected_groups, divide_groups


class PairsTask(UserTask):
    """Rank pairs of texts by their cosine; pairs labelled 1 should come before pairs labelled 0.

    Args:
        source (`str`): The file.
        name (`str`): Short name.
        pairs (`ScoredPairs`): The pairs, with scores 0 and 1.

    Raises:
        ValueError: If a score is neither 0 nor 1, or all scores are the same.
    """

    kind = "pairs"
    metric = "average_precision"
    unit = "pair"

    def __init__(self, source: str, name: str, pairs: ScoredPairs):
        super().__init__(source, name)
        wrong = next((row for row, score in enumerate(pairs.scores) if score not in (0, 1)), None)
        if wrong is not None:
            raise ValueError(
                f"{source}: pair {wrong + 1} ({pairs.sentences1[wrong][:60]!r}, ...) has the label "
                f"{pairs.scores[wrong]:g}, which must be 0 or 1. Graded similarities are for --pairs."
            )
        if len(set(pairs.scores)) < 2:
            raise ValueError(
                f"{source}: all {len(pairs)} pair(s) have the label {pairs.scores[0]:g}. Average precision needs "
                "pairs of both labels."
            )
        self.pairs = pairs
        self.texts, positions = distinct(pairs.sentences1 + pairs.sentences2)
        self._first, self._second = positions[: len(pairs)], positions[len(pairs) :]

    def __len__(self) -> int:
        return len(self.pairs)

    def score(self, embeddings: np.ndarray) -> TaskResult:
        """Compute the average precision of the cosines; see [`UserTask.score`]."""
        predicted = cosine_similarity_pairs(embeddings[self._first], embeddings[self._second])
        gold = np.array(self.pairs.scores, dtype=np.int64)
        labelled = zip(self.pairs.sentences1, self.pairs.sentences2, map(str, gold), strict=True)
        details = {
            "protocol": "average precision of the cosine",
            "examples": len(gold),
            "positives": int(gold.sum()),
        }
        return TaskResult(
            {"average_precision": 100 * float(average_precision_score(gold, predicted))},
            {"similarity": predicted, "gold": gold, "unit": fingerprints(list(labelled))},
            details,
        )

    def _divide(self, share: float, seed: int) -> np.ndarray:
        texts = list(zip(self.pairs.sentences1, self.pairs.sentences2, strict=True))
        return divide_groups(connected_groups(texts), share, seed, self.source)

    def _select(self, units: np.ndarray, source: str) -> Self:
        pairs, rows = self.pairs, units.tolist()
        columns = ([column[row] for row in rows] for column in (pairs.sentences1, pairs.sentences2, pairs.scores))
        return type(self)(source, self.name, ScoredPairs(pairs.name, *columns))


def read_pairs(path: Path) -> PairsTask:
    """Read a pair classification task: `sentence1`, `sentence2`, `label`, in a layout of [`read_scored_pairs`].

    Args:
        path (`Path`): The file.

    Returns:
        `PairsTask`: The task.

    Raises:
        ValueError: If the path is a folder, the file is malformed, a label is neither 0 nor 1, or all labels are the
            same.
    """
    if path.is_dir():
        raise ValueError(f"{path}: is a folder. Name a file of pairs.")
    return PairsTask(str(path), short_name(path), read_scored_pairs(path))
