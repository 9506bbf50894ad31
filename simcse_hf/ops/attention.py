"""Attention within each sentence of a packed row."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .dropout import keep_mask
from .flash import flash_attention, supports_flash
from .packing import Block, Packing

SHORT = 64  # tokens up to which block products are faster than flash attention without dropout


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
    """Compute softmax(query key^T scaling) value within each sentence.

    Args:
        query (`torch.Tensor`): Queries of shape `(T, heads, size)`, or `(sentences, heads, size)` for the first token
            of each sentence only.
        key (`torch.Tensor`): Keys of shape `(T, heads, size)`.
        value (`torch.Tensor`): Values of shape `(T, heads, size)`.
        packing (`Packing`): Where the sentences lie.
        scaling (`float`): Factor of the scores.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.
        window (`int`, *optional*): How far a token sees to either side; `None` for the whole sentence.

    Returns:
        `torch.Tensor`: Of the shape of `query`.
    """
    if query.device.type != "cpu":
        return _attend_on_accelerator(query, key, value, packing, scaling, dropout, window)
    windowed = window is not None and packing.longest > window + 1
    if not windowed and (dropout > 0 or packing.longest <= SHORT):
        spans = _spans(packing.blocks, key.shape[1], first_only=len(query) != len(key))
        in_blocks = (packing.to_blocks(x) for x in (query, key, value))
        return packing.from_blocks(_AttendInBlocks.apply(*in_blocks, spans, scaling, dropout), query.shape)
    outputs, row = [], 0
    for start, count, length in packing.groups:
        rows = count * length if len(query) == len(key) else count
        q = query[row : row + rows]
        k, v = key[start : start + count * length], value[start : start + count * length]
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
        mask = None if window is None or length <= window + 1 else _band(length, window, key.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
        row += rows
    return torch.cat(outputs)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs() <= window


def _attend_on_accelerator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Attend in one call for all sentences: few kernels matter more than the padding within one of them."""
    first_only = len(query) != len(key)
    if supports_flash(query):
        bounds = packing.first_token_bounds if first_only else packing.bounds, packing.bounds
        longest = 1 if first_only else packing.longest, packing.longest
        return flash_attention(query, key, value, bounds, longest, scaling=scaling, dropout=dropout, window=window)
    batch, length = packing.shape
    mask = packing.token_mask[:, None, None]
    if window is not None and length > window + 1:
        mask = mask & _band(length, window, key.device)
    if not first_only:
        q = packing.pad_heads(query)
    else:
        if len(query) != batch:
            query = query.new_zeros(batch, *query.shape[1:]).index_copy(0, packing.rows, query)
        q = query[:, :, None]
    k, v = packing.pad_heads(key), packing.pad_heads(value)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    if not first_only:
        return packing.pack_heads(out)
    return (out if len(packing.rows) == batch else out.index_select(0, packing.rows)).squeeze(2)


@dataclass
class _Span:
    """Where one block lies: its rows of the queries and of the keys, and its elements of the attention weights.

    For the block of two sentences, two heads and width 16 in `Packing._orders`: 4 products of 16 x 16, rows 0 to 64 of
    queries and keys, elements 0 to 1024 of the weights. With first tokens as queries: 4 products of 1 x 16, rows 0 to
    4 of the queries, elements 0 to 64 of the weights.
    """

    block: Block
    products: int
    queries: slice
    keys: slice
    weights: slice

    def split(self, rows: torch.Tensor, part: slice) -> torch.Tensor:
        """View the block's part of `rows` as one matrix per sentence and head."""
        return rows[part].unflatten(0, (self.products, -1))


def _spans(blocks: list[Block], heads: int, first_only: bool) -> list[_Span]:
    spans, query, key, weight = [], 0, 0, 0
    for block in blocks:
        products = block.count * heads
        query_end = query + products * (1 if first_only else block.width)
        key_end = key + products * block.width
        weight_end = weight + (query_end - query) * block.width
        parts = slice(query, query_end), slice(key, key_end), slice(weight, weight_end)
        spans.append(_Span(block, products, *parts))
        query, key, weight = query_end, key_end, weight_end
    return spans


class _AttendInBlocks(torch.autograd.Function):
    """Attention with one batched product for all sentences and heads of a block, and one draw of all dropout masks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        spans: list[_Span],
        scaling: float,
        rate: float,
    ) -> torch.Tensor:
        ctx.spans, ctx.scaling = spans, scaling
        masks, ctx.keep_scale = keep_mask((spans[-1].weights.stop,), rate) if rate > 0 else (None, 1.0)
        out, weights = torch.empty_like(query), []
        with torch.autocast("cpu", enabled=False):
            for span in spans:
                q, k, v = (
                    span.split(x, part) for x, part in ((query, span.queries), (key, span.keys), (value, span.keys))
                )
                weight = _softmax(_product(q, k.mT, scaling), span.block)
                dropped = weight
                if any(ctx.needs_input_grad):
                    # No gradient may flow from rows that stand for no token.
                    weights.append(_fill_padding(weight, span.block, 0.0, queries=True))
                if masks is not None:
                    dropped = masks[span.weights].view_as(weight).to(weight.dtype).mul_(weight)
                _product(dropped.to(v.dtype), v, ctx.keep_scale, span.split(out, span.queries))
        ctx.save_for_backward(query, key, value, masks, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: these gradients will be differentiated in turn
            return *_AttendInBlocks._differentiable_gradients(ctx, gradient), None, None, None
        query, key, value, masks, *weights = ctx.saved_tensors
        gradient = gradient.to(query.dtype)
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for weight, span in zip(weights, ctx.spans, strict=True):
            q, g, dq = (span.split(x, span.queries) for x in (query, gradient, d_query))
            k, v, dk, dv = (span.split(x, span.keys) for x in (key, value, d_key, d_value))
            dropped, d_weight = weight, _product(g, v.mT, ctx.keep_scale).to(weight.dtype)
            if masks is not None:
                keep = masks[span.weights].view_as(weight).to(weight.dtype)
                d_weight.mul_(keep)
                dropped = keep.mul_(weight)
            _product(dropped.to(v.dtype).mT, g, ctx.keep_scale, dv)
            d_scores = _softmax_gradient(d_weight, weight).to(q.dtype)
            _product(d_scores, k, ctx.scaling, dq)
            _product(d_scores.mT, q, ctx.scaling, dk)
        return d_query, d_key, d_value, None, None, None

    @staticmethod
    def _differentiable_gradients(ctx: Any, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """Compute the gradients with the same dropout masks from operations that autograd can differentiate again."""
        query, key, value, masks, *_ = ctx.saved_tensors
        outputs = []
        for span in ctx.spans:
            q, k, v = (
                span.split(x, part) for x, part in ((query, span.queries), (key, span.keys), (value, span.keys))
            )
            weight = _softmax(q @ k.mT * ctx.scaling, span.block)
            weight = _fill_padding(weight.clone(), span.block, 0.0, queries=True) * ctx.keep_scale
            if masks is not None:
                weight = weight * masks[span.weights].view_as(weight)
            outputs.append((weight.to(v.dtype) @ v).flatten(0, 1))
        inputs = [x for x in (query, key, value) if x.requires_grad]
        gradients = iter(torch.autograd.grad(torch.cat(outputs), inputs, gradient.to(query.dtype), create_graph=True))
        return [next(gradients) if x.requires_grad else None for x in (query, key, value)]


def _product(a: torch.Tensor, b: torch.Tensor, scale: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """Compute `scale * a @ b` for batches of matrices, without a pass of its own for the scale."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale, out=out)


def _softmax(scores: torch.Tensor, block: Block) -> torch.Tensor:
    """Turn scores into attention weights, which are 0 at padding keys and have at least float32's precision."""
    precision = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(_fill_padding(scores, block, -torch.inf), -1, dtype=precision)


def _softmax_gradient(d_weight: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the scores, `weight * (d_weight - sum(d_weight * weight))`; overwrites `d_weight`."""
    d_weight.mul_(weight)
    return d_weight.addcmul_(weight, d_weight.sum(-1, keepdim=True), value=-1)


def _fill_padding(scores: torch.Tensor, block: Block, value: float, queries: bool = False) -> torch.Tensor:
    """Overwrite the entries of padding keys (or queries) in `(sentences * heads, queries, keys)` with `value`."""
    if block.padding is None or queries and scores.shape[1] != block.width:
        return scores
    padding = block.padding[:, None, :, None] if queries else block.padding[:, None, None]
    scores.view(block.count, -1, *scores.shape[1:]).masked_fill_(padding, value)
    return scores
