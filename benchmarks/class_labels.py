"""Accuracy of a classifier on few labels of Banking77, before and after an encoder is trained on the same labels.

    python -m benchmarks class_labels --output benchmarks/results/class_labels.json

Ten training texts of each class are drawn once. With each of three seeds, `simcse-hf train sup` trains the encoder on
them, and the task `classification` fits the same logistic regression on their embeddings and scores the test set.
"""

import argparse
import csv
import random
from pathlib import Path

from simcse_hf import SimCSE
from simcse_hf.data.table import open_table
from simcse_hf.evaluation.user_tasks import paired_interval, read_task
from simcse_hf.training.run import train_sup

from .harness import Report, add_data_option, add_model_option, machine, markdown, model_or_default

PER_CLASS = 10
SEEDS = ("42", "43", "44")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--folder", type=Path, default=Path("outputs/class_labels"), help="for texts and models")


def run(options: argparse.Namespace, report: Report) -> None:
    model, folder = model_or_default(options.model), options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for part, most in (("train", PER_CLASS), ("test", None)):
        rows = [cells for _, cells in open_table(options.data / f"banking77/{part}.csv").rows(["text", "category"])]
        random.Random(0).shuffle(rows)
        labels = sorted({label for _, label in rows})
        kept = [row for label in labels for row in [row for row in rows if row[1] == label][:most]]
        with open(folder / f"{part}.csv", "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([("text", "label"), *kept])
    task = read_task("classification", folder)
    before = task.evaluate(SimCSE(model, device="cpu").encode)
    report.save(machine=machine(), model=model.parent.name, labels_per_class=PER_CLASS, untrained=before.metrics)
    after, words = [], ["--model", str(model), "--train_file", str(folder / "train.csv"), "--report_to", "none"]
    for seed in SEEDS:
        trained = folder / f"seed-{seed}"
        if not (trained / "results.json").exists():
            train_sup([*words, "--seed", seed, "--output_dir", str(trained), "--overwrite_output_dir"])
        after.append(task.evaluate(SimCSE(trained, device="cpu").encode))
        report.save(**{f"seed {seed}": after[-1].metrics})
    report.save(change=dict(zip(("difference", "low", "high"), paired_interval(task, [before], after), strict=True)))


def table(results: dict) -> str:
    rows = [[name, f"{x['accuracy']:.2f}"] for name, x in results.items() if name == "untrained" or "seed" in name]
    return markdown(["", "accuracy"], [*rows, ["change", " ".join(f"{x:+.2f}" for x in results["change"].values())]])
