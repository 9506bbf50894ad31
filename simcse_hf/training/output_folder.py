"""The output directory of a run: protect an earlier run in it, or delete that one."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from transformers import TrainingArguments

from ..runtime.files import STAGING
from .checkpoints import checkpoints
from .dev_sets import DEV_SCORES
from .run_results import RESULTS

#: Written beside the folders of the runs with several seeds (`--seeds`).
SEEDS = "_seeds.json"


def check_output_dir(args: TrainingArguments, overwrite: bool, inputs: Iterable[tuple[str, str | None]]) -> None:
    """Refuse an `output_dir` that holds another run, unless resuming or overwriting was requested.

    The Trainer verifies the checkpoint when training begins.

    Args:
        args (`TrainingArguments`): Names the directory and the checkpoint.
        overwrite (`bool`): Whether [`clear_output_dir`] may delete the checkpoints and results of an earlier run.
        inputs (`Iterable[tuple[str, str]]`): Options that name a file or folder that the run reads, with its path.

    Raises:
        ValueError: If the directory holds another run, or one of the inputs would be deleted.
    """
    if args.resume_from_checkpoint is not None or args.process_index > 0:
        return
    directory = Path(str(args.output_dir))
    earlier = checkpoints(directory)
    deleted = [folder.resolve() for folder in (*earlier, *directory.glob("seed-*"))]
    for name, path in inputs:
        if path is None or not overwrite:
            continue
        if any(Path(path).resolve().is_relative_to(folder) for folder in deleted):
            raise ValueError(
                f"{name} {path} is a part of the earlier run in {directory}, which --overwrite_output_dir deletes: "
                "choose another --output_dir"
            )
    results = [name for name in (RESULTS, SEEDS, "config.json") if (directory / name).exists()]
    if not overwrite and (earlier or results):
        raise ValueError(
            f"{directory} holds an earlier run. Continue it with --resume_from_checkpoint true, start again with "
            "--overwrite_output_dir, or choose another --output_dir."
        )


def clear_output_dir(args: TrainingArguments) -> None:
    """Delete the checkpoints and results of an earlier run, unless this one resumes it.

    Args:
        args (`TrainingArguments`): Names the directory, which [`check_output_dir`] has checked.
    """
    if args.resume_from_checkpoint is not None or args.process_index > 0:
        return
    directory = Path(str(args.output_dir))
    for folder in (*checkpoints(directory), directory / STAGING, directory / DEV_SCORES):
        shutil.rmtree(folder, ignore_errors=True)
    for name in (RESULTS, SEEDS):
        (directory / name).unlink(missing_ok=True)
