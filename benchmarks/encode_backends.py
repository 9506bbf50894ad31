"""Encoding on a CPU: every backend and precision of this package and of sentence-transformers, in one run.

    python -m benchmarks encode_backends --python ../st/bin/python --output benchmarks/results/encode_backends.json

`--python` names an environment with sentence-transformers, optimum-onnx, optimum-intel and nncf, which need an older
transformers than this package; without it, sentence-transformers runs in PyTorch alone. Every contestant has a process
of its own, in which it first encodes the texts with several batch sizes and goes on with its best one. Then they take
turns. A speed is the median over the turns of the ratio to sentence-transformers in PyTorch and float32 in the same
turn, so that other load on the machine affects both alike. The STS average is over `--tasks` in `--data`.
"""

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from datasets import Dataset

from simcse_hf import SimCSE
from simcse_hf.apps.export import processor_instructions
from simcse_hf.encoding.graphs import GRAPHS, export_graph, feeds
from simcse_hf.evaluation import evaluate
from simcse_hf.evaluation.scoring import read_tasks
from simcse_hf.evaluation.tasks import roles_of

from .harness import (
    STS_TASKS,
    Report,
    add_data_option,
    add_model_option,
    ask_worker,
    machine,
    markdown,
    model_or_default,
)

TOKEN_BUDGETS = (512, 1024, 4096)
BATCHES = (8, 32, 128)
#: What of this package runs, and what of sentence-transformers. Without a precision, OpenVINO takes the processor's
#: own: bfloat16 where it has instructions for it.
OURS = (
    ("torch", "float32"),
    ("torch compiled", "float32"),
    ("onnx", "float32"),
    ("openvino", "float32"),
    ("torch", "bfloat16"),
    ("openvino", "bfloat16"),
    ("onnx", "int8 dynamic"),
    ("onnx", "int8 mixed"),
    ("onnx", "int8 static"),
    ("openvino", "int8 dynamic"),
    ("openvino", "int8 static"),
)
THEIRS = (
    ("torch", "float32"),
    ("onnx", "float32"),
    ("openvino", "float32"),
    ("torch", "bfloat16"),
    ("openvino", "bfloat16"),
    ("onnx", "int8 dynamic"),
    ("openvino", "int8 static"),
)
LIBRARIES = ("simcse_hf", "sentence-transformers")
BASELINE = "sentence-transformers, torch, float32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_data_option(parser)
    parser.add_argument("--python", help="interpreter of an environment with sentence-transformers and optimum")
    parser.add_argument("--texts", type=int, default=2000, help="sentences of the STS sets that are timed")
    parser.add_argument("--tasks", nargs="+", default=STS_TASKS, choices=STS_TASKS, help="the sets that are scored")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of a contestant")


def run(options: argparse.Namespace, report: Report) -> None:
    downstream = str(options.data / "senteval/downstream")
    tasks, _, _ = read_tasks(tasks=options.tasks, data_dir=downstream)
    every = sorted(set(roles_of(tasks)[None]))
    with TemporaryDirectory() as work:
        folder = Path(work)
        model = Path(shutil.copytree(model_or_default(options.model), folder / "model"))
        timed, all_texts = folder / "timed.json", folder / "all.json"
        distance = max(1, len(every) // options.texts)
        timed.write_text(json.dumps(every[::distance][: options.texts]))
        all_texts.write_text(json.dumps(every))
        calibration = every[1::7][:300]
        Dataset.from_dict({"text": calibration}).to_json(model / "calibration/train.jsonl")
        folders = export_all(model, folder, calibration)
        report.save(machine=machine() | {"cpu": cpu(), "instructions": processor_instructions()})
        results = report.results.setdefault("threads", {})
        running = {}
        for threads in options.threads:
            for process in running.values():  # they take much memory
                process.kill()
            contestants = {}
            for backend, precision in OURS:
                path = folders.get((backend, precision), model)
                contestants[f"simcse_hf, {backend}, {precision}"] = start(
                    sys.executable, "simcse_hf", backend, precision, path, threads
                )
            for backend, precision in THEIRS if options.python else THEIRS[:1]:
                own = folder / f"st-{backend}-{precision}"  # into which it writes
                shutil.copytree(model, own, dirs_exist_ok=True)
                contestants[f"sentence-transformers, {backend}, {precision}"] = start(
                    options.python or sys.executable, "sentence-transformers", backend, precision, own, threads
                )
            rows = results.setdefault(str(threads), {})
            rows |= measure(contestants, timed, options.rounds)
            report.save(tasks=list(options.tasks))
            running = contestants
        for name, process in running.items():
            output = folder / "embeddings.npy"
            ask(process, all_texts, rows[name]["batch"], output)
            encoder = Saved(dict(zip(every, np.load(output), strict=True)))
            scores = evaluate(encoder, data_dir=downstream, tasks=options.tasks).results
            for rows_of_threads in results.values():
                rows_of_threads[name]["sts_average"] = scores["average"]["value"]
            report.save()
            process.kill()


def export_all(model: Path, folder: Path, calibration: list[str]) -> dict[tuple[str, str], Path]:
    """Export the model in every form, and return the folders."""
    simcse = SimCSE(model, device="cpu")
    folders = {}
    instructions = processor_instructions()
    bits = 7 if instructions == "avx2" else 8
    for backend, graph in GRAPHS.items():
        path = folder / backend
        plain = export_graph(simcse, path, backend)
        folders |= {(backend, "float32"): path, (backend, "bfloat16"): path}
        for method in graph.methods:
            path = folder / f"{backend}-{method}"
            simcse.save_settings(path)
            (path / backend).mkdir()
            graph.quantize(plain, path / graph.int8[instructions], method, feeds(simcse, calibration), bits)
            folders[backend, f"int8 {method}"] = path
    return folders


def measure(contestants: dict[str, subprocess.Popen[str]], timed: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Find the best batch size of each contestant, and let them take turns with it."""
    rows = {}
    for name, process in contestants.items():
        batches = TOKEN_BUDGETS if name.startswith("simcse_hf") else BATCHES
        first = ask(process, timed, batches[0])  # it loads and compiles
        seconds = {batch: ask(process, timed, batch) for batch in batches}
        rows[name] = {"batch": min(batches, key=seconds.__getitem__), "first_seconds": round(first, 2)}
        print(name, seconds, flush=True)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, process in contestants.items():
            times[name].append(ask(process, timed, rows[name]["batch"]))
    for name, row in rows.items():
        pairs = zip(times[BASELINE], times[name], strict=True)
        ratios = [base / own for base, own in pairs]
        row["speed"] = statistics.median(ratios)
        row["speeds"] = [round(ratio, 2) for ratio in sorted(ratios)]
        texts = json.loads(timed.read_text())
        row["sentences_per_second"] = len(texts) / statistics.median(times[name])
    return rows


class Saved:
    """An encoder that looks embeddings up."""

    def __init__(self, embeddings: dict[str, np.ndarray]):
        self.embeddings = embeddings

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.embeddings[text] for text in texts])


def start(python: str, library: str, backend: str, precision: str, model: Path, threads: int) -> subprocess.Popen[str]:
    """Start a worker."""
    script = str(Path(__file__).with_name("encode_backends_worker.py"))
    command = [python, script, library, backend, precision, str(model), str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], texts: Path, batch: int, output: Path | None = None) -> float:
    """Let a worker encode a file of texts, and return the seconds."""
    return ask_worker(process, {"texts": str(texts), "batch": batch, "output": output and str(output)})


def cpu() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def table(results: dict[str, Any]) -> str:
    counts = list(results["threads"])
    first = results["threads"][counts[0]]
    header = ["library", "backend", "precision", *(f"speed, {n} thread(s)" for n in counts), "STS average", "batch"]
    rows = []
    for name in first:
        speeds = [f"{results['threads'][n][name]['speed']:.2f}" for n in counts]
        score = first[name].get("sts_average")
        average = "" if score is None else f"{score:.2f}"
        rows.append([*name.split(", "), *speeds, average, first[name]["batch"]])
    return markdown(header, rows)
