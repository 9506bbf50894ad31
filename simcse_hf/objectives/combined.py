"""Objectives that are made of several: sums, one for each width of the embeddings, or for each data set of a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from .base import EncodedBatch, Encoder, Loss, Objective, TrainingRows, named_losses
from .info_nce import SimCSEObjective


def of_parts(name: str, combine: Callable[[list], Any]) -> Any:
    """Return the property of a [`Combined`] that is made of this property of its parts whenever it is read."""
    return property(lambda combined: combine([getattr(part, name) for part in combined.objectives]))


def distinct(values: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the elements of several sequences, each of them once."""
    return tuple(dict.fromkeys(chain(*values)))


def first_given(values: Iterable[Any]) -> Any:
    """Return the first value that is not empty, `None` without one."""
    return next((value for value in values if value), None)


class Combined(Objective):
    """Base class of objectives that are made of several, its `objectives`, which read the same batches.

    What it says about itself follows from all of them, also after they are attached to a model. It needs what any of
    them needs, works with GradCache if all do, and has the rows and the view of the first one. The subclass registers
    them as modules.

    Args:
        dim (`int`): Embedding size.
        objectives (`Iterable[Objective]`): The objectives, without repetition.
    """

    papers = of_parts("papers", distinct)
    supports_gradcache = of_parts("supports_gradcache", all)
    encoders = of_parts("encoders", max)
    num_views = of_parts("num_views", max)
    rows = of_parts("rows", itemgetter(0))
    view = of_parts("view", itemgetter(0))
    reconstructs = of_parts("reconstructs", itemgetter(0))
    similarity = of_parts("similarity", first_given)
    vectors = of_parts("vectors", distinct)
    enters_space = of_parts("enters_space", any)
    needs_hidden_states = of_parts("needs_hidden_states", any)
    needs_text_ids = of_parts("needs_text_ids", any)

    def __init__(self, dim: int, objectives: Iterable[Objective]):
        super().__init__(dim)
        self.objectives: tuple[Any, ...] = tuple(objectives)
        self.name = ", ".join(dict.fromkeys(part.name for part in self.objectives))
        self.summary = self.objectives[0].summary

    def attach(self, model: Encoder) -> None:
        """Attach every part; see [`Objective.attach`]."""
        for part in self.objectives:
            part.attach(model)

    def check(self, rows: TrainingRows) -> None:
        """Check the training data as every part does; see [`Objective.check`]."""
        for part in self.objectives:
            part.check(rows)

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Mask the columns that a part masks; see [`Objective.mlm_columns`]."""
        return first_given(part.mlm_columns(num_sentences) for part in self.objectives)


class Sum(Combined):
    """A weighted sum of objectives on the same embeddings: `simcse+barlow_twins:0.1`, where 1 is left out.

    It has as many views and encoders as the most demanding part, and works with GradCache if all parts do.

    Args:
        dim (`int`): Embedding size.
        name (`str`): The name of the sum.
        parts (`Mapping[str, Objective]`): The parts by their names.
        weights (`Mapping[str, float]`): The weight of each part.

    Raises:
        ValueError: If the parts read different training rows or different columns of embeddings.
    """

    # The texts of scored lists are read by parts that need no scores as well.
    rows = of_parts("rows", lambda kinds: "scored_lists" if "scored_lists" in kinds else kinds[0])

    def __init__(
        self,
        dim: int,
        name: str,
        parts: Mapping[str, Objective],
        weights: Mapping[str, float],
    ):
        super().__init__(dim, parts.values())
        self.name = name
        self.weights = dict(weights)
        self.parts = nn.ModuleDict()
        summaries = []
        for of_part, part in parts.items():
            self.parts[of_part.replace(".", "_")] = part
            summaries.append(f"{part.summary} (weight {weights[of_part]:g})")
            reads_texts_of_lists = (part.rows, self.rows) == ("texts", "scored_lists")
            reads_the_same = part.rows == self.rows or reads_texts_of_lists
            if not reads_the_same or part.reconstructs != self.reconstructs:
                raise ValueError(
                    f"objective {name!r}: {of_part} reads other training rows or columns than the first part"
                )
        self.summary = "the sum of " + "; and ".join(summaries)

    def forward(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Compute the weighted loss of every part.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `dict[str, torch.Tensor]`: `simcse_loss` for the part `simcse`, or `esimcse_info_nce` and the like if the
                part has named parts of its own.
        """
        losses = {}
        for (name, weight), part in zip(self.weights.items(), self.objectives, strict=True):
            for what, value in named_losses(part(batch)).items():
                losses[f"{name}_{what}"] = weight * value
        return losses


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

    def __init__(
        self,
        dim: int,
        dims: Sequence[int],
        build: Callable[[int], Objective],
    ):
        wrong = [width for width in dims if type(width) is not int or not 1 <= width <= dim]
        if wrong or len(set(dims)) < len(dims):
            raise ValueError(f"matryoshka_dims must be different integers from 1 to the size {dim}, got {list(dims)}")
        widths = sorted({dim, *dims}, reverse=True)
        whole = build(dim)
        parts = whole.objectives if isinstance(whole, Combined) else []
        for part in parts:
            if isinstance(part, SimCSEObjective) and not part.supports_gradcache:
                problem = f"{part.name} encodes texts itself, at the full size only"
                raise ValueError(f"objective {whole.name!r}: {problem}: train without matryoshka_dims")
        objectives = [whole]
        if isinstance(whole, SimCSEObjective):
            whole.widths = widths
        else:
            objectives += map(build, widths[1:])
        super().__init__(dim, objectives)
        self.parts = nn.ModuleList(self.objectives)
        #: The widths, the largest first.
        self.dims = widths

    def forward(self, batch: EncodedBatch) -> Loss:
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


class ByDataset(Combined):
    """Another objective for the batches of each data set of a run.

    `inputs["dataset"]` holds the number of the data set that all rows of a batch come from. The parameters of the
    other objectives get a gradient of 0, so that all processes exchange the same gradients.

    The state of an objective is saved by the name of its data set, so their order may change.

    Args:
        dim (`int`): Embedding size.
        objectives (`Mapping[str, Objective]`): The objective of each data set, in their order.
        main (`Objective`, *optional*): The objective that several data sets share: those whose objective it is.

    Raises:
        ValueError: If the objectives need different numbers of encoders, or only some of them reconstruct.
    """

    num_views = of_parts("num_views", min)  # below it a batch has no loss

    def __init__(
        self,
        dim: int,
        objectives: Mapping[str, Objective],
        main: Objective | None = None,
    ):
        super().__init__(dim, dict.fromkeys(objectives.values()))
        self.by_name = dict(objectives)
        self.own = nn.ModuleDict()
        self.main = main if main in self.objectives else None
        for name, objective in objectives.items():
            if objective is not main:
                # Names of modules have no points, and may not be those of attributes, such as `train`.
                module = name.replace(".", ":")
                self.own[f":{module}"] = objective
        needs = {(part.encoders, part.reconstructs) for part in self.objectives}
        if len(needs) > 1:
            problem = f"the objectives of the data sets ({self.name}) need other numbers of encoders or other columns"
            raise ValueError(f"{problem}: train them one by one")

    def of_dataset(self, number: int) -> Objective:
        """Return the objective of a data set."""
        return list(self.by_name.values())[number]

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Return what all objectives say; see [`Objective.mlm_columns`].

        Raises:
            ValueError: If they mask different columns.
        """
        first, *others = (part.mlm_columns(num_sentences) for part in self.objectives)
        if any(columns != first for columns in others):
            raise ValueError("the objectives of the data sets mask different columns: unset do_mlm")
        return first

    def forward(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Compute the loss of the batch's data set.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `dataset`.

        Returns:
            `dict[str, torch.Tensor]`: `nli_loss` for the data set `nli`, or `nli_{part}` for each part of its
                objective.

        Raises:
            ValueError: If the batch does not say which data set it comes from.
        """
        if "dataset" not in batch.inputs:
            names = ", ".join(self.by_name)
            raise ValueError(f"the batch names none of the data sets {names}: evaluate eval_dataset={{name: rows}}")
        number = int(batch.inputs["dataset"][0])
        name, objective = list(self.by_name.items())[number]
        losses = {f"{name}_{what}": loss for what, loss in named_losses(objective(batch)).items()}
        if self.training:
            own = set(objective.parameters())
            first = next(iter(losses))
            for parameter in self.parameters():
                if parameter.requires_grad and parameter not in own:
                    losses[first] = losses[first] + 0.0 * parameter.sum()
        return losses
