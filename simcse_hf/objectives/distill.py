"""Distillation: a student learns the similarities, the ranks or the vectors of frozen teachers."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runtime.distributed import gather_rows, mean_over_processes, missing_columns, own_rows
from ..runtime.errors import SettingError, check_values
from .base import ABSENT, EncodedBatch, Loss, Objective, TrainedModel, TrainingRows, as_full_precision, no_autocast
from .info_nce import SIMILARITIES, check_similarity

LOSSES = ("similarities", "listnet", "listmle", "vectors", "kl", "margin_mse")


class Distill(Objective):
    r"""Learn from the vectors of frozen teachers, which the batch holds as `teacher`.

    All columns of a row are texts of the batch. Let S be the cosines of the student's embeddings and T those of the
    teachers, over all texts of all processes. With several teachers, T is the weighted mean of their cosines. `loss`
    chooses what is learned:

    - `"similarities"`: the mean of (S_ij - T_ij)^2 over all i and j.
    - `"vectors"`: Jasper (Zhang et al. 2024, arXiv:2412.19048) without its sampled comparison of pairs of pairs:
      10 times the mean of 1 - cos(W s_i, t_i) plus 200 times the loss `"similarities"`. W is a linear map where the
      sizes differ. It is kept as the last dense layer of the model, whose s_i are then W s_i in both terms.
    - `"listnet"` and `"listmle"`: RankCSE (Liu et al. 2023, arXiv:2305.16726). With the anchors z_i of column 0, the
      positives z'_j of column 1 (the same sentences under another dropout mask, if rows are single sentences) and
      S_ij = cos(z_i, z'_j), the loss is `consistency_weight` times the Jensen-Shannon divergence of
      softmax_j(S_ij / temperature) and softmax_j(S_ji / temperature), plus the ranking loss. ListNet is the
      cross-entropy of softmax_j(S_ij / student_temperature) under softmax_j(T_ij / teacher_temperature). ListMLE is
      the negative log-likelihood of the teacher's order under the Plackett-Luce model with the scores S_ij /
      student_temperature. Both leave out j = i, and both are means over i. RankCSE adds InfoNCE: the objective
      `simcse+distill`.

    - `"kl"` and `"margin_mse"`: sentence-transformers' `DistillKLDivLoss` and `MarginMSELoss`. The rows hold
      scores y of a query's own candidates j, in place of vectors, and s_j are the similarities. The first is
      `student_temperature`^2 times the Kullback-Leibler divergence of softmax(s / `student_temperature`) from
      softmax(y / `teacher_temperature`), a mean over rows. The second is the mean of ((s_1 - s_j) - (y_1 - y_j))^2
      over all negatives j. `simcse+distill:400` with `kl` at 0.05 is the loss of FlagEmbedding, without that square.

    Args:
        dim (`int`): Embedding size.
        loss (`str`, *optional*, defaults to `"similarities"`): similarities, listnet, listmle, vectors, kl or
            margin_mse.
        temperature (`float`, *optional*): Temperature of the consistency, and of the student's list of `kl`. Defaults
            to 0.05, and with the dot product to 1.
        student_temperature (`float`, *optional*): Temperature of the student's list. Defaults to `temperature` for
            `kl`, and to 0.05 otherwise.
        teacher_temperature (`float`, *optional*): Temperature of the teacher's list. Defaults to half of the student's
            for ListNet, and for `kl` to 1 or, with the dot product, to `temperature`.
        consistency_weight (`float`, *optional*, defaults to `1.0`): Weight of the consistency. With 0, a single
            sentence is encoded once.
        keep_projection (`bool`, *optional*, defaults to `True`): With `loss="vectors"`, give the model W as its last
            layer, so that its vectors are comparable with the teacher's. Otherwise W is dropped after training.
        similarity_fct (`str`, *optional*, defaults to `"cosine"`): What `kl` and `margin_mse` compare texts by: cosine
            or dot.

    Raises:
        ValueError: If an argument is not valid. The message names it.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, build_objective
        >>> student = torch.randn(4, 1, 64)  # four texts
        >>> batch = EncodedBatch(student, {"teacher": student / student.norm(dim=-1, keepdim=True)})
        >>> round(build_objective("distill", 64)(batch).item(), 4)  # the student has the teacher's similarities
        0.0
    """

    name = "distill"
    summary = "distillation of the embeddings of a frozen teacher"
    papers = ("rankcse", "jasper")
    vectors: tuple[str, ...] = ("teacher",)
    similarity = "cosine"

    def __init__(
        self,
        dim: int,
        loss: str = "similarities",
        temperature: float | None = None,
        student_temperature: float | None = None,
        teacher_temperature: float | None = None,
        consistency_weight: float = 1.0,
        keep_projection: bool = True,
        similarity_fct: str = "cosine",
    ):
        super().__init__(dim)
        check_values(LOSSES, loss=loss)
        check_values(
            "a number above 0",
            temperature=temperature,
            student_temperature=student_temperature,
            teacher_temperature=teacher_temperature,
        )
        check_values("a number of 0 or more", consistency_weight=consistency_weight)
        check_values("true or false", keep_projection=keep_projection)
        check_values(SIMILARITIES, similarity_fct=similarity_fct)
        # A model is saved as one that is compared by the cosine, whatever compares texts in training.
        self.normalizes = similarity_fct == "cosine"
        _, self.temperature = check_similarity(similarity_fct, temperature)
        self.loss = loss
        self.student_temperature = student_temperature or 0.05
        self.teacher_temperature = teacher_temperature or self.student_temperature / 2
        if loss in ("kl", "margin_mse"):
            self.rows = "scored_lists"
            self.vectors = ()
            self.student_temperature = student_temperature or self.temperature
            self.teacher_temperature = teacher_temperature or (self.temperature if similarity_fct == "dot" else 1.0)
        elif similarity_fct != "cosine":
            raise SettingError("similarity_fct is for loss='kl' and 'margin_mse': leave it out")
        self.consistency_weight = consistency_weight
        self.ranks = loss in ("listnet", "listmle")
        self.num_views = 2 if self.ranks and consistency_weight else 1
        self.projection: nn.Module = nn.Identity()
        self.teacher_dim: int | None = None
        self.enters_space = loss == "vectors" and keep_projection

    def attach(self, model: TrainedModel) -> None:
        """Learn the size of the teacher's vectors, and draw the map to it that is not kept in the model.

        Args:
            model (`TrainedModel`): The model.
        """
        self.teacher_dim = model.teacher_dim
        if self.loss == "vectors" and not self.enters_space and self.teacher_dim not in (None, self.dim):
            self.projection = nn.Linear(self.dim, self.teacher_dim)

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with other relations than those of a positive and hard negatives, and batches of a single text.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            SettingError: If the rows have other relations, or there is nothing to compare in a batch.
        """
        rows.check_relations(self.name)
        if self.rows == "scored_lists":
            if "score" not in rows.columns:
                raise SettingError(
                    f"loss={self.loss!r} reads a score of each candidate: give pos_scores and neg_scores"
                )
            return
        if rows.num_sentences == 1 or self.ranks:
            rows.check_batch("a batch of one row holds no other texts to compare")

    def forward(self, batch: EncodedBatch) -> Loss:
        """Compute the loss; see [`Objective.forward`].

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `torch.Tensor` or `dict[str, torch.Tensor]`: The loss, with names if it has several parts.

        Raises:
            SettingError: If the batch has no vectors of a teacher.
        """
        if self.rows == "scored_lists":
            return self._from_scores(as_full_precision(batch.embeddings, self.normalizes), batch.inputs)
        if "teacher" not in batch.inputs:
            raise SettingError("the batch has no vectors of a teacher: name one in the arguments (--teacher)")
        embeddings = as_full_precision(batch.embeddings)
        teacher = batch.inputs["teacher"].to(embeddings.dtype)
        if self.enters_space and self.teacher_dim:  # fewer dimensions of a Matryoshka learn those of the teacher
            teacher = teacher[..., : self.dim]
        with no_autocast(embeddings):
            if self.ranks:
                return self._ranking(embeddings, teacher)
            present = embeddings.new_ones(embeddings.shape[:2])
            if "relations" in batch.inputs:
                present[:, 1:] = batch.inputs["relations"] != ABSENT
            missing = missing_columns(present, self.training)
            all_present = gather_rows(present, self.training, missing).flatten()
            wanted = self._cosines(teacher, teacher, missing)
            errors = (self._cosines(embeddings, embeddings, missing) - wanted).square()
            present = present.flatten()
            pairs = present[:, None] * all_present
            similarities = mean_over_processes((errors * pairs).sum(), pairs.sum(), self.training)
            if self.loss == "similarities":
                return similarities
            teacher = teacher.flatten(0, 1)
            projected = self.projection(embeddings.flatten(0, 1))
            distances = 1 - F.cosine_similarity(projected, teacher, dim=-1)
            mean = mean_over_processes((distances * present).sum(), present.sum(), self.training)
            return {"vector_loss": 10 * mean, "similarity_loss": 200 * similarities}

    def _cosines(self, texts: Tensor, candidates: Tensor, missing: int = 0) -> Tensor:
        """Compare texts of this process with candidates of all processes, whose rows lack some columns here."""
        candidates = gather_rows(F.normalize(candidates, dim=-1), self.training, missing)
        return F.normalize(texts, dim=-1).flatten(0, -2) @ candidates.flatten(0, -2).T

    def _from_scores(self, embeddings: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compare the similarities of queries and their own candidates with the scores of these."""
        present = inputs["relations"] != ABSENT
        with no_autocast(embeddings):
            found = (embeddings[:, :1] * embeddings[:, 1:]).sum(-1)
        wanted = inputs["scores"].to(found.dtype)
        if self.loss == "margin_mse":
            errors = ((found[:, :1] - found) - (wanted[:, :1] - wanted)).square()
            negatives = present[:, 1:].to(found.dtype)
            return mean_over_processes((errors[:, 1:] * negatives).sum(), negatives.sum(), self.training)
        lowest = torch.finfo(found.dtype).min
        logits = (found / self.student_temperature).masked_fill(~present, lowest)
        targets = torch.softmax((wanted / self.teacher_temperature).masked_fill(~present, lowest), dim=1)
        terms = F.kl_div(logits.log_softmax(1), targets, reduction="none").masked_fill(~present, 0.0)
        rows = found.new_tensor(len(found))
        return self.student_temperature**2 * mean_over_processes(terms.sum(), rows, self.training)

    def _ranking(self, embeddings: Tensor, teacher: Tensor) -> dict[str, Tensor]:
        """Compute the ranking loss and, if enabled, the consistency term."""
        anchors = embeddings[:, 0]
        positives = embeddings[:, :2][:, -1]  # a row of one sentence is its own positive
        cosines = self._cosines(anchors, positives)
        teacher_positives = teacher[:, :2][:, -1]
        wanted = self._cosines(teacher[:, 0], teacher_positives)
        losses = {}
        if self.consistency_weight:
            back = self._cosines(positives, anchors)
            both = [torch.log_softmax(each / self.temperature, dim=1) for each in (cosines, back)]
            mean = torch.logaddexp(*both) - math.log(2)
            divergences = [F.kl_div(mean, each, reduction="batchmean", log_target=True) for each in both]
            losses["consistency"] = self.consistency_weight * torch.stack(divergences).mean()
        # Row 1 of process 1 with 4 rows each finds itself in column 5.
        itself = own_rows(cosines, self.training)
        others = ~F.one_hot(itself, cosines.shape[1]).bool()
        scores = cosines[others].view(len(cosines), -1) / self.student_temperature
        wanted = wanted[others].view(len(cosines), -1)
        if self.loss == "listnet":
            targets = torch.softmax(wanted / self.teacher_temperature, dim=1)
            # The cross-entropy; torch's own is NaN for a row that is alone in its batch.
            losses["listnet"] = -(targets * torch.log_softmax(scores, dim=1)).sum(1).mean()
        else:
            order = wanted.argsort(dim=1, stable=True)
            worst_first = scores.gather(1, order)
            differences = worst_first.logcumsumexp(1) - worst_first
            losses["listmle"] = differences.sum(1).mean()
        return losses
