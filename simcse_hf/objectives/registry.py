"""Objectives by their names: register a class, split a sum into its parts, and build an objective."""

import inspect
import math
import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..runtime.errors import did_you_mean
from .base import OBJECTIVES, Objective, Options, register
from .combined import Matryoshka, Sum


def objective_class(name: str) -> type[Objective]:
    """Look up the class of an objective. Nothing is imported.

    Args:
        name (`str`): The name that it was registered under.

    Returns:
        `type[Objective]`: The class.

    Raises:
        ValueError: If no objective has this name.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    module, colon, _ = name.partition(":")
    if colon and module not in OBJECTIVES:
        raise ValueError(
            f"objective {name!r} is not known, and code that a checkpoint names is never imported by itself: if you "
            f"trust the module {module}, import it first (import_objective), or name it with --objective"
        )
    known = f"{', '.join(OBJECTIVES)}, or a sum such as simcse+barlow_twins:0.1"
    raise ValueError(f"objective must be one of {known}, got {name!r}{did_you_mean([name], OBJECTIVES)}")


def import_objective(objective: str) -> None:
    """Import and register the classes of names such as `my_package.losses:MyLoss`, also from the current folder.

    Other names need no import. Only a name that a user gave may be imported. One that stands in a checkpoint must not
    run code.

    Args:
        objective (`str`): The module and the class, the name of a registered objective, or a sum of such names.

    Raises:
        ValueError: If an objective is unknown: there is no such module, or it has no such objective.
    """
    for name in part_weights(objective):
        module, colon, class_name = name.partition(":")
        if colon and name not in OBJECTIVES:
            if os.getcwd() not in sys.path:  # as where Python runs a console script
                sys.path.append(os.getcwd())
            try:
                found = getattr(import_module(module), class_name)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"objective {name!r} cannot be imported: {error}") from error
            if not (isinstance(found, type) and issubclass(found, Objective)):
                raise ValueError(f"{name!r} is no subclass of simcse_hf.objectives.Objective")
            register(name, found)
        objective_class(name)


#: The option that applies an objective to leading dimensions, too; see [`Matryoshka`].
WIDTHS = "matryoshka_dims"


def part_weights(objective: str) -> dict[str, float]:
    """Return the weight of each part: `simcse+distill:0.5` is `simcse` with 1 and `distill` with 0.5.

    Args:
        objective (`str`): The name of an objective, or a sum of such names. What stands after the last colon of a part
            is its weight, if it is a number, and otherwise a class, as in `simcse+my_package.losses:MyLoss`.

    Returns:
        `dict[str, float]`: The weights by the names of the parts.

    Raises:
        ValueError: If it is no text, a weight is not above 0, or a part is named twice.
    """
    if not isinstance(objective, str):
        raise ValueError(f"objective must be the name of an objective, got {objective!r}")
    weights: dict[str, float] = {}
    for term in objective.split("+"):
        name, _, word = term.rpartition(":")
        try:
            weight = float(word)
        except ValueError:
            name, weight = term, 1.0
        if name in weights:
            raise ValueError(f"objective {objective!r} names {name} twice")
        if not 0 < weight < math.inf:
            raise ValueError(f"objective {objective!r}: the weight of {name} must be above 0, got {word!r}")
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
        ValueError: If no objective has one of the names, or no part has one of the options.
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
            raise ValueError(f"objective {objective!r} has no option {option}; its options are: {listed}")
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
