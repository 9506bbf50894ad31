"""Encode each distinct text once; all tasks look their embeddings up here."""

import inspect
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Protocol, Self

import numpy as np
import torch
from numpy import ndarray

from ..ops.errors import check_finite
from ..ops.similarity import similarity_of


class Encoder(Protocol):
    """Anything that turns texts into embeddings."""

    def encode(self, texts: list[str]) -> ndarray | torch.Tensor:
        """Return one embedding per text, as an array or tensor of shape `(n, dim)`."""


class SentenceEmbeddings:
    """The embeddings of a set of texts.

    All distinct texts go to one call of the model's `encode`, the longest first, so that batches cut in that order
    have little padding. Progress bar, batching and sharding over processes are up to the encoder.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns floats of shape `(n, dim)`. An `encode`
            that takes `normalize_embeddings` is called with `None`, because SentEval's classifiers read embeddings as
            they are, and one that takes `show_progress_bar` with that of this class.
        texts (`Iterable[str]`): The texts, in any order; they may repeat.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar, if the encoder has one.

    Raises:
        ValueError: If `encode` does not return one embedding per text, if an embedding holds NaN or infinity, or if
            all embeddings are the same.
    """

    def __init__(self, model: Encoder, texts: Iterable[str], show_progress_bar: bool = True) -> None:
        distinct = sorted(dict.fromkeys(texts), key=len, reverse=True)
        #: How the model compares embeddings.
        self.similarity = similarity_of(model)
        self._rows = {text: row for row, text in enumerate(distinct)}
        if not distinct:
            return
        # 1. Encode, and convert what the model returns to float32 or float64
        settings = {"normalize_embeddings": None, "show_progress_bar": show_progress_bar}
        taken = inspect.signature(model.encode).parameters
        returned = model.encode(distinct, **{name: value for name, value in settings.items() if name in taken})
        if isinstance(returned, torch.Tensor):
            returned = returned.detach().cpu()
            if returned.dtype == torch.bfloat16:  # numpy does not know it
                returned = returned.float()
        embeddings = np.asarray(returned)
        if embeddings.dtype != np.float64:
            embeddings = embeddings.astype(np.float32)
        self._embeddings = embeddings

        # 2. Refuse embeddings that cannot be scored
        if embeddings.ndim != 2 or len(embeddings) != len(distinct) or embeddings.shape[1] == 0:
            raise ValueError(f"encode returned an array of shape {embeddings.shape} for {len(distinct)} texts.")
        check_finite(embeddings, lambda number: f"text {number} ({distinct[number][:80]!r})")
        # Compare up to rounding: the last digits depend on the batch that a text falls into.
        spread = np.ptp(embeddings, axis=0).max()
        if len(distinct) > 1 and spread <= 1e-5 * np.abs(embeddings).max():
            raise ValueError(
                f"the embeddings of all {len(distinct)} texts are the same: the model has collapsed, or its pooler "
                "reads a constant."
            )

    @classmethod
    def of(cls, texts: Sequence[str], vectors: ndarray | torch.Tensor, similarity: str = "cosine") -> Self:
        """Take embeddings that were computed before.

        Args:
            texts (`Sequence[str]`): The texts; none of them repeats.
            vectors (`numpy.ndarray` or `torch.Tensor`): Their embeddings, of shape `(texts, dim)`.
            similarity (`str`, *optional*, defaults to `"cosine"`): How the model compares them.

        Returns:
            [`SentenceEmbeddings`]: The embeddings.

        Raises:
            ValueError: As for those of a model.
        """
        rows = {text: row for row, text in enumerate(texts)}
        known = SimpleNamespace(
            encode=lambda asked: vectors[[rows[text] for text in asked]], similarity_fn_name=similarity
        )
        return cls(known, texts)

    def __call__(self, texts: Iterable[str]) -> ndarray:
        """Return the embeddings of `texts` as `(n, dim)`, float32 (float64 if the model returns that)."""
        return self._embeddings[[self._rows[text] for text in texts]]
