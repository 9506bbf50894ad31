"""SentEval's three classifier protocols: nested folds, folds with a test set, and fixed splits."""

from dataclasses import dataclass

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
from .transfer_data import LabelledTexts
from .vectors import SentenceVectors

CLASSIFIER_CONFIGS = {"test": TEST_CONFIG, "dev": FAST_CONFIG, "fasttest": FAST_CONFIG}


@dataclass
class TransferScore:
    """What a protocol found.

    Args:
        dev_accuracy (`float`): Accuracy on held-out training examples (or the dev split), times 100.
        accuracy (`float`): Accuracy on the test examples, times 100.
        labels (`array` of shape `(n,)`): Classes of the test examples.
        correct (`array` of shape `(n,)`): Whether each was classified right.
    """

    dev_accuracy: float
    accuracy: float
    labels: np.ndarray
    correct: np.ndarray


def pair_features(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """SentEval's features of a pair of vectors of shape `(n, dim)`: [|a - b|, a * b], of shape `(n, 2 dim)`."""
    return np.concatenate([np.abs(a - b), a * b], axis=1)


def score_transfer_task(
    task: str,
    splits: dict[str, LabelledTexts],
    vectors: SentenceVectors,
    mode: str,
    device: str | None = None,
    seed: int = SEED,
) -> tuple[dict, TransferScore]:
    """Scores a transfer task by SentEval's protocol.

    Args:
        task (`str`): Name of the task.
        splits (`dict[str, LabelledTexts]`): Its examples, as `read_transfer_task` returns them.
        vectors ([`SentenceVectors`]): Vectors of their texts.
        mode (`str`): `test` (10 folds, Adam, batch 64, tenacity 5, epoch size 4), or `dev` or `fasttest` (5 folds,
            RMSprop, batch 128, tenacity 3, epoch size 2), as the reference sets SentEval.
        device (`str`, *optional*): Where to train the classifiers; a GPU where there is one.
        seed (`int`, *optional*, defaults to 1111): Seed of the folds, starts and orders.

    Returns:
        `tuple[dict, TransferScore]`: The result (`accuracy`, `dev_accuracy`, for MRPC `f1`, times 100, and the number
        of `examples` per split), and the details.

    Raises:
        ValueError: Naming the task, if the examples cannot be folded.
    """
    config = CLASSIFIER_CONFIGS[mode]
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    data = {split: _features(examples.sorted_by_length(), vectors) for split, examples in splits.items()}
    classes = 1 + max(int(y.max()) for _, y in data.values())

    def grid(l2=L2_GRID) -> LogisticRegressionGrid:
        return LogisticRegressionGrid(classes, config, l2, seed, device)

    try:
        if "test" not in data:
            score = _nested_folds(task, *data["train"], grid, config, seed)
        elif "dev" not in data:
            score = _folds_and_test(task, *data["train"], *data["test"], grid, config, seed)
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
    """F1 of class 1 among two classes, from the classes and whether each was found; 0 if 1 was never right."""
    hits = int((correct & (labels == 1)).sum())
    return 2 * hits / (2 * hits + int((~correct).sum())) if hits else 0.0


def _features(examples: LabelledTexts, vectors: SentenceVectors) -> tuple[np.ndarray, np.ndarray]:
    x = vectors(examples.texts)
    if examples.texts2 is not None:
        x = pair_features(x, vectors(examples.texts2))
    return x, np.asarray(examples.labels)


def _grid_accuracy(x, y, grid, folds: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Accuracy of each l2 weight over the folds, times 100 and to two digits: so SentEval breaks its ties."""
    accuracies = [grid().fit(x[train], y[train], (x[held], y[held])) for train, held in folds]
    return np.round(100 * np.mean(accuracies, axis=0), 2)


def _nested_folds(task, x, y, grid, config: ClassifierConfig, seed: int) -> TransferScore:
    """MR, CR, SUBJ, MPQA: outer folds give the test accuracy, inner folds of the rest choose the l2 weight."""
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


def _folds_and_test(task, x, y, test_x, test_y, grid, config: ClassifierConfig, seed: int) -> TransferScore:
    """TREC, MRPC: folds of the training split choose the l2 weight."""
    folds = tqdm(stratified_folds(y, config.folds, seed), desc=task, leave=False)
    accuracies = _grid_accuracy(x, y, grid, folds)
    best = grid((L2_GRID[accuracies.argmax()],))
    best.fit(x, y)
    correct = best.correct(test_x, test_y)[:, 0]
    return TransferScore(float(accuracies.max()), float(100 * correct.mean()), test_y, correct)


def _fixed_splits(data: dict[str, tuple[np.ndarray, np.ndarray]], grid) -> TransferScore:
    """SST2, SST5: the dev split chooses the l2 weight.

    SentEval fits the chosen one anew, with the same seed and data: that is the fit already made.
    """
    fitted = grid()
    accuracies = np.round(100 * fitted.fit(*data["train"], data["dev"]), 2)
    test_x, test_y = data["test"]
    correct = fitted.correct(test_x, test_y)[:, accuracies.argmax()]
    return TransferScore(float(accuracies.max()), float(100 * correct.mean()), test_y, correct)
