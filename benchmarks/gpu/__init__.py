"""Ten minutes on one NVIDIA GPU: training steps and encoding in bf16, side by side with other libraries in one run.

    python -m benchmarks gpu --output benchmarks/results/gpu.json
    python -m benchmarks gpu --device cpu --tiny --output outputs/gpu.json    # tries the code, measures nothing

`--plan` measures in its place what no GPU has measured yet (plan.py), a part after the other:

    python -m benchmarks gpu --plan --output benchmarks/results/gpu_plan.json

No network and no data are needed: the encoders have the shapes of bert-base-uncased, all-MiniLM-L6-v2 and
roberta-large with random weights, and the texts are random words, as long as the sentences of SimCSE's training file
and NLI triplets (lengths.json). A smoke test of half a minute comes first. Then the works follow, the most informative
first, and in each the contestants, one trainer at a time:

- `plain`: this package without padding
- `graphs`: the same, each step as one CUDA graph
- `compiled`: this package with every batch padded to 32 tokens, compiled by torch
- `padded`: this package with padding
- `transformers`: transformers' own Trainer around a padded encoder
- `sentence-transformers`, and with flash-attn where that is installed

Every row is written to the file as soon as it is measured. A contestant that fails, for want of memory for example,
becomes a row with its error. `ms_a_step` is the mean over steps that are timed as a whole, so that host and device
overlap as in a real run. Before them, three steps run under torch's profiler: `kernels_a_step`, and `busy_share`, the
share of the time in which a kernel runs. `peak_memory_mib` is what a contestant adds to the memory in use before it.
`warm_up_seconds` include compilation. `projected_seconds` are those of the paper's run at this speed, without warm-up.
`loss` is that of the first rows without dropout in float32, by which contestants can be compared. After `--minutes`,
no new contestant begins; `left_out` names those.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries below are imported

import sentence_transformers
import torch

from ..harness import Report, machine, markdown, matmul_rate, shown
from ..synthetic import write_encoder
from .encoding import ENCODERS, measure_encoding
from .plan import KERNELS, PARTS, run_plan, table_of_plan
from .smoke import smoke_test
from .training import CONTESTANTS, WORKS, measure_training

ALL_WORKS = [*WORKS, *ENCODERS]
ALL_WORKS.sort(key=lambda name: "RoBERTa" in name)  # the largest encoder may need the rest of the time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny encoders, batches and corpora")
    parser.add_argument("--works", nargs="+", choices=ALL_WORKS, default=ALL_WORKS)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=60, help="timed training steps")
    parser.add_argument("--sentences", type=int, default=200_000, help="sentences to encode")
    parser.add_argument("--minutes", type=float, default=9.0, help="minutes after which no new contestant begins")
    parser.add_argument("--plan", action="store_true", help="measure what no GPU has measured yet")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts of the plan")
    parser.add_argument("--kernel", choices=KERNELS, help="attention of the plan; default: what the package chooses")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU was found; `--device cpu --tiny` tries the benchmark without one")
    else:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # the trainers refuse several GPUs in one process
    if options.plan:
        run_plan(options, report)
        return
    deadline = time.monotonic() + 60 * options.minutes
    report.save(
        machine=machine(),
        tiny=options.tiny,
        sentence_transformers=sentence_transformers.__version__,
        smoke_test=smoke_test(options.device),
        rows=[],
        left_out=[],
    )
    peak = matmul_rate(torch.bfloat16, 256 if options.tiny else 8192, repeats=20, device=options.device)
    report.save(bf16_gemm_gflops=round(peak / 1e9, 1))
    with tempfile.TemporaryDirectory() as directory:
        for work in options.works:
            encoder = ENCODERS.get(work) or WORKS[work].encoder
            model = Path(directory, encoder)
            if not model.exists():
                write_encoder(model, encoder, options.tiny)
            measure = measure_encoding if work in ENCODERS else measure_training
            for row in measure(work, model, options, deadline):
                name = "left_out" if row.pop("left_out", False) else "rows"
                report.save(**{name: [*report.results[name], row]})
                print(row, flush=True)


def table(results: dict) -> str:
    if "plan" in results:
        return table_of_plan(results)
    header = ["work", "contestant", "sentences/s", "ms a step", "kernels", "busy", "MiB", "paper's run, s", "failed"]
    names = ["work", "contestant", "sentences_per_second", "ms_a_step", "kernels_a_step", "busy_share"]
    names += ["peak_memory_mib", "projected_seconds", "failed"]
    rows = [[shown(row.get(name)) for name in names] for row in results["rows"]]
    checks = [[name, shown(value)] for name, value in results["smoke_test"].items()]
    return f"{markdown(['smoke test', 'result'], checks)}\n\n{markdown(header, rows)}"
