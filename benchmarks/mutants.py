"""Mutation testing: the share of small changes of the code that make a test fail.

    python -m benchmarks mutants --sample 150 --output benchmarks/results/mutants.json

mutmut (https://mutmut.readthedocs.io) changes one operator, number, argument or assignment at a time, and runs the
tests that pass through the changed function. A mutant that makes a test fail, or that does not end, is killed. One
that passes all tests survives: either it changes nothing that a user can see, or a test is missing. The work is done
in a copy of the checkout. Install mutmut first: `pip install mutmut`.

`survivors` of the output has the change of each surviving mutant and a `reason`, which a person writes into the file.
A later run keeps the reasons of changes that survive again.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .harness import Report, markdown

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("simcse_hf", "tests", "benchmarks", "examples", "model_cards", "docs", "README.md", "pyproject.toml")
#: Which files are mutated, and the tests that must notice. Few tests a file keep a mutant at about a second.
GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "objectives": (["simcse_hf/objectives/*.py"], ["tests/objectives"]),
    "poolers": (["simcse_hf/models/poolers.py"], ["tests/models/test_poolers.py"]),
    "collator": (["simcse_hf/data/collator.py"], ["tests/data/test_collator.py"]),
    "STS": (
        ["simcse_hf/evaluation/sts.py", "simcse_hf/evaluation/metrics.py", "simcse_hf/evaluation/pairs.py"],
        [f"tests/evaluation/test_evaluation_{name}.py" for name in ("sts", "metrics", "pairs", "bootstrap")],
    ),
    "checkpoints": (
        ["simcse_hf/training/checkpoints.py"],
        ["tests/training/test_checkpoints.py", "tests/training/test_reliable.py"],
    ),
}
WORDING = "the words of a message"
SURVIVED = (0, 5, 33)  # exit codes of mutmut: all tests pass, or no test runs the function


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--sample", type=int, help="mutants of each group, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)


def run(options: argparse.Namespace, report: Report) -> None:
    report.save(seed=options.seed)
    for group in options.groups:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            made, tested, survivors = run_group(Path(folder), *GROUPS[group], options)
        groups = report.results.get("groups", {})
        earlier = {each["change"]: each["reason"] for each in groups.get(group, {}).get("survivors", [])}
        for each in survivors:
            each["reason"] = earlier.get(each["change"]) or (WORDING if _is_wording(each["change"]) else "")
        files = Counter(name.split(".x")[0] for name in tested)
        groups[group] = {
            "made": made,
            "tested": len(tested),
            "survived": len(survivors),
            "minutes": round((time.monotonic() - start) / 60, 1),
            "files": dict(sorted(files.items())),
            "survivors": survivors,
        }
        report.save(groups=groups)


def run_group(
    folder: Path, mutated: list[str], tests: list[str], options: argparse.Namespace
) -> tuple[int, list[str], list[dict[str, str]]]:
    """Mutate files in a copy of the checkout; return the number of mutants, the tested ones and the survivors."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    settings = {
        "source_paths": ["simcse_hf"],
        "only_mutate": mutated,
        "also_copy": [name for name in COPIED if name != "simcse_hf"],
        # A test that starts processes needs seconds, and its processes do not see which mutant is tested.
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-k", "not process"],
        "pytest_add_cli_args_test_selection": tests,
    }
    with open(folder / "pyproject.toml", "a") as stream:  # TOML reads these values as JSON writes them
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        stream.writelines(["\n[tool.mutmut]\n", *lines])
    _mutmut(folder, "run", "no mutant has this name")  # makes the mutants and times the tests
    names = sorted(_exit_codes(folder))
    count = min(options.sample or len(names), len(names))
    drawn = random.Random(options.seed).sample(names, count)
    log = _mutmut(folder, "run", "--max-children", str(options.processes), *drawn)
    codes = _exit_codes(folder)
    if untested := [name for name in drawn if codes[name] is None]:
        raise RuntimeError(f"{len(untested)} mutants were not tested; mutmut says:\n{log[-2000:]}")
    survivors = []
    for name in drawn:
        if codes[name] in SURVIVED:
            shown = _mutmut(folder, "show", name).splitlines()
            lines = [line for line in shown if line[:1] in "+-" and line[:3] not in ("+++", "---")]
            survivors.append({"mutant": name, "change": "\n".join(" ".join(line.split()) for line in lines)})
    return len(names), drawn, survivors


def _is_wording(change: str) -> bool:
    """Return whether both lines of a change are the same without texts that hold a space."""
    lines = [re.sub(r'"[^"]* [^"]*"', "", line[1:]).strip() for line in change.splitlines()]
    return len(lines) == 2 and lines[0] == lines[1]


def _mutmut(folder: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if "No module named mutmut" in done.stderr:
        raise RuntimeError("this benchmark needs mutmut: pip install mutmut")
    return done.stdout


def _exit_codes(folder: Path) -> dict[str, int | None]:
    """Return the exit code of the tests for each mutant; `None` for one that was not tested."""
    codes: dict[str, int | None] = {}
    for path in (folder / "mutants").rglob("*.meta"):
        codes |= json.loads(path.read_text())["exit_code_by_key"]
    return codes


def table(results: dict) -> str:
    rows = [
        [name, each["made"], each["tested"], each["survived"], f"{100 * (1 - each['survived'] / each['tested']):.1f}%"]
        for name, each in results["groups"].items()
    ]
    tested, survived = (sum(each[key] for each in results["groups"].values()) for key in ("tested", "survived"))
    made = sum(each["made"] for each in results["groups"].values())
    rows.append(["all", made, tested, survived, f"{100 * (1 - survived / tested):.1f}%"])
    return markdown(["code", "mutants", "tested", "survived", "killed"], rows)
