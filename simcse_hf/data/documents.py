"""Documents, with one sentence on each line and a blank line between two: pairs of neighbours and DeCLUTR's spans."""

import random
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..runtime.errors import DataError, SettingError, check_values
from .table import open_table
from .token_ids import special_tokens
from .view_dataset import SeededDataset

logger = logging.get_logger(__name__)

_ANCHOR_BETA = (4, 2)  # Beta distribution of anchor lengths, skewed towards long spans
_POSITIVE_BETA = (2, 4)  # Beta distribution of positive lengths, skewed towards short spans
_DOCUMENTS_PER_CALL = 256
_FORM = "one sentence on each line, and an empty line after each document only"


def read_documents(path: str | Path) -> Iterator[list[str]]:
    """Yield the documents of a file.

    Args:
        path (`str | Path`): A .txt or .txt.gz file in UTF-8 with one sentence on each line and one or more blank lines
            between documents.

    Yields:
        `list[str]`: The sentences of a document.

    Raises:
        DataFileNotFoundError: If the file does not exist. This is also a `ValueError`.
        DataError: If the file has another format, is not UTF-8, or has no blank line between its sentences, so that
            it is a list of sentences rather than of documents.
    """
    table = open_table(path)
    if not table.name.lower().removesuffix(".gz").endswith(".txt"):
        raise DataError(f"{path}: documents are read from .txt or .txt.gz files, one sentence on each line.")
    document: list[str] = []
    is_divided = False
    last = 0
    for number, (sentence,) in table.rows(table.columns):
        if document and number > last + 1:  # the table has skipped a blank line
            yield document
            document = []
            is_divided = True
        document.append(sentence)
        last = number
    if not document:
        raise DataError(f"{path}: the file holds no sentences, only blank lines.")
    if not is_divided:
        raise DataError(
            f"{path}: there is no empty line between line 1 and line {last}. Write {_FORM}, or neighbours might come "
            "from different texts."
        )
    yield document


def next_sentence_pairs(path: str | Path, window: int = 1, seed: int = 0) -> Dataset:
    """Pair each sentence with one that follows it in its document.

    These are objectives of Table 2 in SimCSE (arXiv:2104.08821): window 1 is "next sentence", and window 3 is "next
    3 sentences: randomly sample one from the next 3 sentences". Fewer candidates are left near the end of a document.
    Pairs are drawn once and stay the same in every epoch. The last sentence of a document begins no pair.

    Args:
        path (`str | Path`): The file; see [`read_documents`].
        window (`int`, *optional*, defaults to `1`): How many of the following sentences are candidates.
        seed (`int`, *optional*, defaults to `0`): Seed of the draw.

    Returns:
        `datasets.Dataset`: A dataset with the columns `sent0` and `sent1`, in the order of the file.

    Raises:
        DataError: If the documents cannot be read, or each has a single sentence.
    """
    rng = random.Random(seed)
    first = []
    second = []
    alone = 0
    for document in read_documents(path):
        alone += len(document) == 1
        for place, sentence in enumerate(document[:-1]):
            first.append(sentence)
            second.append(rng.choice(document[place + 1 : place + 1 + window]))
    if not first:
        raise DataError(f"{path}: all {alone} documents are a single sentence, which has no next one. Write {_FORM}.")
    if alone:
        logger.info(f"{path}: {alone} documents of a single sentence give no pair.")
    return Dataset.from_dict({"sent0": first, "sent1": second})


class SpanDataset(SeededDataset):
    """Spans of documents, one row per document (DeCLUTR, Giorgi et al. 2021, arXiv:2006.03659).

    The length of an anchor follows Beta(4, 2) between `min_span` and `max_span`, and its start is uniform.
    The length of a positive follows Beta(2, 4). It starts anywhere from one length before the anchor up to the
    anchor's end, so it touches, overlaps or lies within the anchor:

        anchor              [......]
        positive of 3   [..]            the earliest: it ends where the anchor starts
        positive of 3               [..]    the latest: it starts where the anchor ends

    With several anchors, each one has its own equal part of the document, so that they never overlap. (The authors'
    program draws among blocks instead.)

    A row is `{"input_ids": [anchor, its positives, next anchor, its positives, ...]}`, each with special tokens. Train
    it with objective `declutr`, whose option `anchors` must have the same value.

    Args:
        documents (`Iterable[list[str]]`): Documents as lists of sentences (see `read_documents`). They are kept in
            memory as token ids, at 4 bytes per token.
        tokenizer (`PreTrainedTokenizerBase`): Tokenizer of the model.
        max_seq_length (`int`): Maximum number of tokens of a span, including special tokens.
        seed (`int`, *optional*, defaults to `0`): Seed of the run.
        anchors (`int`, *optional*, defaults to `1`): Anchors per document. The paper uses 2.
        positives (`int`, *optional*, defaults to `2`): Positives per anchor. The paper uses 2.
        max_span (`int`, *optional*): Longest span, without special tokens. The paper uses 512. By default it is what
            fits into `max_seq_length`. A document needs `2 * anchors * max_span` tokens.
        min_span (`int`, *optional*): Shortest span. The paper uses 32. By default it is a sixteenth of `max_span`, the
            paper's ratio, and at least 1.

    Raises:
        ValueError: If lengths or numbers contradict each other, or no document is long enough.
    """

    says = "spans"

    def __init__(
        self,
        documents: Iterable[list[str]],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        seed: int = 0,
        *,
        anchors: int = 1,
        positives: int = 2,
        max_span: int | None = None,
        min_span: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.anchors = anchors
        self.positives = positives
        check_values("an integer above 0", anchors=anchors, positives=positives)
        self._special = special_tokens(tokenizer)
        room = max_seq_length - self._special.num_tokens
        self.max_span = room if max_span is None else max_span
        self.min_span = max(1, self.max_span // 16) if min_span is None else min_span
        if not 1 <= self.min_span <= self.max_span <= room:
            raise SettingError(
                f"spans of {self.min_span} to {self.max_span} tokens are not possible: set 1 <= min_span <= max_span "
                f"<= {room} (max_seq_length={max_seq_length} without special tokens)"
            )
        # The tokens of all documents that are long enough, and the bounds between them
        shortest = 2 * anchors * self.max_span
        kept = []
        lengths = []
        documents = iter(documents)
        while texts := [" ".join(sentences) for sentences in islice(documents, _DOCUMENTS_PER_CALL)]:
            encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
            for ids in encoded["input_ids"]:
                lengths.append(len(ids))
                if len(ids) >= shortest:
                    kept.append(np.asarray(ids, dtype=np.int32))
        left_out = len(lengths) - len(kept)
        if not kept:
            raise SettingError(
                f"none of the {left_out} documents has {shortest} tokens, and the longest has "
                f"{max(lengths, default=0)}: lower max_span (or max_seq_length)"
            )
        if left_out:
            logger.info(f"{left_out} of {len(lengths)} documents have under {shortest} tokens, and are left out.")
        self._tokens = np.concatenate(kept)
        self._ends = np.cumsum([0, *map(len, kept)])

    def digest(self) -> str:
        """Return a digest of the documents."""
        return blake2b(self._tokens.tobytes(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitems__(self, indices: list[int]) -> list[dict]:
        rows = []
        for index in indices:
            document = self._tokens[self._ends[index] : self._ends[index + 1]].tolist()
            total = len(document)
            rng = self.random_of(index)
            spans = []
            for part in range(self.anchors):
                # 1. An anchor within its part of the document
                low = total * part // self.anchors
                high = total * (part + 1) // self.anchors
                length = self._draw_length(rng, _ANCHOR_BETA)
                start = rng.randint(low, high - length)
                end = start + length
                spans.append(document[start:end])
                # 2. Its positives, from one length before it up to its end
                for _ in range(self.positives):
                    size = self._draw_length(rng, _POSITIVE_BETA)
                    first = rng.randint(max(0, start - size), min(end, total - size))
                    spans.append(document[first : first + size])
            rows.append({"input_ids": list(map(self._special.put_around, spans))})
        return rows

    def _draw_length(self, rng: random.Random, beta: tuple[int, int]) -> int:
        return self.min_span + int(rng.betavariate(*beta) * (self.max_span - self.min_span))
