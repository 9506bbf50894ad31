"""Objectives made of objectives: at several widths of the embeddings, and another one for each data set."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .base import (
    CombinedObjective,
    EncodedBatch,
    Objective,
    Sum,
    make_objective,
    named_losses,
    objective_class,
    require,
)
from .info_nce import SimCSEObjective


class Matryoshka(CombinedObjective):
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
        ValueError: If a width is not an integer from 1 to `dim` or is named twice, [`make_objective`] refuses an
            argument, or the objective is a sum with a part that encodes texts itself.
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
        self.parts = nn.ModuleList(make_objective(name, width, settings, options) for width in widths)
        first = self.objectives[0]
        parts = first.objectives if isinstance(first, Sum) else []
        encoding = [part.name for part in parts if isinstance(part, SimCSEObjective) and not part.supports_gradcache]
        message = f"{', '.join(encoding)} encodes texts itself, at the full size only: train without matryoshka_dims"
        require(not encoding, f"objective {name!r}: {message}")
        self.vectors = first.vectors
        self._follow_parts()

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
        for dim, objective in zip(self.dims, self.objectives, strict=True):
            states = None if batch.hidden_states is None else batch.hidden_states[..., :dim]
            loss = objective(replace(batch, embeddings=batch.embeddings[..., :dim], hidden_states=states))
            losses |= {f"{name}_{dim}": part for name, part in named_losses(loss).items()}
        return losses


class ByDataset(CombinedObjective):
    """Another objective for the batches of each data set of a run.

    `inputs["dataset"]` holds the number of the data set that all rows of a batch come from. The parameters of the
    other objectives get a gradient of 0, so that all processes exchange the same gradients.

    Args:
        dim (`int`): Embedding size.
        objectives (`Mapping[str, Objective]`): The objective of each data set, in their order. Some may share one.

    Raises:
        ValueError: If the objectives need different numbers of encoders, or only some of them reconstruct.
    """

    def __init__(self, dim: int, objectives: Mapping[str, Objective]):
        super().__init__(dim)
        self.names = list(objectives)
        self.parts = nn.ModuleList(dict.fromkeys(objectives.values()))
        self._part_of = [self.objectives.index(part) for part in objectives.values()]
        for attribute, what in {"encoders": "other numbers of encoders", "reconstructs": "other embeddings"}.items():
            values = {getattr(part, attribute) for part in self.objectives}
            message = f"the objectives of the data sets ({self.name}) read {what}: train them one by one"
            require(len(values) == 1, message)
        self._follow_parts()

    def _follow_parts(self) -> None:
        super()._follow_parts()
        self.num_views = min(part.num_views for part in self.objectives)  # below it a batch has no loss

    def of_dataset(self, number: int) -> Objective:
        """Return the objective of a data set."""
        return self.objectives[self._part_of[number]]

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Return what all objectives say; see [`Objective.mlm_columns`].

        Raises:
            ValueError: If they mask different columns.
        """
        columns = [part.mlm_columns(num_sentences) for part in self.objectives]
        message = "the objectives of the data sets mask different columns for the masked-LM loss: unset do_mlm"
        require(all(x == columns[0] for x in columns), message)
        return columns[0]

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Compute the loss of the batch's data set.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `dataset`.

        Returns:
            `dict[str, torch.Tensor]`: `nli_loss` for the data set `nli`, or `nli_{part}` for each part of its
                objective.

        Raises:
            ValueError: If the batch does not say which data set it comes from.
        """
        message = f"the batch names none of the data sets {', '.join(self.names)}, whose objectives differ: evaluate "
        require("dataset" in batch.inputs, f"{message}them as eval_dataset={{name: rows}}")
        number = int(batch.inputs["dataset"][0])
        part = self.of_dataset(number)
        named = named_losses(part(batch))
        own = {id(parameter) for parameter in part.parameters()}
        others = [p for p in self.parameters() if p.requires_grad and id(p) not in own] if self.training else []
        first = next(iter(named))
        named = named | {first: named[first] + sum((0.0 * p.sum() for p in others), torch.zeros_like(named[first]))}
        return {f"{self.names[number]}_{what}": value for what, value in named.items()}


def build_objective(dim: int, settings: Mapping[str, Any]) -> Objective:
    """Build the objective that the settings of a model describe.

    Args:
        dim (`int`): Embedding size.
        settings (`Mapping[str, Any]`): The settings.

    Returns:
        `Objective`: The objective.

    Raises:
        ValueError: If the objective is unknown, or has no such options, or their values are not valid.
    """

    def build(objective: str, objective_options: Mapping[str, Any]) -> Objective:
        if settings["matryoshka_dims"]:
            return Matryoshka(objective, dim, settings["matryoshka_dims"], settings, objective_options)
        return make_objective(objective, dim, settings, objective_options)

    main = build(settings["objective"], settings["objective_options"])
    if not settings["dataset_objectives"]:
        return main
    tables = settings["dataset_objectives"].items()
    return ByDataset(dim, {name: build(**{"objective_options": {}, **own}) if own else main for name, own in tables})
