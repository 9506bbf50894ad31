"""InfoNCE: SimCSE's objective, with in-batch negatives, hard negatives and their weight."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SIMILARITIES = ("cosine", "dot")


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

    It is computed as softplus(logsumexp over the others of (s_other - s_positive)), whose gradient stays accurate
    in float32 where the loss is nearly zero and softmax(positive) rounds to 1.

    Args:
        temperature: tau, above 0. 0.05 is the paper's choice (Table D.1).
        similarity: `"cosine"` or `"dot"`.
        hard_negative_weight: the *logarithm* of alpha, added to the logit of a row's own hard negatives, as in the
            reference: alpha = exp(hard_negative_weight), so 0 is alpha = 1.
        hard_negative_alpha: alpha itself, above 0, in place of `hard_negative_weight`.

    Raises:
        ValueError: a temperature or alpha that is not above 0, an unknown similarity, both weight and alpha given.
    """

    def __init__(
        self,
        temperature: float = 0.05,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        hard_negative_alpha: float | None = None,
    ):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
        self.temperature = temperature
        self.similarity = similarity
        self.hard_negative_weight = log_weight(hard_negative_weight, hard_negative_alpha)

    def forward(
        self,
        anchors: torch.Tensor,
        positives: torch.Tensor,
        negatives: torch.Tensor | None = None,
        first_positive: int = 0,
    ) -> torch.Tensor:
        """Mean loss of the anchors.

        Args:
            anchors: (n, dim).
            positives: (N, dim), N >= n: those of the anchors stand at rows `first_positive` to `first_positive + n`
                (several processes: each has its own anchors and all processes' positives).
            negatives: (N, k, dim), the k hard negatives of each positive's row, or None.
            first_positive: row of the first anchor's positive.

        Raises:
            ValueError: positives that do not reach to the anchors' own, or negatives of other rows.

        Returns:
            A scalar, in float32 or wider. With a single candidate (one pair, no negatives) there is nothing to tell
            apart: the loss and its gradient are 0.
        """
        if first_positive + len(anchors) > len(positives):
            raise ValueError(
                f"{len(anchors)} anchors from row {first_positive} need {first_positive + len(anchors)} positives, "
                f"got {len(positives)}"
            )
        if negatives is not None and len(negatives) != len(positives):
            raise ValueError(f"{len(positives)} positives and negatives of {len(negatives)} rows: both are per row")
        with torch.autocast(anchors.device.type, enabled=False):
            anchors = self._prepare(anchors)
            own = first_positive + torch.arange(len(anchors), device=anchors.device)
            logits = anchors @ self._prepare(positives).T / self.temperature
            positive = logits.gather(1, own[:, None])
            others = logits.scatter(1, own[:, None], float("-inf"))
            if negatives is not None:
                per_row = negatives.shape[1]
                negative_logits = anchors @ self._prepare(negatives.flatten(0, 1)).T / self.temperature
                if self.hard_negative_weight:
                    columns = own[:, None] * per_row + torch.arange(per_row, device=own.device)
                    weight = torch.full_like(columns, self.hard_negative_weight, dtype=logits.dtype)
                    negative_logits = negative_logits.scatter_add(1, columns, weight)
                others = torch.cat([others, negative_logits], dim=1)
            if others.shape[1] == 1:
                return 0.0 * positive.sum()
            return F.softplus(torch.logsumexp(others - positive, dim=1)).mean()

    def _prepare(self, vectors: torch.Tensor) -> torch.Tensor:
        vectors = as_full_precision(vectors)
        return F.normalize(vectors, dim=-1) if self.similarity == "cosine" else vectors


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
