"""The rows of InfoNCE: which candidates count for which query, and their loss in constant memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

#: Logits that are held at a time: 32 MB in float32.
CHUNK_LOGITS = 2**23
_SMALLEST_NORM = 1e-12  # as in F.normalize
_ROWS_PER_PASS = 1024


@dataclass(frozen=True)
class Candidates:
    """The role of each column in the row of logits of a query.

    Args:
        positive_column (`torch.Tensor`): The column of the positive of each of the m queries, of shape `(m,)`.
        left_out (`torch.Tensor`, *optional*): A column that does not count for the query, of shape `(m,)`. In NT-Xent
            it is the query itself.
        weighted (`torch.Tensor`, *optional*): Columns to whose logits `log_weight` is added, of shape `(m, k)`.
        log_weight (`float`, *optional*, defaults to `0.0`): The logarithm of their weight.
        query_ids (`torch.Tensor`, *optional*): Text ids of each query and of its positive, of shape `(m, 2)`.
        column_ids (`torch.Tensor`, *optional*): Text ids of the first columns. A column whose id equals one of the
            query's ids is left out, except `positive_column`. The columns after them have no id and always count.
        false_negative_margin (`float`, *optional*): Columns whose logit is above the positive's by more than this are
            left out. Weights do not count here.
    """

    positive_column: torch.Tensor
    left_out: torch.Tensor | None = None
    weighted: torch.Tensor | None = None
    log_weight: float = 0.0
    query_ids: torch.Tensor | None = None
    column_ids: torch.Tensor | None = None
    false_negative_margin: float | None = None

    def keep_others_(
        self, logits: torch.Tensor, rows: slice, fill: float, positive: torch.Tensor | float = 0.0
    ) -> torch.Tensor:
        """Weight the logits in place, and overwrite those of every column that is not another candidate.

        Args:
            logits (`torch.Tensor`): Logits of the queries in `rows`.
            rows (`slice`): The queries.
            fill (`float`): The value to write: very small, so that the column adds nothing to a logsumexp.
            positive (`torch.Tensor` or `float`, *optional*, defaults to `0.0`): The logit of each query's positive, of
                shape `(m, 1)`. It is 0 for logits relative to the positive's.

        Returns:
            `torch.Tensor`: `logits`.
        """
        false_negatives = None
        if self.false_negative_margin is not None:
            false_negatives = logits > positive + self.false_negative_margin
        if self.weighted is not None and self.log_weight:
            columns = self.weighted[rows]
            logits.scatter_add_(1, columns, torch.full_like(columns, self.log_weight, dtype=logits.dtype))
        if self.query_ids is not None and self.column_ids is not None:
            with_ids = logits[:, : len(self.column_ids)]
            for ids in self.query_ids[rows].unbind(1):
                with_ids.masked_fill_(ids[:, None] == self.column_ids, fill)
        if false_negatives is not None:
            logits.masked_fill_(false_negatives, fill)
        for excluded in (self.positive_column, self.left_out):
            if excluded is not None:
                logits.scatter_(1, excluded[rows, None], fill)
        return logits


def plain_loss(
    queries: torch.Tensor, blocks: Sequence[torch.Tensor], candidates: Candidates, temperature: float, cosine: bool
) -> torch.Tensor:
    """Compute the mean loss of the queries from all logits at once; the arguments are those of [`chunked_loss`]."""
    columns = torch.cat(list(blocks)) if len(blocks) > 1 else blocks[0]
    if cosine:
        queries, columns = F.normalize(queries, dim=-1), F.normalize(columns, dim=-1)
    logits = queries @ columns.T / temperature
    positive = logits.gather(1, candidates.positive_column[:, None])
    # Not -inf: if every other candidate of a row is left out, its loss is 0, and its gradient is then 0 and not NaN.
    others = candidates.keep_others_(logits - positive, slice(None), torch.finfo(logits.dtype).min)
    return (F.softplus(torch.logsumexp(others, dim=1)) + 0.0 * positive[:, 0]).mean()


def chunked_loss(
    queries: torch.Tensor, blocks: Sequence[torch.Tensor], candidates: Candidates, temperature: float, cosine: bool
) -> torch.Tensor:
    """Compute the mean loss of the queries from a few rows of logits at a time.

    Apart from inputs and gradients it holds `CHUNK_LOGITS` numbers. The gradient is computed together with the loss,
    while the logits of a chunk are there, so no product is computed twice. The loss can be differentiated once.

    Args:
        queries (`torch.Tensor`): Embeddings of shape `(m, dim)`, in float32 or wider.
        blocks (`Sequence[torch.Tensor]`): The candidates, of shapes `(M_1, dim)`, `(M_2, dim)` and so on. They are the
            columns of the logits in this order.
        candidates (`Candidates`): The role of each column for each query.
        temperature (`float`): The divisor of the logits.
        cosine (`bool`): Whether to normalize the embeddings.

    Returns:
        `torch.Tensor`: A scalar.
    """
    return _ChunkedLoss.apply(candidates, temperature, cosine, queries, *blocks)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        candidates: Candidates,
        temperature: float,
        cosine: bool,
        queries: torch.Tensor,
        *blocks: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(queries, *blocks)
        ctx.settings = candidates, temperature, cosine
        needed = any(ctx.needs_input_grad)
        loss, ctx.gradients = _loss_and_gradients(queries, blocks, candidates, temperature, cosine, needed)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # The gradients are scaled in place, so a second backward has to compute them again.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            queries, *blocks = ctx.saved_tensors
            candidates, temperature, cosine = ctx.settings
            gradients = _loss_and_gradients(queries, blocks, candidates, temperature, cosine, True)[1]
        needed = ctx.needs_input_grad[3:]
        return None, None, None, *(g.mul_(grad) if need else None for g, need in zip(gradients, needed, strict=True))


def _loss_and_gradients(
    queries: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    candidates: Candidates,
    temperature: float,
    cosine: bool,
    with_gradients: bool,
) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
    """Return the mean loss and, if requested, the gradients of the queries and of each block.

    For a query with positive logit p and other logits s_k, the loss is softplus(margin) with
    margin = log(sum_k e^{s_k}) - p. Its derivatives are

        d loss / d s_k = sigmoid(margin) * e^{s_k} / sum_k e^{s_k},        d loss / d p = -sigmoid(margin).

    Example: p = 0 and others 0 and 0 give margin = log 2 and sigmoid(margin) = 2/3, so the derivatives are 1/3, 1/3
    and -2/3, as those of softmax cross-entropy over three equal logits. The code keeps e^{s_k} / max and writes -sum
    into the positive's column, so that one factor, sigmoid(margin) / sum, turns the whole row into its derivatives.
    """
    sizes = [len(block) for block in blocks]
    rows_per_chunk = max(1, CHUNK_LOGITS // sum(sizes))
    query_scale = _inverse_norms(queries) if cosine else None
    column_scales = [_inverse_norms(block) if cosine else None for block in blocks]
    gradients = None
    if with_gradients:
        gradients = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (queries, *blocks)]
    total = queries.new_zeros(())
    buffer = queries.new_empty(min(rows_per_chunk, len(queries)), sum(sizes))
    for start in range(0, len(queries), rows_per_chunk):
        rows = slice(start, min(start + rows_per_chunk, len(queries)))
        chunk = queries[rows] * (1.0 if query_scale is None else query_scale[rows, None]) / temperature
        logits = buffer[: len(chunk)]
        parts = logits.split(sizes, dim=1)
        for part, block, scale in zip(parts, blocks, column_scales, strict=True):
            torch.mm(chunk, block.T, out=part)
            if scale is not None:
                part.mul_(scale)
        positive_column = candidates.positive_column[rows, None]
        positive = logits.gather(1, positive_column)
        candidates.keep_others_(logits, rows, float("-inf"), positive)
        largest = logits.amax(1, keepdim=True)
        largest = largest.masked_fill(largest == float("-inf"), 0.0)
        weights = logits.sub_(largest).exp_()
        sums = weights.sum(1, keepdim=True)
        margin = largest - positive + sums.log()
        total += (F.softplus(margin) + 0.0 * positive).sum()
        if gradients is None:
            continue
        # The sum is at least 1, because the largest term is e^0, or 0 if no other candidate counts.
        factor = margin.sigmoid() / sums.clamp(min=1.0) / len(queries)
        weights.scatter_(1, positive_column, -sums)
        weighted_chunk = chunk * factor
        query_gradient = gradients[0][rows]
        for part, block, scale, gradient in zip(parts, blocks, column_scales, gradients[1:], strict=True):
            gradient.addmm_(part.T, weighted_chunk)
            if scale is not None:
                part.mul_(scale)
            query_gradient.addmm_(part, block)
        query_gradient.mul_(factor / temperature)
    if gradients is not None and query_scale is not None:
        for embeddings, scale, gradient in zip(
            (queries, *blocks), (query_scale, *column_scales), gradients, strict=True
        ):
            if scale is not None:
                _backward_through_normalization_(gradient, embeddings, scale)
    return total / len(queries), gradients


def _inverse_norms(embeddings: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(embeddings, dim=1).clamp(min=_SMALLEST_NORM).reciprocal()


def _backward_through_normalization_(gradient: torch.Tensor, embeddings: torch.Tensor, scale: torch.Tensor) -> None:
    """Turn the gradient g of u = x / |x| into that of x, in place: (g - (g . u) u) / |x|."""
    for start in range(0, len(embeddings), _ROWS_PER_PASS):
        rows = slice(start, start + _ROWS_PER_PASS)
        units = embeddings[rows] * scale[rows, None]
        along = (units * gradient[rows]).sum(1, keepdim=True)
        gradient[rows].sub_(units.mul_(along)).mul_(scale[rows, None])
