"""Whether a contrastive encoder still serves as a start for fine-tuning: all weights, on two transfer tasks.

    python -m benchmarks distill --output benchmarks/results/distill.json
    python -m benchmarks finetune --output benchmarks/results/finetune.json

The starts are wiki-mlm-4x256, a masked language model, and what `python -m benchmarks distill` trained from it with
three seeds. `examples/finetune_classifier.py` fine-tunes each with the same seeds and settings on the first training
texts of a task, and scores its test set. Runs that the output file already holds are not repeated.
"""

import argparse
import csv
from pathlib import Path

from examples.finetune_classifier import finetune
from simcse_hf.evaluation.report import spread
from simcse_hf.evaluation.transfer import read_transfer_task

from . import distill
from .harness import SHARED, Report, add_data_option, markdown

START = "masked language model"
TASKS = ("TREC", "SST2")
MOST = 5000  # training texts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/distill"), help="folder of the trained models")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--learning_rate", type=float, default=3e-4)


def run(options: argparse.Namespace, report: Report) -> None:
    settings = {"epochs": options.epochs, "learning_rate": options.learning_rate}
    report.save(settings={**settings, "training texts": MOST})
    for task in TASKS:
        files = [options.work_dir / f"{task}-{part}.csv" for part in ("train", "test")]
        for part, file in zip(("train", "test"), files, strict=True):
            examples = read_transfer_task(task, options.data / "senteval/downstream")[part]
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "w", encoding="utf-8", newline="") as stream:
                rows = list(zip(examples.texts, examples.labels, strict=True))[: MOST if part == "train" else None]
                csv.writer(stream).writerows([("text", "label"), *rows])
        for seed in options.seeds:
            for name in (START, *distill.RUNS):
                start = distill.trained(options.work_dir, name, seed)
                folder = SHARED / "models/wiki-mlm-4x256" if name == START else start
                found = report.results.setdefault(task, {}).setdefault(name, {})
                if str(seed) not in found:
                    found[str(seed)] = finetune(str(folder), *map(str, files), seed=seed, **settings)
                    report.save()


def table(results: dict) -> str:
    rows = [[name, *(spread(results[task][name].values()) for task in TASKS)] for name in results[TASKS[0]]]
    return markdown(["start", *(f"accuracy, {task}" for task in TASKS)], rows)
