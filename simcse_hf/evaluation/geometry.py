"""Alignment, uniformity and the singular spectrum of sentence vectors."""

import math

import torch

BLOCK_ELEMENTS = 1 << 24  # entries of the similarity block held at once: 64 MB in float32


def _normalized(x) -> torch.Tensor:
    """Rows of `x` at unit length, in float64 if `x` is float64 and in float32 otherwise."""
    x = torch.as_tensor(x)
    if x.ndim != 2 or len(x) == 0 or not x.is_floating_point():
        raise ValueError(f"expected float vectors of shape (n, dim), got {x.dtype} of shape {tuple(x.shape)}.")
    x = x.detach().to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if not torch.isfinite(x).all():
        raise ValueError("a sentence vector holds NaN or infinity.")
    norms = x.norm(dim=1, keepdim=True)
    if not norms.all():
        row = int((norms[:, 0] == 0).nonzero()[0, 0])
        raise ValueError(f"the vector of row {row + 1} is zero and cannot be normalised; leave such texts out.")
    return x / norms


def alignment(x: torch.Tensor, y: torch.Tensor) -> float:
    """Mean squared distance between the normalised vectors of positive pairs; lower is better.

    Wang and Isola (2020), the paper's section 2.3; the paper takes the STS-B pairs scored above 4 (footnote 3).

    Args:
        x (`torch.Tensor` of shape `(n, dim)`): Vectors of the first sentences, of any length.
        y (`torch.Tensor` of shape `(n, dim)`): Vectors of the second sentences.

    Returns:
        `float`: In [0, 4].

    Raises:
        ValueError: If the shapes differ, there is no row, or a vector is zero, NaN or infinite.
    """
    x, y = _normalized(x), _normalized(y)
    if x.shape != y.shape:
        raise ValueError(f"expected two tensors of one shape (n, dim), got {tuple(x.shape)} and {tuple(y.shape)}.")
    return (x - y.to(x)).double().pow(2).sum(dim=1).mean().item()


def uniformity(x: torch.Tensor, t: float = 2) -> float:
    """Log of the mean Gaussian potential over all distinct pairs i < j of normalised vectors; lower is better.

    Wang and Isola (2020): log E exp(-t ||x_i - x_j||^2); the paper takes all sentences of STS-B (footnote 3). The
    n x n matrix is never held: it is walked in blocks of rows.

    Args:
        x (`torch.Tensor` of shape `(n, dim)`): Vectors of the sentences, of any length.
        t (`float`, *optional*, defaults to 2): Sharpness of the potential.

    Returns:
        `float`: In [-4 t, 0]; 0 when all vectors are one point.

    Raises:
        ValueError: If there are fewer than two rows, or a vector is zero, NaN or infinite.
    """
    x = _normalized(x)
    n = len(x)
    if n < 2:
        raise ValueError(f"uniformity needs at least 2 vectors, got {n}.")
    rows = max(1, BLOCK_ELEMENTS // n)
    log_sums = []
    for start in range(0, n, rows):
        block = x[start : start + rows] @ x[start:].T
        block.sub_(1).mul_(2 * t).clamp_(max=0)  # -t ||x_i - x_j||^2 = 2 t (cos - 1)
        # Row i of the block is vector start + i and column j is vector start + j: keep j > i.
        width = len(block)
        block[:, :width].masked_fill_(torch.ones_like(block[:, :width], dtype=torch.bool).tril(), -math.inf)
        # A sum over n entries per row in the block's own type, then over rows in float64.
        log_sums.append(block.logsumexp(dim=1).double())
    return (torch.cat(log_sums).logsumexp(dim=0) - math.log(n * (n - 1) / 2)).item()


def singular_spectrum(x: torch.Tensor) -> list[float]:
    """Singular values of the matrix of sentence vectors, divided by the largest (paper, figure F.1).

    Args:
        x (`torch.Tensor` of shape `(n, dim)`): Vectors of the sentences; normalised first, as the objective sees them.

    Returns:
        `list[float]`: The min(n, dim) values in descending order, the first of them 1. A flat spectrum is isotropic.

    Raises:
        ValueError: If there is no row, or a vector is zero, NaN or infinite.
    """
    values = torch.linalg.svdvals(_normalized(x).double())
    return (values / values[0]).tolist()


def isotropy(x: torch.Tensor) -> float:
    """Ratio of the smallest to the largest partition function over the principal directions; 1 is isotropic.

    Mu and Viswanath (2018), All-but-the-Top, equations 1 and 2: Z(c) = sum_i exp(c . x_i), with c over the right
    singular vectors of the matrix of vectors and, since their sign is arbitrary, over their negatives too.

    Args:
        x (`torch.Tensor` of shape `(n, dim)`): Vectors of the sentences; normalised first.

    Returns:
        `float`: In (0, 1].

    Raises:
        ValueError: If there is no row, or a vector is zero, NaN or infinite.
    """
    x = _normalized(x).double()
    projections = x @ torch.linalg.eigh(x.T @ x).eigenvectors
    log_z = torch.cat([projections.logsumexp(dim=0), (-projections).logsumexp(dim=0)])
    return (log_z.min() - log_z.max()).exp().item()
