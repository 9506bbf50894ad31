"""Attention within each sentence of a packed row: in blocks on a CPU, in one call of torch's kernels elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.utils import logging

from .cpu import keep_mask, needs_mask
from .packing import Block, Packing

logger = logging.get_logger(__name__)

HALF_PRECISION = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_TOLERANCE = 0.05  # of the probe, whose values lie around 1 and whose precision is bfloat16's
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
    if not windowed and (needs_mask(dropout) or (dropout == 0 and packing.longest <= SHORT)):
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
    mask, length = packing.token_mask[:, None, None], packing.shape[1]
    if window is not None and length > window + 1:
        mask = mask & _band(length, window, key.device)
    # With first tokens as queries every row has a token, and the sentences are the rows.
    q = query[:, :, None] if first_only else packing.pad_heads(query)
    k, v = packing.pad_heads(key), packing.pad_heads(value)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.squeeze(2) if first_only else packing.pack_heads(out)


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
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
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


# --- torch's flash kernel, on NVIDIA GPUs in half precision ---


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int, int],
    *,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> torch.Tensor:
    """Compute softmax(query key^T scaling) value within each sentence, with dropout and a backward pass.

    `torch.nn.attention.varlen` offers the same kernel without dropout, which SimCSE learns from. This function
    therefore calls the operator below it, which torch's nested tensors call as well. With sentences of 3 and 2 tokens
    the bounds are 0, 3, 5. If only first tokens are queries, those of the queries are 0, 1, 2.

    Args:
        query (`torch.Tensor`): Queries of shape `(Q, heads, size)`.
        key (`torch.Tensor`): Keys of shape `(T, heads, size)`.
        value (`torch.Tensor`): Values of shape `(T, heads, size)`.
        bounds (`tuple[torch.Tensor, torch.Tensor]`): Where the sentences begin and end in the queries and in the keys,
            each of shape `(sentences + 1,)` and type int32.
        longest (`tuple[int, int]`): The most queries and the most keys of a sentence.
        scaling (`float`): Factor of the scores.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.
        window (`int`, *optional*): How far a token sees to either side; `None` for the whole sentence.

    Returns:
        `torch.Tensor`: Of the shape of `query`.
    """
    return torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        *bounds,
        *longest,
        dropout,
        False,  # is_causal
        False,  # return_debug_mask
        scale=scaling,
        window_size_left=window,
        window_size_right=window,
    )[0]


def supports_flash(query: torch.Tensor) -> bool:
    """Return whether [`flash_attention`] can be used for these queries.

    Args:
        query (`torch.Tensor`): Queries of shape `(Q, heads, size)`.

    Returns:
        `bool`: True for half precision on an NVIDIA GPU, head sizes that the kernel knows, and a kernel that
        reproduced the formula on a small example; false if flash attention is switched off
        (`torch.nn.attention.sdpa_kernel`).
    """
    size = query.shape[-1]
    if query.device.type != "cuda" or query.dtype not in HALF_PRECISION or size % 8 or size > _LARGEST_HEAD:
        return False
    return _kernel_works(query.device.index or 0, query.dtype, size)


@torch.compiler.assume_constant_result  # torch.compile cannot trace what is asked here
def _kernel_works(device: int, dtype: torch.dtype, size: int) -> bool:
    return torch.backends.cuda.flash_sdp_enabled() and _probe(torch.device("cuda", device), dtype, size)


@lru_cache
def _probe(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    # The operator is not part of torch's stable interface, and not every build or GPU has it. So its values and
    # gradients of sentences of 5 and 3 tokens are compared with the formula, once for each dtype and head size.
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(8, 2, size, generator=generator).to(device, dtype) for _ in range(3)]
    bounds, results = torch.tensor([0, 5, 8], dtype=torch.int32, device=device), []
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            for exact in (False, True):
                leaves = [(x.double() if exact else x.clone()).requires_grad_() for x in drawn]
                if exact:
                    sentences = zip(*(x.transpose(0, 1).split([5, 3], 1) for x in leaves), strict=True)
                    with sdpa_kernel(SDPBackend.MATH):  # whatever else is switched off
                        out = torch.cat([F.scaled_dot_product_attention(*x) for x in sentences], 1).transpose(0, 1)
                else:
                    q, k, v = leaves
                    out = flash_attention(q, k, v, (bounds, bounds), (5, 5), scaling=size**-0.5)
                results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        pairs = zip(*results, strict=True)
        works = all((x.double() - y).abs().max() <= _TOLERANCE * y.abs().max().clamp(min=1) for x, y in pairs)
        problem = "" if works else "its values differ from the formula's"
    except (RuntimeError, TypeError, AttributeError) as error:
        problem = " ".join(str(error).split())[:200]
    if problem:
        logger.warning(
            f"torch's flash attention cannot be used for sentences without padding on {device} ({dtype}, heads of "
            f"{size}): {problem}. Slower attention takes its place."
        )
    return not problem


@contextmanager
def avoid_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Keep torch's attention from choosing the kernels of cuDNN, unless they are all that is switched on.

    cuDNN comes first on Hopper GPUs. It makes a plan for every new shape, which takes milliseconds where nearly all
    batches have a new shape, and some of its kernels round a dropout rate to a multiple of 1/16
    (https://github.com/pytorch/pytorch/pull/174245).

    Args:
        device (`torch.device`): The device of the tensors. Nothing changes unless it is a GPU.
    """
    flags = torch.backends.cuda
    others = (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.math_sdp_enabled())
    if device.type != "cuda" or not flags.cudnn_sdp_enabled() or not any(others):
        yield
        return
    flags.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        flags.enable_cudnn_sdp(True)
