"""Attention over a packed row whose number of tokens and of sentences are the same in every batch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .flash import flash_attention, supports_flash


@dataclass
class StaticPacking:
    """Where the sentences lie in a packed row of fixed size; see [`~data.buckets.PackedCollator`].

    Every shape depends on the plan and not on the batch, so that code compiled for one batch runs on all of them, and
    CUDA graphs can be recorded.

    Args:
        cu_seqlens (`torch.Tensor`): Where each sentence starts, and the end of the last, of shape
            `(sentences + fillers + 1,)`, int32.
        sentences (`int`): Number of sentences. The others are fillers, whose outputs nobody reads.
        longest (`int`): The most tokens of a sentence or filler.
        first_only (`bool`, *optional*, defaults to `True`): Whether the last layer computes the first token of each
            sentence only.
    """

    cu_seqlens: torch.Tensor
    sentences: int
    longest: int
    first_only: bool = True

    @property
    def starts(self) -> torch.Tensor:
        """Where each sentence starts in the packed row, of shape `(sentences,)`."""
        return self.cu_seqlens[: self.sentences]

    def bounds(self, first_only: bool) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
        """Return what [`~ops.flash.flash_attention`] needs: the bounds and the most tokens of queries and of keys.

        If only first tokens are queries, each sentence has one and each filler none: 0 1 2 ... n n n.

        Args:
            first_only (`bool`): Whether the queries are first tokens.

        Returns:
            `tuple`: Bounds of the queries and of the keys, and the most queries and the most keys of a sentence.
        """
        if not first_only:
            return (self.cu_seqlens, self.cu_seqlens), (self.longest, self.longest)
        ones = torch.arange(len(self.cu_seqlens), dtype=torch.int32, device=self.cu_seqlens.device)
        return (ones.clamp(max=self.sentences), self.cu_seqlens), (1, self.longest)


def attend_static(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: StaticPacking,
    scaling: float,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Compute softmax(query key^T scaling) value within each sentence, with shapes that do not depend on the batch.

    On CUDA in half precision this is one call of FlashAttention. Elsewhere the row is laid out as a padded batch.

    Args:
        query (`torch.Tensor`): Queries of shape `(T, heads, size)`, or `(sentences, heads, size)` for the first token
            of each sentence only.
        key (`torch.Tensor`): Keys of shape `(T, heads, size)`.
        value (`torch.Tensor`): Values of shape `(T, heads, size)`.
        packing (`StaticPacking`): Where the sentences lie.
        scaling (`float`): Factor of the scores.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.

    Returns:
        `torch.Tensor`: Of the shape of `query`.
    """
    if supports_flash(query):
        bounds, longest = packing.bounds(first_only=len(query) != len(key))
        return flash_attention(query, key, value, bounds, longest, scaling=scaling, dropout=dropout)
    return _attend_padded(query, key, value, packing, scaling, dropout)


def _attend_padded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: StaticPacking,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    cu, longest = packing.cu_seqlens, packing.longest
    first_only = len(query) != len(key)
    ends = packing.sentences if first_only else len(cu) - 1
    column = torch.arange(longest, device=cu.device)
    in_sentence = column < (cu[1 : ends + 1] - cu[:ends])[:, None]
    index = (cu[:ends, None] + column).clamp(max=len(key) - 1).flatten()
    k, v = (x.index_select(0, index).unflatten(0, (ends, longest)).transpose(1, 2) for x in (key, value))
    if first_only:
        q = query[:, :, None]
    else:
        q = query.index_select(0, index).unflatten(0, (ends, longest)).transpose(1, 2)
    # An empty filler would have no key, and its softmax would be NaN: it sees the first column, which nobody reads.
    mask = (in_sentence | (column == 0))[:, None, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    if first_only:
        return out[:, :, 0]
    token = torch.arange(len(key), device=cu.device, dtype=cu.dtype)
    sentence = torch.searchsorted(cu, token, right=True) - 1
    return out.transpose(1, 2).flatten(0, 1).index_select(0, sentence * longest + token - cu[sentence])
