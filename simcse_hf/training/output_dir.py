"""The output directory of a run: protect an earlier run in it, and refuse to resume from nothing."""

import shutil
from pathlib import Path

from transformers import TrainingArguments

from .callbacks import DEV_SCORES
from .checkpoints import STAGING, checkpoints

RESULTS = "results.json"
#: Written beside the folders of the runs with several seeds (`--seeds`).
SEEDS = "_seeds.json"


def prepare_output_dir(args: TrainingArguments, overwrite: bool) -> None:
    """Refuse an `output_dir` that holds another run, unless resuming or overwriting was requested.

    The Trainer verifies the checkpoint when training begins.

    Args:
        args (`TrainingArguments`): Names the directory and the checkpoint.
        overwrite (`bool`): Delete the checkpoints and results of an earlier run.

    Raises:
        ValueError: If the directory holds another run, or there is nothing to resume from.
    """
    directory = Path(str(args.output_dir))
    resume = args.resume_from_checkpoint
    if str(resume).lower() == "true":
        if not checkpoints(directory):
            raise ValueError(f"{directory} holds no checkpoint to resume from; leave out --resume_from_checkpoint")
    elif resume is not None and not Path(resume).is_dir():
        raise ValueError(f"--resume_from_checkpoint {resume}: there is no such checkpoint directory")
    if resume is None and args.process_index == 0 and directory.is_dir():
        earlier = checkpoints(directory)
        marks = (RESULTS, SEEDS, "config.json")
        if not overwrite and (earlier or any((directory / name).exists() for name in marks)):
            raise ValueError(
                f"{directory} holds an earlier run. Continue it with --resume_from_checkpoint true, start again with "
                "--overwrite_output_dir, or choose another --output_dir."
            )
        for checkpoint in earlier:
            shutil.rmtree(checkpoint)
        for folder in (STAGING, DEV_SCORES):
            shutil.rmtree(directory / folder, ignore_errors=True)
        for name in (RESULTS, SEEDS):
            (directory / name).unlink(missing_ok=True)
