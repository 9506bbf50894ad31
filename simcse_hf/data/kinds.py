"""The kinds of training rows, by what an objective learns from, and how they are read.

They come from a [`Source`], which is a file, the name of a data set on the hub, or data in memory.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from ..runtime.errors import SettingError
from .columns import LABEL, SCORE, find_parts
from .documents import next_sentence_pairs, read_documents
from .nli import build_nli_groups
from .read import TextSource, find_paths, load_class_rows, load_text_dataset
from .scored_pairs import read_scored_lists, read_scored_pairs
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


#: What a row of a kind (`Objective.rows`) holds, in the words of `results.json`, where the number of its texts does
#: not tell. `documents` are the texts of a view that draws neighbouring sentences.
SAYS = {"documents": "documents", "nli": "nli", "scored_pairs": "scored pairs", "scored_lists": "scored lists"}
#: Columns of numbers that objectives read in a batch.
NUMBERS = {"scored_pairs": (SCORE,), "scored_lists": (SCORE,), "classes": (LABEL,)}
#: The form of rows that are read by their structure.
_FORMS = {
    "documents": "documents",
    "spans": "documents",
    "nli": "labelled NLI pairs (columns premise, hypothesis, label)",
    "scored_pairs": "pairs with a score (columns sentence1, sentence2, score)",
}


def read_source(kind: str, source: Source) -> Dataset | Iterator[list[str]]:
    """Read the rows of a kind.

    Args:
        kind (`str`): The kind.
        source (`Source`): The source. What is in memory in place of documents, or of labelled pairs, is read as texts.

    Returns:
        `datasets.Dataset` or `Iterator[list[str]]`: The columns `sent0`, `sent1`, ...; `texts` and `relations`, see
        [`build_nli_groups`]; with a `score` or a `label` where the kind has one. Of spans, the sentences of each
        document.

    Raises:
        SettingError: If the source cannot be read, or has not the form of the kind.
    """
    data: Any = source.data
    shared: Any = {"columns": source.columns, "max_rows": source.limit, "name": source.name}
    if kind == "classes":
        return load_class_rows(data, label_separator=source.label_separator, **shared)
    # 1. Texts.
    are_texts = kind == "texts" or (kind in ("documents", "spans") and source.path is None)
    if kind == "nli" and isinstance(data, Table):
        are_texts = len(find_parts(data.columns, ("premise", "hypothesis", "relation"))) < 3
    if are_texts:
        texts = load_text_dataset(data, expected_columns=1 if source.supervised is False else None, **shared)
        check_width(source, len(texts.column_names))
        return texts

    # 2. Rows that are read by their structure: most of no chosen columns, and documents from a file.
    form = _FORMS.get(kind)
    if form == "documents" and isinstance(data, str) and find_paths(data) is None:
        raise SettingError(
            f"{form} are read from a file, and {data!r} is not a file here: name one with --train_file, or in Python "
            "with train_dataset"
        )
    if form and source.columns is not None:
        raise SettingError(f"--columns does not apply to rows of {form}: leave it out, and give {data} their form")
    if kind == "spans":
        return islice(read_documents(data), source.limit)
    if kind == "documents":
        rows = next_sentence_pairs(data, source.window, source.seed)
    elif kind == "nli":
        rows = build_nli_groups(data, sampling=source.nli_sampling)
    elif kind == "scored_lists":
        rows = read_scored_lists(data, source.columns, source.name)
    else:
        rows = read_scored_pairs(data, source.name, drop_empty=True).to_dataset()
    return rows if source.limit is None else rows.select(range(min(source.limit, len(rows))))


def read_stream(source: Source) -> IterableDataset:
    """Open sentences, pairs, or pairs with hard negatives as a stream; see [`load_text_stream`]."""
    stream = load_text_stream(
        source.data,
        columns=source.columns,
        expected_columns=1 if source.supervised is False else None,
        name=source.name,
    )
    check_width(source, len(stream.features or {}))
    return stream


def check_width(source: Source, width: int) -> None:
    """Refuse single texts for supervised training, and for a view that draws neighbours."""
    if source.supervised and width == 1:
        raise SettingError(
            f"{source.data} holds one text in a row, and supervised training needs a class label in a column 'label', "
            "or an anchor, a positive and any number of hard negatives. Add the columns, or train without labels "
            "(simcse-hf train unsup)."
        )
    if source.window and width == 1:
        raise SettingError(
            f"{source.name} holds single sentences, and the view reads neighbouring ones: pass the name of a file of "
            'documents, "documents.txt", or next_sentence_pairs("documents.txt")'
        )
