"""Read labelled texts for classification and clustering: a table, or a folder with a table for each split."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from transformers.utils import logging

from ...data.columns import find_part
from ...data.read import open_table
from .reading import checked_label, checked_text, file_of, read_columns

logger = logging.get_logger(__name__)

TRAIN, TEST = "train", "test"


@dataclass
class LabelledRows:
    """Texts with a label each; no text occurs twice.

    Args:
        texts (`list[str]`): The texts.
        labels (`list[str]`): Their labels.
    """

    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: list[int]) -> "LabelledRows":
        """Return the rows of these positions."""
        return LabelledRows([self.texts[row] for row in rows], [self.labels[row] for row in rows])


def read_labelled_rows(path: Path) -> tuple[LabelledRows, LabelledRows | None]:
    """Read the scored rows of a classification or clustering task, and its training rows if it has some.

    A folder holds `test.*` and possibly `train.*`. A table with a column `split` is divided by its values `train` and
    `test`. Any other table has scored rows only. A row that repeats the text of an earlier row is left out.

    Args:
        path (`Path`): The file or folder.

    Returns:
        `tuple[LabelledRows, LabelledRows | None]`: The scored rows and the training rows.

    Raises:
        ValueError: If a file or column is missing, a text or label is empty, there are no rows, or all rows have the
            same label.
    """
    if path.is_dir():
        test, train = file_of(path, TEST), file_of(path, TRAIN)
        if test is None:
            raise ValueError(f"{path}: the folder has no test.csv (or .tsv, .jsonl, .parquet). Name a file instead.")
        splits = {TEST: _read(test)[""]}
        if train is not None:
            splits[TRAIN] = _read(train)[""]
    else:
        splits = _read(path)
    if "" in splits:
        splits = {TEST: splits[""]}
    if TEST not in splits:
        raise ValueError(f"{path}: the column 'split' holds {', '.join(map(repr, splits))}, but no 'test'.")
    unused = [name for name in splits if name not in (TRAIN, TEST)]
    if unused:
        logger.warning(f"{path}: rows of the split(s) {', '.join(unused)} are not used.")
    for name in (TRAIN, TEST):
        if name in splits and len(set(splits[name].labels)) < 2:
            raise ValueError(
                f"{path}: all {len(splits[name])} {name} rows have the label {splits[name].labels[0]!r}. A task needs "
                "at least two labels."
            )
    return splits[TEST], splits.get(TRAIN)


def _read(path: Path) -> dict[str, LabelledRows]:
    """Read a table by split; without a column of that name, the only split is `""`."""
    table = open_table(path)
    divided = find_part(table.columns, "split") is not None
    splits: dict[str, LabelledRows] = {}
    label_of: dict[tuple[str, str], str] = {}
    repeated: Counter[str] = Counter()
    for where, (text, label, *split) in read_columns(path, "text", "label", *(["split"] if divided else [])):
        name = checked_label(split[0], where).lower() if divided else ""
        text, label = checked_text(text, where), checked_label(label, where)
        if (name, text) in label_of:
            repeated["another label" if label_of[name, text] != label else "the same label"] += 1
            continue
        label_of[name, text] = label
        rows = splits.setdefault(name, LabelledRows())
        rows.texts.append(text)
        rows.labels.append(label)
    if not splits:
        raise ValueError(f"{path}: the file holds no rows.")
    if repeated:
        counts = " and ".join(f"{count} with {what}" for what, count in sorted(repeated.items()))
        logger.warning_once(  # several tasks may read one file
            f"{path}: left out {repeated.total()} row(s) that repeat the text of an earlier row ({counts})."
        )
    return splits
