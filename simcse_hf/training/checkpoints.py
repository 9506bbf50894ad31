"""Checkpoints that are whole or absent: written by a Trainer or at a signal, found again, and resumed."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState, ProgressCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import logging

from ..data.samplers import RepeatableSampler
from ..models.modeling import preserve_random_state
from ..runtime.distributed import on_first_process, same_noise, wait_for_all
from ..runtime.files import STAGING, explain_full_disk, folder_problem, put_in_place, remove, write_manifest
from .progress import RunBar, RunLog
from .pushes import PushingTrainer

logger = logging.get_logger(__name__)

#: A checkpoint to resume from; `True` is the newest whole one.
CheckpointName = str | os.PathLike[str] | bool

_WHEN_FULL = (
    ", so the checkpoint was not written. Checkpoints saved earlier are untouched: free some space and continue with "
    "--resume_from_checkpoint true"
)

# One of several processes on a CPU has the device "cpu:0", to which transformers before 5.18 loads the optimizer's
# state, and torch knows no such place.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
)


def checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """List the checkpoints of a run by step, the newest first; folders with other names are left out."""
    by_step = {}
    for path in Path(directory).glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            by_step[int(step)] = path
    return [by_step[step] for step in sorted(by_step, reverse=True)]


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

    def find() -> str:
        if str(resume).lower() == "true":
            newest = newest_whole_checkpoint(output_dir)
            if newest is None:
                raise ValueError(
                    f"{output_dir} holds no checkpoint to resume from; leave out --resume_from_checkpoint"
                )
            checkpoint = newest
        else:
            checkpoint = str(resume)
            problem: str | None = "there is no such folder"
            if Path(checkpoint).is_dir():
                problem = folder_problem(checkpoint)
            if problem:
                raise ValueError(
                    f"the run cannot be resumed from {checkpoint}: {problem}. Name another checkpoint, or resume from "
                    "the newest whole one with --resume_from_checkpoint true."
                )
        if not any(Path(checkpoint).glob("rng_state*")):
            logger.warning(
                f"{checkpoint} holds the model only, because the run had save_only_model set: the optimizer, the "
                "schedule and the random state start anew, so the result differs from that of an uninterrupted run."
            )
        return checkpoint

    return on_first_process(find)


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
        remove(folder.parent)  # unfinished, of a run that was killed
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
    limit = args.save_total_limit or 0
    if args.should_save and limit > 0:
        # Those that were written first are deleted; at the same time, that of the lower step. The newest and the best
        # one stay in any case.
        keep = {checkpoint, best} if best.is_dir() else {checkpoint}
        found = checkpoints(directory)
        others = [path for path in reversed(found) if path not in keep]
        others.sort(key=lambda path: path.stat().st_mtime_ns)
        surplus = len(found) - max(limit, len(keep))
        for path in others[: max(0, surplus)]:
            shutil.rmtree(path, ignore_errors=True)
    wait_for_all()


class WholeCheckpointTrainer(PushingTrainer):
    """transformers' Trainer with checkpoints that are staged, see [`~checkpoints.staged`].

    A run that logs nothing and shows no bar leaves standard output to the program that trains.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.args.bf16_full_eval or self.args.fp16_full_eval:
            raise ValueError(
                "bf16_full_eval and fp16_full_eval would leave the weights in half precision after an evaluation: "
                "leave them out"
            )
        self.accelerator.gradient_accumulation_steps = 1  # transformers 5.2 divides, and Accelerate would once more
        callbacks = self.callback_handler.callbacks
        if type(callbacks[-1]) is PrinterCallback:
            callbacks[-1] = RunLog()
        elif type(callbacks[-1]) is ProgressCallback:  # a notebook has a table of transformers
            callbacks[-1] = RunBar()

    @property
    def is_silent(self) -> bool:
        """Whether the run prints nothing."""
        return bool(self.args.disable_tqdm) and self.args.logging_strategy == "no"

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as transformers does, without a draw from the noise of training: a loader draws a seed."""
        with preserve_random_state(self.args.device):
            return super().evaluation_loop(dataloader, *args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, RandomSampler) and self.accelerator.use_seedable_sampler:
            return sampler  # which Accelerate makes repeatable
        if not isinstance(sampler, (RandomSampler, LengthGroupedSampler)):
            return sampler
        return RepeatableSampler(sampler, self.args.seed if self.args.data_seed is None else self.args.data_seed)

    def get_train_dataloader(self) -> DataLoader:
        """Make the loader; each process then draws noise of its own, such as its dropout masks."""
        with same_noise(self.args.seed):  # from which accelerate takes the seed of the order of the rows
            return super().get_train_dataloader()

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, *args: Any) -> Any:
        """Take the batches of a step; none if a finished run was resumed, of which transformers takes one more."""
        if self.state.global_step < self.state.max_steps:
            return super().get_batch_samples(epoch_iterator, num_batches, *args)
        self.control.should_training_stop = True
        return [], None

    def add_to_checkpoint(self, folder: Path) -> None:
        """Write what a subclass needs to resume, beside what transformers needs. Every process calls it.

        Args:
            folder (`Path`): The folder of the checkpoint while it is staged.
        """

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint in a staging folder, delete older ones when it is whole, and push it if asked for."""
        state, args = self.state, self.args
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        directory = Path(self._get_output_dir(trial))
        if args.push_to_hub:
            self.finish_push_of_old_files()
        with staged(directory, state, args) as folder:
            self.save_model(str(folder), _internal_call=True)
            if not args.save_only_model:
                self._save_optimizer_and_scheduler(str(folder))
                self._save_scaler(str(folder))
                self._save_rng_state(str(folder))
            # The states of the callbacks and of the control are saved with that of the Trainer, as in transformers.
            saved: Any = state.stateful_callbacks
            for callback in [*self.callback_handler.callbacks, self.control]:
                name = type(callback).__name__
                if not args.should_save or not isinstance(callback, ExportableState):
                    continue
                if isinstance(saved[name], list):
                    saved[name].append(callback.state())
                else:
                    saved[name] = callback.state()
            self.add_to_checkpoint(folder)
        if args.push_to_hub:
            self.push_checkpoint(directory / f"checkpoint-{state.global_step}")


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: A launcher repeats the interrupt that the terminal has already sent to all processes of a job.
_SAME_INTERRUPT_SECONDS = 1.0


class StopOnSignal(TrainerCallback):
    """Save a checkpoint after the current step when SIGTERM or SIGINT arrives, and end the process.

    All processes stop after the same step, whichever of them received the signal: in every step they reduce its
    number, and read the result one step later, so that the host does not wait for the device. A second interrupt from
    the keyboard ends the process at once. (transformers' `enable_jit_checkpoint` saves only in a process that received
    SIGTERM, so several processes would wait for each other.)

    Signals keep their usual meaning outside the main thread, where they are ignored already (as under `nohup`), and in
    runs with `save_strategy="no"`. Put this callback after those that save something of their own.
    """

    _received = 0
    _received_at = 0.0
    #: The number of the signal that stops the run, or 0.
    stopping = 0
    _reduction: tuple[Any, torch.Tensor] | None = None

    @contextmanager
    def caught(self, args: TrainingArguments) -> Iterator[None]:
        """Catch the signals of a run, and forget those of an earlier one.

        Args:
            args (`TrainingArguments`): The arguments of the run.
        """
        self._received = 0
        self.stopping = 0
        self._reduction = None
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
            self._received = number
            self._received_at = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._received_at > _SAME_INTERRUPT_SECONDS:
            raise KeyboardInterrupt

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Request a checkpoint if a signal arrived; at the end of an epoch, after what belongs to the epoch's end."""
        if args.world_size == 1:
            self.stopping = self._received
        elif not self.stopping:
            previous = self._reduction
            number = torch.tensor(self._received, device=args.device)
            self._reduction = (dist.all_reduce(number, dist.ReduceOp.MAX, async_op=True), number)
            if previous is not None:
                previous[0].wait()
                self.stopping = int(previous[1].item())
        if self.stopping and not float(state.epoch or 0.0).is_integer():
            control.should_save = True

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Request the checkpoint of an epoch's last step."""
        if self.stopping:
            control.should_save = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """End the process when the checkpoint is complete.

        Raises:
            SystemExit: With status 143, after SIGTERM.
            KeyboardInterrupt: After SIGINT, for which a program ends with status 130.
        """
        if not self.stopping:
            return
        if state.is_world_process_zero:
            logger.warning(
                f"{signal.Signals(self.stopping).name} stopped the run after step {state.global_step}. "
                f"{args.output_dir}/checkpoint-{state.global_step} is complete: continue with "
                "--resume_from_checkpoint true."
            )
        if self.stopping == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.stopping)


#: What the saved state of an optimizer would override.
OPTIMIZER_SETTINGS = ("lr", "weight_decay", "betas", "eps", "momentum")


class RunOptimizer(TrainerCallback):
    """Give the optimizer of a resumed run its own settings in the place of those in the checkpoint (`allow_changes`).

    The first step then has the learning rate that a run with these settings would have at this step.

    Attributes:
        own (`Sequence[Mapping]`): The settings of each group of parameters before those of the checkpoint were
            loaded. Without any, the optimizer stays as it is.
    """

    own: Sequence[Mapping[str, Any]] = ()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any
    ) -> None:
        """Set the groups of the optimizer, and the rate that the schedule gives them at this step."""
        if not self.own:
            return
        groups = event["optimizer"].param_groups
        schedule = event["lr_scheduler"]
        for group, own in zip(groups, self.own, strict=True):
            factor = group["lr"] / group["initial_lr"] if group.get("initial_lr") else 1.0
            group.update(own)
            group["initial_lr"] = own["lr"]
            group["lr"] = own["lr"] * factor
        schedule.base_lrs = [own["lr"] for own in self.own]
        if isinstance(schedule, LambdaLR):
            for group, factor_at in zip(groups, schedule.lr_lambdas, strict=True):
                group["lr"] = group["initial_lr"] * factor_at(schedule.last_epoch)
        schedule._last_lr = [group["lr"] for group in groups]
