"""What a terminal shows of a run: a line for each step that logs something, above transformers' bar."""

import re
import sys

from tqdm import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

#: What is not shown. `trainer_state.json` and the trackers have everything.
_HIDDEN = re.compile(
    "epoch|grad_norm|learning_rate|total_flos|contrastive_loss|(train|batch|eval_start)_.*|"
    ".*_(runtime|per_second|alignment|uniformity|mean_cosine|effective_rank)"
)


class RunLog(TrainerCallback):
    """Show the losses and the scores of a run on standard error; those of an evaluation stand beside the loss."""

    line = ""
    is_shown = True  # unless a command is quiet

    def on_log(self, args, state, control, logs=None, **_):  # type: ignore[no-untyped-def]
        """Show what was logged, unless an evaluation of the same step follows."""
        for name, value in logs.items():
            if isinstance(value, float) and not _HIDDEN.fullmatch(name):
                self.line += f"  {name} {value:<#6.4g}"
        if (
            self.is_shown
            and state.is_world_process_zero
            and self.line
            and not ("loss" in logs and control.should_evaluate)
        ):
            tqdm.write(f"step {state.global_step:>5}{self.line.rstrip()}", file=sys.stderr)
            self.line = ""


class RunBar(RunLog, ProgressCallback):
    """Show the lines above transformers' bar."""
