"""Build an objective from its name and its options."""

from collections.abc import Mapping
from typing import Any

from .base import Objective
from .matryoshka import Matryoshka
from .registry import objective_class
from .sum import Sum

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
        ValueError: If a weight is not above 0, or a part is named twice.
    """
    weights: dict[str, float] = {}
    for term in objective.split("+"):
        name, _, word = term.rpartition(":")
        try:
            weight = float(word)
        except ValueError:
            name, weight = term, 1.0
        if name in weights:
            raise ValueError(f"objective {objective!r} names {name} twice")
        if not 0 < weight < float("inf"):
            raise ValueError(f"objective {objective!r}: the weight of {name} must be above 0, got {word!r}")
        weights[name] = weight
    return weights


def split_options(objective: str, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
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
    known = {part: objective_class(part).options() for part in part_weights(objective)}
    shared: dict[str, dict[str, Any]] = {part: {} for part in known}
    addressed: dict[str, dict[str, Any]] = {part: {} for part in known}
    for option, value in options.items():
        if option == WIDTHS:
            continue
        part, point, name = option.rpartition(".")
        readers = [part] if point else list(known)
        readers = [reader for reader in readers if name in known.get(reader, {})]
        if not readers:
            names = [*dict.fromkeys(name for own in known.values() for name in own), WIDTHS]
            if len(known) > 1:
                names += [f"{part}.{name}" for part, own in known.items() for name in own]
            raise ValueError(f"objective {objective!r} has no option {option}; its options are: {', '.join(names)}")
        for reader in readers:
            (addressed if point else shared)[reader][name] = value
    return {part: shared[part] | addressed[part] for part in known}


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
    """
    weights = part_weights(objective)
    split = split_options(objective, options)

    def build(width: int) -> Objective:
        parts = {name: objective_class(name)(width, **own) for name, own in split.items()}
        if weights == {objective: 1.0}:
            return parts[objective]
        return Sum(width, parts, weights)

    return Matryoshka(dim, options[WIDTHS], build) if options.get(WIDTHS) else build(dim)
