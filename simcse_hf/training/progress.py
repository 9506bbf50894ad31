"""What a terminal shows of a run: a table of steps, losses and dev scores, above transformers' bar."""

import sys
from typing import Any

from tqdm import tqdm
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ProgressCallback

from .dev_sets import DevSetCallback


class RunTable(TrainerCallback):
    """Show the loss and the scores of a run on standard error, a row for each step with something to show.

    Of a dev set it shows the metrics by which runs are compared. Everything that is logged stands in
    `trainer_state.json`, and goes to the trackers.

    Args:
        trainer (`Trainer`): The trainer, whose dev sets may change.
    """

    def __init__(self, trainer: Trainer):
        super().__init__()
        self.trainer = trainer
        self.columns: list[str] = []
        self.row: dict[str, str] = {}

    def on_log(self, args, state, control, logs=None, **_):  # type: ignore[no-untyped-def]
        """Show a row; the loss of a step that is evaluated next waits for its scores."""
        if not (state.is_world_process_zero and self.trainer.is_in_train):
            return
        self.row |= self._shown(logs)
        if not self.row or ("loss" in logs and control.should_evaluate):
            return
        if self.row.keys() - set(self.columns):
            self.columns = list(dict.fromkeys(["loss", *self.columns, *self.row]))
            self._write("step", self.columns)
        self._write(str(state.global_step), [self.row.get(name, "") for name in self.columns])
        self.row = {}

    def _shown(self, logs: dict[str, Any]) -> dict[str, str]:
        """Return the numbers of a log entry that the table shows."""
        if "loss" in logs:
            return {"loss": f"{logs['loss']:.4f}"}
        if "train_runtime" in logs:  # the last entry
            return {}
        hidden = ["epoch", "eval_start_"]
        scores: list[str] = []
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, DevSetCallback):
                hidden += [f"eval_{name}_" for name in callback.sources]
                scores += [name for name in callback.scores if not name.startswith("start_")]
        shown = {}
        for name, value in logs.items():
            short = name.removeprefix("eval_")
            if short in scores:
                shown[short] = f"{value:.2f}"
            elif not name.startswith(tuple(hidden)) and not name.endswith(("_runtime", "_per_second")):
                shown[name] = f"{value:.4f}" if isinstance(value, float) else str(value)
        return shown

    def _write(self, step: str, cells: list[str]) -> None:
        widths = [max(8, len(name)) for name in self.columns]
        row = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        tqdm.write(f"{step:>6}{row}".rstrip(), file=sys.stderr)


class RunBar(RunTable, ProgressCallback):
    """Show the table above transformers' bar, which has the name of the run."""

    def on_train_begin(self, args, state, control, **event):  # type: ignore[no-untyped-def]
        """Show the bar on the first process."""
        super().on_train_begin(args, state, control, **event)
        if self.training_bar is not None and args.run_name:
            self.training_bar.set_description(args.run_name)
