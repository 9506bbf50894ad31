"""Clustering: how well k-means of the embeddings recovers the labels."""

from pathlib import Path
from typing import Self

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score
from threadpoolctl import threadpool_limits

from .base import TaskResult, UserTask, fingerprints, unit_length
from .labelled import LabelledRows, read_labelled_rows
from .reading import short_name
from .splitting import divide_by_label

RESTARTS = 5


class ClusteringTask(UserTask):
    """Group texts by their embeddings, and compare the groups with their labels.

    The V-measure (Rosenberg and Hirschberg 2007) is the harmonic mean of homogeneity and completeness. It is the mean
    over k-means from five fixed seeds, with as many clusters as there are labels.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        rows (`LabelledRows`): The texts and their labels.

    Raises:
        ValueError: If there is one label only.
    """

    kind = "clustering"
    metric = "v_measure"

    def __init__(self, source: str, name: str, rows: LabelledRows):
        super().__init__(source, name)
        if len(set(rows.labels)) < 2:
            raise ValueError(
                f"{source}: all {len(rows)} row(s) have the label {rows.labels[0]!r}. Clustering needs at least two "
                "labels."
            )
        self.rows = rows
        self.texts = rows.texts

    def __len__(self) -> int:
        return len(self.rows)

    def score(self, embeddings: np.ndarray) -> TaskResult:
        """Run k-means and compute the mean V-measure; see [`UserTask.score`]."""
        names, gold = np.unique(self.rows.labels, return_inverse=True)
        x = unit_length(embeddings.astype(np.float32))
        # Several threads add up the centres in the order in which they finish, so the last digits would vary.
        with threadpool_limits(1, user_api="openmp"):
            clusters = np.stack(
                [KMeans(len(names), n_init=1, random_state=seed).fit_predict(x) for seed in range(RESTARTS)], axis=1
            )
        values = [100 * float(v_measure_score(gold, column)) for column in clusters.T]
        scores: dict[str, np.ndarray] = {
            "clusters": clusters.astype(np.int32),
            "gold": gold,
            "unit": fingerprints(list(zip(self.rows.texts, self.rows.labels, strict=True))),
        }
        details = {
            "protocol": f"k-means of unit embeddings into {len(names)} clusters, mean over {RESTARTS} seeds",
            "examples": len(self),
            "labels": len(names),
            "by_seed": values,
        }
        return TaskResult({"v_measure": float(np.mean(values))}, scores, details)

    def _divide(self, share: float, seed: int) -> np.ndarray:
        return divide_by_label(np.array(self.rows.labels), share, seed, least=1)

    def _select(self, units: np.ndarray, source: str) -> Self:
        return type(self)(source, self.name, self.rows.select(units.tolist()))


def read_clustering(path: Path) -> ClusteringTask:
    """Read a clustering task from a table with the columns `text` and `label`; training rows are left out."""
    rows, _ = read_labelled_rows(path)
    return ClusteringTask(str(path), short_name(path), rows)
