"""Tell the training rows which epoch begins."""

from typing import Any

from transformers import TrainerCallback

from ..data.stream import StreamedRows
from ..data.view_dataset import SeededDataset


class RowsCallback(TrainerCallback):
    """Tell rows that are drawn anew in every epoch which epoch begins, and count the epochs of a stream.

    The length of a stream is unknown, and after a resume transformers would count from 0 again. So its epoch is the
    share of the run that is done.

    Args:
        rows (`Any`): The training rows.
    """

    def __init__(self, rows: Any):
        self.rows = rows

    def on_epoch_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        if isinstance(self.rows, SeededDataset):
            self.rows.set_epoch(int((state.epoch or 0.0) + 1e-6))

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the run."""
        if isinstance(self.rows, StreamedRows):
            state.epoch = state.global_step / state.max_steps
