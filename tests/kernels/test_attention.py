"""Attention of packed sentences on accelerators: what each kernel is given, and how one of them is chosen.

On a CPU, torch's operators are replaced by their contract, which is computed slowly for each sentence.
"""

import numpy as np
import pytest
import torch
from encoding_helpers import attend
from objective_helpers import assert_same_outputs
from torch.nn.attention import SDPBackend, sdpa_kernel

from simcse_hf.kernels import attention as kernels
from simcse_hf.kernels import unpadded
from simcse_hf.kernels.attention import attend_packed, choose_kernel
from simcse_hf.kernels.packing import Packing
from simcse_hf.kernels.unpadded import avoid_cudnn_attention

HEADS, SIZE = 2, 8
CPU, CUDA, META = (torch.device(name) for name in ("cpu", "cuda", "meta"))
VARLEN = ["flash", "memory-efficient"]


class Attention:
    """The contract of both operators: sentence i has the queries and the keys between its bounds."""

    def sentences(self, bounds, longest, x):
        assert bounds.dtype == torch.int32 and bounds[-1] == len(x)
        lengths = bounds.diff().tolist()
        assert max(lengths) <= longest <= len(x)
        return x.split(lengths)

    def weights(self, q, k, scaling, dropout, window):
        scores = torch.einsum("qhd,khd->hqk", q, k) * (scaling or SIZE**-0.5)
        if window is not None:
            assert len(q) == len(k)
            position = torch.arange(len(q))
            scores = scores.masked_fill((position[:, None] - position).abs() > window, -torch.inf)
        return torch.dropout(scores.softmax(-1), dropout, True)

    def compute(self, query, key, value, bounds, longest, scaling, dropout, window=None):
        out = []
        parts = [self.sentences(*which, x) for *which, x in zip(bounds, longest, (query, key), strict=True)]
        for q, k, v in zip(*parts, self.sentences(bounds[1], longest[1], value), strict=True):
            out.append(torch.einsum("hqk,khd->qhd", self.weights(q, k, scaling, dropout, window), v))
        return torch.cat(out)

    def flash(self, *args, scale, window_size_left, window_size_right):
        *inputs, first, second, max_q, max_k, dropout, is_causal, return_debug_mask = args
        assert not is_causal and not return_debug_mask and window_size_left == window_size_right
        return (self.compute(*inputs, (first, second), (max_q, max_k), scale, dropout, window_size_left),)

    def memory_efficient(self, query, key, value, bias, first, second, max_q, max_k, dropout, *others, scale):
        assert bias is None and others == (0, True)  # no custom mask, with the sums for the backward pass
        inputs = (query[0], key[0], value[0])
        return (self.compute(*inputs, (first, second), (max_q, max_k), scale, dropout)[None],)


class OneSentence(Attention):
    """A wrong operator, which attends across the sentences."""

    def sentences(self, bounds, longest, x):
        return [x]


class OtherMasks(Attention):
    """A wrong operator, whose backward pass drops other weights than the forward pass."""

    def compute(self, *args):
        forward, backward = (super(OtherMasks, self).compute(*args) for _ in range(2))
        return backward + (forward - backward).detach()


def replace_operators(monkeypatch, attention):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", attention.flash)
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", attention.memory_efficient)


def packing_of(lengths, device=CPU, **options):
    return Packing.from_lengths(np.array(lengths), in_order=device.type != "cpu", **options).to(device)


#: A kernel, whether it gets first tokens only, and a window.
CALLS = [(kernel, first_only, None) for kernel in (*VARLEN, "padded") for first_only in (False, True)]
CALLS += [("flash", False, 2), ("padded", False, 2)]


@pytest.mark.parametrize("kernel, first_only, window", CALLS)
@pytest.mark.parametrize("lengths", [[9, 5, 3], [7, 4, 1, 0], [1, 1]])
def test_attention_on_accelerators_equals_attention_on_the_cpu(monkeypatch, lengths, kernel, first_only, window):
    lengths = [length for length in lengths if length or not first_only]  # for first tokens, every row has a token
    packing = packing_of(lengths)
    tokens, sentences = sum(lengths), sum(n > 0 for n in lengths)
    shapes = [
        (sentences if first_only else tokens, HEADS, SIZE),
        *[(tokens, HEADS, SIZE)] * 2,
    ]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    options = {"scaling": 0.3, "sliding_window": window and window + 1}
    expected = attend(*inputs, packing, **options)
    replace_operators(monkeypatch, Attention())
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # which then attends as on an accelerator
    monkeypatch.setattr(unpadded, "choose_kernel", lambda *case: kernel)
    assert_same_outputs(attend(*inputs, packing, **options), expected, inputs)


@pytest.mark.parametrize("kernel", VARLEN)
def test_torch_has_the_operators_and_their_gradients(kernel):
    """On the device "meta", torch checks arguments and shapes, and computes nothing."""
    packing = packing_of([5, 3], META)
    drawn = torch.randn(3, 8, HEADS, SIZE, device=META, dtype=torch.bfloat16, requires_grad=True)
    for query in (drawn[0], drawn[0].index_select(0, packing.bounds[:-1])):
        out = attend_packed(kernel, packing, query, *drawn[1:], dropout=0.1)
        (gradient,) = torch.autograd.grad(out.sum(), drawn)
        assert (out.shape, gradient.shape) == (query.shape, drawn.shape)


# --- the choice -----------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A GPU on which the kernels of the returned set are right."""
    right = {"flash", "memory-efficient"}
    monkeypatch.setattr(kernels, "is_right", lambda name, *case: name in right)
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.10.0"))
    return right


def choose(device=CUDA, dtype=torch.bfloat16, is_short=True):
    return choose_kernel(device, dtype, 64, is_short)


@pytest.mark.parametrize(
    "case, wrong, kernel",
    [
        ({}, "memory-efficient", "flash"),
        ({}, "flash", "memory-efficient"),
        ({}, "flash memory-efficient", "padded"),
        ({"dtype": torch.float16}, "", "flash"),
        ({"dtype": torch.float32}, "", "memory-efficient"),
        ({"dtype": torch.float32, "is_short": False}, "", "padded"),
        ({"device": torch.device("mps")}, "", "padded"),
    ],
)
def test_the_first_kernel_that_is_right_and_can_compute_a_batch_is_chosen(gpu, case, wrong, kernel):
    gpu -= set(wrong.split())
    assert choose(**case) == kernel


@pytest.mark.usefixtures("gpu")
def test_flash_and_memory_efficient_attention_can_be_switched_off(monkeypatch):
    with sdpa_kernel(SDPBackend.MATH):
        assert choose() == "padded"
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        assert choose() == "flash"
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert choose() == "memory-efficient"
    # Graphs of this version count draws with 32 bits.
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.9.1"))
    assert choose(dtype=torch.float32) == "padded"


@pytest.mark.parametrize(
    "length, window, compiles, is_short",
    [
        (64, None, False, True),
        (65, None, False, False),
        (64, None, True, False),
        (9, 9, False, True),
        (9, 8, False, False),
    ],
)
def test_which_batches_are_of_short_sentences(monkeypatch, length, window, compiles, is_short):
    """With more tokens, the memory-efficient kernel is not exact. It has no window, and was not tried compiled."""
    asked = []
    monkeypatch.setattr(unpadded, "choose_kernel", lambda *case: asked.append(case) or "padded")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiles)
    attend(
        *torch.randn(3, length + 1, HEADS, SIZE, device=META),
        packing_of([length, 1], META),
        sliding_window=window,
    )
    assert asked == [(META, torch.float32, SIZE, is_short)]


@pytest.mark.usefixtures("gpu")
def test_compiled_code_takes_the_choice_as_a_constant():
    def compute(x):
        return x + ["padded", "flash"].index(choose_kernel(CUDA, torch.float16, 64, False))

    assert torch.compile(compute, backend="eager", fullgraph=True)(torch.zeros(())) == 1


def test_attention_in_the_padded_batch_is_one_graph():
    packing = packing_of([5, 3])
    rows = torch.randn(3, 8, HEADS, SIZE)
    compiled = torch.compile(lambda *parts: attend_packed("padded", packing, *parts), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*rows), attend_packed("padded", packing, *rows))


# --- the probe ------------------------------------------------------------------------------------------------------


@pytest.fixture
def states(monkeypatch):
    """Stand-ins for the random state of a GPU; returns what was done with it."""
    done = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: done.append("saved"))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: done.append("restored"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return done


@pytest.mark.parametrize("name", VARLEN)
@pytest.mark.parametrize(
    "attention, problem",
    [
        (Attention(), ""),
        (OneSentence(), "not close"),
        (OtherMasks(), "not close"),
        (None, "Could not run 'aten::_"),  # there is none for this device
    ],
)
def test_a_kernel_is_used_only_after_it_reproduced_the_formula(monkeypatch, caplog, states, name, attention, problem):
    """Also where the caller takes no gradients; the random state stays as it was."""
    if attention is not None:
        replace_operators(monkeypatch, attention)
    before = torch.get_rng_state()
    with torch.inference_mode():
        assert kernels.is_right.__wrapped__(name, CPU, torch.bfloat16, SIZE) is (not problem)
    assert problem in caplog.text and (f"torch's {name} attention cannot be used" in caplog.text) is bool(problem)
    assert torch.equal(torch.get_rng_state(), before)
    assert states == ["saved", "restored"]


def test_cudnn_attention_is_avoided_on_a_gpu_and_only_there():
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    with avoid_cudnn_attention(CPU):
        assert enabled()
    with avoid_cudnn_attention(CUDA):
        assert not enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()
    assert enabled()
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        with avoid_cudnn_attention(CUDA):
            assert enabled(), "all that the user has switched on"
