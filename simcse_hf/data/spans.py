"""DeCLUTR's rows: anchor spans of a document, and positive spans around each, drawn anew every epoch."""

import random
from collections.abc import Iterable
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .templates import special_tokens
from .view_dataset import SeededDataset

logger = logging.get_logger(__name__)

_ANCHOR_LENGTHS = (4, 2)  # of the Beta distribution, skewed to long spans
_POSITIVE_LENGTHS = (2, 4)  # skewed to short ones
_DOCUMENTS_A_CALL = 256


class SpanDataset(SeededDataset):
    """Spans of documents (DeCLUTR, Giorgi et al. 2021, arXiv:2006.03659), one row a document.

    An anchor's length is Beta(4, 2) between `min_span` and `max_span`, its start uniform; each of its positives has a
    length of Beta(2, 4) and starts anywhere from one length before the anchor to the anchor's end, so that it lies
    next to the anchor, over its edge, or within it. Spans of several anchors are kept apart: each anchor has its own
    equal part of the document (the authors' program draws among blocks instead).

    A row is {"input_ids": [anchor, its positives, next anchor, its positives, ...]}, each with special tokens: what
    the objective `declutr` takes, its option `anchors` being that of this class.

    Args:
        documents: lists of sentences (see `read_documents`); held in memory as token ids, 4 bytes a token.
        tokenizer: adds its special tokens, before and behind.
        max_seq_length: in tokens, special tokens included.
        seed: of the run.
        anchors: a document; 2 in the paper, 1 here.
        positives: an anchor; 2 in the paper.
        max_span: longest span in tokens without special tokens, 512 in the paper; None is what `max_seq_length` holds.
        min_span: shortest, 32 in the paper; None is a sixteenth of `max_span`, the paper's ratio, and at least 1.
        min_tokens: shorter documents are left out; None is the paper's 2 * anchors * max_span.

    Raises:
        ValueError: lengths or numbers that do not fit each other, or no document is long enough.
    """

    def __init__(
        self,
        documents: Iterable[list[str]],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        seed: int = 0,
        anchors: int = 1,
        positives: int = 2,
        max_span: int | None = None,
        min_span: int | None = None,
        min_tokens: int | None = None,
    ):
        super().__init__(seed)
        self._before, self._after = special_tokens(tokenizer)
        room = max_seq_length - len(self._before) - len(self._after)
        self.max_span = room if max_span is None else max_span
        self.min_span = max(1, self.max_span // 16) if min_span is None else min_span
        if anchors < 1 or positives < 1:
            raise ValueError(f"anchors and positives must be at least 1, got {anchors} and {positives}")
        if not 1 <= self.min_span <= self.max_span <= room:
            raise ValueError(
                f"spans of {self.min_span} to {self.max_span} tokens: min_span must be at least 1, max_span at least "
                f"min_span and at most {room}, max_seq_length = {max_seq_length} less the special tokens"
            )
        shortest = 2 * anchors * self.max_span if min_tokens is None else min_tokens
        if shortest < anchors * self.max_span:
            raise ValueError(
                f"min_tokens must be at least anchors * max_span = {anchors * self.max_span}, got {shortest}"
            )
        self.anchors, self.positives = anchors, positives
        self._tokens, self._ends = _tokenize(documents, tokenizer, shortest)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitems__(self, indices: list[int]) -> list[dict]:
        return [{"input_ids": self._spans(index)} for index in indices]

    def _spans(self, index: int) -> list[list[int]]:
        document = self._tokens[self._ends[index] : self._ends[index + 1]]
        rng = self.random_of(index)
        spans = []
        for part in range(self.anchors):
            low, high = (len(document) * edge // self.anchors for edge in (part, part + 1))
            spans += self._anchor_and_positives(low, high, len(document), rng)
        return [[*self._before, *document[start:end].tolist(), *self._after] for start, end in spans]

    def _anchor_and_positives(self, low: int, high: int, total: int, rng: random.Random) -> list[tuple[int, int]]:
        length = self._length(_ANCHOR_LENGTHS, rng)
        start = rng.randint(low, high - length)
        spans = [(start, start + length)]
        for _ in range(self.positives):
            size = self._length(_POSITIVE_LENGTHS, rng)
            place = rng.randint(max(0, start - size), min(start + length, total - size))
            spans.append((place, place + size))
        return spans

    def _length(self, beta: tuple[int, int], rng: random.Random) -> int:
        return self.min_span + int(rng.betavariate(*beta) * (self.max_span - self.min_span))


def _tokenize(
    documents: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase, shortest: int
) -> tuple[np.ndarray, np.ndarray]:
    """All tokens in a row, and the places where the documents end, the first of which is 0."""
    kept, ends, longest, seen = [], [0], 0, 0
    documents = iter(documents)
    while texts := [" ".join(sentences) for sentences in islice(documents, _DOCUMENTS_A_CALL)]:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        for ids in encoded["input_ids"]:
            seen, longest = seen + 1, max(longest, len(ids))
            if len(ids) >= shortest:
                kept.append(np.asarray(ids, dtype=np.int32))
                ends.append(ends[-1] + len(ids))
    if not kept:
        raise ValueError(
            f"none of the {seen} documents has {shortest} tokens, the longest has {longest}: lower max_span (or "
            "max_seq_length), or min_tokens"
        )
    if len(kept) < seen:
        logger.info(f"{seen - len(kept)} of {seen} documents are left out: they have fewer than {shortest} tokens.")
    return np.concatenate(kept), np.asarray(ends)
