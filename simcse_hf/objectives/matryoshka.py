"""Matryoshka: an objective on the leading dimensions of the embeddings, at several widths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from .base import EncodedBatch, Encoder, Objective, TrainingRows, make_objective, objective_class, require
from .info_nce import SimCSEObjective


class Matryoshka(Objective):
    """The unweighted sum of a registered objective over several widths of the same embeddings.

    Kusupati et al. 2022 (arXiv:2205.13147), Eq. 1 with c_m = 1: the first 64 numbers of an embedding are trained to be
    an embedding of their own. The objective normalizes what it reads, so normalization comes after the cut.

    There is one objective per width. [`SimCSEObjective`] and its subclasses have no parameters that depend on the
    width: a single one serves all widths, and its second encoder runs once per step.

    Args:
        name (`str`): See [`make_objective`].
        dim (`int`): See [`make_objective`].
        dims (`Sequence[int]`): The widths in any order. The full size is added if it is missing: it is what the model
            returns without `truncate_dim`, and no smaller width trains its last dimensions.
        settings (`Mapping[str, Any]`): See [`make_objective`].
        options (`Mapping[str, Any]`): See [`make_objective`].

    Raises:
        ValueError: If a width is not an integer from 1 to `dim` or is named twice, or [`make_objective`] refuses an
            argument.
    """

    def __init__(
        self, name: str, dim: int, dims: Sequence[int], settings: Mapping[str, Any], options: Mapping[str, Any]
    ):
        super().__init__(dim)
        for width in dims:
            is_width = isinstance(width, int) and not isinstance(width, bool) and 1 <= width <= dim
            message = f"matryoshka_dims must be integers from 1 to {dim}, the embedding size, got {width!r}"
            require(is_width, message)
        require(len(set(dims)) == len(dims), f"matryoshka_dims names a width twice: {list(dims)}")
        #: The widths, the largest first.
        self.dims = sorted({dim, *dims}, reverse=True)
        widths = [dim] if issubclass(objective_class(name), SimCSEObjective) else self.dims
        self.objectives = nn.ModuleList(make_objective(name, width, settings, options) for width in widths)
        for attribute in ("encoders", "num_views", "needs_hidden_states", "needs_text_ids", "supports_gradcache"):
            setattr(self, attribute, getattr(self.objectives[0], attribute))

    def attach(self, model: Encoder) -> None:
        """Attach every wrapped objective; see [`Objective.attach`]."""
        for objective in self._objectives():
            objective.attach(model)
        self.needs_hidden_states = self._objectives()[0].needs_hidden_states

    def check(self, rows: TrainingRows) -> None:
        """Check the training data as the wrapped objective does; see [`Objective.check`]."""
        for objective in self._objectives():
            objective.check(rows)

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Mask the columns that the wrapped objective masks; see [`Objective.mlm_columns`]."""
        return self._objectives()[0].mlm_columns(num_sentences)

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Compute the loss of every width.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `dict[str, torch.Tensor]`: `loss_256` for a width of 256, or `{part}_256` for each part of the wrapped
                objective.
        """
        first = self.objectives[0]
        if isinstance(first, SimCSEObjective):
            inputs = first.prepare(batch)
            return {f"loss_{dim}": first.loss_at(inputs, dim) for dim in self.dims} | inputs.other_losses
        losses: dict[str, torch.Tensor] = {}
        for dim, objective in zip(self.dims, self._objectives(), strict=True):
            states = None if batch.hidden_states is None else batch.hidden_states[..., :dim]
            loss = objective(replace(batch, embeddings=batch.embeddings[..., :dim], hidden_states=states))
            parts = loss if isinstance(loss, dict) else {"loss": loss}
            losses |= {f"{name}_{dim}": part for name, part in parts.items()}
        return losses

    def _objectives(self) -> list[Objective]:
        return cast(list[Objective], list(self.objectives))
