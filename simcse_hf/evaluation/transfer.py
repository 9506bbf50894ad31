"""SentEval's three protocols for transfer tasks: nested folds, folds with a test set, and fixed splits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from .classifier import (
    FAST_CONFIG,
    L2_GRID,
    SEED,
    TEST_CONFIG,
    ClassifierConfig,
    LogisticRegressionGrid,
    stratified_folds,
)
from .embeddings import SentenceEmbeddings
from .transfer_data import LabelledTexts

Examples = tuple[np.ndarray, np.ndarray]  # features (n, dim) and classes (n,)
Folds = Iterable[tuple[np.ndarray, np.ndarray]]  # training rows and held-out rows
Grid = Callable[..., LogisticRegressionGrid]  # of l2 weights

CLASSIFIER_CONFIGS = {"test": TEST_CONFIG, "dev": FAST_CONFIG, "fasttest": FAST_CONFIG}


@dataclass
class TransferScore:
    """The score of a transfer task.

    Args:
        dev_accuracy (`float`): Accuracy on held-out training examples, or on the dev split, times 100.
        accuracy (`float`): Accuracy on the test examples, times 100.
        labels (`numpy.ndarray`): Classes of the test examples, of shape `(n,)`.
        correct (`numpy.ndarray`): Whether each test example was classified correctly, of shape `(n,)`.
    """

    dev_accuracy: float
    accuracy: float
    labels: np.ndarray
    correct: np.ndarray


def pair_features(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return SentEval's features [|a - b|, a * b] of pairs of embeddings `(n, dim)`, of shape `(n, 2 dim)`."""
    return np.concatenate([np.abs(a - b), a * b], axis=1)


def score_transfer_task(
    task: str,
    splits: dict[str, LabelledTexts],
    embeddings: SentenceEmbeddings,
    mode: str,
    device: str | None = None,
    seed: int = SEED,
) -> tuple[dict[str, Any], TransferScore]:
    """Score a transfer task by SentEval's protocol.

    Args:
        task (`str`): Name of the task.
        splits (`dict[str, LabelledTexts]`): Its examples, as `read_transfer_task` returns them.
        embeddings (`SentenceEmbeddings`): Embeddings of their texts.
        mode (`str`): `"test"` (10 folds, Adam, batch 64, tenacity 5, epoch size 4), or `"dev"` or `"fasttest"` (5
            folds, RMSprop, batch 128, tenacity 3, epoch size 2), which are the reference's settings of SentEval.
        device (`str`, *optional*): Where to train the classifiers. Defaults to a GPU if there is one.
        seed (`int`, *optional*, defaults to `1111`): Seed of folds, starts and orders.

    Returns:
        `tuple[dict, TransferScore]`: The result (`accuracy`, `dev_accuracy` and, for MRPC, `f1`, times 100, and the
        number of `examples` in each split), and the details.

    Raises:
        ValueError: If the examples cannot be divided into folds. The message names the task.
    """
    config = CLASSIFIER_CONFIGS[mode]
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    data = {split: _features(examples.sorted_by_length(), embeddings) for split, examples in splits.items()}
    classes = 1 + max(int(y.max()) for _, y in data.values())

    def grid(l2: tuple[float, ...] = L2_GRID) -> LogisticRegressionGrid:
        return LogisticRegressionGrid(classes, config, l2, seed, device)

    try:
        if "test" not in data:
            score = _nested_folds(task, *data["train"], grid, config, seed)
        elif "dev" not in data:
            score = _folds_and_test(task, data["train"], data["test"], grid, config, seed)
        else:
            score = _fixed_splits(data, grid)
    except ValueError as error:
        raise ValueError(f"{task}: {error}") from error
    result = {
        "accuracy": score.accuracy,
        "dev_accuracy": score.dev_accuracy,
        "examples": {split: len(examples) for split, examples in splits.items()},
    }
    if task == "MRPC":
        result["f1"] = 100 * f1(score.labels, score.correct)
    return result, score


def f1(labels: np.ndarray, correct: np.ndarray) -> float:
    """Compute the F1 of class 1 of two classes from the classes and whether each prediction was correct."""
    hits = int((correct & (labels == 1)).sum())
    return 2 * hits / (2 * hits + int((~correct).sum())) if hits else 0.0


def _features(examples: LabelledTexts, embeddings: SentenceEmbeddings) -> Examples:
    x = embeddings(examples.texts)
    if examples.texts2 is not None:
        x = pair_features(x, embeddings(examples.texts2))
    return x, np.asarray(examples.labels)


def _grid_accuracy(x: np.ndarray, y: np.ndarray, grid: Grid, folds: Folds) -> np.ndarray:
    """Return the accuracy of each l2 weight over the folds, times 100 and rounded to two digits as in SentEval."""
    accuracies = [grid().fit(x[train], y[train], (x[held], y[held])) for train, held in folds]
    return np.round(100 * np.mean(accuracies, axis=0), 2)


def _nested_folds(
    task: str, x: np.ndarray, y: np.ndarray, grid: Grid, config: ClassifierConfig, seed: int
) -> TransferScore:
    """Score MR, CR, SUBJ or MPQA: outer folds give the test accuracy, and inner folds choose the l2 weight."""
    dev, test = [], []
    correct = np.empty(len(y), dtype=bool)
    for train, held in tqdm(stratified_folds(y, config.folds, seed), desc=task, leave=False):
        accuracies = _grid_accuracy(x[train], y[train], grid, stratified_folds(y[train], config.folds, seed))
        dev.append(accuracies.max())
        best = grid((L2_GRID[accuracies.argmax()],))
        best.fit(x[train], y[train])
        correct[held] = best.correct(x[held], y[held])[:, 0]
        test.append(100 * correct[held].mean())
    return TransferScore(float(np.mean(dev)), float(np.mean(test)), y, correct)


def _folds_and_test(
    task: str, train: Examples, test: Examples, grid: Grid, config: ClassifierConfig, seed: int
) -> TransferScore:
    """Score TREC or MRPC: folds of the training split choose the l2 weight."""
    (x, y), (test_x, test_y) = train, test
    folds = tqdm(stratified_folds(y, config.folds, seed), desc=task, leave=False)
    accuracies = _grid_accuracy(x, y, grid, folds)
    best = grid((L2_GRID[accuracies.argmax()],))
    best.fit(x, y)
    correct = best.correct(test_x, test_y)[:, 0]
    return TransferScore(float(accuracies.max()), float(100 * correct.mean()), test_y, correct)


def _fixed_splits(data: dict[str, Examples], grid: Grid) -> TransferScore:
    """Score SST2 or SST5: the dev split chooses the l2 weight."""
    # SentEval fits again with the best weight, but the same seed and data give the same fit.
    fitted = grid()
    accuracies = np.round(100 * fitted.fit(*data["train"], data["dev"]), 2)
    test_x, test_y = data["test"]
    correct = fitted.correct(test_x, test_y)[:, accuracies.argmax()]
    return TransferScore(float(accuracies.max()), float(100 * correct.mean()), test_y, correct)
