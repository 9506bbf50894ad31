"""Whitening: a linear map after which the sentence vectors have mean 0 and covariance identity."""

from collections.abc import Iterable

import torch
from torch import nn

from .interface import VectorTransform, check_vectors

# Vectors come in float32, whose rounding alone gives a constant coordinate of size x a standard deviation of about
# 6e-8 x. What varies less than 16 times that is noise, and dividing by it would make it as large as everything else.
_NOISE = 1e-6


class RunningCovariance:
    """Mean and covariance of vectors that come in parts, in float64; what it holds does not grow with their number.

    The parts are joined by the pairwise update of Chan, Golub and LeVeque (1979), which loses no digits where the
    mean is large beside the deviations, as that of encoders' vectors is.
    """

    def __init__(self):
        self.count = 0
        self.mean: torch.Tensor | None = None
        self._scatter: torch.Tensor | None = None

    def update(self, vectors: torch.Tensor) -> None:
        """Takes in (n, dim) vectors.

        Raises:
            ValueError: no vectors, another shape than those before, or values that are not finite.
        """
        check_vectors(vectors)
        part = vectors.double()
        count, mean = len(part), part.mean(dim=0)
        centred = part - mean
        scatter = centred.T @ centred
        if self.mean is None:
            self.count, self.mean, self._scatter = count, mean, scatter
            return
        if len(mean) != len(self.mean):
            raise ValueError(f"vectors of {len(mean)} dimensions follow on vectors of {len(self.mean)}")
        step = mean - self.mean
        total = self.count + count
        self._scatter += scatter + torch.outer(step, step) * (self.count * count / total)
        self.mean = self.mean + step * (count / total)
        self.count = total

    @property
    def covariance(self) -> torch.Tensor:
        """(dim, dim) float64, divided by the number of vectors."""
        return self._scatter / self.count


class Whitening(VectorTransform):
    """y = (x - mean) W as one linear layer in float64, its parameters named as in sentence-transformers' Dense.

    Args:
        input_dim: dimensions of the encoder's vectors.
        output_dim: leading principal directions that are kept.
    """

    method = "whitening"

    def __init__(self, input_dim: int, output_dim: int):
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output_dim
        self.linear = nn.Linear(input_dim, output_dim, dtype=torch.float64).requires_grad_(False)

    def options(self) -> dict:
        return {"input_dim": self.input_dim, "output_dim": self.output_dim}

    def _apply_to(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.linear(vectors)


def fit_whitening(parts: Iterable[torch.Tensor], dim: int | None = None) -> Whitening:
    """Whitening of vectors (Su et al. 2021, arXiv:2103.15316, equations 5 to 9; Huang et al. 2021, arXiv:2104.01767).

    With the covariance U diag(s) U^T, s descending, W = U diag(1 / sqrt(s)); with `dim` its first columns only, the
    directions of the largest variance.

    Args:
        parts: (n, input_dim) vectors, one part after the other; only one is in memory at a time.
        dim: columns of W that are kept; None: all. Or all but one: the output of a layer normalisation lies in a
            hyperplane, and so does what is pooled from one layer alone (`avg`, `cls_before_pooler`).

    Returns:
        The transform. Covariance (divided by n) of what it makes of the given vectors: the identity.

    Raises:
        ValueError: no vectors, a `dim` beyond theirs, or fewer directions in which they vary (beyond the rounding of
            float32) than are to be kept: too few sentences, or too many equal ones.
    """
    running = RunningCovariance()
    for part in parts:
        running.update(part)
    if running.mean is None:
        raise ValueError("there are no vectors to fit a whitening on")
    input_dim = len(running.mean)
    if dim is not None and not 1 <= dim <= input_dim:
        raise ValueError(f"dim must be between 1 and the vectors' {input_dim} dimensions, got {dim}")
    directions, variances, _ = torch.linalg.svd(running.covariance)
    largest = (running.mean.square() + running.covariance.diagonal()).max()
    rank = min(int((variances > _NOISE**2 * largest).sum()), running.count - 1)
    kept = (input_dim - (rank == input_dim - 1 < running.count - 1)) if dim is None else dim
    if kept > rank:
        raise ValueError(
            f"a whitening to {kept} dimensions needs vectors that vary in as many directions, but the "
            f"{running.count} given vary in {rank}: give more sentences (at least {kept + 1} different ones, better "
            + (f"ten times as many) or a dim of at most {rank}" if rank else "ten times as many)")
        )
    weight = (directions[:, :kept] / variances[:kept].sqrt()).T
    whitening = Whitening(input_dim, kept)
    whitening.linear.weight.copy_(weight)
    whitening.linear.bias.copy_(-weight @ running.mean)
    return whitening
