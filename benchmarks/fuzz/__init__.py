"""Fuzz every parser of the package with mutated files.

    python -m benchmarks fuzz --inputs 1000000 --output benchmarks/results/fuzz.json

Valid files are changed in a few places by seeded mutations and parsed in forked processes, so that the death or hang
of a parser is found and survived. A parser passes if it returns every row, or raises an error of this package that
names the file. A mutated file goes through the same functions as a user's file. A run with the same seed makes the
same inputs; `--keep FOLDER` saves those that failed.
"""

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers.utils import logging

from ..harness import Report, markdown
from .campaign import Finding, Target, run_inputs, write_files
from .saved import saved_targets
from .texts import text_targets

BATCH = 5000
KINDS = ("death", "hang", "foreign exception", "unnamed file", "lost rows")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", type=int, default=100_000, help="number of inputs over all parsers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="+", help="parsers by name; default: all")
    parser.add_argument("--processes", type=int, default=1, help="workers at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for the inputs that fail")


def all_targets() -> list[Target]:
    return [*text_targets(), *saved_targets()]


def run(options: argparse.Namespace, report: Report) -> None:
    logging.set_verbosity_error()
    os.environ["HF_HUB_OFFLINE"] = "1"
    targets = [target for target in all_targets() if not options.targets or target.name in options.targets]
    shares = sum(target.share for target in targets)
    start, counts, findings = time.monotonic(), Counter[str](), list[Finding]()
    for target in targets:
        count = round(options.inputs * target.share / shares)
        batches = [(first, min(BATCH, count - first)) for first in range(0, count, BATCH)]
        with ThreadPoolExecutor(options.processes) as pool:
            results = pool.map(lambda batch, target=target: run_inputs(target, options.seed, *batch), batches)
            found = [finding for result in results for finding in result]
        counts[target.name] = count
        findings += found
        if options.keep is not None:
            for finding in found:
                write_files(
                    target.input(options.seed, finding.number), options.keep / target.name / str(finding.number)
                )
        print(f"{target.name}: {count} inputs, {len(found)} findings", flush=True)
        report.save(
            seed=options.seed,
            inputs=counts.total(),
            seconds=round(time.monotonic() - start),
            targets={name: {"inputs": inputs} | _by_kind(findings, name) for name, inputs in counts.items()},
            findings=[vars(finding) for finding in findings[:200]],
        )


def _by_kind(findings: list[Finding], target: str) -> dict[str, int]:
    kinds = Counter(finding.kind for finding in findings if finding.target == target)
    return {kind: kinds[kind] for kind in KINDS}


def table(results: dict) -> str:
    rows = [[name, *values.values()] for name, values in results["targets"].items()]
    totals = ["all", *(sum(row[column] for row in rows) for column in range(1, len(KINDS) + 2))]
    return markdown(["parser", "inputs", *KINDS], [*rows, totals])
