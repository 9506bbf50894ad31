"""Supervised contrastive learning (Khosla et al. 2020): all texts of a class in the batch are positives."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops.distributed import gather_rows, mean_over_processes, own_rows
from ..base import Objective, TrainingRows, as_full_precision, no_autocast
from ..checks import check_similarity
from ..encoder import EncodedBatch
from ..ragged import ABSENT, POSITIVE, gather_ragged


def supervised_contrastive(logits: Tensor, positives: Tensor, candidates: Tensor) -> Tensor:
    r"""Compute the supervised contrastive loss of each anchor (Khosla et al. 2020, arXiv:2004.11362, Eq. 2).

    The mean over the positives P_i stands outside the logarithm, and A_i are all candidates, positives included:

        l_i = -1 / |P_i| sum_{p in P_i} log ( e^{s_ip} / sum_{a in A_i} e^{s_ia} )

    With b the best positive of an anchor, this is softplus(logsumexp of s_ia - s_ib over the other candidates) plus
    the mean of s_ib - s_ip. So the gradient of a single positive stays accurate where the loss is nearly 0, as in
    [`InfoNCE`].

    Args:
        logits (`torch.Tensor`): Similarities s of shape `(n, m)`, divided by the temperature.
        positives (`torch.Tensor`): Of shape `(n, m)` and type bool; each is also a candidate.
        candidates (`torch.Tensor`): Of shape `(n, m)` and type bool.

    Returns:
        `torch.Tensor`: The losses, of shape `(n,)`; 0, with a gradient of 0, for an anchor without a positive.
    """
    # Not -inf: an anchor with a single candidate has the loss 0, and its gradient is 0 (not NaN).
    nothing = torch.finfo(logits.dtype).min
    best = logits.masked_fill(~positives, nothing).argmax(1, keepdim=True)
    differences = logits - logits.gather(1, best)
    others = differences.masked_fill(~candidates.scatter(1, best, False), nothing)
    # Not the best one, whose difference is 0: its gradient would round.
    worse = differences.masked_fill(~positives.scatter(1, best, False), 0.0)
    count = positives.sum(1)
    mean_of_worse = worse.sum(1) / count.clamp(min=1)
    losses = F.softplus(others.logsumexp(1)) - mean_of_worse
    return losses.masked_fill(count == 0, 0.0)


class ClassLabels(Objective):
    r"""Supervised contrastive loss of texts with class labels (Khosla et al. 2020, arXiv:2004.11362, Eq. 2).

    Every text of the global batch is an anchor. Its positives are all other texts of its class in the batch, and all
    texts of other classes are its negatives; see [`supervised_contrastive`]. The loss is the mean over the anchors
    that have a positive.

    Rows of an anchor with a list of positives are classes, too: the anchor and its positives are the texts of one
    class, to which rows with the same anchor text belong as well. Hard negatives belong to no class. They are
    candidates of every anchor, and no anchors themselves.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*): tau, above 0. Defaults to 0.05 for the cosine and to 1 for the dot product.
        similarity (`str`, *optional*, defaults to `"cosine"`): `"cosine"` or `"dot"`.

    Raises:
        ValueError: If an argument is not valid.
    """

    summary = "supervised contrastive learning (SupCon), in which all texts of a class in the batch are positives"
    papers = ("supcon",)
    rows = "classes"
    num_views = 1
    needs_text_ids = True
    #: The paper discards its projection head after training. Mean pooling, without a head, gives the best classifiers
    #: (`benchmarks label_poolers`, docs/training.md).
    defaults = {
        "pooler_type": "avg",
        "mlp_only_train": False,
        "per_device_train_batch_size": 64,
        "learning_rate": 5e-5,
        "num_train_epochs": 5,
        "warmup_steps": 0.1,
    }

    def __init__(self, dim: int, temperature: float | None = None, similarity: str = "cosine"):
        super().__init__(dim)
        self.similarity, self.temperature = check_similarity(similarity, temperature)

    def check(self, rows: TrainingRows) -> None:
        """Check that the rows have classes, and that batches hold pairs of a class.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If rows have neither labels nor relations, or a batch has fewer than four rows or an odd number
                of texts with labels.
        """
        has_labels = "label" in rows.columns
        if not has_labels and "relations" not in rows.columns:
            raise ValueError(
                f"objective {self.name!r} learns from texts with a class label or from anchors with a list of "
                "positives: give the columns text and label, or anchor and positives"
            )
        if rows.global_batch < 4 or (has_labels and rows.global_batch % 2):
            raise ValueError(
                f"objective {self.name!r} compares classes, and a batch holds two texts of each: give batches of an "
                f"even number of rows, at least 4, instead of {rows.global_batch} (per_device_train_batch_size)"
            )

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Compute the loss of the global batch; see [`Objective.forward`].

        Args:
            batch (`EncodedBatch`): The encoded batch, with `labels`, or with `relations` and `text_ids`.

        Returns:
            `torch.Tensor`: A scalar; 0, with a gradient of 0, if no text has a positive.
        """
        vectors = as_full_precision(batch.embeddings, self.similarity == "cosine")
        if "labels" in batch.inputs:
            classes = batch.inputs["labels"]
            relations = classes.new_full(vectors.shape[:2], POSITIVE)
        else:
            classes = batch.text_ids[:, 0]
            relations = F.pad(batch.inputs["relations"], (1, 0), value=POSITIVE)  # an anchor is of the class, too
        all_vectors, all_relations = gather_ragged(vectors, relations, self.training)
        width = all_relations.shape[1]
        all_relations = all_relations.flatten()
        all_classes = gather_rows(classes, self.training).repeat_interleave(width)
        # With 3 texts in a row, text 2 of row 4 is candidate 4 * 3 + 2.
        first = width * own_rows(vectors, self.training)[:, None]
        place = torch.arange(vectors.shape[1], device=first.device)
        own = (first + place).flatten()[:, None]
        is_member = all_relations == POSITIVE
        same_class = all_classes[own] == all_classes
        positives = (is_member[own] & is_member & same_class).scatter(1, own, False)
        is_present = (all_relations != ABSENT).expand_as(positives)
        candidates = is_present.scatter(1, own, False)
        with no_autocast(vectors):
            logits = vectors.flatten(0, 1) @ all_vectors.flatten(0, 1).T / self.temperature
            losses = supervised_contrastive(logits, positives, candidates)
        num_anchors = positives.any(1).sum()
        return mean_over_processes(losses.sum(), num_anchors, self.training)
