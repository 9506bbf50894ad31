"""Memory and time of InfoNCE alone, beside the cross-entropy of all logits at once.

    python -m benchmarks.experiments.info_nce

It is why the loss is computed in blocks above 2^23 logits. N anchors and N positives have 768 dimensions in float32,
like a batch gathered from all processes. Each measurement has a process of its own, and its memory is the growth of
the peak above the inputs.
"""

import argparse

import torch
import torch.nn.functional as F

from simcse_hf.objectives import EncodedBatch, build_objective

from ..harness import in_fresh_process, markdown, megabytes, reset_peak_memory, seconds_of

DIM, TEMPERATURE = 768, 0.05
MOST_LOGITS = 2**26  # more than these, in several copies, need gigabytes


def in_blocks(pairs: torch.Tensor) -> torch.Tensor:
    return build_objective("simcse", DIM)(EncodedBatch(pairs))


def all_logits(pairs: torch.Tensor) -> torch.Tensor:
    anchors, positives = F.normalize(pairs, dim=-1).unbind(1)
    return F.cross_entropy(anchors @ positives.T / TEMPERATURE, torch.arange(len(pairs)))


LOSSES = {"in blocks above 2^23 logits": in_blocks, "all logits": all_logits}


def measure(name: str, rows: int) -> tuple[float, float]:
    """Return the seconds of a forward and a backward pass, and the megabytes that they add."""
    loss = LOSSES[name]
    torch.manual_seed(0)
    loss(torch.randn(8, 2, DIM, requires_grad=True)).backward()  # loads what is loaded late
    pairs = torch.randn(rows, 2, DIM, requires_grad=True)
    before = reset_peak_memory()
    seconds = seconds_of(lambda: loss(pairs).backward())
    return seconds, megabytes("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 4096, 32_768], help="batch sizes N")
    lines = []
    for rows in parser.parse_args().rows:
        for name in LOSSES:
            if name == "all logits" and rows**2 > MOST_LOGITS:
                continue
            seconds, memory = in_fresh_process(measure, name, rows)
            lines.append([rows, name, f"{seconds:.3g}", f"{memory:.0f}"])
    print(markdown(["N", "method", "seconds", "MB in addition to the inputs"], lines))


if __name__ == "__main__":
    main()
