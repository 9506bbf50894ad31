"""Transfer tasks: SentEval's labelled texts, and its protocols of nested folds, folds with a test set, and splits."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from tqdm.auto import tqdm

from ..data.scored_pairs import connected_groups
from ..data.table import read_lines
from .classifier import FAST_CONFIG, L2_GRID, SEED, TEST_CONFIG, LogisticRegressionGrid
from .embeddings import SentenceEmbeddings
from .sts import HUB, TaskNotFound, senteval, warn_of_size

CLASSIFIER_CONFIGS = {
    "test": TEST_CONFIG,
    "dev": FAST_CONFIG,
    "fasttest": FAST_CONFIG,
}

TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")  # the paper's seven; SST5 must be named
TRANSFER_EXAMPLES = senteval("transfer", "sizes")
FILES = senteval("transfer", "files")  # by split or by class
LABELS = senteval("transfer", "labels")


class LabelledTexts(list):
    """The examples of one split of a classification task.

    Each is a list of its texts, of which a task on pairs has two, and its class from 0. The tokens of a text are
    joined by single spaces.
    """

    @property
    def texts(self) -> list[str]:
        """The first texts of all examples, and then the second ones; they may repeat."""
        columns = zip(*(texts for texts, _ in self), strict=True)
        return [text for column in columns for text in column]


def read_transfer_task(task: str, data_dir: str | Path) -> dict:
    """Read a transfer task in SentEval's layout.

    MR, CR, SUBJ, MPQA and TREC are read as Latin-1, as SentEval does, and the others as UTF-8.

    Args:
        task (`str`): One of MR, CR, SUBJ, MPQA, SST2, SST5, TREC, MRPC.
        data_dir (`str | Path`): SentEval's `downstream` folder.

    Returns:
        `dict[str, LabelledTexts]`: The task's splits out of `train`, `dev` and `test`. MR, CR, SUBJ and MPQA have only
        `train`, from which the protocol holds out folds.

    Raises:
        TaskNotFound: If the task's folder does not exist, or `data_dir` is the word `hub`.
        FileNotFoundError: If the folder exists but a file is missing.
        ValueError: If a split is empty, a row is malformed or a label is unknown. The message names the file and line.
    """
    if data_dir == HUB:
        raise TaskNotFound("transfer tasks are read from SentEval's folders only")
    splits: dict = {}
    for part, file in FILES[task].items():
        path = Path(data_dir, file)
        if not path.parent.is_dir():
            raise TaskNotFound(f"there is no folder {path.parent}")
        if part in TRANSFER_EXAMPLES[task]:
            splits[part] = _read_split(task, path)
        else:  # the file of a class
            examples = splits.setdefault("train", LabelledTexts())
            lines = read_lines(path, encoding="latin-1")
            examples += [([" ".join(line.split())], int(part)) for line in lines]
    for split, examples in splits.items():
        size = len(examples)
        if not size:
            raise ValueError(f"{data_dir}: the files of {task} hold no {split} examples. Copy or download them again.")
        warn_of_size(f"{task}: {split} has {size} examples", size, TRANSFER_EXAMPLES[task][split])
    return splits


def _read_split(task: str, path: Path) -> LabelledTexts:
    names = LABELS.get(task, ("0", "1"))
    width = 5 if task == "MRPC" else 2
    separator = "\t" if task in ("MRPC", "SST2") else " "
    examples = LabelledTexts()
    lines = read_lines(path, encoding="latin-1" if task == "TREC" else "utf-8")
    for number, line in enumerate(lines, start=1):
        if task != "MRPC":
            line = line.strip()
        elif number == 1:
            continue  # the header
        cells = line.split(separator, width - 1)
        where = f"{path}, line {number}"
        if len(cells) != width:
            raise ValueError(f"{where}: expected {width} columns separated by {separator!r}.")
        if task == "SST2":
            cells.reverse()  # the others have the label first
        label = cells[0].partition(":")[0]  # TREC has coarse and fine labels
        if label not in names:
            raise ValueError(f"{where}: label {label!r} is not one of {', '.join(names)}.")
        texts = cells[3:] or cells[1:]  # MRPC has two ids before the texts
        examples.append(([" ".join(text.split()) for text in texts], names.index(label)))
    return examples


def pair_features(a: ndarray, b: ndarray) -> ndarray:
    """Return SentEval's features [|a - b|, a * b] of pairs of embeddings `(n, dim)`, of shape `(n, 2 dim)`."""
    return np.concatenate([np.abs(a - b), a * b], axis=1)


def _length(example: tuple) -> tuple:
    """Return the number of tokens of each text and the label, by which SentEval sorts before it makes its folds."""
    texts, label = example
    return [len(text.split()) for text in texts], label


def score_transfer_task(
    task: str,
    splits: dict,
    embeddings: SentenceEmbeddings,
    mode: str,
    device: str | None = None,
    seed: int = SEED,
) -> tuple:
    """Score a transfer task by SentEval's protocol.

    Folds of the training examples, or the dev split of SST2 and SST5, choose the l2 weight. Tasks without a test split
    (MR, CR, SUBJ, MPQA) have outer folds that give the test accuracy, and inner ones that choose.

    Args:
        task (`str`): Name of the task.
        splits (`dict[str, LabelledTexts]`): Its examples, as `read_transfer_task` returns them.
        embeddings (`SentenceEmbeddings`): Embeddings of their texts.
        mode (`str`): `"test"` (10 folds, Adam, batch 64, tenacity 5, epoch size 4), or `"dev"` or `"fasttest"` (5
            folds, RMSprop, batch 128, tenacity 3, epoch size 2), which are the reference's settings of SentEval.
        device (`str`, *optional*): Where to train the classifiers. Defaults to a GPU if there is one.
        seed (`int`, *optional*, defaults to `1111`): Seed of folds, starts and orders.

    Returns:
        `tuple[dict, dict]`: The result (`accuracy`, `dev_accuracy` and, for MRPC, `f1`, times 100, and the number of
        `examples` in each split), and the arrays `correct`, `gold` and `group` of shape `(n,)` of the test examples.
    """
    from sklearn.metrics import f1_score  # takes a second to import
    from sklearn.model_selection import StratifiedKFold

    # 1. The features and classes of each split, and the test examples of each fit
    config = CLASSIFIER_CONFIGS[mode]
    folds = StratifiedKFold(config.folds, shuffle=True, random_state=seed)
    if not device:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    data = {}
    ordered = {}
    for split, examples in splits.items():
        texts, labels = zip(*sorted(examples, key=_length), strict=True)
        features = [embeddings(column) for column in zip(*texts, strict=True)]
        encoded = pair_features(*features) if len(features) == 2 else features[0]
        data[split] = encoded, np.array(labels)
        ordered[split] = texts
    classes = 1 + max(int(labels.max()) for _, labels in data.values())
    x, y = data["train"]
    scored = "test" if "test" in data else "train"
    everything = slice(None)
    parts: Iterable = folds.split(y, y) if scored == "train" else [(everything, everything)]
    test_x, gold = data[scored]
    correct = np.empty(len(gold), dtype=bool)
    dev_accuracies = []
    accuracies = []
    for train, held in parts:
        # 2. The l2 weight, by the accuracy on the dev split or on inner folds, rounded as in SentEval
        fit_x = x[train]
        fit_y = y[train]
        grid = LogisticRegressionGrid(classes, config, L2_GRID, seed, device)
        if "dev" in data:
            held_out = [grid.fit(fit_x, fit_y, data["dev"])]
        else:
            held_out = []
            inner_folds = list(folds.split(fit_y, fit_y))
            for inner, rest in tqdm(inner_folds, desc=task, leave=False):
                dev = fit_x[rest], fit_y[rest]
                held_out.append(grid.fit(fit_x[inner], fit_y[inner], dev))
        accuracy = np.round(100 * np.mean(held_out, axis=0), 2)
        chosen = accuracy.argmax()
        dev_accuracies.append(accuracy.max())

        # 3. The fit that is tested. With a dev split it is the same again, because seed and data are the same.
        if "dev" not in data:
            grid = LogisticRegressionGrid(classes, config, (L2_GRID[chosen],), seed, device)
            grid.fit(fit_x, fit_y)
            chosen = 0
        correct[held] = grid.correct(test_x[held], gold[held])[:, chosen]
        accuracies.append(100 * correct[held].mean())
    result = {
        "accuracy": float(np.mean(accuracies)),
        "dev_accuracy": float(np.mean(dev_accuracies)),
        "examples": {split: len(examples) for split, examples in splits.items()},
    }
    if task == "MRPC":
        predicted = np.where(correct, gold, 1 - gold)
        result["f1"] = 100 * float(f1_score(gold, predicted))
    return result, {"correct": correct, "gold": gold, "group": connected_groups(ordered[scored])}
