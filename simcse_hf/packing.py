"""Sentences of a batch one behind the other, the longest first, and attention within each of them."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import torch
import torch.nn.functional as F

from .dropout import keep_mask


@dataclass
class Packing:
    """Where the tokens of a padded batch (n, length) lie in a row of T tokens. Sentences of one length are neighbours.

    Args:
        shape: (n, length).
        tokens: (T,), the place of each token of the row in the flattened batch.
        columns: (1, T), the column of each token.
        firsts: where the sentences begin in the row.
        sentences: the row of the batch that each sentence is; rows without tokens are left out.
        groups: (first token, number of sentences, length) of every run of sentences of one length.
        first_only: whether the last layer's output holds the first token of each sentence only.
    """

    shape: tuple[int, int]
    tokens: torch.Tensor
    columns: torch.Tensor
    firsts: torch.Tensor
    sentences: torch.Tensor
    groups: list[tuple[int, int, int]]
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
        sizes = lengths[order]
        firsts = sizes.cumsum(0) - sizes
        groups, start = [], 0
        for length, run in groupby(sizes.tolist()):
            count = len(list(run))
            groups.append((start, count, length))
            start += count * length
        tensors = (order[rows] * mask.shape[1] + columns, columns[None], firsts, order)
        return cls(tuple(mask.shape), *(x.to(device, non_blocking=True) for x in tensors), groups, first_only)

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

    def heads_first(self, x: torch.Tensor) -> torch.Tensor:
        """(T, heads, size) -> (T * heads, size), with the tokens of a sentence in a row for each of its heads."""
        rows = x.flatten(0, 1)
        return rows if len(x) == len(self.firsts) else rows.index_select(0, self._by_head(x.shape[1])[0])

    def heads_last(self, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """What [`heads_first`] made of a tensor of this shape, back."""
        order = None if shape[0] == len(self.firsts) else self._by_head(shape[1])[1]
        return (rows if order is None else rows.index_select(0, order)).view(shape)

    def _by_head(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        # One index for all sentences: rows picked by it are copied faster than each group's strided block.
        if heads not in self._orders:
            there, back = [], []
            for start, count, length in self.groups:
                places = torch.arange(start * heads, (start + count * length) * heads)
                there.append(places.view(count, length, heads).transpose(1, 2).flatten())
                back.append(places.view(count, heads, length).transpose(1, 2).flatten())
            self._orders[heads] = torch.cat(there), torch.cat(back)
        return self._orders[heads]

    def firsts_of(self, x: torch.Tensor) -> torch.Tensor:
        """(T, dim), or what `first_only` left of it -> (n, dim) first tokens, zero for rows without tokens."""
        first = x if self.first_only else x[self.firsts]
        return x.new_zeros(self.shape[0], x.shape[-1]).index_copy(0, self.sentences, first)


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
    """softmax(query key^T scaling) value within each sentence.

    Args:
        query: (T, heads, size), or (number of sentences, heads, size) for the first tokens alone.
        key, value: (T, heads, size).
        packing: what lies where.
        scaling: of the scores.
        dropout: rate at which weights are dropped.
        window: how far a token sees to either side; None: to the ends of its sentence.

    Returns:
        Like `query`.
    """
    if query.device.type != "cpu":
        return _attend_padded(query, key, value, packing, scaling, dropout, window)
    windowed = window is not None and packing.groups[0][2] > window + 1
    if dropout > 0 and not windowed:
        return _AttendWithDropout.apply(query, key, value, packing, scaling, dropout)
    parts, done = [], 0
    for start, count, length in packing.groups:
        rows = count * length if len(query) == len(key) else count
        q = query[done : done + rows]
        k, v = key[start : start + count * length], value[start : start + count * length]
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
        mask = None if window is None or length <= window + 1 else _band(length, window, key.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        parts.append(out.transpose(1, 2).flatten(0, 1))
        done += rows
    return torch.cat(parts)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() <= window


def _attend_padded(query, key, value, packing, scaling, dropout, window):
    """One call for all sentences: accelerators mind the number of kernels more than the padding within one."""
    n, length = packing.shape
    mask = packing.present[:, None, None]
    if window is not None and length > window + 1:
        mask = mask & _band(length, window, key.device)
    k, v = (packing.unpack(x.flatten(1)).unflatten(-1, x.shape[1:]).transpose(1, 2) for x in (key, value))
    if len(query) == len(key):
        q = packing.unpack(query.flatten(1)).unflatten(-1, query.shape[1:]).transpose(1, 2)
    else:
        q = query.new_zeros(n, *query.shape[1:]).index_copy(0, packing.sentences, query)[:, :, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
    out = out.transpose(1, 2)
    return out.flatten(0, 1)[packing.tokens] if len(query) == len(key) else out[packing.sentences, 0]


class _AttendWithDropout(torch.autograd.Function):
    """Sentences of one length are one batched product: no padding, and dropout's masks are drawn in one go."""

    @staticmethod
    def forward(ctx, query, key, value, packing, scaling, rate):
        ctx.shapes, ctx.scaling = [x.shape for x in (query, key, value)], scaling
        query, key, value = (packing.heads_first(x) for x in (query, key, value))
        ctx.packing, ctx.slices = packing, _slices(packing.groups, ctx.shapes)
        masks, ctx.keep_scale = keep_mask((ctx.slices[-1][2].stop,), rate)
        out, weights = torch.empty_like(query), query.new_empty(masks.shape, dtype=torch.float32)
        with torch.autocast("cpu", enabled=False):
            for rows, places, pairs, count in ctx.slices:
                q, k, v = (x.unflatten(0, (count, -1)) for x in (query[rows], key[places], value[places]))
                scores = torch.bmm(q, k.mT).mul_(scaling)
                weight = torch.softmax(scores, -1, dtype=torch.float32)
                weights[pairs] = weight.flatten()
                dropped = weight.mul_(masks[pairs].view_as(weight).to(weight.dtype)).mul_(ctx.keep_scale)
                torch.bmm(dropped.to(v.dtype), v, out=out[rows].unflatten(0, (count, -1)))
        ctx.save_for_backward(query, key, value, masks, weights)
        return packing.heads_last(out, ctx.shapes[0])

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, masks, weights = ctx.saved_tensors
        gradient = ctx.packing.heads_first(gradient.to(query.dtype))
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for rows, places, pairs, count in ctx.slices:
            q, k, v, g = (
                x.unflatten(0, (count, -1)) for x in (query[rows], key[places], value[places], gradient[rows])
            )
            dq, dk, dv = (x.unflatten(0, (count, -1)) for x in (d_query[rows], d_key[places], d_value[places]))
            weight = weights[pairs].view(count, q.shape[1], k.shape[1])
            keep = masks[pairs].view_as(weight).to(weight.dtype).mul_(ctx.keep_scale)
            torch.bmm((weight * keep).to(v.dtype).mT, g, out=dv)
            d_weight = torch.bmm(g, v.mT).to(weight.dtype).mul_(keep)
            d_scores = torch._softmax_backward_data(d_weight, weight, -1, weight.dtype).mul_(ctx.scaling).to(q.dtype)
            torch.bmm(d_scores, k, out=dq)
            torch.bmm(d_scores.mT, q, out=dk)
        found = (d_query, d_key, d_value)
        gradients = (ctx.packing.heads_last(x, shape) for x, shape in zip(found, ctx.shapes, strict=True))
        return *gradients, None, None, None


def _slices(groups, shapes) -> list[tuple[slice, slice, slice, int]]:
    """Of each group: its rows of the queries, of the keys, of the weights, and the number of products in it."""
    (queries, heads, _), (keys, _, _), _ = shapes
    found, row, pair = [], 0, 0
    for start, count, length in groups:
        products = count * heads
        rows = products * (length if queries == keys else 1)
        places = slice(start * heads, start * heads + products * length)
        found.append((slice(row, row + rows), places, slice(pair, pair + rows * length), products))
        row, pair = row + rows, pair + rows * length
    return found
