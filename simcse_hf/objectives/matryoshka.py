"""The same objective at several widths of the embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from .base import Objective, named_losses
from .combined import Combined
from .encoder import EncodedBatch
from .info_nce import SimCSEObjective


class Matryoshka(Combined):
    """The unweighted sum of an objective over several widths of the same embeddings.

    Kusupati et al. 2022 (arXiv:2205.13147), Eq. 1 with c_m = 1: the first 64 numbers of an embedding are trained to be
    an embedding of their own. The objective normalizes what it reads, so normalization comes after the cut.

    There is one objective per width. [`SimCSEObjective`] and its subclasses have no parameters that depend on the
    width: a single one takes its loss at all widths, and its second encoder runs once per step.

    Args:
        dim (`int`): Embedding size.
        dims (`Sequence[int]`): The widths in any order. The full size is added if it is missing: it is what the model
            returns without `truncate_dim`, and no smaller width trains its last dimensions.
        build (`Callable`): Makes the objective of a width.

    Raises:
        ValueError: If a width is not an integer from 1 to `dim` or is named twice, or the objective is a sum
            with a part that encodes texts itself.
    """

    def __init__(self, dim: int, dims: Sequence[int], build: Callable[[int], Objective]):
        for width in dims:
            if type(width) is not int or not 1 <= width <= dim:
                raise ValueError(
                    f"matryoshka_dims must be integers from 1 to {dim}, the embedding size, got {width!r}"
                )
        if len(set(dims)) < len(dims):
            raise ValueError(f"matryoshka_dims names a width twice: {list(dims)}")
        widths = sorted({dim, *dims}, reverse=True)
        whole = build(dim)
        parts = whole.objectives if isinstance(whole, Combined) else []
        for part in parts:
            if isinstance(part, SimCSEObjective) and not part.supports_gradcache:
                raise ValueError(
                    f"objective {whole.name!r}: {part.name} encodes texts itself, at the full size only: train "
                    "without matryoshka_dims"
                )
        objectives = [whole]
        if isinstance(whole, SimCSEObjective):
            whole.widths = widths
        else:
            objectives += map(build, widths[1:])
        super().__init__(dim, objectives)
        self.parts = nn.ModuleList(self.objectives)
        #: The widths, the largest first.
        self.dims = widths

    def forward(self, batch: EncodedBatch) -> Tensor | dict[str, Tensor]:
        """Compute the loss of every width.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `dict[str, torch.Tensor]`: `loss_256` for a width of 256 and so on, or `{part}_256` for each part of the
                wrapped objective.
        """
        if isinstance(self.objectives[0], SimCSEObjective):
            return self.objectives[0](batch)
        losses = {}
        for dim, objective in zip(self.dims, self.objectives, strict=True):
            states = None if batch.hidden_states is None else batch.hidden_states[..., :dim]
            narrow = replace(batch, embeddings=batch.embeddings[..., :dim], hidden_states=states)
            for name, part in named_losses(objective(narrow)).items():
                losses[f"{name}_{dim}"] = part
        return losses
