"""Every benchmark that a document names can still be run."""

import re

from conftest import ROOT

from benchmarks.__main__ import BENCHMARKS


def test_every_benchmark_that_a_document_names_exists_or_names_its_commit():
    experiments = (ROOT / "benchmarks/experiments").glob("*.py")
    programs = {f"benchmarks.experiments.{path.stem}" for path in experiments} | {"benchmarks.experiments"}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", "")
        for command in re.findall(r"python -m benchmarks[^`\n]*", text):
            module, *names = command.split()[2:]
            kept = names[0] in BENCHMARKS if module == "benchmarks" else module in programs
            assert kept or command.endswith("# at 566eddf"), f"{page}: {command}"
