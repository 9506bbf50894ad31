"""Encode each distinct text once; all tasks look their embeddings up here."""

import inspect
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from numpy import ndarray

from ..ops.errors import check_finite_texts


class Encoder(Protocol):
    """Anything that turns texts into embeddings."""

    def encode(self, texts: list[str]) -> Any:
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

    def __init__(
        self,
        model: Encoder,
        texts: Iterable[str],
        show_progress_bar: bool = True,
    ) -> None:
        distinct = sorted(dict.fromkeys(texts), key=len, reverse=True)
        #: How the model compares embeddings.
        self.similarity = getattr(model, "similarity_fn_name", "cosine")
        self._rows = {text: row for row, text in enumerate(distinct)}
        if distinct:
            self._embeddings = _encode(model, distinct, show_progress_bar)
            self._check(distinct)

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, texts: list[str]) -> ndarray:
        """Return the embeddings of `texts` as `(len(texts), dim)`, float32 (float64 if the model returns that)."""
        rows = [self._rows[text] for text in texts]
        return self._embeddings[rows]

    def _check(self, texts: list) -> None:
        embeddings = self._embeddings
        if embeddings.ndim != 2 or len(embeddings) != len(texts) or embeddings.shape[1] == 0:
            raise ValueError(
                f"encode returned an array of shape {embeddings.shape} for {len(texts)} texts. It must return one "
                f"embedding per text, of shape ({len(texts)}, dim)."
            )
        check_finite_texts(embeddings, texts)
        # Compare up to rounding: the last digits depend on the batch that a text falls into.
        spread = np.ptp(embeddings, axis=0).max()
        if len(texts) > 1 and spread <= 1e-5 * np.abs(embeddings).max():
            raise ValueError(
                f"the embeddings of all {len(texts)} texts are the same, so no similarity can be scored. The model "
                "has collapsed, or its pooler reads a constant."
            )


def _encode(model: Encoder, texts: list, show_progress_bar: bool) -> ndarray:
    taken = inspect.signature(model.encode).parameters
    settings: dict = {}
    if "normalize_embeddings" in taken:
        settings["normalize_embeddings"] = None
    if "show_progress_bar" in taken:
        settings["show_progress_bar"] = show_progress_bar
    embeddings = model.encode(texts, **settings)
    if isinstance(embeddings, (list, tuple)) and isinstance(embeddings[0], torch.Tensor):
        embeddings = torch.stack(list(embeddings))
    if isinstance(embeddings, torch.Tensor):
        embeddings = embeddings.detach().cpu()
        if embeddings.dtype == torch.bfloat16:  # numpy does not know it
            embeddings = embeddings.float()
    embeddings = np.asarray(embeddings)
    return embeddings if embeddings.dtype == np.float64 else embeddings.astype(np.float32)
