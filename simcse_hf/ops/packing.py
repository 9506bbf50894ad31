"""Pack the tokens of a padded batch into one row without padding, and unpack them again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
