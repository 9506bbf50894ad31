"""Rows with several positives: texts with class labels, and anchors with a list of positives."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from datasets import Dataset
from transformers.utils import logging

from ..objectives.base import NEGATIVE, POSITIVE
from .columns import LABEL, RowCleaner, class_columns, first_few, quote
from .read import (
    apply_transform,
    dataset_table,
    find_paths,
    is_resolved,
    load_from_hub,
    make_room,
    mark_resolved,
    table_cleaners,
)
from .table import Table, open_table

logger = logging.get_logger(__name__)


def load_class_rows(
    source: str | Dataset,
    *,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    name: str = "the dataset",
) -> Dataset:
    """Load texts with class labels, or anchors with several positives. A dataset of this form stays as it is.

    The columns are one of texts and one of labels (`label`, `category`, `class` or `intent`); or anchors, positives
    and perhaps hard negatives, named as in [`~data.columns.resolve_columns`], whose cells may be lists.

    Args:
        source (`str` or `datasets.Dataset`): A file, see [`open_table`], the name of a dataset on the hub, or a
            dataset.
        columns (`Sequence[str]`, *optional*): The column of texts; or anchor, positives, hard negatives.
        max_rows (`int`, *optional*): Number of rows to read.
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call a dataset.

    Returns:
        `datasets.Dataset`: The columns `sent0` and `label`, an integer; or `texts`, the anchor with its positives and
            hard negatives, and `relations`, 0 for a positive and 2 for a hard negative. Texts whose class has no
            other text are left out, with a warning.

    Raises:
        ValueError: If the source cannot be read, its columns are unclear, or fewer than two classes have two texts.
    """
    if isinstance(source, Dataset):
        source = apply_transform(source)
        names = set(source.column_names)
        if {"texts", "relations"} <= names or (is_resolved(source) and LABEL in names):
            return source
    table = _open(source, name)
    chosen = class_columns(table.columns, table.sample(), columns)
    if chosen is not None:
        return _labelled_texts(table, chosen, max_rows)
    [cleaner] = table_cleaners([table], columns)
    if len(cleaner.columns) < 2:
        raise ValueError(
            f"{table.name}: a row holds one text and no class label. Add a column 'label', or positives of each text "
            f"in a column 'positives'; the columns are {quote(table.columns)}."
        )
    make_room([table], [cleaner])
    texts = []
    relations = []
    for number, cells in islice(table.rows(cleaner.columns), max_rows):
        rows = cleaner.clean(number, cells)  # one for each positive
        if rows:
            anchor, _, *others = rows[0]
            positives = [row[1] for row in rows]
            negatives = [text for text in others if text is not None]
            texts.append([anchor, *positives, *negatives])
            relations.append([POSITIVE] * len(positives) + [NEGATIVE] * len(negatives))
    cleaner.check_any()
    cleaner.log()
    return Dataset.from_dict({"texts": texts, "relations": relations})


def is_labelled(source: str, columns: Sequence[str] | None = None) -> bool:
    """Say whether the rows of a file or of a dataset on the hub hold one text and its class label."""
    try:
        table = _open(source, source)
        return class_columns(table.columns, table.sample(), columns) is not None
    except ValueError:  # whoever loads the rows reports it
        return False


def _open(source: str | Dataset, name: str) -> Table:
    if isinstance(source, Dataset):
        return dataset_table(source, name)
    paths = find_paths(source)
    if paths is not None:
        return open_table(paths[0])
    return dataset_table(load_from_hub(source, "train"), source)


def _labelled_texts(table: Table, chosen: Sequence[str], max_rows: int | None) -> Dataset:
    cleaner = RowCleaner(table.name, chosen, table.unit)
    rows: list = []
    for number, (text, label) in islice(table.rows(chosen), max_rows):
        name = None if label is None else str(label)
        rows += cleaner.clean(number, [text, name])
    cleaner.check_any()
    cleaner.log()
    counts = Counter(label for _, label in rows)
    classes = sorted(label for label, count in counts.items() if count > 1)
    found = f"{table.name}: {len(rows)} texts in column {chosen[0]!r}, {len(counts)} classes in column {chosen[1]!r}"
    logger.info(f"{found}.")
    if len(classes) < 2:
        raise ValueError(
            f"{found}, of which {len(classes)} have two texts or more. There must be two such classes, because a text "
            "learns from the others of its class and from those of other classes: check the column, or add texts."
        )
    alone = [repr(label) for label, count in sorted(counts.items()) if count == 1]
    if alone:
        logger.warning(
            f"{found}, of which {len(alone)} have one text. It has no positive and is left out: {first_few(alone)}"
        )
    numbers = {label: number for number, label in enumerate(classes)}
    texts = []
    labels = []
    for text, label in rows:
        if label in numbers:
            texts.append(text)
            labels.append(numbers[label])
    return mark_resolved(Dataset.from_dict({"sent0": texts, LABEL: labels}))
