"""CoSENT: the similarities of scored pairs are put into the order of their scores."""

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from ..ops.distributed import gather_rows
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision


class CoSENT(Objective):
    r"""Ranking loss of scored pairs (Su 2022, "CoSENT", https://kexue.fm/archives/8847).

    Let c_i be the cosine of the two sentences of pair i, and y_i its score. Every two pairs of the global batch with
    different scores are compared:

        log ( 1 + sum over all i, j with y_i > y_j of e^{(c_j - c_i) / temperature} )

    Only the order of the scores matters, so they may have any scale.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*, defaults to `0.05`): Above 0. The author multiplies by 20, which is 0.05.

    Raises:
        ValueError: If the temperature is not above 0.
    """

    summary = "a ranking loss (CoSENT) that puts the cosines of scored pairs into the order of their scores"
    papers = ("cosent",)
    rows = "scored_pairs"
    #: The author's cosent.py for Chinese STS-B.
    defaults: ClassVar[dict[str, Any]] = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "max_seq_length": 64,
        "per_device_train_batch_size": 32,
        "learning_rate": 2e-5,
        "lr_scheduler_type": "constant",
        "num_train_epochs": 5,
    }

    def __init__(self, dim: int, temperature: float = 0.05) -> None:
        super().__init__(dim)
        self.temperature = check_above_zero("temperature", temperature)

    def check(self, rows: TrainingRows) -> None:
        """Check the scores of the training rows; see [`check_scored_pairs`]."""
        check_scored_pairs(rows, self.name)

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute the loss of the global batch, as a scalar; see [`Objective.forward`]."""
        with torch.autocast(batch.embeddings.device.type, enabled=False):
            embeddings = as_full_precision(batch.embeddings)
            cosines, scores = F.cosine_similarity(embeddings[:, 0], embeddings[:, 1]), batch.inputs["scores"]
            if self.training:
                cosines, scores = gather_rows(cosines), gather_rows(scores)
            return ranking_loss(cosines / self.temperature, scores)


def ranking_loss(similarities: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Compute log(1 + sum of e^(s_j - s_i)) over all i and j where pair i has a higher score than pair j.

    Every process computes the loss of all pairs. The mean over the processes, which DistributedDataParallel takes, is
    therefore that of a single process.

    Args:
        similarities (`torch.Tensor`): Similarities s of shape `(n,)`, divided by a temperature.
        scores (`torch.Tensor`): Scores of shape `(n,)`.

    Returns:
        `torch.Tensor`: A scalar; 0, with a gradient of 0, if all scores are equal.
    """
    differences = similarities[None, :] - similarities[:, None]
    is_ordered = scores[:, None] > scores[None, :]
    # What does not count gets the smallest number instead of -inf, whose gradient would be NaN if nothing counts.
    counted = differences.masked_fill(~is_ordered, torch.finfo(differences.dtype).min)
    return F.softplus(torch.logsumexp(counted.flatten(), dim=0))


def check_scored_pairs(rows: TrainingRows, name: str) -> torch.Tensor:
    """Check that the training rows are pairs with scores that can be ranked.

    Args:
        rows (`TrainingRows`): The training data.
        name (`str`): The name of the objective, for messages.

    Returns:
        `torch.Tensor`: The scores.

    Raises:
        ValueError: If rows do not hold two sentences, the column of scores is missing, a score is not a finite number,
            all scores are equal, or a batch holds a single pair.
    """
    if rows.num_sentences != 2:
        raise ValueError(
            f"objective {name!r} learns from pairs with a score, but a training row holds {rows.num_sentences} "
            "sentence(s): give the columns sentence1, sentence2 and score"
        )
    if rows.dataset is None or "score" not in rows.dataset.column_names:
        raise ValueError(
            f"objective {name!r} needs a score for each pair, but the training rows have no column 'score': add it to "
            "the file or the dataset, beside sentence1 and sentence2"
        )
    scores = torch.from_numpy(np.array(rows.dataset.with_format(None)["score"][:], dtype=np.float64))
    invalid = (~torch.isfinite(scores)).nonzero()
    if len(invalid):
        row = int(invalid[0])
        raise ValueError(
            f"training row {row + 1}: the score {scores[row].item()} is not a finite number: correct or remove the row"
        )
    if (scores == scores[0]).all():
        raise ValueError(
            f"all {len(scores)} training pairs have the score {scores[0].item():g}, so objective {name!r} has no "
            "order to learn: give pairs with different scores"
        )
    if rows.batch_size * rows.processes < 2:
        raise ValueError(
            f"objective {name!r} compares the pairs of a batch, and a batch of 1 has none to compare: raise "
            "per_device_train_batch_size to at least 2"
        )
    return scores


def check_above_zero(name: str, value: float) -> float:
    """Return `value`, or raise a ValueError with the `name` of the option if it is not above 0."""
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")
    return value
