"""Several seeds of one recipe: what each run still needs, and the best one published with the results of all."""

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..data.read import open_source
from ..encoding.vectors import split_source
from ..evaluation.metrics import find_metric
from ..models.checkpoint import replace_model
from ..models.settings import Values
from ..publishing.secrets import command_line
from ..runtime.errors import SettingError, check_values, refuse_changes
from ..runtime.files import HOLDER, LOCK, MANIFEST, STAGING, StrPath, digest, entries, read_json, remove, write_json
from ..runtime.identity import digest_value
from .arguments import SimCSETrainingArguments
from .checkpoints import (
    DEV_SCORES,
    RESULTS,
    SEEDS,
    check_foreign,
    check_output_dir,
    clear_output_dir,
    newest_whole_checkpoint,
)
from .decide import Decided
from .run_results import Results, dev_change, general_changes, hyperparameter_values

logger = logging.get_logger(__name__)

#: A single number above this is rather a seed than a number of runs.
_MOST_RUNS = 20
#: Which files of a model change what is learnt from it.
_MODEL_FILES = "*.safetensors *.bin config.json *token* vocab* merges.txt [0-9]_*/* ngrams/* template_head/*".split()
#: Trackers that would log the next run into the run of the one before, with the function that ends theirs.
_TRACKERS = {"wandb": "finish", "swanlab": "finish", "comet_ml": "end"}
#: Files and folders of a run that do not belong to its model.
_NOT_PUBLISHED = shutil.ignore_patterns(
    "checkpoint-*",
    "runs",
    "README.md",
    ".eval_results",
    "evaluation*",
    RESULTS,
    STAGING,
    DEV_SCORES,
    LOCK,
    HOLDER,
)
#: The evaluations of a run whose mean over the seeds is reported. "saved" is that of the saved weights.
_EVALUATIONS = ("initial", "start", "saved", "best", "final")
_NOT_METRICS = ("step", "pooler", "metric", "runtime", "samples_per_second", "steps_per_second")


def seed_list(seeds: int | Sequence[int], first: int) -> list[int]:
    """Return the seeds that `--seeds` asks for.

    Args:
        seeds (`int` or `Sequence[int]`): A number of runs, alone or in a list of one; or at least two seeds.
        first (`int`): The first seed, where `seeds` is a number of runs.

    Returns:
        `list[int]`: The seeds.

    Raises:
        SettingError: If there are no seeds, a seed occurs twice or is negative, or the number of runs is that of a
            seed.
    """
    values: list[Any] = [seeds]
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        values = list(seeds)
    for value in values:
        check_values("an integer of 0 or more", seeds=value)
    values = [int(value) for value in values]
    if len(values) == 1:
        number = values[0]
        if number > _MOST_RUNS:
            raise SettingError(
                f"--seeds {number} asks for {number} runs. For one run with this seed, write --seed {number}; a list "
                f"names at least two seeds, such as --seeds {number} {number + 1}."
            )
        values = list(range(first, first + number))
    if not values:
        raise SettingError("--seeds needs a number of runs above 0, such as --seeds 3, or a list of seeds")
    if len(set(values)) < len(values):
        raise SettingError(f"--seeds {' '.join(map(str, values))}: each seed must occur once")
    return values


def seed_folder(directory: str | Path, seed: int) -> Path:
    """Return the folder of a seed's run."""
    return Path(directory, f"seed-{seed}")


def prepare_seeds(decided: Decided, overwrites: bool) -> list[int]:
    """Check and clear the output directory of several runs.

    Args:
        decided (`Decided`): The arguments of all runs.
        overwrites (`bool`): Whether earlier runs are deleted.

    Returns:
        `list[int]`: The seeds of the runs.

    Raises:
        SettingError: If the seeds are no seeds, or `output_dir` holds an earlier run that cannot be continued.
    """
    args = decided.training
    assert decided.data.seeds is not None
    seeds = seed_list(decided.data.seeds, args.seed)
    directory = Path(str(args.output_dir))
    advice = "Repeat them, choose another --output_dir, or start again with --overwrite_output_dir."
    seeds_file = directory / SEEDS
    if args.resume_from_checkpoint is not None:
        if str(args.resume_from_checkpoint).lower() != "true":
            raise SettingError(
                f"--resume_from_checkpoint {args.resume_from_checkpoint} names the checkpoint of one run, but --seeds "
                "trains several. Leave it out: each seed continues from its own newest checkpoint."
            )
        if not seeds_file.exists():
            raise SettingError(f"{directory} holds no runs of --seeds to resume; leave out --resume_from_checkpoint")

    settings = learnt_settings(decided)

    # The directory is cleared, or holds runs with the same settings.
    if overwrites or not seeds_file.exists():
        check_output_dir(args, overwrites, decided.inputs)
        clear_output_dir(args)
        for folder in directory.glob("seed-*"):
            shutil.rmtree(folder)
    else:
        before = read_json(seeds_file, "settings", advice=advice)["settings"]
        refuse_changes(before, settings, f"{directory}: the run there", advice)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(seeds_file, {"settings": settings})
    return seeds


def learnt_settings(decided: Decided) -> Values:
    """Return what decides what a run learns, but for its seed, in types that JSON can hold.

    Args:
        decided (`Decided`): The arguments of the run.

    Returns:
        `Values`: The arguments, and the digests of the texts and of the weights that it starts from.
    """
    args = decided.training
    values = vars(decided.model) | vars(decided.data) | hyperparameter_values(args)
    for name in ("overwrite_output_dir", "seeds", "seed"):
        values.pop(name, None)
    values["processes"] = args.world_size
    sources: list[StrPath] = [path for _, path in decided.inputs]
    sources += [split_source(name)[0] for name in [*(args.teacher or ()), *(args.guide or ())]]
    for source in sources:
        for file in learnt_files(source):
            values[f"digest of {file}"] = digest(file)
    return json.loads(json.dumps(values, default=_written))


def learnt_files(source: StrPath) -> list[Path]:
    """Return the files whose content decides what a run learns: the file itself, or those of a model or folder."""
    path = Path(source)
    if path.is_file():
        return [path]
    if (path / MANIFEST).is_file():  # which has the digests of the others
        return [path / MANIFEST]
    if not (path / "config.json").is_file():
        return sorted(file for file in path.rglob("*") if file.is_file())
    found = [file for pattern in _MODEL_FILES for file in path.glob(pattern)]
    return sorted(file for file in found if file.is_file())


def _written(value: Any) -> str:
    """Return what stands for a value that JSON cannot hold: its words, or a digest of rows in memory."""
    if isinstance(value, (os.PathLike, Enum)):
        return str(value)
    if is_dataclass(value):  # a task, or scored pairs
        return digest_value(value)
    if hasattr(value, "__len__"):  # no stream
        return digest_value([[table.columns, list(table.rows(table.columns))] for table in open_source(value)])
    if isinstance(value, Iterator):
        raise SettingError("a generator gives its rows once, and each seed reads them: give a list, or name a file")
    return Hasher.hash(value)


def state_of_run(folder: Path) -> str:
    """Return what a run still needs, and remove what cannot be continued.

    A run with a `results.json` and a model is finished. One with a whole checkpoint was interrupted and will be
    resumed.

    Args:
        folder (`Path`): The `output_dir` of the run.

    Returns:
        `str`: `"finished"`, `"interrupted"` or `"new"`.
    """
    # Training writes the results, and the model is saved after it.
    if (folder / RESULTS).exists() and any(folder.glob("*.safetensors")):
        return "finished"
    try:
        if newest_whole_checkpoint(folder) is not None:
            return "interrupted"
    except ValueError as error:
        logger.warning(f"{folder.name} starts again: {error}")
    check_foreign(folder)
    for path in entries(folder):
        remove(path)
    return "new"


def release(args: SimCSETrainingArguments) -> None:
    """Give back what a finished run leaves in memory: its model, its compiled code and its run in a tracker."""
    clear_device_cache(garbage_collection=True)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    for name, end in _TRACKERS.items():
        if name in (args.report_to or ()) and name in sys.modules and args.process_index == 0:
            getattr(sys.modules[name], end)()


def publish_best(directory: Path, seeds: Sequence[int]) -> Results:
    """Copy the model of the best run into `directory`, and write `results.json` over all seeds.

    `results.json` is that of the published run with `seeds` (see [`summarise`]), and time and change of all runs.
    The best run has the best dev metric with the weights that it saved. Without a dev set, the first seed is
    published. A call that finds everything in place changes nothing.

    Args:
        directory (`Path`): The folder that holds the folders of the runs.
        seeds (`Sequence[int]`): The seeds, whose runs are finished.

    Returns:
        [`Results`]: The results over all seeds.

    Raises:
        ValueError: If the results of a run cannot be read.
    """
    runs = {seed: Results.read(seed_folder(directory, seed)) for seed in seeds}
    summary = summarise(runs)
    published = summary["published"]
    folders = [(seed_folder(directory, seed), run) for seed, run in runs.items()]
    results = replace(
        runs[published],
        model=str(directory.resolve()),
        command=command_line(),
        train_seconds=sum(run.train_seconds or 0 for run in runs.values()),
        change=dev_change(folders),
        general=general_changes(folders, {task.metric: task.source for task in runs[published].general}),
        seeds=summary,
    )
    path = directory / RESULTS
    if not path.exists() or Results.read(directory).seeds != summary:
        path.unlink(missing_ok=True)  # It is written last: until then the model is incomplete.
        with replace_model(directory) as folder:
            shutil.copytree(seed_folder(directory, published), folder, ignore=_NOT_PUBLISHED, dirs_exist_ok=True)
        write_json(path, results.to_dict())
    return results


def summarise(runs: Mapping[int, Results]) -> Values:
    """Summarise the results of several seeds.

    Args:
        runs (`Mapping[int, Results]`): The results of each seed.

    Returns:
        `Values`: `runs` (for each seed, in the order given: `seed`, `train_seconds`, and its evaluations
        `initial`, `start`, `saved`, `best` and `final`), `mean` and `sd` (of each metric in these evaluations; `sd` is
        the sample standard deviation, and `None` for one seed), `published` (the seed whose model is published) and
        `chosen_by` (the dev metric, or `None` without a dev set).
    """
    listed = []
    for seed, run in runs.items():
        evaluations = {when: getattr(run, when) for when in _EVALUATIONS}
        listed.append({"seed": seed, "train_seconds": run.train_seconds, **evaluations})
    metric = next(iter(runs.values())).dev_metric
    summary = {"runs": listed, "mean": {}, "sd": {}, "published": listed[0]["seed"], "chosen_by": None}
    if metric is None:
        return summary
    for when in _EVALUATIONS:
        mean = {}
        sd = {}
        for name in listed[0][when]:
            values = [run[when][name] for run in listed if name in run[when]]
            if name not in _NOT_METRICS and len(values) == len(listed):
                mean[name] = statistics.fmean(values)
                sd[name] = statistics.stdev(values) if len(values) > 1 else None
        summary["mean"][when] = mean
        summary["sd"][when] = sd
    summary["chosen_by"] = metric
    choose = max if find_metric(metric).higher_is_better else min
    summary["published"] = choose(listed, key=lambda run: run["saved"][metric])["seed"]
    return summary
