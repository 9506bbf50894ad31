"""CoSENT and AnglE: the similarities of scored pairs are put into the order of their scores."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..runtime.distributed import gather_rows, mean_over_processes
from ..runtime.errors import DataError, SettingError, check_values
from .base import EncodedBatch, Loss, Objective, TrainingRows, as_full_precision, no_autocast
from .info_nce import InfoNCE


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

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, build_objective
        >>> pairs = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])  # their cosines are 1 and 0
        >>> for scores in ([5.0, 1.0], [1.0, 5.0]):
        ...     loss = build_objective("cosent", 2)(EncodedBatch(pairs, {"scores": torch.tensor(scores)}))
        ...     print(round(loss.item(), 4))
        0.0
        20.0
    """

    name = "cosent"
    summary = "a ranking loss (CoSENT) that puts the cosines of scored pairs into the order of their scores"
    papers: tuple[str, ...] = ("cosent",)
    rows = "scored_pairs"
    similarity = "cosine"
    # The author's cosent.py for Chinese STS-B.
    defaults = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "max_seq_length": 64,
        "per_device_train_batch_size": 32,
        "learning_rate": 2e-5,
        "lr_scheduler_type": "constant",
        "num_train_epochs": 5,
    }

    def __init__(self, dim: int, temperature: float = 0.05):
        super().__init__(dim)
        check_values("a number above 0", temperature=temperature)
        self.temperature = temperature

    def check(self, rows: TrainingRows) -> None:
        """Check that the training rows are pairs with scores that can be ranked.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            DataError: If rows do not hold two sentences, the column of scores is missing, a score is not a finite
                number, all scores are equal, or a batch holds a single pair.
        """
        if rows.num_sentences != 2 or "score" not in rows.columns:
            found = f"a training row holds {rows.num_sentences} sentence(s) and the columns {', '.join(rows.columns)}"
            raise DataError(
                f"objective {self.name!r} learns from pairs with a score, but {found}: give the columns sentence1, "
                "sentence2 and score"
            )
        scores = np.array(rows.column("score"), dtype=np.float64)
        wrong = np.flatnonzero(~np.isfinite(scores))
        if len(wrong):
            row = wrong[0]
            raise DataError(
                f"training row {row + 1}: the score {scores[row]:g} is not a finite number: remove the row"
            )
        if (scores == scores[0]).all():
            found = f"all {len(scores)} training pairs have the score {scores[0]:g}"
            raise DataError(f"{found}: objective {self.name!r} needs pairs with different scores")
        rows.check_batch(f"objective {self.name!r} compares pairs, and a batch of 1 has none to compare")

    def forward(self, batch: EncodedBatch) -> Loss:
        """Compute the loss of the global batch, as a scalar; see [`Objective.forward`]."""
        with no_autocast(batch.embeddings):
            embeddings = as_full_precision(batch.embeddings)
            own_cosines = F.cosine_similarity(embeddings[:, 0], embeddings[:, 1])
            cosines = gather_rows(own_cosines, self.training)
            scores = gather_rows(batch.inputs["scores"], self.training)
            return ranking_loss(cosines / self.temperature, scores)


def ranking_loss(similarities: Tensor, scores: Tensor) -> Tensor:
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
    smallest = torch.finfo(differences.dtype).min
    counted = differences.masked_fill(~is_ordered, smallest)
    return F.softplus(torch.logsumexp(counted.flatten(), dim=0))


class AnglE(CoSENT):
    r"""AnglE (Li and Li 2023, arXiv:2309.12871): the weighted sum of three losses of scored pairs.

    - `cosine_loss`, weight w1: CoSENT, see [`CoSENT`].
    - `in_batch_loss`, weight w2: each sentence of a positive pair has to find the other one among all sentences of the
      global batch, by the cosine divided by the temperature. A pair is positive if its score is at least
      `positive_score`. Sentences with the text of either of the two are left out, and those that are in a positive
      pair with either of them. The loss is the mean over the sentences of positive pairs.
    - `angle_loss`, weight w3: CoSENT's formula with the similarity of angles and a temperature of its own. Unlike the
      cosine, it is not flat where two embeddings nearly agree.

    For the similarity of angles, the first half of a normalized embedding holds real parts and the second half
    imaginary parts. With z_k = a_k + b_k i from the first embedding and w_k = c_k + d_k i from the second, it is the
    absolute sum of the real and imaginary parts of z_k times the conjugate of w_k:

        | sum_k (a_k c_k + b_k d_k) + (b_k c_k - a_k d_k) |

    The first term is the cosine, the second the signed difference of the angles. The authors' code divides z by w
    instead, and by the ratio of their norms, which gives the same number.

    Args:
        dim (`int`): Embedding size, an even number.
        temperature (`float`, *optional*, defaults to `0.05`): Temperature of the cosines, above 0.
        cosine_weight (`float`, *optional*, defaults to `1.0`): w1, 0 or more.
        in_batch_weight (`float`, *optional*, defaults to `1.0`): w2, 0 or more.
        angle_weight (`float`, *optional*, defaults to `1.0`): w3, 0 or more.
        angle_temperature (`float`, *optional*, defaults to `1.0`): Temperature of the angles, above 0.
        positive_score (`float`, *optional*, defaults to `1.0`): The lowest score of a positive pair. The authors' code
            has 1, for labels of 0 and 1 as for STS-B's scores from 0 to 5.

    Raises:
        ValueError: If a temperature is not above 0, a weight is negative or not finite, or the size is odd.
    """

    name = "angle"
    summary = "a ranking loss (AnglE) of scored pairs by their cosines and by their angles in complex space"
    papers = ("angle", "cosent")
    # The defaults of the authors' train_angle.py, which trains on STS-B.
    defaults = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "max_seq_length": 512,
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-5,
        "warmup_steps": 100,
        "num_train_epochs": 20,
    }
    needs_text_ids = True

    def __init__(
        self,
        dim: int,
        temperature: float = 0.05,
        cosine_weight: float = 1.0,
        in_batch_weight: float = 1.0,
        angle_weight: float = 1.0,
        angle_temperature: float = 1.0,
        positive_score: float = 1.0,
    ):
        super().__init__(dim, temperature)
        if dim % 2:
            raise SettingError(
                f"objective 'angle' halves an embedding, so its size must be even, got {dim}: choose another"
            )
        check_values(
            "a number of 0 or more",
            cosine_weight=cosine_weight,
            in_batch_weight=in_batch_weight,
            angle_weight=angle_weight,
        )
        check_values("a number above 0", angle_temperature=angle_temperature)
        check_values("a finite number", positive_score=positive_score)
        self.info_nce = InfoNCE(temperature, symmetric=True)
        self.cosine_weight = cosine_weight
        self.in_batch_weight = in_batch_weight
        self.angle_weight = angle_weight
        self.angle_temperature = angle_temperature
        self.positive_score = positive_score

    def check(self, rows: TrainingRows) -> None:
        """Check the scores of the training rows.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            SettingError: As in [`CoSENT`], or if no pair is positive.
        """
        super().check(rows)
        highest = max(rows.column("score"))
        if self.in_batch_weight and highest < self.positive_score:
            raise SettingError(
                f"no pair has a score of positive_score = {self.positive_score:g} or more (the highest is "
                f"{highest:g}): lower positive_score, or set in_batch_weight to 0"
            )

    def forward(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Compute the three weighted losses of the global batch; see [`Objective.forward`]."""
        with no_autocast(batch.embeddings):
            own = as_full_precision(batch.embeddings, normalize=True)
            first, second = gather_rows(own, self.training).unbind(1)
            scores = gather_rows(batch.inputs["scores"], self.training)
            cosines = (first * second).sum(-1)
            a, b = first.chunk(2, dim=-1)
            c, d = second.chunk(2, dim=-1)
            angles = (cosines + (b * c - a * d).sum(-1)).abs()
            is_positive = batch.inputs["scores"] >= self.positive_score
            losses = self.info_nce(
                own, gather=self.training, text_ids=batch.text_ids, are_pairs=is_positive, reduction="none"
            )
            # All of them are compared: to select those of positive pairs, the host would wait for their number.
            is_positive = is_positive.repeat(2)
            total = losses.masked_fill(~is_positive, 0.0).sum()
            in_batch = mean_over_processes(total, is_positive.sum(), self.training)
            return {
                "cosine_loss": self.cosine_weight * ranking_loss(cosines / self.temperature, scores),
                "in_batch_loss": self.in_batch_weight * in_batch,
                "angle_loss": self.angle_weight * ranking_loss(angles / self.angle_temperature, scores),
            }
