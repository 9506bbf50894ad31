"""Tests of InfoNCE in chunks: the plain form's value and gradient, in less memory."""

from pathlib import Path

import pytest
import torch
from test_info_nce import draw, gradients

from simcse_hf.objectives import chunked_info_nce, info_nce
from simcse_hf.objectives.info_nce import InfoNCE


def test_large_batches_are_computed_in_chunks_automatically(monkeypatch):
    """In float64. The tolerance is for torch's softplus, which is the identity above 20 and so off by 2e-9."""
    calls = []
    chunked = info_nce.chunked_loss
    monkeypatch.setattr(info_nce, "chunked_loss", lambda *a: calls.append(1) or chunked(*a))
    monkeypatch.setattr(chunked_info_nce, "CHUNK_LOGITS", 2**20)
    inputs = draw(1100, 1, dim=4)
    large = InfoNCE(hard_negative_weight=0.3)(*inputs)
    results = gradients(large, inputs)
    assert calls == [1]
    monkeypatch.setattr(info_nce, "PLAIN_LOGITS", 2**62)
    plain = InfoNCE(hard_negative_weight=0.3)(*inputs)
    assert calls == [1] and large.item() == pytest.approx(plain.item(), rel=1e-12)
    for ours, exact in zip(results, gradients(plain, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-8, atol=1e-12)


def test_chunked_gradient_is_scaled_by_the_gradient_of_the_loss(monkeypatch):
    """The loss is scaled, and a retained graph is used for two backward passes."""
    monkeypatch.setattr(info_nce, "PLAIN_LOGITS", 0)
    inputs = draw(5, 1)
    loss = InfoNCE()(*inputs)
    first = torch.autograd.grad(1024 * loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    for scaled, plain in zip(first, second, strict=True):
        torch.testing.assert_close(scaled, 1024 * plain)


def test_chunked_loss_gives_gradients_to_inputs_that_require_them(monkeypatch):
    monkeypatch.setattr(info_nce, "PLAIN_LOGITS", 0)
    anchors, positives, negatives = draw(5, 1)
    expected = torch.autograd.grad(InfoNCE()(anchors, positives, negatives), [anchors])[0]
    loss = InfoNCE()(anchors, positives.detach(), negatives.detach())
    torch.testing.assert_close(torch.autograd.grad(loss, [anchors])[0], expected)
    with torch.no_grad():
        assert InfoNCE()(anchors, positives, negatives).item() == pytest.approx(loss.item(), rel=1e-12)


def test_chunked_memory_grows_linearly_with_the_number_of_embeddings():
    """All 8192 x 8192 logits are 268 MB in float32, and plain InfoNCE holds several of them."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the peak of a process's memory is read from Linux's /proc")

    def megabytes(field):
        return int(next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1]) / 1024

    anchors, positives, _ = draw(8192, 0, dim=8, dtype=torch.float32)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = megabytes("VmRSS")
    InfoNCE()(anchors, positives).backward()
    assert megabytes("VmHWM") - before < 120
