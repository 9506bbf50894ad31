"""Matryoshka: an objective at several widths of the same vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .base import EncodedBatch, Encoder, Objective, TrainingRows, make_objective, objective_class
from .passes import ObjectiveWithPasses


class Matryoshka(Objective):
    """The sum, with equal weights, of an objective on the leading dimensions at several widths.

    Kusupati et al. 2022 (arXiv:2205.13147), Eq. 1 with c_m = 1: a vector's first 64 numbers are trained to be a vector
    of their own. Normalisation belongs to the wrapped objective and so follows the cut.

    Args:
        objectives: for every width one of its own, whose `dim` is that width; or a single [`ObjectiveWithPasses`] of
            the largest width, which makes its passes (a momentum encoder's, a discriminator's) once and takes its loss
            at every width.
        dims: the widths, see [`matryoshka_dims`].

    Raises:
        ValueError: objectives that do not fit the widths.
    """

    def __init__(self, objectives: Sequence[Objective], dims: Sequence[int]):
        dims = list(dims)
        if dims != sorted(set(dims), reverse=True) or not dims:
            raise ValueError(f"the widths of Matryoshka must be distinct and descending, got {dims}")
        super().__init__(dims[0])
        self.dims = dims
        self.objectives = nn.ModuleList(objectives)
        self._shares_passes = isinstance(objectives[0], ObjectiveWithPasses)
        wanted = dims[:1] if self._shares_passes else dims
        found = [objective.dim for objective in objectives]
        if found != wanted:
            raise ValueError(f"widths {dims} need objectives of dim {wanted}, got {found}")
        first = objectives[0]
        self.encoders, self.num_views = first.encoders, first.num_views
        self.needs_hidden_states, self.needs_text_ids = first.needs_hidden_states, first.needs_text_ids

    def attach(self, model: Encoder) -> None:
        for objective in self.objectives:
            objective.attach(model)

    def check(self, rows: TrainingRows) -> None:
        for objective in self.objectives:
            objective.check(rows)

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Named parts: `loss_256` for a width of 256, or `{part}_256` for each part of the wrapped objective."""
        if self._shares_passes:
            passed = self.objectives[0].passes(batch)
            return {f"loss_{dim}": self.objectives[0].loss_at(passed, dim) for dim in self.dims} | passed.parts
        parts = {}
        for dim, objective in zip(self.dims, self.objectives, strict=True):
            states = batch.hidden_states
            found = objective(
                replace(
                    batch,
                    vectors=batch.vectors[..., :dim],
                    hidden_states=None if states is None else states[..., :dim],
                )
            )
            found = found if isinstance(found, dict) else {"loss": found}
            parts |= {f"{name}_{dim}": loss for name, loss in found.items()}
        return parts


def matryoshka_dims(dims: Sequence[int], dim: int) -> list[int]:
    """The widths a run trains: `dims`, largest first, under the full width.

    The full width is added where it is not named: it is what the model gives without `truncate_dim`, and no other
    width trains its last dimensions.

    Args:
        dims: in any order.
        dim: of the sentence vectors.

    Raises:
        ValueError: a width that is no integer from 1 to `dim`, or one that is named twice.
    """
    for width in dims:
        if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= dim:
            raise ValueError(f"matryoshka_dims must be integers from 1 to {dim}, the model's width, got {width!r}")
    if len(set(dims)) != len(dims):
        raise ValueError(f"matryoshka_dims names a width twice: {list(dims)}")
    return sorted({dim, *dims}, reverse=True)


def make_matryoshka(
    name: str, dim: int, dims: Sequence[int], settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Matryoshka:
    """Builds the objective of a name around several widths.

    Args:
        name, dim, settings, options: as of [`make_objective`].
        dims: as of [`matryoshka_dims`].

    Raises:
        ValueError: as those two.
    """
    widths = matryoshka_dims(dims, dim)
    if issubclass(objective_class(name), ObjectiveWithPasses):
        return Matryoshka([make_objective(name, dim, settings, options)], widths)
    return Matryoshka([make_objective(name, width, settings, options) for width in widths], widths)
