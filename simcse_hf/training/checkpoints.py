"""Checkpoints that are whole or absent: staging, manifests of digests, finite weights, and saving at a signal."""

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from ..ops.distributed import on_first_process, sum_over_processes, wait_for_all, world
from ..ops.errors import refuse
from ..ops.files import STAGING, explain_full_disk, folder_problem, put_in_place, remove, write_manifest

logger = logging.get_logger(__name__)

#: A checkpoint to resume from; `True` is the newest whole one.
CheckpointName = str | os.PathLike[str] | bool
#: Advice at the end of errors about numbers that are not finite.
ADVICE = (
    "Lower the learning rate, raise the temperature, use bf16 in place of fp16, or look for broken weights in the "
    "starting checkpoint."
)

_WHEN_FULL = (
    ", so the checkpoint was not written. Checkpoints saved earlier are untouched: free some space and continue with "
    "--resume_from_checkpoint true"
)
_NAME = re.compile(r"checkpoint-(\d+)")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: A launcher repeats the interrupt that the terminal has already sent to all processes of a job.
_SAME_INTERRUPT_SECONDS = 1.0

# One of several processes on a CPU has the device "cpu:0", to which transformers before 5.18 loads the optimizer's
# state, and torch knows no such place.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
)


# --- reading ---------------------------------------------------------------------------------------------------------


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
    refuse(
        {
            f"{directory} holds no whole checkpoint to resume from ({'; '.join(problems)}). Restore one of them from "
            "a backup, or start again with --overwrite_output_dir.": problems
        }
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
        checkpoint = newest_whole_checkpoint(output_dir)
        refuse(
            {f"{output_dir} holds no checkpoint to resume from; leave out --resume_from_checkpoint": not checkpoint}
        )
    else:
        checkpoint = str(resume)
        is_missing, problem = not Path(checkpoint).is_dir(), folder_problem(checkpoint)
        refuse(
            {
                f"--resume_from_checkpoint {checkpoint}: there is no such checkpoint directory": is_missing,
                f"the run cannot be resumed from {checkpoint}: {problem}. Name another checkpoint, or resume from "
                "the newest whole one with --resume_from_checkpoint true.": problem,
            }
        )
    assert checkpoint is not None
    if not any(Path(checkpoint).glob("rng_state*")):
        logger.warning(
            f"{checkpoint} holds the model only, because the run had save_only_model set: the optimizer, the schedule "
            "and the random state start anew, so the result differs from that of an uninterrupted run."
        )
    return checkpoint


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def staged(trainer: Trainer, trial: Any = None) -> Iterator[Path]:
    """Let transformers write a checkpoint into a staging folder, and give the checkpoint its name at the end.

    A checkpoint is therefore whole or absent, whenever the run is killed. Older checkpoints are deleted and the
    checkpoint is pushed only afterwards. Every process must enter the context.

        with staged(self, trial):
            super()._save_checkpoint(model, trial)

    Args:
        trainer (`Trainer`): The trainer, which saves in the context.
        trial (`Any`, *optional*): A trial of a hyper-parameter search, which has a folder of its own.

    Yields:
        `Path`: The folder of the checkpoint inside the staging folder. It may not exist yet.

    Raises:
        OSError: In one line, if the disk is full.
    """
    directory, state = Path(trainer._get_output_dir(trial)), trainer.state
    checkpoint = directory / f"checkpoint-{state.global_step}"
    folder = directory / STAGING / checkpoint.name
    if trainer.args.should_save:
        remove(folder.parent)  # a killed run left it
    wait_for_all()
    # Only in this context, transformers writes elsewhere and pushes nothing.
    trainer._get_output_dir = lambda trial: str(folder.parent)  # type: ignore[method-assign]
    trainer._push_from_checkpoint = lambda checkpoint_folder: None  # type: ignore[method-assign]
    try:
        yield folder
        wait_for_all()
        best = directory / f"checkpoint-{state.best_global_step}"
        if best == checkpoint or best.is_dir():  # transformers looked for it in the staging folder
            state.best_model_checkpoint = str(best)
        if trainer.args.should_save:
            state.save_to_json(str(folder / "trainer_state.json"))
            write_manifest(folder)
            put_in_place(folder, checkpoint)
            remove(folder.parent)
    except Exception as error:
        remove(folder.parent)
        explain_full_disk(error, checkpoint, _WHEN_FULL)
        raise
    finally:
        del trainer._get_output_dir, trainer._push_from_checkpoint
    if trainer.args.should_save:
        keep = {checkpoint} | ({best} if best.is_dir() else set())
        delete_old_checkpoints(directory, trainer.args.save_total_limit, keep)
    wait_for_all()
    if trainer.args.push_to_hub:
        trainer._push_from_checkpoint(str(checkpoint))


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


# --- during a run ----------------------------------------------------------------------------------------------------


class FiniteWeights(TrainerCallback):
    """End a run before weights that are not finite are evaluated or saved.

    Put it last, after the callbacks that request evaluations and checkpoints.
    """

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any) -> None:
        """Check the weights if they are about to be used, and those of the last step.

        Raises:
            FloatingPointError: In all processes, if a weight of any of them is not finite.
        """
        if not (control.should_evaluate or control.should_save or state.global_step >= state.max_steps):
            return
        broken = _name_of_broken_weight(event["model"])
        count = sum_over_processes(torch.tensor(int(broken is not None), device=args.device))
        if count.item():
            raise FloatingPointError(
                f"the weights are not finite after step {state.global_step} ({broken or 'in another process'}). "
                f"They are not saved, and checkpoints saved earlier are untouched in {args.output_dir}. {ADVICE}"
            )

    on_epoch_end = on_step_end


@torch.no_grad()
def _name_of_broken_weight(model: nn.Module) -> str | None:
    finite = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # FSDP2 distributes tensors
            finite[name] = torch.isfinite(shard).all()
    if not finite or torch.stack([*finite.values()]).all():  # one transfer from the device
        return None
    return next(name for name, value in finite.items() if not value)


class StopOnSignal(TrainerCallback):
    """Save a checkpoint after the current step when SIGTERM or SIGINT arrives, and end the process.

    All processes stop after the same step, whichever of them received the signal: in every step they reduce its
    number, and read the result one step later, so that the host does not wait for the device. A second interrupt from
    the keyboard ends the process at once. (transformers' `enable_jit_checkpoint` saves only in a process that received
    SIGTERM, so several processes would wait for each other.)

    Signals keep their usual meaning outside the main thread, where they are ignored already (as under `nohup`), and in
    runs with `save_strategy="no"`. Put this callback after those that save something of their own.
    """

    def __init__(self) -> None:
        self._received, self._received_at, self._stopping = 0, 0.0, 0
        self._reduction: tuple[Any, torch.Tensor] | None = None

    @contextmanager
    def caught(self, args: TrainingArguments) -> Iterator[None]:
        """Catch the signals of a run, and forget those of an earlier one.

        Args:
            args (`TrainingArguments`): The arguments of the run.
        """
        self.__init__()  # type: ignore[misc]
        handlers: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread() and args.save_strategy != "no":
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    handlers[number] = signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._received:
            self._received, self._received_at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._received_at > _SAME_INTERRUPT_SECONDS:
            raise KeyboardInterrupt

    @property
    def is_stopping(self) -> bool:
        """Whether a signal stops the run."""
        return self._stopping != 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Request a checkpoint if a signal arrived; at the end of an epoch, after what belongs to the epoch's end."""
        self._stopping = self._stopping or self._signal_of_any_process(args.device)
        if self._stopping and not float(state.epoch or 0.0).is_integer():
            control.should_save = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Request the checkpoint of an epoch's last step."""
        control.should_save = control.should_save or self.is_stopping

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the process when the checkpoint is complete.

        Raises:
            SystemExit: With status 143, after SIGTERM.
            KeyboardInterrupt: After SIGINT, for which a program ends with status 130.
        """
        if not self._stopping:
            return
        if state.is_world_process_zero:
            logger.warning(
                f"{signal.Signals(self._stopping).name} stopped the run after step {state.global_step}. "
                f"{args.output_dir}/checkpoint-{state.global_step} is complete: continue with "
                "--resume_from_checkpoint true."
            )
        if self._stopping == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self._stopping)

    def _signal_of_any_process(self, device: torch.device) -> int:
        """Return the number of a signal that some process received, the same in all processes, or 0."""
        if world()[1] == 1:
            return self._received
        previous = self._reduction
        number = torch.tensor(self._received, device=device)
        self._reduction = (dist.all_reduce(number, dist.ReduceOp.MAX, async_op=True), number)
        if previous is None:
            return 0
        previous[0].wait()
        return int(previous[1].item())
