"""Kill training at random moments, resume it until it ends, and compare it with the uninterrupted run bit by bit.

    python -m benchmarks kills --kills 200 --output benchmarks/results/kills.json

Each of 16 configurations of a tiny model is trained once without interruption. Then runs are killed by SIGKILL and
resumed with `resume_from_checkpoint=True`, up to four times each, until they end. Every second kill waits until a
checkpoint is being written. At the end the weights, the optimizer, the schedule, the random state and the log history
must have the bits of the uninterrupted run. A study of two ways and a grid is killed in the same way, and must end
with the table of the uninterrupted one. The processes are forked from this one, which saves the time of imports.
Results of other configurations that the output file already holds are kept.
"""

import argparse
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simcse_hf import Recipe, sample_files, study
from simcse_hf.runtime.files import STAGING
from simcse_hf.training.checkpoints import checkpoints

from .harness import Report, machine, markdown, prepare_forked_process
from .tiny import CONFIGURATIONS, fingerprint, make_trainer

MOST_KILLS_OF_A_RUN = 4
#: The configuration that is no single run.
STUDY = "a study"
#: The longest time in seconds between the start of writing a checkpoint and the kill; writing takes about this long.
WHILE_SAVING = 0.08
_PAUSE = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=200, help="number of kills over all configurations")
    parser.add_argument(
        "--configurations", nargs="+", choices=[*CONFIGURATIONS, STUDY], default=[*CONFIGURATIONS, STUDY]
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")


def run(options: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # the imported modules need no collection in the processes
    names = options.configurations
    earlier = report.results.get("configurations", [])
    results = [row for row in earlier if row["configuration"] not in names]
    for position, name in enumerate(names):
        quota = options.kills // len(names) + (position < options.kills % len(names))
        with tempfile.TemporaryDirectory(prefix="simcse-kills-") as folder:
            results.append(kill_configuration(name, Path(folder), quota, random.Random(f"{options.seed} {name}")))
        report.save(seed=options.seed, configurations=results, machine=machine())


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
    _wait(_start(name, whole), whole)
    seconds = time.perf_counter() - start
    expected = outcome(name, whole)
    counts = {"kills": 0, "while saving": 0, "before the first checkpoint": 0, "runs": 0, "differing": 0}
    differing: list[str] = []
    while counts["kills"] < kills:
        killed = folder / "killed"
        most = min(MOST_KILLS_OF_A_RUN, kills - counts["kills"])
        for _ in range(most):
            left_over = _inode(killed / STAGING)  # of an earlier kill
            pid = _start(name, killed)
            while_saving = draw.random() < 0.5 and name != STUDY
            if not _kill(pid, killed, while_saving, draw, seconds):
                break  # the run ended first
            counts["kills"] += 1
            counts["while saving"] += _inode(killed / STAGING) not in (None, left_over)
            counts["before the first checkpoint"] += not checkpoints(killed)
        else:
            _wait(_start(name, killed), killed)
        counts["runs"] += 1
        found = outcome(name, killed)
        differences = [key for key in expected | found if expected.get(key) != found.get(key)]
        counts["differing"] += bool(differences)
        differing += differences
        shutil.rmtree(killed)
        killed.with_suffix(".log").unlink()
    return {"configuration": name, **counts, "differences": sorted(set(differing)), "seconds of a run": seconds}


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """Return what must have the same bits."""
    if name == STUDY:
        return {STUDY: (folder / "study.json").read_bytes()}
    return fingerprint(folder)


def train(name: str, folder: Path) -> None:
    """Train a configuration, or resume it if there is a checkpoint."""
    if name == STUDY:
        corpus, _ = sample_files()
        steps = {"max_steps": 6, "eval_steps": 3, "max_train_samples": 400, "per_device_train_batch_size": 32}
        simcse = Recipe.read("unsup", {**steps, "report_to": "none", "use_cpu": True})
        ways = {"simcse": {}, "hotter": {"temp": 0.2}, "grid": {"learning_rate": [1e-4, 1e-3]}}
        base = {**simcse.decide().given, "command": "unsup"}
        study({"base": base, "ways": ways}, seeds=2, test=[str(corpus.test)], output=folder)
        return
    make_trainer(name, folder).train(resume_from_checkpoint=bool(checkpoints(folder)))


def _start(name: str, folder: Path) -> int:
    return start_process(lambda: train(name, folder), folder.with_suffix(".log"))


def start_process(function: Callable[[], None], log: Path) -> int:
    """Call a function in a forked process, and return its number.

    Args:
        function (`Callable`): What to call. The process ends with the status of its `SystemExit`, with 130 for an
            interrupt, with 1 for another error, and with 0 otherwise.
        log (`Path`): File that gets the output of the process.

    Returns:
        `int`: The number of the process.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        prepare_forked_process()
        with open(log, "a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # not those that a test runner captures
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


def _wait(pid: int, folder: Path) -> None:
    _check(os.waitpid(pid, 0)[1], folder)


def _check(status: int, folder: Path) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise RuntimeError(f"a run ended with status {code}:\n{folder.with_suffix('.log').read_text()[-4000:]}")


def _kill(pid: int, folder: Path, while_saving: bool, draw: random.Random, seconds: float) -> bool:
    """Kill a run at a random moment, or when it saves next after that, and return whether it was still running."""
    deadline = time.perf_counter() + draw.uniform(0, seconds)
    left_over = _inode(folder / STAGING)

    def goes_on() -> bool:
        is_saving = _inode(folder / STAGING) not in (None, left_over)
        return time.perf_counter() < deadline or (while_saving and not is_saving)

    while goes_on():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _check(status, folder)
            return False
        time.sleep(_PAUSE)
    if while_saving:
        time.sleep(draw.uniform(0, WHILE_SAVING))
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _inode(path: Path) -> int | None:
    """Return the number of a folder on its disk, which tells a new folder from the one that it replaced."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def table(results: dict[str, Any]) -> str:
    rows = results["configurations"]
    columns = ("kills", "while saving", "before the first checkpoint", "runs", "differing")
    total = {column: sum(row[column] or 0 for row in rows) for column in columns}
    listed = [*rows, {"configuration": "all", **total}]
    header = ("configuration", *columns)
    return markdown(header, [[row[column] for column in header] for row in listed])
