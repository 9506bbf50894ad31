"""Encode each distinct text once; all tasks look their embeddings up here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy import ndarray

from ..retrieval.exact import ExactIndex, comparable
from ..runtime.encoders import Encoder, Role, TextEncoder, as_encoder
from ..runtime.errors import ModelError, check_finite
from .metrics import cosine_similarity_pairs


class SentenceEmbeddings:
    """The embeddings of a set of texts, as a model gives them; see [`embed_all`].

    Args:
        texts (`Mapping[Role, Sequence[str]]`): The texts by what they are to a model; none of a role repeats.
        vectors (`numpy.ndarray`): Their embeddings in this order, of shape `(texts, dim)`.
        similarity (`str`, *optional*, defaults to `"cosine"`): How the model compares them.

    Raises:
        ValueError: If there is not one embedding per text, if an embedding holds NaN or infinity, or if all
            embeddings are the same.
    """

    def __init__(self, texts: Mapping[Role, Sequence[str]], vectors: ndarray, similarity: str = "cosine") -> None:
        self.similarity = similarity
        keys = [(role, text) for role, of_role in texts.items() for text in of_role]
        self._rows = {key: row for row, key in enumerate(keys)}
        self._vectors = vectors
        if vectors.ndim != 2 or len(vectors) != len(keys) or vectors.shape[1] == 0:
            raise ModelError(f"encode returned an array of shape {vectors.shape} for {len(keys)} texts.")
        check_finite(vectors, lambda number: f"text {number} ({keys[number][1][:80]!r})")
        # Compare up to rounding: the last digits depend on the batch that a text falls into.
        largest = np.abs(vectors).max(initial=0)
        spread = np.ptp(vectors, axis=0).max() if len(keys) > 1 else np.inf
        if spread <= 1e-5 * largest:
            raise ModelError(
                f"the embeddings of all {len(keys)} texts are the same: the model has collapsed, or its pooler "
                "reads a constant."
            )

    def __call__(self, texts: Iterable[str], role: Role = None) -> ndarray:
        """Return the embeddings of the texts of a role as `(n, dim)`, float32 (float64 if the model returns that)."""
        return self._vectors[[self._rows[role, text] for text in texts]]

    def pairs(self, first: Sequence[str], second: Sequence[str]) -> ndarray:
        """Return the similarity of each text of `first` with that of `second`, of shape `(n,)`."""
        return cosine_similarity_pairs(self(first), self(second), self.similarity)

    def rank(
        self,
        queries: Sequence[str],
        documents: Mapping[str, str],
        depth: int,
        roles: tuple[Role, Role] = ("query", "document"),
    ) -> Iterator[list[str]]:
        """Rank documents for queries as trec_eval does: by similarity, and equal ones by their ids, the highest first.

        Args:
            queries (`Sequence[str]`): The queries.
            documents (`Mapping[str, str]`): The documents by id. Ids are compared as texts: "9" is higher than "10".
            depth (`int`): The most documents to find for a query.
            roles (`tuple[Role, Role]`, *optional*): What queries and documents are to a model.

        Yields:
            `list[str]`: The ids of the documents of a query, the best one first.
        """
        ids = sorted(documents, reverse=True)
        of_queries, of_documents = roles
        x = comparable(self(queries, of_queries).astype(np.float32), self.similarity)
        y = comparable(self([documents[id] for id in ids], of_documents).astype(np.float32), self.similarity)
        # Equal embeddings are compared once, because the rounding of their products depends on the place in a matrix.
        copies: dict[bytes, list[int]] = {}
        for row, vector in enumerate(y):
            copies.setdefault(blake2b(vector.tobytes()).digest(), []).append(row)
        groups = list(copies.values())
        index = ExactIndex(y.shape[1], self.similarity)
        index.add(y[[group[0] for group in groups]])
        scores, found = index.search(x, min(depth, len(groups)))
        for of_query, groups_of_query in zip(scores, found, strict=True):
            ranked = []
            for score, group in zip(of_query, groups_of_query, strict=True):
                ranked += [(score, ids[row]) for row in groups[group][:depth]]
            ranked.sort(reverse=True)
            yield [id for _, id in ranked[:depth]]


def embed_all(
    model: Encoder | TextEncoder, texts: Mapping[Role, Iterable[str]], show_progress_bar: bool = True
) -> SentenceEmbeddings:
    """Encode each distinct text once.

    All distinct texts of a role go to one call of the model, the longest first, so that batches cut in that order have
    little padding. Progress bar, batching and sharding over processes are up to the encoder.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns floats of shape `(n, dim)`. An `encode`
            that takes `normalize_embeddings` is called with `None`, because SentEval's classifiers read embeddings as
            they are, and one that takes `show_progress_bar` with that of this function.
        texts (`Mapping[Role, Iterable[str]]`): The texts, in any order; they may repeat. Those of the roles `"query"`
            and `"document"` are encoded as in a search.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar, if the encoder has one.

    Returns:
        [`SentenceEmbeddings`]: Their embeddings, which are not normalized.
    """
    encoder = as_encoder(model)
    distinct = {}
    parts = []
    for role, of_role in texts.items():
        distinct[role] = sorted(dict.fromkeys(of_role), key=len, reverse=True)
        if distinct[role]:
            parts.append(encoder.embed(distinct[role], role, as_pooled=True, show_progress_bar=show_progress_bar))
    return SentenceEmbeddings(distinct, np.concatenate(parts or [np.zeros((0, 1))]), encoder.similarity)
