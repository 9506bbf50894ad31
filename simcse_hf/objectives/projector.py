"""The projector of Barlow Twins and VICReg, and what else the two objectives share."""

from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn

from ..ops.distributed import differentiable_sum, gather_rows, world
from .base import EncodedBatch, Encoder, Objective, TrainingRows
from .info_nce import as_full_precision

EPSILON = 1e-5  # inside the square root, as in any batch norm: a constant dimension becomes 0 instead of NaN
BYTES_PER_PARAMETER = 4 * 4  # a float32 weight, its gradient and Adam's two moments


def standardise(rows: torch.Tensor, over_processes: bool = False) -> torch.Tensor:
    """Scale every dimension to mean 0 and (biased) variance 1 over the rows.

    Args:
        rows (`torch.Tensor`): Values of shape `(n, dim)`, in float32 or wider.
        over_processes (`bool`, *optional*, defaults to `False`): Take the statistics over the rows of all processes,
            which must have equally many. This is a collective operation, and it is differentiable.

    Returns:
        `torch.Tensor`: Values of shape `(n, dim)`. A constant dimension becomes 0.
    """

    def total(value: torch.Tensor) -> torch.Tensor:
        return differentiable_sum(value) if over_processes else value

    count = len(rows) * (world()[1] if over_processes else 1)
    centred = rows - total(rows.sum(0)) / count
    variance = total(centred.square().sum(0)) / count
    return centred * torch.rsqrt(variance + EPSILON)


def squared_products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
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
        return ((first @ first.T) * (second @ second.T)).sum()
    return (first.T @ second).square().sum()


class GlobalBatchNorm(nn.Module):
    """Batch norm with the statistics of the current batch, which in training are taken over all processes.

    It keeps no running statistics. A projector is only used in training, and an `eval_loss` takes the statistics of
    its own batch, as the training loss does.

    Args:
        dim (`int`): Width of the rows.
        affine (`bool`, *optional*, defaults to `True`): Learn a scale and a bias for each dimension.
    """

    def __init__(self, dim: int, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Normalise rows of shape `(n, dim)`, in float32 or wider."""
        with torch.autocast(rows.device.type, enabled=False):
            rows = standardise(as_full_precision(rows), over_processes=self.training)
            return rows if self.weight is None or self.bias is None else rows * self.weight + self.bias


class Projector(nn.Sequential):
    """Two blocks of linear layer, batch norm and ReLU, then a linear layer (arXiv:2310.17690, section 3).

    No linear layer has a bias, because the batch norm that follows, or the objective itself, removes constants. The
    two views pass through the projector one after the other, and each is normalised by its own statistics, as in
    Zbontar et al. and Bardes et al.

    Args:
        dim (`int`): Embedding size.
        width (`int`, *optional*, defaults to `8192`): Width of all three layers.

    Raises:
        ValueError: If the width is not a positive integer, or training the projector would not fit into memory (16
            bytes per parameter: weight, gradient and Adam's two moments). Nothing is allocated in that case.
    """

    def __init__(self, dim: int, width: int = 8192) -> None:
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

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Project embeddings of shape `(n, dim)` to shape `(n, width)`."""
        return super().forward(embeddings.to(cast(nn.Linear, self[0]).weight.dtype))


def available_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes, or None where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kilobytes is None else 1024 * int(kilobytes)


def require_memory(dim: int, width: int, device: torch.device) -> None:
    """Check that a device has enough free memory to train a projector.

    Args:
        dim (`int`): Embedding size.
        width (`int`): Width of the projector.
        device (`torch.device`): Where the projector will be trained.

    Raises:
        ValueError: If a process needs more memory than is free.
    """
    needed = BYTES_PER_PARAMETER * (dim * width + 2 * width**2 + 4 * width)
    available = available_memory(device)
    if available is not None and needed > available:
        raise ValueError(
            f"a projector with projector_dim={width} needs {needed / 2**30:.2f} GiB for its weights, gradients and "
            f"optimizer state, but only {available / 2**30:.2f} GiB are available on {device.type}: lower "
            "projector_dim"
        )


class DimensionContrastive(Objective):
    """Base class of Barlow Twins and VICReg, which compare columns 0 and 1 of the projected rows.

    Args:
        dim (`int`): Embedding size.
        projector_dim (`int`, *optional*, defaults to `8192`): Width of the [`Projector`].
    """

    #: arXiv:2310.17690, section 3 and appendix A. The projector takes the place of SimCSE's head and reads [CLS].
    defaults: ClassVar[dict[str, Any]] = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "per_device_train_batch_size": 256,
        "num_train_epochs": 2,
    }

    def __init__(self, dim: int, projector_dim: int = 8192) -> None:
        super().__init__(dim)
        self.projector = Projector(dim, projector_dim)
        self.projector_dim = projector_dim

    def attach(self, model: Encoder) -> None:
        """Check that the model's GPU has room for the projector, which was created on the CPU."""
        if model.device.type == "cuda":
            require_memory(self.dim, self.projector_dim, model.device)

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with more than two views, and batches that are too small for statistics."""
        if rows.num_sentences > 2 or rows.has_relations:
            columns = "relations" if rows.has_relations else f"{rows.num_sentences} sentences"
            raise ValueError(
                f"the training data has rows with {columns}, but this objective compares two views and cannot use "
                "hard negatives: give single sentences or pairs, or use objective 'simcse'"
            )
        if rows.batch_size * rows.processes < 2:
            raise ValueError(
                "this objective takes statistics over the batch, and a batch of 1 has none: raise "
                "per_device_train_batch_size to at least 2"
            )

    def project(self, batch: EncodedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Project both views, and in training gather the rows of all processes.

        Args:
            batch (`EncodedBatch`): This process's rows.

        Returns:
            `tuple[torch.Tensor, torch.Tensor]`: Both views, `(n, projector_dim)` each, in float32 or wider.
        """
        first, second = (as_full_precision(self.projector(batch.embeddings[:, column])) for column in (0, 1))
        return (gather_rows(first), gather_rows(second)) if self.training else (first, second)
