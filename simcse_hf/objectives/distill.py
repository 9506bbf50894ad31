"""Distillation: a student learns the similarities, the ranks or the vectors of frozen teachers."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.distributed import first_row, gather_rows
from .base import Objective, TrainingRows, as_full_precision
from .checks import check_options, require
from .encoder import EncodedBatch

LOSSES = ("similarities", "listnet", "listmle", "vectors")


class Distill(Objective):
    r"""Learn from the vectors of frozen teachers, which the batch holds as `teacher`.

    All columns of a row are texts of the batch. Let S be the cosines of the student's embeddings and T those of the
    teachers, over all texts of all processes. With several teachers, T is the weighted mean of their cosines. `loss`
    chooses what is learned:

    - `"similarities"`: the mean of (S_ij - T_ij)^2 over all i and j.
    - `"vectors"`: Jasper (Zhang et al. 2024, arXiv:2412.19048) without its sampled comparison of pairs of pairs:
      10 times the mean of 1 - cos(W s_i, t_i) plus 200 times the loss `"similarities"`. W is a linear map if
      `teacher_dim` is set, and the identity otherwise.
    - `"listnet"` and `"listmle"`: RankCSE (Liu et al. 2023, arXiv:2305.16726). With the anchors z_i of column 0, the
      positives z'_j of column 1 (the same sentences under another dropout mask, if rows are single sentences) and
      S_ij = cos(z_i, z'_j), the loss is `consistency_weight` times the Jensen-Shannon divergence of
      softmax_j(S_ij / temperature) and softmax_j(S_ji / temperature), plus the ranking loss. ListNet is the
      cross-entropy of softmax_j(S_ij / student_temperature) under softmax_j(T_ij / teacher_temperature). ListMLE is
      the negative log-likelihood of the teacher's order under the Plackett-Luce model with the scores S_ij /
      student_temperature. Both leave out j = i, and both are means over i. RankCSE adds InfoNCE: the objective
      `simcse+distill`.

    Args:
        dim (`int`): Embedding size.
        loss (`str`, *optional*, defaults to `"similarities"`): One of `LOSSES`.
        temperature (`float`, *optional*, defaults to `0.05`): Temperature of the consistency.
        student_temperature (`float`, *optional*, defaults to `0.05`): Temperature of the student's list.
        teacher_temperature (`float`, *optional*): Temperature of the teacher's list, for ListNet. Defaults to half of
            the student's.
        consistency_weight (`float`, *optional*, defaults to `1.0`): Weight of the consistency. With 0, a single
            sentence is encoded once.
        teacher_dim (`int`, *optional*): Size of the teachers' vectors together, for `loss="vectors"`, if it is not
            that of the student.

    Raises:
        ValueError: If an argument is not valid. The message names it.
    """

    summary = "distillation of the embeddings of a frozen teacher"
    papers = ("rankcse", "jasper")
    vectors = ("teacher",)

    def __init__(
        self,
        dim: int,
        loss: str = "similarities",
        temperature: float = 0.05,
        student_temperature: float = 0.05,
        teacher_temperature: float | None = None,
        consistency_weight: float = 1.0,
        teacher_dim: int | None = None,
    ) -> None:
        super().__init__(dim)
        require(loss in LOSSES, f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
        require(teacher_dim is None or loss == "vectors", "teacher_dim is for loss='vectors': leave it out")
        check_options("a number above 0", temperature=temperature, student_temperature=student_temperature)
        check_options("a number above 0", teacher_temperature=teacher_temperature)
        check_options("a number of 0 or more", consistency_weight=consistency_weight)
        check_options("an integer above 0", teacher_dim=teacher_dim)
        self.loss = loss
        self.ranks = loss in ("listnet", "listmle")
        self.teacher_dim = teacher_dim
        self.num_views = 2 if self.ranks and consistency_weight else 1
        self.temperature = temperature
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature or student_temperature / 2
        self.consistency_weight = consistency_weight
        self.projection = nn.Identity() if teacher_dim is None else nn.Linear(dim, teacher_dim)

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with relations, and batches of a single text.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If the rows have relations, or there is nothing to compare in a batch.
        """
        require(
            not rows.has_relations,
            "the training rows have relations, which objective 'distill' does not read: train it on single texts, "
            "pairs, or rows of sent0, sent1 and hard negatives",
        )
        require(
            rows.global_batch > 1 or (rows.num_sentences > 1 and not self.ranks),
            "a batch of one row holds no other texts to compare: raise per_device_train_batch_size to at least 2",
        )

    def forward(self, batch: EncodedBatch) -> torch.Tensor | dict[str, torch.Tensor]:
        """Compute the loss; see [`Objective.forward`].

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `torch.Tensor` or `dict[str, torch.Tensor]`: The loss, with names if it has several parts.

        Raises:
            ValueError: If the batch has no vectors of a teacher, or they do not have `teacher_dim` numbers.
        """
        if "teacher" not in batch.inputs:
            raise ValueError(
                "the batch has no vectors of a teacher, as the rows of an eval_dataset: name a teacher with --teacher "
                "(SimCSETrainingArguments(teacher=...)) for training, and evaluate on a dev set"
            )
        with torch.autocast(batch.embeddings.device.type, enabled=False):
            embeddings = as_full_precision(batch.embeddings)
            teacher = batch.inputs["teacher"].to(embeddings.dtype)
            if self.ranks:
                return self._ranking(embeddings, teacher)
            student, teacher = embeddings.flatten(0, 1), teacher.flatten(0, 1)
            differences = self._cosines(student) - self._cosines(teacher)
            if self.loss == "similarities":
                return differences.square().mean()
            projected = self.projection(student)
            require(
                projected.shape == teacher.shape,
                f"the teacher's vectors have {teacher.shape[1]} numbers and are compared with {projected.shape[1]}: "
                f"set objective_options teacher_dim={teacher.shape[1]}",
            )
            distances = 1 - F.cosine_similarity(projected, teacher, dim=-1)
            return {"vector_loss": 10 * distances.mean(), "similarity_loss": 200 * differences.square().mean()}

    def _cosines(self, texts: torch.Tensor, candidates: torch.Tensor | None = None) -> torch.Tensor:
        """Compare this process's texts with the candidates of all processes, by default the same texts."""
        texts = F.normalize(texts, dim=-1)
        candidates = texts if candidates is None else F.normalize(candidates, dim=-1)
        return texts @ gather_rows(candidates, self.training).T

    def _ranking(self, embeddings: torch.Tensor, teacher: torch.Tensor) -> dict[str, torch.Tensor]:
        second = min(1, embeddings.shape[1] - 1)  # rows of one sentence have one view without consistency
        anchors, positives = embeddings[:, 0], embeddings[:, second]
        cosines, wanted = self._cosines(anchors, positives), self._cosines(teacher[:, 0], teacher[:, second])
        losses = {}
        if self.consistency_weight:
            log_p = torch.log_softmax(cosines / self.temperature, dim=1)
            log_q = torch.log_softmax(self._cosines(positives, anchors) / self.temperature, dim=1)
            log_m = torch.logaddexp(log_p, log_q) - math.log(2)
            divergence = (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(1).mean() / 2
            losses["consistency"] = self.consistency_weight * divergence
        # Row 1 of process 1 with 4 rows each finds itself in column 5.
        rows, first = len(cosines), first_row(len(cosines), self.training)
        others = ~F.one_hot(torch.arange(first, first + rows, device=cosines.device), cosines.shape[1]).bool()
        scores, wanted = (x[others].view(rows, -1) for x in (cosines / self.student_temperature, wanted))
        if self.loss == "listnet":
            targets = torch.softmax(wanted / self.teacher_temperature, dim=1)
            ranking = -(targets * torch.log_softmax(scores, dim=1)).sum(1).mean()
        else:
            worst_first = scores.gather(1, wanted.argsort(dim=1, stable=True))
            ranking = (worst_first.logcumsumexp(1) - worst_first).sum(1).mean()
        return losses | {self.loss: ranking}
