"""SimCSE's objective, and the base of the objectives that add something to it."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import InfoNCE


@dataclass
class ContrastiveInputs:
    """What InfoNCE reads, at the full embedding size.

    Args:
        embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`.
        queue (`torch.Tensor`, *optional*): Embeddings of earlier batches, of shape `(q, dim)`, which are negatives of
            every anchor.
        text_ids (`torch.Tensor`, *optional*): Integers of shape `(batch, num_sentences)`, equal for equal texts.
        other_losses (`dict[str, torch.Tensor]`): Named losses that are added to InfoNCE once, whatever the widths of
            [`Matryoshka`].
    """

    embeddings: torch.Tensor
    queue: torch.Tensor | None = None
    text_ids: torch.Tensor | None = None
    other_losses: dict[str, torch.Tensor] = field(default_factory=dict)


class SimCSEObjective(Objective):
    """[`InfoNCE`] of column 0 against column 1, with the further columns as hard negatives.

    SimCSE (Gao et al. 2021, arXiv:2104.08821), Eq. 1, 4, 5 and 8. A row may have any number of hard negatives of any
    label: one contradiction in the paper, or a contradiction and a neutral hypothesis (Table 7).

    A subclass that adds a queue, changes the embeddings or adds a loss overrides [`prepare`]. It is called once per
    step and the loss once per width, so [`Matryoshka`] runs a second encoder only once.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*): See [`InfoNCE`].
        similarity (`str`, *optional*, defaults to `"cosine"`): See [`InfoNCE`].
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): See [`InfoNCE`].
        symmetric (`bool`, *optional*, defaults to `False`): Whether positives look for their anchors as well (NT-Xent;
            SimCLR, arXiv:2002.05709, Eq. 1).
        mask_duplicates (`bool`, *optional*, defaults to `False`): Whether to leave out candidates with the same text
            as the anchor or its positive.
        false_negative_margin (`float`, *optional*): Leave out candidates that are more similar to the anchor than its
            positive by more than this; see [`InfoNCE`].

    Raises:
        ValueError: If an argument is not valid.
    """

    summary = "contrastive learning (SimCSE): InfoNCE with the other rows of the batch as negatives"
    papers: ClassVar[tuple[str, ...]] = ("simcse",)

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        symmetric: bool = False,
        mask_duplicates: bool = False,
        false_negative_margin: float | None = None,
    ):
        super().__init__(dim)
        for name, value in (("symmetric", symmetric), ("mask_duplicates", mask_duplicates)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, got {value!r}")
        if isinstance(false_negative_margin, bool) or not isinstance(false_negative_margin, (int, float, type(None))):
            raise ValueError(f"false_negative_margin must be a number, got {false_negative_margin!r}")
        self.info_nce = InfoNCE(
            temperature,
            similarity,
            hard_negative_weight,
            symmetric=symmetric,
            false_negative_margin=false_negative_margin,
        )
        self.needs_text_ids = mask_duplicates

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with relations, and batches without negatives.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If the rows have relations, or if a batch consists of one pair.
        """
        if rows.has_relations:
            raise ValueError(
                f"the training rows have relations, which objective {self.name!r} does not read: train it on single "
                "texts, pairs, or rows of sent0, sent1 and hard negatives (see simcse-hf build-nli)"
            )
        if rows.batch_size * rows.processes == 1 and rows.num_sentences < 3:
            raise ValueError(
                "a batch of one text has no negatives, so its loss is 0: raise per_device_train_batch_size"
            )

    def prepare(self, batch: EncodedBatch) -> ContrastiveInputs:
        """Collect the inputs of the loss, with any encoder passes and state updates of a training step.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `ContrastiveInputs`: The inputs of [`loss_at`].

        Raises:
            ValueError: If `mask_duplicates` is set and the batch has no `text_ids`.
        """
        if not self.needs_text_ids:
            return ContrastiveInputs(batch.embeddings)
        if "text_ids" not in batch.inputs:
            raise ValueError(
                "mask_duplicates needs text_ids in the batch: make the collator with ContrastiveCollator(tokenizer, "
                "add_text_ids=True)"
            )
        return ContrastiveInputs(batch.embeddings, text_ids=batch.inputs["text_ids"])

    def loss_at(self, inputs: ContrastiveInputs, dim: int) -> torch.Tensor:
        """Compute InfoNCE of the leading dimensions.

        Args:
            inputs (`ContrastiveInputs`): What [`prepare`] returned.
            dim (`int`): The number of leading dimensions.

        Returns:
            `torch.Tensor`: A scalar.
        """
        return self.info_nce.of_columns(
            inputs.embeddings[..., :dim],
            gather=self.training,
            extra_negatives=None if inputs.queue is None else inputs.queue[:, :dim],
            text_ids=inputs.text_ids,
        )

    def forward(self, batch: EncodedBatch) -> torch.Tensor | dict[str, torch.Tensor]:
        """Compute the loss; see [`Objective.forward`]."""
        inputs = self.prepare(batch)
        loss = self.loss_at(inputs, self.dim)
        return {"info_nce": loss, **inputs.other_losses} if inputs.other_losses else loss
