"""InfoNCE alone: memory and time of forward and backward, in chunks and with all logits at once.

    python -m benchmarks info_nce --output benchmarks/results/info_nce.json

N anchors and N positives of 768 dimensions in float32, like a batch gathered from all processes. Each measurement runs
in a process of its own and reports the growth of its peak memory above the inputs. `gradient_error_near_zero_loss` is
the largest difference from the float64 gradient, relative to the largest gradient, for a loss close to zero.
"""

import argparse

import torch
import torch.nn.functional as F

from simcse_hf.objectives import info_nce
from simcse_hf.objectives.info_nce import InfoNCE

from .harness import Report, in_fresh_process, machine, markdown, megabytes, reset_peak_memory, seconds_of

DIM = 768
KINDS = ("chunked", "plain")
MAX_PLAIN_ROWS = 8192  # the logits of more rows, in several copies, need gigabytes
ROWS_NEAR_ZERO = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 4096, 32_768], help="batch sizes N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())


def run(options: argparse.Namespace, report: Report) -> None:
    measured = []
    for rows in options.rows:
        for kind in KINDS if rows <= MAX_PLAIN_ROWS else KINDS[:1]:
            result = in_fresh_process(measure, kind, rows, options.threads)
            measured.append({"rows": rows, "kind": kind, **result})
            print(measured[-1], flush=True)
    report.save(
        machine=machine() | {"threads": options.threads},
        dim=DIM,
        measured=measured,
        gradient_error_near_zero_loss={kind: gradient_error(kind) for kind in KINDS},
    )


def select(kind: str) -> None:
    """Make InfoNCE compute batches of every size in one way."""
    info_nce.CHUNK_LOGITS = 1 << (23 if kind == "chunked" else 62)


def measure(kind: str, rows: int, threads: int) -> dict[str, float]:
    """Measure one forward and backward pass; the gradients of the inputs count as memory."""
    torch.set_num_threads(threads)
    select(kind)
    torch.manual_seed(0)
    InfoNCE()(torch.randn(8, 2, DIM, requires_grad=True)).backward()  # loads what is loaded late
    pairs = torch.randn(rows, 2, DIM, requires_grad=True)
    before = reset_peak_memory()
    seconds = seconds_of(lambda: InfoNCE()(pairs).backward())
    return {"seconds": seconds, "megabytes_above_inputs": megabytes("VmHWM") - before}


def gradient_error(kind: str) -> float:
    """Compare float32 gradients with a float64 cross-entropy for pairs that are nearly solved."""
    select(kind)
    torch.manual_seed(0)
    anchors = torch.randn(ROWS_NEAR_ZERO, DIM)
    single = torch.stack([anchors, anchors + 0.1 * torch.randn_like(anchors)], 1).requires_grad_()
    double = single.detach().double().requires_grad_()
    first, second = F.normalize(double, dim=-1).unbind(1)
    exact = F.cross_entropy(first @ second.T / 0.05, torch.arange(ROWS_NEAR_ZERO))
    (expected,), (actual,) = (torch.autograd.grad(*x) for x in ((exact, double), (InfoNCE(0.05)(single), single)))
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()


def table(results: dict) -> str:
    rows = [
        [row["rows"], row["kind"], f"{row['seconds']:.2f}", f"{row['megabytes_above_inputs']:.0f}"]
        for row in results["measured"]
    ]
    errors = ", ".join(f"{kind} {error:.1e}" for kind, error in results["gradient_error_near_zero_loss"].items())
    return markdown(["rows", "kind", "seconds", "MB above the inputs"], rows) + f"\n\nGradient error: {errors}"
