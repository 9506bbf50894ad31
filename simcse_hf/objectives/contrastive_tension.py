"""Contrastive Tension: two independent encoders agree on equal sentences only."""

import torch
import torch.nn.functional as F

from ..ops.distributed import gather_rows, world
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision


class ContrastiveTension(Objective):
    r"""Contrastive Tension (Carlsson et al. 2021, "Semantic Re-tuning with Contrastive Tension", ICLR 2021).

    Column 0 of a row comes from one encoder, column 1 from another, which began as its copy. The dot product of the
    two vectors f_1(s_i) . f_2(s_j) is the logit of "the same sentence", under binary cross-entropy:

        mean over i of ( softplus(-f_1(s_i) . f_2(s_i)) + sum_{k=1}^{K} softplus(f_1(s_i) . f_2(s_{i+k})) ) / (K + 1)

    The paper draws K further sentences for each positive; here they are the K rows that follow in the shuffled global
    batch, cyclically, so every sentence serves as a positive once and as a negative K times and none is encoded for
    its sake alone. The ratio of positives and negatives is the paper's, as is the mean over all pairs.

    A batch of K rows or fewer, as the last of an epoch or of an evaluation may be, takes the other rows that it has.

    Args:
        dim: of the sentence vectors.
        negatives_per_positive: K, 1 or more; 7 in the paper.

    Raises:
        ValueError: K is not an integer above 0.
    """

    summary = "Contrastive Tension: two encoders whose embeddings agree on equal sentences only"
    papers = ("contrastive_tension",)
    encoders = 2

    def __init__(self, dim: int, negatives_per_positive: int = 7):
        super().__init__(dim)
        if (
            isinstance(negatives_per_positive, bool)
            or not isinstance(negatives_per_positive, int)
            or negatives_per_positive < 1
        ):
            raise ValueError(f"negatives_per_positive must be an integer above 0, got {negatives_per_positive!r}")
        self.negatives_per_positive = negatives_per_positive

    def check(self, rows: TrainingRows) -> None:
        if rows.num_sentences > 2 or rows.has_relations:
            what = "relations" if rows.has_relations else f"{rows.num_sentences} sentences"
            raise ValueError(
                f"the training data has rows of {what}, and contrastive_tension takes its negatives from other rows: "
                "give single sentences or pairs"
            )
        batch = rows.batch_size * rows.processes
        if batch <= self.negatives_per_positive:
            raise ValueError(
                f"a batch of {batch} rows has no {self.negatives_per_positive} other sentences for each: raise "
                f"per_device_train_batch_size, or set negatives_per_positive to at most {batch - 1}"
            )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        first, second = as_full_precision(batch.vectors[:, 0]), as_full_precision(batch.vectors[:, 1])
        own = torch.arange(len(first), device=first.device)
        if self.training:
            second = gather_rows(second)
            own = own + world()[0] * len(first)
        negatives = min(self.negatives_per_positive, len(second) - 1)
        columns = (own[:, None] + torch.arange(negatives + 1, device=own.device)) % len(second)
        with torch.autocast(first.device.type, enabled=False):
            logits = (first @ second.T).gather(1, columns)
            same = torch.zeros_like(logits)
            same[:, 0] = 1
            return F.binary_cross_entropy_with_logits(logits, same)
