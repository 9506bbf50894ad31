"""A candidate for attention of short sentences, in Triton: several whole sentences in one block of 64 or 128 tokens.

A kernel for sentences of any length computes at least one block of scores for each sentence and head: 64 x 64 or more,
where sentences of 22 tokens need 22 x 22. Here a program takes as many neighbouring sentences as surely fit into a
block, and masks the scores between them. Every token is in one block, so that the backward pass adds nothing up in
memory, and its result is the same in every run. `TRITON_INTERPRET=1` runs it on a CPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from simcse_hf.kernels.packing import Packing

BLOCK = 64


@triton.jit
def _weights(q, k, bounds, sentences, start, row, count, scale, GROUP: tl.constexpr):
    """Compute the attention weights of a block, 0 between the tokens of different sentences."""
    first = tl.program_id(0) * GROUP
    owner = tl.where(row < count, 0, -1)
    for i in tl.static_range(1, GROUP):
        begin = tl.load(bounds + tl.minimum(first + i, sentences))
        owner += tl.where((row < count) & (start + row >= begin), 1, 0)
    own = (owner[:, None] == owner[None, :]) & (row < count)[:, None]
    scores = tl.where(own, tl.dot(q, tl.trans(k), out_dtype=tl.float32) * scale, -1.0e30)
    weights = tl.where(own, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
    total = tl.sum(weights, 1)
    return weights / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, g_ptr, out_ptr, dq_ptr, dk_ptr, dv_ptr, bounds, seed_ptr, sentences, heads, scale, rate,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, DROPS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * GROUP
    head = tl.program_id(1)
    start = tl.load(bounds + first)
    count = tl.load(bounds + tl.minimum(first + GROUP, sentences)) - start
    row = tl.arange(0, BLOCK)
    place = ((start + row)[:, None] * heads + head) * SIZE + tl.arange(0, SIZE)[None, :]
    valid = (row < count)[:, None]
    q = tl.load(q_ptr + place, mask=valid, other=0.0)
    k = tl.load(k_ptr + place, mask=valid, other=0.0)
    v = tl.load(v_ptr + place, mask=valid, other=0.0)
    weights = _weights(q, k, bounds, sentences, start, row, count, scale, GROUP)
    keep = tl.full((BLOCK, BLOCK), 1.0, tl.float32)
    if DROPS:
        number = ((start + row)[:, None] * heads + head) * BLOCK + row[None, :]
        keep = tl.where(tl.rand(tl.load(seed_ptr), number) >= rate, 1 / (1 - rate), 0.0)
    dropped = weights * keep
    if not BACKWARD:
        out = tl.dot(dropped.to(v.dtype), v, out_dtype=tl.float32)
        tl.store(out_ptr + place, out.to(v.dtype), mask=valid)
    else:
        g = tl.load(g_ptr + place, mask=valid, other=0.0)
        d_weights = tl.dot(g, tl.trans(v), out_dtype=tl.float32) * keep
        d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale
        d_scores = d_scores.to(q.dtype)
        dv = tl.dot(tl.trans(dropped.to(g.dtype)), g, out_dtype=tl.float32)
        tl.store(dq_ptr + place, tl.dot(d_scores, k, out_dtype=tl.float32).to(q.dtype), mask=valid)
        tl.store(dk_ptr + place, tl.dot(tl.trans(d_scores), q, out_dtype=tl.float32).to(q.dtype), mask=valid)
        tl.store(dv_ptr + place, dv.to(q.dtype), mask=valid)


class _Tile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *settings: Any) -> Tensor:
        inputs = [x.contiguous() for x in (query, key, value)]
        seed = torch.randint(2**31 - 1, (1,), device=query.device)  # A CUDA graph draws it anew in every replay.
        ctx.save_for_backward(*inputs, bounds, seed)
        ctx.settings = settings
        out = torch.empty_like(inputs[0])
        _launch(inputs, [out] * 5, bounds, seed, *settings, backward=False)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, bounds, seed = ctx.saved_tensors
        found = [torch.empty_like(x) for x in inputs]
        _launch(inputs, [gradient.contiguous(), gradient, *found], bounds, seed, *ctx.settings, backward=True)
        return (*found, None, None, None, None)


def _launch(
    inputs: list[Tensor], others: list[Tensor], bounds: Tensor, seed: Tensor, longest: int, scale: float, rate: float,
    backward: bool,
) -> None:  # fmt: skip
    sentences = len(bounds) - 1
    heads, size = inputs[0].shape[1:]
    group = BLOCK // longest
    grid = (triton.cdiv(sentences, group), heads)
    _attend[grid](
        *inputs, *others, bounds, seed, sentences, heads, scale, rate, group, BLOCK, size, rate > 0, backward
    )


def tile_attention(
    packing: Packing, query: Tensor, key: Tensor, value: Tensor, scaling: float | None = None, dropout: float = 0.0
) -> Tensor:
    """Attend as `simcse_hf.kernels.attention.attend_packed` does, with all tokens as queries and no window.

    Args:
        packing (`Packing`): Where the sentences lie; none may have more than 64 tokens.
        query (`torch.Tensor`): Queries of shape `(T, heads, size)`; the size is a power of 2, and at least 16.
        key (`torch.Tensor`): Keys of the same shape.
        value (`torch.Tensor`): Values of the same shape.
        scaling (`float`, *optional*): Factor of the scores. Defaults to `size ** -0.5`.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.

    Returns:
        `torch.Tensor`: Of the shape of `query`.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _Tile.apply(query, key, value, packing.bounds, packing.longest, scale, dropout)
