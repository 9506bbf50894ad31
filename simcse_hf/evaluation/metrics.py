"""Correlations, cosine similarity of pairs, and the `evaluate.Metric` made of them."""

import datasets
import evaluate
import numpy as np
import scipy.stats
import torch


def as_float64(values) -> np.ndarray:
    """Returns numbers, an array or a tensor (any device, any float type) as a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)


def _checked(a, b) -> tuple[np.ndarray, np.ndarray]:
    a, b = as_float64(a), as_float64(b)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"a correlation needs two sequences of equal length, got shapes {a.shape} and {b.shape}.")
    if len(a) < 2:
        raise ValueError(f"a correlation needs at least 2 values, got {len(a)}.")
    for which, values in (("first", a), ("second", b)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"{int((~np.isfinite(values)).sum())} of the {len(values)} values of the {which} sequence are NaN or "
                "infinite: the sentence vectors are broken, look for a diverged loss or an overflow in half precision."
            )
        if (values == values[0]).all():
            raise ValueError(
                f"all {len(values)} values of the {which} sequence equal {values[0]:g}: no correlation is defined. "
                "The sentence vectors have collapsed to one point, or all gold scores are the same."
            )
    return a, b


def spearman(a, b) -> float:
    """Spearman's rank correlation, ties sharing their mean rank.

    Args:
        a (`array` of shape `(n,)`): Numbers, usually cosine similarities.
        b (`array` of shape `(n,)`): Numbers, usually gold scores.

    Returns:
        `float`: In [-1, 1], computed in float64.

    Raises:
        ValueError: If the lengths differ, or a sequence is constant or holds NaN or infinity.
    """
    return float(scipy.stats.spearmanr(*_checked(a, b)).statistic)


def pearson(a, b) -> float:
    """Pearson's linear correlation; arguments, result and errors as in [`spearman`]."""
    return float(scipy.stats.pearsonr(*_checked(a, b)).statistic)


def cosine_similarity_pairs(x, y) -> np.ndarray:
    """Cosine similarity row by row, by which SentEval scores a sentence pair.

    Float64 vectors are compared in float64, all others in float32, as SentEval compares them. More digits would not
    be more exact: the pairs of one text with itself (65 of STS12's SMTeuroparl) would then be ranked by rounding.

    Args:
        x (`array` or `tensor` of shape `(n, dim)`): Vectors of the first sentences.
        y (`array` or `tensor` of shape `(n, dim)`): Vectors of the second sentences.

    Returns:
        `numpy.ndarray` of shape `(n,)`: Cosines as float64; 0 where one of the vectors is zero (SentEval's convention:
        an average of word vectors over a text without any known word).

    Raises:
        ValueError: If the shapes differ or a vector holds NaN or infinity.
    """
    x, y = torch.as_tensor(x).detach().cpu(), torch.as_tensor(y).detach().cpu()
    if x.ndim != 2 or x.shape != y.shape:
        raise ValueError(f"expected two arrays of one shape (n, dim), got {tuple(x.shape)} and {tuple(y.shape)}.")
    double = torch.float64 in (x.dtype, y.dtype)
    x, y = (vectors.to(torch.float64 if double else torch.float32) for vectors in (x, y))
    if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("a sentence vector holds NaN or infinity, so its cosine is undefined.")
    return torch.nn.functional.cosine_similarity(x, y, dim=1).double().numpy()


class SimilarityCorrelation(evaluate.Metric):
    """Spearman's and Pearson's correlation of predicted similarities with gold scores.

    A metric module that is part of this package: nothing is fetched. It takes `predictions` and `references` (floats)
    and returns `{"spearman": ..., "pearson": ...}` in [-1, 1]; it composes with `evaluate.combine`.

    Examples:

    ```python
    >>> SimilarityCorrelation().compute(predictions=[0.1, 0.5, 0.9], references=[1.0, 3.0, 4.0])["spearman"]
    1.0
    ```
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Correlation of predicted sentence similarities with gold scores.",
            citation="Gao, Yao and Chen (2021). SimCSE: Simple Contrastive Learning of Sentence Embeddings. App. B.",
            inputs_description="predictions, references: sequences of floats of equal length.",
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
            ),
        )

    def _compute(self, predictions, references) -> dict[str, float]:
        return {"spearman": spearman(predictions, references), "pearson": pearson(predictions, references)}
