"""Transfer tasks: SentEval's labelled texts, and its protocols of nested folds, folds with a test set, and splits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy import ndarray
from tqdm.auto import tqdm

from ...data.scored_pairs import connected_groups
from ...data.table import read_lines
from ...runtime.files import StrPath
from ..classifier import CLASSIFIER_CONFIGS, L2_GRID, LogisticRegressionGrid
from ..embeddings import SentenceEmbeddings
from ..protocol import PAPER_PROTOCOL, Protocol
from .base import Task, TaskResult
from .sts import HUB, TaskNotFound, senteval, warn_of_size

TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")  # the paper's seven; SST5 must be named
TRANSFER_EXAMPLES = senteval("transfer", "sizes")
FILES = senteval("transfer", "files")  # by split or by class
LABELS = senteval("transfer", "labels")


#: The examples of a split: the texts of each, of which a task on pairs has two, and its class from 0. The tokens of a
#: text are joined by single spaces.
LabelledTexts = list[tuple[list[str], int]]


def read_transfer_task(task: str, data_dir: StrPath) -> dict:
    """Read a transfer task in SentEval's layout.

    MR, CR, SUBJ, MPQA and TREC are read as Latin-1, as SentEval does, and the others as UTF-8.

    Args:
        task (`str`): One of MR, CR, SUBJ, MPQA, SST2, SST5, TREC, MRPC.
        data_dir (`str` or `os.PathLike`): SentEval's `downstream` folder.

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
            examples = splits.setdefault("train", [])
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
    examples: LabelledTexts = []
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


def _in_order(examples: LabelledTexts) -> LabelledTexts:
    """Sort examples as SentEval does before it makes its folds: by the number of tokens of each text, and by class."""
    return sorted(examples, key=lambda example: ([len(text.split()) for text in example[0]], example[1]))


@dataclass(eq=False)
class TransferTask(Task):
    """Classify texts by their embeddings, by SentEval's protocol.

    Folds of the training examples, or the dev split of SST2 and SST5, choose the l2 weight. Tasks without a test split
    (MR, CR, SUBJ, MPQA) have outer folds that give the test accuracy, and inner ones that choose.

    Args:
        source (`str`): SentEval's folder.
        name (`str`): Name of the task.
        units (`list[tuple[list[str], int]]`): The examples of the test split, otherwise those of the training split.
        shared (`dict[str, LabelledTexts]`): The other splits.
        protocol (`Protocol`, *optional*): Its seed is that of folds, starts and orders. Its mode is `"test"` (10
            folds, Adam, batch 64, tenacity 5, epoch size 4), or `"dev"` or `"fasttest"` (5 folds, RMSprop, batch 128,
            tenacity 3, epoch size 2), which are the reference's settings of SentEval.
        device (`str`, *optional*): Where to train the classifiers. Defaults to a GPU if there is one.
    """

    device: str | None = field(default=None, repr=False)

    kind = "transfer"
    unit = "example"
    average = "average_transfer"
    order = 3

    @classmethod
    def of(
        cls,
        name: str,
        splits: Mapping[str, LabelledTexts],
        source: str,
        protocol: Protocol = PAPER_PROTOCOL,
        device: str | None = None,
    ) -> Self:
        """Make a task of its splits, as [`read_transfer_task`] returns them."""
        tested = "test" if "test" in splits else "train"
        others = {split: examples for split, examples in splits.items() if split != tested}
        return cls(source, name, splits[tested], others, protocol, device)

    def __post_init__(self) -> None:
        self.metrics = ("dev_accuracy" if self.protocol.mode == "dev" else "accuracy",)  # type: ignore[misc]
        tested = "test" if "train" in self.shared else "train"
        known = {tested: self.units, **self.shared}
        self.splits: dict[str, LabelledTexts] = {
            split: known[split] for split in ("train", "dev", "test") if split in known
        }
        self.links = [texts for texts, _ in self.units]
        columns = [zip(*(texts for texts, _ in examples), strict=True) for examples in self.splits.values()]
        self.roles = {None: list(chain.from_iterable(chain.from_iterable(columns)))}

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Fit the classifiers and compute their accuracy; see [`Task.score`].

        Returns:
            [`TaskResult`]: In the document `accuracy`, `dev_accuracy` and, for MRPC, `f1`, times 100, and the number
            of `examples` in each split; the arrays `correct`, `gold` and `group` of the test examples.
        """
        from sklearn.metrics import f1_score  # takes a second to import
        from sklearn.model_selection import StratifiedKFold

        # 1. The features and the class of each example
        data = {}
        for split, examples in self.splits.items():
            texts, classes = zip(*_in_order(examples), strict=True)
            features = [embeddings(column) for column in zip(*texts, strict=True)]
            x = pair_features(*features) if len(features) == 2 else features[0]
            data[split] = x, np.array(classes)
        x, y = data["train"]
        tested_x, gold = data.get("test", data["train"])

        # 2. The parts that are fitted and tested
        protocol = self.protocol
        config = CLASSIFIER_CONFIGS[protocol.mode]
        divide = StratifiedKFold(config.folds, shuffle=True, random_state=protocol.seed).split
        everything = slice(None)
        parts: Iterable = [(everything, everything)] if "test" in data else divide(y, y)

        # 3. The classifier with the l2 weight of the best accuracy on the dev split, or on folds of the examples
        number = 1 + max(int(classes.max()) for _, classes in data.values())
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        make_grid = partial(LogisticRegressionGrid, number, config, seed=protocol.seed, device=device)
        correct = np.empty(len(gold), dtype=bool)
        accuracies = []
        dev_accuracies = []
        for train, held in parts:
            if "dev" in data:  # a second fit would be the same, because seed and data are the same
                grid = make_grid()
                on_dev = np.round(100 * grid.fit(x[train], y[train], data["dev"]), 2)  # rounded as in SentEval
                chosen = int(on_dev.argmax())
            else:
                held_out = []
                folds = list(divide(y[train], y[train]))
                for inner, rest in tqdm(folds, desc=self.name, leave=False):
                    grid = make_grid()
                    held_out.append(grid.fit(x[train][inner], y[train][inner], (x[train][rest], y[train][rest])))
                on_dev = np.round(100 * np.mean(held_out, axis=0), 2)
                grid = make_grid(l2=(L2_GRID[on_dev.argmax()],))
                grid.fit(x[train], y[train])
                chosen = 0
            correct[held] = grid.correct(tested_x[held], gold[held])[:, chosen]
            accuracies.append(100 * correct[held].mean())
            dev_accuracies.append(on_dev.max())

        # 4. The result
        document: dict[str, Any] = {
            "accuracy": float(np.mean(accuracies)),
            "dev_accuracy": float(np.mean(dev_accuracies)),
            "examples": {split: len(examples) for split, examples in self.splits.items()},
        }
        if self.name == "MRPC":
            predicted = np.where(correct, gold, 1 - gold)
            document["f1"] = 100 * float(f1_score(gold, predicted))
        group = connected_groups([texts for texts, _ in _in_order(self.units)])
        answers = {"correct": correct, "gold": gold, "group": group}
        return TaskResult({self.metric: document[self.metric]}, {self.name: answers}, document)

    def document(self, result: TaskResult) -> dict:
        """Return the accuracies of a result; see [`Task.document`]."""
        return result.details

    @classmethod
    def headline(cls, document: Mapping[str, Any], protocol: Protocol) -> float | None:
        """Return the accuracy on the protocol's split; see [`Task.headline`]."""
        return document["dev_accuracy" if protocol.mode == "dev" else "accuracy"]

    @classmethod
    def is_resampled(cls, protocol: Protocol) -> bool:
        """Return whether the answers are those of the headline: not in mode dev; see [`Task.is_resampled`]."""
        return protocol.mode != "dev"
