"""Contrastive Tension: two independent encoders learn to agree on identical sentences only."""

import torch
import torch.nn.functional as F

from ..runtime.distributed import gather_rows, own_rows
from ..runtime.errors import SettingError, check_values
from .base import EncodedBatch, Objective, TrainingRows, as_full_precision, no_autocast


class ContrastiveTension(Objective):
    r"""Contrastive Tension (Carlsson et al. 2021, "Semantic Re-tuning with Contrastive Tension", ICLR 2021).

    One encoder embeds column 0 of a row. Another, which started as its copy, embeds column 1. The dot product of two
    embeddings f_1(s_i) . f_2(s_j) is the logit of "these are the same sentence", under binary cross-entropy:

        mean over i of ( softplus(-f_1(s_i) . f_2(s_i)) + sum_{k=1}^{K} softplus(f_1(s_i) . f_2(s_{i+k})) ) / (K + 1)

    The paper draws K further sentences for each positive. Here the negatives of a row are the K rows that follow it in
    the shuffled global batch, so no sentence is encoded only to serve as a negative. With 4 rows and K = 2:

        row        0     1     2     3
        negatives  1, 2  2, 3  3, 0  0, 1

    The ratio of positives to negatives is the paper's, as is the mean over all pairs. A batch of K rows or fewer, such
    as the last one of an epoch or of an evaluation, uses all the other rows that it has.

    Args:
        dim (`int`): Embedding size.
        negatives_per_positive (`int`, *optional*, defaults to `7`): K, 1 or more. The paper uses 7.

    Raises:
        ValueError: If K is not an integer above 0.
    """

    name = "contrastive_tension"
    summary = "Contrastive Tension: two encoders whose embeddings agree on identical sentences only"
    papers = ("contrastive_tension",)
    # The authors' code: mean pooling, no dropout, RMSProp from 1e-5 down to 2e-6, batches of 16 pairs, 75 tokens.
    # Their steps in the learning rate become a straight line, and their 16 pairs (2 positives) 16 rows.
    defaults = {
        "pooler_type": "avg",
        "mlp_only_train": False,
        "dropout": 0.0,
        "max_seq_length": 75,
        "per_device_train_batch_size": 16,
        "optim": "rmsprop",
        "learning_rate": 1e-5,
        "lr_scheduler_type": "polynomial",
        "lr_scheduler_kwargs": {"lr_end": 2e-6, "power": 1.0},
    }
    encoders = 2

    def __init__(self, dim: int, negatives_per_positive: int = 7):
        super().__init__(dim)
        check_values("an integer above 0", negatives_per_positive=negatives_per_positive)
        self.negatives_per_positive = negatives_per_positive

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with hard negatives, and batches with fewer than K other rows."""
        advice = "objective 'contrastive_tension' takes its negatives from other rows: give single sentences or pairs"
        rows.check_width(2, advice)
        rows.warn_of_equal_texts("set batch_sampler to no_duplicates")
        batch = rows.global_batch
        if batch <= self.negatives_per_positive:
            raise SettingError(
                f"objective 'contrastive_tension' needs {self.negatives_per_positive} other rows in a batch, and a "
                f"batch of {batch} has {batch - 1}: raise per_device_train_batch_size, or lower "
                "negatives_per_positive"
            )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute this process's share of the loss, as a scalar."""
        first, second = as_full_precision(batch.embeddings[:, :2]).unbind(1)
        second = gather_rows(second, self.training)
        negatives = min(self.negatives_per_positive, len(second) - 1)
        positives = own_rows(first, self.training)[:, None]
        steps = torch.arange(negatives + 1, device=first.device)
        columns = (positives + steps) % len(second)
        with no_autocast(first):
            logits = (first @ second.T).gather(1, columns)
            logits[:, 0].neg_()  # of the pair of the same sentence
            return F.softplus(logits).mean()
