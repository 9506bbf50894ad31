"""Training steps and encoding with this checkout and with another one, in turns: has a change made the package slower?

    git worktree add --detach ../simcse-0.1.0 4e2eed4
    python -m benchmarks versions --other ../simcse-0.1.0 --output benchmarks/results/versions.json

Each checkout runs in a process of its own, with the same model, texts and environment. They take turns, and the one
that begins changes from round to round. `speedup` is the time of the other checkout divided by ours, as the median of
the rounds; the interval goes from the smallest to the largest. Machines change their speed by 10% and more within
minutes, so a speedup means little if its interval reaches from below 1 to above 1.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from .harness import (
    Report,
    add_data_option,
    add_model_option,
    ask_worker,
    distinct_sentences,
    machine,
    markdown,
    model_or_default,
    sts_sets,
    training_texts,
)

ROOT = Path(__file__).resolve().parents[1]
ROWS = 4096
ENCODED = "STS sentences"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--other", type=Path, help="root of the other checkout; needed to measure")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each checkout")
    parser.add_argument("--sentences", type=int, default=4000, help="sentences to encode in a turn")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.other is None or not (options.other / "simcse_hf").is_dir():
        raise SystemExit(f"--other {options.other}: no checkout of this project; name the root of one")
    model = str(Path(model_or_default(options.model)).resolve())
    texts = training_texts(options.data, ROWS)
    works = [("train", name, bf16) for name in texts for bf16 in (False, True)]
    works += [("encode", ENCODED, bf16) for bf16 in (False, True)]
    texts[ENCODED] = Dataset.from_dict({"text": distinct_sentences(sts_sets(options.data))[: options.sentences]})
    report.save(other=revision(options.other), machine=machine())
    with tempfile.TemporaryDirectory(prefix="simcse-versions-") as folder:
        for name, rows in texts.items():
            rows.save_to_disk(Path(folder, name))
        checkouts = [start(checkout, model, folder) for checkout in (options.other.resolve(), ROOT)]
        for work in works:
            times: list[list[float]] = [[], []]
            for round_number in range(options.rounds):
                for i in (0, 1) if round_number % 2 else (1, 0):
                    times[i].append(ask_worker(checkouts[i], work))
            row = compare(work, *times)
            report.save_rows([row])
            print(row, flush=True)
        for process in checkouts:
            process.communicate()


def start(checkout: Path, model: str, folder: str) -> subprocess.Popen[str]:
    """Start the worker with the package of a checkout."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/version_worker.py"), model, folder, str(torch.get_num_threads())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
    )


def name_of(work: tuple[str, str, bool]) -> str:
    kind, texts, bf16 = work
    return f"{'training step' if kind == 'train' else 'encode'}, {texts}, {'bf16 autocast' if bf16 else 'float32'}"


def compare(work: tuple[str, str, bool], other: list[float], ours: list[float]) -> dict[str, Any]:
    speedups = [a / b for a, b in zip(other, ours, strict=True)]
    return {
        "work": name_of(work),
        "seconds": round(statistics.median(ours), 3),
        "seconds_of_the_other": round(statistics.median(other), 3),
        "speedup": round(statistics.median(speedups), 2),
        "interval": [round(min(speedups), 2), round(max(speedups), 2)],
        "rounds": len(ours),
    }


def revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or checkout.name


def table(results: dict[str, Any]) -> str:
    rows = [
        [
            row["work"],
            row["seconds"],
            row["seconds_of_the_other"],
            f"{row['speedup']:.2f} x",
            f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}",
        ]
        for row in results["rows"]
    ]
    return markdown(["work", "this checkout, s", f"{results['other']}, s", "speedup", "of the rounds"], rows)
