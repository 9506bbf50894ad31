"""Supervised contrastive learning of classes and of premises with labelled hypotheses, and SBERT's classifier."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runtime.distributed import gather_rows, mean_over_processes, missing_columns, own_rows
from ..runtime.errors import DataError, SettingError, check_values
from .base import ABSENT, NEGATIVE, POSITIVE, EncodedBatch, Objective, TrainingRows, as_full_precision, no_autocast
from .info_nce import check_similarity

#: How rows are made of the pairs of a file: the pairs, or all hypotheses of a premise; see `build_nli_groups`.
SAMPLINGS = ("pairs", "premises")


def gather_ragged(vectors: Tensor, relations: Tensor, over_processes: bool) -> tuple[Tensor, Tensor]:
    """Gather the rows of all processes, padded to the most texts that a row has in any of them.

    Args:
        vectors (`torch.Tensor`): Of shape `(n, width, dim)`.
        relations (`torch.Tensor`): Of shape `(n, width)`.
        over_processes (`bool`): With `False`, return the rows of this process.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The vectors, with zeros where a row has no text, and the relations, with
            -100 there.
    """
    missing = missing_columns(relations, over_processes)
    vectors = gather_rows(vectors, over_processes, missing)
    relations = gather_rows(relations, over_processes, missing, ABSENT)
    return vectors, relations


def supervised_contrastive(
    anchors: Tensor,
    candidates: Tensor,
    labels: Tensor,
    similarity: str,
    temperature: float,
    over_processes: bool,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Compute the supervised contrastive loss (Khosla et al. 2020, arXiv:2004.11362, Eq. 2).

    The mean over the positives P_i of an anchor stands outside the logarithm, and A_i are all its candidates,
    positives included. Let s be the similarity divided by the temperature:

        l_i = -1 / |P_i| sum_{p in P_i} log ( e^{s_ip} / sum_{a in A_i} e^{s_ia} )

    With b the best positive of an anchor, this is softplus(logsumexp of s_ia - s_ib over the other candidates) plus
    the mean of s_ib - s_ip. So the gradient of a single positive stays accurate where the loss is nearly 0, as in
    [`InfoNCE`].

    With `weights` w_ip in place of 1 / |P_i|, the mean is one over their sum W = sum_ip w_ip:

        L = -1 / W sum_i sum_{p in P_i} w_ip log ( e^{s_ip} / sum_{a in A_i} e^{s_ia} )

    Args:
        anchors (`torch.Tensor`): The anchors of this process, of shape `(n, dim)`.
        candidates (`torch.Tensor`): The texts that they are compared with, of shape `(m, dim)`.
        labels (`torch.Tensor`): Of shape `(n, m)`: the relation of each candidate to each anchor. One that is absent
            (-100) does not count.
        similarity (`str`): `"cosine"` or `"dot"`.
        temperature (`float`): What the similarities are divided by.
        over_processes (`bool`): Whether the mean is taken over the anchors of all processes.
        weights (`torch.Tensor`, *optional*): w_ip, 0 where a candidate is no positive, of shape `(n, m)`.

    Returns:
        `torch.Tensor`: The mean of l_i over the anchors with a positive; 0, with a gradient of 0, if there are none.
    """
    positives = labels == POSITIVE
    with no_autocast(anchors):
        normalize = similarity == "cosine"
        logits = as_full_precision(anchors, normalize) @ as_full_precision(candidates, normalize).T / temperature
        # Not -inf: an anchor with a single candidate has the loss 0, and its gradient is 0 (not NaN).
        nothing = torch.finfo(logits.dtype).min
        best = logits.masked_fill(~positives, nothing).argmax(1, keepdim=True)
        differences = logits - logits.gather(1, best)
        others = differences.masked_fill((labels == ABSENT).scatter(1, best, True), nothing)
        if weights is None:
            weights = positives.to(logits.dtype) / positives.sum(1, keepdim=True).clamp(min=1)
        total_weight = weights.sum(1)
        # Not the best one, whose difference is 0: its gradient would round.
        worse = differences.masked_fill(~positives.scatter(1, best, False), 0.0) * weights
        losses = F.softplus(others.logsumexp(1)) * total_weight - worse.sum(1)
        total = losses.masked_fill(total_weight == 0, 0.0).sum()
    return mean_over_processes(total, total_weight.sum(), over_processes)


class ClassLabels(Objective):
    r"""Supervised contrastive loss of texts with class labels (Khosla et al. 2020, arXiv:2004.11362, Eq. 2).

    Every text of the global batch is an anchor. Its positives are all other texts of its class in the batch, and all
    texts of other classes are its negatives; see [`supervised_contrastive`]. The loss is the mean over the anchors
    that have a positive.

    A text may have several labels Y_i, each of which is a class of its own (MulSupCon; Zhang and Wu, AAAI 2024). With
    P_iy for the other texts with label y, the mean is one over all pairs of an anchor and a label with a positive:

        L = mean_{i, y in Y_i} -1 / |P_iy| sum_{p in P_iy} log ( e^{s_ip} / sum_{a in A_i} e^{s_ia} )

    So a positive has the weight sum_{y in Y_i and Y_p} 1 / |P_iy|: texts that share more and rarer labels are drawn
    together more. A text that shares no label is a negative. With one label each, this is the loss above.

    Rows of an anchor with a list of positives are classes, too: the anchor and its positives are the texts of one
    class, to which rows with the same anchor text belong as well. Hard negatives belong to no class. They are
    candidates of every anchor, and no anchors themselves.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*): tau, above 0. Defaults to 0.05 for the cosine and to 1 for the dot product.
        similarity (`str`, *optional*, defaults to `"cosine"`): `"cosine"` or `"dot"`.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, build_objective
        >>> texts = torch.eye(2).repeat(2, 1)[:, None]  # four texts, of shape (4, 1, 2): the first equals the third
        >>> for labels in ([0, 1, 0, 1], [0, 0, 1, 1]):
        ...     batch = EncodedBatch(texts, {"labels": torch.tensor(labels)})
        ...     print(round(build_objective("class_labels", 2)(batch).item(), 4))
        0.0
        20.0
    """

    name = "class_labels"
    summary = "supervised contrastive learning (SupCon), in which all texts of a class in the batch are positives"
    papers = ("supcon",)
    # The paper discards its projection head after training. Mean pooling, without a head, gives the best classifiers
    # (benchmarks/experiments/label_poolers.py).
    defaults = {
        "pooler_type": "avg",
        "mlp_only_train": False,
        "per_device_train_batch_size": 64,
        "learning_rate": 5e-5,
        "num_train_epochs": 5,
        "warmup_steps": 0.1,
    }
    rows = "classes"
    num_views = 1
    needs_text_ids = True

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
    ):
        super().__init__(dim)
        self.similarity, self.temperature = check_similarity(similarity, temperature)

    def check(self, rows: TrainingRows) -> None:
        """Check that the rows have classes, and that batches hold pairs of a class.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            DataError: If rows have neither labels nor relations.
            SettingError: If a batch has fewer than four rows or an odd number of texts with labels.
        """
        has_labels = "label" in rows.columns
        if not has_labels and "relations" not in rows.columns:
            raise DataError(
                f"objective {self.name!r} learns from classes: give the columns text and label, or anchor and "
                "positives (a list)"
            )
        if rows.global_batch < 4 or (has_labels and rows.global_batch % 2):
            raise SettingError(
                f"objective {self.name!r} needs batches of an even number of rows, at least 4, instead of "
                f"{rows.global_batch} (per_device_train_batch_size)"
            )

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Compute the loss of the global batch; see [`Objective.forward`].

        Args:
            batch (`EncodedBatch`): The encoded batch, with `labels`, of shape `(batch,)` or `(batch, most labels)`,
                or with `relations` and `text_ids`.

        Returns:
            `torch.Tensor`: A scalar; 0, with a gradient of 0, if no text has a positive.
        """
        if "labels" in batch.inputs:
            classes = batch.inputs["labels"].view(len(batch.embeddings), -1)
            relations = classes.new_full(batch.embeddings.shape[:2], POSITIVE)
        else:
            classes = batch.text_ids[:, :1]
            relations = F.pad(batch.inputs["relations"], (1, 0), value=POSITIVE)  # an anchor is of the class, too
        vectors, all_relations = gather_ragged(batch.embeddings, relations, self.training)
        width = all_relations.shape[1]
        all_relations = all_relations.flatten()
        missing = missing_columns(classes, self.training)
        all_classes = gather_rows(classes, self.training, missing, ABSENT).repeat_interleave(width, 0)
        # With 3 texts in a row, text 2 of row 4 is candidate 4 * 3 + 2.
        first = width * own_rows(classes, self.training)[:, None]
        place = torch.arange(relations.shape[1], device=first.device)
        own = (first + place).flatten()[:, None]
        is_member = all_relations == POSITIVE
        # Of each label of each anchor: which candidates have it, too.
        can_be = (is_member[own] & is_member).scatter(1, own, False)
        anchor_classes = all_classes[own[:, 0]]
        precision = torch.promote_types(vectors.dtype, torch.float32)
        weights = torch.zeros(can_be.shape, dtype=precision, device=can_be.device)
        for label in anchor_classes.unbind(1):
            have_it = (all_classes == label[:, None, None]).any(2) & (label != ABSENT)[:, None] & can_be
            weights += have_it.to(precision) / have_it.sum(1, keepdim=True).clamp(min=1)
        labels = torch.where(weights > 0, POSITIVE, NEGATIVE)
        labels = labels.masked_fill(all_relations == ABSENT, ABSENT).scatter(1, own, ABSENT)
        anchors = batch.embeddings.flatten(0, 1)
        return supervised_contrastive(
            anchors, vectors.flatten(0, 1), labels, self.similarity, self.temperature, self.training, weights
        )


def row_relations(rows: TrainingRows) -> Sequence[list[int]]:
    """Return the relations of every training row, and check them.

    Args:
        rows (`TrainingRows`): The training data.

    Returns:
        `Sequence[list[int]]`: For each row, the relation of each of its hypotheses.

    Raises:
        DataError: If there are no relations, or a row has none, or one that is not 0, 1 or 2.
    """
    if "relations" not in rows.columns:
        raise DataError(
            "the objectives softmax and supcon need a column `relations` of each premise to its hypotheses. "
            "build_nli_groups makes them from labelled pairs, such as SNLI's and MultiNLI's"
        )
    relations = rows.column("relations")
    for number, row in enumerate(relations, 1):
        if not row or not {0, 1, 2}.issuperset(row):
            raise DataError(
                f"training row {number} has the relations {row}: give one for each hypothesis, 0 (entailment), 1 "
                "(neutral) or 2 (contradiction)"
            )
    return relations


def _draw(mask: Tensor, limit: int | None) -> Tensor:
    """Keep at most `limit` of the true entries of each row, drawn without replacement."""
    if limit is None:
        return mask
    drawn = torch.rand(mask.shape, device=mask.device)
    scores = drawn.masked_fill(~mask, 2.0)
    rank = scores.argsort(1).argsort(1)  # the rank of each entry among those of its row
    return mask & (rank < limit)


class NLIObjective(Objective):
    """Base class of objectives that learn from premises and their labelled hypotheses.

    Args:
        dim (`int`): Embedding size.
        nli_sampling (`str`): How the scripts make rows of a file: one of `SAMPLINGS`.
        max_positives (`int`, *optional*): The paper's N+; unset: all.
        max_negatives (`int`, *optional*): The paper's N-; unset: all.
    """

    rows = "nli"
    # Liao 2021, section 4.2. The mean pooling leaves out [CLS] (section 3). A batch is 64 pairs in the order of the
    # file, in which the pairs of a premise are adjacent. `warmup_steps` below 1 is a share of all steps.
    defaults = {
        "pooler_type": "avg_no_cls",
        "mlp_only_train": False,
        "train_sampling_strategy": "sequential",
        "per_device_train_batch_size": 64,
        "learning_rate": 2e-5,
        "num_train_epochs": 1,
        "warmup_steps": 0.1,
    }

    def __init__(
        self,
        dim: int,
        nli_sampling: str,
        max_positives: int | None,
        max_negatives: int | None,
    ):
        super().__init__(dim)
        check_values(SAMPLINGS, nli_sampling=nli_sampling)
        check_values("an integer above 0", max_positives=max_positives, max_negatives=max_negatives)
        self.max_positives = max_positives
        self.max_negatives = max_negatives

    def candidates(self, batch: EncodedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Find the positives and negatives of each premise in the batch (Liao 2021, sections 3 and 4.4).

        Rows with the same premise belong together. Example: three pairs, of premises A, A and B, with the relations 0,
        2 and 1 and hypotheses h0, h1 and h2. Premise A is one anchor with the positive h0 and the negatives h1 and h2.
        Premise B has no positive, so it is no anchor, but its hypothesis is a negative of A.

        In training, the hypotheses are those of all processes, and at most `max_positives` and `max_negatives` of
        *all* positives and negatives in the batch are drawn for each premise from torch's generator.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `relations` and `text_ids`.

        Returns:
            `tuple[torch.Tensor, torch.Tensor, torch.Tensor]`: One embedding for each of the a premises of this process
                that have a positive, of shape `(a, dim)`; all m hypotheses of the batch, of shape `(m, dim)`; and
                their relations to the premises, of shape `(a, m)`. A hypothesis of another premise counts as a
                contradiction, and one that was not drawn is absent (-100).

        Raises:
            ValueError: If the batch has no `text_ids`, by which rows of one premise are recognized.
        """
        premise_ids = batch.text_ids[:, 0]
        hypotheses, relations = gather_ragged(batch.embeddings[:, 1:], batch.inputs["relations"], self.training)
        row, column = (relations != ABSENT).nonzero(as_tuple=True)
        same_premise = premise_ids[:, None] == gather_rows(premise_ids, self.training)
        labels = torch.where(same_premise[:, row], relations[row, column], NEGATIVE)
        # argmax returns the first row of the batch with this premise, which may be of another process.
        is_first = same_premise.int().argmax(1) == own_rows(premise_ids, self.training)
        is_anchor = is_first & (labels == POSITIVE).any(1)
        labels = labels[is_anchor]
        if self.training:
            positives = labels == POSITIVE
            drawn = _draw(positives, self.max_positives) | _draw(~positives, self.max_negatives)
            labels = labels.masked_fill(~drawn, ABSENT)
        return batch.embeddings[is_anchor, 0], hypotheses[row, column], labels


class Softmax(NLIObjective):
    r"""Cross-entropy of a classifier over (u, v, |u - v|) (Liao 2021, arXiv:2106.04791, section 3, Eq. 1).

    u is the embedding of a premise and v that of one of its hypotheses. The loss is the mean over all pairs of the
    batch, including those of the other processes. The paper's "SBERT baseline" is this objective on pairs.

    With `augment` it is the paper's "-Augment" baseline: the classifier also learns from the positives and negatives
    that the contrastive loss would read, each paired with its premise (see [`candidates`]). The loss is then
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
        nli_sampling (`str`, *optional*, defaults to `"pairs"`): How the scripts make rows of a file: pairs or
            premises.

    Raises:
        ValueError: If an argument is not valid, or a limit is set without `augment`.
    """

    name = "softmax"
    summary = "an entailment classifier (SBERT) over pairs of a premise and a hypothesis"
    papers = ("sbert", "liao")

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        augment: bool = False,
        max_positives: int | None = None,
        max_negatives: int | None = None,
        layers: int = 2,
        nli_sampling: str = "pairs",
    ):
        super().__init__(dim, nli_sampling, max_positives, max_negatives)
        check_values((1, 2), layers=layers)
        check_values("true or false", augment=augment)
        check_values("an integer above 0", hidden_dim=hidden_dim)
        if not augment and (max_positives or max_negatives):
            raise SettingError(
                "max_positives and max_negatives limit the pairs that augment adds: set augment to true"
            )
        self.augment = augment
        self.needs_text_ids = augment
        if layers == 1:
            self.classifier = nn.Sequential(nn.Linear(3 * dim, 3, bias=False))
        else:
            width = hidden_dim or dim
            self.classifier = nn.Sequential(nn.Linear(3 * dim, width), nn.ReLU(), nn.Linear(width, 3))

    def check(self, rows: TrainingRows) -> None:
        """Check that every row has valid relations; see [`row_relations`]."""
        row_relations(rows)

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Compute the loss; see [`Objective.forward`]."""
        relations = batch.inputs["relations"]
        premises = batch.embeddings[:, :1].expand(-1, relations.shape[1], -1)
        loss = self._cross_entropy(premises, batch.embeddings[:, 1:], relations)
        if not (self.augment and self.training):
            return loss
        anchors, others, labels = self.candidates(batch)
        premise, hypothesis = (labels != ABSENT).nonzero(as_tuple=True)
        augmented = self._cross_entropy(anchors[premise], others[hypothesis], labels[premise, hypothesis])
        return (loss + augmented) / 2

    def _cross_entropy(self, premises: Tensor, hypotheses: Tensor, relations: Tensor) -> Tensor:
        with no_autocast(premises):
            u = as_full_precision(premises)
            v = as_full_precision(hypotheses)
            features = torch.cat([u, v, (u - v).abs()], dim=-1)
            precision = next(self.classifier.parameters()).dtype
            logits = as_full_precision(self.classifier(features.to(precision)))
            # Hypotheses that a row lacks are ignored. To select the others, the host would wait for their number.
            targets = relations.flatten()
            total = F.cross_entropy(logits.flatten(0, -2), targets, ignore_index=ABSENT, reduction="sum")
        count = (targets != ABSENT).sum()
        return mean_over_processes(total, count, self.training)


class SupCon(NLIObjective):
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
        similarity (`str`, *optional*, defaults to `"dot"`): `"dot"` or `"cosine"`.
        max_positives (`int`, *optional*): The paper's N+; unset: all.
        max_negatives (`int`, *optional*): The paper's N-; unset: all.
        nli_sampling (`str`, *optional*, defaults to `"pairs"`): How the scripts make rows of a file: pairs or
            premises.

    Raises:
        ValueError: If an argument is not valid.
    """

    name = "supcon"
    summary = (
        "supervised contrastive learning: a premise's entailed hypotheses against the other hypotheses of the batch"
    )
    papers = ("liao",)
    needs_text_ids = True

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "dot",
        max_positives: int | None = None,
        max_negatives: int | None = None,
        nli_sampling: str = "pairs",
    ):
        super().__init__(dim, nli_sampling, max_positives, max_negatives)
        self.similarity, self.temperature = check_similarity(similarity, temperature)

    def check(self, rows: TrainingRows) -> None:
        """Check the relations of all rows, and that there is something to contrast.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            DataError: If the relations are missing or not valid, if no hypothesis is entailed, or if a batch may hold
                a single hypothesis.
        """
        relations = row_relations(rows)
        if not any(POSITIVE in row for row in relations):
            raise DataError(
                f"none of the {len(relations)} training rows has an entailed hypothesis (relation 0), so no premise "
                "has a positive: check the labels"
            )
        alone = [number for number, row in enumerate(relations, 1) if len(row) == 1]
        if alone:
            rows.check_batch(f"training row {alone[0]}: a batch of one premise with one hypothesis has the loss 0")

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Compute the loss; it is 0, with a gradient of 0, if no premise of the batch has a positive.

        Args:
            batch (`EncodedBatch`): The encoded batch, with `relations` and `text_ids`.

        Returns:
            `torch.Tensor`: A scalar.
        """
        premises, hypotheses, labels = self.candidates(batch)
        return supervised_contrastive(premises, hypotheses, labels, self.similarity, self.temperature, self.training)
