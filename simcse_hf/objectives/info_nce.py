"""InfoNCE: SimCSE's objective, with in-batch negatives, hard negatives and their weight."""

import math

import torch
from torch import nn

from ..ops.distributed import gather_rows, world
from .chunked_info_nce import Candidates, chunked_loss, plain_loss

SIMILARITIES = ("cosine", "dot")
#: More logits than these are computed in chunks.
PLAIN_LOGITS = 2**20


def as_full_precision(vectors: torch.Tensor) -> torch.Tensor:
    """float32 for half-precision vectors: at temperature 0.05 a bfloat16 logit is off by up to 0.03."""
    return vectors.float() if vectors.dtype in (torch.float16, torch.bfloat16) else vectors


class InfoNCE(nn.Module):
    r"""Cross-entropy of finding one's own positive among all positives and hard negatives of the batch.

    With s(a, b) the cosine (or the dot product, "N/A" in Table D.1) over the temperature tau, anchors h_i, positives
    h+_j and hard negatives h-_jm (SimCSE, arXiv:2104.08821, Eq. 1, 4, 5 and 8):

        l_i = -log ( e^{s(h_i, h+_i)} / sum_j ( e^{s(h_i, h+_j)} + sum_m alpha^{[i=j]} e^{s(h_i, h-_jm)} ) )

    Eq. 4 (unsupervised) is Eq. 1 with positives from a second dropout mask; without negatives the inner sum is empty;
    Eq. 5 is alpha = 1; Eq. 8 any alpha. Only own hard negatives are weighted: those of other rows count once.

    With `symmetric` it is NT-Xent (SimCLR, arXiv:2002.05709, Eq. 1): each of the 2N anchors and positives looks for
    the other of its pair among the other 2N - 1, of which 2N - 2 are negatives, and the loss is the mean of 2N terms.
    Hard negatives stay in both directions, with the weight of own ones in both: what contradicts a text contradicts
    what follows from it.

    It is computed as softplus(logsumexp over the others of (s_other - s_positive)), whose gradient stays accurate
    in float32 where the loss is nearly zero and softmax(positive) rounds to 1. Large batches are computed in chunks:
    memory then grows with the number of vectors, not with its square, and the loss can be differentiated once.

    Args:
        temperature: tau, above 0. 0.05 is the paper's choice (Table D.1).
        similarity: `"cosine"` or `"dot"`.
        hard_negative_weight: the *logarithm* of alpha, added to the logit of a row's own hard negatives, as in the
            reference: alpha = exp(hard_negative_weight), so 0 is alpha = 1.
        hard_negative_alpha: alpha itself, above 0, in place of `hard_negative_weight`.
        symmetric: positives look for their anchors too.

    Raises:
        ValueError: a temperature or alpha that is not above 0, an unknown similarity, both weight and alpha given.
    """

    def __init__(
        self,
        temperature: float = 0.05,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        hard_negative_alpha: float | None = None,
        symmetric: bool = False,
    ):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
        self.temperature = temperature
        self.similarity = similarity
        self.hard_negative_weight = log_weight(hard_negative_weight, hard_negative_alpha)
        self.symmetric = symmetric

    def forward(
        self,
        anchors: torch.Tensor,
        positives: torch.Tensor,
        negatives: torch.Tensor | None = None,
        first_positive: int = 0,
        *,
        all_anchors: torch.Tensor | None = None,
        extra_negatives: torch.Tensor | None = None,
        text_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean loss of the anchors, and with `symmetric` of their positives.

        Args:
            anchors: (n, dim).
            positives: (N, dim), N >= n: those of the anchors stand at rows `first_positive` to `first_positive + n`
                (several processes: each has its own anchors and all processes' positives).
            negatives: (N, k, dim), the k hard negatives of each positive's row, or None.
            first_positive: row of the first anchor's positive.
            all_anchors: (N, dim), the anchors of all positives; with `symmetric`, needed where N > n.
            extra_negatives: (q, dim), candidates that are nobody's positive (a queue), or None.
            text_ids: (N, 2 + k), equal for equal texts: of anchor, positive and hard negatives of each row. Candidates
                with the text of the anchor or of its positive are then left out, except that positive itself: a text
                that comes twice is no negative of itself. Extra negatives are never left out.

        Raises:
            ValueError: positives that do not reach to the anchors' own, or negatives, anchors or ids of other rows.

        Returns:
            A scalar, in float32 or wider. An anchor with a single candidate (one pair without negatives, or all others
            left out) has nothing to tell apart: its loss and its gradient are 0.
        """
        n, total = len(anchors), len(positives)
        if first_positive + n > total:
            raise ValueError(f"{n} anchors from row {first_positive} need {first_positive + n} positives, got {total}")
        if negatives is not None and len(negatives) != total:
            raise ValueError(f"{total} positives and negatives of {len(negatives)} rows: both are per row")
        per_row = 0 if negatives is None else negatives.shape[1]
        if text_ids is not None and text_ids.shape != (total, 2 + per_row):
            raise ValueError(f"text_ids must be {(total, 2 + per_row)}, one a text, got {tuple(text_ids.shape)}")
        if self.symmetric and all_anchors is None:
            all_anchors = anchors
        if self.symmetric and len(all_anchors) != total:
            raise ValueError(f"{total} positives and {len(all_anchors)} anchors: symmetric needs all_anchors")
        own = first_positive + torch.arange(n, device=anchors.device)
        views = [positives, all_anchors] if self.symmetric else [positives]
        blocks = list(views)
        if per_row:
            blocks.append(negatives.flatten(0, 1))
        candidates = {}
        if per_row and self.hard_negative_weight:
            first = len(views) * total + own[:, None] * per_row
            candidates = {"weighted": first + torch.arange(per_row, device=own.device)}
            candidates["log_weight"] = self.hard_negative_weight
        if text_ids is not None:
            by_block = [text_ids[:, 1], text_ids[:, 0]][: len(views)] + [text_ids[:, 2:].flatten()]
            candidates |= {"query_ids": text_ids[own, :2], "column_ids": torch.cat(by_block)}
        if extra_negatives is not None:
            blocks.append(extra_negatives)
        if not self.symmetric:
            return self._mean(anchors, blocks, Candidates(own, **candidates))
        forth = self._mean(anchors, blocks, Candidates(own, own + total, **candidates))
        back = self._mean(positives[own], blocks, Candidates(own + total, own, **candidates))
        return (forth + back) / 2

    def of_columns(
        self,
        vectors: torch.Tensor,
        *,
        gather: bool,
        extra_negatives: torch.Tensor | None = None,
        text_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Column 0 against column 1, with the further ones as hard negatives, those of all processes among them.

        Args:
            vectors: (n, 2 + k, dim), this process's rows.
            gather: take in the rows of the other processes; off in evaluation, where each goes its own way.
            extra_negatives, text_ids: as in `forward`, the ids of this process's rows.
        """
        anchors, first = vectors[:, 0], 0
        shared = vectors if self.symmetric else vectors[:, 1:]  # anchors are candidates there
        if gather:
            first = world()[0] * len(anchors)
            shared = gather_rows(shared)
            text_ids = text_ids if text_ids is None else gather_rows(text_ids)
        all_anchors, candidates = (shared[:, 0], shared[:, 1:]) if self.symmetric else (None, shared)
        return self(
            anchors,
            candidates[:, 0],
            candidates[:, 1:] if candidates.shape[1] > 1 else None,
            first_positive=first,
            all_anchors=all_anchors,
            extra_negatives=extra_negatives,
            text_ids=text_ids,
        )

    def _mean(self, queries: torch.Tensor, blocks: list[torch.Tensor], candidates: Candidates) -> torch.Tensor:
        compute = chunked_loss if len(queries) * sum(map(len, blocks)) > PLAIN_LOGITS else plain_loss
        with torch.autocast(queries.device.type, enabled=False):
            queries, *blocks = map(as_full_precision, (queries, *blocks))
            return compute(queries, blocks, candidates, self.temperature, self.similarity == "cosine")


def log_weight(weight: float, alpha: float | None) -> float:
    """The log weight of own hard negatives from either way of saying it.

    Raises:
        ValueError: alpha is not above 0, or both are given.
    """
    if alpha is None:
        return weight
    if weight:
        raise ValueError(
            f"give hard_negative_weight ({weight}) or hard_negative_alpha ({alpha}), not both: "
            "alpha = exp(hard_negative_weight)"
        )
    if not alpha > 0:
        raise ValueError(f"hard_negative_alpha must be above 0, got {alpha}")
    return math.log(alpha)
