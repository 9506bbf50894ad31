"""What every transform of finished sentence vectors does."""

from abc import ABC, abstractmethod

import torch
from torch import nn


class VectorTransform(nn.Module, ABC):
    """A map of sentence vectors that was fitted on unlabelled ones; its state dict is what is saved of it.

    Attributes:
        method: the name by which it is chosen and saved.
        input_dim: dimensions of the encoder's vectors.
        output_dim: dimensions of what it makes of them.
    """

    method: str
    input_dim: int
    output_dim: int

    @abstractmethod
    def options(self) -> dict:
        """The keyword arguments that make a transform of this shape, to be filled by its state dict."""

    @abstractmethod
    def _apply_to(self, vectors: torch.Tensor) -> torch.Tensor:
        """(n, input_dim) in the transform's own type -> (n, output_dim)."""

    @torch.no_grad()
    def transform(self, vectors: torch.Tensor) -> torch.Tensor:
        """(n, input_dim) vectors as the encoder pools them, not normalised -> (n, output_dim) float32, not normalised.

        Raises:
            ValueError: vectors of another shape.
        """
        if vectors.dim() != 2 or vectors.shape[1] != self.input_dim:
            raise ValueError(
                f"this {self.method} was fitted on vectors of {self.input_dim} dimensions: "
                f"give (n, {self.input_dim}), not {tuple(vectors.shape)}"
            )
        own = next(iter(self.state_dict().values()))
        return self._apply_to(vectors.to(own.device, own.dtype)).float().to(vectors.device)


def check_vectors(vectors: torch.Tensor) -> None:
    """Raises a ValueError unless `vectors` is (n, dim), n of them at least 1, and every value finite."""
    if vectors.dim() != 2 or not len(vectors):
        raise ValueError(f"vectors to fit on must be (n, dim), with n of at least 1, got {tuple(vectors.shape)}")
    finite = torch.isfinite(vectors).all(dim=1)
    if not finite.all():
        row = int((~finite).nonzero()[0, 0])
        raise ValueError(f"vector {row + 1} of those to fit on holds NaN or infinity: leave out its sentence")
