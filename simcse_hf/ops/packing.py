"""Sentences of a batch one behind the other, the longest first, and back."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import torch

VECTOR = 16  # float32 numbers in a CPU's widest register; torch's softmax is ten times slower over shorter rows
STEP = 8  # widths of blocks: coarser ones compute more padding, finer ones make more, smaller products


@dataclass
class Packing:
    """Where the tokens of a padded batch (n, length) lie in a row of T tokens. Sentences of one length are neighbours.

    Args:
        shape: (n, length).
        tokens: (T,), the place of each token of the row in the flattened batch.
        columns: (1, T), the column of each token.
        firsts: where the sentences begin in the row.
        sentences: the row of the batch that each sentence is; rows without tokens are left out.
        lengths: tokens of each sentence, on the CPU.
        first_only: whether the last layer's output holds the first token of each sentence only.
    """

    shape: tuple[int, int]
    tokens: torch.Tensor
    columns: torch.Tensor
    firsts: torch.Tensor
    sentences: torch.Tensor
    lengths: torch.Tensor
    first_only: bool = False
    _orders: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def from_mask(cls, attention_mask: torch.Tensor, first_only: bool = False) -> "Packing":
        """Of an (n, length) mask, 1 for a token. On an accelerator this waits for the mask, once."""
        device, mask = attention_mask.device, attention_mask.cpu().bool()
        lengths = mask.sum(1)
        order = lengths.argsort(descending=True, stable=True)
        order = order[: int((lengths > 0).sum())]
        rows, columns = mask[order].nonzero(as_tuple=True)
        lengths = lengths[order]
        tensors = (order[rows] * mask.shape[1] + columns, columns[None], lengths.cumsum(0) - lengths, order)
        return cls(tuple(mask.shape), *(x.to(device, non_blocking=True) for x in tensors), lengths, first_only)

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        """(n, length) -> (1, T)."""
        return x.reshape(-1)[self.tokens][None]

    def unpack(self, x: torch.Tensor) -> torch.Tensor:
        """(T, dim) -> (n, length, dim), zero in the padding."""
        n, length = self.shape
        return x.new_zeros(n * length, x.shape[-1]).index_copy(0, self.tokens, x).view(n, length, -1)

    @cached_property
    def present(self) -> torch.Tensor:
        """(n, length), where the tokens are; made once for all layers."""
        return self.unpack(torch.ones_like(self.tokens, dtype=torch.bool)[:, None])[:, :, 0]

    def firsts_of(self, x: torch.Tensor) -> torch.Tensor:
        """(T, dim), or what `first_only` left of it -> (n, dim) first tokens, zero for rows without tokens."""
        first = x if self.first_only else x[self.firsts]
        return x.new_zeros(self.shape[0], x.shape[-1]).index_copy(0, self.sentences, first)

    # --- for attention on a CPU: products of many sentences and heads in one call -----------------------------------

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence."""
        return int(self.lengths[0])

    @cached_property
    def groups(self) -> list[tuple[int, int, int]]:
        """(first token, number of sentences, length) of every run of sentences of one length."""
        found, start = [], 0
        for length, run in groupby(self.lengths.tolist()):
            count = len(list(run))
            found.append((start, count, length))
            start += count * length
        return found

    @cached_property
    def blocks(self) -> list["Block"]:
        """Runs of sentences of about one length."""
        widths = [n if n == 1 else max(VECTOR, -(-n // STEP) * STEP) for n in self.lengths.tolist()]
        found, begun = [], 0
        for width, run in groupby(widths):
            count = len(list(run))
            lengths = self.lengths[begun : begun + count]
            absent = torch.arange(width) >= lengths[:, None]
            found.append(Block(begun, count, width, absent if absent.any() else None))
            begun += count
        return found

    def heads_first(self, x: torch.Tensor) -> torch.Tensor:
        """(T, heads, size) -> (rows, size): block by block, sentence by sentence, head by head, `width` rows each.

        Rows beyond a sentence's end repeat its last token. One vector a sentence, (sentences, heads, size), is one
        row each.
        """
        rows = x.flatten(0, 1)
        return rows if len(x) == len(self.firsts) else rows.index_select(0, self._by_head(x.shape[1])[0])

    def heads_last(self, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """What [`heads_first`] made of a tensor of this shape, back."""
        order = None if shape[0] == len(self.firsts) else self._by_head(shape[1])[1]
        return (rows if order is None else rows.index_select(0, order)).view(shape)

    def _by_head(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        # One index for all sentences: rows picked by it are copied faster than each block's strided ones.
        if heads not in self._orders:
            there, back, begun = [], [], 0
            for block in self.blocks:
                run = slice(block.first, block.first + block.count)
                column, head = torch.arange(block.width), torch.arange(heads)
                token = self.firsts[run, None] + torch.minimum(column, self.lengths[run, None] - 1)
                there.append((token[:, None] * heads + head[:, None]).flatten())
                places = torch.arange(begun, begun + len(there[-1])).view(block.count, heads, block.width)
                begun += len(there[-1])
                places = places.transpose(1, 2)
                back.append((places if block.absent is None else places[~block.absent]).flatten())
            self._orders[heads] = torch.cat(there), torch.cat(back)
        return self._orders[heads]


@dataclass
class Block:
    """Neighbouring sentences whose lengths round up to one `width`.

    Args:
        first: the first of them.
        count: how many they are.
        width: columns, a multiple of 8 and at least 16, or 1.
        absent: (count, width), where a sentence has no token; None: nowhere.
    """

    first: int
    count: int
    width: int
    absent: torch.Tensor | None
