"""Matryoshka: an objective on the leading dimensions of the embeddings, at several widths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .base import EncodedBatch, Encoder, Objective, TrainingRows, make_objective, objective_class
from .simcse import SimCSEObjective


class Matryoshka(Objective):
    """The unweighted sum of an objective over several widths of the same embeddings.

    Kusupati et al. 2022 (arXiv:2205.13147), Eq. 1 with c_m = 1: the first 64 numbers of an embedding are trained to be
    an embedding of their own. The objective normalizes what it reads, so normalization comes after the cut.

    Args:
        objectives (`Sequence[Objective]`): One objective per width, whose `dim` is that width. [`SimCSEObjective`] and
            its subclasses have no parameters that depend on the width: a single one of the full width serves all
            widths, and its second encoder runs once per step.
        dims (`Sequence[int]`): The widths in descending order, see [`matryoshka_dims`].

    Raises:
        ValueError: If the objectives do not fit the widths.
    """

    def __init__(self, objectives: Sequence[Objective], dims: Sequence[int]):
        dims = list(dims)
        if dims != sorted(set(dims), reverse=True) or not dims:
            raise ValueError(f"the widths of Matryoshka must be distinct and descending, got {dims}")
        super().__init__(dims[0])
        self.dims = dims
        self.objectives = nn.ModuleList(objectives)
        first = objectives[0]
        expected = dims[:1] if isinstance(first, SimCSEObjective) else dims
        actual = [objective.dim for objective in objectives]
        if actual != expected:
            raise ValueError(f"widths {dims} need objectives of dim {expected}, got {actual}")
        self.encoders, self.num_views = first.encoders, first.num_views
        self.needs_hidden_states, self.needs_text_ids = first.needs_hidden_states, first.needs_text_ids
        self.supports_gradcache = first.supports_gradcache

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
            states = batch.hidden_states
            loss = objective(
                replace(
                    batch,
                    embeddings=batch.embeddings[..., :dim],
                    hidden_states=None if states is None else states[..., :dim],
                )
            )
            parts = loss if isinstance(loss, dict) else {"loss": loss}
            losses |= {f"{name}_{dim}": part for name, part in parts.items()}
        return losses

    def _objectives(self) -> list[Objective]:
        return [objective for objective in self.objectives if isinstance(objective, Objective)]


def matryoshka_dims(dims: Sequence[int], dim: int) -> list[int]:
    """Return the widths that a run trains: `dims` and the full embedding size, in descending order.

    The full size is added if it is missing. It is what the model returns without `truncate_dim`, and no smaller width
    trains its last dimensions.

    Args:
        dims (`Sequence[int]`): Widths in any order.
        dim (`int`): Embedding size.

    Returns:
        `list[int]`: The widths, the largest first.

    Raises:
        ValueError: If a width is not an integer from 1 to `dim`, or is named twice.
    """
    for width in dims:
        if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= dim:
            raise ValueError(f"matryoshka_dims must be integers from 1 to {dim}, the embedding size, got {width!r}")
    if len(set(dims)) != len(dims):
        raise ValueError(f"matryoshka_dims names a width twice: {list(dims)}")
    return sorted({dim, *dims}, reverse=True)


def make_matryoshka(
    name: str, dim: int, dims: Sequence[int], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Matryoshka:
    """Build a registered objective at several widths.

    Args:
        name (`str`): See [`make_objective`].
        dim (`int`): See [`make_objective`].
        dims (`Sequence[int]`): See [`matryoshka_dims`].
        settings (`Mapping[str, Any]`): See [`make_objective`].
        options (`Mapping[str, Any]`): See [`make_objective`].

    Returns:
        `Matryoshka`: The objective.

    Raises:
        ValueError: If [`make_objective`] or [`matryoshka_dims`] refuses an argument.
    """
    widths = matryoshka_dims(dims, dim)
    if issubclass(objective_class(name), SimCSEObjective):
        return Matryoshka([make_objective(name, dim, settings, options)], widths)
    return Matryoshka([make_objective(name, width, settings, options) for width in widths], widths)
