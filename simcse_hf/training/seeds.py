"""Train one recipe with several seeds, each in a folder of its own, and continue where an earlier call stopped."""

import copy
import gc
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ..ops.distributed import on_first_process
from ..ops.files import read_json_object, write_atomically
from .checkpoints import newest_whole_checkpoint
from .output_dir import RESULTS, SEEDS, prepare_output_dir
from .record import hyperparameter_values
from .script_arguments import DataArguments, ModelArguments
from .seed_results import publish_best, seed_folder
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

RunArguments = tuple[ModelArguments, DataArguments, SimCSETrainingArguments]

#: A single number above this is rather a seed than a number of runs.
_MOST_RUNS = 20
#: Arguments that decide where files are and not what is learned.
_PLACES = ("overwrite_output_dir", "seeds")
#: Trackers that would log the next run into the run of the one before, with the function that ends theirs.
_TRACKERS = {"wandb": "finish", "swanlab": "finish", "comet_ml": "end"}


def runs_by_seed(
    model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments
) -> Iterator[RunArguments]:
    """Yield the arguments of each seed's run that is not finished, and publish the best model after the last.

    The caller trains a run before it takes the next one. Every run is in `output_dir/seed-N`. A run that was
    interrupted is resumed from its newest whole checkpoint, and a run with a `results.json` is not repeated. The model
    of the best run, chosen on the dev set, is copied into `output_dir` itself.

    Args:
        model_args (`ModelArguments`): The model and its settings.
        data_args (`DataArguments`): The texts, the dev set and `seeds`.
        training_args (`SimCSETrainingArguments`): The arguments of training.

    Yields:
        `RunArguments`: Arguments of one run, which the caller may change.

    Raises:
        ValueError: If the seeds are invalid, or `output_dir` holds an earlier run that cannot be continued.
    """
    seeds = seed_list(data_args.seeds, training_args.seed)
    directory = Path(str(training_args.output_dir))
    settings = _settings(model_args, data_args, training_args)
    states = on_first_process(lambda: _prepare(directory, seeds, settings, data_args, training_args))
    for seed in seeds:
        if states[seed] == "finished":
            logger.info(f"{seed_folder(directory, seed)} is finished and not repeated.")
            continue
        logger.info(f"Seed {seed} ({seeds.index(seed) + 1} of {len(seeds)}) in {seed_folder(directory, seed)}")
        run = _arguments_of_seed(training_args, seed, resume=states[seed] == "interrupted")
        yield copy.deepcopy(model_args), copy.deepcopy(data_args), run
        _release(run)
    on_first_process(lambda: publish_best(directory, seeds))
    if training_args.push_to_hub and training_args.process_index == 0:
        _push(directory, training_args)


def seed_list(seeds: int | Sequence[int] | None, first: int) -> list[int]:
    """Return the seeds that `--seeds` asks for.

    Args:
        seeds (`int` or `Sequence[int]`): A number of runs, alone or in a list of one; or at least two seeds.
        first (`int`): The first seed, where `seeds` is a number of runs.

    Returns:
        `list[int]`: The seeds.

    Raises:
        ValueError: If there are no seeds, a seed occurs twice or is negative, or the number of runs is that of a seed.
    """
    values = [seeds] if isinstance(seeds, int) else list(seeds or ())
    if len(values) == 1 and values[0] > _MOST_RUNS:
        raise ValueError(
            f"--seeds {values[0]} asks for {values[0]} runs. For one run with this seed, write --seed {values[0]}; a "
            f"list names at least two seeds, such as --seeds {values[0]} {values[0] + 1}."
        )
    if len(values) == 1:
        values = list(range(first, first + values[0]))
    if not values:
        raise ValueError("--seeds needs a number of runs above 0, such as --seeds 3, or a list of seeds")
    if len(set(values)) < len(values) or min(values) < 0:
        raise ValueError(f"--seeds {' '.join(map(str, values))}: each seed must be at least 0 and occur once")
    return values


def _settings(
    model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments
) -> dict[str, Any]:
    """Return what all runs of an output directory have in common, in types that JSON can hold."""
    values = {k: v for k, v in (vars(model_args) | vars(data_args)).items() if k not in _PLACES}
    values |= {name: value for name, value in hyperparameter_values(training_args).items() if name != "seed"}
    for name in ("train_file", "dev_file"):
        if values[name] is not None and Path(values[name]).is_file():
            values[f"bytes of {name}"] = os.path.getsize(values[name])
    return json.loads(json.dumps(values | {"processes": training_args.world_size}, default=str))


def _arguments_of_seed(args: SimCSETrainingArguments, seed: int, resume: bool) -> SimCSETrainingArguments:
    """Return the training arguments of one run. Only the chosen model is pushed, after the last run."""
    run = args.copy()
    run.seed = seed
    run.output_dir = str(seed_folder(Path(str(args.output_dir)), seed))
    run.resume_from_checkpoint = "true" if resume else None
    run.push_to_hub = False
    if args.run_name is not None:
        run.run_name = f"{args.run_name}-seed-{seed}"
    return run


def _prepare(
    directory: Path,
    seeds: Sequence[int],
    settings: dict[str, Any],
    data_args: DataArguments,
    args: SimCSETrainingArguments,
) -> dict[int, str]:
    """Check and clear the output directory; return the state of each seed: finished, interrupted or new."""
    record, resume = directory / SEEDS, args.resume_from_checkpoint
    if resume is not None and str(resume).lower() != "true":
        raise ValueError(
            f"--resume_from_checkpoint {resume} names the checkpoint of one run, but --seeds trains several. Leave it "
            "out: each seed continues from its own newest checkpoint."
        )
    is_new = data_args.overwrite_output_dir or not record.exists()
    if is_new:
        if resume is None:
            prepare_output_dir(args, data_args.overwrite_output_dir)
        elif not record.exists():
            raise ValueError(f"{directory} holds no runs of --seeds to resume; leave out --resume_from_checkpoint")
        for folder in directory.glob("seed-*"):
            shutil.rmtree(folder)
    else:
        earlier = read_json_object(record, "settings", advice="Start the runs again with --overwrite_output_dir.")
        _check_settings(directory, earlier["settings"], settings)
    states = {seed: _prepare_seed(args, seed) for seed in seeds}
    directory.mkdir(parents=True, exist_ok=True)
    with write_atomically(record) as path:
        path.write_text(json.dumps({"settings": settings}, indent=2) + "\n", encoding="utf-8")
    return states


def _check_settings(directory: Path, earlier: dict[str, Any], settings: dict[str, Any]) -> None:
    changed = [name for name in {**earlier, **settings} if earlier.get(name) != settings.get(name)]
    if changed:
        listed = "; ".join(f"{name}: {earlier.get(name)} there, {settings.get(name)} here" for name in changed)
        raise ValueError(
            f"{directory} holds seeds that were trained with other settings ({listed}). Repeat their settings, choose "
            "another --output_dir, or start again with --overwrite_output_dir."
        )


def _prepare_seed(args: SimCSETrainingArguments, seed: int) -> str:
    folder = seed_folder(Path(str(args.output_dir)), seed)
    if (folder / RESULTS).exists():
        return "finished"
    try:
        if newest_whole_checkpoint(folder) is not None:
            return "interrupted"
    except ValueError as error:
        logger.warning(f"Seed {seed} starts again: {error}")
    prepare_output_dir(_arguments_of_seed(args, seed, resume=False), overwrite=True)
    return "new"


def _release(args: SimCSETrainingArguments) -> None:
    """Give back what a finished run leaves in memory: its model, its compiled code and its run in a tracker."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    for name, end in _TRACKERS.items():
        if name in (args.report_to or ()) and name in sys.modules and args.process_index == 0:
            getattr(sys.modules[name], end)()


def _push(directory: Path, args: SimCSETrainingArguments) -> None:
    from ..publishing import CARD, is_written_by_hand, write_card
    from ..publishing.hub import push_model

    if not is_written_by_hand(directory / CARD):
        write_card(directory, repo_id=args.hub_model_id)
    name = args.hub_model_id or directory.resolve().name
    push_model(directory, name, private=args.hub_private_repo, token=args.hub_token)
