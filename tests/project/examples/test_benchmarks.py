"""Every benchmark is registered, every experiment is short, and every command in the documents can still be run."""

import re
from pathlib import Path

from benchmarks.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks"
EXPERIMENTS = [path for path in (FOLDER / "experiments").glob("*.py") if path.stem != "__init__"]


def test_every_benchmark_is_registered():
    files = [*FOLDER.glob("*.py"), *FOLDER.glob("*/__init__.py")]
    names = [
        path.parent.name if path.stem == "__init__" else path.stem
        for path in files
        if "\ndef table(" in path.read_text()
    ]
    assert BENCHMARKS.keys() == set(names)


def test_every_benchmark_that_a_document_names_exists_or_names_its_commit():
    programs = {f"benchmarks.experiments.{path.stem}" for path in EXPERIMENTS} | {"benchmarks.experiments"}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", "")
        for command in re.findall(r"python -m benchmarks[^`\n]*", text):
            module, *names = command.split()[2:]
            kept = names[0] in BENCHMARKS if module == "benchmarks" else module in programs
            assert kept or command.endswith("# at 566eddf"), f"{page}: {command}"
