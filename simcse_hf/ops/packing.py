"""Packed texts without padding: their layout in memory, and attention over them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
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
        lengths (`torch.Tensor`): Number of tokens of each sentence, on the CPU.
        first_only (`bool`, *optional*, defaults to `False`): Whether the last layer computes the first token of each
            sentence only.
    """

    shape: tuple[int, int]
    token_index: Tensor
    position_ids: Tensor
    rows: Tensor
    bounds: Tensor
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
        mask = _mask_on_host(attention_mask, lengths)
        counts = mask.sum(1)
        rows = counts.nonzero()[:, 0]
        if device.type == "cpu":
            rows = rows[counts[rows].argsort(descending=True, stable=True)]
        counts = counts[rows]
        sentences, columns = mask[rows].nonzero(as_tuple=True)
        index = rows[sentences] * length + columns
        bounds = F.pad(counts.cumsum(0), (1, 0)).int()
        positions = columns[None]
        index, positions, rows, bounds = send([index, positions, rows, bounds], device)
        return cls((batch, length), index, positions, rows, bounds, counts, first_only)

    @property
    def starts(self) -> Tensor:
        """Where each sentence starts in the packed row, of shape `(sentences,)`."""
        return self.bounds[:-1]

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sentence."""
        return int(self.lengths.max())

    def pack(self, x: Tensor) -> Tensor:
        """Pack `(batch, length)` values into a row `(1, T)`."""
        return x.reshape(-1).index_select(0, self.token_index)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """Unpack `(T, ...)` values into `(batch, length, ...)`, with zeros in the padding."""
        batch, length = self.shape
        padded = x.new_zeros(batch * length, *x.shape[1:])
        return padded.index_copy_(0, self.token_index, x).unflatten(0, self.shape)

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
        padded = x.new_zeros(batch, x.shape[-1])
        return padded.index_copy_(0, self.rows, first)

    # --- attention on an accelerator: one call for all sentences ----------------------------------------------------

    @cached_property
    def token_mask(self) -> Tensor:
        """The boolean attention mask `(batch, length)`, made once for all layers."""
        return self.unpack(torch.ones_like(self.token_index, dtype=torch.bool))

    # --- blocks of sentences of similar length, for attention on a CPU ----------------------------------------------

    @cached_property
    def widths(self) -> Tensor:
        """The width of each sentence's block, of shape `(sentences,)`: 1, or a multiple of 8 that is at least 16."""
        steps = (self.lengths + WIDTH_STEP - 1) // WIDTH_STEP
        rounded = (steps * WIDTH_STEP).clamp(min=REGISTER_WIDTH)
        return rounded.masked_fill(self.lengths == 1, 1)

    @cached_property
    def blocks(self) -> list["Block"]:
        """Runs of sentences of the same width."""
        widths, counts = self.widths.unique_consecutive(return_counts=True)
        blocks = []
        lengths_by_block = self.lengths.split(counts.tolist())
        for width, lengths in zip(widths.tolist(), lengths_by_block, strict=True):
            is_padding = torch.arange(width) >= lengths[:, None]
            padding = is_padding if is_padding.any() else None
            blocks.append(Block(len(lengths), width, padding))
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
        if len(x) == len(self.lengths):
            return rows
        to_blocks, _ = self._orders(x.shape[1])
        return rows.index_select(0, to_blocks)

    def from_blocks(self, rows: Tensor, heads: int) -> Tensor:
        """Return the rows of the blocks to packed heads; the inverse of [`to_blocks`]."""
        if len(rows) != heads * len(self.lengths):
            _, from_blocks = self._orders(heads)
            rows = rows.index_select(0, from_blocks)
        return rows.unflatten(0, (-1, heads))

    def matrices(self, rows: Tensor, heads: int) -> list[Tensor]:
        """View the rows of each block as one matrix per sentence and head.

        Args:
            rows (`torch.Tensor`): Of shape `(block rows, size)`, as from [`to_blocks`].
            heads (`int`): Number of heads.

        Returns:
            `list[torch.Tensor]`: For each block, its rows as `(sentences * heads, width, size)`, or as `(sentences *
            heads, 1, size)` if they stand for first tokens.
        """
        counts = [heads * block.count for block in self.blocks]
        sizes = counts
        if len(rows) != heads * len(self.lengths):
            sizes = [heads * block.count * block.width for block in self.blocks]
        parts = rows.split(sizes)
        return [part.unflatten(0, (count, -1)) for part, count in zip(parts, counts, strict=True)]

    def _orders(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return the index that lays heads out in blocks, and its inverse.

        With two heads, the five tokens of the class are ten rows, `token * heads + head`: a0 a1 b0 b1 c0 c1 d0 d1 e0
        e1. Both sentences fall into one block of width 16, which has 2 * 2 * 16 rows:

            to_blocks     0 2 4 4 ... (a0 b0 c0 c0 ...)   1 3 5 5 ...   6 8 8 ... (d0 e0 e0 ...)   7 9 9 ...
            from_blocks   0 16 1 17 2 18 (a0 a1 b0 b1 c0 c1)   32 48 33 49 (d0 d1 e0 e1)

        One index for the whole batch copies faster than strided views of each block.
        """
        if heads not in self._block_index:
            first_rows = heads * (self.widths.cumsum(0) - self.widths)
            sentence = torch.arange(len(self.lengths)).repeat_interleave(self.lengths)
            column = torch.arange(len(sentence)) - self.starts[sentence]
            of_head = self.widths[sentence, None] * torch.arange(heads)
            of_token = first_rows[sentence] + column
            from_blocks = (of_token[:, None] + of_head).flatten()
            last_tokens = self.bounds[1:, None].long() - 1
            last_rows = (heads * last_tokens + torch.arange(heads)).flatten()
            repeats = self.widths.repeat_interleave(heads)
            to_blocks = last_rows.repeat_interleave(repeats)
            to_blocks[from_blocks] = torch.arange(len(from_blocks))
            self._block_index[heads] = to_blocks, from_blocks
        return self._block_index[heads]


@dataclass
class Block:
    """Neighbouring sentences whose lengths round up to one width.

    Args:
        count (`int`): Number of sentences.
        width (`int`): Columns of each sentence.
        padding (`torch.Tensor`, *optional*): True where a sentence has no token, of shape `(count, width)`; `None` if
            there is no padding.
    """

    count: int
    width: int
    padding: Tensor | None


def _mask_on_host(mask: Tensor, lengths: np.ndarray | None) -> Tensor:
    """Return a mask of tokens on the CPU; it is not read, and nobody waits for it, if the lengths are known."""
    if lengths is None:
        return mask.cpu().bool()
    ends = torch.as_tensor(lengths)[:, None]
    return torch.arange(mask.shape[1]) < ends


def token_index(mask: Tensor, lengths: np.ndarray | None = None) -> Tensor:
    """Find the tokens of a padded batch.

    Args:
        mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
        lengths (`np.ndarray`, *optional*): Number of tokens of each row, if all padding is on the right. Without them,
            the host waits until an accelerator has computed the mask.

    Returns:
        `torch.Tensor`: The flat index of each token in the batch, of shape `(tokens,)`.
    """
    is_token = _mask_on_host(mask, lengths).flatten()
    index = is_token.nonzero()[:, 0]
    (sent,) = send([index], mask.device)
    return sent


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
    sizes = [len(part) for part in parts]
    sent = joined.to(device, non_blocking=True).split(sizes)
    return [part.view(x.dtype).view(x.shape) for part, x in zip(sent, tensors, strict=True)]


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
    sees_all = window is None or packing.longest <= window + 1
    prefers_blocks = needs_mask(dropout) or (dropout == 0 and packing.longest <= SHORT)
    if sees_all and prefers_blocks:
        return _AttendInBlocks.apply(query, key, value, packing, scaling, dropout)
    # One call of torch's attention for each run of sentences of the same length.
    lengths, counts = packing.lengths.unique_consecutive(return_counts=True)
    num_keys = (lengths * counts).tolist()
    num_queries = num_keys if len(query) == len(key) else counts.tolist()
    queries = query.split(num_queries)
    keys = key.split(num_keys)
    values = value.split(num_keys)
    outputs = []
    for count, *parts in zip(counts.tolist(), queries, keys, values, strict=True):
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in parts)
        mask = _band(k.shape[2], window, key.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
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
        bounds = packing.bounds
        longest = packing.longest
        if first_only:
            bounds = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
            longest = 1
        return flash_attention(
            query,
            key,
            value,
            (bounds, packing.bounds),
            (longest, packing.longest),
            scaling=scaling,
            dropout=dropout,
            window=window,
        )
    mask = packing.token_mask[:, None, None]
    band = _band(packing.shape[1], window, key.device)
    if band is not None:
        mask = mask & band
    # With first tokens as queries every row has a token, and the sentences are the rows.
    q = query[:, None] if first_only else packing.unpack(query)
    k = packing.unpack(key)
    v = packing.unpack(value)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    out = out.transpose(1, 2)
    if first_only:
        return out.squeeze(1)
    return out.flatten(0, 1).index_select(0, packing.token_index)


class _AttendInBlocks(torch.autograd.Function):
    """Attention with one batched product for all sentences and heads of a block, and one draw of all dropout masks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        packing: Packing,
        scaling: float,
        rate: float,
    ) -> Tensor:
        heads = key.shape[1]
        is_trained = any(ctx.needs_input_grad)
        rows = [packing.to_blocks(x) for x in (query, key, value)]
        out = torch.empty_like(rows[0])
        parts = [packing.matrices(x, heads) for x in (*rows, out)]
        sizes = []
        for q, k in zip(parts[0], parts[1], strict=True):
            count, num_queries, _ = q.shape
            sizes.append(count * num_queries * k.shape[1])
        keeps: Sequence[Tensor | None] = [None] * len(sizes)
        keep_scale = 1.0
        if rate > 0:
            masks, keep_scale = keep_mask([sum(sizes)], rate)
            keeps = masks.split(sizes)
        weights = []
        with torch.autocast("cpu", enabled=False):
            for block, keep, q, k, v, o in zip(packing.blocks, keeps, *parts, strict=True):
                scores = _product(q, k.mT, scaling)
                if block.padding is not None:
                    by_head = scores.unflatten(0, (-1, heads))
                    by_head.masked_fill_(block.padding[:, None, None], -torch.inf)
                # Weights have at least float32's precision; they are 0 at padding keys.
                weight = scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))
                if is_trained:
                    if block.padding is not None and q.shape[1] == block.width:
                        # No gradient may flow from rows that stand for no token.
                        by_head = weight.unflatten(0, (-1, heads))
                        by_head.masked_fill_(block.padding[:, None, :, None], 0.0)
                    weights.append(weight)
                dropped = weight
                if keep is not None:
                    dropped = keep.view_as(weight).to(weight.dtype).mul_(weight)
                _product(dropped.to(v.dtype), v, keep_scale, o)
        ctx.save_for_backward(*rows, *weights, *keeps)
        ctx.settings = packing, heads, scaling, keep_scale
        return packing.from_blocks(out, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        packing, heads, scaling, keep_scale = ctx.settings
        saved = ctx.saved_tensors
        end = 3 + len(packing.blocks)
        rows = saved[:3]
        weights = saved[3:end]
        keeps = saved[end:]
        gradients = [torch.empty_like(x) for x in rows]
        of_output = packing.to_blocks(gradient.to(rows[0].dtype))
        parts = [packing.matrices(x, heads) for x in (*rows, of_output, *gradients)]
        for weight, keep, q, k, v, g, dq, dk, dv in zip(weights, keeps, *parts, strict=True):
            dropped = weight
            d_weight = _product(g, v.mT, keep_scale).to(weight.dtype)
            if keep is not None:
                kept = keep.view_as(weight).to(weight.dtype)
                d_weight.mul_(kept)
                dropped = kept.mul_(weight)
            _product(dropped.to(v.dtype).mT, g, keep_scale, dv)
            # The gradient of the scores is weight * (d_weight - sum(d_weight * weight)).
            d_weight.mul_(weight)
            sums = d_weight.sum(-1, keepdim=True)
            d_scores = d_weight.addcmul_(weight, sums, value=-1).to(q.dtype)
            _product(d_scores, k, scaling, dq)
            _product(d_scores.mT, q, scaling, dk)
        d_query, d_key, d_value = (packing.from_blocks(x, heads) for x in gradients)
        return d_query, d_key, d_value, None, None, None


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Compute `scale * a @ b` for batches of matrices, without a pass of its own for the scale."""
    ignored = a.new_empty(())
    return torch.baddbmm(ignored, a, b, beta=0, alpha=scale, out=out)


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
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if query.device.type != "cuda" or not is_half:
        return False
    size = query.shape[-1]
    if size % 8 or size > _LARGEST_HEAD:
        return False
    return _kernel_works(query.device.index or 0, query.dtype, size)


@torch.compiler.assume_constant_result  # torch.compile cannot trace what is asked here
def _kernel_works(device: int, dtype: torch.dtype, size: int) -> bool:
    if not torch.backends.cuda.flash_sdp_enabled():
        return False
    return _probe(torch.device("cuda", device), dtype, size)


@lru_cache
def _probe(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    # The operator is not part of torch's stable interface, and not every build or GPU has it. So its values and
    # gradients of sentences of 5 and 3 tokens are compared with those on the CPU, once for each dtype and head size.
    lengths = torch.tensor([[5], [3]])
    packing = Packing.from_mask(torch.arange(5) < lengths)
    bounds = packing.bounds.to(device)
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(3):
        numbers = torch.randn(8, 2, size, generator=generator)
        drawn.append(numbers.to(dtype))

    def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flash_attention(query, key, value, (bounds, bounds), (5, 5), scaling=size**-0.5)

    def formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, packing, scaling=size**-0.5)

    problem = ""
    try:
        found = _value_and_gradients(kernel, [x.to(device) for x in drawn])
        expected = _value_and_gradients(formula, [x.double() for x in drawn])
        for x, y in zip(found, expected, strict=True):
            error = (x.cpu().double() - y).abs().max()
            allowed = _TOLERANCE * y.abs().max().clamp(min=1)
            if not error <= allowed:  # also where it is NaN
                problem = "its values differ from the formula's"
    except (RuntimeError, TypeError, AttributeError) as raised:
        problem = " ".join(str(raised).split())[:200]
    if problem:
        logger.warning(
            f"torch's flash attention cannot be used for sentences without padding on {device} ({dtype}, heads of "
            f"{size}): {problem}. Slower attention takes its place."
        )
    return not problem


def _value_and_gradients(attention: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in inputs]
    device = inputs[0].device.type
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        out = attention(*inputs)
        gradients = torch.autograd.grad(out.square().sum(), inputs)
    return [out, *gradients]


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
    has_others = flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.math_sdp_enabled()
    if device.type != "cuda" or not flags.cudnn_sdp_enabled() or not has_others:
        yield
        return
    flags.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        flags.enable_cudnn_sdp(True)
