"""Pack the tokens of a padded batch into one row without padding, and unpack them again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import torch

REGISTER_WIDTH = 16  # float32 numbers in a CPU's widest register; torch's softmax is ten times slower on shorter rows
WIDTH_STEP = 8  # of block widths: a coarser step computes more padding, a finer one makes more and smaller products


@dataclass
class Packing:
    """Where the tokens of a padded batch `(batch, length)` lie in a packed row of T tokens.

    The sentences stand one behind the other, the longest first, so that sentences of similar length are neighbours.
    Five tokens in a batch of three rows and four columns:

        batch      flat index      packed row     a  b  c  d  e
        a b c .    0  1  2  3      token_index    0  1  2  8  9
        . . . .    4  5  6  7      position_ids   0  1  2  0  1
        d e . .    8  9 10 11      starts 0, 3    rows 0, 2    lengths 3, 2

    Args:
        shape (`tuple[int, int]`): Shape of the batch, `(batch, length)`.
        token_index (`torch.Tensor`): Flat index of each packed token in the batch, of shape `(T,)`.
        position_ids (`torch.Tensor`): Column of each packed token, of shape `(1, T)`.
        starts (`torch.Tensor`): Where each sentence starts in the packed row, of shape `(sentences,)`.
        rows (`torch.Tensor`): The row of the batch that each sentence came from; rows without tokens have none.
        lengths (`torch.Tensor`): Number of tokens of each sentence, on the CPU.
        first_only (`bool`, *optional*, defaults to `False`): Whether the last layer computes the first token of each
            sentence only.
    """

    shape: tuple[int, int]
    token_index: torch.Tensor
    position_ids: torch.Tensor
    starts: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    first_only: bool = False
    _block_index: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def from_mask(cls, attention_mask: torch.Tensor, first_only: bool = False) -> "Packing":
        """Make the packing of a batch from its attention mask; an accelerator is synchronised once.

        Args:
            attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
            first_only (`bool`, *optional*, defaults to `False`): See the class.

        Returns:
            [`Packing`]: With its tensors on the device of the mask.
        """
        device, mask = attention_mask.device, attention_mask.cpu().bool()
        lengths = mask.sum(1)
        order = lengths.argsort(descending=True, stable=True)
        order = order[: int((lengths > 0).sum())]
        sentences, columns = mask[order].nonzero(as_tuple=True)
        lengths = lengths[order]
        token_index, starts = order[sentences] * mask.shape[1] + columns, lengths.cumsum(0) - lengths
        index, position_ids, starts, rows = (
            x.to(device, non_blocking=True) for x in (token_index, columns[None], starts, order)
        )
        return cls((mask.shape[0], mask.shape[1]), index, position_ids, starts, rows, lengths, first_only)

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        """Pack `(batch, length)` values into a row `(1, T)`."""
        return x.reshape(-1)[self.token_index][None]

    def unpack(self, x: torch.Tensor) -> torch.Tensor:
        """Unpack `(T, dim)` values into `(batch, length, dim)`, with zeros in the padding."""
        batch, length = self.shape
        return x.new_zeros(batch * length, x.shape[-1]).index_copy(0, self.token_index, x).view(batch, length, -1)

    @cached_property
    def token_mask(self) -> torch.Tensor:
        """The boolean attention mask `(batch, length)`, made once for all layers."""
        return self.unpack(torch.ones_like(self.token_index, dtype=torch.bool)[:, None])[:, :, 0]

    def first_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first token of each row as `(batch, dim)`, with zeros for rows without tokens.

        Args:
            x (`torch.Tensor`): The last layer's output: `(T, dim)`, or `(sentences, dim)` with `first_only`.

        Returns:
            `torch.Tensor`: Of shape `(batch, dim)`.
        """
        first = x if self.first_only else x[self.starts]
        return x.new_zeros(self.shape[0], x.shape[-1]).index_copy(0, self.rows, first)

    # --- blocks of sentences of similar length, for attention on a CPU ----------------------------------------------

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sentence."""
        return int(self.lengths[0])

    @cached_property
    def groups(self) -> list[tuple[int, int, int]]:
        """`(first token, number of sentences, length)` of each run of sentences that have the same length."""
        groups, start = [], 0
        for length, run in groupby(self.lengths.tolist()):
            count = len(list(run))
            groups.append((start, count, length))
            start += count * length
        return groups

    @cached_property
    def blocks(self) -> list["Block"]:
        """Runs of sentences whose lengths round up to the same width."""
        widths = [
            n if n == 1 else max(REGISTER_WIDTH, -(-n // WIDTH_STEP) * WIDTH_STEP) for n in self.lengths.tolist()
        ]
        blocks, first = [], 0
        for width, run in groupby(widths):
            count = len(list(run))
            padding = torch.arange(width) >= self.lengths[first : first + count, None]
            blocks.append(Block(first, count, width, padding if padding.any() else None))
            first += count
        return blocks

    def to_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """Lay out packed heads as the rows of the blocks.

        Args:
            x (`torch.Tensor`): Packed heads `(T, heads, size)`, or `(sentences, heads, size)` for first tokens.

        Returns:
            `torch.Tensor`: Of shape `(block rows, size)`: block by block, sentence by sentence, head by head, `width`
            rows each. Rows beyond a sentence's end repeat its last token; of first tokens there is one row each.
        """
        rows = x.flatten(0, 1)
        return rows if len(x) == len(self.starts) else _Reorder.apply(rows, *self._orders(x.shape[1]))

    def from_blocks(self, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return the rows of the blocks to a packed tensor of this shape; the inverse of [`to_blocks`]."""
        if shape[0] != len(self.starts):
            to_blocks, from_blocks = self._orders(shape[1])
            rows = _Reorder.apply(rows, from_blocks, to_blocks)
        return rows.view(shape)

    def _orders(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the index that lays heads out in blocks, and its inverse.

        With two heads, the five tokens of the class are ten rows, `token * heads + head`: a0 a1 b0 b1 c0 c1 d0 d1 e0
        e1.
        Both sentences fall into one block of width 16, which has 2 * 2 * 16 rows:

            to_blocks     0 2 4 4 ... (a0 b0 c0 c0 ...)   1 3 5 5 ...   6 8 8 ... (d0 e0 e0 ...)   7 9 9 ...
            from_blocks   0 16 1 17 2 18 (a0 a1 b0 b1 c0 c1)   32 48 33 49 (d0 d1 e0 e1)

        One index for the whole batch copies faster than strided views of each block.
        """
        if heads not in self._block_index:
            to_blocks, from_blocks, rows_so_far = [], [], 0
            for block in self.blocks:
                sentences = slice(block.first, block.first + block.count)
                column, head = torch.arange(block.width), torch.arange(heads)
                token = self.starts[sentences, None] + torch.minimum(column, self.lengths[sentences, None] - 1)
                to_blocks.append((token[:, None] * heads + head[:, None]).flatten())
                block_rows = torch.arange(rows_so_far, rows_so_far + len(to_blocks[-1]))
                rows_so_far += len(block_rows)
                block_rows = block_rows.view(block.count, heads, block.width).transpose(1, 2)
                from_blocks.append((block_rows if block.padding is None else block_rows[~block.padding]).flatten())
            self._block_index[heads] = torch.cat(to_blocks), torch.cat(from_blocks)
        return self._block_index[heads]


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
    padding: torch.Tensor | None


class _Reorder(torch.autograd.Function):
    """Pick rows by an index; pick the gradient by the inverse index, which is much faster than adding rows up.

    An index with repeated rows has no inverse. Here the repeated rows are a block's padding: attention neither reads
    them nor gives them a gradient, so what stands there does not matter in either direction.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.index, ctx.inverse = index, inverse
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _Reorder.apply(gradient, ctx.inverse, ctx.index), None, None
