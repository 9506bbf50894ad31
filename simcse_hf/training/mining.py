"""Mine hard negatives with the model in training, every so many steps or epochs."""

from functools import partial
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..inference.batches import encode_token_ids
from .base import ContrastiveTrainer
from .mined_rows import MinedRows


class MiningCallback(TrainerCallback):
    """Replace the hard negatives of the training rows before step 0, and again every n steps or epochs.

    ANCE (Xiong et al. 2021, arXiv:2007.00808) refreshes the negatives of dense retrieval in this way, from an index
    that follows the model.

    Args:
        trainer (`ContrastiveTrainer`): The trainer, for its model as it is wrapped for training.
        rows (`MinedRows`): Its training rows.
    """

    def __init__(self, trainer: ContrastiveTrainer, rows: MinedRows):
        self.trainer, self.rows = trainer, rows

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the negatives of an earlier run of the same trainer."""
        if state.global_step == 0:
            self.rows.forget()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mine if the epoch that begins is one of every n; a resumed run also enters an epoch in its middle."""
        every, epoch = self.trainer.args.mine_every_epochs, state.epoch or 0.0
        if every is not None and abs(epoch - round(epoch)) < 1e-6 and round(epoch) % every == 0:
            self._mine(state.global_step)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mine if the step that begins is one of every n."""
        every = self.trainer.args.mine_every
        if every is not None and state.global_step % every == 0:
            self._mine(state.global_step)

    @torch.no_grad()
    def _mine(self, step: int) -> None:
        if self.rows.last_step == step:
            return
        pad_token_id = self.trainer.processing_class.pad_token_id
        encode = partial(encode_token_ids, self.trainer.model_wrapped, pad_token_id=pad_token_id)
        with self.trainer.compute_loss_context_manager():
            self.rows.mine(encode, step, self.trainer.args.device)
