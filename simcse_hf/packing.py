"""Sentences of a batch one behind the other, the longest first, and attention within each of them."""

from dataclasses import dataclass
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
        return _AttendWithDropout.apply(query, key, value, packing.groups, scaling, dropout)
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
    present = packing.unpack(torch.ones_like(key[:, 0, :1], dtype=torch.bool))[:, :, 0]
    mask = present[:, None, None]
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
    def forward(ctx, query, key, value, groups, scaling, rate):
        heads = query.shape[1]
        firsts_only = len(query) != len(key)
        ctx.groups, ctx.scaling, ctx.firsts_only = groups, scaling, firsts_only
        sizes = [count * heads * length * (1 if firsts_only else length) for _, count, length in groups]
        masks, ctx.keep_scale = keep_mask((sum(sizes),), rate)
        out = torch.empty_like(query)
        weights = []
        with torch.autocast("cpu", enabled=False):
            for (rows, places, shape), mask in zip(_slices(groups, firsts_only), masks.split(sizes), strict=True):
                q, k, v = (
                    _heads_first(query[rows], shape),
                    _heads_first(key[places], shape),
                    _heads_first(value[places], shape),
                )
                scores = torch.bmm(q, k.mT).mul_(scaling)
                weight = torch.softmax(scores, -1, dtype=torch.float32)
                weights.append(weight)
                dropped = (weight * mask.view(weight.shape).float()).mul_(ctx.keep_scale)
                _store(out[rows], torch.bmm(dropped.to(v.dtype), v), shape)
        ctx.save_for_backward(query, key, value, masks, *weights)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, masks, *weights = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        masks = masks.split([weight.numel() for weight in weights])
        for (rows, places, shape), mask, weight in zip(
            _slices(ctx.groups, ctx.firsts_only), masks, weights, strict=True
        ):
            q, k, v = (
                _heads_first(query[rows], shape),
                _heads_first(key[places], shape),
                _heads_first(value[places], shape),
            )
            g = _heads_first(gradient[rows].to(q.dtype), shape)
            keep = mask.view(weight.shape).float().mul_(ctx.keep_scale)
            _store(d_value[places], torch.bmm((weight * keep).to(v.dtype).mT, g), shape)
            d_weight = torch.bmm(g, v.mT).float().mul_(keep)
            d_scores = torch._softmax_backward_data(d_weight, weight, -1, weight.dtype).mul_(ctx.scaling).to(q.dtype)
            _store(d_query[rows], torch.bmm(d_scores, k), shape)
            _store(d_key[places], torch.bmm(d_scores.mT, q), shape)
        return d_query, d_key, d_value, None, None, None


def _slices(groups, firsts_only):
    """Of each group: its rows of the queries, its places among the keys, its number of sentences."""
    done = 0
    for start, count, length in groups:
        rows = count if firsts_only else count * length
        yield slice(done, done + rows), slice(start, start + count * length), count
        done += rows


def _heads_first(x: torch.Tensor, count: int) -> torch.Tensor:
    """(count * length, heads, size) -> (count * heads, length, size)."""
    return x.unflatten(0, (count, -1)).transpose(1, 2).flatten(0, 1)


def _store(where: torch.Tensor, x: torch.Tensor, count: int) -> None:
    where.unflatten(0, (count, -1)).copy_(x.unflatten(0, (count, -1)).transpose(1, 2))
