"""Stop a run at a signal: finish the step, save a checkpoint, and end with a status that says why."""

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

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
    """Save a checkpoint after the current step when SIGTERM or SIGINT arrives, and stop.

    The callback is also the context in which the signals are caught. All processes stop after the same step, whichever
    of them received the signal: in every step they reduce its number, and read the result one step later, so that the
    host does not wait for the device. A second interrupt from the keyboard ends the process at once.

    Signals keep their usual meaning outside the main thread, where they are ignored already (as under `nohup`), and in
    runs with `save_strategy="no"`.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._received, self._received_at = 0, 0.0
        self._stopping = 0
        self._saved_step = -1
        self._reduction: tuple[Any, torch.Tensor] | None = None

    def catch(self, args: TrainingArguments) -> Self:
        """Forget the signals of an earlier run; those of this one are caught inside `with callback.catch(args):`."""
        self._forget()
        self._handlers = {}
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and args.save_strategy != "no":
            current = {number: signal.getsignal(number) for number in _SIGNALS}
            self._handlers = {number: h for number, h in current.items() if h not in (signal.SIG_IGN, None)}
        return self

    def __enter__(self) -> Self:
        for number in self._handlers:
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._received:
            self._received, self._received_at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._received_at > _SAME_INTERRUPT_SECONDS:
            raise KeyboardInterrupt

    @property
    def is_stopping(self) -> bool:
        """Whether a signal stopped the run."""
        return self._stopping != 0

    # --- the steps of a run ------------------------------------------------------------------------------------------

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request a checkpoint if a signal arrived; at the end of an epoch, after what belongs to the epoch's end."""
        self._stopping = self._stopping or self._signal_of_any_process(args.device)
        if self._stopping and not float(state.epoch or 0.0).is_integer():
            control.should_save = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request the checkpoint of an epoch's last step; in the middle of an epoch, leave out what ends one."""
        if self._stopping:
            is_saved = self._saved_step == state.global_step
            control.should_save = not is_saved
            if is_saved:
                control.should_log = control.should_evaluate = False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop the run when the checkpoint is complete."""
        self._saved_step = state.global_step
        if self._stopping:
            control.should_training_stop = True

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

    def end_stopped_run(self, state: TrainerState, output_dir: str) -> None:
        """End the process if a signal stopped the run.

        Args:
            state (`TrainerState`): The state of the run.
            output_dir (`str`): Where its checkpoints are.

        Raises:
            SystemExit: With status 143, after SIGTERM.
            KeyboardInterrupt: After SIGINT, for which a program ends with status 130.
        """
        if not self._stopping:
            return
        if state.is_world_process_zero:
            logger.warning(
                f"{signal.Signals(self._stopping).name} stopped the run after step {state.global_step}. "
                f"{output_dir}/checkpoint-{self._saved_step} is complete: continue with --resume_from_checkpoint true."
            )
        if self._stopping == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self._stopping)
