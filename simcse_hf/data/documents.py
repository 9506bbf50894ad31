"""Read documents, one sentence on each line and a blank line between documents, and pair neighbouring sentences."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import Dataset
from transformers.utils import logging

from .read import open_table

logger = logging.get_logger(__name__)


def read_documents(source: str | Path | Sequence[str | Path]) -> Iterator[list[str]]:
    """Yield the documents of one or several files.

    Args:
        source (`str | Path | Sequence`): .txt or .txt.gz files in UTF-8 with one sentence on each line and one or
            more blank lines between documents.

    Yields:
        `list[str]`: The sentences of a document.

    Raises:
        DataFileNotFoundError: If a file does not exist. This is also a `ValueError`.
        ValueError: If a file has another format, is not UTF-8, or has no blank line between its sentences, so that it
            is a list of sentences rather than of documents.
    """
    for path in [source] if isinstance(source, (str, Path)) else source:
        yield from _documents_of(path)


def _documents_of(path: str | Path) -> Iterator[list[str]]:
    table = open_table(path)
    if table.format != "txt":
        raise ValueError(f"{path}: documents are read from .txt or .txt.gz files, one sentence on each line.")
    document: list[str] = []
    documents, last = 0, 0
    for number, (sentence,) in table.rows(table.columns):
        if document and number > last + 1:  # the table has skipped a blank line
            yield document
            documents += 1
            document = []
        document.append(sentence)
        last = number
    if not document:
        raise ValueError(f"{path}: the file holds no sentences, only blank lines.")
    if not documents:
        raise ValueError(
            f"{path}: there is no empty line between line 1 and line {last}, so the whole file would be one document "
            "and neighbours might come from different texts. Write one sentence on each line and an empty line after "
            "each document."
        )
    yield document


def next_sentence_pairs(source: str | Path | Sequence[str | Path], window: int = 1, seed: int = 0) -> Dataset:
    """Pair each sentence with one that follows it in its document.

    These are objectives of Table 2 in SimCSE (arXiv:2104.08821): window 1 is "next sentence", and window 3 is "next
    3 sentences: randomly sample one from the next 3 sentences". Fewer candidates are left near the end of a document.
    Pairs are drawn once and stay the same in every epoch. The last sentence of a document begins no pair.

    Args:
        source (`str | Path | Sequence`): The files; see [`read_documents`].
        window (`int`, *optional*, defaults to `1`): How many of the following sentences are candidates.
        seed (`int`, *optional*, defaults to `0`): Seed of the draw.

    Returns:
        `datasets.Dataset`: A dataset with the columns `sent0` and `sent1`, in the order of the files.

    Raises:
        ValueError: If `window` is below 1, the documents cannot be read, or each has a single sentence.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}.")
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
            f"{source}: all {alone} documents are a single sentence, which has no next one. Write one "
            "sentence on each line, and an empty line after each document only."
        )
    if alone:
        logger.info(f"{source}: {alone} documents of a single sentence give no pair.")
    return Dataset.from_dict({"sent0": first, "sent1": second})
