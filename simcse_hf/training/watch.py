"""Watch a run: its loss, the geometry of its embeddings, weights that are not finite, and what a terminal shows."""

import math
import re
import sys
import time
from collections import Counter
from typing import Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from ..evaluation.metrics import collapse, uniformity
from ..models.modeling import ContrastiveOutput
from ..runtime.distributed import sum_over_processes, world

logger = logging.get_logger(__name__)

#: Advice at the end of errors about numbers that are not finite.
NOT_FINITE = (
    "Lower the learning rate, raise the temperature, use bf16 in place of fp16, or look for broken weights in the "
    "starting checkpoint."
)


class FiniteWeights(TrainerCallback):
    """End a run before weights that are not finite are evaluated or saved.

    Put it last, after the callbacks that request evaluations and checkpoints.
    """

    def on_step_end(self, args, state, control, **event):  # type: ignore[no-untyped-def]
        """Check the weights if they are about to be used, and those of the last step.

        Raises:
            FloatingPointError: In all processes, if a weight of any of them is not finite.
        """
        if not (control.should_evaluate or control.should_save or state.global_step >= state.max_steps):
            return
        broken = ""
        for name, tensor in [*event["model"].named_parameters(), *event["model"].named_buffers()]:
            shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # FSDP2 distributes tensors
            if not torch.isfinite(shard.detach()).all():
                broken = name
        count = sum_over_processes(torch.tensor(len(broken), device=args.device))
        if count.item():
            raise FloatingPointError(
                f"the weights are not finite after step {state.global_step} ({broken or 'in another process'}). "
                f"They are not saved, and checkpoints saved earlier are untouched in {args.output_dir}. {NOT_FINITE}"
            )

    on_epoch_end = on_step_end


#: Embeddings have collapsed to a point if the mean of 1 - cosine is below this and less than half of the start's.
#: (Those of untrained encoders may be below it from the start.)
LEAST_SPREAD = 0.02
#: Steps after which embeddings that began below `LEAST_SPREAD` and are there still have collapsed, too.
STUCK_STEPS = 100
#: Embeddings have collapsed to a few directions if (effective rank - 1) is below this share of that of the start.
LEAST_SHARE_OF_RANK = 0.1
#: Rows of a batch whose geometry is measured. More would cost time and change little.
MOST_ROWS = 256


class CollapseError(RuntimeError):
    """The embeddings of a run have collapsed, and `stop_on_collapse` is set."""

    exit_status = 1  # of the command line


class RunWatch(TrainerCallback):
    """Watch the loss and the embeddings of a run: log their parts and geometry, end a run whose loss is not finite.

    **The loss.** Its parts are added up on their device, and their means are logged with it. A part that is not finite
    ends the run before anything is logged, evaluated or saved. So no checkpoint with broken weights is written, and
    `save_total_limit` cannot delete a good one for it.

    **The embeddings.** A run is warned once if they collapse to a point or to a few directions. The anchors of the
    last batch are measured whenever the loss is logged, in training mode, and logged as `batch_mean_cosine`,
    `batch_effective_rank` and `batch_uniformity`. The dev set of a [`SimilarityEvalCallback`] is measured at every
    evaluation (`eval_stsb_mean_cosine`, ...). Each is compared with its own first value, which for batches is that of
    the first step. Embeddings that begin as a point, as those of untrained encoders may, and are one still after
    `STUCK_STEPS` steps have collapsed, too: the loss then stays at the logarithm of the batch size. Jing et al. 2022
    (arXiv:2110.09348) describe both ways to collapse, and RankMe (arXiv:2210.02885) shows that the effective rank
    predicts how useful embeddings are.

    Attributes:
        run_loss (`float` or `torch.Tensor`): The sum of the losses of all steps.
        earlier_steps (`int`): The steps of other runs that trained the model before.
    """

    RECORD = "run_so_far"  # where a checkpoint keeps what `record` returns

    def __init__(self) -> None:
        self.run_loss: float | torch.Tensor = 0.0
        self.earlier_steps = 0
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()  # a part may be in the batches of one data set only
        self._embeddings: torch.Tensor | None = None  # of the anchors of the last batch, of shape `(batch, dim)`
        self._first: dict[str, tuple[float, float]] = {}
        self._rows: Any = None
        self._has_warned = False

    def on_train_begin(self, args, state, control, model, **_):  # type: ignore[no-untyped-def]
        """Forget an earlier run, whose loss may be broken, and take the sums and first values of a resumed one."""
        self.__init__()
        earlier = state.stateful_callbacks.get(self.RECORD, {})
        if state.global_step == 0:
            self.earlier_steps = model.trained_steps
        else:  # the weights are those of the checkpoint
            self.earlier_steps = earlier.get("earlier_steps", 0)
        self.run_loss = earlier.get("loss", 0.0)
        self._began = time.monotonic() - earlier.get("seconds", 0.0)
        for entry in reversed(state.log_history):
            self._first |= _measures(entry)
            self._rows = entry.get("batch_rows", self._rows)

    def record(self) -> dict[str, float]:
        """Return the sum of the losses and the seconds since step 0, and earlier steps. Each process must call."""
        loss = self.run_loss
        if isinstance(loss, torch.Tensor):
            loss = (sum_over_processes(loss) / world()[1]).item()
        seconds = time.monotonic() - self._began
        return {"loss": loss, "seconds": seconds, "earlier_steps": self.earlier_steps}

    def add(self, output: ContrastiveOutput) -> None:
        """Add the parts of one forward pass, without waiting for the device.

        Copies are kept, because a CUDA graph writes the next batch's outputs into the same memory.
        """
        if output.sentence_embeddings is not None:
            self._embeddings = output.sentence_embeddings.detach()[:, 0].clone()
        parts = {"contrastive_loss": output.contrastive_loss, "mlm_loss": output.mlm_loss, **(output.parts or {})}
        for part, value in parts.items():
            if value is not None:
                self._counts[part] += 1
                self._sums[part] = value.detach() + self._sums.get(part, 0)

    def means(self) -> dict[str, float]:
        """Return the mean of each part since the last call, over all processes, each of which must call."""
        means = {}
        for part, total in self._sums.items():
            count = self._counts[part] * world()[1]
            means[part] = (sum_over_processes(total) / count).item()
        self._sums.clear()
        self._counts.clear()
        return means

    def on_step_end(self, args, state, control, model, **_):  # type: ignore[no-untyped-def]
        """End the run if a part of the loss is not finite, and measure the first batch.

        Raises:
            FloatingPointError: If a part of the loss is NaN or infinite.
        """
        model.trained_steps = self.earlier_steps + state.global_step
        is_cheap = args.device.type == "cpu"  # Elsewhere, reading the value makes the host wait for the device.
        is_used = is_cheap or control.should_log or control.should_evaluate or control.should_save
        for part, total in self._sums.items():
            if is_used and not torch.isfinite(total):
                raise FloatingPointError(
                    f"{part} is {total.item()} at or before step {state.global_step}. Checkpoints saved earlier are "
                    f"untouched in {args.output_dir}. {NOT_FINITE}"
                )
        if "batch" not in self._first:  # before the encoder has changed much
            self._first |= _measures(self.measure_batch())

    def measure_batch(self) -> dict[str, float]:
        """Measure as many rows of the last batch as the first one had, averaged over the processes.

        Each process must call. A smaller batch is not measured: its effective rank is lower whatever the embeddings.

        Returns:
            `dict[str, float]`: Nothing if the objective returned no embeddings that can be compared.
        """
        batch = self._embeddings
        if batch is None:
            return {}
        if self._rows is None:
            self._rows = min(len(batch), MOST_ROWS)
        batch = batch[: self._rows].float()
        values = [math.nan] * 3
        is_full = len(batch) == self._rows and len(batch) > 1
        if is_full and torch.isfinite(batch).all() and batch.norm(dim=1).all():
            values = [*collapse(batch), uniformity(batch)]
        sums = sum_over_processes(torch.tensor(values, device=batch.device))
        cosine, rank, spread = (sums / world()[1]).tolist()
        if math.isnan(cosine):  # in some process they cannot be measured
            return {}
        return {
            "batch_rows": self._rows,
            "batch_mean_cosine": cosine,
            "batch_effective_rank": rank,
            "batch_uniformity": spread,
        }

    def on_log(self, args, state, control, **event):  # type: ignore[no-untyped-def]
        """Compare what is logged with the first values.

        Raises:
            CollapseError: If the embeddings have collapsed and `stop_on_collapse` is set.
        """
        for source, (spread, rank) in _measures(event["logs"]).items():
            first_spread, first_rank = self._first.setdefault(source, (spread, rank))
            is_point = spread < LEAST_SPREAD and spread < first_spread / 2
            is_stuck = max(spread, first_spread) < LEAST_SPREAD and state.global_step >= STUCK_STEPS
            is_line = rank - 1 < LEAST_SHARE_OF_RANK * (first_rank - 1)
            if self._has_warned or not (is_point or is_stuck or is_line):
                continue
            self._has_warned = True
            what = "began as a point and have not moved apart" if is_stuck else "have collapsed"
            message = (
                f"the embeddings {what} at step {state.global_step} ({source}): the mean cosine of two texts "
                f"is {1 - spread:.4f} ({1 - first_spread:.4f} at the start) and the effective rank {rank:.1f} "
                f"({first_rank:.1f}). Lower the learning rate, check the training texts for repetitions, or use an "
                "objective with negatives."
            )
            if args.stop_on_collapse:
                raise CollapseError(f"{message} Checkpoints saved earlier are untouched in {args.output_dir}.")
            if state.is_world_process_zero:
                logger.warning(f"{message} --stop_on_collapse ends such a run.")


def _measures(logs: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return (1 - mean cosine, effective rank) of each set of texts in a log entry, by the prefix of their names."""
    found = {}
    for name, cosine in logs.items():
        source = name.removesuffix("_mean_cosine")
        rank = logs.get(f"{source}_effective_rank")
        if source != name and rank is not None:
            found[source] = (1 - cosine, rank)
    return found


#: What is not shown. `trainer_state.json` and the trackers have everything.
_HIDDEN = re.compile(
    "epoch|grad_norm|learning_rate|total_flos|contrastive_loss|(train|batch|eval_start)_.*|"
    ".*_(runtime|per_second|alignment|uniformity|mean_cosine|effective_rank)"
)


class RunLog(TrainerCallback):
    """Show the losses and the scores of a run on standard error; those of an evaluation stand beside the loss."""

    line = ""

    def on_log(self, args, state, control, logs=None, **_):  # type: ignore[no-untyped-def]
        """Show what was logged, unless an evaluation of the same step follows."""
        for name, value in logs.items():
            if isinstance(value, float) and not _HIDDEN.fullmatch(name):
                self.line += f"  {name} {value:<#6.4g}"
        is_shown = logging.get_logger("simcse_hf").level <= logging.INFO and state.is_world_process_zero
        if is_shown and self.line and not ("loss" in logs and control.should_evaluate):
            tqdm.write(f"step {state.global_step:>5}{self.line.rstrip()}", file=sys.stderr)
            self.line = ""


class RunPrinter(RunLog, PrinterCallback):
    """Show the lines above where transformers would print a dictionary."""


class RunBar(RunLog, ProgressCallback):
    """Show the lines above transformers' bar."""
