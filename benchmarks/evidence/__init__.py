"""Does training help? Grids, controls, hard negatives and domains, from two starting encoders, with several seeds.

    python -m benchmarks evidence --part grid --bf16 --output benchmarks/results/evidence_grid.json
    python -m benchmarks evidence --part starts --bf16 --output benchmarks/results/evidence_starts.json
    python -m benchmarks evidence --table --output benchmarks/results/evidence_starts.json

The parts are:

- `grid`: a search for settings with which unsupervised SimCSE lifts a small masked-LM encoder.
- `starts`: unsupervised SimCSE and its controls from better starting encoders.
- `negatives`: hard negatives on NLI pairs.
- `domains`: the arms of `simcse-hf adapt` on two domains.

Each run is written to the output file when it ends, and runs that the file already holds are not repeated, so a killed
command goes on where it stopped when it is started again. Parts that run at the same time need different output files
and different `--work_dir`s.
"""

import argparse
from pathlib import Path
from types import ModuleType

from ..harness import Report, add_data_option
from . import domains, grid, negatives, starts
from .workbench import Workbench

PARTS: dict[str, ModuleType] = {
    "grid": grid,
    "starts": starts,
    "negatives": negatives,
    "domains": domains,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--part", choices=PARTS, help="what to run; not needed with --table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--only", nargs="+", metavar="RUN", help="run only what has one of these words in its name")
    parser.add_argument("--bf16", action="store_true", help="train and encode in bf16 autocast")
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/evidence"), help="folder of checkpoints")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.part is None:
        raise SystemExit(f"name what to run with --part ({', '.join(PARTS)}), or print a saved table with --table")
    earlier = report.results.get("part", options.part)
    if earlier != options.part:
        raise SystemExit(f"{report.path} holds the part {earlier!r}, not {options.part!r}: give another --output")
    report.save(part=options.part)
    PARTS[options.part].run(options, Workbench(options), report)


def table(results: dict) -> str:
    return PARTS[results["part"]].table(results)
