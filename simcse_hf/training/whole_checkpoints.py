"""A Trainer whose checkpoints are whole or absent, and which a resumed run finishes at its last step."""

from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from .checkpoints import staged


class WholeCheckpointTrainer(Trainer):
    """transformers' Trainer with checkpoints that are staged, see [`~checkpoints.staged`]."""

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *args: Any) -> Any:
        """Take the batches of a step; none if a finished run was resumed, of which transformers takes one more."""
        if self.state.global_step < self.state.max_steps:
            return super().get_batch_samples(epoch_iterator, num_batches, *args)
        self.control.should_training_stop = True
        return [], None

    def add_to_checkpoint(self, folder: Path) -> None:
        """Write what a subclass needs to resume, beside what transformers needs. Every process calls it.

        Args:
            folder (`Path`): The folder of the checkpoint while it is staged.
        """

    def prepare_push(self, checkpoint: Path) -> None:
        """Get ready for transformers' push of a checkpoint that has got its name."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint in a staging folder, delete older ones when it is whole, and push it if asked for."""
        state, args = self.state, self.args
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        directory = Path(self._get_output_dir(trial))
        with staged(directory, state, args) as folder:
            self.save_model(str(folder), _internal_call=True)
            if not args.save_only_model:
                self._save_optimizer_and_scheduler(str(folder))
                self._save_scaler(str(folder))
                self._save_rng_state(str(folder))
            if args.should_save:
                self._collect_states()
            self.add_to_checkpoint(folder)
        if args.push_to_hub:
            checkpoint = directory / f"checkpoint-{state.global_step}"
            self.prepare_push(checkpoint)
            self._push_from_checkpoint(str(checkpoint))

    def _collect_states(self) -> None:
        """Put the states of the callbacks and of the control into that of the Trainer, as transformers does."""
        saved = self.state.stateful_callbacks
        for callback in [*self.callback_handler.callbacks, self.control]:
            if not isinstance(callback, ExportableState):
                continue
            name = type(callback).__name__
            if isinstance(saved[name], list):
                saved[name].append(callback.state())
            else:
                saved[name] = callback.state()
