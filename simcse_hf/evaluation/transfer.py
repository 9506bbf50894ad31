"""Transfer tasks: SentEval's labelled texts, and its protocols of nested folds, folds with a test set, and splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
from tqdm.auto import tqdm

from ..data.table import read_lines
from .classifier import FAST_CONFIG, L2_GRID, SEED, TEST_CONFIG, LogisticRegressionGrid
from .embeddings import SentenceEmbeddings
from .groups import connected_groups
from .sts import HUB, TaskNotFound, warn_of_size

CLASSIFIER_CONFIGS = {
    "test": TEST_CONFIG,
    "dev": FAST_CONFIG,
    "fasttest": FAST_CONFIG,
}

TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")  # the paper's seven; SST5 must be named
TRANSFER_EXAMPLES = {  # examples in SentEval's archive; another number means another data set
    "MR": {"train": 10662},
    "CR": {"train": 3775},
    "SUBJ": {"train": 10000},
    "MPQA": {"train": 10606},
    "SST2": {"train": 67349, "dev": 872, "test": 1821},
    "SST5": {"train": 8544, "dev": 1101, "test": 2210},
    "TREC": {"train": 5452, "test": 500},
    "MRPC": {"train": 4076, "test": 1725},
}
FILES = {  # by class, or by split
    "MR": {"1": "MR/rt-polarity.pos", "0": "MR/rt-polarity.neg"},
    "CR": {"1": "CR/custrev.pos", "0": "CR/custrev.neg"},
    "SUBJ": {"1": "SUBJ/subj.objective", "0": "SUBJ/subj.subjective"},
    "MPQA": {"1": "MPQA/mpqa.pos", "0": "MPQA/mpqa.neg"},
    "SST2": {split: f"SST/binary/sentiment-{split}" for split in ("train", "dev", "test")},
    "SST5": {split: f"SST/fine/sentiment-{split}" for split in ("train", "dev", "test")},
    "TREC": {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
    "MRPC": {split: f"MRPC/msr_paraphrase_{split}.txt" for split in ("train", "test")},
}


class _Layout(NamedTuple):
    """The columns of a file of labelled texts."""

    separator: str
    columns: int
    texts: tuple
    label: int
    names: tuple = ("0", "1")
    encoding: str = "utf-8"
    header: int = 0


_LAYOUTS = {
    "SST2": _Layout("\t", 2, (0,), 1),
    "SST5": _Layout(" ", 2, (1,), 0, ("0", "1", "2", "3", "4")),
    "TREC": _Layout(" ", 2, (1,), 0, ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), encoding="latin-1"),
    "MRPC": _Layout("\t", 5, (3, 4), 0, header=1),
}


@dataclass
class LabelledTexts:
    """One split of a classification task.

    Args:
        texts (`list[str]`): Texts, with their tokens joined by single spaces.
        labels (`list[int]`): Classes from 0.
        texts2 (`list[str]`, *optional*): Second texts, for a task on pairs.
    """

    texts: list[str]
    labels: list[int]
    texts2: list[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> ndarray:
        """The group of each example, of shape `(n,)`; examples that share a text are in one group."""
        pairs = zip(self.texts, self.texts2 or self.texts, strict=True)
        return connected_groups(list(pairs))

    def select(self, rows: Sequence[int]) -> "LabelledTexts":
        """Return the examples at some positions, in the order of these."""
        texts = [self.texts[row] for row in rows]
        labels = [self.labels[row] for row in rows]
        texts2 = None
        if self.texts2 is not None:
            texts2 = [self.texts2[row] for row in rows]
        return LabelledTexts(texts, labels, texts2)

    def sorted_by_length(self) -> "LabelledTexts":
        """Return the examples by number of tokens and then by label, the order from which SentEval makes its folds."""
        keys = []
        rows = zip(self.texts, self.texts2 or self.texts, self.labels, strict=True)
        for text, text2, label in rows:
            length = len(text.split())
            length2 = len(text2.split())
            keys.append((length, length2, label))
        order = sorted(range(len(self)), key=keys.__getitem__)
        return self.select(order)


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
        ValueError: If a row is malformed or a label is unknown. The message names the file and the line.
    """
    if data_dir == HUB:
        raise TaskNotFound("transfer tasks are read from SentEval's folders only")
    paths = {split: Path(data_dir) / file for split, file in FILES[task].items()}
    for path in paths.values():
        if not path.parent.is_dir():
            raise TaskNotFound(f"there is no folder {path.parent}")
    if task in _LAYOUTS:
        splits = {split: _read_split(path, _LAYOUTS[task]) for split, path in paths.items()}
    else:
        texts = []
        labels = []
        for label, path in paths.items():
            for line in read_lines(path, encoding="latin-1"):
                texts.append(" ".join(line.split()))
                labels.append(int(label))
        splits = {"train": LabelledTexts(texts, labels)}
    for split, examples in splits.items():
        size = len(examples)
        warn_of_size(f"{task}: {split} has {size} examples", size, TRANSFER_EXAMPLES[task][split])
    return splits


def _read_split(path: Path, layout: _Layout) -> LabelledTexts:
    texts: list = [[] for _ in layout.texts]
    labels = []
    lines = read_lines(path, encoding=layout.encoding)[layout.header :]
    for number, line in enumerate(lines, start=1 + layout.header):
        where = f"{path}, line {number}"
        if not layout.header:
            line = line.strip()
        cells = line.split(layout.separator, layout.columns - 1)
        if len(cells) != layout.columns:
            raise ValueError(f"{where}: expected {layout.columns} columns separated by {layout.separator!r}.")
        label = cells[layout.label].partition(":")[0]  # TREC has coarse and fine labels
        if label not in layout.names:
            raise ValueError(f"{where}: label {label!r} is not one of {', '.join(layout.names)}.")
        labels.append(layout.names.index(label))
        for column, position in zip(texts, layout.texts, strict=True):
            column.append(" ".join(cells[position].split()))
    return LabelledTexts(texts[0], labels, *texts[1:])


def pair_features(a: ndarray, b: ndarray) -> ndarray:
    """Return SentEval's features [|a - b|, a * b] of pairs of embeddings `(n, dim)`, of shape `(n, 2 dim)`."""
    return np.concatenate([np.abs(a - b), a * b], axis=1)


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

    config = CLASSIFIER_CONFIGS[mode]
    folds = StratifiedKFold(config.folds, shuffle=True, random_state=seed)
    if not device:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    ordered = {split: examples.sorted_by_length() for split, examples in splits.items()}
    data = {split: _features(examples, embeddings) for split, examples in ordered.items()}
    classes = 1 + max(int(labels.max()) for _, labels in data.values())

    def grid(l2: tuple = L2_GRID) -> LogisticRegressionGrid:
        return LogisticRegressionGrid(classes, config, l2, seed, device)

    def choose(x: ndarray, y: ndarray) -> tuple:
        """Return the best dev accuracy, fitted regressions, and which of them has the l2 weight with this accuracy."""
        fitted = grid()
        if "dev" in data:
            # SentEval fits again with the best weight, but the same seed and data give the same fit.
            accuracies = np.round(100 * fitted.fit(x, y, data["dev"]), 2)
            return accuracies.max(), fitted, accuracies.argmax()
        held_out = []
        inner_folds = list(folds.split(y, y))
        for train, held in tqdm(inner_folds, desc=task, leave=False):
            dev = x[held], y[held]
            held_out.append(fitted.fit(x[train], y[train], dev))
        accuracies = np.round(100 * np.mean(held_out, axis=0), 2)  # rounded as in SentEval
        best = L2_GRID[accuracies.argmax()]
        fitted = grid((best,))
        fitted.fit(x, y)
        return accuracies.max(), fitted, 0

    x, y = data["train"]
    if "test" in data:
        scored = "test"
        everything = slice(None)
        parts = [(everything, everything)]
    else:
        scored = "train"
        parts = folds.split(y, y)
    test_x, gold = data[scored]
    correct = np.empty(len(gold), dtype=bool)
    dev_accuracies = []
    accuracies = []
    for train, held in parts:
        dev_accuracy, fitted, chosen = choose(x[train], y[train])
        correct[held] = fitted.correct(test_x[held], gold[held])[:, chosen]
        dev_accuracies.append(dev_accuracy)
        accuracies.append(100 * correct[held].mean())
    result = {
        "accuracy": float(np.mean(accuracies)),
        "dev_accuracy": float(np.mean(dev_accuracies)),
        "examples": {split: len(examples) for split, examples in splits.items()},
    }
    if task == "MRPC":
        predicted = np.where(correct, gold, 1 - gold)
        result["f1"] = 100 * float(f1_score(gold, predicted))
    return result, {
        "correct": correct,
        "gold": gold,
        "group": ordered[scored].groups,
    }


def _features(examples: LabelledTexts, embeddings: SentenceEmbeddings) -> tuple:
    """Return the features `(n, dim)` and the classes `(n,)` of examples."""
    x = embeddings(examples.texts)
    if examples.texts2 is not None:
        x = pair_features(x, embeddings(examples.texts2))
    return x, np.asarray(examples.labels)
