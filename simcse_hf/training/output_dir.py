"""The output directory of a run: protect an earlier run in it, and find the checkpoint to resume from."""

import json
import shutil
from pathlib import Path

from transformers import TrainingArguments
from transformers.utils import logging

logger = logging.get_logger(__name__)

RESULTS = "results.json"


def prepare_output_dir(args: TrainingArguments, overwrite: bool) -> None:
    """Refuse an `output_dir` that holds another run, unless resuming or overwriting was requested.

    `--resume_from_checkpoint true` becomes the last complete checkpoint in `output_dir`.

    Args:
        args (`TrainingArguments`): Names the directory and the checkpoint; `resume_from_checkpoint` is updated.
        overwrite (`bool`): Delete the checkpoints and results of an earlier run.

    Raises:
        ValueError: If the directory holds another run, or there is nothing to resume from.
    """
    directory = Path(str(args.output_dir))
    resume = args.resume_from_checkpoint
    if str(resume).lower() == "true":
        args.resume_from_checkpoint = last_checkpoint(directory)
        if args.resume_from_checkpoint is None:
            raise ValueError(f"{directory} holds no checkpoint to resume from; leave out --resume_from_checkpoint")
    elif resume is not None and not Path(resume).is_dir():
        raise ValueError(f"--resume_from_checkpoint {resume}: there is no such checkpoint directory")
    if args.resume_from_checkpoint is None and args.process_index == 0 and directory.is_dir():
        checkpoints = sorted(directory.glob("checkpoint-*"))
        if not overwrite and (checkpoints or (directory / RESULTS).exists() or (directory / "config.json").exists()):
            raise ValueError(
                f"{directory} holds an earlier run. Continue it with --resume_from_checkpoint true, start again with "
                "--overwrite_output_dir, or choose another --output_dir."
            )
        for checkpoint in checkpoints:
            shutil.rmtree(checkpoint)
        (directory / RESULTS).unlink(missing_ok=True)


def last_checkpoint(directory: Path) -> str | None:
    """Return the newest complete checkpoint of a run, or `None` if there is none.

    The Trainer writes `trainer_state.json` last, so a checkpoint without a readable one was interrupted.
    """
    by_step = sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for checkpoint in by_step:
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            logger.warning(f"{checkpoint} is incomplete and is skipped.")
            continue
        return str(checkpoint)
    return None
