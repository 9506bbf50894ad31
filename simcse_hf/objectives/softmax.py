"""SBERT's classifier: entailment, neutral or contradiction from the embeddings of a premise and a hypothesis."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.distributed import mean_over_processes
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision
from .nli_batch import ABSENT, RELATIONS, check_limit, premise_candidates, row_relations

#: The settings of Liao 2021, section 4.2. The mean pooling leaves out [CLS] (section 3). A batch is 64 pairs in the
#: order of the file, in which the pairs of a premise are adjacent. `warmup_steps` below 1 is a share of all steps.
LIAO_DEFAULTS: dict[str, Any] = {
    "pooler_type": "avg_no_cls",
    "mlp_only_train": False,
    "nli_sampling": "pairs",
    "train_sampling_strategy": "sequential",
    "per_device_train_batch_size": 64,
    "learning_rate": 2e-5,
    "num_train_epochs": 1,
    "warmup_steps": 0.1,
}


class Softmax(Objective):
    r"""Cross-entropy of a classifier over (u, v, |u - v|) (Liao 2021, arXiv:2106.04791, section 3, Eq. 1).

    u is the embedding of a premise and v that of one of its hypotheses. The loss is the mean over all pairs of the
    batch, including those of the other processes. The paper's "SBERT baseline" is this objective on pairs.

    With `augment` it is the paper's "-Augment" baseline: the classifier also learns from the positives and negatives
    that the contrastive loss would read, each paired with its premise (see [`premise_candidates`]). The loss is then
    the mean of the two cross-entropies (lambda = 0.5 in the authors' notes). The paper does not say how to label a
    hypothesis of another premise; here it is a contradiction. In evaluation mode nothing is augmented.

    The paper calls the classifier "two-layer" and says no more. This one has a ReLU between the layers; the paper's
    code has two linear layers of width 1.5 dim without a ReLU. With `layers=1` it is the classifier of SBERT
    (arXiv:1908.10084, section 3): one matrix without a bias. The classifier is used in training only.

    Args:
        dim (`int`): Embedding size.
        hidden_dim (`int`, *optional*): Width between the layers. Defaults to `dim`.
        augment (`bool`, *optional*, defaults to `False`): Whether to add the pairs of the "-Augment" baselines.
        max_positives (`int`, *optional*): With `augment`, the limit N+ on the positives of a premise; unset: all.
        max_negatives (`int`, *optional*): With `augment`, the limit N- on its negatives; unset: all of the batch.
        layers (`int`, *optional*, defaults to `2`): Layers of the classifier, 1 or 2.

    Raises:
        ValueError: If an argument is not valid, or a limit is set without `augment`.
    """

    summary = "an entailment classifier (SBERT) over pairs of a premise and a hypothesis"
    papers = ("sbert", "liao")
    defaults: ClassVar[dict[str, Any]] = LIAO_DEFAULTS
    rows = "nli"

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        augment: bool = False,
        max_positives: int | None = None,
        max_negatives: int | None = None,
        layers: int = 2,
    ):
        super().__init__(dim)
        if layers not in (1, 2):
            raise ValueError(f"layers must be 1 or 2, got {layers!r}")
        if layers == 1 and hidden_dim is not None:
            raise ValueError("hidden_dim is the width between two layers: leave it out with layers=1")
        if hidden_dim is not None and not (isinstance(hidden_dim, int) and hidden_dim >= 1):
            raise ValueError(f"hidden_dim must be an integer above 0, got {hidden_dim}")
        if not isinstance(augment, bool):
            raise ValueError(f"augment must be true or false, got {augment!r}")
        if not augment and (max_positives is not None or max_negatives is not None):
            raise ValueError("max_positives and max_negatives limit the pairs that augment adds: set augment to true")
        self.augment = self.needs_text_ids = augment
        self.max_positives = check_limit("max_positives", max_positives)
        self.max_negatives = check_limit("max_negatives", max_negatives)
        width = hidden_dim or dim
        if layers == 1:
            self.classifier = nn.Sequential(nn.Linear(3 * dim, len(RELATIONS), bias=False))
        else:
            self.classifier = nn.Sequential(nn.Linear(3 * dim, width), nn.ReLU(), nn.Linear(width, len(RELATIONS)))

    def check(self, rows: TrainingRows) -> None:
        """Check that every row has valid relations; see [`row_relations`]."""
        row_relations(rows)

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute the loss; see [`Objective.forward`]."""
        relations = batch.inputs["relations"]
        premises = batch.embeddings[:, :1].expand(-1, relations.shape[1], -1)
        loss = self._cross_entropy(premises, batch.embeddings[:, 1:], relations)
        if not (self.augment and self.training):
            return loss
        candidates = premise_candidates(batch, True, self.max_positives, self.max_negatives)
        premise, hypothesis = (candidates.positives | candidates.negatives).nonzero(as_tuple=True)
        augmented = self._cross_entropy(
            candidates.premises[premise], candidates.hypotheses[hypothesis], candidates.labels[premise, hypothesis]
        )
        return (loss + augmented) / 2

    def logits(self, premises: torch.Tensor, hypotheses: torch.Tensor) -> torch.Tensor:
        """Classify pairs.

        Args:
            premises (`torch.Tensor`): Embeddings of shape `(..., dim)`.
            hypotheses (`torch.Tensor`): Embeddings of the same shape.

        Returns:
            `torch.Tensor`: Logits of shape `(..., 3)`, in the order of `RELATIONS`.
        """
        u, v = as_full_precision(premises), as_full_precision(hypotheses)
        features = torch.cat([u, v, (u - v).abs()], dim=-1)
        return self.classifier(features.to(next(self.classifier.parameters()).dtype))

    def _cross_entropy(
        self, premises: torch.Tensor, hypotheses: torch.Tensor, relations: torch.Tensor
    ) -> torch.Tensor:
        with torch.autocast(premises.device.type, enabled=False):
            logits = as_full_precision(self.logits(premises, hypotheses))
            # Hypotheses that a row lacks are ignored. To select the others, the host would wait for their number.
            targets = relations.flatten()
            total = F.cross_entropy(logits.flatten(0, -2), targets, ignore_index=ABSENT, reduction="sum")
        return mean_over_processes(total, (targets != ABSENT).sum(), self.training)
