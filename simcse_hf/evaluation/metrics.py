"""Correlations, and the cosine similarity of pairs."""

from typing import Any

import numpy as np
import scipy.stats
import torch

from ..ops.finite import check_finite


def as_float64(values: Any) -> np.ndarray:
    """Convert numbers, an array or a tensor (of any device and float type) to a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)


def _checked(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = as_float64(a), as_float64(b)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"a correlation needs two sequences of equal length, but their shapes are {a.shape} and {b.shape}."
        )
    if len(a) < 2:
        raise ValueError(f"a correlation needs at least 2 values, but there is {len(a)}.")
    for which, values in (("first", a), ("second", b)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"{int((~np.isfinite(values)).sum())} of the {len(values)} values of the {which} sequence are NaN or "
                "infinite. Check whether training diverged or half precision overflowed."
            )
        if (values == values[0]).all():
            raise ValueError(
                f"all {len(values)} values of the {which} sequence equal {values[0]:g}, so no correlation is defined. "
                "Either the embeddings have collapsed to one point, or all gold scores are the same."
            )
    return a, b


def spearman(a: Any, b: Any) -> float:
    """Compute Spearman's rank correlation in float64; tied values share their mean rank.

    Args:
        a (`numpy.ndarray`): Numbers of shape `(n,)`, usually cosine similarities. Lists and tensors are converted.
        b (`numpy.ndarray`): Numbers of shape `(n,)`, usually gold scores.

    Returns:
        `float`: A correlation in [-1, 1].

    Raises:
        ValueError: If the lengths differ, or if a sequence is constant or holds NaN or infinity.
    """
    return float(scipy.stats.spearmanr(*_checked(a, b)).statistic)


def pearson(a: Any, b: Any) -> float:
    """Compute Pearson's linear correlation in float64; arguments and errors are those of [`spearman`]."""
    return float(scipy.stats.pearsonr(*_checked(a, b)).statistic)


def cosine_similarity_pairs(x: Any, y: Any) -> np.ndarray:
    """Compute the cosine similarity of two arrays row by row, as SentEval scores sentence pairs.

    Float64 embeddings are compared in float64 and all others in float32, as in SentEval. More digits would not be more
    exact: the pairs of a text with itself (65 of STS12's SMTeuroparl) would then be ranked by rounding errors.

    Args:
        x (`numpy.ndarray | torch.Tensor`): Embeddings of the first sentences, of shape `(n, dim)`.
        y (`numpy.ndarray | torch.Tensor`): Embeddings of the second sentences, of shape `(n, dim)`.

    Returns:
        `numpy.ndarray`: Cosines of shape `(n,)` in float64. The cosine with a zero embedding is 0, as in SentEval; an
        average of word vectors is zero for a text without a known word.

    Raises:
        ValueError: If the shapes differ or an embedding holds NaN or infinity.
    """
    x, y = torch.as_tensor(x).detach().cpu(), torch.as_tensor(y).detach().cpu()
    if x.ndim != 2 or x.shape != y.shape:
        raise ValueError(
            f"two arrays of the same shape (n, dim) are needed, not {tuple(x.shape)} and {tuple(y.shape)}."
        )
    double = torch.float64 in (x.dtype, y.dtype)
    x, y = (vectors.to(torch.float64 if double else torch.float32) for vectors in (x, y))
    check_finite(x, "row {} of the first array")
    check_finite(y, "row {} of the second array")
    return torch.nn.functional.cosine_similarity(x, y, dim=1).double().numpy()
