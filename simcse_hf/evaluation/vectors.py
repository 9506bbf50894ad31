"""Each distinct text encoded once, and looked up by all tasks."""

import inspect
from collections.abc import Iterable

import numpy as np
import torch


class SentenceVectors:
    """The vectors of a set of texts.

    The distinct texts go to one call of the model's `encode`, longest first, so that batches cut in that order have
    little padding whoever cuts them; progress bar, batching and sharding over processes are the encoder's.

    Args:
        model: An object with `encode(list[str]) -> (n, dim)` float array or tensor. An `encode` that takes
            `normalize` or `show_progress` is called with `normalize=False` (SentEval's classifiers see the vectors as
            they are) and `show_progress=True`.
        texts (iterable of `str`): The texts, in any order, repeated or not.

    Raises:
        ValueError: If `encode` returns another shape than one vector per text, a vector that holds NaN or infinity,
            or one and the same vector for all texts.
    """

    def __init__(self, model, texts: Iterable[str]):
        distinct = sorted(dict.fromkeys(texts), key=len, reverse=True)
        self._rows = {text: row for row, text in enumerate(distinct)}
        self._vectors = _to_numpy(_encode(model, distinct)) if distinct else np.zeros((0, 0), dtype=np.float32)
        if distinct:
            self._check(distinct)

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, texts: list[str]) -> np.ndarray:
        """The vectors of `texts`, of shape `(len(texts), dim)`, float32 (float64 if the model returns that)."""
        return self._vectors[[self._rows[text] for text in texts]]

    def _check(self, texts: list[str]) -> None:
        vectors = self._vectors
        if vectors.ndim != 2 or len(vectors) != len(texts) or vectors.shape[1] == 0:
            raise ValueError(f"encode returned shape {vectors.shape} for {len(texts)} texts; expected (n, dim).")
        broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(broken):
            raise ValueError(
                f"{len(broken)} of {len(texts)} sentence vectors hold NaN or infinity, the first for the text "
                f"{texts[broken[0]][:80]!r}: look for a diverged training or an overflow in half precision."
            )
        # Equal up to rounding: which batch a text falls into moves the last digits.
        if len(texts) > 1 and np.ptp(vectors, axis=0).max() <= 1e-5 * np.abs(vectors).max():
            raise ValueError(
                f"the vectors of all {len(texts)} texts are the same: the model has collapsed (or its pooler reads a "
                "constant), so no similarity can be scored."
            )


def _encode(model, texts: list[str]):
    try:
        parameters = inspect.signature(model.encode).parameters
    except (TypeError, ValueError):  # a callable without a Python signature
        parameters = {}
    settings = {name: value for name, value in (("normalize", False), ("show_progress", True)) if name in parameters}
    return model.encode(texts, **settings)


def _to_numpy(vectors) -> np.ndarray:
    if isinstance(vectors, (list, tuple)) and vectors and isinstance(vectors[0], torch.Tensor):
        vectors = torch.stack(list(vectors))
    if isinstance(vectors, torch.Tensor):
        vectors = vectors.detach().cpu()
        vectors = (vectors if vectors.dtype == torch.float64 else vectors.float()).numpy()
    vectors = np.asarray(vectors)
    return vectors if vectors.dtype == np.float64 else vectors.astype(np.float32)
