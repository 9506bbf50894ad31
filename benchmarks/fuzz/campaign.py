"""Run inputs through parsers in forked processes, so that a death or a hang of a parser is found and survived."""

import faulthandler
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import simcse_hf
from simcse_hf.cli.main import _status_of

from ..harness import prepare_forked_process
from .mutation import Files, mutate

PACKAGE = str(Path(simcse_hf.__file__).parent)
HANG_SECONDS = 20.0
_MEMORY = 4 * 2**30  # that a worker may use beyond what it had when it was forked
_SLOT = struct.Struct("<qd")  # the number of the input that a worker is at, and when it began


@dataclass(frozen=True)
class Target:
    """A parser with valid inputs.

    Args:
        name (`str`): What results call it.
        seeds (`Sequence[dict[str, bytes]]`): Valid inputs, which are mutated.
        parse (`Callable[[Path], int | None]`): Parse the files of a folder as the package does, and return the number
            of rows that it has returned or reported as left out.
        count_rows (`Callable[[dict[str, bytes]], int | None]`, *optional*): Count the rows of an input by simpler
            means, or return `None` where they cannot be counted.
        names_file (`bool`, *optional*, defaults to `True`): Whether an error message must name a file of the input.
            An error about a setting of `config.json` names the setting instead.
        share (`float`, *optional*, defaults to `1.0`): Size of its part of a campaign, relative to the others.
    """

    name: str
    seeds: Sequence[Files]
    parse: Callable[[Path], int | None]
    count_rows: Callable[[Files], int | None] | None = None
    names_file: bool = True
    share: float = 1.0

    def input(self, seed: int, number: int) -> Files:
        """Return an input of a campaign, which depends on the two numbers and on the name of the target only."""
        rng = random.Random(f"{seed}:{self.name}:{number}")
        return mutate(rng.choice(self.seeds), rng)


@dataclass(frozen=True)
class Finding:
    """An input that a parser does not handle as promised.

    Args:
        target (`str`): Name of the target.
        number (`int`): Number of the input.
        kind (`str`): `"death"`, `"hang"`, `"foreign exception"`, `"unnamed file"` or `"lost rows"`.
        detail (`str`): The signal, or the exception and where it was raised, or the numbers of rows.
    """

    target: str
    number: int
    kind: str
    detail: str


def write_files(files: Files, folder: Path) -> None:
    """Write an input to a folder in place of an earlier one; a file that is mapped into memory keeps its content."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folder.mkdir(parents=True, exist_ok=True)


def check_input(target: Target, files: Files, folder: Path) -> tuple[str, str] | None:
    """Parse one input.

    Args:
        target (`Target`): The parser.
        files (`dict[str, bytes]`): The input.
        folder (`Path`): Where to write it.

    Returns:
        `tuple[str, str]`, *optional*: The kind and the detail of a [`Finding`]; `None` if the parser returned every
        row, or refused the input by an error of this package whose message names a file of it.
    """
    write_files(files, folder)
    try:
        rows = target.parse(folder)
    except Exception as error:
        if _status_of(error) is None:  # the command line would show a traceback
            return "foreign exception", _describe(error)
        if target.names_file and str(folder) not in str(error):
            return "unnamed file", _describe(error)
        return None
    expected = target.count_rows(files) if target.count_rows is not None else None
    if expected is not None and rows != expected:
        return "lost rows", f"{rows} of {expected} rows were returned or reported"
    return None


def _describe(error: BaseException) -> str:
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "outside the package"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:200]}"


def run_inputs(target: Target, seed: int, first: int, count: int) -> list[Finding]:
    """Run consecutive inputs of a campaign in forked processes.

    Args:
        target (`Target`): The parser.
        seed (`int`): Seed of the campaign.
        first (`int`): Number of the first input.
        count (`int`): How many inputs.

    Returns:
        `list[Finding]`: What was found.
    """
    findings: list[Finding] = []
    end = first + count
    while first < end:
        reached, ending, found = _run_worker(target, seed, first, end)
        findings += found
        if ending is not None:
            findings.append(Finding(target.name, reached, *ending))
        first = reached + 1
    return findings


def _run_worker(target: Target, seed: int, first: int, end: int) -> tuple[int, tuple[str, str] | None, list[Finding]]:
    """Fork a worker; return the last input that it began, how it ended if it did not finish, and its findings."""
    slot = mmap.mmap(-1, _SLOT.size)
    slot[:] = _SLOT.pack(first, time.monotonic())
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    scratch = Path(tempfile.mkdtemp(prefix="simcse-fuzz-", dir=base))
    found = scratch / "findings.jsonl"
    try:
        pid = os.fork()
        if pid == 0:
            _work(target, seed, range(first, end), scratch, slot)
        ending = _wait(pid, slot)
        if (scratch / "error.txt").exists():
            raise RuntimeError((scratch / "error.txt").read_text())
        lines = found.read_text().splitlines() if found.exists() else []
        findings = [Finding(target.name, *json.loads(line)) for line in lines]
        return (end - 1 if ending is None else _SLOT.unpack(slot[:])[0]), ending, findings
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        slot.close()


def _work(target: Target, seed: int, numbers: range, scratch: Path, slot: mmap.mmap) -> None:
    """Run inputs in a forked process, and leave it without returning."""
    try:
        prepare_forked_process()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # the parent reports a crash
        with open(os.devnull, "w") as null:  # a parser may print or show progress
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
        for number in numbers:
            slot[:] = _SLOT.pack(number, time.monotonic())
            finding = check_input(target, target.input(seed, number), scratch / "input")
            if finding is not None:
                with open(scratch / "findings.jsonl", "a") as stream:
                    stream.write(json.dumps([number, *finding]) + "\n")
        os._exit(0)
    except BaseException:  # a defect of the fuzzer
        (scratch / "error.txt").write_text(traceback.format_exc())
        os._exit(1)


def _wait(pid: int, slot: mmap.mmap) -> tuple[str, str] | None:
    pause = 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status == 0:
                return None
            name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status >> 8}"
            return "death", name
        if time.monotonic() - _SLOT.unpack(slot[:])[1] > HANG_SECONDS:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hang", f"more than {HANG_SECONDS:.0f} seconds"
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
