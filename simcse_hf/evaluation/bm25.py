"""Keyword search as a model: what the words alone score, without weights or vectors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy import ndarray
from transformers.utils import logging

from ..names import KEYWORDS
from ..runtime.errors import DataError, require_extra
from ..runtime.identity import Identity

logger = logging.get_logger(__name__)

BM25_SETTINGS = {"method": "lucene", "k1": 1.5, "b": 0.75}


class BM25:
    """The model `bm25` of `evaluate` and `compare`, which ranks and scores texts in place of [`SentenceEmbeddings`].

    The score of a document for a query is the sum, over the words of the query, of
    `log(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + k1 * (1 - b + b * length / mean length))`, with the `f` times that
    the document has the word, and the `n` of `N` documents that have it (Robertson and Zaragoza 2009, in the form of
    Lucene; k1 = 1.5, b = 0.75). A word that the query repeats counts as often. Words are what the package bm25s finds:
    two letters or digits at least, lower-cased, neither stemmed nor left out as stop words; so a language that writes
    no spaces needs another baseline.

    All is counted over the distinct texts, which are the documents or candidates of a task, or all its texts if it has
    none.

    Args:
        texts (`Iterable[str]`, *optional*): The texts that are counted; they may repeat.

    Raises:
        ImportError: If bm25s is not installed.
        ValueError: If no text has a word.
    """

    similarity = KEYWORDS

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._package = require_extra("bm25s", "bm25", f"the model {KEYWORDS}")
        self._places = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        if not self._places:
            return
        words = self._words(list(self._places))
        if not any(words):
            raise DataError(f"{KEYWORDS} finds no word of two letters in the {len(words)} texts of the task.")
        counts = Counter(chain.from_iterable(map(set, words)))
        alone = sum(all(counts[word] == 1 for word in each) for each in words)
        if alone > len(words) / 2:
            logger.warning_once(
                f"{KEYWORDS}: {alone} of {len(words)} texts have no word in common with another one, so it cannot "
                "rank them. A language that writes no spaces between words needs another baseline."
            )
        self._index = self._package.BM25(**BM25_SETTINGS)
        self._index.index(words, show_progress=False)

    def identity(self) -> Identity:
        """Return the package with its version, and the parameters in place of weights and a tokenizer."""
        return Identity(
            KEYWORDS,
            backend=f"bm25s {self._package.__version__}",
            tokenizer="lower-cased words of two letters or more",
            weights=str(BM25_SETTINGS),
            similarity=KEYWORDS,
        )

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        return self._package.tokenize(texts, stopwords=None, return_ids=False, show_progress=False)

    def _scores(self, queries: Sequence[str]) -> Iterator[ndarray]:
        """Yield the scores of all texts that are counted, for each query."""
        for words in self._words(queries):
            yield self._index.get_scores_from_ids(self._index.get_tokens_ids(words))

    def pairs(self, first: Sequence[str], second: Sequence[str]) -> ndarray:
        """Score pairs of texts: by the share of a text's score for itself that the other one has, both ways averaged.

        The plain score of a pair grows with the number of words and would rank long pairs first.

        Args:
            first (`Sequence[str]`): The first texts.
            second (`Sequence[str]`): The second texts.

        Returns:
            `numpy.ndarray`: Symmetric scores of shape `(n,)`: 0 without a common word, and 1 for equal texts.
        """
        queries = [*first, *second]
        shares = []
        for query, document, scores in zip(queries, [*second, *first], self._scores(queries), strict=True):
            own = scores[self._places[query]] or 1  # without words, all scores are 0
            shares.append(scores[self._places[document]] / own)
        return np.reshape(shares, (2, -1)).mean(axis=0)

    def rank(
        self, queries: Sequence[str], documents: Mapping[str, str], depth: int, roles: object = None
    ) -> Iterator[list[str]]:
        """Rank documents as [`SentenceEmbeddings.rank`] does; those without a common word are the last ones.

        Args:
            queries (`Sequence[str]`): The queries.
            documents (`Mapping[str, str]`): The documents by id. Equal scores are ranked by ids, the highest first.
            depth (`int`): The most documents to find for a query.
            roles (`object`, *optional*): Not used: words have no prompts.

        Yields:
            `list[str]`: The ids of the documents of a query, the best one first.
        """
        ids = sorted(documents, reverse=True)
        rows = [self._places[documents[id]] for id in ids]
        for scores in self._scores(queries):
            best = np.argsort(-scores[rows], kind="stable")[:depth]
            yield [ids[place] for place in best]
