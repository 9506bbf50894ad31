"""Objectives by their names, and those that are made of several: sums, and one for each width or data set."""

import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..runtime.errors import SettingError, did_you_mean
from .base import (
    OBJECTIVES,
    EncodedBatch,
    Loss,
    Objective,
    Options,
    TrainedModel,
    TrainingRows,
    named_losses,
    register,
)
from .info_nce import SimCSEObjective


def objective_class(name: str) -> type[Objective]:
    """Look up the class of an objective. Nothing is imported.

    Args:
        name (`str`): The name that it was registered under.

    Returns:
        `type[Objective]`: The class.

    Raises:
        SettingError: If no objective has this name.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    module, colon, _ = name.partition(":")
    if colon and module not in OBJECTIVES:
        raise SettingError(
            f"objective {name!r} is not known, and code that a checkpoint names is never imported by itself: if you "
            f"trust the module {module}, import it first (import_objective), or name it with --objective"
        )
    raise SettingError(
        f"objective must be one of {', '.join(OBJECTIVES)}, or a sum such as simcse+barlow_twins:0.1, got "
        f"{name!r}{did_you_mean([name], OBJECTIVES)}"
    )


def import_objective(objective: str) -> None:
    """Import and register the classes of names such as `my_package.losses:MyLoss`, also from the current folder.

    Other names need no import. Only a name that a user gave may be imported. One that stands in a checkpoint must not
    run code.

    Args:
        objective (`str`): The module and the class, the name of a registered objective, or a sum of such names.

    Raises:
        SettingError: If an objective is unknown: there is no such module, or it has no such objective.
    """
    for name in part_weights(objective):
        module, colon, class_name = name.partition(":")
        if colon and (name not in OBJECTIVES or module in sys.modules):  # where it may be defined again
            if os.getcwd() not in sys.path:  # as where Python runs a console script
                sys.path.append(os.getcwd())
            try:
                found = getattr(import_module(module), class_name)
            except (ImportError, AttributeError) as error:
                raise SettingError(f"objective {name!r} cannot be imported: {error}") from error
            if not (isinstance(found, type) and issubclass(found, Objective)):
                raise SettingError(f"{name!r} is no subclass of simcse_hf.objectives.Objective")
            register(name, found)
        objective_class(name)


#: The option that applies an objective to leading dimensions, too; see [`Matryoshka`].
WIDTHS = "matryoshka_dims"


def split_weight(term: str) -> tuple[str, float]:
    """Split `simcse:0.5` into a name and its weight, which is 1 if what stands after the last colon is no number.

    Args:
        term (`str`): The name, and perhaps a weight.

    Returns:
        `tuple[str, float]`: The name and the weight.

    Raises:
        SettingError: If the weight is not above 0.
    """
    name, _, word = term.rpartition(":")
    try:
        weight = float(word)
    except ValueError:
        return term, 1.0
    if not 0 < weight < math.inf:
        raise SettingError(f"{term}: the weight {word} of {name} must be above 0")
    return name, weight


def part_weights(objective: str) -> dict[str, float]:
    """Return the weight of each part: `simcse+distill:0.5` is `simcse` with 1 and `distill` with 0.5.

    Args:
        objective (`str`): The name of an objective, or a sum of such names. What stands after the last colon of a part
            is its weight, if it is a number, and otherwise a class, as in `simcse+my_package.losses:MyLoss`.

    Returns:
        `dict[str, float]`: The weights by the names of the parts.

    Raises:
        SettingError: If it is no text, a weight is not above 0, or a part is named twice.
    """
    if not isinstance(objective, str):
        raise SettingError(f"objective must be the name of an objective, got {objective!r}")
    weights = {}
    for term in objective.split("+"):
        name, weight = split_weight(term)
        if name in weights:
            raise SettingError(f"objective {objective!r} names {name} twice")
        weights[name] = weight
    return weights


def split_options(objective: str, options: Mapping[str, Any]) -> dict[str, Options]:
    """Return the options of each part of an objective.

    An option goes to every part that has it, and `part.option` to that part alone, where it wins.

    Args:
        objective (`str`): The name of an objective, or a sum of such names.
        options (`Mapping[str, Any]`): The options. `matryoshka_dims` belongs to no part.

    Returns:
        `dict[str, dict]`: The options by the names of the parts.

    Raises:
        SettingError: If no objective has one of the names, or no part has one of the options.
    """
    known = {part: objective_class(part).options for part in part_weights(objective)}
    split: dict[str, Options] = {part: {} for part in known}
    of_parts = [option for option in options if option != WIDTHS]
    for option in sorted(of_parts, key=lambda option: "." in option):  # the later ones win
        addressee, _, name = option.rpartition(".")
        readers = [part for part, own in known.items() if name in own and addressee in ("", part)]
        if not readers:
            names = [f"{part}.{name}" if len(known) > 1 else name for part, own in known.items() for name in own]
            listed = ", ".join([*names, WIDTHS])
            raise SettingError(f"objective {objective!r} has no option {option}; its options are: {listed}")
        for part in readers:
            split[part][name] = options[option]
    return split


#: An entry of the section `Args` of a docstring: the name and the words.
_ARGUMENT = re.compile(r"^    (\w+) \(`[^`]*`[^)]*\): (.*(?:\n        .*)*)", re.MULTILINE)


def describe_options(objective: type[Objective]) -> dict[str, str]:
    """Return what each option of an objective means.

    Args:
        objective (`type[Objective]`): The class.

    Returns:
        `dict[str, str]`: The words of its docstring, or of that of the class that it has the option from.
    """
    words: dict[str, str] = {}
    for cls in objective.__mro__:
        for option, entry in _ARGUMENT.findall(inspect.cleandoc(cls.__doc__ or "")):
            if option in objective.options and not entry.startswith("See ["):
                words.setdefault(option, " ".join(entry.split()))
    return words


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

    def attach(self, model: TrainedModel) -> None:
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
            summaries.append(f"{part.summary.rstrip('.')} (weight {weights[of_part]:g})")
            reads_texts_of_lists = (part.rows, self.rows) == ("texts", "scored_lists")
            reads_the_same = part.rows == self.rows or reads_texts_of_lists
            if not reads_the_same or part.reconstructs != self.reconstructs:
                raise SettingError(
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
            raise SettingError(
                f"matryoshka_dims must be different integers from 1 to the size of embeddings, got {list(dims)}"
            )
        widths = sorted({dim, *dims}, reverse=True)
        whole = build(dim)
        parts = whole.objectives if isinstance(whole, Combined) else []
        for part in parts:
            if isinstance(part, SimCSEObjective) and not part.supports_gradcache:
                raise SettingError(
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
            raise SettingError(
                f"the objectives of the data sets ({self.name}) need other numbers of encoders or other columns: "
                "train them one by one"
            )

    def of_dataset(self, number: int) -> Objective:
        """Return the objective of a data set."""
        return list(self.by_name.values())[number]

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Return what all objectives say; see [`Objective.mlm_columns`].

        Raises:
            SettingError: If they mask different columns.
        """
        first, *others = (part.mlm_columns(num_sentences) for part in self.objectives)
        if any(columns != first for columns in others):
            raise SettingError("the objectives of the data sets mask different columns: unset do_mlm")
        return first

    def forward(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Compute the loss of the batch's data set.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `dataset`.

        Returns:
            `dict[str, torch.Tensor]`: `nli_loss` for the data set `nli`, or `nli_{part}` for each part of its
                objective.

        Raises:
            SettingError: If the batch does not say which data set it comes from.
        """
        if "dataset" not in batch.inputs:
            names = ", ".join(self.by_name)
            raise SettingError(
                f"the batch names none of the data sets {names}: evaluate eval_dataset={{name: rows}}, or predict that"
            )
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


#: An embedding size that every width of a Matryoshka fits into; the model checks its own.
ANY_SIZE = 1 << 16


def described_objective(objective: str, options: Mapping[str, Any] = {}) -> Objective:
    """Build an objective without its weights, for what it says about itself; see [`build_objective`]."""
    with torch.device("meta"):
        return build_objective(objective, ANY_SIZE, options)


def build_objective(objective: str, dim: int, options: Mapping[str, Any] = {}) -> Objective:
    """Build an objective.

    Args:
        objective (`str`): The name that it was registered under, or a sum of such names (see [`Sum`]).
        dim (`int`): Embedding size.
        options (`Mapping[str, Any]`, *optional*): Options of the objective (see [`split_options`]), and
            `matryoshka_dims` (see [`Matryoshka`]). What is missing has the default of the constructor.

    Returns:
        `Objective`: The objective.

    Raises:
        ValueError: If the name or an option is unknown, or if a value is not valid.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, build_objective
        >>> objective = build_objective("simcse+vicreg:0.1", 64, {"vicreg.projector_dim": 128})
        >>> list(objective(EncodedBatch(torch.randn(8, 2, 64))))
        ['simcse_loss', 'vicreg_invariance_loss', 'vicreg_variance_loss', 'vicreg_covariance_loss']
    """
    if options.get(WIDTHS):
        others = {name: value for name, value in options.items() if name != WIDTHS}
        return Matryoshka(dim, options[WIDTHS], partial(build_objective, objective, options=others))
    parts = {}
    for name, own in split_options(objective, options).items():
        parts[name] = OBJECTIVES[name](dim, **own)
    weights = part_weights(objective)
    if weights == {objective: 1.0}:
        return parts[objective]
    return Sum(dim, objective, parts, weights)
