"""Watch for embeddings that collapse to a point or to a few directions."""

from typing import Any

import torch
from transformers import TrainerCallback
from transformers.utils import logging

from ..evaluation.metrics import effective_rank, mean_cosine, uniformity
from ..ops.distributed import sum_over_processes, world
from .loss_tracker import LossTracker

logger = logging.get_logger(__name__)

#: Bound on the mean of 1 - cosine below which embeddings have collapsed to a point, if it has halved since the start:
#: untrained encoders may begin as close to each other as that.
LEAST_SPREAD = 0.02
#: Steps after which embeddings within that bound from the start on have not moved apart.
STUCK_STEPS = 100
#: Share of the start's effective rank above 1 below which embeddings have collapsed to a few directions.
LEAST_SHARE_OF_RANK = 0.1
#: Rows of a batch whose geometry is measured. More would cost time and change little.
MOST_ROWS = 256


class CollapseError(RuntimeError):
    """The embeddings of a run have collapsed, and `stop_on_collapse` is set."""

    exit_status = 1  # of the command line


class CollapseWatch(TrainerCallback):
    """Log the geometry of the embeddings, and warn once if they collapse to a point or to a few directions.

    The anchors of the last batch are measured whenever the loss is logged, in training mode, and logged as
    `batch_mean_cosine`, `batch_effective_rank` and `batch_uniformity`. The dev set of a [`SimilarityEvalCallback`] is
    measured at every evaluation (`eval_stsb_mean_cosine`, ...). Each is compared with its own first value, which for
    batches is that of the first step. Embeddings that begin as a point, as those of untrained encoders may, and are
    one still after `STUCK_STEPS` steps have collapsed, too: the loss then stays at the logarithm of the batch size.
    Jing et al. 2022 (arXiv:2110.09348) describe both ways to collapse, and RankMe (arXiv:2210.02885) shows that the
    effective rank predicts how useful embeddings are.

    Args:
        tracker (`LossTracker`): Keeps the embeddings of the last batch.
    """

    def __init__(self, tracker: LossTracker):
        self._tracker = tracker
        self._first: dict[str, tuple[float, float]] = {}
        self._rows: Any = None
        self._has_warned = False

    def on_train_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Start anew, or with the first values in the log of a resumed run."""
        self._first = {}
        self._rows = None
        self._has_warned = False
        for entry in reversed(state.log_history):
            self._first |= _measures(entry)
            self._rows = entry.get("batch_rows", self._rows)

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Measure the first batch, before the encoder has changed much."""
        if "batch" not in self._first:
            self._first |= _measures(self.measure_batch())

    def measure_batch(self) -> dict[str, float]:
        """Measure as many rows of the last batch as the first one had, averaged over the processes.

        Each process must call. A smaller batch is not measured: its effective rank is lower whatever the embeddings.

        Returns:
            `dict[str, float]`: Nothing if the objective returned no embeddings that can be compared.
        """
        batch = self._tracker.embeddings
        if batch is None:
            return {}
        if self._rows is None:
            self._rows = min(len(batch), MOST_ROWS)
        batch = batch[: self._rows].float()
        values = [0.0] * 4
        if 1 < len(batch) == self._rows and torch.isfinite(batch).all() and batch.norm(dim=1).all():
            values = [1.0, mean_cosine(batch), effective_rank(batch), uniformity(batch)]
        sums = sum_over_processes(torch.tensor(values, device=batch.device))
        processes = world()[1]
        if sums[0] < processes:  # in some process they cannot be measured
            return {}
        cosine, rank, spread = (sums[1:] / processes).tolist()
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
            if getattr(args, "stop_on_collapse", False):
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
