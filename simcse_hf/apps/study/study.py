"""The study: what is asked is checked before anything is trained, then its runs are made, and one verdict is said."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformers.utils import logging

from ... import SettingError
from ...evaluation.tasks import Task
from ...runtime.distributed import world
from ...runtime.files import StrPath, write_json
from .asked import check_alike, check_texts, check_ways, read_part, read_study, read_tests
from .judge import judge_runs
from .result import PICTURE, STUDY, Plan, Study
from .runs import RUNS, SeedRun, finish_run, plan_runs, remove_model, score_run, time_first_step
from .ways import Way

logger = logging.get_logger(__name__)

#: A YAML file of a study, its content, or recipes by the names of ways.
Ways = StrPath | Mapping[str, Any]


def study(
    ways: Ways,
    *,
    seeds: int | Sequence[int] | None = None,
    test: Sequence[str | Task] | None = None,
    data_dir: StrPath | None = None,
    label_separator: str | None = None,
    output: StrPath | None = None,
    confidence: float | None = None,
    part: str | None = None,
    dry_run: bool = False,
    keep_models: bool = True,
    show_progress_bar: bool = True,
) -> Study | Plan:
    """Train several ways with the same seeds, and say which of them to take.

    Every way is trained once with each seed. The start, as one would use it, is always compared as well, and keyword
    search where all test tasks rank. Differences are paired by seed and by test item, and their intervals say what
    other seeds and other items could have shown.

    A study can be interrupted and called again: a run is known by its arguments, its texts, its start and its seed,
    and none is trained twice, also when a way or a seed is added. A run that fails is named, and the others go on.

    Args:
        ways (`str`, `os.PathLike` or `Mapping`): A YAML file with the entries base (what all ways have in common) and
            ways (the arguments that each way changes, several values for a grid); in Python also such a table, or a
            `Recipe` for each name of a way.
        seeds (`int` or `Sequence[int]`, *optional*): How many seeds, or which. The default is 3.
        test (`Sequence[str]`, *optional*): What the verdict is about: names of SentEval's tasks, and tasks from files
            of yours as KIND=FILE. The default is the dev set, with an allowance for the choice of checkpoints.
        data_dir (`str` or `os.PathLike`, *optional*): The folder "downstream" of SentEval, for its tasks.
        label_separator (`str`, *optional*): What stands between several labels of a text in a cell, such as ";".
        output (`str` or `os.PathLike`, *optional*): Folder of the runs, the verdict and a picture. The default is
            outputs/study, or that of the file.
        confidence (`float`, *optional*): Level at which all intervals hold together. The default is 0.95.
        part (`str`, *optional*): Train a part of the runs only, such as 2/4 for the second of four machines that share
            the output folder.
        dry_run (`bool`, *optional*, defaults to `False`): Say the runs, their steps and an estimate of the time, from
            the first step of each way; train nothing else.
        keep_models (`bool`, *optional*, defaults to `True`): Keep the models of all runs after they were scored.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a bar while texts are encoded.

    Returns:
        [`Study`] or [`Plan`]: The table, and the way to take; of a dry run, what would be trained.

    Raises:
        SettingError: If what is asked for makes no sense, before anything is trained.

    Examples:
        >>> from simcse_hf import Recipe, study
        >>> texts = {"train_file": "sentences.txt", "dev_file": "sts-dev.csv", "max_steps": 2, "eval_steps": 2}
        >>> simcse = Recipe.read("unsup", {"model_name_or_path": "outputs/my-model", **texts, "report_to": "none"})
        >>> found = study({"simcse": simcse, "hotter": simcse.but(temp=0.1)}, seeds=2, output="outputs/study")
        >>> found.first, [outcome.name for outcome in found.outcomes]
        ('simcse', ['simcse', 'hotter', 'start'])
    """
    # 1. What is asked for. What is given goes before what the file says.
    given = {
        "seeds": seeds,
        "test": test,
        "data_dir": data_dir,
        "label_separator": label_separator,
        "output": output,
        "confidence": confidence,
        "keep_models": None if keep_models else False,
    }
    asked = read_study(ways, {name: value for name, value in given.items() if value is not None})
    position = read_part(part)

    # 2. Refuse what makes no sense before anything is trained.
    check_ways(asked)
    tasks = read_tests(asked)
    check_texts(asked, tasks)
    asked.output.mkdir(parents=True, exist_ok=True)
    runs = plan_runs(asked.ways, asked.seeds, asked.output / RUNS)
    check_alike(runs)
    if dry_run:
        return plan(asked.ways, runs)

    # 3. Train and score, one seed of all ways before the next. What another process works on is left to it.
    failures = {}
    for number, run in enumerate(runs):
        if position is not None and number % position[1] != position[0] - 1:
            continue
        logger.info(f"Run {number + 1} of {len(runs)}: {run.name}")
        try:
            if finish_run(run) and run.way.grid is None:  # of the cells of a grid, only chosen ones are judged
                score_run(run, partial(run.way.open, run.folder), tasks, show_progress_bar)
        except Exception as error:  # an objective of somebody's own may raise anything, and the others go on
            failures[run.name] = f"{type(error).__name__}: {error}"
            logger.warning(f"{run.name} failed: {failures[run.name]}")

    # 4. The verdict about what is finished, which may be a part.
    found = judge_runs(asked, runs, tasks, failures, show_progress_bar)
    if world()[0] == 0:
        content = found.to_dict()
        write_json(asked.output / STUDY, content)
        for run in runs:  # where the card of its model finds it
            if run.record is not None:
                write_json(run.folder / STUDY, content | {"of": {"way": run.way.name, "seed": run.seed}})
        found.draw(asked.output / PICTURE)
        if not asked.keep_models:
            for run in runs:
                remove_model(run)
    return found


def plan(ways: Sequence[Way], runs: Sequence[SeedRun]) -> Plan:
    """Say the runs of a study, and how long they may take, from the first step of each way."""
    left = [run for run in runs if run.record is None]
    steps = {}
    seconds = {}
    minutes = 0.0
    for way in ways:
        try:
            steps[way.name], seconds[way.name] = time_first_step(way.recipe.but(seed=runs[0].seed))
        except ValueError as error:
            raise SettingError(f"way {way.name!r}: {error}") from error
        number = sum(run.way is way for run in left)
        minutes += number * steps[way.name] * seconds[way.name] / 60
    return Plan([run.name for run in left], steps, seconds, minutes)
