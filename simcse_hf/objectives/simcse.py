"""SimCSE's objective on a batch: InfoNCE over the rows of all processes."""

from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import InfoNCE


class SimCSEObjective(Objective):
    """[`InfoNCE`] of column 0 against column 1, with columns 2 and further as hard negatives.

    SimCSE (arXiv:2104.08821), Eq. 1, 4, 5 and 8. A row may have any number of hard negatives, of any kind: one
    contradiction in the paper, or contradiction and neutral (Table 7).

    Args:
        dim: of the sentence vectors.
        temperature, similarity, hard_negative_weight: as for [`InfoNCE`].
        symmetric: positives look for their anchors too (NT-Xent; SimCLR, arXiv:2002.05709, Eq. 1).
        mask_duplicates: leave out candidates that are the anchor's or its positive's text again. Reads
            `inputs["text_ids"]`, (batch, num_sentences).

    Raises:
        ValueError: as for [`InfoNCE`]; in forward, a batch without the `text_ids` that `mask_duplicates` needs.
    """

    def __init__(
        self,
        dim: int,
        temperature: float = 0.05,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        symmetric: bool = False,
        mask_duplicates: bool = False,
    ):
        super().__init__(dim)
        for name, value in (("symmetric", symmetric), ("mask_duplicates", mask_duplicates)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, got {value!r}")
        self.info_nce = InfoNCE(temperature, similarity, hard_negative_weight, symmetric=symmetric)
        self.needs_text_ids = mask_duplicates

    def check(self, rows: TrainingRows) -> None:
        if rows.has_relations:
            raise ValueError(
                "the training rows have relations, which objective simcse does not read: train it on rows of "
                "sent0, sent1 and hard negatives (see simcse-hf build-nli)"
            )
        if rows.batch_size * rows.processes == 1 and rows.num_sentences < 3:
            raise ValueError(
                "a batch of one text has no negatives, so its loss is 0: raise per_device_train_batch_size"
            )

    def forward(self, batch: EncodedBatch):
        text_ids = None
        if self.needs_text_ids:
            if "text_ids" not in batch.inputs:
                raise ValueError(
                    "mask_duplicates needs text_ids in the batch: add_text_ids=True for ContrastiveCollator"
                )
            text_ids = batch.inputs["text_ids"]
        return self.info_nce.of_columns(batch.vectors, gather=self.training, text_ids=text_ids)
