"""Correlations, cosine similarities of pairs, and the geometry of embeddings: alignment, uniformity, isotropy, ..."""

import math
from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch
from numpy import ndarray
from numpy.typing import ArrayLike
from torch import Tensor

from ..runtime.errors import DataError, SettingError, check_finite
from ..runtime.similarity import similarity_pairs

#: Embeddings of shape `(n, dim)`.
Vectors = ndarray | Tensor
BLOCK_ELEMENTS = 1 << 24  # entries of the similarity block held at once: 64 MB in float32


@dataclass(frozen=True)
class Metric:
    """What is known of a metric, wherever it is logged, compared or shown.

    Args:
        name (`str`): Its name, which stands at the end of names such as `eval_stsb_spearman`.
        higher_is_better (`bool`, *optional*, defaults to `True`): Whether a higher value is better.
        is_quality (`bool`, *optional*, defaults to `True`): Whether it says how good embeddings are, and not what they
            look like or what an evaluation cost. Only then it is multiplied by 100.
        digits (`int`, *optional*, defaults to `2`): Decimals in tables.
        on_card (`bool`, *optional*, defaults to `True`): Whether a card shows it among the scores of a dev set. That
            by which the checkpoint was chosen is always shown.
    """

    name: str
    higher_is_better: bool = True
    is_quality: bool = True
    digits: int = 2
    on_card: bool = True


def _described(name: str, higher_is_better: bool = True, digits: int = 2, on_card: bool = False) -> Metric:
    return Metric(name, higher_is_better, False, digits, on_card)


#: The metrics by name.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("spearman"),
        Metric("pearson"),
        Metric("accuracy"),
        Metric("macro_f1"),
        Metric("v_measure"),
        Metric("average_precision"),
        Metric("map"),
        Metric("ndcg@10"),
        Metric("mrr@10"),
        Metric("recall@100"),
        _described("alignment", higher_is_better=False, digits=4, on_card=True),
        _described("uniformity", higher_is_better=False, digits=4, on_card=True),
        _described("isotropy", digits=4),
        _described("mean_cosine", higher_is_better=False),  # a step towards collapse
        _described("effective_rank"),
        _described("loss", higher_is_better=False),
        _described("runtime", higher_is_better=False),
        _described("per_second"),
    )
}


def find_metric(name: str) -> Metric:
    """Return the metric whose name ends the name of a score, such as `eval_stsb_spearman`.

    Args:
        name (`str`): The name of a score.

    Returns:
        [`Metric`]: The metric. One that is not known is a score of somebody's own, which cards do not expect.
    """
    for metric in METRICS.values():
        if name == metric.name or name.endswith(f"_{metric.name}"):
            return metric
    return Metric(name, on_card=False)


def with_scale(name: str) -> str:
    """Return the name of a score for a heading, with its scale."""
    return f"{name} x 100" if find_metric(name).is_quality else name


def _checked(*sequences: ArrayLike | Tensor) -> list[ndarray]:
    """Return two sequences of numbers, arrays or tensors as float64 arrays that can be correlated."""
    arrays = []
    for values in sequences:
        if isinstance(values, Tensor):
            values = values.detach().to("cpu", torch.float64)
        arrays.append(np.asarray(values, dtype=np.float64))
    x, y = arrays
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise SettingError(
            f"a correlation needs sequences of equal length of at least 2, not {x.shape} and {y.shape}."
        )
    for which, values in (("first", x), ("second", y)):
        broken = np.count_nonzero(~np.isfinite(values))
        if broken:
            raise DataError(f"{broken} of the {len(values)} values of the {which} sequence are NaN or infinite")
        if (values == values[0]).all():
            raise DataError(
                f"all {len(values)} values of the {which} sequence equal {values[0]:g}: the embeddings have collapsed "
                "to one point, or all gold scores are the same."
            )
    return arrays


def spearman(a: ArrayLike | Tensor, b: ArrayLike | Tensor) -> float:
    """Compute Spearman's rank correlation in float64; tied values share their mean rank.

    Args:
        a (`numpy.ndarray`): Numbers of shape `(n,)`, usually cosine similarities. Lists and tensors are converted.
        b (`numpy.ndarray`): Numbers of shape `(n,)`, usually gold scores.

    Returns:
        `float`: A correlation in [-1, 1].

    Raises:
        ValueError: If the lengths differ, or if a sequence is constant or holds NaN or infinity.

    Examples:
        >>> from simcse_hf.evaluation import spearman
        >>> spearman([0.1, 0.4, 0.9], [0, 3, 5])  # only the order counts
        1.0
    """
    return float(scipy.stats.spearmanr(*_checked(a, b)).statistic)


def pearson(a: ArrayLike | Tensor, b: ArrayLike | Tensor) -> float:
    """Compute Pearson's linear correlation in float64; arguments and errors are those of [`spearman`]."""
    return float(scipy.stats.pearsonr(*_checked(a, b)).statistic)


CORRELATIONS = {"spearman": spearman, "pearson": pearson}


def cosine_similarity_pairs(x: Vectors, y: Vectors, similarity: str = "cosine") -> ndarray:
    """Compute the cosine similarity of two arrays row by row, as SentEval scores sentence pairs.

    Float64 embeddings are compared in float64 and all others in float32, as in SentEval. More digits would not be more
    exact: the pairs of a text with itself (65 of STS12's SMTeuroparl) would then be ranked by rounding errors.

    Args:
        x (`numpy.ndarray | torch.Tensor`): Embeddings of the first sentences, of shape `(n, dim)`.
        y (`numpy.ndarray | torch.Tensor`): Embeddings of the second sentences, of shape `(n, dim)`.
        similarity (`str`, *optional*, defaults to `"cosine"`): The measure, as in [`similarity_pairs`].

    Returns:
        `numpy.ndarray`: Cosines of shape `(n,)` in float64. The cosine with a zero embedding is 0, as in SentEval; an
        average of word vectors is zero for a text without a known word.

    Raises:
        SettingError: If the shapes differ or an embedding holds NaN or infinity.
    """
    x, y = (torch.as_tensor(each).detach().cpu() for each in (x, y))
    if x.ndim != 2 or x.shape != y.shape:
        raise SettingError(f"two arrays of the same shape (n, dim) are needed, not {x.shape} and {y.shape}.")
    dtype = torch.float64 if torch.float64 in (x.dtype, y.dtype) else torch.float32
    x = x.to(dtype)
    y = y.to(dtype)
    if similarity == "cosine":
        scores = torch.nn.functional.cosine_similarity(x, y, dim=1)
    else:
        scores = similarity_pairs(x, y, similarity)
    if not scores.isfinite().all():  # scores of finite embeddings are finite
        check_finite(x, "row {} of the first array".format)
        check_finite(y, "row {} of the second array".format)
    return scores.double().numpy()


def _normalized(vectors: Vectors) -> Tensor:
    """Scale the rows to unit length, in float64 if they are float64 and in float32 otherwise."""
    x = torch.as_tensor(vectors).detach()
    if x.ndim != 2 or len(x) == 0:
        raise SettingError(f"embeddings of shape (n, dim) are needed, not {tuple(x.shape)}.")
    if x.dtype != torch.float64:
        x = x.float()
    norms = x.norm(dim=1, keepdim=True)
    if not norms.isfinite().all():
        check_finite(x, lambda number: f"row {number + 1}")
    if not norms.all():
        row = int(norms.argmin()) + 1
        raise DataError(f"the embedding of row {row} is zero and cannot be normalized. Leave such texts out.")
    return x / norms


def alignment(x: Vectors, y: Vectors) -> float:
    """Compute the mean squared distance between the normalized embeddings of positive pairs; lower is better.

    See Wang and Isola (2020) and SimCSE, section 2.3. The paper uses STS-B pairs with a score above 4 (footnote 3).

    Args:
        x (`torch.Tensor`): Embeddings of the first sentences, of shape `(n, dim)`. They are normalized here.
        y (`torch.Tensor`): Embeddings of the second sentences, of shape `(n, dim)`.

    Returns:
        `float`: A value in [0, 4].

    Raises:
        SettingError: If the shapes differ, if there is no row, or if an embedding is zero or holds NaN or infinity.

    Examples:
        >>> import torch
        >>> from simcse_hf.evaluation import alignment
        >>> first = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> second = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
        >>> alignment(first, second)  # the squared distances are 2 and 0
        1.0
    """
    x = _normalized(x)
    y = _normalized(y)
    if x.shape != y.shape:
        raise SettingError(f"two tensors of the same shape (n, dim) are needed, not {x.shape} and {y.shape}.")
    differences = (x - y.to(x)).double()
    distances = differences.pow(2).sum(dim=1)
    return distances.mean().item()


def uniformity(x: Vectors, t: float = 2) -> float:
    """Compute the log of the mean Gaussian potential over all pairs i < j of normalized embeddings; lower is better.

    This is log E exp(-t ||x_i - x_j||^2) of Wang and Isola (2020). The paper uses all sentences of STS-B (footnote 3).
    The n x n matrix is computed in blocks of rows and never held as a whole.

    Args:
        x (`torch.Tensor`): Embeddings of shape `(n, dim)`. They are normalized here.
        t (`float`, *optional*, defaults to `2`): Sharpness of the potential.

    Returns:
        `float`: A value in [-4 t, 0], which is 0 if all embeddings are the same.

    Raises:
        SettingError: If there are fewer than two rows, or if an embedding is zero or holds NaN or infinity.

    Examples:
        >>> import torch
        >>> from simcse_hf.evaluation import uniformity
        >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)  # log exp(-2 * 2^2)
        -8.0
    """
    x = _normalized(x)
    n = len(x)
    if n < 2:
        raise SettingError("uniformity needs at least 2 embeddings, but there is 1.")
    rows = max(1, BLOCK_ELEMENTS // n)
    log_sums = []
    for start in range(0, n, rows):
        block = x[start : start + rows] @ x[start:].T
        block.sub_(1).mul_(2 * t).clamp_(max=0)  # -t ||x_i - x_j||^2 = 2 t (cos - 1)
        # Row i of the block is embedding start + i and column j is embedding start + j: keep the pairs with j > i.
        left_out = torch.ones_like(block, dtype=torch.bool).tril()
        block.masked_fill_(left_out, -math.inf)
        # Each row is summed in the block's own type, and the rows are summed in float64.
        log_sums.append(block.logsumexp(dim=1).double())
    total = torch.cat(log_sums).logsumexp(dim=0)
    return (total - math.log(n * (n - 1) / 2)).item()


def singular_spectrum(x: Vectors) -> list[float]:
    """Compute the singular values of the matrix of embeddings, divided by the largest (SimCSE, figure F.1).

    Args:
        x (`torch.Tensor`): Embeddings of shape `(n, dim)`. They are normalized here, as the objective does.

    Returns:
        `list[float]`: The min(n, dim) values in descending order; the first is 1. A flat spectrum is isotropic.

    Raises:
        ValueError: If there is no row, or if an embedding is zero or holds NaN or infinity.
    """
    values = torch.linalg.svdvals(_normalized(x).double())
    return (values / values[0]).tolist()


def collapse(x: Vectors) -> tuple[float, float]:
    """Measure whether embeddings collapse: to a point, by their mean cosine, or to few directions, by effective rank.

    The effective rank is the exponential of the entropy of the singular values, divided by their sum and taken for
    probabilities (Roy and Vetterli 2007, The effective rank).

    Args:
        x (`torch.Tensor`): At least two embeddings, of shape `(n, dim)`. They are normalized here.

    Returns:
        `tuple[float, float]`: The mean cosine of all pairs of different rows, in [-1 / (n - 1), 1], and the effective
        rank, in [1, min(n, dim)]; it is 1 if all embeddings lie on one line.

    Raises:
        ValueError: If there is no row, or if an embedding is zero or holds NaN or infinity.
    """
    x = _normalized(x).double()
    n, dim = x.shape
    of_all = x.sum(dim=0).square().sum()  # each row with itself too
    of_pairs = of_all - x.square().sum()
    gram = x @ x.T if n <= dim else x.T @ x
    squares = torch.linalg.eigvalsh(gram)
    values = squares.clamp(min=0).sqrt()
    entropy = torch.special.entr(values / values.sum()).sum()
    return (of_pairs / (n * (n - 1))).item(), entropy.exp().item()


def isotropy(x: Vectors) -> float:
    """Compute the ratio of the smallest to the largest partition function over the principal directions.

    See Mu and Viswanath (2018), All-but-the-Top, equations 1 and 2: Z(c) = sum_i exp(c . x_i), where c runs over the
    right singular vectors of the matrix of embeddings and, because their sign is arbitrary, over their negatives.

    Args:
        x (`torch.Tensor`): Embeddings of shape `(n, dim)`. They are normalized here.

    Returns:
        `float`: A value in (0, 1]; 1 is isotropic.

    Raises:
        ValueError: If there is no row, or if an embedding is zero or holds NaN or infinity.
    """
    x = _normalized(x).double()
    directions = torch.linalg.eigh(x.T @ x).eigenvectors
    projections = x @ directions
    log_z = torch.cat([projections, -projections], dim=1).logsumexp(dim=0)
    return (log_z.min() - log_z.max()).exp().item()
