"""Classification: a linear probe and nearest neighbours on frozen embeddings."""

from collections import Counter
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers.utils import logging

from .base import TaskResult, UserTask, distinct, fingerprints, unit_length
from .labelled import LabelledRows, read_labelled_rows
from .reading import short_name
from .splitting import divide_by_label

logger = logging.get_logger(__name__)

FOLDS = 5
SEED = 0
NEIGHBOURS = 5
# Standardised features make the probe independent of the scale of a model's embeddings. On Banking77, with 20 to 40
# rows of each label and 384 dimensions, C = 0.1 gives the best accuracy; 0.01 and 1 are less than one point below.
PROBE_C = 0.1
PROBE_ITERATIONS = 300
# A fifth of the default's time; Banking77's accuracy changes by 0.03.
PROBE_TOLERANCE = 1e-3


class ClassificationTask(UserTask):
    """Predict the label of a text from its embedding.

    With training rows, a classifier is fitted on them and scored on the other rows. Without, each row is scored by a
    classifier that was fitted on the other folds of a stratified division into five.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        rows (`LabelledRows`): The scored rows.
        train (`LabelledRows`, *optional*): The training rows.

    Raises:
        ValueError: If there is one label only, a label without training rows, or, without training rows, a label with
            a single row.
    """

    kind = "classification"
    metric = "accuracy"

    def __init__(self, source: str, name: str, rows: LabelledRows, train: LabelledRows | None = None):
        super().__init__(source, name)
        self.rows, self.train = rows, train
        counts = Counter(rows.labels)
        if len(counts) < 2:
            raise ValueError(
                f"{source}: all {len(rows)} row(s) have the label {next(iter(counts), None)!r}. Classification needs "
                "at least two labels."
            )
        if train is None:
            label, fewest = min(counts.items(), key=lambda item: (item[1], item[0]))
            if fewest < 2:
                raise ValueError(
                    f"{source}: the label {label!r} has one row, which cannot be both trained on and scored. Add rows "
                    "of this label, remove it, or give training rows (a column 'split', or a folder with train.csv "
                    "and test.csv)."
                )
            self.folds = min(FOLDS, fewest)
        elif unseen := sorted(set(counts) - set(train.labels)):
            raise ValueError(
                f"{source}: {len(unseen)} label(s) of the test rows, such as {unseen[0]!r}, have no training row."
            )
        train_texts = train.texts if train is not None else []
        self.texts, positions = distinct(rows.texts + train_texts)
        self._test_at, self._train_at = positions[: len(rows)], positions[len(rows) :]

    def __len__(self) -> int:
        return len(self.rows)

    def score(self, embeddings: np.ndarray) -> TaskResult:
        """Fit the classifiers and compute their accuracies; see [`UserTask.score`]."""
        names, gold = np.unique(self.rows.labels, return_inverse=True)
        x = unit_length(embeddings.astype(np.float32))
        predicted = {"accuracy": np.empty(len(gold), dtype=object), "knn_accuracy": np.empty(len(gold), dtype=object)}
        test, labels = x[self._test_at], np.array(self.rows.labels, dtype=object)
        if self.train is not None:
            parts = [(x[self._train_at], np.array(self.train.labels, dtype=object), np.arange(len(gold)))]
        else:
            folds = StratifiedKFold(self.folds, shuffle=True, random_state=SEED).split(test, gold)
            parts = [(test[train], labels[train], held) for train, held in folds]
        for train_x, train_y, held in parts:
            for metric, classifier in (("accuracy", _probe()), ("knn_accuracy", _neighbours(len(train_y)))):
                predicted[metric][held] = classifier.fit(train_x, train_y).predict(test[held])
        correct = {metric: guesses == labels for metric, guesses in predicted.items()}
        scores = {
            "correct": correct["accuracy"],
            "gold": gold,
            "unit": fingerprints(list(zip(self.rows.texts, self.rows.labels, strict=True))),
        }
        return TaskResult(
            {metric: 100 * float(hits.mean()) for metric, hits in correct.items()}, scores, self._details(len(names))
        )

    def _details(self, labels: int) -> dict[str, Any]:
        if self.train is not None:
            protocol = f"fitted on {len(self.train)} training rows"
        else:
            protocol = f"stratified {self.folds}-fold cross-validation"
        return {
            "protocol": f"{protocol}; logistic regression (C = {PROBE_C}) on standardised unit embeddings, and "
            f"{NEIGHBOURS} nearest neighbours by cosine, weighted by 1 / (1 - cosine)",
            "examples": len(self),
            "train_examples": None if self.train is None else len(self.train),
            "labels": labels,
        }

    def _divide(self, share: float, seed: int) -> np.ndarray:
        return divide_by_label(np.array(self.rows.labels), share, seed, least=2 if self.train is None else 0)

    def _select(self, units: np.ndarray, source: str) -> Self:
        return type(self)(source, self.name, self.rows.select(units.tolist()), self.train)


def _probe() -> Any:
    return make_pipeline(
        StandardScaler(), LogisticRegression(C=PROBE_C, max_iter=PROBE_ITERATIONS, tol=PROBE_TOLERANCE)
    )


def _neighbours(rows: int) -> KNeighborsClassifier:
    return KNeighborsClassifier(min(NEIGHBOURS, rows), metric="cosine", weights="distance")


def read_classification(path: Path) -> ClassificationTask:
    """Read a classification task from a table with the columns `text` and `label`; see [`read_labelled_rows`]."""
    rows, train = read_labelled_rows(path)
    if train is not None:
        known = set(train.texts)
        shared = sum(text in known for text in rows.texts)
        if shared:
            logger.warning(
                f"{path}: {shared} of {len(rows)} test texts also occur among the training rows, which favours the "
                "nearest neighbours."
            )
    return ClassificationTask(str(path), short_name(path), rows, train)
