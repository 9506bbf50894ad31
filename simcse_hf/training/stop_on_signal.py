"""Save a checkpoint and end a run when it is told to stop."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from ..ops.distributed import world

logger = logging.get_logger(__name__)

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

    def __init__(self) -> None:
        self._received = 0
        self._received_at = 0.0
        self._stopping = 0
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
            self._received = number
            self._received_at = time.monotonic()
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
