"""Checkpoints that are whole or absent: finding the one to resume from, and staging a new one."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import TrainerState, TrainingArguments
from transformers.utils import logging

from ..ops.distributed import on_first_process, wait_for_all
from ..ops.files import STAGING, explain_full_disk, folder_problem, put_in_place, remove, write_manifest

logger = logging.get_logger(__name__)

#: A checkpoint to resume from; `True` is the newest whole one.
CheckpointName = str | os.PathLike[str] | bool

_WHEN_FULL = (
    ", so the checkpoint was not written. Checkpoints saved earlier are untouched: free some space and continue with "
    "--resume_from_checkpoint true"
)
_NAME = re.compile(r"checkpoint-(\d+)")

# One of several processes on a CPU has the device "cpu:0", to which transformers before 5.18 loads the optimizer's
# state, and torch knows no such place.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
)


def checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """List the checkpoints of a run by step, the newest first; folders with other names are left out."""
    found = [path for path in Path(directory).glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=_step, reverse=True)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def newest_whole_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """Return the newest whole checkpoint of a run, and log the damaged ones that are passed over.

    Args:
        directory (`str` or `os.PathLike`): The `output_dir` of the run.

    Returns:
        `str`, *optional*: The path of the checkpoint; `None` if there is no checkpoint at all.

    Raises:
        ValueError: If there are checkpoints and all of them are damaged.
    """
    problems = []
    for checkpoint in checkpoints(directory):
        problem = folder_problem(checkpoint)
        if problem is None:
            return str(checkpoint)
        problems.append(f"{checkpoint.name}: {problem}")
        logger.warning(f"{checkpoint} is passed over because {problem}.")
    if problems:
        raise ValueError(
            f"{directory} holds no whole checkpoint to resume from ({'; '.join(problems)}). Restore one of them from "
            "a backup, or start again with --overwrite_output_dir."
        )
    return None


def resolve_checkpoint(resume: CheckpointName, output_dir: str) -> str:
    """Choose the checkpoint to resume from; the first process verifies it for all of them.

    Args:
        resume (`str`, `os.PathLike` or `bool`): A checkpoint, or `True` or `"true"` for the newest whole one.
        output_dir (`str`): Where the checkpoints of the run are.

    Returns:
        `str`: The path of the checkpoint, the same in all processes.

    Raises:
        ValueError: If there is no whole checkpoint, in all processes.
    """
    return on_first_process(lambda: _whole_checkpoint(resume, output_dir))


def _whole_checkpoint(resume: CheckpointName, output_dir: str) -> str:
    if str(resume).lower() == "true":
        newest = newest_whole_checkpoint(output_dir)
        if newest is None:
            raise ValueError(f"{output_dir} holds no checkpoint to resume from; leave out --resume_from_checkpoint")
        checkpoint = newest
    else:
        checkpoint = str(resume)
        if not Path(checkpoint).is_dir():
            raise ValueError(f"--resume_from_checkpoint {checkpoint}: there is no such checkpoint directory")
        problem = folder_problem(checkpoint)
        if problem:
            raise ValueError(
                f"the run cannot be resumed from {checkpoint}: {problem}. Name another checkpoint, or resume from the "
                "newest whole one with --resume_from_checkpoint true."
            )
    if not any(Path(checkpoint).glob("rng_state*")):
        logger.warning(
            f"{checkpoint} holds the model only, because the run had save_only_model set: the optimizer, the schedule "
            "and the random state start anew, so the result differs from that of an uninterrupted run."
        )
    return checkpoint


@contextmanager
def staged(directory: Path, state: TrainerState, args: TrainingArguments) -> Iterator[Path]:
    """Yield a staging folder for a checkpoint, and give the checkpoint its name if the block ends without an error.

    A checkpoint is therefore whole or absent, whenever the run is killed. Older checkpoints are deleted only
    afterwards. Every process must enter the context.

    Args:
        directory (`Path`): The `output_dir` of the run, or the folder of a trial of a search.
        state (`TrainerState`): The state of the Trainer at this step, which is saved as well.
        args (`TrainingArguments`): The arguments of the run.

    Yields:
        `Path`: The folder of the checkpoint inside the staging folder. It may not exist yet.

    Raises:
        OSError: In one line, if the disk is full.
    """
    checkpoint = directory / f"checkpoint-{state.global_step}"
    folder = directory / STAGING / checkpoint.name
    if args.should_save:
        remove(folder.parent)  # a killed run left it
    wait_for_all()
    best = directory / f"checkpoint-{state.best_global_step}"
    try:
        yield folder
        wait_for_all()
        if state.best_global_step and (best == checkpoint or best.is_dir()):
            state.best_model_checkpoint = str(best)
        if args.should_save:
            state.save_to_json(str(folder / "trainer_state.json"))
            write_manifest(folder)
            put_in_place(folder, checkpoint)
            remove(folder.parent)
    except Exception as error:
        remove(folder.parent)
        explain_full_disk(error, checkpoint, _WHEN_FULL)
        raise
    if args.should_save:
        keep = {checkpoint} | ({best} if best.is_dir() else set())
        delete_old_checkpoints(directory, args.save_total_limit, keep)
    wait_for_all()


def is_staged(folder: Path) -> bool:
    """Say whether a folder is that of a checkpoint which has not got its name yet."""
    return folder.parent.name == STAGING


def delete_old_checkpoints(directory: Path, limit: int | None, keep: set[Path]) -> None:
    """Delete the checkpoints that were written first, so that at most `limit` are left.

    Args:
        directory (`Path`): The `output_dir` of the run.
        limit (`int`, *optional*): transformers' `save_total_limit`; `None` or 0 deletes nothing.
        keep (`set[Path]`): The newest and the best checkpoint, which stay in any case.
    """
    if not limit or limit < 0:
        return
    kept = {path.resolve() for path in keep}
    found = checkpoints(directory)
    others = [path for path in found if path.resolve() not in kept]
    others.sort(key=lambda path: (path.stat().st_mtime_ns, _step(path)))
    for checkpoint in others[: max(0, len(found) - max(limit, len(kept)))]:
        shutil.rmtree(checkpoint, ignore_errors=True)
