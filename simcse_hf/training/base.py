"""The types of a trainer of contrastive models, for the modules that the trainer itself uses."""

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..data.view_dataset import SeededDataset
from ..models.modeling import ContrastiveModel
from ..objectives import Objective
from .callbacks import DevSetCallback
from .reliable import ReliableTrainer
from .training_args import SimCSETrainingArguments


class ContrastiveTrainer(ReliableTrainer):
    """[`ReliableTrainer`] with the types of contrastive training, which are narrower than transformers' own."""

    model: ContrastiveModel  # transformers: any nn.Module, or None
    args: SimCSETrainingArguments
    processing_class: PreTrainedTokenizerBase  # transformers: also image processors, or None
    train_dataset: Dataset | SeededDataset | None  # transformers: any data set

    @property
    def dev_sets(self) -> list[DevSetCallback]:
        """The dev sets, in the order they were added."""
        return [x for x in self.callback_handler.callbacks if isinstance(x, DevSetCallback)]


def prepared_objective(model: ContrastiveModel) -> Objective:
    """Return the objective of a model, which must have one: the trainer prepares it before anything else."""
    assert model.objective is not None
    return model.objective
