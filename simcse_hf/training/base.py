"""The base of the trainer of contrastive models: its types, the order and state of its rows, and its own files."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers import PreTrainedTokenizerBase

from ..data.sampler import LARGEST_LISTED, PermutedSampler
from ..data.stream import StreamedRows
from ..data.view_dataset import SeededDataset
from ..models.modeling import ContrastiveModel
from ..objectives import Objective
from .callbacks import DevSetCallback
from .dev_scores import keep_dev_scores
from .reliable import ReliableTrainer
from .training_args import SimCSETrainingArguments


@runtime_checkable
class ResumableRows(Protocol):
    """Training rows with a state of their own, which a checkpoint keeps."""

    def save_state(self, directory: str) -> None:
        """Write the state into a checkpoint; the first process calls this."""

    def load_state(self, directory: str) -> None:
        """Read the state from a checkpoint; every process calls this."""


class ContrastiveTrainer(ReliableTrainer):
    """[`ReliableTrainer`] with narrower types, and checkpoints with our own files.

    These hold the head of an encoder without a pooler, the objective's state, and the state of the training rows.
    """

    model: ContrastiveModel  # transformers: any nn.Module, or None
    args: SimCSETrainingArguments
    processing_class: PreTrainedTokenizerBase  # transformers: also image processors, or None
    train_dataset: Dataset | SeededDataset | StreamedRows | None  # transformers: any data set

    @property
    def dev_sets(self) -> list[DevSetCallback]:
        """The dev sets, in the order they were added."""
        return [x for x in self.callback_handler.callbacks if isinstance(x, DevSetCallback)]

    @property
    def known_rows(self) -> Dataset | SeededDataset | None:
        """The training rows; of a stream the first ones, by which the run is checked and described."""
        return self.train_dataset.head if isinstance(self.train_dataset, StreamedRows) else self.train_dataset

    def get_train_dataloader(self) -> DataLoader:
        """Make the data loader of training; a stream makes its own batches, and splits them over the processes."""
        if not isinstance(self.train_dataset, StreamedRows):
            return super().get_train_dataloader()
        pin_memory = self.args.dataloader_pin_memory
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=self.data_collator, pin_memory=pin_memory)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        sampler = super()._get_train_sampler(train_dataset)
        if not isinstance(sampler, RandomSampler) or len(sampler) <= LARGEST_LISTED:
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return PermutedSampler(len(sampler), seed)

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        metrics = super()._evaluate(*args, **kwargs)  # transformers: every evaluation during training
        if self.is_world_process_zero():
            keep_dev_scores(self.dev_sets, self.state, str(self.args.output_dir))
        return metrics

    def _save_rng_state(self, output_dir: str) -> None:
        # The Trainer writes trainer_state.json later, which marks a checkpoint as complete.
        super()._save_rng_state(output_dir)
        if isinstance(self.train_dataset, ResumableRows) and self.is_world_process_zero():
            self.train_dataset.save_state(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and isinstance(self.train_dataset, ResumableRows):
            self.train_dataset.load_state(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_own_files(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._load_own_files(str(self.state.best_model_checkpoint))

    def _load_own_files(self, checkpoint: str) -> None:
        # FSDP and DeepSpeed have just loaded the whole state from a file of theirs, and into shards.
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if not sharded and Path(checkpoint, "model.safetensors").exists():
            self.model.load_own_files(checkpoint)


def prepared_objective(model: ContrastiveModel) -> Objective:
    """Return the objective of a model, which must have one: the trainer prepares it before anything else."""
    assert model.objective is not None
    return model.objective
