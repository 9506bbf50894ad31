"""What a study is asked for, and what is refused before anything is trained."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ... import Recipe, SettingError
from ...data.read import open_source
from ...evaluation.bootstrap import check_interval
from ...evaluation.metrics import find_metric
from ...evaluation.scoring import read_tasks
from ...evaluation.tasks import SENTEVAL, Task
from ...runtime.errors import as_list, check_values
from ...runtime.files import StrPath
from ...training.dev_sets import make_dev_sets
from ...training.parser import TEXTS, check_files, plain_value, read_yaml
from ..mining import fold_text
from .runs import SeedRun
from .ways import Way, check_seeds, read_ways

logger = logging.get_logger(__name__)

#: Arguments of a single run, which a study decides.
OWN = ("seed", "seeds", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "run_name", "push_to_hub")


@dataclass(frozen=True)
class Asked:
    """What a study compares, on what, and where it writes.

    Args:
        ways (`list[Way]`): The ways, with every cell of a grid.
        seeds (`list[int]`): The seeds of each of them.
        test (`Sequence[str]`): What the verdict is about; nothing for the dev set.
        data_dir (`str` or `os.PathLike`, *optional*): The folder of SentEval's tasks.
        label_separator (`str`, *optional*): What stands between several labels in a cell.
        output (`Path`): The output folder.
        confidence (`float`): Level of the intervals.
        keep_models (`bool`): Whether models are kept after they were scored.
    """

    ways: list[Way]
    seeds: list[int]
    test: Sequence[Any]
    data_dir: StrPath | None
    label_separator: str | None
    output: Path
    confidence: float
    keep_models: bool

    @property
    def compared(self) -> list[str]:
        """The ways whose differences are judged: those that are no cells, and every grid."""
        return list(dict.fromkeys(way.grid or way.name for way in self.ways))


#: The entries of a file of a study.
ENTRIES = ("base", *Asked.__dataclass_fields__)


def read_study(source: StrPath | Mapping[str, Any], given: Mapping[str, Any]) -> Asked:
    """Read what a file and the arguments of a call ask for.

    Args:
        source (`str`, `os.PathLike` or `Mapping`): The file, its content, or recipes by name.
        given (`Mapping[str, Any]`): The arguments, which go before what the file says.

    Returns:
        [`Asked`]: What is asked for.

    Raises:
        SettingError: If the file cannot be read, or an entry is unknown, missing or wrong.
    """
    content: Any = source
    where = "the study"
    if isinstance(source, (str, os.PathLike)):
        content = read_yaml(source)
        where = str(source)
    if not isinstance(content, Mapping):
        raise SettingError(f"{where} must hold a table with the entries base and ways")
    if "ways" not in content and not isinstance(source, (str, os.PathLike)):
        content = {"ways": content}
    entries_of = {name: value for name, value in content.items() if value is not None}  # an empty entry is none
    unknown = [str(name) for name in content if name not in ENTRIES]
    if unknown or "ways" not in entries_of:
        wrong = f"unknown entry {', '.join(unknown)}" if unknown else "ways is missing"
        raise SettingError(f"{where}: {wrong}; the entries are {', '.join(ENTRIES)}")
    # Texts are read as they were written, and numbers as YAML takes them.
    for name in entries_of.keys() & {"seeds", "confidence", "keep_models"}:
        entries_of[name] = plain_value(entries_of[name])
    entries_of |= given
    base = entries_of.get("base", {})
    if not isinstance(base, Mapping):
        raise SettingError(f"{where}: base must be a table of the arguments that all ways have in common")
    values = dict(base)
    base = Recipe.read(str(values.pop("command", "unsup")), values)
    ways = read_ways(base, entries_of["ways"])
    for way in ways:
        for name in OWN:
            if name in way.recipe.given:
                raise SettingError(
                    f"{where}: way {way.name!r}: leave out {name}; a study has seeds and folders of its own, and "
                    "pushes nothing"
                )
    test = as_list(entries_of.get("test", ()))
    confidence = entries_of.get("confidence", 0.95)
    check_interval(confidence)
    keep_models = entries_of.get("keep_models", True)
    check_values("true or false", keep_models=keep_models)
    return Asked(
        ways=ways,
        seeds=check_seeds(entries_of.get("seeds", 3)),
        test=[str(word) if isinstance(word, os.PathLike) else word for word in test],
        data_dir=entries_of.get("data_dir"),
        label_separator=entries_of.get("label_separator"),
        output=Path(entries_of.get("output", "outputs/study")).expanduser(),
        confidence=confidence,
        keep_models=keep_models,
    )


def read_part(part: str | None) -> tuple[int, int] | None:
    """Read a part such as `2/4`.

    Args:
        part (`str`, *optional*): The part.

    Returns:
        `tuple[int, int]`, *optional*: Its number from 1, and the number of parts.

    Raises:
        SettingError: If it is no part.
    """
    if part is None:
        return None
    number, _, of = str(part).partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise SettingError(f"part must be such as 2/4, the second of four parts, got {part!r}")
    return int(number), int(of)


# What is refused before anything is trained --------------------------------------------------------------------------


def check_ways(asked: Asked) -> None:
    """Decide every way, and refuse one that cannot be trained as it is asked for, or names a file that is not there.

    Args:
        asked (`Asked`): What is asked for.

    Raises:
        SettingError: Names the way.
    """
    for way in asked.ways:
        try:
            check_files(way.decided.inputs)
        except ValueError as error:
            raise SettingError(f"way {way.name!r}: {error}") from None
        data = way.decided.data
        has_dev = data.dev_file is not None or data.dev_task
        if not has_dev and not asked.test:
            raise SettingError(f"way {way.name!r} has nothing to be judged on: name test, or a dev_file for all ways")
        if way.grid is not None and not (has_dev and asked.test):
            raise SettingError(
                f"way {way.name!r} is a cell of a grid. The dev set chooses a cell, and other items judge it: name "
                "both dev_file and test"
            )
    judges = set()
    for way in asked.ways:
        if asked.test and way.grid is None:
            continue
        chosen_by = way.decided.given.get("metric_for_best_model")
        judges.add(repr([way.learnt["dev_file"], way.learnt["dev_task"], chosen_by]))
        metric = str(chosen_by or "").removeprefix("eval_")
        if metric and not find_metric(metric).higher_is_better:
            raise SettingError(f"way {way.name!r}: {metric} is better when it is lower, and cannot choose or judge")
    if len(judges) > 1:
        raise SettingError(
            "the ways have different dev sets or metrics, which can neither choose nor judge: name test"
        )


def check_alike(runs: Sequence[SeedRun]) -> None:
    """Refuse two ways that would train the same model, but for a cell that is also a way: they share their runs."""
    ways: dict[tuple[str | None, Path], str] = {}
    for run in runs:
        other = ways.setdefault((run.way.grid, run.folder), run.way.name)
        if other != run.way.name:
            raise SettingError(f"the ways {other!r} and {run.way.name!r} are alike: they train the same model")


def read_tests(asked: Asked) -> dict[str, Task]:
    """Read the test tasks, and refuse one that is a dev set of a way.

    Args:
        asked (`Asked`): What is asked for.

    Returns:
        `dict[str, Task]`: The tasks by name.

    Raises:
        SettingError: If a task cannot be read, or chooses the checkpoints of a way.
    """
    names = []
    pairs = []
    others = []
    for word in asked.test:
        if isinstance(word, str) and word in SENTEVAL:
            names.append(word)
        elif isinstance(word, tuple | Task) or (isinstance(word, str) and "=" in word):
            others.append(word)
        else:
            pairs.append(word)
    if asked.data_dir is not None and not names:
        raise SettingError(
            f"data_dir {asked.data_dir} is for tasks of SentEval, and test names none: add such as STS12 to test, or "
            "leave out data_dir"
        )
    tasks, _, _ = read_tasks(
        tasks=names or None,
        data_dir=asked.data_dir if names else None,
        pairs=pairs,
        task=others,
        label_separator=asked.label_separator,
    )
    for way in asked.ways:
        for source, dev in dev_tasks(way).items():
            for name, task in tasks.items():
                if set(dev.texts) == set(task.texts):
                    raise SettingError(
                        f"test {name} is the dev set {source} of way {way.name!r}, which chooses its checkpoint: "
                        "judge on other items, or leave out test"
                    )
    return tasks


def dev_tasks(way: Way) -> dict[str, Task]:
    """Return the dev sets of a way as tasks."""
    data = way.decided.data
    dev_sets = make_dev_sets(data.dev_file, data.dev_task, label_separator=data.label_separator)
    return {name: task for dev_set in dev_sets for name, task in dev_set.tasks.items()}


def check_texts(asked: Asked, tasks: Mapping[str, Task]) -> None:
    """Refuse ways that read different texts if some of them have read a test item, and warn if all of them have.

    Args:
        asked (`Asked`): What is asked for.
        tasks (`Mapping[str, Task]`): The test tasks.

    Raises:
        SettingError: Names the way, the file, the row and the text.
    """
    tested = {fold_text(text): name for name, task in tasks.items() for text in task.texts}
    if not tested:
        return
    sources = {}
    ways_of: dict[str, list[str]] = {}
    for way in asked.ways:
        given = way.decided.given
        tables = given.get("datasets") or {"": given}
        learnt = way.learnt["datasets"] or {"": way.learnt}  # in which a digest stands for rows in memory
        for option, name in product(sorted(TEXTS), tables):
            source = tables[name].get(option)
            if source is not None:
                key = repr(learnt[name][option])
                sources[key] = source
                ways_of.setdefault(key, []).append(way.name)
    is_shared = all(len(ways) == len(asked.ways) for ways in ways_of.values())
    for key, source in sources.items():
        for place, text in cells_of(source):
            name = tested.get(fold_text(text))
            if name is None:
                continue
            found = f"{place}: {text[:60]!r} is also an item of the test {name}"
            if is_shared:
                logger.warning(f"{found}. All ways read it, so none has an advantage, but the scores are too high.")
                return
            raise SettingError(
                f"way {ways_of[key][0]!r} has an advantage. {found}, and the ways read different texts: remove the "
                "row, or judge on another test"
            )


def cells_of(source: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of a source of training rows, with their place for messages."""
    for table in open_source(source):
        for number, cells in table.rows(table.columns):
            for cell in cells:
                if isinstance(cell, str):
                    yield table.at(number), cell
