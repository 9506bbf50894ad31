"""Barlow Twins: the cross-correlation of two views is pulled towards the identity."""

import math

import torch

from .base import EncodedBatch
from .projector import DimensionContrastive, squared_products, standardise


class BarlowTwins(DimensionContrastive):
    r"""Barlow Twins (Zbontar et al. 2021, arXiv:2103.03230, Eq. 1 and 2; for sentences arXiv:2310.17690, Eq. 2).

    With C_ij the Pearson correlation, over the global batch, of dimension i of one projected view with dimension j of
    the other:

        sum_i (1 - C_ii)^2 + off_diagonal_weight * sum_{i != j} C_ij^2

    These are sums and no means, as in the first paper, whose published run multiplies the whole by 0.024; Adam does
    not see such a factor, `max_grad_norm` does. C is never held in memory where the batch is smaller than its width
    (see `squared_products`).

    Args:
        dim: of the sentence vectors.
        projector_dim: width of the projector.
        off_diagonal_weight: lambda, 0 or more. 0.0051 is the first paper's at dimension 8192; the second finds its
            results quite sensitive to it.

    Raises:
        ValueError: a weight below 0 or not finite; a projector that cannot be (see `Projector`).
    """

    summary = (
        "dimension-contrastive self-supervision (Barlow Twins): the cross-correlation of two views is pulled "
        "towards the identity"
    )
    papers = ("barlow_twins", "non_contrastive")

    def __init__(self, dim: int, projector_dim: int = 8192, off_diagonal_weight: float = 0.0051):
        if not 0 <= off_diagonal_weight < math.inf:
            raise ValueError(f"off_diagonal_weight must be finite and 0 or more, got {off_diagonal_weight}")
        super().__init__(dim, projector_dim)
        self.off_diagonal_weight = off_diagonal_weight

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        first, second = self.project(batch)
        with torch.autocast(first.device.type, enabled=False):
            first, second = standardise(first), standardise(second)
            diagonal = (first * second).mean(0)
            off_diagonal = squared_products(first, second) / len(first) ** 2 - diagonal.square().sum()
            return (1 - diagonal).square().sum() + self.off_diagonal_weight * off_diagonal
