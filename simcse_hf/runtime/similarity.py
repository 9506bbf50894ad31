"""Compare embeddings by the similarities of sentence-transformers: cosine, dot, euclidean and manhattan."""

import math

import torch
from torch import Tensor

from .errors import SettingError

#: The norms of the similarities that are negative distances.
_NORMS = {"euclidean": 2.0, "manhattan": 1.0}


def similarity_matrix(x: Tensor, y: Tensor, similarity: str) -> Tensor:
    """Compare each embedding of `x` with each of `y`.

    Args:
        x (`torch.Tensor`): Embeddings of shape `(n, dim)`; for `"cosine"`, of unit length.
        y (`torch.Tensor`): Embeddings of shape `(m, dim)`.
        similarity (`str`): `"cosine"`, `"dot"`, `"euclidean"` or `"manhattan"`. The last two are negative distances.

    Returns:
        `torch.Tensor`: Of shape `(n, m)`; larger for embeddings that are more similar.
    """
    if similarity in _NORMS:
        return -torch.cdist(x, y, _NORMS[similarity], "donot_use_mm_for_euclid_dist")
    return x @ y.T


def similarity_pairs(x: Tensor, y: Tensor, similarity: str) -> Tensor:
    """Compare each row of `x` with the same row of `y`; arguments as in [`similarity_matrix`]."""
    if similarity in _NORMS:
        return -torch.linalg.vector_norm(x - y, _NORMS[similarity], dim=1)
    return (x * y).sum(dim=1)


def check_scores(similarity: str, **scores: float | None) -> None:
    """Raise a `ValueError` that names an argument if it is no possible similarity: NaN, or a cosine beyond 1."""
    most = 1 if similarity == "cosine" else math.inf
    for name, score in scores.items():
        if score is not None and not -most <= score <= most:
            raise SettingError(f"{name} must be a {similarity}, between {-most} and {most}, got {score}")
