"""Attention over packed rows of fixed size: the padded form, the bounds that the flash kernel gets, and its shapes."""

from itertools import pairwise

import pytest
import torch

from simcse_hf.ops import flash, static_packing
from simcse_hf.ops.static_packing import StaticPacking, attend_static

LENGTHS, FILLERS = [3, 1, 4], [4, 2, 0]
HEADS, SIZE = 2, 8


def inputs(first_only, device="cpu", dtype=torch.float64):
    """Return queries, keys, values and the packing of three sentences and three fillers."""
    generator = torch.Generator().manual_seed(0)
    cu = torch.tensor([0, *LENGTHS, *FILLERS], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    total = sum(LENGTHS + FILLERS)
    tensors = [torch.randn(total, HEADS, SIZE, generator=generator, dtype=torch.float64) for _ in range(3)]
    packing = StaticPacking(cu, len(LENGTHS), max(LENGTHS), first_only)
    query, key, value = (x.to(device, dtype).requires_grad_() for x in tensors)
    return (query.index_select(0, packing.starts) if first_only else query), key, value, packing


def reference(query, key, value, bounds, longest, *, scaling, dropout=0.0, window=None):
    """What the flash kernel computes, sentence by sentence; a sentence may not exceed the lengths it is told."""
    queries, keys = (x.tolist() for x in bounds)
    parts = []
    for (a, b), (c, d) in zip(pairwise(queries), pairwise(keys), strict=True):
        assert b - a <= longest[0] and d - c <= longest[1]
        weights = torch.einsum("qhs,khs->hqk", query[a:b], key[c:d]).mul(scaling).softmax(-1)
        parts.append(torch.einsum("hqk,khs->qhs", weights, value[c:d]))
    return torch.cat(parts)


@pytest.mark.parametrize("first_only", [False, True])
def test_the_padded_form_and_the_bounds_of_the_flash_kernel_compute_the_same(monkeypatch, first_only):
    query, key, value, packing = inputs(first_only)
    real = len(query) if first_only else sum(LENGTHS)
    padded = attend_static(query, key, value, packing, 0.3)[:real]
    monkeypatch.setattr(static_packing, "supports_flash", lambda query: True)
    monkeypatch.setattr(static_packing, "flash_attention", reference)
    expected = attend_static(query, key, value, packing, 0.3)[:real]
    torch.testing.assert_close(padded, expected, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(x.square().sum(), (key, value), retain_graph=True) for x in (padded, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        assert torch.isfinite(one).all() and not one[sum(LENGTHS) :].any()  # fillers get no gradient


@pytest.mark.parametrize("first_only", [False, True])
def test_the_flash_kernel_accepts_the_shapes_forward_and_backward(monkeypatch, first_only):
    monkeypatch.setattr(static_packing, "supports_flash", lambda query: True)
    query, key, value, packing = inputs(first_only, "meta", torch.bfloat16)
    out = attend_static(query, key, value, packing, 0.3, dropout=0.1)
    assert out.shape == query.shape
    gradients = torch.autograd.grad(out.sum(), (query, key, value))
    assert [x.shape for x in gradients] == [query.shape, key.shape, value.shape]


def test_compiled_code_may_ask_whether_the_flash_kernel_works(monkeypatch):
    monkeypatch.setattr(flash, "_probe", lambda *arguments: True)

    def double(x):
        return 2 * x if flash._kernel_works(x.device.index, x.dtype, x.shape[-1]) else x

    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 8, dtype=torch.bfloat16)).sum() == 32
