"""Another objective for each data set of a run."""

from collections.abc import Mapping

import torch
from torch import nn

from .base import Objective, named_losses
from .combined import Combined
from .encoder import EncodedBatch


class ByDataset(Combined):
    """Another objective for the batches of each data set of a run.

    `inputs["dataset"]` holds the number of the data set that all rows of a batch come from. The parameters of the
    other objectives get a gradient of 0, so that all processes exchange the same gradients.

    The state of an objective is saved by the name of its data set, so their order may change.

    Args:
        dim (`int`): Embedding size.
        objectives (`Mapping[str, Objective]`): The objective of each data set, in their order.
        main (`Objective`, *optional*): The objective that several data sets share: those whose objective it is.

    Raises:
        ValueError: If the objectives need different numbers of encoders, or only some of them reconstruct.
    """

    def __init__(self, dim: int, objectives: Mapping[str, Objective], main: Objective | None = None):
        super().__init__(dim, dict.fromkeys(objectives.values()))
        self.by_name = dict(objectives)
        self.own = nn.ModuleDict()
        self.main = main if main in self.objectives else None
        for name, objective in objectives.items():
            if objective is not main:
                # Names of modules have no points, and may not be those of attributes, such as `train`.
                module = name.replace(".", ":")
                self.own[f":{module}"] = objective
        needs = {(part.encoders, part.reconstructs) for part in self.objectives}
        if len(needs) > 1:
            raise ValueError(
                f"the objectives of the data sets ({self.name}) need other numbers of encoders or read other "
                "embeddings: train them one by one"
            )
        self.num_views = min(part.num_views for part in self.objectives)  # below it a batch has no loss

    def of_dataset(self, number: int) -> Objective:
        """Return the objective of a data set."""
        return list(self.by_name.values())[number]

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Return what all objectives say; see [`Objective.mlm_columns`].

        Raises:
            ValueError: If they mask different columns.
        """
        first, *others = (part.mlm_columns(num_sentences) for part in self.objectives)
        if any(columns != first for columns in others):
            raise ValueError(
                "the objectives of the data sets mask different columns for the masked-LM loss: unset do_mlm"
            )
        return first

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Compute the loss of the batch's data set.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `dataset`.

        Returns:
            `dict[str, torch.Tensor]`: `nli_loss` for the data set `nli`, or `nli_{part}` for each part of its
                objective.

        Raises:
            ValueError: If the batch does not say which data set it comes from.
        """
        names = list(self.by_name)
        if "dataset" not in batch.inputs:
            raise ValueError(
                f"the batch names none of the data sets {', '.join(names)}, whose objectives differ: evaluate them as "
                "eval_dataset={name: rows}"
            )
        number = int(batch.inputs["dataset"][0])
        objective = self.of_dataset(number)
        losses = {}
        for what, loss in named_losses(objective(batch)).items():
            losses[f"{names[number]}_{what}"] = loss
        if self.training:
            own = {id(parameter) for parameter in objective.parameters()}
            first = next(iter(losses))
            for parameter in self.parameters():
                if parameter.requires_grad and id(parameter) not in own:
                    losses[first] = losses[first] + 0.0 * parameter.sum()
        return losses
