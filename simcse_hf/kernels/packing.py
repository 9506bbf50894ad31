"""Where the tokens of a batch lie in one row without padding, in which the sentences stand one behind the other."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
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
        . . . .    4  5  6  7      bounds 0, 3, 5    rows 0, 2    lengths 3, 2
        d e . .    8  9 10 11

    Compiled code and CUDA graphs need shapes that do not change from batch to batch. Sentences that nothing reads then
    fill the packed row up to a multiple of some number of tokens. Their tokens have the flat index behind the batch,
    and their row is the one behind the batch. With a multiple of 4, a batch of five tokens gets two of them:

        packed row     a  b  c  d  e  x  x  x
        token_index    0  1  2  8  9 12 12 12
        bounds 0, 3, 5, 7, 8    rows 0, 2, 3, 3    lengths 3, 2, 2, 1

    Args:
        shape (`tuple[int, int]`): Shape of the batch, `(batch, length)`.
        token_index (`torch.Tensor`): Flat index of each packed token in the batch, of shape `(T,)`.
        rows (`torch.Tensor`): The row of the batch that each sentence came from; rows without tokens have none.
        bounds (`torch.Tensor`): Where each sentence starts in the packed row, and T, of shape `(sentences + 1,)` and
            type int32, which flash attention reads.
        longest (`int`): Number of tokens that no sentence exceeds.
        has_fillers (`bool`, *optional*, defaults to `False`): Whether there are sentences that nothing reads.
        lengths_of_rows (`np.ndarray`, *optional*): Number of tokens of each row of the batch, if all padding is on the
            right.
    """

    shape: tuple[int, int]
    token_index: Tensor
    rows: Tensor
    bounds: Tensor
    longest: int
    has_fillers: bool = False
    lengths_of_rows: np.ndarray | None = None
    _layouts: dict[int, "Layout"] = field(default_factory=dict)

    @classmethod
    def from_mask(cls, attention_mask: Tensor) -> "Packing":
        """Make the packing of a batch from its attention mask, for which the host waits for an accelerator.

        Args:
            attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.

        Returns:
            [`Packing`]: With its tensors on the device of the mask.
        """
        device = attention_mask.device
        mask = attention_mask.cpu().bool()
        length = mask.shape[1]
        packing = cls.from_lengths(mask.sum(1).numpy(), length, in_order=device.type != "cpu")
        # The tokens may stand anywhere in their rows.
        sentences, columns = mask[packing.rows].nonzero(as_tuple=True)
        index = packing.rows[sentences] * length + columns
        return replace(packing, token_index=index, lengths_of_rows=None).to(device)

    @classmethod
    def from_lengths(
        cls,
        lengths: np.ndarray,
        length: int | None = None,
        *,
        in_order: bool = False,
        multiple: int = 1,
    ) -> "Packing":
        """Make the packing of a batch whose padding is all on the right, on the host.

        Args:
            lengths (`np.ndarray`): Number of tokens of each row of the batch, of shape `(batch,)`.
            length (`int`, *optional*): Length of the batch. Defaults to the longest row.
            in_order (`bool`, *optional*, defaults to `False`): Whether the sentences stay in their order.
            multiple (`int`, *optional*, defaults to `1`): What the number of packed tokens is a multiple of. Above 1,
                there are as many sentences for any lengths, and `longest` is the length of the batch, or T if that is
                less.

        Returns:
            [`Packing`]: With its tensors on the CPU.

        Raises:
            ValueError: If a row has more tokens than `length`.
        """
        batch = len(lengths)
        found = int(lengths.max(initial=0))
        length = found if length is None else length
        if found > length:
            raise ValueError(f"a text has {found} tokens, but the batch is {length} tokens long: lower max_seq_length")
        rows = lengths.nonzero()[0]
        if not in_order:
            rows = rows[np.argsort(-lengths[rows], kind="stable")]
        counts = lengths[rows]
        tokens = int(counts.sum())
        first_columns = np.repeat(rows * length - (counts.cumsum() - counts), counts)
        index = first_columns + np.arange(tokens)
        longest = found
        if multiple > 1:
            # Each of the sentences that fill up has from one to `length` tokens, which says how many are enough.
            fillers = -(-(multiple - 1) // max(1, length - 1)) + batch - len(rows)
            whole = -(-(tokens + fillers) // multiple) * multiple
            longest = min(length, whole)
            filling = np.full(fillers, (whole - tokens) // fillers)
            filling[: (whole - tokens) % fillers] += 1
            counts = np.concatenate([counts, filling])
            rows = np.concatenate([rows, np.full(fillers, batch)])
            index = np.concatenate([index, np.full(whole - tokens, batch * length)])
        bounds = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=bounds[1:])
        return cls(
            (batch, length),
            torch.from_numpy(index),
            torch.from_numpy(rows),
            torch.from_numpy(bounds),
            longest,
            has_fillers=multiple > 1,
            lengths_of_rows=lengths,
        )

    def to(self, device: torch.device) -> "Packing":
        """Return the packing with its tensors on a device.

        Accelerate calls this for a batch that holds the packing.
        """
        if self.bounds.device == device:
            return self
        index, rows, bounds = (send(x, device) for x in (self.token_index, self.rows, self.bounds))
        return replace(self, token_index=index, rows=rows, bounds=bounds)

    @property  # compiled code cannot enter the lock that a cached one has in Python 3.11
    def mask(self) -> Tensor:
        """True for the tokens of the batch, of shape `(batch, length)`."""
        return self.unpack(torch.ones_like(self.token_index)).bool()

    def select(self, rows: np.ndarray, length: int | None = None) -> "Packing":
        """Make the packing of some rows of the batch, whose padding is all on the right.

        Args:
            rows (`np.ndarray`): The numbers of the rows.
            length (`int`, *optional*): The length to which the rows are cut. Defaults to that of the batch.

        Returns:
            [`Packing`]: On the same device, without sentences that fill it up.
        """
        assert self.lengths_of_rows is not None
        device = self.bounds.device
        lengths = self.lengths_of_rows[rows]
        return Packing.from_lengths(lengths, length or self.shape[1], in_order=device.type != "cpu").to(device)

    def pack(self, x: Tensor, one_each: bool = False) -> Tensor:
        """Take the tokens out of values of shape `(batch, length, ...)`, which gives the shape `(T, ...)`.

        Args:
            x (`torch.Tensor`): The values.
            one_each (`bool`, *optional*, defaults to `False`): Take the sentences out of values of shape
                `(batch, 1, ...)`, as [`unpack`] returns them.

        Returns:
            `torch.Tensor`: A value for each packed token, or for each sentence.
        """
        x = x.flatten(0, 1)
        index = self.rows if one_each else self.token_index
        if self.has_fillers:  # which take the last value, because any will do
            index = index.clamp(max=len(x) - 1)
        return x.index_select(0, index)

    def unpack(self, x: Tensor, one_each: bool = False) -> Tensor:
        """Unpack `(T, ...)` values into `(batch, length, ...)`, with zeros in the padding.

        Args:
            x (`torch.Tensor`): A value for each packed token or, with `one_each`, for each sentence.
            one_each (`bool`, *optional*, defaults to `False`): Return one value for each row of the batch, of shape
                `(batch, 1, ...)`, with zeros for rows without tokens.

        Returns:
            `torch.Tensor`: The values in their rows.
        """
        batch, length = (self.shape[0], 1) if one_each else self.shape
        index = self.rows if one_each else self.token_index
        size = batch * length
        unpacked = x.new_zeros(size + self.has_fillers, *x.shape[1:]).index_copy_(0, index, x)
        if self.has_fillers:  # whose values went to one more place
            unpacked = unpacked[:size]
        return unpacked.unflatten(0, (batch, length))

    def layout(self, heads: int) -> "Layout":
        """Lay the heads of the sentences out in blocks, for attention on a CPU; made once for all layers.

        With two heads, the five tokens of the class are ten rows, `token * heads + head`: a0 a1 b0 b1 c0 c1 d0 d1 e0
        e1. Both sentences fall into one block of width 16, which has 2 * 2 * 16 rows:

            to_blocks     0 2 4 4 ... (a0 b0 c0 c0 ...)   1 3 5 5 ...   6 8 8 ... (d0 e0 e0 ...)   7 9 9 ...
            from_blocks   0 16 1 17 2 18 (a0 a1 b0 b1 c0 c1)   32 48 33 49 (d0 d1 e0 e1)

        One index for the whole batch copies faster than strided views of each block.

        Args:
            heads (`int`): Number of heads.

        Returns:
            [`Layout`]: The blocks and the two indices.
        """
        if heads in self._layouts:
            return self._layouts[heads]
        all_lengths = self.bounds.diff().long()
        # The width of each sentence's block: 1, or a multiple of 8 that is at least 16.
        steps = (all_lengths + WIDTH_STEP - 1) // WIDTH_STEP
        widths = (steps * WIDTH_STEP).clamp(min=REGISTER_WIDTH).masked_fill(all_lengths == 1, 1)
        block_widths, counts = widths.unique_consecutive(return_counts=True)
        paddings = []
        for width, lengths in zip(block_widths.tolist(), all_lengths.split(counts.tolist()), strict=True):
            is_padding = torch.arange(width) >= lengths[:, None]
            paddings.append(is_padding if is_padding.any() else None)
        # Where each head of each token lies in the blocks, and which of them each row of the blocks holds.
        sentence = torch.arange(len(all_lengths)).repeat_interleave(all_lengths)
        column = torch.arange(len(sentence)) - self.bounds[sentence]
        first_rows = heads * (widths.cumsum(0) - widths)
        of_token = first_rows[sentence] + column
        of_head = widths[sentence, None] * torch.arange(heads)
        from_blocks = (of_token[:, None] + of_head).flatten()
        last_tokens = self.bounds[1:, None].long() - 1
        last_rows = (heads * last_tokens + torch.arange(heads)).flatten()
        to_blocks = last_rows.repeat_interleave(widths.repeat_interleave(heads))
        to_blocks[from_blocks] = torch.arange(len(from_blocks))
        matrices = (heads * counts).tolist()
        self._layouts[heads] = Layout(matrices, block_widths.tolist(), paddings, to_blocks, from_blocks)
        return self._layouts[heads]


@dataclass
class Layout:
    """The rows of all blocks: block by block, sentence by sentence, head by head.

    A block holds neighbouring sentences whose lengths round up to one width, and has as many rows for each head.

    Args:
        counts (`list[int]`): The matrices of each block: one for each sentence and head.
        widths (`list[int]`): The rows of each matrix of a block.
        paddings (`list[torch.Tensor]`): True where a sentence has no token, of shape `(sentences, width)`; `None` for
            a block without padding.
        to_blocks (`torch.Tensor`): The row of packed heads `(T * heads, size)` that each row of the blocks holds. Rows
            beyond a sentence's end repeat its last token.
        from_blocks (`torch.Tensor`): The inverse: where in the blocks each row of packed heads is.
    """

    counts: list[int]
    widths: list[int]
    paddings: list[Tensor | None]
    to_blocks: Tensor
    from_blocks: Tensor


def split_blocks(layout: Layout, rows: Tensor) -> list[Tensor]:
    """View the rows of each block as its matrices.

    Args:
        layout (`Layout`): The blocks.
        rows (`torch.Tensor`): Of shape `(block rows, size)`; for first tokens, a row for each sentence and head.

    Returns:
        `list[torch.Tensor]`: For each block, its rows as `(count, width, size)`, or `(count, 1, size)`.
    """
    sizes = layout.counts
    if len(rows) == len(layout.to_blocks):
        sizes = [count * width for count, width in zip(layout.counts, layout.widths, strict=True)]
    parts = rows.split(sizes)
    return [part.unflatten(0, (count, -1)) for part, count in zip(parts, layout.counts, strict=True)]


def send(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, without waiting for a GPU."""
    if device.type == "cuda":
        x = x.pin_memory()  # from other memory, the copy would wait for the work before it
    return x.to(device, non_blocking=True)
