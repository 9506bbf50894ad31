"""The interface of every transform of embeddings."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from ..ops.finite import check_finite


class VectorTransform(nn.Module, ABC):
    """A map of embeddings that was fitted on unlabelled ones. Its state dict is what is saved.

    Attributes:
        method (`str`): The name by which it is chosen and saved.
        input_dim (`int`): Size of the encoder's embeddings.
        output_dim (`int`): Size of the transformed embeddings.
    """

    method: str
    input_dim: int
    output_dim: int

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that create a transform of this shape, ready for its state dict."""

    @abstractmethod
    def _apply_to(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Transform embeddings of shape `(n, input_dim)` that have the transform's own dtype."""

    @torch.no_grad()
    def transform(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Transform embeddings.

        Args:
            embeddings (`torch.Tensor`): Pooled embeddings of shape `(n, input_dim)`, not normalized.

        Returns:
            `torch.Tensor`: Float32 embeddings of shape `(n, output_dim)`, not normalized.

        Raises:
            ValueError: If the embeddings have another shape.
        """
        if embeddings.dim() != 2 or embeddings.shape[1] != self.input_dim:
            raise ValueError(
                f"this {self.method} was fitted on embeddings of {self.input_dim} dimensions: "
                f"give (n, {self.input_dim}), not {tuple(embeddings.shape)}"
            )
        weight = next(iter(self.state_dict().values()))
        return self._apply_to(embeddings.to(weight.device, weight.dtype)).float().to(embeddings.device)


def check_embeddings(embeddings: torch.Tensor) -> None:
    """Raise a `ValueError` unless there is at least one embedding and all values are finite."""
    if embeddings.dim() != 2 or not len(embeddings):
        raise ValueError(
            f"embeddings to fit on must have shape (n, dim) with n of at least 1, got {tuple(embeddings.shape)}"
        )
    check_finite(embeddings, "sentence {} of those to fit on", first=1)
