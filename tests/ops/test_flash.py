"""Flash attention of packed sentences: when it is used, what it is given, and that its kernel must prove itself."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from inference_helpers import attend
from objective_helpers import assert_same_outputs

from simcse_hf.ops import flash, unpadded
from simcse_hf.ops.flash import flash_attention, supports_flash
from simcse_hf.ops.packing import Packing
from simcse_hf.ops.unpadded import avoid_cudnn_attention

HEADS, SIZE = 2, 8
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def reference(query, key, value, bounds, longest, *, scaling, dropout=0.0, window=None):
    """The operator's contract, slowly: sentence i has the queries and the keys between its bounds."""
    assert dropout == 0.0 and all(x.dtype == torch.int32 for x in bounds)
    queries, keys = ([(end - start).item() for start, end in zip(x, x[1:], strict=False)] for x in bounds)
    assert (max(queries), max(keys)) == longest and (sum(queries), sum(keys)) == (len(query), len(key))
    out = []
    for q, k, v in zip(query.split(queries), key.split(keys), value.split(keys), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q, k) * scaling
        if window is not None:
            assert len(q) == len(k)
            position = torch.arange(len(q))
            scores = scores.masked_fill((position[:, None] - position).abs() > window, -torch.inf)
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.cat(out)


def packing_of(lengths, device="cpu"):
    return Packing.from_lengths(np.array(lengths), in_order=device != "cpu").to(torch.device(device))


@pytest.mark.parametrize("has_flash", [False, True])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("lengths", [[9, 5, 3], [7, 4, 1, 0], [1, 1]])
def test_attention_on_accelerators_equals_attention_on_the_cpu(monkeypatch, lengths, first_only, window, has_flash):
    """Flash attention is replaced by its contract in float64, which describes what it is given."""
    if first_only:  # every row then has a token
        window = None
        lengths = [length for length in lengths if length]
    monkeypatch.setattr(unpadded, "supports_flash", lambda query: has_flash)
    monkeypatch.setattr(unpadded, "flash_attention", reference)
    packing = packing_of(lengths)
    mask = packing.unpack(torch.ones(sum(lengths), dtype=torch.bool))[:, None, None]
    tokens, sentences = sum(lengths), sum(n > 0 for n in lengths)
    shapes = [(sentences if first_only else tokens, HEADS, SIZE), *[(tokens, HEADS, SIZE)] * 2]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found = unpadded._attend_in_one_call(*inputs, mask, packing, 0.3, 0.0, window)
    expected = attend(*inputs, packing, scaling=0.3, sliding_window=window and window + 1)
    assert_same_outputs(found, expected, inputs)


def fake_query(device="cuda", dtype=torch.bfloat16, size=64):
    return SimpleNamespace(device=torch.device(device, 0), dtype=dtype, shape=(10, 12, size))


@pytest.fixture
def working_kernel(monkeypatch):
    monkeypatch.setattr(flash, "_probe", lambda device, dtype, size: True)


@pytest.mark.usefixtures("working_kernel")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"size": 256}, True),
        ({"dtype": torch.float32}, False),
        ({"device": "cpu"}, False),
        ({"device": "xpu"}, False),
        ({"size": 100}, False),
        ({"size": 264}, False),
    ],
)
def test_flash_attention_is_used_for_half_precision_on_an_nvidia_gpu(changes, expected):
    assert supports_flash(fake_query(**changes)) is expected


@pytest.mark.usefixtures("working_kernel")
def test_flash_attention_can_be_switched_off():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not supports_flash(fake_query())
    assert supports_flash(fake_query())


def of_one_sentence(query, key, value, bounds, longest, **options):
    """A wrong kernel, which attends across the sentences."""
    whole = bounds[0][[0, -1]]
    return reference(query, key, value, (whole, whole), (len(query), len(key)), **options)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (reference, ""),
        (of_one_sentence, "its values differ from the formula's"),
        (flash_attention, "aten::_flash_attention_forward"),  # there is none for this device
    ],
)
def test_a_kernel_is_used_only_after_it_reproduced_the_formula(monkeypatch, caplog, kernel, problem):
    monkeypatch.setattr(flash, "flash_attention", kernel)
    with caplog.at_level(logging.WARNING):
        assert flash._probe.__wrapped__(torch.device("cpu"), torch.bfloat16, SIZE) is (not problem)
    assert problem in caplog.text
    assert ("without padding on cpu (torch.bfloat16, heads of 8)" in caplog.text) is bool(problem)


def test_cudnn_attention_is_avoided_on_a_gpu_and_only_there():
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    with avoid_cudnn_attention(torch.device("cpu")):
        assert enabled()
    with avoid_cudnn_attention(torch.device("cuda")):
        assert not enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()
    assert enabled()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        with avoid_cudnn_attention(torch.device("cuda")):
            assert enabled(), "all that the user has switched on"


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_flash_attention_equals_the_formula_on_a_gpu(dtype, first_only, window):
    options = {"scaling": 0.125, "sliding_window": None if first_only else window}
    lengths = [64, 32, 17, 5, 1]
    shapes = [(len(lengths) if first_only else sum(lengths), 4, 64), *[(sum(lengths), 4, 64)] * 2]
    doubles = [torch.randn(shape).to(dtype).double().requires_grad_() for shape in shapes]
    assert supports_flash(doubles[0].to("cuda", dtype))
    on_gpu = [x.to("cuda", dtype) for x in doubles]
    found = attend(*on_gpu, packing_of(lengths, device="cuda"), **options).double().cpu()
    expected = attend(*doubles, packing_of(lengths), **options)
    tolerance = 2e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    gradients = [torch.autograd.grad(x.square().sum(), doubles) for x in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=10 * tolerance)
