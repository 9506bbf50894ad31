"""Kill training at random moments, resume it until it ends, and compare it with the uninterrupted run bit by bit.

    python -m benchmarks kills --kills 200 --output benchmarks/results/kills.json

Each of 12 configurations of a tiny model is trained once without interruption. Then runs are killed by SIGKILL and
resumed with `resume_from_checkpoint=True`, up to four times each, until they end. Every second kill waits until a
checkpoint is being written. At the end the weights, the optimizer, the schedule, the random state and the log history
must have the bits of the uninterrupted run. The processes are forked from this one, which saves the time of imports.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simcse_hf.training.checkpoints import STAGING, checkpoints

from .harness import Report, machine, markdown
from .tiny import CONFIGURATIONS, fingerprint, make_trainer

MOST_KILLS_OF_A_RUN = 4
#: The longest time in seconds between the start of writing a checkpoint and the kill; writing takes about this long.
WHILE_SAVING = 0.08
_PAUSE = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=200, help="number of kills over all configurations")
    parser.add_argument("--configurations", nargs="+", choices=CONFIGURATIONS, default=[*CONFIGURATIONS])
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")


def run(options: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    names = options.configurations
    results = []
    for position, name in enumerate(names):
        quota = options.kills // len(names) + (position < options.kills % len(names))
        with tempfile.TemporaryDirectory(prefix="simcse-kills-") as folder:
            results.append(kill_configuration(name, Path(folder), quota, random.Random(f"{options.seed} {name}")))
        report.save(seed=options.seed, configurations=results, machine=machine())
        print(results[-1], flush=True)


def kill_configuration(name: str, folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill runs of a configuration so many times, and compare each that ends with the uninterrupted run.

    Args:
        name (`str`): One of `tiny.CONFIGURATIONS`.
        folder (`Path`): An empty folder.
        kills (`int`): How often to kill.
        draw (`random.Random`): Draws the moments.

    Returns:
        `dict[str, Any]`: Counts of kills, of those while a checkpoint was written and before the first one, of runs,
        and of runs that ended with other bits.
    """
    whole = folder / "whole"
    start = time.perf_counter()
    _wait(_start(name, whole))
    seconds = time.perf_counter() - start
    expected = fingerprint(whole)
    counts = {"kills": 0, "while saving": 0, "before the first checkpoint": 0, "runs": 0, "differing": 0}
    differing: list[str] = []
    while counts["kills"] < kills:
        killed = folder / "killed"
        most = min(MOST_KILLS_OF_A_RUN, kills - counts["kills"])
        for _ in range(most):
            wait_for = STAGING if draw.random() < 0.5 else None
            pid = _start(name, killed)
            if not _kill(pid, killed / STAGING if wait_for else None, draw, seconds):
                break  # the run ended first
            counts["kills"] += 1
            counts["while saving"] += (killed / STAGING).exists()
            counts["before the first checkpoint"] += not checkpoints(killed)
        else:
            _wait(_start(name, killed))
        counts["runs"] += 1
        found = fingerprint(killed)
        differences = [key for key in expected | found if expected.get(key) != found.get(key)]
        counts["differing"] += bool(differences)
        differing += differences
        shutil.rmtree(killed)
    return {"configuration": name, **counts, "differences": sorted(set(differing)), "seconds of a run": seconds}


def train(name: str, folder: Path) -> None:
    """Train a configuration, or resume it if there is a checkpoint."""
    make_trainer(name, folder).train(resume_from_checkpoint=bool(checkpoints(folder)))


def _start(name: str, folder: Path) -> int:
    return start_process(lambda: train(name, folder))


def start_process(function: Callable[[], None]) -> int:
    """Call a function in a forked process, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _wait(pid: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise RuntimeError(f"a run ended with status {status}; its traceback is above")


def _kill(pid: int, saving: Path | None, draw: random.Random, seconds: float) -> bool:
    """Kill a run at a random moment, or while it saves, and return whether it was still running."""
    deadline = time.perf_counter() + draw.uniform(0, seconds)
    while time.perf_counter() < deadline:  # also before waiting for a save, so that any of them may be hit
        if _has_ended(pid):
            return False
        time.sleep(_PAUSE)
    if saving is not None:
        while not saving.exists():
            if _has_ended(pid):
                return False
            time.sleep(_PAUSE)
        time.sleep(draw.uniform(0, WHILE_SAVING))
    if _has_ended(pid):
        return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def _has_ended(pid: int) -> bool:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended and os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"a run ended with status {os.waitstatus_to_exitcode(status)}; its traceback is above")
    return bool(ended)


def table(results: dict[str, Any]) -> str:
    rows = results["configurations"]
    columns = ("kills", "while saving", "before the first checkpoint", "runs", "differing")
    total = {column: sum(row[column] for row in rows) for column in columns}
    listed = [*rows, {"configuration": "all", **total}]
    return markdown(
        ("configuration", *columns), ([row["configuration"], *(row[c] for c in columns)] for row in listed)
    )
