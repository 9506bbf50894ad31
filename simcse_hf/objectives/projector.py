"""The projector of the dimension-contrastive objectives, and what else these objectives have in common."""

import psutil
import torch
from torch import nn

from ..ops.distributed import differentiable_sum, gather_rows, world
from .base import EncodedBatch, Encoder, Objective, TrainingRows
from .info_nce import as_full_precision

EPSILON = 1e-5  # under the root, as in every batch norm: a constant dimension becomes 0 and not NaN
BYTES = 4 * 4  # of a float32 weight, its gradient and Adam's two moments


def standardise(rows: torch.Tensor, over_processes: bool = False) -> torch.Tensor:
    """Mean 0 and (biased) variance 1 in every dimension, over the rows at hand or those of all processes.

    Args:
        rows: (n, dim), float32 or wider; over several processes the same n in each.
        over_processes: a collective operation, differentiable.

    Returns:
        (n, dim); zeros where a dimension is constant.
    """

    def total(value: torch.Tensor) -> torch.Tensor:
        return differentiable_sum(value) if over_processes else value

    count = len(rows) * (world()[1] if over_processes else 1)
    centred = rows - total(rows.sum(0)) / count
    variance = total(centred.square().sum(0)) / count
    return centred * torch.rsqrt(variance + EPSILON)


def squared_products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The sum of the squares of all entries of first^T second, for two of (n, dim), without dim^2 memory if n < dim.

    |A^T B|^2 = trace(B^T A A^T B) = <A A^T, B B^T>: (n, n) matrices, at dimension 8192 a thousandth of the work.
    """
    if first.shape[0] < first.shape[1]:
        return ((first @ first.T) * (second @ second.T)).sum()
    return (first.T @ second).square().sum()


class GlobalBatchNorm(nn.Module):
    """Batch normalisation by the statistics of the batch at hand, in training over all processes.

    It keeps no running statistics: a projector exists in training only, and the `eval_loss` of a batch is taken with
    the statistics of that batch, as its training loss is.

    Args:
        dim: of the rows.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, dim) -> (n, dim), in float32 or wider."""
        with torch.autocast(rows.device.type, enabled=False):
            rows = standardise(as_full_precision(rows), over_processes=self.training)
            return rows * self.weight + self.bias


class Projector(nn.Sequential):
    """Two layers of linear, batch norm and ReLU, and a linear one, all of one width (arXiv:2310.17690, section 3).

    No linear layer has a bias: the batch norm after it, or the objective, takes out whatever is constant. The two
    views go through it one after the other, each with statistics of its own (Zbontar et al., Bardes et al.).

    Args:
        dim: of the sentence vectors.
        width: of all three layers.

    Raises:
        ValueError: the width is not a positive integer, or weights, gradients and the two moments of Adam, 16 bytes
            a parameter, do not fit into memory. Nothing has been allocated by then.
    """

    def __init__(self, dim: int, width: int = 8192):
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"projector_dim must be an integer above 0, got {width!r}")
        require_memory(dim, width, torch.get_default_device())
        super().__init__(
            nn.Linear(dim, width, bias=False),
            GlobalBatchNorm(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            GlobalBatchNorm(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
        )

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(n, dim) -> (n, width)."""
        return super().forward(vectors.to(self[0].weight.dtype))


def require_memory(dim: int, width: int, device: torch.device) -> None:
    """Makes sure that a projector can be trained on a device.

    Raises:
        ValueError: what a process needs for it is more than what is free there.
    """
    needed = BYTES * (dim * width + 2 * width**2 + 4 * width)
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > available:
        raise ValueError(
            f"a projector of projector_dim {width} needs {needed / 2**30:.2f} GiB for weights, gradients and "
            f"optimizer, and {available / 2**30:.2f} GiB are available on {device.type}: lower projector_dim"
        )


class DimensionContrastive(Objective):
    """What Barlow Twins and VICReg share: the projected views of the global batch, columns 0 and 1 of the rows.

    Args:
        dim: of the sentence vectors.
        projector_dim: width of the [`Projector`].
    """

    def __init__(self, dim: int, projector_dim: int = 8192):
        super().__init__(dim)
        self.projector = Projector(dim, projector_dim)
        self.projector_dim = projector_dim

    def attach(self, model: Encoder) -> None:
        """Makes sure that a GPU the model is on has room for the projector, which was made on the CPU."""
        if model.device.type == "cuda":
            require_memory(self.dim, self.projector_dim, model.device)

    def check(self, rows: TrainingRows) -> None:
        if rows.num_sentences > 2 or rows.has_relations:
            what = "relations" if rows.has_relations else f"{rows.num_sentences} sentences"
            raise ValueError(
                f"the training data has rows of {what}, and this objective compares two views: hard negatives have no "
                "place in it. Give single sentences or pairs, or use objective 'simcse'"
            )
        if rows.batch_size * rows.processes < 2:
            raise ValueError(
                "this objective takes statistics over the batch, and a batch of 1 has none: raise "
                "per_device_train_batch_size to at least 2"
            )

    def project(self, batch: EncodedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Both views, (n, projector_dim) each, in float32 or wider: in training the rows of all processes."""
        first, second = (as_full_precision(self.projector(batch.vectors[:, column])) for column in (0, 1))
        return (gather_rows(first), gather_rows(second)) if self.training else (first, second)
