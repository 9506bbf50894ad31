"""Encode each distinct text once; all tasks look their embeddings up here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Self

import numpy as np
import torch
from numpy import ndarray

from ..retrieval.indexes.exact import ExactIndex, comparable
from ..runtime.encoders import Encoder, Role, TextEncoder, as_encoder
from ..runtime.errors import DataError, check_finite
from .metrics import cosine_similarity_pairs


class SentenceEmbeddings:
    """The embeddings of a set of texts.

    All distinct texts of a role go to one call of the model, the longest first, so that batches cut in that order have
    little padding. Progress bar, batching and sharding over processes are up to the encoder.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns floats of shape `(n, dim)`. An `encode`
            that takes `normalize_embeddings` is called with `None`, because SentEval's classifiers read embeddings as
            they are, and one that takes `show_progress_bar` with that of this class.
        texts (`Iterable[str]` or `Mapping[Role, Iterable[str]]`): The texts, in any order; they may repeat. Those of
            the roles `"query"` and `"document"` are encoded as in a search.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar, if the encoder has one.

    Raises:
        ValueError: If `encode` does not return one embedding per text, if an embedding holds NaN or infinity, or if
            all embeddings are the same.
    """

    def __init__(
        self,
        model: Encoder | TextEncoder,
        texts: Iterable[str] | Mapping[Role, Iterable[str]],
        show_progress_bar: bool = True,
    ) -> None:
        encoder = as_encoder(model)
        by_role = texts if isinstance(texts, Mapping) else {None: texts}
        keys = []
        parts = []
        for role, of_role in by_role.items():
            distinct = sorted(dict.fromkeys(of_role), key=len, reverse=True)
            keys += [(role, text) for text in distinct]
            if distinct:
                parts.append(encoder.embed(distinct, role, as_pooled=True, show_progress_bar=show_progress_bar))
        self._keep(keys, np.concatenate(parts or [np.zeros((0, 1))]), encoder.similarity)

    @classmethod
    def of(cls, texts: Mapping[Role, Sequence[str]], vectors: torch.Tensor, similarity: str = "cosine") -> Self:
        """Take embeddings that were computed before.

        Args:
            texts (`Mapping[Role, Sequence[str]]`): The texts; none of a role repeats.
            vectors (`torch.Tensor`): Their embeddings in this order, of shape `(texts, dim)`.
            similarity (`str`, *optional*, defaults to `"cosine"`): How the model compares them.

        Returns:
            [`SentenceEmbeddings`]: The embeddings.

        Raises:
            ValueError: As for those of a model.
        """
        made = cls.__new__(cls)
        keys = [(role, text) for role, of_role in texts.items() for text in of_role]
        made._keep(keys, vectors.numpy(), similarity)
        return made

    def _keep(self, keys: list[tuple[Role, str]], embeddings: ndarray, similarity: str) -> None:
        """Keep the embeddings of texts, and refuse those that cannot be scored."""
        #: How the model compares embeddings.
        self.similarity = similarity
        self._rows = {key: row for row, key in enumerate(keys)}
        self._embeddings = embeddings
        if embeddings.ndim != 2 or len(embeddings) != len(keys) or embeddings.shape[1] == 0:
            raise DataError(f"encode returned an array of shape {embeddings.shape} for {len(keys)} texts.")
        check_finite(embeddings, lambda number: f"text {number} ({keys[number][1][:80]!r})")
        # Compare up to rounding: the last digits depend on the batch that a text falls into.
        if len(keys) > 1 and np.ptp(embeddings, axis=0).max() <= 1e-5 * np.abs(embeddings).max():
            raise DataError(
                f"the embeddings of all {len(keys)} texts are the same: the model has collapsed, or its pooler "
                "reads a constant."
            )

    def __call__(self, texts: Iterable[str], role: Role = None) -> ndarray:
        """Return the embeddings of the texts of a role as `(n, dim)`, float32 (float64 if the model returns that)."""
        return self._embeddings[[self._rows[role, text] for text in texts]]

    def over(self, roles: Mapping[Role, Sequence[str]]) -> "SentenceEmbeddings":
        """Return what compares the texts of one task: these embeddings, which depend on no other text."""
        return self

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
        texts = (queries, [documents[id] for id in ids])
        x, y = (
            comparable(self(each, role).astype(np.float32), self.similarity)
            for each, role in zip(texts, roles, strict=True)
        )
        # Equal embeddings are compared once, because the rounding of their products depends on the place in a matrix.
        copies: dict[bytes, list[int]] = {}
        for row, vector in enumerate(y):
            copies.setdefault(blake2b(vector.tobytes()).digest(), []).append(row)
        groups = list(copies.values())
        index = ExactIndex(y.shape[1], self.similarity)
        index.add(y[[group[0] for group in groups]])
        for found in zip(*index.search(x, min(depth, len(groups))), strict=True):
            ranked = [(score, ids[row]) for score, group in zip(*found, strict=True) for row in groups[group][:depth]]
            yield [id for _, id in sorted(ranked, reverse=True)[:depth]]
