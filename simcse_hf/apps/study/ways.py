"""What a study compares: ways to train, written as changes of one recipe, with grids of values."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import TrainerState

from ... import Recipe, SettingError, SimCSE
from ...names import KEYWORDS
from ...objectives.registry import objective_class, part_weights
from ...training.decide import Decided
from ...training.recipe import PARSER
from ...training.seeds import learnt_files, learnt_settings, release, seed_list
from .runs import Trainable

#: What begins the names of ways that are not trained.
START = "start"
_FIRST_SEED = 42


@dataclass(frozen=True)
class Way(Trainable):
    """One way to train.

    Args:
        name (`str`): Its name in the table.
        recipe (`Recipe`): The arguments of its runs, without a seed and an output directory.
        grid (`str`, *optional*): The grid that it is a cell of, of which the dev set chooses one.
    """

    name: str
    recipe: Recipe
    grid: str | None = None

    @cached_property
    def decided(self) -> Decided:
        """What its recipe decides, once: that reads the starting checkpoint."""
        return self.recipe.decide()

    @cached_property
    def learnt(self) -> dict[str, Any]:
        """What decides what it learns: arguments, and digests of texts and weights."""
        return learnt_settings(self.decided)

    @property
    def start(self) -> str:
        """The name of the model that it begins with, and its revision if that is not the main one."""
        revision = self.decided.model.model_revision
        name = str(self.decided.checkpoint.name)
        return name if revision == "main" else f"{name}@{revision}"

    def learns_from(self) -> dict[str, Any]:
        """Return what tells a run of the way from others, but for its seed: two ways that are alike return the same.

        The settings of the model are those that are decided, so a temperature of 0.05 is the default one. The code of
        an objective of somebody's own counts, too.
        """
        checkpoint = self.decided.checkpoint
        chosen = self.decided.model.settings(checkpoint.config)
        settings = {name: value for name, value in self.learnt.items() if name not in chosen and name != "temp"}
        for option, path in self.decided.inputs:
            name = option.removeprefix("--")
            files = learnt_files(path)
            if settings.get(name) == str(path) and files:  # known by its content, wherever it lies
                settings[name] = [settings.pop(f"digest of {file}", None) for file in files]
        resolved = checkpoint.resolve({name: value for name, value in chosen.items() if value is not None})
        return settings | {"settings": asdict(resolved), "code": code_of(resolved.objective)}

    def train(self, seed: int, folder: Path) -> dict[str, Any]:
        """Train with a seed into a folder, or go on there, and return what that has cost."""
        recipe = self.recipe.but(seed=seed, output_dir=str(folder), run_name=folder.name)
        results = recipe.finish()
        release(self.decided.training)
        state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        return {"operations": state.total_flos, "train_seconds": results.train_seconds}

    def open(self, folder: Path) -> Any:
        """Load the model that was trained into a folder."""
        return SimCSE(folder)


def code_of(objective: str) -> list[str]:
    """Return the source of the classes of an objective that somebody else has written, such as `my_losses:Mine`."""
    sources = []
    for name in part_weights(objective):
        if ":" in name:
            own = objective_class(name)
            with suppress(OSError, TypeError):  # what was typed in a console has none
                sources.append(inspect.getsource(inspect.getmodule(own) or own))
    return sources


def read_ways(base: Recipe, ways: Mapping[str, Any]) -> list[Way]:
    """Read the ways of a study.

    A way is a table of the arguments that it changes. An argument with several values makes a grid, with a cell for
    each combination: `learning_rate: [1e-5, 3e-5]` and `temp: [0.05, 0.1]` make four. An argument that is a list by
    itself, such as `dev_task`, needs a list of lists for that, and texts are no grid.

    Args:
        base (`Recipe`): What all ways have in common.
        ways (`Mapping[str, Mapping | Recipe]`): What each way changes, or its whole recipe.

    Returns:
        `list[Way]`: The ways, with every cell of a grid.

    Raises:
        SettingError: If there is no way, a name is taken, or a way has an unknown argument.
    """
    if not isinstance(ways, Mapping) or not ways:
        raise SettingError("ways must be a table of at least one way: a name, and the arguments that it changes")
    found = []
    for key, changed in ways.items():
        name = str(key)
        if name in (START, KEYWORDS) or name.startswith(f"{START} "):
            raise SettingError(f"way {name!r}: this is the name of a model that is not trained; choose another one")
        if isinstance(changed, Recipe):
            found.append(Way(name, changed))
            continue
        if not isinstance(changed, Mapping | None):
            raise SettingError(f"way {name!r} must be a table of arguments (name: value), got {changed!r}")
        values = dict(changed or {})
        cells = read_cells(values)
        if not cells:
            raise SettingError(f"way {name!r} has an empty list of values, so there is no cell of a grid: name some")
        for labels, cell in cells:
            try:
                recipe = Recipe.read(str(cell.pop("command", base.command)), base.given, cell)
            except SettingError as error:
                raise SettingError(f"way {name!r}: {error}") from None
            is_cell = len(cells) > 1
            found.append(Way(", ".join([name, *labels]), recipe, name if is_cell else None))
    names = [way.name for way in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two ways, or cells of grids, are named {name!r}: choose another name or value")
    return found


def read_cells(values: Mapping[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
    """Return each combination of the arguments that have several values, with the words that tell it from others."""
    cells: list[tuple[list[str], dict[str, Any]]] = [([], dict(values))]
    for name, choices in values.items():
        if is_grid(name, choices):
            cells = [
                ([*labels, f"{name}={choice}"], cell | {name: choice}) for labels, cell in cells for choice in choices
            ]
    return cells


def is_grid(name: str, value: Any) -> bool:
    """Return whether an argument has several values, of which each makes a cell of a grid."""
    if not isinstance(value, list | tuple) or name in ("train_file", "dev_file") or name not in PARSER.by_name:
        return False
    takes_several = PARSER.by_name[name].nargs in ("+", "*") or "list" in PARSER.hints[name]
    return not takes_several or all(isinstance(each, list | tuple) for each in value)


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds of a study, which are the same for all ways.

    Args:
        seeds (`int` or `Sequence[int]`): A number of seeds, of which the first is 42, or the seeds.

    Returns:
        `list[int]`: The seeds.

    Raises:
        SettingError: If there are fewer than two, or a seed occurs twice or is negative.
    """
    listed = seed_list(seeds, _FIRST_SEED)
    if len(listed) < 2:
        raise SettingError(
            f"seeds {seeds}: a study needs at least two seeds, because one says nothing about what another would give"
        )
    return listed
