"""Kill `encode` and index saving at random moments, and let two processes add to one index at the same time.

    python -m benchmarks file_kills --output benchmarks/results/file_kills.json

`simcse-hf encode` is killed by SIGKILL and resumed, up to four times, until it ends. Then every file must have the
bytes of the uninterrupted run. A process that saves an index is killed too. Then the folder must hold the whole old
index or the whole new one, other files in it must be as they were, and the next save must work. Half of all kills
wait until a file is being written. Two processes that run `simcse-hf index --add` on one index at the same time must
each succeed or be refused, and the index must hold what it held before and the additions that succeeded, and nothing
else. The processes are forked from this one, which saves the time of imports.
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
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from simcse_hf import SimCSE
from simcse_hf.cli import encode, main, search  # noqa: F401 (a forked process needs no time to import the commands)
from simcse_hf.inference import shards  # noqa: F401
from simcse_hf.search import SentenceIndex

from .harness import Report, machine, markdown
from .kills import start_process
from .tiny import WORDS

MODEL = Path(__file__).resolve().parents[1] / "tests/golden/0.2.0/bert"
MOST_KILLS_OF_A_RUN = 4
#: name: further words of the command line of `simcse-hf encode`.
ENCODINGS = {
    "npy, float32": (),
    "npy, int8": ("--precision", "int8"),
    "parquet, float32": ("--format", "parquet"),
    "parquet, int8": ("--format", "parquet", "--precision", "int8"),
}
#: name: (backend of the index, whether an index is replaced).
SAVES = {
    "exact": ("exact", True),
    "faiss flat": ("flat", True),
    "faiss hnsw": ("hnsw", True),
    "exact, new folder": ("exact", False),
}
ADDITIONS = ("exact", "flat")
REFUSALS = ("another process is changing this index", "another process has changed this index")
#: Files of a user, which no save may touch: relative path and content.
USER_FILES = {"notes.txt": "mine", "queries/vectors.npy": "mine too"}
_PAUSE = 0.0002
#: The longest time in seconds between the first sign of writing a shard and the kill: about the time of writing.
_SHARD_WRITING = 0.004


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=100, help="number of kills of `encode`; 0: leave it out")
    parser.add_argument("--saves", type=int, default=100, help="number of kills of index saving; 0: leave it out")
    parser.add_argument(
        "--pairs", type=int, default=75, help="number of pairs of concurrent additions; 0: leave them out"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")


def run(options: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    model = load_model()
    gc.freeze()  # the imported modules need no collection in the processes
    parts: dict[str, tuple[Iterable[str], int, Callable[[str, Path, int, random.Random], dict[str, Any]]]] = {
        "encode": (ENCODINGS, options.kills, kill_encoding),
        "save": (SAVES, options.saves, lambda *arguments: kill_saving(model, *arguments)),
        "add": (ADDITIONS, options.pairs, lambda *arguments: add_in_pairs(model, *arguments)),
    }
    for part, (names, total, attack) in parts.items():
        if not total:
            continue
        rows, names = [], list(names)
        for position, name in enumerate(names):
            quota = total // len(names) + (position < total % len(names))
            with tempfile.TemporaryDirectory(prefix="simcse-kills-") as folder:
                rows.append(attack(name, Path(folder), quota, random.Random(f"{options.seed} {part} {name}")))
        report.save(**{part: rows}, seed=options.seed, machine=machine())


def load_model() -> SimCSE:
    """Load the tiny encoder of the golden files."""
    return SimCSE(str(MODEL), device="cpu")


# --- encode ---------------------------------------------------------------------------------------------------------


def kill_encoding(name: str, folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill runs of `simcse-hf encode` so many times, and compare each that ends with the uninterrupted run.

    Args:
        name (`str`): One of `ENCODINGS`.
        folder (`Path`): An empty folder.
        kills (`int`): How often to kill.
        draw (`random.Random`): Draws the texts and the moments.

    Returns:
        `dict[str, Any]`: Counts of kills, of those while a file was written and before the first shard, of runs, and
        of runs that ended with other files or bytes.
    """
    texts, log = folder / "texts.txt", folder / "log"
    texts.write_text("".join(f"{text}\n" for text in make_texts(120, draw)), encoding="utf-8")

    def start(output: Path) -> int:
        words = ["encode", "--model", str(MODEL), "--input", str(texts), "--output", str(output), "--resume"]
        return start_command([*words, "--shard_size", "8", "--quiet", *ENCODINGS[name]], log)

    begin = time.perf_counter()
    finish(start(folder / "whole"), log)
    seconds = time.perf_counter() - begin
    expected = contents(folder / "whole")
    counts = {"kills": 0, "while writing": 0, "before the first shard": 0, "runs": 0, "differing": 0}
    differences: set[str] = set()
    killed = folder / "killed"
    while counts["kills"] < kills:
        for _ in range(min(MOST_KILLS_OF_A_RUN, kills - counts["kills"])):
            before = temporary_files(killed)
            wait_for = (lambda: temporary_files(killed) - before) if draw.random() < 0.5 else None  # noqa: B023
            if not kill(start(killed), log, draw.uniform(0, seconds), wait_for, draw.uniform(0, _SHARD_WRITING)):
                break  # the run ended first
            counts["kills"] += 1
            counts["while writing"] += bool(temporary_files(killed) - before)
            counts["before the first shard"] += not any(killed.glob("vectors-*"))
        else:
            finish(start(killed), log)
        counts["runs"] += 1
        found = contents(killed)
        different = {key for key in expected | found if expected.get(key) != found.get(key)}
        counts["differing"] += bool(different)
        differences |= different
        shutil.rmtree(killed)
    return {"output": name, **counts, "differences": sorted(differences), "seconds of a run": seconds}


# --- saving an index ------------------------------------------------------------------------------------------------


def kill_saving(model: SimCSE, name: str, folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill processes that build and save an index so many times, and look at the folder after each.

    Args:
        model (`SimCSE`): The encoder.
        name (`str`): One of `SAVES`.
        folder (`Path`): An empty folder.
        kills (`int`): How often to kill.
        draw (`random.Random`): Draws the texts and the moments.

    Returns:
        `dict[str, Any]`: Counts of kills, of those while the index was written, of what the folder held afterwards
        (the old index, the new one, or none as before), and of kills after which something was lost.
    """
    backend, replaces = SAVES[name]
    target, log = folder / "index", folder / "log"

    def start(texts: list[str]) -> int:
        return start_process(lambda: save_index(model, texts, backend, target), log)

    old = make_texts(60, draw)
    begin = time.perf_counter()
    finish(start(old), log)
    seconds = time.perf_counter() - begin
    counts = {"kills": 0, "while writing": 0, "old": 0, "new": 0, "none": 0, "lost": 0}
    losses: list[str] = []
    while counts["kills"] < kills:
        if replaces:
            write_user_files(target)
        else:
            shutil.rmtree(target)
        new, next_texts = make_texts(draw.randrange(40, 80), draw), make_texts(60, draw)
        before = entries(target)
        wait_for = (lambda: entries(target) - before - {".lock"}) if draw.random() < 0.5 else None  # noqa: B023
        was_killed = kill(start(new), log, draw.uniform(0, seconds), wait_for, draw.uniform(0, seconds))
        counts["kills"] += was_killed
        # A data folder more than before: the new one is not complete, or the old one is not removed.
        counts["while writing"] += was_killed and len(entries(target) - {".lock"}) > len(before - {".lock"})
        try:
            found = read_index(model, target)
            kind = "new" if found == new else "old" if replaces else "none"
            if kind != "new" and found != (old if replaces else None):
                raise ValueError("the folder holds neither the old nor the new sentences")
            counts[kind] += was_killed
            finish(start(next_texts), log)
            check_next_save(model, target, next_texts, USER_FILES if replaces else {})
        except (ValueError, RuntimeError) as error:
            counts["lost"] += 1
            losses.append(str(error).replace(str(folder), ""))
            shutil.rmtree(target, ignore_errors=True)
            finish(start(next_texts), log)
        old = next_texts
    return {"index": name, **counts, "losses": losses, "seconds of a save": seconds}


def save_index(model: SimCSE, texts: list[str], backend: str, target: Path) -> None:
    use_one_thread()
    SentenceIndex.build(model, texts, backend=backend).save(target)


def read_index(model: SimCSE, folder: Path) -> list[str] | None:
    """Return the sentences of an index after a search for each, or None if the folder holds no index.

    Raises:
        ValueError: If the index is damaged, or does not find one of its sentences.
    """
    if not (folder / "index.json").exists():
        return None
    index = SentenceIndex.load(folder, model)
    try:
        sentences = [index[position] for position in range(len(index))]
        if not (index.vectors.search(model.encode(sentences, convert_to_numpy=True), 1)[0] > 0.999).all():
            raise ValueError("the index does not find one of its sentences")
    finally:
        index.close()
    return sentences


def check_next_save(model: SimCSE, folder: Path, texts: list[str], user_files: dict[str, str]) -> None:
    """Raise a `ValueError` unless the folder holds an index of the texts, the user's files, and nothing else."""
    if read_index(model, folder) != texts:
        raise ValueError("the save after the kill did not write its sentences")
    for path, content in user_files.items():
        if not (folder / path).is_file() or (folder / path).read_text() != content:
            raise ValueError(f"the user's file {path} is missing or changed")
    others = {name for name in entries(folder) if not name.startswith("data-")}
    left = others - {"index.json", ".lock", *(Path(path).parts[0] for path in user_files)}
    if left or len(entries(folder) - others) != 1:
        raise ValueError(f"the save after the kill left files behind: {sorted(entries(folder))}")


def write_user_files(folder: Path) -> None:
    for path, content in USER_FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content)


# --- adding to an index ---------------------------------------------------------------------------------------------


def add_in_pairs(model: SimCSE, backend: str, folder: Path, pairs: int, draw: random.Random) -> dict[str, Any]:
    """Let two processes run `simcse-hf index --add` on one index, and compare it with the additions that succeeded.

    Args:
        model (`SimCSE`): The encoder.
        backend (`str`): Backend of the index.
        folder (`Path`): An empty folder.
        pairs (`int`): Number of pairs.
        draw (`random.Random`): Draws the texts and the moments. The processes of every second pair start at the same
            time; the others start within twice the time of one addition.

    Returns:
        `dict[str, Any]`: Counts of pairs, of those in which both additions or one succeeded, and of those after which
        the index did not hold exactly what was added with success.
    """
    target = folder / "index"
    texts = make_texts(20, draw)
    SentenceIndex.build(model, texts, backend=backend).save(target)
    counts = {"pairs": 0, "both succeeded": 0, "one was refused": 0, "both were refused": 0, "lost": 0}
    seconds = 0.3
    while counts["pairs"] < pairs:
        additions = [make_texts(10, draw), make_texts(10, draw)]
        distance = draw.uniform(0, 2 * seconds) if counts["pairs"] % 2 else 0.0
        begin = time.perf_counter() + 0.05  # both processes have been forked by then
        processes = []
        for number, addition in enumerate(additions):
            source, log = folder / f"{number}.txt", folder / f"{number}.log"
            source.write_text("".join(f"{text}\n" for text in addition), encoding="utf-8")
            log.unlink(missing_ok=True)
            words = ["index", "--add", "--input", str(source), "--output", str(target), "--quiet"]
            processes.append((start_command(words, log, begin + number * distance), log))
        succeeded = [added(*process) for process in processes]
        seconds = time.perf_counter() - begin - distance
        counts["pairs"] += 1
        counts[("both were refused", "one was refused", "both succeeded")[sum(succeeded)]] += 1
        expected = [addition for addition, success in zip(additions, succeeded, strict=True) if success]
        orders = (sum(expected, texts), sum(reversed(expected), texts))
        texts = read_index(model, target) or []
        counts["lost"] += texts not in orders
    return {"index": backend, **counts, "sentences at the end": len(texts)}


def added(pid: int, log: Path) -> bool:
    """Return whether an addition succeeded; raise a `RuntimeError` if it failed and was not refused."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0 and not any(refusal in log.read_text() for refusal in REFUSALS):
        raise RuntimeError(f"an addition ended with status {status}:\n{log.read_text()[-4000:]}")
    return status == 0


# --- processes and files --------------------------------------------------------------------------------------------


def start_command(words: list[str], log: Path, moment: float = 0.0) -> int:
    """Run `simcse-hf` in a forked process, from a moment of `time.perf_counter` on, and return its number."""

    def command() -> None:
        use_one_thread()
        time.sleep(max(0.0, moment - time.perf_counter()))
        with open(log, "a") as stream, redirect_stdout(stream), redirect_stderr(stream):
            status = main.main(words)
        sys.exit(status)

    return start_process(command, log)


def use_one_thread() -> None:
    """Keep a forked process from waiting for threads that only its parent has."""
    torch.set_num_threads(1)
    if "faiss" in sys.modules:
        sys.modules["faiss"].omp_set_num_threads(1)


def finish(pid: int, log: Path) -> None:
    """Wait until a process ends, and raise a `RuntimeError` if it failed."""
    _check(os.waitpid(pid, 0)[1], log)


def _check(status: int, log: Path) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise RuntimeError(f"a process ended with status {code}:\n{log.read_text()[-4000:]}")


def kill(pid: int, log: Path, delay: float, wait_for: Callable[[], object] | None, after: float) -> bool:
    """Kill a process unless it ends before.

    Args:
        pid (`int`): Number of the process.
        log (`Path`): Its output, for the message if it fails.
        delay (`float`): Seconds from now to the kill; not used with `wait_for`.
        wait_for (`Callable`, *optional*): Wait until this returns something true.
        after (`float`): Seconds to the kill after that.

    Returns:
        `bool`: Whether the process was killed.

    Raises:
        RuntimeError: If the process failed.
    """
    deadline = time.perf_counter() + delay
    while not wait_for() if wait_for is not None else time.perf_counter() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _check(status, log)
            return False
        time.sleep(_PAUSE)
    if wait_for is not None:
        time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
        return True
    _check(status, log)
    return False


def make_texts(count: int, draw: random.Random) -> list[str]:
    return [" ".join(draw.choices(WORDS, k=draw.randrange(4, 12))) for _ in range(count)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def temporary_files(folder: Path) -> set[str]:
    return {name for name in entries(folder) if name.endswith(".partial")}


def table(results: dict[str, Any]) -> str:
    return "\n\n".join(_table(results[part]) for part in ("encode", "save", "add") if part in results)


def _table(rows: list[dict[str, Any]]) -> str:
    name, *columns = [key for key, value in rows[0].items() if isinstance(value, (str, int))]
    listed = [*rows, {name: "all", **{column: sum(row[column] for row in rows) for column in columns}}]
    return markdown((name, *columns), [[row[column] for column in (name, *columns)] for row in listed])
