"""Documents of sentences, one a line with an empty line between documents, and pairs of neighbours out of them."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import Dataset
from transformers.utils import logging

from .files import LinesFile, open_table

logger = logging.get_logger(__name__)


def read_documents(source: str | Path | Sequence[str | Path]) -> Iterator[list[str]]:
    """The documents of one or several files, each a list of its sentences.

    Args:
        source: .txt or .txt.gz, UTF-8: a sentence a line, one or more empty lines between documents.

    Raises:
        DataFileNotFoundError: a file does not exist (also a ValueError).
        ValueError: another format; a file without a single empty line between sentences, which is a list of sentences
            and not of documents; text that is not UTF-8, with its line.
    """
    for path in [source] if isinstance(source, (str, Path)) else source:
        yield from _documents_of(path)


def _documents_of(path: str | Path) -> Iterator[list[str]]:
    table = open_table(path)
    if not isinstance(table, LinesFile):
        raise ValueError(f"{path}: documents are read from .txt or .txt.gz, one sentence a line")
    document: list[str] = []
    documents, last = 0, 0
    for number, (sentence,) in table.rows(table.columns):
        if document and number > last + 1:  # the table passes over empty lines
            yield document
            documents += 1
            document = []
        document.append(sentence)
        last = number
    if not document:
        raise ValueError(f"{path}: the file holds no sentences, only blank lines")
    if not documents:
        raise ValueError(
            f"{path}: there is no empty line between line 1 and line {last}, so the whole file would be one document. "
            "Expected is one sentence a line and an empty line after each document: without these, neighbours may "
            "come from different texts"
        )
    yield document


def next_sentence_pairs(source: str | Path | Sequence[str | Path], window: int = 1, seed: int = 0) -> Dataset:
    """Pairs of a sentence and one that follows it in its document.

    SimCSE, arXiv:2104.08821, Table 2: window 1 is "next sentence"; window 3 "next 3 sentences: randomly sample one
    from the next 3 sentences", or from the fewer that are left before the document ends. It is sampled once, and so
    the same in every epoch. The last sentence of a document begins no pair.

    Args:
        source: see [`read_documents`].
        window: how many of the following sentences are candidates.
        seed: of the sample.

    Returns:
        A dataset with the columns `sent0` and `sent1`, in the order of the files.

    Raises:
        ValueError: a window below 1; documents that cannot be read (see [`read_documents`]), or of one sentence each.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    rng = random.Random(seed)
    first, second = [], []
    alone = 0
    for document in read_documents(source):
        alone += len(document) == 1
        for place, sentence in enumerate(document[:-1]):
            first.append(sentence)
            second.append(rng.choice(document[place + 1 : place + 1 + window]))
    if not first:
        raise ValueError(
            f"{source}: all {alone} documents are a single sentence, which has no next one. Expected is one sentence "
            "a line, and an empty line after each document only"
        )
    if alone:
        logger.info(f"{source}: {alone} documents of a single sentence give no pair.")
    return Dataset.from_dict({"sent0": first, "sent1": second})
