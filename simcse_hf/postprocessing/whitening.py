"""Whitening: a linear map after which embeddings have mean 0 and the identity as covariance."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..runtime.errors import check_values
from .transform import NOISE, VectorTransform, check_embeddings


class Whitening(VectorTransform):
    """The map y = (x - mean) W as one float64 linear layer, named like sentence-transformers' `Dense`.

    Args:
        input_dim (`int`): Size of the encoder's embeddings.
        output_dim (`int`): Number of leading principal directions to keep.
    """

    method = "whitening"

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.options = {"input_dim": input_dim, "output_dim": output_dim}
        self.linear = nn.Linear(input_dim, output_dim, dtype=torch.float64).requires_grad_(False)

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        return self.linear(embeddings)


def fit_whitening(parts: Iterable[Tensor], dim: int | None = None) -> Whitening:
    """Fit a whitening (Su et al. 2021, arXiv:2103.15316, eq. 5 to 9; Huang et al. 2021, arXiv:2104.01767).

    With the covariance U diag(s) U^T and s in descending order, W = U diag(1 / sqrt(s)). With `dim`, only the first
    columns of W are kept, which are the directions of largest variance. The covariance of the transformed embeddings
    is the identity.

    Args:
        parts (`Iterable[torch.Tensor]`): Embeddings of shape `(n, input_dim)`, one part after the other. Only one part
            is in memory at a time.
        dim (`int`, *optional*): Number of columns of W to keep. The default is all, or all but one: the output of a
            layer normalization lies in a hyperplane, and so does what is pooled from one layer alone (`avg`,
            `cls_before_pooler`).

    Returns:
        `Whitening`: The transform.

    Raises:
        ValueError: If there are no embeddings, `dim` exceeds their size, or they vary in fewer directions (beyond the
            rounding of float32) than are to be kept, because there are too few sentences or too many equal ones.

    Examples:
        >>> import torch
        >>> from simcse_hf.postprocessing import fit_whitening
        >>> embeddings = torch.randn(100, 8) * torch.arange(1, 9) + 5
        >>> white = fit_whitening([embeddings], dim=2).transform(embeddings)
        >>> white.T.cov(correction=0).round(decimals=2).abs()
        tensor([[1., 0.],
                [0., 1.]])
    """
    # 1. Mean and covariance in float64. The parts are joined by the pairwise update of Chan, Golub and LeVeque (1979),
    # which loses no digits where the mean is large compared with the deviations, as it is for embeddings of encoders.
    count = 0
    mean = scatter = torch.zeros(())
    for embeddings in parts:
        check_embeddings(embeddings)
        part = embeddings.double()
        part_mean = part.mean(dim=0)
        centred = part - part_mean
        step = part_mean - mean
        total = count + len(part)
        scatter = scatter + (centred.T @ centred + torch.outer(step, step) * (count * len(part) / total))
        mean = mean + step * (len(part) / total)
        count = total
    if count == 0:
        raise ValueError("there are no embeddings to fit a whitening on: give sentences")
    covariance = scatter / count

    # 2. How many directions are kept
    input_dim = len(mean)
    check_values(range(1, input_dim + 1), dim=dim)
    directions, variances, _ = torch.linalg.svd(covariance)
    largest = (mean.square() + covariance.diagonal()).max()
    is_above_noise = variances > NOISE**2 * largest
    rank = min(int(is_above_noise.sum()), count - 1)
    kept = dim or input_dim
    if dim is None and rank == input_dim - 1 < count - 1:  # a hyperplane
        kept = rank
    if kept > rank:
        raise ValueError(
            f"a whitening to {kept} dimensions needs embeddings that vary in as many; these {count} vary in {rank}: "
            f"give at least {kept + 1} different sentences, better ten times as many, or a dim of at most {rank}"
        )

    # 3. The map
    weight = (directions[:, :kept] / variances[:kept].sqrt()).T
    whitening = Whitening(input_dim, kept)
    whitening.linear.weight.copy_(weight)
    whitening.linear.bias.copy_(-weight @ mean)
    return whitening
