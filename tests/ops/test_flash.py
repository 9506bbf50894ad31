"""Flash attention of packed sentences: when it is used, what it is given, and that its kernel must prove itself."""

import logging
from types import SimpleNamespace

import pytest
import torch
from inference_helpers import attend
from objective_helpers import assert_same_outputs

from simcse_hf.ops import flash, unpadded
from simcse_hf.ops.flash import flash_attention, supports_flash
from simcse_hf.ops.unpadded import Packing, avoid_cudnn_attention

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


def packing_of(lengths, first_only=False, device="cpu"):
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return Packing.from_mask(mask.to(device), first_only, torch.tensor(lengths).numpy())


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("lengths", [[5, 3, 9], [4, 0, 1, 7], [1, 1]])
def test_what_flash_attention_is_given_describes_the_sentences(monkeypatch, lengths, first_only, window):
    """With the operator replaced by its contract in float64, the result is that of attention on a CPU."""
    if first_only:
        window = None
    monkeypatch.setattr(unpadded, "supports_flash", lambda query: True)
    monkeypatch.setattr(unpadded, "flash_attention", reference)
    packing = packing_of(lengths, first_only)
    tokens, sentences = sum(lengths), sum(n > 0 for n in lengths)
    shapes = [(sentences if first_only else tokens, HEADS, SIZE), *[(tokens, HEADS, SIZE)] * 2]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found = unpadded._attend_on_accelerator(*inputs, packing, 0.3, 0.0, window)
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


def test_a_kernel_that_does_not_run_is_not_used(caplog):
    with caplog.at_level(logging.WARNING):
        assert not flash._probe.__wrapped__(torch.device("cpu"), torch.bfloat16, SIZE)
    assert "cannot be used for sentences without padding on cpu (torch.bfloat16, heads of 8)" in caplog.text


def of_one_sentence(query, key, value, bounds, longest, **options):
    """A wrong kernel, which attends across the sentences."""
    whole = bounds[0][[0, -1]]
    return reference(query, key, value, (whole, whole), (len(query), len(key)), **options)


@pytest.mark.parametrize(("kernel", "works"), [(reference, True), (of_one_sentence, False)])
def test_a_kernel_is_used_only_after_it_reproduced_the_formula(monkeypatch, caplog, kernel, works):
    monkeypatch.setattr(flash, "flash_attention", kernel)
    with caplog.at_level(logging.WARNING):
        assert flash._probe.__wrapped__(torch.device("cpu"), torch.bfloat16, SIZE) is works
    assert ("its values differ from the formula's" in caplog.text) is not works


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
    if first_only:
        window = None
    lengths = [5, 32, 1, 17, 64]
    packing = packing_of(lengths, first_only, device="cuda")
    tokens = sum(lengths)
    shapes = [(len(lengths) if first_only else tokens, 4, 64), *[(tokens, 4, 64)] * 2]
    inputs = [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    assert supports_flash(inputs[0])
    firsts = torch.arange(len(lengths) + 1, dtype=torch.int32, device="cuda")
    bounds = firsts if first_only else packing.bounds, packing.bounds
    longest = 1 if first_only else packing.longest, packing.longest
    found = flash_attention(*inputs, bounds, longest, scaling=0.125, window=window)
    doubles = [x.detach().double().cpu().requires_grad_() for x in inputs]
    expected = reference(*doubles, tuple(x.cpu() for x in bounds), longest, scaling=0.125, window=window)
    tolerance = 2e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(found.double().cpu(), expected, rtol=0, atol=tolerance)
    weight = torch.randn(found.shape, dtype=torch.float64)
    (expected * weight).sum().backward()
    (found.double() * weight.cuda()).sum().backward()
    gradients = [x.grad.double().cpu() for x in inputs]
    torch.testing.assert_close(gradients, [y.grad for y in doubles], rtol=0, atol=10 * tolerance)


@needs_gpu
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_flash_attention_drops_weights_at_the_rate_on_a_gpu(rate):
    """With one-hot values, a zero in the output is a dropped weight."""
    packing = packing_of([64] * 256, device="cuda")
    query, key = (torch.randn(64 * 256, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    value = torch.eye(64, device="cuda", dtype=torch.bfloat16).repeat(256, 1)[:, None].expand(-1, 4, -1).contiguous()
    bounds = packing.bounds, packing.bounds
    out = flash_attention(query, key, value, bounds, (64, 64), scaling=0.01, dropout=rate)
    assert abs((out == 0).double().mean().item() - rate) < 0.005
