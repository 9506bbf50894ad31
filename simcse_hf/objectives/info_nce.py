"""InfoNCE, SimCSE's loss: in-batch negatives, hard negatives and their weight."""

import math

import torch
from torch import nn
from transformers.utils import logging

from ..ops.distributed import gather_rows, world
from .chunked_info_nce import Candidates, chunked_loss, plain_loss

logger = logging.get_logger(__name__)

#: The default temperature of each similarity. SimCSE, Table D.1: 0.05 for the cosine; "N/A" is a dot product as it is.
DEFAULT_TEMPERATURES = {"cosine": 0.05, "dot": 1.0}
SIMILARITIES = tuple(DEFAULT_TEMPERATURES)
#: Above this number of logits the loss is computed in chunks.
PLAIN_LOGITS = 2**20


def as_full_precision(embeddings: torch.Tensor) -> torch.Tensor:
    """Cast half precision to float32: at temperature 0.05 a bfloat16 logit is off by up to 0.03."""
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings


def resolve_temperature(temperature: float | None, similarity: str) -> float:
    """Check a temperature and a similarity, and fill in the default temperature of the similarity.

    Args:
        temperature (`float`, *optional*): The temperature, or `None` for `DEFAULT_TEMPERATURES[similarity]`.
        similarity (`str`): `"cosine"` or `"dot"`.

    Returns:
        `float`: The temperature.

    Raises:
        ValueError: If the similarity is unknown, or the temperature is not a finite number above 0.
    """
    if similarity not in DEFAULT_TEMPERATURES:
        raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
    if temperature is None:
        temperature = DEFAULT_TEMPERATURES[similarity]
        if similarity != "cosine":
            logger.info(f"The temperature is {temperature}, the default for similarity {similarity!r}.")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return temperature


class InfoNCE(nn.Module):
    r"""Cross-entropy of finding an anchor's positive among all positives and hard negatives of the batch.

    Let s(a, b) be the cosine or the dot product, divided by the temperature tau. For anchors h_i, positives h+_j and
    hard negatives h-_jm (SimCSE, arXiv:2104.08821, Eq. 1, 4, 5 and 8):

        l_i = -log ( e^{s(h_i, h+_i)} / sum_j ( e^{s(h_i, h+_j)} + sum_m alpha^{[i=j]} e^{s(h_i, h-_jm)} ) )

    Eq. 4 (unsupervised) is Eq. 1 with positives from a second dropout mask. Without hard negatives the inner sum is
    empty. Eq. 5 is alpha = 1, and Eq. 8 any alpha. The weight applies to a row's own hard negatives only; those of
    other rows count once.

    With `symmetric` the loss is NT-Xent (SimCLR, arXiv:2002.05709, Eq. 1): each of the 2N anchors and positives looks
    for its partner among the other 2N - 1, of which 2N - 2 are negatives, and the loss is the mean of 2N terms. Hard
    negatives count in both directions with the same weight, because what contradicts a text also contradicts what
    follows from it.

    With `false_negative_margin` m, a candidate whose similarity to a query exceeds that of its positive by more
    than m is left out of the sum: it is probably an unlabelled positive. GISTEmbed (Solatorio 2024, arXiv:2402.16829)
    does so with m = 0 and the similarities of a second, frozen model, and NV-Retriever (Moreira et al. 2024,
    arXiv:2407.15831) when it mines. Here the similarities are those of the embeddings in the loss.

    Each term is computed as softplus(logsumexp over the others of (s_other - s_positive)). Its gradient stays accurate
    in float32 when the loss is nearly 0 and softmax(positive) rounds to 1. Large batches are computed in chunks:
    memory then grows with the number of embeddings instead of its square, and the loss can be differentiated once.

    Args:
        temperature (`float`, *optional*): tau, above 0. Defaults to 0.05 for the cosine and to 1 for the dot product,
            the paper's choices (Table D.1).
        similarity (`str`, *optional*, defaults to `"cosine"`): `"cosine"` or `"dot"`.
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): The *logarithm* of alpha, which is added to the
            logits of a row's own hard negatives, as in the reference implementation.
        hard_negative_alpha (`float`, *optional*): alpha itself, above 0, instead of `hard_negative_weight`.
        symmetric (`bool`, *optional*, defaults to `False`): Whether positives look for their anchors as well.
        false_negative_margin (`float`, *optional*): m, in units of the similarity, not divided by the temperature. By
            default every candidate counts.

    Raises:
        ValueError: If the temperature or alpha is not above 0, the similarity is unknown, both weight and alpha are
            given, or the margin is not finite.
    """

    def __init__(
        self,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        hard_negative_alpha: float | None = None,
        symmetric: bool = False,
        false_negative_margin: float | None = None,
    ):
        super().__init__()
        self.temperature = resolve_temperature(temperature, similarity)
        self.similarity = similarity
        self.hard_negative_weight = log_weight(hard_negative_weight, hard_negative_alpha)
        self.symmetric = symmetric
        if false_negative_margin is not None and not math.isfinite(false_negative_margin):
            raise ValueError(f"false_negative_margin must be a finite number, got {false_negative_margin}")
        self._logit_margin = None if false_negative_margin is None else false_negative_margin / self.temperature

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
        """Compute the mean loss of the anchors and, with `symmetric`, of their positives.

        Args:
            anchors (`torch.Tensor`): Embeddings of shape `(n, dim)`.
            positives (`torch.Tensor`): Embeddings of shape `(N, dim)` with N >= n. The positives of the anchors start
                at row `first_positive`: with several processes, each has its own anchors and all positives.
            negatives (`torch.Tensor`, *optional*): Hard negatives of shape `(N, k, dim)`, k for each row.
            first_positive (`int`, *optional*, defaults to `0`): Row of the first anchor's positive.
            all_anchors (`torch.Tensor`, *optional*): The anchors of all positives, of shape `(N, dim)`. Required with
                `symmetric` if N > n.
            extra_negatives (`torch.Tensor`, *optional*): Candidates of shape `(q, dim)` that are nobody's positive,
                such as a queue.
            text_ids (`torch.Tensor`, *optional*): Integers of shape `(N, 2 + k)`, equal for equal texts: the ids of
                the anchor, the positive and the hard negatives of each row. A candidate with the text of the anchor or
                of its positive is left out, so that a repeated text is no negative of itself. Extra negatives are
                never left out.

        Returns:
            `torch.Tensor`: A scalar in float32 or wider. Loss and gradient of an anchor with a single candidate are 0.

        Raises:
            ValueError: If the shapes do not fit together.
        """
        n, total = len(anchors), len(positives)
        if first_positive + n > total:
            raise ValueError(f"{n} anchors from row {first_positive} need {first_positive + n} positives, got {total}")
        if negatives is not None and len(negatives) != total:
            raise ValueError(f"there are {total} positives, and negatives of {len(negatives)} rows: give both per row")
        per_row = 0 if negatives is None else negatives.shape[1]
        if text_ids is not None and text_ids.shape != (total, 2 + per_row):
            raise ValueError(f"text_ids must be {(total, 2 + per_row)}, one per text, got {tuple(text_ids.shape)}")
        if self.symmetric and all_anchors is None:
            all_anchors = anchors
        if self.symmetric and all_anchors is not None and len(all_anchors) != total:
            raise ValueError(f"{total} positives and {len(all_anchors)} anchors: symmetric needs all_anchors")
        # The columns of the logits are blocks: positives, then anchors if symmetric, hard negatives, extra negatives.
        # Two rows with two hard negatives each: p0 p1 | n00 n01 n10 n11. Row 1 has its positive in column 1 and its
        # own hard negatives in columns 2 + 1 * 2 + {0, 1} = 4 and 5.
        positive_rows = first_positive + torch.arange(n, device=anchors.device)
        blocks = [positives]
        if all_anchors is not None and self.symmetric:
            blocks.append(all_anchors)
        num_views = len(blocks)
        if negatives is not None and per_row:
            blocks.append(negatives.flatten(0, 1))
        weighted = None
        if per_row and self.hard_negative_weight:
            weighted = (
                num_views * total
                + positive_rows[:, None] * per_row
                + torch.arange(per_row, device=positive_rows.device)
            )
        query_ids = column_ids = None
        if text_ids is not None:
            query_ids = text_ids[first_positive : first_positive + n, :2]
            column_ids = torch.cat([*[text_ids[:, 1], text_ids[:, 0]][:num_views], text_ids[:, 2:].flatten()])
        if extra_negatives is not None:
            blocks.append(extra_negatives)

        def mean_loss(queries: torch.Tensor, columns: torch.Tensor, left_out: torch.Tensor | None) -> torch.Tensor:
            roles = (columns, left_out, weighted, self.hard_negative_weight, query_ids, column_ids)
            candidates = Candidates(*roles, self._logit_margin)
            return self._mean(queries, blocks, candidates)

        if not self.symmetric:
            return mean_loss(anchors, positive_rows, None)
        # A query is a candidate of the others but not of itself: anchor i stands in column total + i.
        forth = mean_loss(anchors, positive_rows, positive_rows + total)
        back = mean_loss(positives[first_positive : first_positive + n], positive_rows + total, positive_rows)
        return (forth + back) / 2

    def of_columns(
        self,
        embeddings: torch.Tensor,
        *,
        gather: bool,
        extra_negatives: torch.Tensor | None = None,
        text_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the loss of column 0 against column 1, with the further columns as hard negatives.

        With `gather`, 2 processes of 3 rows each: process 1 has anchors 3 to 5 and gathers the positives of rows 0 to
        5, so its first positive is row 1 * 3 = 3.

        Args:
            embeddings (`torch.Tensor`): This process's rows, of shape `(n, 2 + k, dim)`.
            gather (`bool`): Whether to use the rows of all processes. In evaluation each process uses its own.
            extra_negatives (`torch.Tensor`, *optional*): See [`forward`].
            text_ids (`torch.Tensor`, *optional*): See [`forward`]; of this process's rows.

        Returns:
            `torch.Tensor`: A scalar.
        """
        anchors, first = embeddings[:, 0], 0
        shared = embeddings if self.symmetric else embeddings[:, 1:]  # with symmetric, anchors are candidates too
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
    """Return the log weight of a row's own hard negatives, which may be given as weight or as alpha.

    Args:
        weight (`float`): The logarithm of alpha.
        alpha (`float`, *optional*): alpha itself.

    Returns:
        `float`: The logarithm of alpha.

    Raises:
        ValueError: If alpha is not above 0, or both are given.
    """
    if alpha is None:
        return weight
    if weight:
        raise ValueError(
            f"hard_negative_weight ({weight}) and hard_negative_alpha ({alpha}) are both given: give one, "
            "not both (alpha = exp(hard_negative_weight))"
        )
    if not alpha > 0:
        raise ValueError(f"hard_negative_alpha must be above 0, got {alpha}")
    return math.log(alpha)
