"""Attention alone: how fast and how right each kernel is, for sentences of one length and another in a packed row."""

import random
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from simcse_hf.kernels import unpadded
from simcse_hf.kernels.attention import attend_packed, choose_kernel, is_right
from simcse_hf.kernels.packing import Packing

from ..synthetic import LENGTHS

LENGTH = 32
RATE = 0.1
RACED = 1024  # sentences of a race


def attend(kernel: str, packing: Packing, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Attend by a kernel of the package, or by the candidate `tile`, which computes all tokens only."""
    if kernel != "tile" or len(query) != len(key):
        return attend_packed("flash" if kernel == "tile" else kernel, packing, query, key, value, **options)
    from .attention_tile import tile_attention  # Triton is not everywhere

    options.pop("window", None)
    return tile_attention(packing, query, key, value, **options)


@contextmanager
def forced(kernel: str | None) -> Iterator[None]:
    """Let encoders attend by a kernel, whatever the package would choose; `None` leaves the choice to it."""
    if kernel is None:
        yield
        return
    kept = unpadded.choose_kernel, unpadded.attend_packed
    unpadded.choose_kernel, unpadded.attend_packed = (lambda *case: kernel), attend
    try:
        yield
    finally:
        unpadded.choose_kernel, unpadded.attend_packed = kept


def draw_lengths(corpus: str, rows: int, seed: int) -> np.ndarray:
    """Draw the lengths of the texts of some rows, cut to 32 tokens; a single sentence stands twice in its row."""
    draw = random.Random(seed)
    columns = []
    for histogram in LENGTHS[corpus].values():
        lengths = draw.choices([int(length) for length in histogram], histogram.values(), k=rows)
        columns.append(np.minimum(lengths, LENGTH))
    return np.stack(columns * 2 if len(columns) == 1 else columns, axis=1)


def choices(device: str) -> dict[str, Any]:
    """Return what the package chooses for short sentences, and how long each kernel that is right takes."""
    found: dict[str, Any] = {}
    on_device = torch.device(device, 0)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found[str(dtype)] = choose_kernel(on_device, dtype, 64, is_short=True)
        if device == "cpu":
            continue
        right = ["padded", *(name for name in ("flash", "memory-efficient") if is_right(name, on_device, dtype, 64))]
        found[f"{dtype}, ms of four steps"] = {name: 1000 * race(name, on_device, dtype) for name in right}
    return found


def race(kernel: str, device: torch.device, dtype: torch.dtype) -> float:
    """Return the seconds of four steps, forward and backward with dropout, over sentences of 12 to 32 tokens."""
    packing = Packing.from_lengths(12 + np.arange(RACED) % 21, in_order=True).to(device)
    tokens = len(packing.token_index)
    inputs = torch.randn(3, tokens, 12, 64, device=device, dtype=dtype, requires_grad=True)

    def steps() -> None:
        for _ in range(4):
            out = attend_packed(kernel, packing, *inputs, dropout=RATE)
            torch.autograd.grad(out.sum(), inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return min(timeit.repeat(steps, number=1, repeat=5))


def measure_attention(
    kernel: str, device: str, rows: int, dtype: torch.dtype = torch.bfloat16, first_only: bool = False
) -> dict[str, Any]:
    """Time a forward and a backward pass of one layer with dropout, and compare it without with float64."""
    lengths = draw_lengths("paper", rows, seed=1).ravel()
    multiple = min(256, 2 * rows)
    on_cpu = Packing.from_lengths(lengths, LENGTH, in_order=True, multiple=multiple)
    packing = on_cpu.to(torch.device(device))
    tokens, sentences = len(on_cpu.token_index), len(on_cpu.rows)
    # Sentences that fill the row up are computed, but nothing reads them, so that they get no gradient.
    is_real = on_cpu.rows < len(lengths) if first_only else on_cpu.token_index < len(lengths) * LENGTH
    torch.manual_seed(0)
    shapes = [(sentences if first_only else tokens, 12, 64), (tokens, 12, 64), (tokens, 12, 64)]
    inputs = [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]
    gradient = (torch.randn(shapes[0]) * is_real[:, None, None]).to(device, dtype)

    def results(rate: float) -> list[Tensor]:
        out = attend(kernel, packing, *inputs, dropout=rate)
        return [out.detach(), *torch.autograd.grad(out, inputs, gradient)]

    doubles = [x.detach().double().cpu().requires_grad_() for x in inputs]
    out = attend_packed("padded", on_cpu, *doubles)
    expected = [out.detach(), *torch.autograd.grad(out, doubles, gradient.double().cpu())]
    found, again = results(0.0), results(0.0)
    return {
        "ms forward and backward": 1000 * seconds_of(lambda: results(RATE)),
        "tokens": tokens,
        "relative error of the output": relative_error(found[0][is_real], expected[0][is_real]),
        "of the gradients": [relative_error(x, y) for x, y in zip(found[1:], expected[1:], strict=True)],
        "all finite": all(bool(x.isfinite().all()) for x in found),
        "gradients equal in bits": all(torch.equal(x, y) for x, y in zip(found[1:], again[1:], strict=True)),
    }


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference as a share of the norm of what is expected."""
    return ((found.double().cpu() - expected).norm() / expected.norm()).item()


def measure_dropout(
    kernel: str, device: str, dtype: torch.dtype = torch.bfloat16, sentences: int = 64
) -> dict[str, Any]:
    """Measure the dropout rate in replays of a graph: with V = identity the output is the attention weights."""
    packing = Packing.from_lengths(np.full(sentences, LENGTH), in_order=True).to(torch.device(device))
    identity = torch.eye(LENGTH, 64, device=device, dtype=dtype)
    value = identity.repeat(sentences, 1)[:, None].repeat(1, 8, 1).requires_grad_()
    zero = torch.zeros_like(value, requires_grad=True)  # so that all weights are equal before dropout

    def results() -> tuple[Tensor, Tensor]:
        out = attend(kernel, packing, zero, zero, value, dropout=RATE)
        return out, torch.autograd.grad(out, value, out.detach())[0]

    replay = replayed(results)
    replays = [[x.detach().double() for x in replay()] for _ in range(5)]
    dropped = [(out[..., :LENGTH] == 0).double().mean().item() for out, _ in replays]
    linear = [((value * gradient).sum() / out.square().sum()).item() for out, gradient in replays]
    return {
        "rates": dropped,
        "replays differ": not any(torch.equal(replays[0][0], out) for out, _ in replays[1:]),
        "backward pass has the masks of the forward pass": all(abs(x - 1) < 0.01 for x in linear),
    }


def measure_machine() -> dict[str, Any]:
    """Measure what bounds every step: products, copies, and the time in which the host starts a kernel."""
    if not torch.cuda.is_available():
        return {}
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    x, y = (torch.empty(2**30, device="cuda") for _ in range(2))
    found = {
        "product of 8192 x 8192, TFLOP/s": 2 * 8192**3 / seconds_of(lambda: a @ a) / 1e12,
        "copy, TB/s": 8 * 2**30 / seconds_of(lambda: y.copy_(x)) / 1e12,
    }
    for tokens in (2816, 3072, 22528):
        for width, outputs in ((768, 768), (768, 3072), (3072, 768)):
            rows, weight = (torch.randn(n, width, device="cuda", dtype=torch.bfloat16) for n in (tokens, outputs))
            seconds = seconds_of(lambda rows=rows, weight=weight: F.linear(rows, weight))
            found[f"linear {tokens} x {width} x {outputs}, TFLOP/s"] = 2 * tokens * width * outputs / seconds / 1e12
    one = torch.zeros(8, device="cuda")
    start = time.perf_counter()
    for _ in range(2000):
        one.add_(1)
    found["host's time of one kernel, us"] = (time.perf_counter() - start) / 2000 * 1e6
    return found


def replayed(function: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a function as a CUDA graph, and return what replays it; without a GPU, return the function."""
    if not torch.cuda.is_available():
        return function
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def seconds_of(function: Callable[[], Any], repeats: int = 20) -> float:
    """Return the median seconds of a call: of a graph's replay on a GPU, so that the host does not count."""
    replay = replayed(function)
    if not torch.cuda.is_available():
        start = time.perf_counter()
        replay()
        return time.perf_counter() - start
    return statistics.median(seconds_on_gpu(replay) for _ in range(repeats))


def seconds_on_gpu(function: Callable[[], Any]) -> float:
    """Return the seconds between the first and the last kernel of a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000
