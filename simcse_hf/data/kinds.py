"""The kinds of training rows, by what an objective learns from, and the reader of each kind.

A reader takes a [`Source`], which is a file, the name of a data set on the hub, or data in memory.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from datasets import Dataset, IterableDataset

from .columns import LABEL, SCORE, find_parts
from .documents import next_sentence_pairs, read_documents
from .nli import build_nli_groups
from .read import TextSource, find_paths, first_rows, load_class_rows, load_text_dataset
from .scored_lists import read_scored_lists
from .scored_pairs import read_scored_pairs
from .stream import load_text_stream
from .table import Table


@dataclass(frozen=True)
class Source:
    """Where training texts are, and which of them a run takes.

    Args:
        data (`TextSource`): A file, the name of a data set on the hub, or the texts themselves.
        columns (`Sequence[str]`, *optional*): The text columns.
        limit (`int`, *optional*): Take the first rows only.
        supervised (`bool`, *optional*): Whether a row holds an anchor and a positive (`True`), a single sentence
            (`False`), or either of them (`None`).
        streams (`bool`, *optional*, defaults to `False`): Whether rows are read while training.
        name (`str`, *optional*, defaults to `"train_dataset"`): What messages call data in memory.
        window (`int`, *optional*, defaults to `0`): From how many of the following sentences of a document the
            positive is drawn.
        seed (`int`, *optional*, defaults to `0`): Seed of that draw.
        nli_sampling (`str`, *optional*, defaults to `"pairs"`): What a row of labelled pairs holds; see
            [`build_nli_groups`].
        label_separator (`str`, *optional*): What stands between several class labels in a cell.
    """

    data: TextSource
    columns: Sequence[str] | None = None
    limit: int | None = None
    supervised: bool | None = None
    streams: bool = False
    name: str = "train_dataset"
    window: int = 0
    seed: int = 0
    nli_sampling: str = "pairs"
    label_separator: str | None = None

    @property
    def path(self) -> str | Path | None:
        """The file, or the name of a data set on the hub; `None` for data in memory."""
        if isinstance(self.data, str):
            return self.data
        return Path(self.data) if isinstance(self.data, os.PathLike) else None


def read_texts(source: Source) -> Dataset:
    """Read sentences, pairs, or pairs with hard negatives.

    Args:
        source (`Source`): The source.

    Returns:
        `datasets.Dataset`: The columns `sent0`, `sent1`, ...

    Raises:
        ValueError: If the source cannot be read, or holds single sentences where pairs are asked for.
    """
    texts = load_text_dataset(
        source.data,
        columns=source.columns,
        expected_columns=1 if source.supervised is False else None,
        max_rows=source.limit,
        name=source.name,
    )
    check_supervised(source, len(texts.column_names))
    return texts


def read_neighbours(source: Source) -> Dataset:
    """Read documents, and pair each sentence with one that follows it; pairs in memory stay as they are.

    Args:
        source (`Source`): The source.

    Returns:
        `datasets.Dataset`: The columns `sent0` and `sent1`.

    Raises:
        ValueError: If the documents cannot be read, or the source holds single sentences in no order.
    """
    if source.path is None:
        pairs = read_texts(source)
        check_neighbours(source, len(pairs.column_names))
        return pairs
    check_form(source, "documents", is_file=True)
    return first_rows(next_sentence_pairs(source.path, source.window, source.seed), source.limit)


def read_nli(source: Source) -> Dataset:
    """Read labelled NLI pairs, and group them by premise; groups in memory stay as they are.

    Args:
        source (`Source`): The source.

    Returns:
        `datasets.Dataset`: The columns `texts` and `relations`; see [`build_nli_groups`].

    Raises:
        ValueError: If the source cannot be read as labelled pairs.
    """
    if isinstance(source.data, Table):
        labelled = find_parts(source.data.columns, ("premise", "hypothesis", "relation"))
        if len(labelled) < 3:
            return read_texts(source)
    check_form(source, "labelled NLI pairs (columns premise, hypothesis, label)")
    return first_rows(build_nli_groups(source.data, sampling=source.nli_sampling), source.limit)


def read_scored(source: Source) -> Dataset:
    """Read pairs of sentences with a score.

    Args:
        source (`Source`): The source.

    Returns:
        `datasets.Dataset`: The columns `sent0`, `sent1` and `score`.

    Raises:
        ValueError: If the source cannot be read as scored pairs.
    """
    check_form(source, "pairs with a score (columns sentence1, sentence2, score)")
    pairs = read_scored_pairs(source.data, source.name, drop_empty=True)
    return first_rows(pairs.to_dataset(), source.limit)


def read_lists(source: Source) -> Dataset:
    """Read queries with scored candidates; see [`read_scored_lists`]."""
    return read_scored_lists(source.data, columns=source.columns, max_rows=source.limit, name=source.name)


def read_classes(source: Source) -> Dataset:
    """Read texts with class labels, or anchors with lists of positives; see [`load_class_rows`]."""
    return load_class_rows(
        source.data,
        columns=source.columns,
        max_rows=source.limit,
        name=source.name,
        label_separator=source.label_separator,
    )


def read_spans(source: Source) -> Dataset | Iterator[list[str]]:
    """Read documents, from which spans are drawn; texts in memory stay as they are.

    Args:
        source (`Source`): The source.

    Returns:
        `Iterator[list[str]]`: The sentences of each document.

    Raises:
        ValueError: If the source is no file of documents.
    """
    if source.path is None:
        return read_texts(source)
    check_form(source, "documents", is_file=True)
    return islice(read_documents(source.path), source.limit)


def read_stream(source: Source) -> IterableDataset:
    """Open sentences, pairs, or pairs with hard negatives as a stream; see [`load_text_stream`]."""
    stream = load_text_stream(
        source.data,
        columns=source.columns,
        expected_columns=1 if source.supervised is False else None,
        name=source.name,
    )
    width = len(stream.features or {})
    check_supervised(source, width)
    check_neighbours(source, width)
    return stream


@dataclass(frozen=True)
class Kind:
    """A kind of training rows.

    Args:
        read (`Callable`): Reads a source.
        says (`str`, *optional*): What a row holds, in the words of `results.json`; `None` where the number of its
            texts tells.
        numbers (`tuple[str, ...]`, *optional*): Columns of numbers that objectives read in a batch.
    """

    read: Callable[[Source], Dataset | Iterator[list[str]]]
    says: str | None = None
    numbers: tuple[str, ...] = ()


#: The kinds by `Objective.rows`; `documents` are the texts of a view that draws neighbouring sentences.
ROW_KINDS = {
    "texts": Kind(read_texts),
    "documents": Kind(read_neighbours, says="documents"),
    "nli": Kind(read_nli, says="nli"),
    "scored_pairs": Kind(read_scored, says="scored pairs", numbers=(SCORE,)),
    "scored_lists": Kind(read_lists, says="scored lists", numbers=(SCORE,)),
    "classes": Kind(read_classes, numbers=(LABEL,)),
    "spans": Kind(read_spans),
}


# Refusals


def check_form(source: Source, form: str, is_file: bool = False) -> None:
    """Refuse columns, or the name of a data set on the hub, for rows that are read by their structure."""
    if is_file and isinstance(source.data, str) and find_paths(source.data) is None:
        advice = "name one with --train_file, or in Python with train_dataset"
        raise ValueError(f"{form} are read from a file, and {source.data!r} is not a file here: {advice}")
    if source.columns is not None:
        raise ValueError(
            f"--columns does not apply to rows of {form}: leave it out, and give {source.data} their form"
        )


def check_neighbours(source: Source, width: int) -> None:
    """Refuse single sentences for a view that draws neighbours."""
    if source.window and width == 1:
        advice = 'pass the name of a file of documents, "documents.txt", or next_sentence_pairs("documents.txt")'
        raise ValueError(f"{source.name} holds single sentences, and the view reads neighbouring ones: {advice}")


def check_supervised(source: Source, width: int) -> None:
    """Refuse single texts for supervised training."""
    if source.supervised and width == 1:
        needed = "a class label in a column 'label', or an anchor, a positive and any number of hard negatives"
        raise ValueError(
            f"{source.data} holds one text in a row, and supervised training needs {needed}. Add the columns, or "
            "train without labels (simcse-hf train unsup)."
        )
