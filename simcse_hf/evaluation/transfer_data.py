"""Read the labelled texts of the transfer tasks from SentEval's folders."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from transformers.utils import logging

from ..data.read import read_lines
from .tasks import TRANSFER_EXAMPLES, TaskNotFound

logger = logging.get_logger(__name__)

TREC_LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
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

    def draw(self, count: int) -> "LabelledTexts":
        """Return at most `count` examples, drawn at random; they are the same in every call."""
        if count >= len(self):
            return self
        rows = sorted(random.Random(0).sample(range(len(self)), count))
        return LabelledTexts(
            texts=[self.texts[row] for row in rows],
            labels=[self.labels[row] for row in rows],
            texts2=None if self.texts2 is None else [self.texts2[row] for row in rows],
        )

    def sorted_by_length(self) -> "LabelledTexts":
        """Return the examples by number of tokens and then by label, the order from which SentEval makes its folds."""
        second = self.texts2 if self.texts2 is not None else [""] * len(self)
        rows = sorted(
            zip(self.texts, second, self.labels, strict=True),
            key=lambda row: (len(row[0].split()), len(row[1].split()), row[2]),
        )
        return LabelledTexts(
            texts=[row[0] for row in rows],
            labels=[row[2] for row in rows],
            texts2=None if self.texts2 is None else [row[1] for row in rows],
        )


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
        TaskNotFound: If the task's folder does not exist.
        FileNotFoundError: If the folder exists but a file is missing.
        ValueError: If a row is malformed or a label is unknown. The message names the file and the line.
    """
    data_dir = Path(data_dir)
    files = BINARY_FILES[task] if task in BINARY_FILES else tuple(SPLIT_FILES[task].values())
    folder = (data_dir / files[0]).parent
    if not folder.is_dir():
        raise TaskNotFound(f"there is no folder {folder}")
    if task in BINARY_FILES:
        splits = {"train": _read_binary(*(data_dir / file for file in files))}
    else:
        read = {"SST2": _read_sst2, "SST5": _read_sst5, "TREC": _read_trec, "MRPC": _read_mrpc}[task]
        splits = {split: read(data_dir / file) for split, file in SPLIT_FILES[task].items()}
    for split, examples in splits.items():
        if len(examples) != TRANSFER_EXAMPLES[task][split]:
            logger.warning(
                f"{task}: {split} has {len(examples)} examples, but SentEval has {TRANSFER_EXAMPLES[task][split]}. "
                "The figures cannot be compared with published ones."
            )
    return splits


def _text(tokens: str) -> str:
    return " ".join(tokens.split())


def _label(value: str, names: Iterable[str], path: Path, line: int) -> int:
    names = list(names)
    if value not in names:
        raise ValueError(f"{path}, line {line}: label {value!r} is not one of {', '.join(names)}.")
    return names.index(value)


def _columns(text: str, separator: str, number: int, path: Path, line: int) -> list[str]:
    columns = text.split(separator, number - 1)
    if len(columns) != number:
        raise ValueError(f"{path}, line {line}: expected {number} columns separated by {separator!r}.")
    return columns


def _read_binary(positive: Path, negative: Path) -> LabelledTexts:
    examples = LabelledTexts()
    for path, label in ((positive, 1), (negative, 0)):
        lines = read_lines(path, encoding="latin-1")
        examples.texts += [_text(line) for line in lines]
        examples.labels += [label] * len(lines)
    return examples


def _read_sst2(path: Path) -> LabelledTexts:
    examples = LabelledTexts()
    for line, row in enumerate(read_lines(path), start=1):
        text, label = _columns(row.strip(), "\t", 2, path, line)
        examples.texts.append(_text(text))
        examples.labels.append(_label(label, "01", path, line))
    return examples


def _read_sst5(path: Path) -> LabelledTexts:
    examples = LabelledTexts()
    for line, row in enumerate(read_lines(path), start=1):
        label, text = _columns(row.strip(), " ", 2, path, line)
        examples.texts.append(_text(text))
        examples.labels.append(_label(label, "01234", path, line))
    return examples


def _read_trec(path: Path) -> LabelledTexts:
    examples = LabelledTexts()
    for line, row in enumerate(read_lines(path, encoding="latin-1"), start=1):
        fine_label, text = _columns(row.strip(), " ", 2, path, line)
        examples.texts.append(_text(text))
        examples.labels.append(_label(fine_label.partition(":")[0], TREC_LABELS, path, line))
    return examples


def _read_mrpc(path: Path) -> LabelledTexts:
    examples, texts2 = LabelledTexts(), []
    for line, row in enumerate(read_lines(path)[1:], start=2):
        columns = _columns(row, "\t", 5, path, line)
        examples.labels.append(_label(columns[0], "01", path, line))
        examples.texts.append(_text(columns[3]))
        texts2.append(_text(columns[4]))
    examples.texts2 = texts2
    return examples
