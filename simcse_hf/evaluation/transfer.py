"""Transfer tasks: SentEval's labelled texts, and its protocols of nested folds, folds with a test set, and splits."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.lines import read_lines
from .classifier import FAST_CONFIG, L2_GRID, SEED, TEST_CONFIG, LogisticRegressionGrid
from .embeddings import SentenceEmbeddings
from .groups import connected_groups
from .sts import HUB, TaskNotFound

logger = logging.get_logger(__name__)

CLASSIFIER_CONFIGS = {"test": TEST_CONFIG, "dev": FAST_CONFIG, "fasttest": FAST_CONFIG}

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
BINARY_FILES = {  # the file of label 1, the file of label 0
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
SPLIT_FILES = {
    "SST2": {split: f"SST/binary/sentiment-{split}" for split in ("train", "dev", "test")},
    "SST5": {split: f"SST/fine/sentiment-{split}" for split in ("train", "dev", "test")},
    "TREC": {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
    "MRPC": {split: f"MRPC/msr_paraphrase_{split}.txt" for split in ("train", "test")},
}


class _Layout(NamedTuple):
    """The columns of a file of labelled texts."""

    separator: str
    columns: int
    texts: tuple[int, ...]
    label: int
    names: tuple[str, ...]
    encoding: str = "utf-8"
    header: int = 0


_LAYOUTS = {
    "SST2": _Layout("\t", 2, (0,), 1, ("0", "1")),
    "SST5": _Layout(" ", 2, (1,), 0, ("0", "1", "2", "3", "4")),
    "TREC": _Layout(" ", 2, (1,), 0, ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), encoding="latin-1"),
    "MRPC": _Layout("\t", 5, (3, 4), 0, ("0", "1"), header=1),
}


@dataclass
class LabelledTexts:
    """One split of a classification task.

    Args:
        texts (`list[str]`): Texts, with their tokens joined by single spaces.
        labels (`list[int]`): Classes from 0.
        texts2 (`list[str]`, *optional*): Second texts, for a task on pairs.
    """

    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    texts2: list[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> np.ndarray:
        """The group of each example, of shape `(n,)`; examples that share a text are in one group."""
        return connected_groups(list(zip(self.texts, self.texts2 or self.texts, strict=True)))

    def select(self, rows: Iterable[int]) -> "LabelledTexts":
        """Return the examples of these positions."""
        rows = list(rows)
        texts2 = None if self.texts2 is None else [self.texts2[row] for row in rows]
        return LabelledTexts([self.texts[row] for row in rows], [self.labels[row] for row in rows], texts2)

    def sorted_by_length(self) -> "LabelledTexts":
        """Return the examples by number of tokens and then by label, the order from which SentEval makes its folds."""
        second = self.texts2 or [""] * len(self)
        key = [tuple(map(len, map(str.split, texts))) for texts in zip(self.texts, second, strict=True)]
        return self.select(sorted(range(len(self)), key=lambda row: (key[row], self.labels[row])))


def read_transfer_task(task: str, data_dir: str | Path) -> dict[str, LabelledTexts]:
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
    data_dir = Path(data_dir)
    files = BINARY_FILES[task] if task in BINARY_FILES else tuple(SPLIT_FILES[task].values())
    folder = (data_dir / files[0]).parent
    if not folder.is_dir():
        raise TaskNotFound(f"there is no folder {folder}")
    if task in BINARY_FILES:
        texts = [read_lines(data_dir / file, encoding="latin-1") for file in files]
        labels = [label for label, lines in zip((1, 0), texts, strict=True) for _ in lines]
        splits = {"train": LabelledTexts([" ".join(line.split()) for lines in texts for line in lines], labels)}
    else:
        splits = {split: _read_split(data_dir / file, _LAYOUTS[task]) for split, file in SPLIT_FILES[task].items()}
    for split, examples in splits.items():
        if len(examples) != TRANSFER_EXAMPLES[task][split]:
            logger.warning(
                f"{task}: {split} has {len(examples)} examples, but SentEval has {TRANSFER_EXAMPLES[task][split]}. "
                "The scores cannot be compared with published ones."
            )
    return splits


def _read_split(path: Path, layout: _Layout) -> LabelledTexts:
    columns: list[list[str]] = [[] for _ in layout.texts]
    labels = []
    lines = read_lines(path, encoding=layout.encoding)[layout.header :]
    for line, row in enumerate(lines, start=1 + layout.header):
        cells = (row if layout.header else row.strip()).split(layout.separator, layout.columns - 1)
        where = f"{path}, line {line}"
        if len(cells) != layout.columns:
            raise ValueError(f"{where}: expected {layout.columns} columns separated by {layout.separator!r}.")
        label = cells[layout.label].partition(":")[0]  # TREC has coarse and fine labels
        if label not in layout.names:
            raise ValueError(f"{where}: label {label!r} is not one of {', '.join(layout.names)}.")
        labels.append(layout.names.index(label))
        for column, number in zip(columns, layout.texts, strict=True):
            column.append(" ".join(cells[number].split()))
    return LabelledTexts(columns[0], labels, columns[1] if len(columns) > 1 else None)


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
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
    from sklearn.model_selection import StratifiedKFold  # takes a second to import

    config = CLASSIFIER_CONFIGS[mode]
    folds = StratifiedKFold(config.folds, shuffle=True, random_state=seed)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    data = {split: _features(examples.sorted_by_length(), embeddings) for split, examples in splits.items()}
    classes = 1 + max(int(y.max()) for _, y in data.values())

    def grid(l2: tuple[float, ...] = L2_GRID) -> LogisticRegressionGrid:
        return LogisticRegressionGrid(classes, config, l2, seed, device)

    def choose(x: np.ndarray, y: np.ndarray) -> tuple[float, LogisticRegressionGrid]:
        """Return the best mean accuracy over folds, and a regression with its l2 weight that is fitted on all rows."""
        parts = tqdm(list(folds.split(y, y)), desc=task, leave=False)
        held_out = [grid().fit(x[train], y[train], (x[held], y[held])) for train, held in parts]
        accuracies = np.round(100 * np.mean(held_out, axis=0), 2)  # rounded as in SentEval
        best = grid((L2_GRID[accuracies.argmax()],))
        best.fit(x, y)
        return float(accuracies.max()), best

    x, y = data["train"]
    test_x, gold = data.get("test", (x, y))
    if "test" not in data:
        correct = np.empty(len(y), dtype=bool)
        by_fold = []
        for train, held in folds.split(y, y):
            dev, best = choose(x[train], y[train])
            correct[held] = best.correct(x[held], y[held])[:, 0]
            by_fold.append((dev, 100 * correct[held].mean()))
        dev_accuracy, accuracy = (float(np.mean(each)) for each in zip(*by_fold, strict=True))
    else:
        if "dev" not in data:
            dev_accuracy, fitted = choose(x, y)
            chosen = 0
        else:
            # SentEval fits again with the best weight, but the same seed and data give the same fit.
            fitted = grid()
            accuracies = np.round(100 * fitted.fit(x, y, data["dev"]), 2)
            dev_accuracy, chosen = float(accuracies.max()), int(accuracies.argmax())
        correct = fitted.correct(test_x, gold)[:, chosen]
        accuracy = float(100 * correct.mean())
    examples = {split: len(each) for split, each in splits.items()}
    result: dict[str, Any] = {"accuracy": accuracy, "dev_accuracy": dev_accuracy, "examples": examples}
    if task == "MRPC":
        result["f1"] = 100 * f1(gold, correct)
    groups = splits["test" if "test" in splits else "train"].sorted_by_length().groups
    return result, {"correct": correct, "gold": gold, "group": groups}


def f1(labels: np.ndarray, correct: np.ndarray) -> float:
    """Compute the F1 of class 1 of two classes from the classes and whether each prediction was correct."""
    hits = int((correct & (labels == 1)).sum())
    return 2 * hits / (2 * hits + int((~correct).sum())) if hits else 0.0


def _features(examples: LabelledTexts, embeddings: SentenceEmbeddings) -> tuple[np.ndarray, np.ndarray]:
    """Return the features `(n, dim)` and the classes `(n,)` of examples."""
    x = embeddings(examples.texts)
    if examples.texts2 is not None:
        x = pair_features(x, embeddings(examples.texts2))
    return x, np.asarray(examples.labels)
