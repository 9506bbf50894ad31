"""Barlow Twins and VICReg: the dimensions of two projected views are compared over the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runtime.distributed import differentiable_sum, gather_rows, sum_over_processes
from ..runtime.errors import check_values
from .base import EncodedBatch, Objective, TrainingRows, as_full_precision, no_autocast

EPSILON = 1e-5  # inside the square root, as in any batch norm: a constant dimension becomes 0 instead of NaN
VICREG_EPSILON = 1e-4  # added to the variance before the square root, as in the paper


def standardise(rows: Tensor, over_processes: bool = False) -> Tensor:
    """Scale every dimension to mean 0 and (biased) variance 1 over the rows.

    Args:
        rows (`torch.Tensor`): Values of shape `(n, dim)`, in float32 or wider.
        over_processes (`bool`, *optional*, defaults to `False`): Take the statistics over the rows of all processes,
            each of which may have another number. This is a collective operation, and it is differentiable.

    Returns:
        `torch.Tensor`: Values of shape `(n, dim)`. A constant dimension becomes 0.
    """
    count = torch.full((), len(rows), device=rows.device)
    if over_processes:
        count = sum_over_processes(count)
    total = differentiable_sum(rows.sum(0), over_processes)
    centred = rows - total / count
    squares = differentiable_sum(centred.square().sum(0), over_processes)
    return centred * torch.rsqrt(squares / count + EPSILON)


def squared_products(first: Tensor, second: Tensor) -> Tensor:
    """Sum the squares of all entries of `first.T @ second` without storing that matrix when it is large.

    |A^T B|^2 = trace(B^T A A^T B) = <A A^T, B B^T>. With n rows and width D, the right-hand side needs two (n, n)
    matrices where the left-hand side needs a (D, D) one. For 64 rows of width 8192 that is 1/16,384 of the memory.

    Args:
        first (`torch.Tensor`): Values of shape `(n, dim)`.
        second (`torch.Tensor`): Values of shape `(n, dim)`.

    Returns:
        `torch.Tensor`: A scalar.
    """
    if first.shape[0] < first.shape[1]:
        products = (first @ first.T) * (second @ second.T)
    else:
        products = (first.T @ second).square()
    return products.sum()


class GlobalBatchNorm(nn.Module):
    """Batch norm with the statistics of the current batch, which in training are taken over all processes.

    It keeps no running statistics. A projector is only used in training, and an `eval_loss` takes the statistics of
    its own batch, as the training loss does.

    Args:
        dim (`int`): Width of the rows.
        affine (`bool`, *optional*, defaults to `True`): Learn a scale and a bias for each dimension.
    """

    def __init__(self, dim: int, affine: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine else None

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize rows of shape `(n, dim)`, in float32 or wider."""
        with no_autocast(rows):
            rows = standardise(as_full_precision(rows), over_processes=self.training)
            if self.weight is None or self.bias is None:
                return rows
            return rows * self.weight + self.bias


class DimensionContrastive(Objective):
    """Base class of Barlow Twins and VICReg, which compare columns 0 and 1 of the projected rows.

    The projector has two blocks of linear layer, batch norm and ReLU, then a linear layer (arXiv:2310.17690, section
    3). No linear layer has a bias, because the batch norm that follows, or the objective itself, removes constants.
    The two views pass through the projector one after the other, and each is normalized by its own statistics, as in
    Zbontar et al. and Bardes et al.

    Args:
        dim (`int`): Embedding size.
        projector_dim (`int`): Width of all three layers of the projector.

    Raises:
        ValueError: If the width is not a positive integer.
    """

    # arXiv:2310.17690, section 3 and appendix A. The projector takes the place of SimCSE's head and reads [CLS].
    defaults = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "per_device_train_batch_size": 256,
        "num_train_epochs": 2,
    }

    def __init__(self, dim: int, projector_dim: int):
        super().__init__(dim)
        check_values("an integer above 0", projector_dim=projector_dim)
        self.projector = nn.Sequential(
            nn.Linear(dim, projector_dim, bias=False),
            GlobalBatchNorm(projector_dim),
            nn.ReLU(),
            nn.Linear(projector_dim, projector_dim, bias=False),
            GlobalBatchNorm(projector_dim),
            nn.ReLU(),
            nn.Linear(projector_dim, projector_dim, bias=False),
        )

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with more than two views, and batches that are too small for statistics."""
        advice = "this objective compares two views: give single sentences or pairs, or use objective 'simcse'"
        rows.check_width(2, advice)
        rows.check_batch("this objective takes statistics over the batch, and a batch of 1 has none")

    def project(self, batch: EncodedBatch) -> list[Tensor]:
        """Project both views, and in training gather the rows of all processes.

        Args:
            batch (`EncodedBatch`): This process's rows.

        Returns:
            `list[torch.Tensor]`: Both views, `(n, projector_dim)` each, in float32 or wider.
        """
        precision = next(self.projector.parameters()).dtype
        views = []
        for view in batch.embeddings[:, :2].to(precision).unbind(1):
            projected = as_full_precision(self.projector(view))
            views.append(gather_rows(projected, self.training))
        return views


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
        ValueError: If the weight is negative or not finite, or the width is not a positive integer.
    """

    name = "barlow_twins"
    summary = (
        "dimension-contrastive self-supervision (Barlow Twins): the cross-correlation of two views is pulled towards "
        "the identity"
    )
    papers = ("barlow_twins", "non_contrastive")

    def __init__(self, dim: int, projector_dim: int = 8192, off_diagonal_weight: float = 0.0051):
        super().__init__(dim, projector_dim)
        check_values("a number of 0 or more", off_diagonal_weight=off_diagonal_weight)
        self.off_diagonal_weight = off_diagonal_weight

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Compute the loss over the rows of all processes, as a scalar."""
        first, second = self.project(batch)
        with no_autocast(first):
            first = standardise(first)
            second = standardise(second)
            diagonal = (first * second).mean(0)
            all_squares = squared_products(first, second) / len(first) ** 2
            off_diagonal = all_squares - diagonal.square().sum()
            on_diagonal = (1 - diagonal).square().sum()
            return on_diagonal + self.off_diagonal_weight * off_diagonal


class VICReg(DimensionContrastive):
    r"""VICReg (Bardes et al. 2022, arXiv:2105.04906; for sentences arXiv:2310.17690, Eq. 3).

    Let Z and Z' be the projected views of the global batch, `(n, D)` each. Variances and covariances are unbiased.

        invariance: mean over rows and dimensions of (Z - Z')^2
        variance:   mean over both views and all dimensions of max(0, 1 - sqrt(variance + 0.0001))
        covariance: sum over both views of (1 / D) sum_{i != j} covariance_ij^2

    The first paper's code normalizes the terms in this way, and its weights of 25, 25 and 1 were found with it. Its
    text differs: it divides the invariance by n alone, and sums the variance term over the views.

    Args:
        dim (`int`): Embedding size.
        projector_dim (`int`, *optional*, defaults to `8192`): Width of the projector.
        invariance_weight (`float`, *optional*, defaults to `25.0`): Weight of the invariance, 0 or more.
        variance_weight (`float`, *optional*, defaults to `25.0`): Weight of the variance, 0 or more.
        covariance_weight (`float`, *optional*, defaults to `1.0`): Weight of the covariance, 0 or more.

    Raises:
        ValueError: If a weight is negative or not finite, or the width is not a positive integer.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, build_objective
        >>> objective = build_objective("vicreg", 64, {"projector_dim": 128})
        >>> list(objective(EncodedBatch(torch.randn(8, 2, 64))))
        ['invariance_loss', 'variance_loss', 'covariance_loss']
    """

    name = "vicreg"
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
        super().__init__(dim, projector_dim)
        check_values(
            "a number of 0 or more",
            invariance_weight=invariance_weight,
            variance_weight=variance_weight,
            covariance_weight=covariance_weight,
        )
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight

    def forward(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Compute `invariance_loss`, `variance_loss` and `covariance_loss`, each multiplied by its weight."""
        views = self.project(batch)
        rows, width = views[0].shape
        degrees = max(rows - 1, 1)  # the last batch of an evaluation may hold a single row, whose variance is 0
        with no_autocast(views[0]):
            invariance = F.mse_loss(views[0], views[1])
            spread = covariance = torch.zeros_like(invariance)
            for view in views:
                centred = view - view.mean(0)
                variance = centred.square().sum(0) / degrees
                deviation = (variance + VICREG_EPSILON).sqrt()
                spread = spread + F.relu(1 - deviation).mean() / 2
                all_squares = squared_products(centred, centred) / degrees**2
                off_diagonal = all_squares - variance.square().sum()
                covariance = covariance + off_diagonal / width
        return {
            "invariance_loss": self.invariance_weight * invariance,
            "variance_loss": self.variance_weight * spread,
            "covariance_loss": self.covariance_weight * covariance,
        }
