"""Draw small faults in the package, run the tests of their folder on each, and write which test notices it.

    python tools/mutate.py --count 100 --seed 0 --output mutants.md
    python tools/mutate.py --count 5 --folders postprocessing --output mutants.md

Each fault is put into a copy of the checkout, in a temporary folder. First run the test files of `tests/FOLDER` that
name the changed file, and then, if they pass, the other ones. No line is skipped, not even one that no test executes.
A fault that takes longer than `--limit` seconds counts as noticed: most of these loop for ever. Before the first
fault of a folder, its tests have to pass without one. Started again with the same arguments, the command goes on
after the last line of `--output`. Whether a survivor changes anything for a user is for a reader to say.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PACKAGE = "simcse_hf"
TURNED = {"Lt": ">", "LtE": ">=", "Gt": "<", "GtE": "<=", "Eq": "!=", "NotEq": "=="}
TURNED |= {"In": "not in", "NotIn": "in", "Is": "is not", "IsNot": "is"}
SHIFTED = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">"}
HEADER = "| place | kind | fault | noticed by | seconds |\n|---|---|---|---|---|\n"
UNCHANGED = "<!-- {folder}: passes without a fault -->\n"


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


def tests_of(copy: Path, file: str) -> list[list[str]]:
    """Return the test files of a folder: those that name the module, and the others."""
    path = Path(file)
    name = path.parent.name if path.stem == "__init__" else path.stem
    groups: list[list[str]] = [[], []]
    for test in sorted((copy / "tests" / path.parts[1]).rglob("test_*.py")):
        is_named = re.search(rf"\b{name}\b", test.read_text(encoding="utf-8")) or name in test.stem
        groups[0 if is_named else 1].append(str(test.relative_to(copy)))
    return [group for group in groups if group]


def noticed_by(copy: Path, files: list[str], seconds: float, processes: int) -> str | None:
    """Run test files and return the first test that fails, or `None` if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-n", str(processes), "--dist", "loadfile", *files]
    settings = {"PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=copy, env=os.environ | settings, text=True, start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "the time limit"
    if process.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return found[1] if found else f"pytest ended with status {process.returncode}: {output.strip()[-120:]}"


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
    with TemporaryDirectory() as folder:
        copy = Path(folder, "checkout")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "outputs", "__pycache__"))
        Path(folder, "shared").symlink_to(ROOT.parent / "shared")  # the data that some tests read
        for fault in draw(options.folders, options.count, options.seed):
            done, path = options.output.read_text(encoding="utf-8"), copy / fault.file
            source = path.read_bytes()
            if fault.row(source) in done:
                continue
            groups = tests_of(copy, fault.file)
            mark = UNCHANGED.format(folder=fault.file.split("/")[1])
            if mark not in done:
                everything = [file for group in groups for file in group]
                failed = noticed_by(copy, everything, 10 * options.limit, options.processes)
                if failed is not None:
                    raise SystemExit(f"without a fault, {failed} fails; mend this first")
                add(options.output, mark)
            path.write_bytes(source[: fault.start] + fault.text.encode() + source[fault.end :])
            start, noticed = time.monotonic(), None
            for group in groups:
                left = options.limit - (time.monotonic() - start)
                noticed = noticed or noticed_by(copy, group, left, options.processes)
            path.write_bytes(source)
            seconds = time.monotonic() - start
            add(options.output, f"{fault.row(source)} {noticed or '**survived**'} | {seconds:.0f} |\n")


def add(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)
    print(line, end="", flush=True)


if __name__ == "__main__":
    main()
