"""Old names for the present core: this file goes with the core's rebuild."""

from collections.abc import Mapping
from typing import Any

from . import building, registry
from .base import Objective
from .by_dataset import ByDataset
from .labelled.nli import Softmax, SupCon
from .matryoshka import Matryoshka
from .sum import Sum

__all__ = ["ByDataset", "Matryoshka", "build_objective", "find_objective", "make_objective", "objective_class"]

Softmax.defaults = {**Softmax.defaults, "nli_sampling": "pairs"}
SupCon.defaults = {**SupCon.defaults, "nli_sampling": "pairs", "similarity": "dot"}
_SETTINGS = ("temperature", "similarity", "hard_negative_weight")


def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective, or one that describes a sum."""
    weights = building.part_weights(name)
    classes = {part: registry.objective_class(part) for part in weights}
    if list(weights.values()) == [1.0]:
        return classes[name]
    options = {part: cls.options() for part, cls in classes.items()}
    shared = {option: default for own in options.values() for option, default in own.items()}
    addressed = {f"{part}.{option}": x for part, own in options.items() for option, x in own.items()}
    described = Sum(8, {part: _empty(cls) for part, cls in classes.items()}, weights)
    attributes = {name: value for name, value in vars(described).items() if name in vars(Objective)}
    similarity = {k: x for cls in reversed(classes.values()) for k, x in cls.defaults.items() if k == "similarity"}
    attributes["defaults"] = similarity | described.defaults
    attributes["options"] = classmethod(lambda cls: shared | addressed)
    return type("Sum", (Objective,), attributes)


def _empty(cls: type[Objective]) -> Objective:
    made = cls.__new__(cls)
    Objective.__init__(made, 8)
    return made


def find_objective(name: str) -> type[Objective] | None:
    """Return the class of an objective, or `None` if it is unknown."""
    try:
        known = all(part in registry.OBJECTIVES for part in building.part_weights(name))
    except ValueError:
        known = True
    return objective_class(name) if known else None


def make_objective(name: str, dim: int, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Objective:
    """Build an objective with options that the settings of a model hold."""
    has = {option for part in building.part_weights(name) for option in registry.objective_class(part).options()}
    given = {option: settings[option] for option in _SETTINGS if option in has and settings.get(option) is not None}
    return building.build_objective(name, dim, given | dict(options))


def build_objective(dim: int, settings: Mapping[str, Any]) -> Objective:
    """Build the objective that the settings of a model describe."""

    def build(objective: str, objective_options: Mapping[str, Any]) -> Objective:
        widths = {"matryoshka_dims": settings["matryoshka_dims"]} if settings["matryoshka_dims"] else {}
        return make_objective(objective, dim, settings, {**widths, **objective_options})

    main = build(settings["objective"], settings["objective_options"])
    if not settings["dataset_objectives"]:
        return main
    tables = settings["dataset_objectives"].items()
    return ByDataset(
        dim, {name: build(**{"objective_options": {}, **own}) if own else main for name, own in tables}, main
    )
