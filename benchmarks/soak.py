"""Train for many steps, and measure whether memory, the time of a step or the number of open files grow.

    python -m benchmarks soak --steps 20000 --output benchmarks/results/soak.json

The run of a tiny model saves a checkpoint every 500 steps and evaluates a dev set every 250. Of every 500 steps the
resident memory, the open files and the processor time of a step are noted. The time is that of the fastest tenth of
the steps, because the others also depend on what else the processor does.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .harness import Report, machine, markdown, megabytes
from .tiny import make_trainer

NAME = "best of the dev set, one checkpoint kept"
EVERY = 500
#: Memory is compared with that after the first windows, when caches are filled.
WARM_UP = 1000


class Observer(TrainerCallback):
    """Note memory, open files and the processor time of a step after every window of steps.

    The time is that between the beginning and the end of a step, so evaluations and saving are left out.

    Args:
        every (`int`): Steps in a window.
    """

    def __init__(self, every: int):
        self.every = every
        self.rows: list[dict[str, float]] = []
        self._times: list[float] = []
        self._start = 0.0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kw: Any) -> None:
        self._start = time.process_time()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kw: Any) -> None:
        self._times.append(time.process_time() - self._start)
        if state.global_step % self.every == 0:
            files = len(os.listdir("/proc/self/fd"))
            milliseconds = 1000 * statistics.quantiles(self._times, n=10)[0]
            row = {"step": state.global_step, "megabytes": megabytes("VmRSS"), "milliseconds": milliseconds}
            self.rows.append(row | {"open files": files})
            self._times = []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=EVERY, help="steps between two measurements")


def run(options: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    observer = Observer(options.every)
    with tempfile.TemporaryDirectory(prefix="simcse-soak-") as folder:
        steps = {"max_steps": options.steps, "save_steps": options.every, "eval_steps": options.every // 2}
        make_trainer(NAME, Path(folder), (observer,), logging_steps=50, learning_rate=1e-5, **steps).train()
    report.save(steps=options.steps, windows=observer.rows, machine=machine())


def summary(windows: list[dict[str, float]]) -> dict[str, float]:
    """Return how much memory and time grew between the end of the warm-up and the end of the run, in percent.

    The time of a step is compared between the first and the last quarter of the windows, because a single window
    depends on the temperature and the neighbours of the processor.
    """
    later = [row for row in windows if row["step"] >= min(WARM_UP, windows[-1]["step"] // 4)]
    quarter = max(1, len(later) // 4)
    first, last = (
        statistics.median(row["milliseconds"] for row in part) for part in (later[:quarter], later[-quarter:])
    )
    return {
        "memory growth %": 100 * (later[-1]["megabytes"] / later[0]["megabytes"] - 1),
        "step time drift %": 100 * (last / first - 1),
        "open files at first": later[0]["open files"],
        "open files at last": later[-1]["open files"],
    }


def table(results: dict[str, Any]) -> str:
    windows = results["windows"]
    picked = windows[:: max(1, len(windows) // 10)]
    if picked[-1] != windows[-1]:
        picked.append(windows[-1])
    columns = ("step", "megabytes", "milliseconds", "open files")
    rows = [[f"{row[c]:.2f}" if isinstance(row[c], float) else row[c] for c in columns] for row in picked]
    figures = "; ".join(f"{name}: {value:.2f}" for name, value in summary(windows).items())
    return f"{markdown(columns, rows)}\n\n{figures}"
