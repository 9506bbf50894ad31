"""VICReg: regularise the variance, invariance and covariance of two views."""

import torch
import torch.nn.functional as F

from .base import EncodedBatch, check_weight
from .projector import DimensionContrastive, squared_products

EPSILON = 1e-4  # added to the variance before the square root, as in the paper


class VICReg(DimensionContrastive):
    r"""VICReg (Bardes et al. 2022, arXiv:2105.04906; for sentences arXiv:2310.17690, Eq. 3).

    Let Z and Z' be the projected views of the global batch, `(n, D)` each. Variances and covariances are unbiased.

        invariance: mean over rows and dimensions of (Z - Z')^2
        variance:   mean over both views and all dimensions of max(0, 1 - sqrt(variance + 0.0001))
        covariance: sum over both views of (1 / D) sum_{i != j} covariance_ij^2

    The first paper's code normalises the terms in this way, and its weights of 25, 25 and 1 were found with it. Its
    text differs: it divides the invariance by n alone, and sums the variance term over the views.

    Args:
        dim (`int`): Embedding size.
        projector_dim (`int`, *optional*, defaults to `8192`): Width of the projector.
        invariance_weight (`float`, *optional*, defaults to `25.0`): Weight of the invariance, 0 or more.
        variance_weight (`float`, *optional*, defaults to `25.0`): Weight of the variance, 0 or more.
        covariance_weight (`float`, *optional*, defaults to `1.0`): Weight of the covariance, 0 or more.

    Raises:
        ValueError: If a weight is negative or not finite, or the projector cannot be built (see [`Projector`]).
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
    ) -> None:
        weights = {
            "invariance_weight": invariance_weight,
            "variance_weight": variance_weight,
            "covariance_weight": covariance_weight,
        }
        for name, weight in weights.items():
            check_weight(name, weight)
        super().__init__(dim, projector_dim)
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Compute `invariance_loss`, `variance_loss` and `covariance_loss`, each multiplied by its weight."""
        views = self.project(batch)
        with torch.autocast(views[0].device.type, enabled=False):
            variance, covariance = zip(*(self._variance_and_covariance(view) for view in views), strict=True)
            return {
                "invariance_loss": self.invariance_weight * F.mse_loss(*views),
                "variance_loss": self.variance_weight * sum(variance) / 2,
                "covariance_loss": self.covariance_weight * sum(covariance),
            }

    @staticmethod
    def _variance_and_covariance(view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = view.shape
        degrees = max(rows - 1, 1)  # the last batch of an evaluation may hold a single row, whose variance is 0
        centred = view - view.mean(0)
        variance = centred.square().sum(0) / degrees
        off_diagonal = squared_products(centred, centred) / degrees**2 - variance.square().sum()
        return F.relu(1 - (variance + EPSILON).sqrt()).mean(), off_diagonal / width
