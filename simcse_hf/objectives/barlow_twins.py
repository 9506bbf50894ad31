"""Barlow Twins: pull the cross-correlation matrix of two views towards the identity."""

import torch

from .base import EncodedBatch, check_weight
from .projector import DimensionContrastive, squared_products, standardise


class BarlowTwins(DimensionContrastive):
    r"""Barlow Twins (Zbontar et al. 2021, arXiv:2103.03230, Eq. 1 and 2; for sentences arXiv:2310.17690, Eq. 2).

    Let C_ij be the Pearson correlation, over the global batch, of dimension i of one projected view with dimension j
    of the other. The loss is

        sum_i (1 - C_ii)^2 + off_diagonal_weight * sum_{i != j} C_ij^2

    Both terms are sums, not means, as in the first paper. Its published run multiplies the loss by 0.024. Adam ignores
    such a factor, but `max_grad_norm` does not. C is never stored when the batch is smaller than the projector is wide
    (see `squared_products`).

    Args:
        dim (`int`): Embedding size.
        projector_dim (`int`, *optional*, defaults to `8192`): Width of the projector.
        off_diagonal_weight (`float`, *optional*, defaults to `0.0051`): Lambda, 0 or more. The first paper uses 0.0051
            at width 8192. The second paper finds its results quite sensitive to this value.

    Raises:
        ValueError: If the weight is negative or not finite, or the projector cannot be built (see [`Projector`]).
    """

    summary = (
        "dimension-contrastive self-supervision (Barlow Twins): the cross-correlation of two views is pulled towards "
        "the identity"
    )
    papers = ("barlow_twins", "non_contrastive")

    def __init__(self, dim: int, projector_dim: int = 8192, off_diagonal_weight: float = 0.0051) -> None:
        check_weight("off_diagonal_weight", off_diagonal_weight)
        super().__init__(dim, projector_dim)
        self.off_diagonal_weight = off_diagonal_weight

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute the loss over the rows of all processes, as a scalar."""
        first, second = self.project(batch)
        with torch.autocast(first.device.type, enabled=False):
            first, second = standardise(first), standardise(second)
            diagonal = (first * second).mean(0)
            off_diagonal = squared_products(first, second) / len(first) ** 2 - diagonal.square().sum()
            return (1 - diagonal).square().sum() + self.off_diagonal_weight * off_diagonal
