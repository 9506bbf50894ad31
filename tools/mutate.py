"""Draw small faults in the package, run the tests of their folder on each, and write which test notices it.

    python tools/mutate.py --count 100 --seed 0 --output mutants.md
    python tools/mutate.py --count 5 --folders postprocessing --output mutants.md

Each fault is put into a copy of the checkout, in a temporary folder. The test files of `tests/FOLDER` run up to the
first failure, and those that name the changed module and function oftenest come first. No line is skipped, not even
one that no test executes. A fault that takes longer than `--limit` seconds counts as noticed: most of these loop for
ever. In the end the tests that noticed a fault have to pass without one. Started again with the same arguments, the
command goes on after the last line of `--output`. Whether a survivor changes anything for a user is for a reader to
say.

Each run of pytest is a fork of this process, which has imported the large libraries once: for most faults that halves
the time. So the command needs Linux or macOS.
"""

import argparse
import ast
import importlib
import importlib.util
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "simcse_hf"
TURNED = {"Lt": ">", "LtE": ">=", "Gt": "<", "GtE": "<=", "Eq": "!=", "NotEq": "=="}
TURNED |= {"In": "not in", "NotIn": "in", "Is": "is not", "IsNot": "is"}
SHIFTED = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">"}
HEADER = "| place | kind | fault | noticed by | seconds |\n|---|---|---|---|---|\n"
SETTINGS = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
#: What most test files import, and what takes longest.
LIBRARIES = [
    "torch",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "datasets",
    "sentence_transformers",
]


@dataclass(frozen=True)
class Fault:
    """A change of one place of a file, in bytes."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    def row(self, source: bytes) -> str:
        """Return the first cells of the row, which tell this fault from all others."""
        before = source[self.start : self.end].decode()
        cells = [" ".join(text.split()).replace("|", "\\|").replace("`", "'")[:90] for text in (before, self.text)]
        return f"| {self.file}:{self.line} | {self.kind} | `{cells[0]}` → `{cells[1]}` |"


def faults_of(file: str, source: bytes) -> Iterator[Fault]:
    """List every fault of a file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: ast.AST) -> str:
        return source[slice(*place(node))].decode()

    def fault(kind: str, node: ast.AST, changed: str) -> Fault:
        return Fault(file, node.lineno, kind, *place(node), changed)

    for node in nodes_of_code(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            name = type(node.ops[0]).__name__
            left, right = text(node.left), text(node.comparators[0])
            yield fault("comparison turned", node, f"({left} {TURNED[name]} {right})")
            if name in SHIFTED:
                yield fault("off by one", node, f"({left} {SHIFTED[name]} {right})")
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield fault("and/or", node, f"({word.join(text(value) for value in node.values)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield fault("off by one", node, str(node.value + 1))
        elif isinstance(node, ast.Call) and len(node.args) > 1 and ast.Starred not in map(type, node.args[:2]):
            first, second = node.args[:2]
            (start, middle), (after, end) = place(first), place(second)
            swapped = text(second) + source[middle:after].decode() + text(first)
            if text(first) != text(second):
                yield Fault(file, first.lineno, "arguments swapped", start, end, swapped)
        elif isinstance(node, (ast.Expr, ast.AugAssign, ast.Delete)):
            yield fault("line left out", node, "pass")
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
            yield fault("refusal left out", node.test, "False")
        elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield fault("condition negated", node.test, f"(not ({text(node.test)}))")


def nodes_of_code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over what runs: no docstrings, no annotations, no imports for type checkers, no text of messages."""
    annotations = (getattr(node, "annotation", None), getattr(node, "returns", None))
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        is_message = isinstance(child, (ast.Raise, ast.JoinedStr))
        if not (child in annotations or is_docstring or is_for_types or is_message):
            yield child
            yield from nodes_of_code(child)


def draw(folders: list[str], count: int, seed: int) -> list[Fault]:
    """Draw faults, each kind about equally often."""
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for folder in folders:
        for path in sorted((ROOT / PACKAGE / folder).rglob("*.py")):
            for fault in faults_of(path.relative_to(ROOT).as_posix(), path.read_bytes()):
                by_kind[fault.kind].append(fault)
    generator = random.Random(seed)
    drawn: dict[Fault, None] = {}
    while len(drawn) < min(count, sum(map(len, by_kind.values()))):
        kind = generator.choice(sorted(by_kind))
        drawn[generator.choice(by_kind[kind])] = None
    return list(drawn)


def tests_of(copy: Path, fault: Fault) -> list[str]:
    """Return the test files of a folder, beginning with those that name the changed module and function oftenest."""
    path = Path(fault.file)
    names = {path.parent.name if path.stem == "__init__" else path.stem}
    for node in ast.walk(ast.parse((copy / path).read_bytes())):
        is_named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("__")
        if is_named and node.lineno <= fault.line <= node.end_lineno:
            names.add(node.name)
    pattern = re.compile(rf"\b({'|'.join(names)})\b")

    def mentions(test: Path) -> int:
        return len(pattern.findall(test.read_text(encoding="utf-8")))

    tests = sorted((copy / "tests" / path.parts[1]).rglob("test_*.py"))
    return [str(test.relative_to(copy)) for test in sorted(tests, key=mentions, reverse=True)]


def failure_of(copy: Path, tests: list[str], options: argparse.Namespace) -> str | None:
    """Run tests in a fork of this process and return the first one that fails, or `None` if all pass."""
    log = copy.parent / "pytest.log"
    child = os.fork()
    if child == 0:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        parallel = ["-n", str(options.processes), "--dist", "loadfile"]
        status = pytest.main(["-x", "-q", "-rfE", "-p", "no:cacheprovider", *parallel, *tests])
        sys.stdout.flush()
        os._exit(status)

    end = time.monotonic() + options.limit
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < end:
        time.sleep(0.1)
        ended, status = os.waitpid(child, os.WNOHANG)
    try:
        os.killpg(child, signal.SIGKILL)  # also what the tests have left running
    except ProcessLookupError:
        pass
    if not ended:
        os.waitpid(child, 0)
        return "the time limit"
    if status == 0:
        return None
    output = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)
    if found:
        return found[1]
    return f"the end of pytest (status {os.waitstatus_to_exitcode(status)}: {' '.join(output.split())[-120:]})"


def write_source(path: Path, source: bytes) -> None:
    """Write a module and remove its compiled form, which Python tells from a newer one by size and second only."""
    path.write_bytes(source)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def main() -> None:
    folders = [path.name for path in sorted((ROOT / PACKAGE).iterdir()) if list(path.glob("*.py"))]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="faults to draw (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", nargs="+", choices=folders, default=folders, metavar="FOLDER")
    parser.add_argument("--output", type=Path, required=True, help="table to write, or to go on with")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one fault (default: 600)")
    parser.add_argument("--processes", type=int, default=0, help="worker processes of pytest (default: none)")
    options = parser.parse_args()
    if not options.output.exists():
        options.output.write_text(HEADER, encoding="utf-8")
    os.environ |= SETTINGS
    for library in LIBRARIES:
        importlib.import_module(library)
    with TemporaryDirectory() as folder:
        copy = Path(folder, "checkout")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "outputs", "__pycache__"))
        Path(folder, "shared").symlink_to(ROOT.parent / "shared")  # the data that some tests read
        os.environ["PYTHONPATH"] = str(copy)  # for the processes that tests start
        for fault in draw(options.folders, options.count, options.seed):
            path = copy / fault.file
            source = path.read_bytes()
            if fault.row(source) in options.output.read_text(encoding="utf-8"):
                continue
            tests = tests_of(copy, fault)
            start = time.monotonic()
            write_source(path, source[: fault.start] + fault.text.encode() + source[fault.end :])
            noticed = failure_of(copy, tests, options)
            write_source(path, source)
            seconds = time.monotonic() - start
            add(options.output, f"{fault.row(source)} {noticed or '**survived**'} | {seconds:.0f} |\n")

        noticing = sorted(set(re.findall(r"\| (tests/\S+) \|", options.output.read_text(encoding="utf-8"))))
        failed = failure_of(copy, noticing, options) if noticing else None
        if failed is not None:
            raise SystemExit(f"without a fault, {failed} fails, too: mend it, and remove the rows that name it")


def add(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)
    print(line, end="", flush=True)


if __name__ == "__main__":
    main()
