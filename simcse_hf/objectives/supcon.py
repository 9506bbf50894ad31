"""Supervised contrastive learning: a premise against the hypotheses of the batch."""

import math

import torch
import torch.nn.functional as F

from ..ops.distributed import gather_rows, mean_over_processes, world
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import SIMILARITIES, as_full_precision
from .softmax import row_relations


class SupCon(Objective):
    r"""Supervised contrastive loss on premises and their hypotheses (Liao 2021, arXiv:2106.04791, Eq. 2).

    A premise x_i is an anchor. Its positives P_i are its entailed hypotheses; its negatives are its neutral and
    contradictory ones and all hypotheses of the other premises in the batch, those of other processes among them:

        l_i = -1 / |P_i| sum_{j in P_i} log ( e^{s(x_i, x_j)} / sum_k e^{s(x_i, x_k)} )

    where k runs over positives and negatives, which are all hypotheses of the batch. The loss is the mean of l_i over
    the premises with a positive. (The paper's published code means over entailed pairs instead, so that a premise
    counts once for each of its positives.)

    The paper's s is the plain dot product of the vectors over tau, with tau = 1: `similarity="dot", temperature=1.0`.
    Khosla et al. (2020, arXiv:2004.11362, Eq. 2) and SimCSE normalise the vectors: `"cosine"`.

    Each positive's term is softplus(logsumexp over the others of (s_other - s_positive)), as in [`InfoNCE`]. Of the
    (positives, hypotheses) logits of a process there is one copy more than a plain log-softmax would need.

    Args:
        dim: of the sentence vectors.
        temperature: tau, above 0.
        similarity: `"cosine"` or `"dot"`.

    Raises:
        ValueError: a temperature that is not above 0, an unknown similarity.
    """

    summary = (
        "supervised contrastive learning: a premise's entailed hypotheses against the other hypotheses of the batch"
    )
    papers = ("liao",)
    rows = "nli"

    def __init__(self, dim: int, temperature: float = 0.05, similarity: str = "cosine"):
        super().__init__(dim)
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
        self.temperature = temperature
        self.similarity = similarity

    def check(self, rows: TrainingRows) -> None:
        """As [`Objective.check`].

        Raises:
            ValueError: rows without `relations` or with relations that are not valid; a premise without an entailed
                hypothesis; a batch that holds one premise with one hypothesis.
        """
        single = rows.batch_size * rows.processes == 1
        for number, relations in enumerate(row_relations(rows), 1):
            if 0 not in relations:
                raise ValueError(
                    f"training row {number}: the premise has no entailed hypothesis, so no positive (relations "
                    f"{relations}). Leave such premises out, as build_nli_groups does unless sampling is 'pairs'"
                )
            if single and len(relations) == 1:
                raise ValueError(
                    f"training row {number}: a batch of one premise with one hypothesis has nothing to contrast, so "
                    "its loss is 0: raise per_device_train_batch_size"
                )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """The loss; 0, with a gradient of 0, where the batch holds a single hypothesis or no premise has a positive.

        In evaluation mode the batch is this process's own.
        """
        anchors, hypotheses, relations = batch.vectors[:, 0], batch.vectors[:, 1:], batch.inputs["relations"]
        first = 0
        if self.training:
            first = world()[0] * len(anchors)
            hypotheses, relations = _gather(hypotheses, relations)
        present = relations >= 0
        with torch.autocast(anchors.device.type, enabled=False):
            candidates = self._prepare(hypotheses[present])
            logits = self._prepare(anchors) @ candidates.T / self.temperature
            if logits.shape[1] < 2:
                return 0.0 * logits.sum()
            rows = torch.arange(len(relations), device=anchors.device)
            owners = rows[:, None].expand_as(relations)[present]
            own = owners == first + rows[: len(anchors), None]
            anchor, positive = (own & (relations[present] == 0)).nonzero(as_tuple=True)
            others = logits[anchor].scatter(1, positive[:, None], float("-inf"))
            terms = F.softplus(torch.logsumexp(others - logits[anchor, positive][:, None], dim=1))
            positives = torch.bincount(anchor, minlength=len(anchors))
            total = (terms / positives[anchor]).sum()
        return mean_over_processes(total, (positives > 0).sum(), self.training)

    def _prepare(self, vectors: torch.Tensor) -> torch.Tensor:
        vectors = as_full_precision(vectors)
        return F.normalize(vectors, dim=-1) if self.similarity == "cosine" else vectors


def _gather(hypotheses: torch.Tensor, relations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all processes, padded to the most hypotheses that a row has in any of them."""
    width = relations.shape[1]
    more = int(gather_rows(torch.tensor([width], device=relations.device)).max()) - width
    return gather_rows(F.pad(hypotheses, (0, 0, 0, more))), gather_rows(F.pad(relations, (0, more), value=-100))
