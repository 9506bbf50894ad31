"""Pair classification: how well the cosine of two texts tells pairs that belong together from pairs that do not."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray
from sklearn.metrics import average_precision_score

from ..groups import distinct
from ..metrics import cosine_similarity_pairs
from ..sts import read_scored_pairs
from .base import TaskResult, UserTask, fingerprints, short_name

Pair = tuple[str, str, float]


class PairsTask(UserTask):
    """Rank pairs of texts by their cosine; pairs labelled 1 should come before pairs labelled 0.

    Args:
        source (`str`): The file.
        name (`str`): Short name.
        units (`list[tuple[str, str, float]]`): The pairs, with labels 0 and 1.

    Raises:
        ValueError: If a label is neither 0 nor 1, or all labels are the same.
    """

    kind = "pairs"
    metric = "average_precision"
    unit = "pair"

    def _prepare(self) -> None:
        for number, (text, _, label) in enumerate(self.units, start=1):
            if label not in (0, 1):
                raise ValueError(
                    f"{self.source}: pair {number} ({text[:60]!r}, ...) has the label {label:g}, which must be 0 or "
                    "1. Graded similarities are for --pairs."
                )
        first, second, labels = zip(*self.units, strict=True)
        if len(set(labels)) < 2:
            raise ValueError(
                f"{self.source}: all {len(labels)} pair(s) have the label {labels[0]:g}. Average precision needs "
                "pairs of both labels."
            )
        self.texts, self._positions = distinct([*first, *second])

    def linking_texts(self, unit: Pair) -> Sequence[str]:
        """Return both texts of a pair."""
        return unit[:2]

    def score(self, embeddings: ndarray, similarity: str = "cosine") -> TaskResult:
        """Compute the average precision of the similarities; see [`UserTask.score`]."""
        first, second = np.split(embeddings[self._positions], 2)
        predicted = cosine_similarity_pairs(first, second, similarity)
        gold = np.array([label for *_, label in self.units], dtype=np.int64)
        marked = [(first, second, f"{label:g}") for first, second, label in self.units]
        units = fingerprints(marked)
        return TaskResult(
            {"average_precision": 100 * float(average_precision_score(gold, predicted))},
            {"similarity": predicted, "gold": gold, "unit": units},
            {
                "protocol": f"average precision of the {similarity}",
                "examples": len(gold),
                "positives": int(gold.sum()),
            },
        )


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
    pairs = read_scored_pairs(path)
    units = list(zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True))
    return PairsTask(str(path), short_name(path), units)
