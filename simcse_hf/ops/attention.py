"""Attention within each sentence of a packed batch."""

import torch
import torch.nn.functional as F

from .dropout import keep_mask
from .packing import Block, Packing

SHORT = 64  # tokens, up to which products of whole blocks beat flash attention where there is no dropout


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    *,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> torch.Tensor:
    """softmax(query key^T scaling) value within each sentence.

    Args:
        query: (T, heads, size), or (number of sentences, heads, size) for the first tokens alone.
        key, value: (T, heads, size).
        packing: what lies where.
        scaling: of the scores.
        dropout: rate at which weights are dropped.
        window: how far a token sees to either side; None: to the ends of its sentence.

    Returns:
        Like `query`.
    """
    if query.device.type != "cpu":
        return _attend_padded(query, key, value, packing, scaling, dropout, window)
    windowed = window is not None and packing.longest > window + 1
    if not windowed and (dropout > 0 or packing.longest <= SHORT):
        return _AttendInBlocks.apply(query, key, value, packing, scaling, dropout)
    parts, done = [], 0
    for start, count, length in packing.groups:
        rows = count * length if len(query) == len(key) else count
        q = query[done : done + rows]
        k, v = key[start : start + count * length], value[start : start + count * length]
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
        mask = None if window is None or length <= window + 1 else _band(length, window, key.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        parts.append(out.transpose(1, 2).flatten(0, 1))
        done += rows
    return torch.cat(parts)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() <= window


def _attend_padded(query, key, value, packing, scaling, dropout, window):
    """One call for all sentences: accelerators mind the number of kernels more than the padding within one."""
    n, length = packing.shape
    mask = packing.present[:, None, None]
    if window is not None and length > window + 1:
        mask = mask & _band(length, window, key.device)
    k, v = (packing.unpack(x.flatten(1)).unflatten(-1, x.shape[1:]).transpose(1, 2) for x in (key, value))
    if len(query) == len(key):
        q = packing.unpack(query.flatten(1)).unflatten(-1, query.shape[1:]).transpose(1, 2)
    else:
        q = query.new_zeros(n, *query.shape[1:]).index_copy(0, packing.sentences, query)[:, :, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    out = out.transpose(1, 2)
    return out.flatten(0, 1)[packing.tokens] if len(query) == len(key) else out[packing.sentences, 0]


class _AttendInBlocks(torch.autograd.Function):
    """A block's sentences and heads are one batched product, and dropout's masks are drawn in one go."""

    @staticmethod
    def forward(ctx, query, key, value, packing, scaling, rate):
        ctx.shapes, ctx.packing, ctx.scaling = [x.shape for x in (query, key, value)], packing, scaling
        query, key, value = (packing.heads_first(x) for x in (query, key, value))
        ctx.slices = _slices(packing.blocks, ctx.shapes)
        masks, ctx.keep_scale = keep_mask((ctx.slices[-1][2].stop,), rate) if rate > 0 else (None, 1.0)
        out, weights = torch.empty_like(query), []
        with torch.autocast("cpu", enabled=False):
            for block, (rows, places, pairs, count) in zip(packing.blocks, ctx.slices, strict=True):
                q, k, v = (x.unflatten(0, (count, -1)) for x in (query[rows], key[places], value[places]))
                scores = _product(q, k.mT, scaling)
                wide = torch.promote_types(scores.dtype, torch.float32)
                weight = torch.softmax(_fill_absent(scores, block, -torch.inf), -1, dtype=wide)
                dropped = weight
                if any(ctx.needs_input_grad):
                    # So that nothing flows back from rows that stand for no token.
                    weights.append(_fill_absent(weight, block, 0.0, queries=True))
                if masks is not None:
                    dropped = masks[pairs].view_as(weight).to(weight.dtype).mul_(weight)
                _product(dropped.to(v.dtype), v, ctx.keep_scale, out[rows].unflatten(0, (count, -1)))
        ctx.save_for_backward(query, key, value, masks, *weights)
        return packing.heads_last(out, ctx.shapes[0])

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, masks, *weights = ctx.saved_tensors
        gradient = ctx.packing.heads_first(gradient.to(query.dtype))
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for weight, (rows, places, pairs, count) in zip(weights, ctx.slices, strict=True):
            q, k, v, g = (
                x.unflatten(0, (count, -1)) for x in (query[rows], key[places], value[places], gradient[rows])
            )
            dq, dk, dv = (x.unflatten(0, (count, -1)) for x in (d_query[rows], d_key[places], d_value[places]))
            dropped, d_weight = weight, _product(g, v.mT, ctx.keep_scale).to(weight.dtype)
            if masks is not None:
                keep = masks[pairs].view_as(weight).to(weight.dtype)
                d_weight.mul_(keep)
                dropped = keep.mul_(weight)
            _product(dropped.to(v.dtype).mT, g, ctx.keep_scale, dv)
            d_scores = torch._softmax_backward_data(d_weight, weight, -1, weight.dtype).to(q.dtype)
            _product(d_scores, k, ctx.scaling, dq)
            _product(d_scores.mT, q, ctx.scaling, dk)
        found = (d_query, d_key, d_value)
        gradients = (ctx.packing.heads_last(x, shape) for x, shape in zip(found, ctx.shapes, strict=True))
        return *gradients, None, None, None


def _product(a: torch.Tensor, b: torch.Tensor, scale: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """scale * a b of batches of matrices, scaled within the product and not by a pass of its own."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale, out=out)


def _fill_absent(scores: torch.Tensor, block: Block, value: float, queries: bool = False) -> torch.Tensor:
    """In place, of (sentences * heads, queries, keys): what belongs to keys (or queries) that are no tokens."""
    if block.absent is None or queries and scores.shape[1] != block.width:
        return scores
    absent = block.absent[:, None, :, None] if queries else block.absent[:, None, None]
    scores.view(block.count, -1, *scores.shape[1:]).masked_fill_(absent, value)
    return scores


def _slices(blocks: list[Block], shapes) -> list[tuple[slice, slice, slice, int]]:
    """Of each block: its rows of the queries, of the keys, of the weights, and the number of products in it."""
    (queries, heads, _), (keys, _, _), _ = shapes
    found, row, place, pair = [], 0, 0, 0
    for block in blocks:
        count = block.count * heads
        rows, places = count * (block.width if queries == keys else 1), count * block.width
        pairs = rows * block.width
        found.append((slice(row, row + rows), slice(place, place + places), slice(pair, pair + pairs), count))
        row, place, pair = row + rows, place + places, pair + pairs
    return found
