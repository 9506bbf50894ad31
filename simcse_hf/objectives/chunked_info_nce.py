"""The rows of InfoNCE: which candidate counts for which query, and their loss in constant memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

#: Logits that are held at a time: 32 MB in float32.
CHUNK_LOGITS = 2**23
_SMALLEST_NORM = 1e-12  # as in F.normalize
_ROWS_OF_A_PASS = 1024


@dataclass(frozen=True)
class Candidates:
    """Which columns of a query's row of logits are its positive, weighted, or left out.

    Args:
        own: (m,), the column of each of the m queries' positive.
        left_out: (m,), a column that does not count for the query (in NT-Xent: the query itself), or None.
        weighted: (m, k), columns whose logit gets `log_weight` added, or None.
        log_weight: what is added there.
        query_ids: (m, 2), ids of the texts of each query and of its positive, or None.
        column_ids: ids of the texts of the first columns; those that equal one of `query_ids` are left out, except
            `own`. The columns behind them have no id and stay.
    """

    own: torch.Tensor
    left_out: torch.Tensor | None = None
    weighted: torch.Tensor | None = None
    log_weight: float = 0.0
    query_ids: torch.Tensor | None = None
    column_ids: torch.Tensor | None = None

    def keep_others_(self, logits: torch.Tensor, rows: slice, nothing: float) -> torch.Tensor:
        """Weights the logits of these rows in place and writes `nothing` where a column is no other candidate."""
        if self.weighted is not None and self.log_weight:
            columns = self.weighted[rows]
            logits.scatter_add_(1, columns, torch.full_like(columns, self.log_weight, dtype=logits.dtype))
        if self.query_ids is not None:
            known = logits[:, : len(self.column_ids)]
            for ids in self.query_ids[rows].unbind(1):
                known.masked_fill_(ids[:, None] == self.column_ids, nothing)
        for columns in (self.own, self.left_out):
            if columns is not None:
                logits.scatter_(1, columns[rows, None], nothing)
        return logits


def plain_loss(
    queries: torch.Tensor, blocks: Sequence[torch.Tensor], candidates: Candidates, temperature: float, cosine: bool
) -> torch.Tensor:
    """Mean loss of the queries over all logits at once; arguments as for [`chunked_loss`]."""
    columns = torch.cat(list(blocks)) if len(blocks) > 1 else blocks[0]
    if cosine:
        queries, columns = F.normalize(queries, dim=-1), F.normalize(columns, dim=-1)
    logits = queries @ columns.T / temperature
    positive = logits.gather(1, candidates.own[:, None])
    # Not -inf: a row where every other candidate is left out has loss 0 and, so, gradient 0 instead of NaN.
    others = candidates.keep_others_(logits - positive, slice(None), torch.finfo(logits.dtype).min)
    return (F.softplus(torch.logsumexp(others, dim=1)) + 0.0 * positive[:, 0]).mean()


def chunked_loss(
    queries: torch.Tensor, blocks: Sequence[torch.Tensor], candidates: Candidates, temperature: float, cosine: bool
) -> torch.Tensor:
    """Mean loss of the queries over a few rows of logits at a time.

    Beside inputs and gradients it holds `CHUNK_LOGITS` numbers. The gradient is made with the loss, while a chunk's
    logits are there, so nothing is multiplied twice. It can be differentiated once.

    Args:
        queries: (m, dim), in float32 or wider.
        blocks: (M_1, dim), (M_2, dim), ...: the candidates, columns of the logits in this order.
        candidates: what the columns are to each query.
        temperature: the logits' divisor.
        cosine: whether vectors are normalised.
    """
    return _ChunkedLoss.apply(candidates, temperature, cosine, queries, *blocks)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, candidates, temperature, cosine, queries, *blocks):
        ctx.save_for_backward(queries, *blocks)
        ctx.settings = candidates, temperature, cosine
        loss, ctx.gradients = _loss_and_gradients(queries, blocks, *ctx.settings, any(ctx.needs_input_grad))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gradients, ctx.gradients = ctx.gradients, None  # ours to write to; a second backward makes them anew
        if gradients is None:
            queries, *blocks = ctx.saved_tensors
            gradients = _loss_and_gradients(queries, blocks, *ctx.settings, True)[1]
        needed = ctx.needs_input_grad[3:]
        return None, None, None, *(g.mul_(grad) if need else None for g, need in zip(gradients, needed, strict=True))


def _loss_and_gradients(queries, blocks, candidates, temperature, cosine, with_gradients):
    """The mean loss and the gradients of queries and blocks."""
    rows_of_chunk = max(1, CHUNK_LOGITS // sum(map(len, blocks)))
    query_scale = _scale(queries, cosine)
    column_scales = [_scale(block, cosine) for block in blocks]
    gradients = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (queries, *blocks)]
    gradients = gradients if with_gradients else None
    total = queries.new_zeros(())
    buffer = queries.new_empty(min(rows_of_chunk, len(queries)), sum(map(len, blocks)))
    for start in range(0, len(queries), rows_of_chunk):
        rows = slice(start, min(start + rows_of_chunk, len(queries)))
        chunk = queries[rows] * (query_scale[rows, None] if cosine else 1.0) / temperature
        logits = buffer[: len(chunk)]
        parts = logits.split([len(block) for block in blocks], dim=1)
        for part, block, scale in zip(parts, blocks, column_scales, strict=True):
            torch.mm(chunk, block.T, out=part)
            if cosine:
                part.mul_(scale)
        own = candidates.own[rows, None]
        positive = logits.gather(1, own)
        candidates.keep_others_(logits, rows, float("-inf"))
        largest = logits.amax(1, keepdim=True)
        largest = largest.masked_fill(largest == float("-inf"), 0.0)
        weights = logits.sub_(largest).exp_()
        sums = weights.sum(1, keepdim=True)
        margin = largest - positive + sums.log()
        total += (F.softplus(margin) + 0.0 * positive).sum()
        if not with_gradients:
            continue
        # d loss / d logit is sigmoid(margin) * (weight / sum), and -sigmoid(margin) for the positive. The sum is 1 or
        # more, or 0 where nothing else counts.
        share = margin.sigmoid() / sums.clamp(min=1.0) / len(queries)
        weights.scatter_(1, own, -sums)
        shared = chunk * share
        own_gradient = gradients[0][rows]
        for part, block, scale, gradient in zip(parts, blocks, column_scales, gradients[1:], strict=True):
            gradient.addmm_(part.T, shared)
            if cosine:
                part.mul_(scale)
            own_gradient.addmm_(part, block)
        own_gradient.mul_(share / temperature)
    if with_gradients and cosine:
        for vectors, scale, gradient in zip((queries, *blocks), (query_scale, *column_scales), gradients, strict=True):
            _through_normalisation_(gradient, vectors, scale)
    return total / len(queries), gradients


def _scale(vectors: torch.Tensor, cosine: bool) -> torch.Tensor | None:
    return torch.linalg.vector_norm(vectors, dim=1).clamp(min=_SMALLEST_NORM).reciprocal() if cosine else None


def _through_normalisation_(gradient: torch.Tensor, vectors: torch.Tensor, scale: torch.Tensor) -> None:
    """The gradient of the normalised vectors becomes that of the vectors, in place."""
    for start in range(0, len(vectors), _ROWS_OF_A_PASS):
        rows = slice(start, start + _ROWS_OF_A_PASS)
        units = vectors[rows] * scale[rows, None]
        along = (units * gradient[rows]).sum(1, keepdim=True)
        gradient[rows].sub_(units.mul_(along)).mul_(scale[rows, None])
