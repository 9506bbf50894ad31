"""Premises and labelled hypotheses in a batch: their checks, and the positives and negatives of each premise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pyarrow.compute import list_value_length

from ..ops.distributed import gather_rows, world
from .base import EncodedBatch, TrainingRows

#: The labels of the numbers 0, 1 and 2.
RELATIONS = ("entailment", "neutral", "contradiction")
ENTAILMENT, CONTRADICTION = 0, 2
ABSENT = -100  # the relation where a row has fewer hypotheses than the widest


def row_relations(rows: TrainingRows) -> Sequence[list[int]]:
    """Return the relations of every training row, and check them.

    Args:
        rows (`TrainingRows`): The training data.

    Returns:
        `Sequence[list[int]]`: For each row, the relation of each of its hypotheses.

    Raises:
        ValueError: If there are no relations, or a row has none, too many or too few, or one that is not 0, 1 or 2.
    """
    if not rows.has_relations or rows.dataset is None:
        raise ValueError(
            "the objectives softmax, supcon and softmax+supcon need a column `relations`: rows of a premise and its "
            "labelled hypotheses. build_nli_groups makes them from pairs with the labels entailment, neutral and "
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


def check_limit(name: str, limit: int | None) -> int | None:
    """Return a limit on positives or negatives if it is `None` or an integer above 0.

    Raises:
        ValueError: If it is neither; the message contains `name`.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"{name} must be an integer above 0, or unset for all, got {limit!r}")
    return limit


@dataclass
class PremiseCandidates:
    """The premises of a batch that have a positive, and which hypotheses are their positives and negatives.

    Args:
        premises (`torch.Tensor`): Embeddings of shape `(a, dim)`: one anchor for each premise.
        hypotheses (`torch.Tensor`): Embeddings of shape `(m, dim)`: all hypotheses of the batch.
        positives (`torch.Tensor`): Of shape `(a, m)` and type bool: the entailed hypotheses of each premise.
        negatives (`torch.Tensor`): Of shape `(a, m)` and type bool: its other hypotheses, and those of the other
            premises.
        labels (`torch.Tensor`): Integers of shape `(a, m)`: the relation of each hypothesis to each premise. A
            hypothesis of another premise counts as a contradiction.
    """

    premises: torch.Tensor
    hypotheses: torch.Tensor
    positives: torch.Tensor
    negatives: torch.Tensor
    labels: torch.Tensor


def premise_candidates(
    batch: EncodedBatch, gather: bool, max_positives: int | None = None, max_negatives: int | None = None
) -> PremiseCandidates:
    """Find the positives and negatives of each premise in the batch (Liao 2021, sections 3 and 4.4).

    Rows with the same premise belong together. Example: three pairs, of premises A, A and B, with the relations 0, 2
    and 1 and hypotheses h0, h1 and h2. Premise A is one anchor with the positive h0 and the negatives h1 and h2.
    Premise B has no positive, so it is no anchor, but its hypothesis is a negative of A.

    Args:
        batch (`EncodedBatch`): The encoded batch, with `relations` and `text_ids`.
        gather (`bool`): Whether to use the hypotheses of all processes.
        max_positives (`int`, *optional*): The paper's N+. If a premise has more positives in the batch, this many are
            drawn from torch's generator.
        max_negatives (`int`, *optional*): The paper's N-, drawn from *all* negatives in the batch in the same way.

    Returns:
        `PremiseCandidates`: The candidates of this process's premises.

    Raises:
        ValueError: If the batch has no `text_ids`, by which rows of one premise are recognized.
    """
    if "text_ids" not in batch.inputs:
        raise ValueError(
            "the batch has no text_ids, by which rows of one premise are recognized: make the collator with "
            "ContrastiveCollator(tokenizer, add_text_ids=True)"
        )
    premises, hypotheses = batch.embeddings[:, 0], batch.embeddings[:, 1:]
    relations, premise_ids = batch.inputs["relations"], batch.inputs["text_ids"][:, 0]
    first, all_ids = 0, premise_ids
    if gather:
        first = world()[0] * len(premises)
        hypotheses, relations = _gather(hypotheses, relations)
        all_ids = gather_rows(premise_ids.contiguous())
    present = relations >= 0
    row_of_hypothesis = torch.arange(len(relations), device=relations.device)[:, None].expand_as(relations)[present]
    same_premise = premise_ids[:, None] == all_ids
    rows = first + torch.arange(len(premises), device=relations.device)
    # argmax returns the first row of the batch with this premise, perhaps one of another process.
    is_anchor = same_premise.int().argmax(1) == rows
    is_own = same_premise[:, row_of_hypothesis]
    relation = relations[present]
    positives = is_own & (relation == ENTAILMENT)
    is_anchor &= positives.any(1)
    is_own, positives = is_own[is_anchor], positives[is_anchor]
    return PremiseCandidates(
        premises[is_anchor],
        hypotheses[present],
        _draw(positives, max_positives),
        _draw(~positives, max_negatives),
        torch.where(is_own, relation, CONTRADICTION),
    )


def _draw(mask: torch.Tensor, limit: int | None) -> torch.Tensor:
    """Keep at most `limit` of the true entries of each row, drawn without replacement."""
    if limit is None:
        return mask
    scores = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, 2.0)
    rank = scores.argsort(1).argsort(1)  # the rank of each entry among those of its row
    return mask & (rank < limit)


def _gather(hypotheses: torch.Tensor, relations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the rows of all processes, padded to the most hypotheses that a row has in any of them."""
    if world()[1] == 1:
        return hypotheses, relations
    width = relations.shape[1]
    missing = int(gather_rows(torch.tensor([width], device=relations.device)).max()) - width
    hypotheses = gather_rows(F.pad(hypotheses, (0, 0, 0, missing)))
    return hypotheses, gather_rows(F.pad(relations, (0, missing), value=ABSENT))
