"""Supervised contrastive learning: a premise against the hypotheses of the batch."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from transformers.utils import logging

from ..ops.distributed import mean_over_processes
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision, resolve_temperature
from .nli_batch import ENTAILMENT, check_limit, premise_candidates, row_relations
from .softmax import LIAO_DEFAULTS

logger = logging.get_logger(__name__)

#: Under the dot product the default temperature is 1, the paper's.
SUPCON_DEFAULTS = {**LIAO_DEFAULTS, "similarity": "dot"}


class SupCon(Objective):
    r"""Supervised contrastive loss of premises and their hypotheses (Liao 2021, arXiv:2106.04791, Eq. 2).

    Each premise x_i of the batch is one anchor. Its positives P_i are its entailed hypotheses. Its negatives N_i are
    its neutral and contradictory hypotheses and all hypotheses of the other premises, also those of other processes:

        l_i = -1 / |P_i| sum_{j in P_i} log ( e^{s(x_i, x_j)} / sum_{k in P_i and N_i} e^{s(x_i, x_k)} )

    The loss is the mean of l_i over the premises with a positive. (The paper's code averages over entailed pairs, so
    that a premise counts once for each of its positives.) Rows of the batch with the same premise belong together, so
    the rows may be single pairs, as in the paper, or whole premises (see `build_nli_groups`).

    The models of Table 2 limit P_i and N_i: "3p3n" is `max_positives=3, max_negatives=3`, "3palln" is
    `max_positives=3`, and "allpalln" has no limit. The negatives are drawn from all those in the batch (section 4.4),
    anew in every step. In evaluation mode there is no limit.

    The paper's s is the plain dot product (`similarity="dot"`) divided by tau = 1. Khosla et al. (2020,
    arXiv:2004.11362, Eq. 2) and SimCSE normalize the embeddings (`"cosine"`).

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*): tau, above 0. Defaults to 1 for the dot product and to 0.05 for the cosine.
        similarity (`str`, *optional*, defaults to `"dot"`): `"dot"` or `"cosine"`. A model passes its own setting.
        max_positives (`int`, *optional*): The paper's N+; unset: all.
        max_negatives (`int`, *optional*): The paper's N-; unset: all.

    Raises:
        ValueError: If an argument is not valid.
    """

    summary = (
        "supervised contrastive learning: a premise's entailed hypotheses against the other hypotheses of the batch"
    )
    papers = ("liao",)
    defaults: ClassVar[dict[str, Any]] = SUPCON_DEFAULTS
    rows = "nli"
    needs_text_ids = True

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "dot",
        max_positives: int | None = None,
        max_negatives: int | None = None,
    ):
        super().__init__(dim)
        self.temperature = resolve_temperature(temperature, similarity)
        self.similarity = similarity
        self.max_positives = check_limit("max_positives", max_positives)
        self.max_negatives = check_limit("max_negatives", max_negatives)

    def check(self, rows: TrainingRows) -> None:
        """Check the relations of all rows, and that there is something to contrast.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If the relations are missing or not valid, if no hypothesis is entailed, or if a batch may hold
                a single hypothesis.
        """
        relations = row_relations(rows)
        if not any(ENTAILMENT in row for row in relations):
            raise ValueError(
                f"none of the {len(relations)} training rows has an entailed hypothesis (relation 0), so no premise "
                "has a positive: check the labels of the training file"
            )
        if rows.batch_size * rows.processes == 1:
            for number, row in enumerate(relations, 1):
                if len(row) == 1:
                    raise ValueError(
                        f"training row {number}: a batch of one premise with one hypothesis has nothing to contrast, "
                        "so its loss is 0: raise per_device_train_batch_size"
                    )
        if (self.similarity, self.temperature) != ("dot", 1.0):
            logger.info(
                f"supcon uses the similarity {self.similarity!r} with temperature {self.temperature}; its paper (Liao "
                "2021) uses 'dot' with 1."
            )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute the loss; it is 0, with a gradient of 0, if no premise of the batch has a positive.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `relations` and `text_ids`.

        Returns:
            `torch.Tensor`: A scalar.
        """
        limits = (self.max_positives, self.max_negatives) if self.training else (None, None)
        candidates = premise_candidates(batch, self.training, *limits)
        with torch.autocast(batch.embeddings.device.type, enabled=False):
            logits = self._prepare(candidates.premises) @ self._prepare(candidates.hypotheses).T / self.temperature
            premise, positive = candidates.positives.nonzero(as_tuple=True)
            # One row per positive. Its term is softplus(logsumexp over the others of (s_other - s_positive)), as in
            # InfoNCE. What does not count gets the smallest number instead of -inf, whose gradient would be NaN in a
            # row without others.
            differences = logits[premise] - logits[premise, positive][:, None]
            counts = (candidates.positives | candidates.negatives)[premise].scatter(1, positive[:, None], False)
            others = differences.masked_fill(~counts, torch.finfo(logits.dtype).min)
            terms = F.softplus(torch.logsumexp(others, dim=1))
            total = (terms / candidates.positives.sum(1)[premise]).sum() + 0.0 * logits.sum()
        count = torch.full((), len(candidates.premises), device=logits.device)
        return mean_over_processes(total, count, self.training)

    def _prepare(self, embeddings: torch.Tensor) -> torch.Tensor:
        embeddings = as_full_precision(embeddings)
        return F.normalize(embeddings, dim=-1) if self.similarity == "cosine" else embeddings
