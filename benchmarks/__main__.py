"""Run a benchmark: `python -m benchmarks NAME [options]`, from the root of a checkout.

Every benchmark compares contestants side by side in one run and reports ratios, because absolute times depend on the
machine. All of them run without any data: where `--data` is not given and `../shared/data` does not exist, they use
generated texts, which shows the speed but says nothing about quality on real text.
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
    "int8_loss": "what ONNX Runtime's forms of int8 lose on a processor",
    "encode_workers": "encoding a file with several workers, under accelerate and on Ray",
    "gradcache": "memory and time of one large batch in chunks",
    "info_nce": "memory and time of InfoNCE alone",
    "objective_cost": "the cost of each objective as a share of a training step",
    "distill": "a small encoder learns from all-MiniLM-L6-v2 without labels",
    "candidate_scores": "a small encoder learns the scores of candidates, beside SimCSE on the same rows",
    "student": "a small encoder in the space of all-MiniLM-L6-v2: its queries search the documents of the teacher",
    "objectives": "STS-B dev before and after training with each objective",
    "evidence": "whether training helps: grids, controls, hard negatives, domains",
    "learning_rates": "which learning rate suits which batch size",
    "long_texts": "retrieval of long documents, cut and as averaged windows",
    "label_poolers": "a head or mean pooling for embeddings that learn from classes",
    "equal_texts": "pairs with repeated anchors: masked, or never in one batch",
    "negatives": "a row's own negatives and the terms of Qwen3-Embedding, against those of the batch",
    "several_labels": "texts with several labels: all of them, or the first one alone",
    "adapt_verdicts": "how often adapt says gain where arms differ by chance",
    "postprocessing": "what whitening and flow do to the STS scores",
    "interval_coverage": "how often the intervals hold the true value, by simulation",
    "chosen_checkpoint": "what the choice of a checkpoint adds to its change on the dev set, by simulation",
    "forgetting": "what training for a domain forgets, and mixing with the start",
    "spans": "two neighbouring spans of a document against two dropout masks of one",
    "which_model": "which of several models to take, keyword search among them, and how often the choice is wrong",
    "commits": "training and encoding against another checkout",
    "kills": "training that is killed at random moments and resumed, against the uninterrupted run",
}


def main(argv: list[str]) -> int:
    listing = "\n".join(f"  {name:<17} {text}" for name, text in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{listing}\n\n`python -m benchmarks NAME --help` lists the options of one.",
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
