"""Packed texts without padding: their layout in memory, and attention over them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.utils import logging

from .cpu import keep_mask, needs_mask

logger = logging.get_logger(__name__)

REGISTER_WIDTH = 16  # float32 numbers in a CPU's widest register; torch's softmax is ten times slower on shorter rows
WIDTH_STEP = 8  # of block widths: a coarser step computes more padding, a finer one makes more and smaller products


@dataclass
class Packing:
    """Where the tokens of a padded batch `(batch, length)` lie in a packed row of T tokens.

    The sentences stand one behind the other. On a CPU the longest comes first, so that sentences of similar length are
    neighbours; on an accelerator they stay in their order. Five tokens in a batch of three rows and four columns:

        batch      flat index      packed row     a  b  c  d  e
        a b c .    0  1  2  3      token_index    0  1  2  8  9
        . . . .    4  5  6  7      position_ids   0  1  2  0  1
        d e . .    8  9 10 11      bounds 0, 3, 5    rows 0, 2    lengths 3, 2

    Args:
        shape (`tuple[int, int]`): Shape of the batch, `(batch, length)`.
        token_index (`torch.Tensor`): Flat index of each packed token in the batch, of shape `(T,)`.
        position_ids (`torch.Tensor`): Column of each packed token, of shape `(1, T)`.
        rows (`torch.Tensor`): The row of the batch that each sentence came from; rows without tokens have none.
        bounds (`torch.Tensor`): Where each sentence starts in the packed row, and T, of shape `(sentences + 1,)` and
            type int32, which flash attention reads.
        first_token_bounds (`torch.Tensor`): 0, 1, 2, ...: the same for a row of first tokens.
        lengths (`torch.Tensor`): Number of tokens of each sentence, on the CPU.
        first_only (`bool`, *optional*, defaults to `False`): Whether the last layer computes the first token of each
            sentence only.
    """

    shape: tuple[int, int]
    token_index: Tensor
    position_ids: Tensor
    rows: Tensor
    bounds: Tensor
    first_token_bounds: Tensor
    lengths: Tensor
    first_only: bool = False
    _block_index: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def from_mask(
        cls, attention_mask: Tensor, first_only: bool = False, lengths: np.ndarray | None = None
    ) -> "Packing":
        """Make the packing of a batch from its attention mask.

        Args:
            attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
            first_only (`bool`, *optional*, defaults to `False`): See the class.
            lengths (`np.ndarray`, *optional*): Number of tokens of each row, if all padding is on the right. The mask
                is then not read. Without them, the host waits until an accelerator has computed the mask.

        Returns:
            [`Packing`]: With its tensors on the device of the mask.
        """
        device = attention_mask.device
        batch, length = attention_mask.shape
        if lengths is None:
            mask = attention_mask.cpu().bool()
        else:
            mask = torch.arange(length) < torch.as_tensor(lengths)[:, None]
        counts = mask.sum(1)
        if device.type == "cpu":
            rows = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        else:
            rows = counts.nonzero()[:, 0]
        sentences, columns = mask[rows].nonzero(as_tuple=True)
        counts = counts[rows]
        bounds = F.pad(counts.cumsum(0), (1, 0)).int()
        first_bounds = torch.arange(len(rows) + 1, dtype=torch.int32)
        index = rows[sentences] * length + columns
        parts = [index, columns[None], rows, bounds, first_bounds]
        index, positions, rows, bounds, first_bounds = send(parts, device)
        return cls((batch, length), index, positions, rows, bounds, first_bounds, counts, first_only)

    @property
    def starts(self) -> Tensor:
        """Where each sentence starts in the packed row, of shape `(sentences,)`."""
        return self.bounds[:-1]

    def pack(self, x: Tensor) -> Tensor:
        """Pack `(batch, length)` values into a row `(1, T)`."""
        return x.reshape(-1).index_select(0, self.token_index)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """Unpack `(T, dim)` values into `(batch, length, dim)`, with zeros in the padding."""
        batch, length = self.shape
        return x.new_zeros(batch * length, x.shape[-1]).index_copy(0, self.token_index, x).view(batch, length, -1)

    def first_tokens(self, x: Tensor) -> Tensor:
        """Return the first token of each row as `(batch, dim)`, with zeros for rows without tokens.

        Args:
            x (`torch.Tensor`): The last layer's output: `(T, dim)`, or `(sentences, dim)` with `first_only`.

        Returns:
            `torch.Tensor`: Of shape `(batch, dim)`.
        """
        batch, _ = self.shape
        first = x if self.first_only else x.index_select(0, self.starts)
        if len(first) == batch and x.device.type != "cpu":  # the sentences are the rows
            return first
        return x.new_zeros(batch, x.shape[-1]).index_copy(0, self.rows, first)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sentence."""
        return int(self.lengths.max())

    # --- attention on an accelerator: one call for all sentences ----------------------------------------------------

    @cached_property
    def token_mask(self) -> Tensor:
        """The boolean attention mask `(batch, length)`, made once for all layers."""
        return self.unpack(torch.ones_like(self.token_index, dtype=torch.bool)[:, None])[:, :, 0]

    @cached_property
    def padded_index(self) -> Tensor:
        """The packed token of each place of the flat batch, of shape `(batch * length,)`; 0 where there is none."""
        places = torch.arange(len(self.token_index), device=self.token_index.device)
        return places.new_zeros(math.prod(self.shape)).index_copy(0, self.token_index, places)

    def pad_heads(self, x: Tensor) -> Tensor:
        """Unpack heads `(T, heads, size)` into `(batch, heads, length, size)`; some token stands in the padding."""
        padded = _Reorder.apply(x, self.padded_index, self.token_index)
        return padded.unflatten(0, self.shape).transpose(1, 2)

    def pack_heads(self, x: Tensor) -> Tensor:
        """Pack heads `(batch, heads, length, size)` into `(T, heads, size)`."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.token_index)

    # --- blocks of sentences of similar length, for attention on a CPU ----------------------------------------------

    @cached_property
    def groups(self) -> list[tuple[int, int, int]]:
        """`(first token, number of sentences, length)` of each run of sentences that have the same length."""
        groups = []
        start = 0
        for length, run in groupby(self.lengths.tolist()):
            count = len(list(run))
            groups.append((start, count, length))
            start += count * length
        return groups

    @cached_property
    def blocks(self) -> list["Block"]:
        """Runs of sentences whose lengths round up to the same width."""
        blocks = []
        first = 0
        for width, run in groupby(self.lengths.tolist(), _block_width):
            count = len(list(run))
            padding = torch.arange(width) >= self.lengths[first : first + count, None]
            blocks.append(Block(first, count, width, padding if padding.any() else None))
            first += count
        return blocks

    def to_blocks(self, x: Tensor) -> Tensor:
        """Lay out packed heads as the rows of the blocks.

        Args:
            x (`torch.Tensor`): Packed heads `(T, heads, size)`, or `(sentences, heads, size)` for first tokens.

        Returns:
            `torch.Tensor`: Of shape `(block rows, size)`: block by block, sentence by sentence, head by head, `width`
            rows each. Rows beyond a sentence's end repeat its last token; of first tokens there is one row each.
        """
        rows = x.flatten(0, 1)
        return rows if len(x) == len(self.starts) else _Reorder.apply(rows, *self._orders(x.shape[1]))

    def from_blocks(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the rows of the blocks to a packed tensor of this shape; the inverse of [`to_blocks`]."""
        if shape[0] != len(self.starts):
            to_blocks, from_blocks = self._orders(shape[1])
            rows = _Reorder.apply(rows, from_blocks, to_blocks)
        return rows.view(shape)

    def _orders(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return the index that lays heads out in blocks, and its inverse.

        With two heads, the five tokens of the class are ten rows, `token * heads + head`: a0 a1 b0 b1 c0 c1 d0 d1 e0
        e1.
        Both sentences fall into one block of width 16, which has 2 * 2 * 16 rows:

            to_blocks     0 2 4 4 ... (a0 b0 c0 c0 ...)   1 3 5 5 ...   6 8 8 ... (d0 e0 e0 ...)   7 9 9 ...
            from_blocks   0 16 1 17 2 18 (a0 a1 b0 b1 c0 c1)   32 48 33 49 (d0 d1 e0 e1)

        One index for the whole batch copies faster than strided views of each block.
        """
        if heads not in self._block_index:
            to_blocks = []
            from_blocks = []
            first_row = 0
            for block in self.blocks:
                sentences = slice(block.first, block.first + block.count)
                column = torch.arange(block.width)
                head = torch.arange(heads)[:, None]
                token = self.starts[sentences, None] + torch.minimum(column, self.lengths[sentences, None] - 1)
                to_blocks.append((token[:, None] * heads + head).flatten())
                shape = (block.count, heads, block.width)
                rows = torch.arange(first_row, first_row + math.prod(shape)).view(shape).transpose(1, 2)
                first_row += rows.numel()
                if block.padding is not None:
                    rows = rows[~block.padding]
                from_blocks.append(rows.flatten())
            self._block_index[heads] = torch.cat(to_blocks), torch.cat(from_blocks)
        return self._block_index[heads]


def _block_width(length: int) -> int:
    if length == 1:
        return 1
    return max(REGISTER_WIDTH, math.ceil(length / WIDTH_STEP) * WIDTH_STEP)


@dataclass
class Block:
    """Neighbouring sentences whose lengths round up to one width.

    Args:
        first (`int`): The first of the sentences.
        count (`int`): Number of sentences.
        width (`int`): Columns of each sentence: 1, or a multiple of 8 that is at least 16.
        padding (`torch.Tensor`, *optional*): True where a sentence has no token, of shape `(count, width)`; `None` if
            there is no padding.
    """

    first: int
    count: int
    width: int
    padding: Tensor | None


class _Reorder(torch.autograd.Function):
    """Pick rows by an index; pick the gradient by the inverse index, which is much faster than adding rows up.

    An index with repeated rows has no inverse. Here the repeated rows are padding: attention neither reads them nor
    gives them a gradient, so what stands there does not matter in either direction.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.index, ctx.inverse = index, inverse
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Reorder.apply(gradient, ctx.inverse, ctx.index), None, None


def token_index(mask: Tensor, lengths: np.ndarray | None = None) -> Tensor:
    """Find the tokens of a padded batch.

    Args:
        mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
        lengths (`np.ndarray`, *optional*): Number of tokens of each row, if all padding is on the right. Without them,
            the host waits until an accelerator has computed the mask.

    Returns:
        `torch.Tensor`: The flat index of each token in the batch, of shape `(tokens,)`.
    """
    if lengths is None:
        return mask.flatten().nonzero()[:, 0]
    is_token = torch.arange(mask.shape[1]) < torch.as_tensor(lengths)[:, None]
    return send([is_token.flatten().nonzero()[:, 0]], mask.device)[0]


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of numbers to a device, in one transfer that the host does not wait for.

    Args:
        tensors (`Sequence[torch.Tensor]`): Contiguous tensors on the CPU, those with the widest numbers first.
        device (`torch.device`): The device.

    Returns:
        `list[torch.Tensor]`: The tensors on the device.
    """
    if device.type == "cpu":
        return list(tensors)
    parts = [x.flatten().view(torch.uint8) for x in tensors]
    joined = torch.cat(parts)
    if device.type == "cuda":
        joined = joined.pin_memory()  # from other memory, the copy would wait for the work before it
    sent = joined.to(device, non_blocking=True).split(list(map(len, parts)))
    return [part.view(x.dtype).view(x.shape) for part, x in zip(sent, tensors, strict=True)]


HALF_PRECISION = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_TOLERANCE = 0.05  # of the probe, whose values lie around 1 and whose precision is bfloat16's
SHORT = 64  # tokens up to which block products are faster than flash attention without dropout


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    *,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
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
        in_blocks = (packing.to_blocks(x) for x in (query, key, value))
        out = _AttendInBlocks.apply(*in_blocks, packing.blocks, key.shape[1], scaling, dropout)
        return packing.from_blocks(out, query.shape)
    outputs = []
    row = 0
    for start, count, length in packing.groups:
        tokens = slice(start, start + count * length)
        rows = count * length if len(query) == len(key) else count
        parts = (query[row : row + rows], key[tokens], value[tokens])
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in parts)
        mask = _band(length, window, key.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
        row += rows
    return torch.cat(outputs)


def _band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of local attention, or `None` if the window holds all tokens."""
    if window is None or length <= window + 1:
        return None
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs() <= window


def _attend_on_accelerator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    scaling: float,
    dropout: float,
    window: int | None,
) -> Tensor:
    """Attend in one call for all sentences: few kernels matter more than the padding within one of them."""
    first_only = len(query) != len(key)
    if supports_flash(query):
        bounds = packing.first_token_bounds if first_only else packing.bounds, packing.bounds
        longest = 1 if first_only else packing.longest, packing.longest
        return flash_attention(query, key, value, bounds, longest, scaling=scaling, dropout=dropout, window=window)
    mask = packing.token_mask[:, None, None]
    band = _band(packing.shape[1], window, key.device)
    if band is not None:
        mask = mask & band
    # With first tokens as queries every row has a token, and the sentences are the rows.
    q = query[:, :, None] if first_only else packing.pad_heads(query)
    k = packing.pad_heads(key)
    v = packing.pad_heads(value)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.squeeze(2) if first_only else packing.pack_heads(out)


def _matrices(rows: Tensor, blocks: list[Block], heads: int) -> list[Tensor]:
    """View the rows of each block as one matrix per sentence and head.

    Args:
        rows (`Tensor`): Of shape `(block rows, size)`, as from [`Packing.to_blocks`].
        blocks (`list[Block]`): The blocks.
        heads (`int`): Number of heads.

    Returns:
        `list[Tensor]`: For the block of two sentences, two heads and width 16 in `Packing._orders`, the 64 rows as
        `(4, 16, size)`; if the rows stand for first tokens, there are 4, `(4, 1, size)`.
    """
    first_only = len(rows) == heads * sum(block.count for block in blocks)
    sizes = [heads * block.count * (1 if first_only else block.width) for block in blocks]
    parts = zip(rows.split(sizes), blocks, strict=True)
    return [part.unflatten(0, (heads * block.count, -1)) for part, block in parts]


class _AttendInBlocks(torch.autograd.Function):
    """Attention with one batched product for all sentences and heads of a block, and one draw of all dropout masks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: list[Block],
        heads: int,
        scaling: float,
        rate: float,
    ) -> Tensor:
        out = torch.empty_like(query)
        parts = [_matrices(x, blocks, heads) for x in (query, key, value, out)]
        sizes = [q.shape[0] * q.shape[1] * k.shape[1] for q, k in zip(parts[0], parts[1], strict=True)]
        masks, keep_scale = keep_mask([sum(sizes)], rate) if rate > 0 else (None, 1.0)
        keeps = [None] * len(blocks) if masks is None else masks.split(sizes)
        weights = []
        with torch.autocast("cpu", enabled=False):
            for block, keep, q, k, v, o in zip(blocks, keeps, *parts, strict=True):
                scores = _fill_padding(_product(q, k.mT, scaling), block, -torch.inf)
                # Weights have at least float32's precision; they are 0 at padding keys.
                weight = scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))
                dropped = weight
                if any(ctx.needs_input_grad):
                    # No gradient may flow from rows that stand for no token.
                    weights.append(_fill_padding(weight, block, 0.0, queries=True))
                if keep is not None:
                    dropped = keep.view_as(weight).to(weight.dtype).mul_(weight)
                _product(dropped.to(v.dtype), v, keep_scale, o)
        ctx.save_for_backward(query, key, value, masks, *weights)
        ctx.settings = blocks, heads, sizes, scaling, keep_scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, masks, *weights = ctx.saved_tensors
        blocks, heads, sizes, scaling, keep_scale = ctx.settings
        gradients = [torch.empty_like(x) for x in (query, key, value)]
        inputs = (query, key, value, gradient.to(query.dtype), *gradients)
        parts = [_matrices(x, blocks, heads) for x in inputs]
        keeps = [None] * len(blocks) if masks is None else masks.split(sizes)
        for weight, mask, q, k, v, g, dq, dk, dv in zip(weights, keeps, *parts, strict=True):
            dropped = weight
            d_weight = _product(g, v.mT, keep_scale).to(weight.dtype)
            if mask is not None:
                keep = mask.view_as(weight).to(weight.dtype)
                d_weight.mul_(keep)
                dropped = keep.mul_(weight)
            _product(dropped.to(v.dtype).mT, g, keep_scale, dv)
            # The gradient of the scores is weight * (d_weight - sum(d_weight * weight)).
            d_weight.mul_(weight)
            d_scores = d_weight.addcmul_(weight, d_weight.sum(-1, keepdim=True), value=-1).to(q.dtype)
            _product(d_scores, k, scaling, dq)
            _product(d_scores.mT, q, scaling, dk)
        return *gradients, None, None, None, None


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Compute `scale * a @ b` for batches of matrices, without a pass of its own for the scale."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale, out=out)


def _fill_padding(scores: Tensor, block: Block, value: float, queries: bool = False) -> Tensor:
    """Overwrite the entries of padding keys (or queries) in `(sentences * heads, queries, keys)` with `value`."""
    if block.padding is None or queries and scores.shape[1] != block.width:
        return scores
    padding = block.padding[:, None, :, None] if queries else block.padding[:, None, None]
    scores.unflatten(0, (block.count, -1)).masked_fill_(padding, value)
    return scores


# --- torch's flash kernel, on NVIDIA GPUs in half precision ---


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    *,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
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


def supports_flash(query: Tensor) -> bool:
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
    # gradients of sentences of 5 and 3 tokens are compared with those on the CPU, once for each dtype and head size.
    packing = Packing.from_mask(torch.arange(5) < torch.tensor([[5], [3]]))
    bounds = packing.bounds.to(device)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(8, 2, size, generator=generator).to(dtype) for _ in range(3)]
    leaves = [x.to(device).detach().requires_grad_() for x in drawn]
    doubles = [x.double().requires_grad_() for x in drawn]
    problem = ""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            query, key, value = leaves
            out = flash_attention(query, key, value, (bounds, bounds), (5, 5), scaling=size**-0.5)
            found = [out, *torch.autograd.grad(out.square().sum(), leaves)]
            query, key, value = doubles
            out = attend(query, key, value, packing, scaling=size**-0.5)
            expected = [out, *torch.autograd.grad(out.square().sum(), doubles)]
        for x, y in zip(found, expected, strict=True):
            error = (x.cpu().double() - y).abs().max()
            if not error <= _TOLERANCE * y.abs().max().clamp(min=1):  # also where it is NaN
                problem = "its values differ from the formula's"
    except (RuntimeError, TypeError, AttributeError) as raised:
        problem = " ".join(str(raised).split())[:200]
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
