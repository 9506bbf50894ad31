"""VICReg: variance, invariance and covariance of two views."""

import math

import torch
import torch.nn.functional as F

from .base import EncodedBatch
from .projector import DimensionContrastive, squared_products

EPSILON = 1e-4  # under the root of the variance, in the paper


class VICReg(DimensionContrastive):
    r"""VICReg (Bardes et al. 2022, arXiv:2105.04906; for sentences arXiv:2310.17690, Eq. 3).

    Over the projected views Z and Z' of the global batch, (n, D) each, with unbiased variances and covariances:

        invariance: mean over rows and dimensions of (Z - Z')^2
        variance:   mean over both views and all dimensions of max(0, 1 - sqrt(variance + 0.0001))
        covariance: sum over both views of (1 / D) sum_{i != j} covariance_ij^2

    These are the normalisations of the first paper's own code, for which its weights of 25, 25 and 1 were found. Its
    text differs: it divides the invariance by n alone and sums the variance term over the views.

    Args:
        dim: of the sentence vectors.
        projector_dim: width of the projector.
        invariance_weight, variance_weight, covariance_weight: 0 or more.

    Raises:
        ValueError: a weight below 0 or not finite; a projector that cannot be (see `Projector`).
    """

    summary = "dimension-contrastive self-supervision (VICReg): invariance, variance and covariance of two views"
    papers = ("vicreg", "non_contrastive")

    def __init__(
        self,
        dim: int,
        projector_dim: int = 8192,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
    ):
        weights = {
            "invariance_weight": invariance_weight,
            "variance_weight": variance_weight,
            "covariance_weight": covariance_weight,
        }
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be finite and 0 or more, got {weight}")
        super().__init__(dim, projector_dim)
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """`invariance_loss`, `variance_loss` and `covariance_loss`, each times its weight: the loss is their sum."""
        views = self.project(batch)
        with torch.autocast(views[0].device.type, enabled=False):
            variance, covariance = zip(*(self._spread(view) for view in views), strict=True)
            return {
                "invariance_loss": self.invariance_weight * F.mse_loss(*views),
                "variance_loss": self.variance_weight * sum(variance) / 2,
                "covariance_loss": self.covariance_weight * sum(covariance),
            }

    @staticmethod
    def _spread(view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = view.shape
        degrees = max(rows - 1, 1)  # the last batch of an evaluation may be a single row: its variance is 0
        centred = view - view.mean(0)
        variance = centred.square().sum(0) / degrees
        off_diagonal = squared_products(centred, centred) / degrees**2 - variance.square().sum()
        return F.relu(1 - (variance + EPSILON).sqrt()).mean(), off_diagonal / width
