"""Classification and clustering of labelled texts: a table, or a folder with a table for each split."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy import ndarray
from transformers.utils import logging

from ...data.columns import find_parts, first_few, is_list
from ...data.read import names_of_classes, open_one
from ...data.table import Table
from ...retrieval.exact import unit_length
from ...runtime.errors import DataError
from ..bootstrap import counted_macro_f1
from ..embeddings import SentenceEmbeddings
from .base import Ranker, Task, TaskResult, checked_text, file_of, short_name

logger = logging.get_logger(__name__)

FOLDS = 5
SPLIT_SEED = 0
NEIGHBOURS = 5
# Standardised features make the probe independent of the scale of a model's embeddings. On Banking77, with 20 to 40
# rows of each label and 384 dimensions, C = 0.1 gives the best accuracy; 0.01 and 1 are less than one point below.
PROBE_C = 0.1
PROBE_ITERATIONS = 300
# A fifth of the default's time; Banking77's accuracy changes by 0.03.
PROBE_TOLERANCE = 1e-3
RESTARTS = 5


class LabelledTask(Task):
    """A task on rows of a text and its label, in which no text occurs twice; it needs at least two labels.

    Where texts may have several labels, the label of each is a tuple of them.
    """

    #: Rows of a label that a part of a split needs.
    least = 1

    @classmethod
    def read(cls, path: Path | Table, label_separator: str | None) -> Task:
        """Read a table with the columns `text` and `label`, or `labels`; see [`read_labelled_rows`]."""
        rows, train = read_labelled_rows(path, label_separator)
        known = {text for text, _ in train or []}
        shared = sum(text in known for text, _ in rows)
        if shared and cls.kind == "classification":
            logger.warning(
                f"{path}: {shared} of {len(rows)} test texts also occur among the training rows, which favours the "
                "nearest neighbours."
            )
        return cls(str(path), short_name(path), rows, train)

    def __post_init__(self) -> None:
        self.links = [[text] for text, _ in self.units]
        self.roles = {None: [text for text, _ in self.units]}
        self.has_several = isinstance(self.units[0][1], tuple)
        labels = chain.from_iterable(self._labels_of(row) for row in self.units)
        self.known = sorted(set(labels))
        if self.has_several and self.kind != "classification":
            raise DataError(
                f"{self.source}: texts have several labels, which {self.kind} does not read: give each text one "
                "label, or use the kind classification."
            )
        if not self.has_several and len(self.known) < 2:
            raise DataError(
                f"{self.source}: all {len(self)} scored rows have the label {self.known[0]!r}. Add others."
            )

    def _labels_of(self, row: tuple) -> tuple:
        return row[1] if self.has_several else row[1:]

    def _labelled_result(self, metrics: dict, scores: dict, **details: object) -> TaskResult:
        if not self.has_several:
            scores = {"gold": np.searchsorted(self.known, [label for _, label in self.units]), **scores}
        marks = [(row[0], *self._labels_of(row)) for row in self.units]
        return self._result(metrics, scores, marks, labels=len(self.known), **details)

    def _divide(self, share: float, seed: int) -> ndarray:
        """Divide the rows at random within each label; a label with too few rows goes to one part as a whole."""
        if self.has_several:
            return super()._divide(share, seed)
        random = np.random.default_rng(seed)
        labels = np.array([label for _, label in self.units])
        first = np.zeros(len(self), dtype=bool)
        for label in self.known:
            rows = random.permutation(np.flatnonzero(labels == label))
            # A fractional row goes to the first part with the probability of the fraction, so that shares are met.
            count = int(share * len(rows) + random.random())
            if len(rows) < 2 * self.least:
                count = len(rows) if random.random() < share else 0
            else:
                count = min(max(count, self.least), len(rows) - self.least)
            first[rows[:count]] = True
        return first


class ClassificationTask(LabelledTask):
    """Predict the label of a text, or its labels, from its embedding.

    With training rows, classifiers are fitted on them and scored on the other rows. Without, each row is scored by
    classifiers that were fitted on the other folds of a division into five, which is stratified by label.

    Where texts may have several labels, or none, each label has a logistic regression of its own, with balanced
    weights, and a text gets the labels that have more than half of the weight of its nearest neighbours. The folds are
    not stratified, and the score is the mean of F1 over the labels of the scored rows.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        units (`list[tuple[str, str]]`): The scored rows.
        shared (`list[tuple[str, str]]`, *optional*): The training rows.

    A label that has no training row, or, without training rows, a single row, is left out with a warning.

    Raises:
        ValueError: If fewer than two labels are left, or none of several labels.
    """

    kind = "classification"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "knn_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        # 1. The labels that a classifier can be fitted to
        fitted = self.units if self.shared is None else self.shared
        counts = Counter(chain.from_iterable(self._labels_of(row) for row in fitted))
        needed = 2 if self.shared is None else 1
        rare = [label for label in self.known if counts[label] < needed]
        needs = f"{self.source}: a label needs {needed} row(s) to fit its classifier"
        if len(rare) == len(self.known):
            raise DataError(
                f"{needs}, and none has as many. Add rows, or give training rows (a column 'split', or a folder with "
                "train.csv and test.csv)."
            )
        if rare:
            logger.warning(f"{needs}. Left out {len(rare)} of {len(self.known)} labels: {first_few(rare)}.")
            units = []
            for text, label in self.units:
                if self.has_several:
                    units.append((text, tuple(each for each in label if each not in rare)))
                elif label not in rare:
                    units.append((text, label))
            self.units = units
            super().__post_init__()

        # 2. All rows
        self.rows = [*self.units, *(self.shared or [])]
        self.roles = {None: [text for text, _ in self.rows]}
        if self.has_several:
            self.metrics = ("macro_f1", "knn_macro_f1")  # type: ignore[misc]
        fewest = min(counts[label] for label in self.known)
        self.folds = min(FOLDS, len(self.rows) if self.has_several else fewest)
        self.least = 2 if self.shared is None else 0

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Fit the classifiers, and compute their accuracies or mean F1; see [`Task.score`]."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import KFold, StratifiedKFold
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        # 1. The classifiers, and the rows that fit and test them
        x = unit_length(embeddings([text for text, _ in self.rows]).astype(np.float32))
        settings = f"C = {PROBE_C}"
        options = {"C": PROBE_C, "max_iter": PROBE_ITERATIONS, "tol": PROBE_TOLERANCE}
        if self.has_several:
            y = np.array([[label in labels for label in self.known] for _, labels in self.rows])
            linear = OneVsRestClassifier(LogisticRegression(class_weight="balanced", **options))
            settings += ", balanced class weights"
        else:
            y = np.array([label for _, label in self.rows], dtype=object)
            linear = LogisticRegression(**options)
        if self.shared is None:
            divide = KFold if self.has_several else StratifiedKFold
            parts = divide(self.folds, shuffle=True, random_state=SPLIT_SEED).split(x, y)
            fitted = f"{'' if self.has_several else 'stratified '}{self.folds}-fold cross-validation"
        else:
            scored, train = np.split(np.arange(len(x)), [len(self)])
            parts = [(train, scored)]
            fitted = f"fitted on {len(train)} training rows"

        # 2. What they predict
        predicted = np.empty((2, len(self), *y.shape[1:]), dtype=y.dtype)
        for train, held in parts:
            nearest = KNeighborsClassifier(min(NEIGHBOURS, len(train)), metric="cosine", weights="distance")
            for row, model in enumerate((make_pipeline(StandardScaler(), linear), nearest)):
                model.fit(x[train], y[train])
                predicted[row, held] = model.predict(x[held])

        # 3. The scores
        gold = y[: len(self)]
        if self.has_several:
            once = np.ones((1, len(self)), dtype=int)
            values = [float(counted_macro_f1(each, gold, once)[0]) for each in predicted]
            scores = {"assigned": predicted[0], "labels": gold}
        else:
            correct = predicted == gold
            values = correct.mean(axis=1).tolist()
            scores = {"correct": correct[0]}
        return self._labelled_result(
            {metric: 100 * value for metric, value in zip(self.metrics, values, strict=True)},
            scores,
            protocol=f"{fitted}; logistic regression ({settings}) on standardised unit embeddings, and "
            f"{NEIGHBOURS} nearest neighbours by cosine, weighted by 1 / (1 - cosine)",
            train_examples=None if self.shared is None else len(self.shared),
        )


class KNNTask(ClassificationTask):
    """Give each text the label of the text that is nearest to it, and count the labels that are right.

    With training rows, the nearest one of them counts, and without the nearest one of the other rows. A text itself
    never counts. Texts that are equally near are ranked as in reranking: the last one by its letters counts.
    """

    kind = "knn"
    metrics = ("accuracy",)
    needs_vectors = False

    def score(self, embeddings: Ranker) -> TaskResult:
        """Find the nearest text of each, and compute the accuracy; see [`Task.score`]."""
        labels = dict(self.shared or self.units)
        texts = [text for text, _ in self.units]
        rankings = embeddings.rank(texts, {text: text for text in labels}, 2, (None, None))
        correct = np.empty(len(self), dtype=bool)
        for row, ((text, label), ranking) in enumerate(zip(self.units, rankings, strict=True)):
            nearest = next(other for other in ranking if other != text)
            correct[row] = labels[nearest] == label
        return self._labelled_result(
            {"accuracy": 100 * float(correct.mean())},
            {"correct": correct},
            protocol=f"label of the nearest of {len(labels)} texts by {embeddings.similarity}",
        )


class ClusteringTask(LabelledTask):
    """Group texts by their embeddings, and compare the groups with their labels.

    The V-measure (Rosenberg and Hirschberg 2007) is the harmonic mean of homogeneity and completeness. It is the mean
    over k-means from five fixed seeds, with as many clusters as there are labels.
    """

    kind = "clustering"
    metrics = ("v_measure",)
    hub_type = "clustering"

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Run k-means and compute the mean V-measure; see [`Task.score`]."""
        from sklearn.cluster import KMeans
        from sklearn.metrics import v_measure_score
        from threadpoolctl import threadpool_limits

        x = unit_length(embeddings(self.texts).astype(np.float32))
        # Several threads add up the centres in the order in which they finish, so the last digits would vary.
        clusters = []
        with threadpool_limits(1, user_api="openmp"):
            for seed in range(RESTARTS):
                kmeans = KMeans(len(self.known), n_init=1, random_state=seed)
                clusters.append(kmeans.fit_predict(x))
        labels = [label for _, label in self.units]
        values = [100 * float(v_measure_score(labels, each)) for each in clusters]
        return self._labelled_result(
            {"v_measure": float(np.mean(values))},
            {"clusters": np.stack(clusters, axis=1).astype(np.int32)},
            protocol=f"k-means of unit embeddings into {len(self.known)} clusters, mean over {RESTARTS} seeds",
            by_seed=values,
        )


def read_labelled_rows(path: Path | Table, separator: str | None) -> tuple:
    """Read the scored rows of a classification or clustering task, and its training rows if it has some.

    A folder holds `test.*` and possibly `train.*`. A table with a column `split` is divided by its values `train` and
    `test`. Any other table has scored rows only. A row that repeats the text of an earlier row is left out.

    Args:
        path (`Path` or `Table`): The file, folder or table.
        separator (`str`, *optional*): What stands between several labels in a cell, if there may be several.

    Returns:
        `tuple[list, list | None]`: The scored rows and the training rows, each a text and a label; or a text and a
            tuple of any number of labels, if there is a separator or a cell is a list.

    Raises:
        DataError: If a file or column is missing, a text or label is empty, or there are no rows.
    """
    files = {"test": path}
    if isinstance(path, Path) and path.is_dir():
        refusal = "the folder has no test.csv (or .tsv, .jsonl, .parquet). Name a file instead."
        files = {"test": file_of(path, "test", refusal), "train": file_of(path, "train")}
    splits: dict = {}
    has_several = False
    for name, file in files.items():
        if file is None:
            continue
        table = open_one(file, None)
        roles = ["text", "label"]
        if file == path and find_parts(table.columns, ["split"]):
            roles.append("split")
        rows = None
        repeated = 0
        relabelled = 0
        for where, (cell, *others) in table.parts(roles):
            text = checked_text(cell, where)
            labels, *split = (names_of_classes(other, where, separator) for other in others)
            is_listed = separator is not None or is_list(others[0])
            has_several |= is_listed
            if not (labels or is_listed) or [] in split:
                raise DataError(f"{where}: the label is empty. Fill or remove the row.")
            label = tuple(sorted(labels))
            rows = splits.setdefault(split[0][0].lower() if split else name, {})
            if text in rows:
                repeated += 1
                relabelled += rows[text] != label
            rows.setdefault(text, label)
        if rows is None:
            raise DataError(f"{file}: the file holds no rows.")
        if repeated:
            logger.warning_once(  # several tasks may read one file
                f"{file}: left out {repeated} row(s) that repeat the text of an earlier row, {relabelled} with "
                "another label."
            )
    if "test" not in splits:
        raise DataError(f"{path}: the column 'split' holds {', '.join(map(repr, splits))}, but no 'test'.")
    unused = splits.keys() - {"train", "test"}
    if unused:
        logger.warning(f"{path}: rows of the split(s) {', '.join(sorted(unused))} are not used.")
    if not has_several:
        splits = {name: {text: label for text, (label,) in rows.items()} for name, rows in splits.items()}
    train = list(splits["train"].items()) if "train" in splits else None
    return list(splits["test"].items()), train
