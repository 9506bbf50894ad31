"""Run a benchmark: `python -m benchmarks NAME [options]`, from the root of a checkout.

A benchmark of speed compares contestants side by side in one run and reports ratios, because absolute times depend on
the machine. Without `--data` and `../shared/data`, `cpu` uses generated texts, which show the speed, and nothing about
quality on real text.
"""

import argparse
import importlib
import sys
from pathlib import Path

from .harness import Report

BENCHMARKS = {
    "cpu": "training and encoding on a CPU against sentence-transformers",
    "gpu": "training and encoding on an NVIDIA GPU against sentence-transformers",
    "encode_backends": "encoding on a CPU with every backend and precision, beside sentence-transformers",
    "gradcache": "memory and time of one large batch in chunks",
    "interval_coverage": "how often the intervals hold the true value, by simulation",
    "commits": "training and encoding against another checkout",
    "kills": "training that is killed at random moments and resumed, against the uninterrupted run",
}
EPILOG = """\
benchmarks:
{listing}

`python -m benchmarks NAME --help` lists the options of one. benchmarks/experiments holds finished experiments, which
`python -m benchmarks.experiments.NAME` repeats."""


def main(argv: list[str]) -> int:
    listing = "\n".join(f"  {name:<17} {text}" for name, text in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=EPILOG.format(listing=listing),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME")
    name = parser.parse_args(argv[:1]).name
    benchmark = importlib.import_module(f".{name}", __package__)
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=benchmark.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="JSON file to write; results that it already holds are kept")
    parser.add_argument("--table", action="store_true", help="print the table of --output without measuring anything")
    benchmark.add_arguments(parser)
    options = parser.parse_args(argv[1:])
    report = Report(options.output)
    if not options.table:
        benchmark.run(options, report)
        report.save()
    print(benchmark.table(report.results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
