"""The registry that maps names to objectives."""

from importlib import import_module

from .base import Objective

OBJECTIVES: dict[str, type[Objective]] = {}


def register(name: str, objective: type[Objective]) -> None:
    """Register an objective under the name that `--objective` and `objective=` take.

    Args:
        name (`str`): The name.
        objective (`type[Objective]`): The class.

    Raises:
        ValueError: If another class has the name.
    """
    known = OBJECTIVES.setdefault(name, objective)
    if known is not objective:
        raise ValueError(f"objective {name!r} is already registered: {known.__name__}. Choose another name")
    objective.name = name


def find_objective(name: str) -> type[Objective] | None:
    """Return the class of an objective by its name, or `None` if it is not registered. Nothing is imported."""
    return OBJECTIVES.get(name)


def objective_class(name: str) -> type[Objective]:
    """Look up the class of an objective.

    Args:
        name (`str`): The name that it was registered under.

    Returns:
        `type[Objective]`: The class.

    Raises:
        ValueError: If no objective has this name.
    """
    found = find_objective(name)
    if found is not None:
        return found
    module, colon, _ = name.partition(":")
    if colon and module not in OBJECTIVES:
        raise ValueError(
            f"objective {name!r} is not known, and the name in a checkpoint is not imported, because this would run "
            f"code: if you trust the module {module}, import it first (import_objective), or name it with --objective"
        )
    raise ValueError(
        f"objective must be one of {', '.join(OBJECTIVES)}, or a sum such as simcse+barlow_twins:0.1, got {name!r}"
    )


def import_objective(name: str) -> None:
    """Import and register the class of a name such as `my_package.losses:MyLoss`; other names need no import.

    Only a name that a user gave may be imported. One that stands in a checkpoint must not run code.

    Args:
        name (`str`): The module and the class, or the name of a registered objective.

    Raises:
        ValueError: If there is no such module, or it has no such objective.
    """
    module, colon, class_name = name.partition(":")
    if not colon or name in OBJECTIVES:
        return
    try:
        found = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"objective {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ValueError(f"{name!r} is no subclass of simcse_hf.objectives.Objective")
    register(name, found)
