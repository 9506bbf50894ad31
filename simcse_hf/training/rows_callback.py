"""Tell the training rows which epoch begins."""

from transformers import TrainerCallback

from .rows import Rows


class RowsCallback(TrainerCallback):
    """Tell rows that are drawn anew in every epoch which epoch begins, and count the epochs of a stream.

    After a resume transformers would count the epochs of a stream from 0 again.

    Args:
        rows (`Rows`, *optional*): The training rows.
    """

    def __init__(self, rows: Rows | None):
        self.rows = rows

    def on_epoch_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        if self.rows is not None:
            self.rows.set_epoch(int((state.epoch or 0.0) + 1e-6))

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the run."""
        epoch = None if self.rows is None else self.rows.epoch_at(state.global_step, state.max_steps)
        if epoch is not None:
            state.epoch = epoch
