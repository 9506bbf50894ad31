"""InfoNCE alone: memory and time of forward and backward, in chunks and with all logits at once, as the batch grows.

    python benchmarks/info_nce.py --output benchmarks/results/info_nce.json
    python benchmarks/info_nce.py --rows 512 4096 --threads 1 --output info_nce.json

N anchors and N positives of 768 dimensions in float32, as of a batch gathered from all processes. Each measurement is
a process of its own: the growth of its peak memory above the inputs, and seconds. `gradient_error` is the largest
difference of a gradient from float64's, against the largest gradient, for vectors whose loss is nearly zero.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import megabytes, start_peak_anew, write_results

from simcse_hf.objectives import info_nce
from simcse_hf.objectives.info_nce import InfoNCE

DIM = 768
KINDS = ("chunked", "plain")
MOST_PLAIN_ROWS = 8192  # all logits of more, several times over, are gigabytes
ROWS_NEAR_ZERO = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 4096, 32_768], help="batch sizes N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, help="results, JSON")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)  # a child process of this script
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(options.measure, options.rows[0])))
        return
    if options.output is None:
        parser.error("--output is needed")
    found = []
    for rows in options.rows:
        for kind in KINDS if rows <= MOST_PLAIN_ROWS else KINDS[:1]:
            command = [sys.executable, __file__, "--measure", kind, "--rows", str(rows)]
            command += ["--threads", str(options.threads)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found.append({"rows": rows, "kind": kind, **json.loads(output.splitlines()[-1])})
            print(found[-1], flush=True)
    results = {
        "processor": platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "dim": DIM,
        "measured": found,
        "gradient_error_near_zero_loss": {kind: gradient_error(kind) for kind in KINDS},
    }
    print(results["gradient_error_near_zero_loss"])
    write_results(options.output, results)


def choose(kind: str) -> None:
    """Makes InfoNCE compute all batches in this way."""
    info_nce.PLAIN_LOGITS = 0 if kind == "chunked" else 1 << 62


def measure(kind: str, rows: int) -> dict[str, float]:
    """Seconds, and megabytes above the inputs; the gradients of the inputs, which are outputs, count."""
    choose(kind)
    torch.manual_seed(0)
    InfoNCE()(*(torch.randn(8, DIM, requires_grad=True) for _ in range(2))).backward()  # loads what comes late
    anchors, positives = (torch.randn(rows, DIM, requires_grad=True) for _ in range(2))
    before, start = start_peak_anew(), time.perf_counter()
    InfoNCE()(anchors, positives).backward()
    return {"seconds": time.perf_counter() - start, "megabytes_above_inputs": megabytes("VmHWM") - before}


def gradient_error(kind: str) -> float:
    """Of float32 against a float64 cross-entropy, for pairs that are nearly found."""
    choose(kind)
    torch.manual_seed(0)
    anchors = torch.randn(ROWS_NEAR_ZERO, DIM)
    positives = anchors + 0.1 * torch.randn_like(anchors)
    gradients = []
    for dtype in (torch.float64, torch.float32):
        pair = [x.to(dtype).requires_grad_() for x in (anchors, positives)]
        if dtype == torch.float64:
            first, second = (F.normalize(x, dim=-1) for x in pair)
            loss = F.cross_entropy(first @ second.T / 0.05, torch.arange(ROWS_NEAR_ZERO))
        else:
            loss = InfoNCE(temperature=0.05)(*pair)
        gradients.append([x.double() for x in torch.autograd.grad(loss, pair)])
    pairs = list(zip(*gradients, strict=True))
    return max(((found - wanted).abs().max() / wanted.abs().max()).item() for wanted, found in pairs)


if __name__ == "__main__":
    main()
