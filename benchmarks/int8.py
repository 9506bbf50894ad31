"""Encoding in int8 on a CPU: this package's exports beside sentence-transformers' own backends, in one run.

    python -m benchmarks int8 --python ../st/bin/python --output benchmarks/results/int8.json

`--python` names an environment with sentence-transformers, optimum-onnx and optimum-intel, which need an older
transformers than this package; without it, sentence-transformers runs in PyTorch alone. Every contestant first encodes
the texts with several batch sizes and goes on with its best one. Then they take turns, each with one thread. The STS
average is over the sets in `--data`.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from simcse_hf import SimCSE
from simcse_hf.evaluation.scoring import evaluate_sts, read_tasks
from simcse_hf.publishing.export import EXPORTS, processor_instructions

from .harness import (
    STS_TASKS,
    Report,
    add_data_option,
    add_model_option,
    ask_worker,
    machine,
    markdown,
    model_or_default,
    seconds_of,
    take_turns,
)

BATCHES = (8, 32, 128)
TOKEN_BUDGETS = (512, 1024, 4096)
TORCH, OURS = "sentence-transformers, torch", "simcse_hf, {}"
THEIRS = ("onnx", "onnx-int8", "openvino", "openvino-int8")
Encode = Callable[[str, int, str | None], float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_data_option(parser)
    parser.add_argument("--python", help="interpreter of an environment with sentence-transformers and optimum")
    parser.add_argument("--texts", type=int, default=2000, help="sentences of the STS sets that are timed")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")


def run(options: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    downstream = str(options.data / "senteval/downstream")
    every = sorted(set(read_tasks(STS_TASKS, downstream).texts()))
    with TemporaryDirectory() as folder:
        model = Path(shutil.copytree(model_or_default(options.model), Path(folder, "model")))
        timed, all_texts = Path(folder, "timed.json"), Path(folder, "all.json")
        timed.write_text(json.dumps(every[:: len(every) // options.texts]))
        all_texts.write_text(json.dumps(every))
        Dataset.from_dict({"text": every[:1000]}).to_json(model / "calibration/train.jsonl")
        contestants: dict[str, tuple[Encode, tuple[int, ...]]] = {}
        for backend in ("torch", "onnx-int8", "openvino-int8"):
            contestants[OURS.format(backend)] = (
                partial(encode_ours, load_ours(backend, model, folder)),
                TOKEN_BUDGETS,
            )
        workers = {TORCH: (start(sys.executable), "torch")}
        if options.python:
            other = start(options.python)
            workers |= {f"sentence-transformers, {backend}": (other, backend) for backend in THEIRS}
        for name, (process, backend) in workers.items():
            contestants[name] = (partial(ask, process, backend, str(model)), BATCHES)
        best = {}
        for name, (encode, batches) in contestants.items():
            seconds = {batch: min(encode(str(timed), batch, None) for _ in range(2)) for batch in batches}
            best[name] = min(batches, key=seconds.__getitem__)
            print(name, seconds, flush=True)
        turns = {n: partial(encode, str(timed), best[n], None) for n, (encode, _) in contestants.items()}
        seconds = take_turns(turns, options.rounds)
        rows = {}
        for name, (encode, _) in contestants.items():
            encode(str(all_texts), best[name], output := str(Path(folder, "embeddings.npy")))
            embeddings = dict(zip(every, np.load(output), strict=True))
            rows[name] = {
                "sentences_per_second": len(json.loads(timed.read_text())) / seconds[name],
                "times_sentence_transformers": seconds[TORCH] / seconds[name],
                "sts_average": evaluate_sts(Saved(embeddings), downstream, STS_TASKS)["average"]["value"],
                "batch": best[name],
            }
            report.save(machine=machine() | {"cpu": cpu(), "instructions": processor_instructions()}, rows=rows)


def load_ours(backend: str, model: Path, folder: str) -> SimCSE:
    """Load the model, or its export."""
    if backend == "torch":
        return SimCSE(model, device="cpu")
    EXPORTS[backend](SimCSE(model, device="cpu"), path := Path(folder, backend))
    return SimCSE(path, backend=backend.removesuffix("-int8"))


def encode_ours(model: SimCSE, texts: str, token_budget: int, output: str | None) -> float:
    """Encode a file of texts, and return the seconds."""
    sentences, embeddings = json.loads(Path(texts).read_text()), []
    seconds = seconds_of(lambda: embeddings.append(model.encode(sentences, token_budget=token_budget)))
    if output:
        np.save(output, embeddings[0].numpy())
    return seconds


class Saved:
    """An encoder that looks embeddings up."""

    def __init__(self, embeddings: dict[str, np.ndarray]):
        self.embeddings = embeddings

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.embeddings[text] for text in texts])


def start(python: str) -> subprocess.Popen[str]:
    """Start a worker."""
    script = str(Path(__file__).with_name("int8_worker.py"))
    return subprocess.Popen([python, script, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(
    process: subprocess.Popen[str], backend: str, model: str, texts: str, batch_size: int, output: str | None
) -> float:
    """Let a worker encode a file of texts, and return the seconds."""
    work = {"backend": backend, "model": model, "texts": texts, "batch_size": batch_size, "output": output}
    return ask_worker(process, work)


def cpu() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    names = [line for line in path.read_text().splitlines() if line.startswith("model name")] if path.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()


def table(results: dict[str, Any]) -> str:
    header = ["contestant", "sentences per second", "times sentence-transformers in PyTorch", "STS average", "batch"]
    return markdown(
        header,
        [
            [name, f"{row['sentences_per_second']:.0f}", f"{row['times_sentence_transformers']:.2f}"]
            + [f"{row['sts_average']:.2f}", row["batch"]]
            for name, row in results["rows"].items()
        ],
    )
