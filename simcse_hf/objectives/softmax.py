"""SBERT's classifier: entailment, neutral or contradiction from the vectors of a premise and a hypothesis."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pyarrow.compute import list_value_length
from torch import nn

from ..ops.distributed import mean_over_processes
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision

RELATIONS = ("entailment", "neutral", "contradiction")  # their order is that of the numbers 0, 1, 2


class Softmax(Objective):
    r"""Cross-entropy of a two-layer classifier over (u, v, |u - v|) (Liao 2021, arXiv:2106.04791, section 3, Eq. 1).

    u is the vector of a premise and v that of one of its hypotheses. The mean is over all pairs of the batch, those
    of all processes. The paper's "SBERT baseline" is this objective on single pairs, and its "-Augment" baselines are
    this objective on grouped rows (see `build_nli_groups`).

    The paper says no more of the classifier than "two-layer". Here a ReLU stands between the layers; SBERT itself
    (arXiv:1908.10084) has a single layer, and the paper's published code two linear ones with nothing between them.
    It is needed in training only.

    Args:
        dim: of the sentence vectors.
        hidden_dim: width between the layers; default: `dim`.

    Raises:
        ValueError: a `hidden_dim` that is no whole number of 1 or more.
    """

    summary = "an entailment classifier (SBERT) over pairs of a premise and a hypothesis"
    papers = ("sbert", "liao")
    rows = "nli"

    def __init__(self, dim: int, hidden_dim: int | None = None):
        super().__init__(dim)
        if hidden_dim is not None and not (isinstance(hidden_dim, int) and hidden_dim >= 1):
            raise ValueError(f"hidden_dim must be a whole number of 1 or more, got {hidden_dim}")
        hidden_dim = hidden_dim or dim
        self.classifier = nn.Sequential(
            nn.Linear(3 * dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, len(RELATIONS))
        )

    def check(self, rows: TrainingRows) -> None:
        """As [`Objective.check`].

        Raises:
            ValueError: rows without `relations`, or with relations that are not valid, named.
        """
        row_relations(rows)

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        relations = batch.inputs["relations"]
        present = relations >= 0
        with torch.autocast(batch.vectors.device.type, enabled=False):
            logits = self.logits(
                batch.vectors[:, :1].expand(-1, relations.shape[1], -1)[present], batch.vectors[:, 1:][present]
            )
            total = F.cross_entropy(as_full_precision(logits), relations[present], reduction="sum")
        return mean_over_processes(total, present.sum(), self.training)

    def logits(self, premises: torch.Tensor, hypotheses: torch.Tensor) -> torch.Tensor:
        """(n, dim) and (n, dim) -> (n, 3), in the order of [`RELATIONS`]."""
        u, v = as_full_precision(premises), as_full_precision(hypotheses)
        features = torch.cat([u, v, (u - v).abs()], dim=-1)
        return self.classifier(features.to(self.classifier[0].weight.dtype))


def row_relations(rows: TrainingRows) -> Sequence[list[int]]:
    """The relations of every training row, checked.

    Args:
        rows: of the run.

    Raises:
        ValueError: there are none, or a row has none, too many or too few, or one that is not 0, 1 or 2.
    """
    if not rows.has_relations:
        raise ValueError(
            "the objectives softmax, supcon and softmax+supcon need a column `relations`: rows of a premise and its "
            "labelled hypotheses. build_nli_groups makes them of pairs with the labels entailment, neutral and "
            "contradiction, such as SNLI's and MultiNLI's"
        )
    dataset = rows.dataset.with_format("arrow")
    relations = dataset.select_columns("relations")[:]["relations"].to_pylist()
    sentences = list_value_length(dataset.select_columns("input_ids")[:]["input_ids"]).to_pylist()
    for number, (row, count) in enumerate(zip(relations, sentences, strict=True), 1):
        if not row or len(row) != count - 1:
            raise ValueError(
                f"training row {number} has {count} texts and {len(row or ())} relation(s): it must be a premise and "
                "at least one hypothesis, with one relation for each hypothesis"
            )
        if not {0, 1, 2}.issuperset(row):
            raise ValueError(
                f"training row {number} has the relations {row}: each must be 0 (entailment), 1 (neutral) or "
                "2 (contradiction)"
            )
    return relations
