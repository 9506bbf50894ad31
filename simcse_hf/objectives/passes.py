"""Objectives with encoder passes of their own, which happen once a step at whatever widths the loss is taken."""

from dataclasses import dataclass, field

import torch
from torch import nn

from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import InfoNCE


@dataclass
class Passed:
    """What an objective's own passes leave for its loss.

    Args:
        vectors: (batch, num_sentences, dim).
        queue: (q, dim), vectors of earlier batches that are negatives of every anchor, or None.
        parts: named shares of the loss that do not depend on its width.
    """

    vectors: torch.Tensor
    queue: torch.Tensor | None = None
    parts: dict[str, torch.Tensor] = field(default_factory=dict)


class ObjectiveWithPasses(Objective):
    """InfoNCE of column 0 against column 1, with what [`passes`] adds.

    A subclass writes `passes`. [`Matryoshka`] calls it once a step and `loss_at` for every width, so a second encoder
    is kept, moved and fed once.

    Args:
        dim: of the sentence vectors.
        temperature, similarity, hard_negative_weight: of [`InfoNCE`].
    """

    def __init__(
        self, dim: int, temperature: float = 0.05, similarity: str = "cosine", hard_negative_weight: float = 0.0
    ):
        super().__init__(dim)
        self.info_nce = InfoNCE(temperature, similarity, hard_negative_weight)

    def check(self, rows: TrainingRows) -> None:
        if rows.has_relations:
            raise ValueError(
                f"{type(self).__name__} compares an anchor with its positive, and rows with `relations` have none: "
                "train on single texts, pairs or triplets"
            )
        if rows.batch_size * rows.processes == 1 and rows.num_sentences < 3:
            raise ValueError(
                "a batch of one text has no negatives, so its loss is 0: raise per_device_train_batch_size"
            )

    def passes(self, batch: EncodedBatch) -> Passed:
        """The objective's own passes on a batch, and all they change in it."""
        raise NotImplementedError

    def loss_at(self, passed: Passed, dim: int) -> torch.Tensor:
        """InfoNCE of the leading `dim` dimensions; a scalar."""
        queue = None if passed.queue is None else passed.queue[:, :dim]
        return self.info_nce.of_columns(passed.vectors[..., :dim], gather=self.training, extra_negatives=queue)

    def forward(self, batch: EncodedBatch) -> torch.Tensor | dict[str, torch.Tensor]:
        passed = self.passes(batch)
        loss = self.loss_at(passed, self.dim)
        return {"info_nce": loss, **passed.parts} if passed.parts else loss


def half_precision_to_float32(module: nn.Module) -> nn.Module:
    """The module in float32 if its weights are in half precision, for which small steps would round to none."""
    dtype = next(module.parameters()).dtype
    return module.float() if dtype in (torch.float16, torch.bfloat16) else module
