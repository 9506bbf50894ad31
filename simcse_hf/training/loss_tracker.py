"""Sum the parts of the loss, and end a run whose loss is not finite."""

import time
from collections import Counter

import torch
from transformers import TrainerCallback

from ..models.modeling import ContrastiveOutput
from ..ops.distributed import sum_over_processes, world
from .finite_weights import ADVICE


class LossTracker(TrainerCallback):
    """Sum the parts of the loss on their device, give their means when the Trainer logs, and keep the last batch.

    A loss that is not finite ends the run before anything is logged, evaluated or saved. So no checkpoint with broken
    weights is written, and `save_total_limit` cannot delete a good one for it.
    """

    PARTS = ("contrastive_loss", "mlm_loss")
    RECORD = "run_so_far"  # where a checkpoint keeps what `record` returns

    def __init__(self) -> None:
        self._run_loss: float | torch.Tensor = 0.0
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()  # a part may be in the batches of one data set only
        #: The embeddings of the anchors of the last batch, of shape `(batch, dim)`.
        self.embeddings: torch.Tensor | None = None

    def on_train_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Forget the sums of an earlier run, whose loss may be broken, and take those of a run that is resumed."""
        self._sums.clear()
        self._counts.clear()
        earlier = state.stateful_callbacks.get(self.RECORD, {})
        self._run_loss = earlier.get("loss", 0.0)
        self._began = time.monotonic() - earlier.get("seconds", 0.0)

    def add_step(self, loss: torch.Tensor) -> None:
        """Add the loss of a training step, without waiting for the device."""
        exact = torch.float32 if loss.device.type == "mps" else torch.float64  # a sum that no order changes
        self._run_loss = self._run_loss + loss.detach().to(exact)

    def record(self) -> dict[str, float]:
        """Return the sum of the losses and the seconds since step 0. Each process must call."""
        loss = self._run_loss
        if isinstance(loss, torch.Tensor):
            loss = (sum_over_processes(loss) / world()[1]).item()
        return {"loss": loss, "seconds": time.monotonic() - self._began}

    def add(self, output: ContrastiveOutput) -> None:
        """Add the parts of one forward pass, without waiting for the device.

        Copies are kept, because a CUDA graph writes the next batch's outputs into the same memory.
        """
        if output.sentence_embeddings is not None:
            self.embeddings = output.sentence_embeddings.detach()[:, 0].clone()
        parts = {part: output.get(part) for part in self.PARTS} | (output.parts or {})
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

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """End the run if a part of the loss is not finite.

        Raises:
            FloatingPointError: If a part of the loss is NaN or infinite.
        """
        is_cheap = args.device.type == "cpu"  # Elsewhere, reading the value makes the host wait for the device.
        if not (is_cheap or control.should_log or control.should_evaluate or control.should_save):
            return
        for part, total in self._sums.items():
            if not torch.isfinite(total):
                raise FloatingPointError(
                    f"{part} is {total.item()} at or before step {state.global_step}. Checkpoints saved earlier are "
                    f"untouched in {args.output_dir}. {ADVICE}"
                )
