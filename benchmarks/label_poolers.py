"""Accuracy on classes by pooler: a head that is kept, a head for training only, and mean pooling.

    python -m benchmarks label_poolers --output benchmarks/results/label_poolers.json
    python -m benchmarks label_poolers --output benchmarks/results/label_poolers.json --table

Khosla et al. (2020), whose loss objective `class_labels` has, throw the projection head away after training. Each
encoder is trained on questions of TREC and of Banking77 by `simcse-hf train sup` with each of the three, with 10 texts
of a class or many, and with several seeds. The embeddings of the training texts (at most `--fit_texts`) then give a
logistic regression and the centroids of the classes, which are scored on texts of the test set. Runs that the output
file already holds are not repeated.
"""

import argparse
import csv
import random
import statistics
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import StandardScaler

from simcse_hf import SimCSE
from simcse_hf.evaluation.tasks.transfer import read_transfer_task

from .harness import SHARED, Report, add_data_option, machine, markdown

POOLERS = {
    "head kept": {"pooler_type": "cls", "mlp_only_train": False},
    "head for training only": {"pooler_type": "cls", "mlp_only_train": True},
    "mean pooling": {"pooler_type": "avg"},
}
START = {"[CLS] of the start": "cls_before_pooler", "mean of the start": "avg"}
RATES = {"wiki-mlm-4x256": 5e-4, "minilm-remasked-6x384": 2e-4}
SIZES = {"10 a class": 10, "all": None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--models", type=Path, default=SHARED / "models", help="folder of the encoders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--fit_texts", type=int, default=1000)
    parser.add_argument("--test_texts", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("outputs/label_poolers"), help="for texts and models")


def run(options: argparse.Namespace, report: Report) -> None:
    report.save(machine=machine(), steps=options.steps, batch_size=options.batch_size, rates=RATES)
    report.save(scores=report.results.get("scores", {}))
    options.folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:  # outermost, so that an interrupted run is balanced
        for encoder in RATES:
            for task in ("TREC", "Banking77"):
                for size in SIZES:
                    run_poolers(options, report, encoder, task, size, seed)


def run_poolers(options: argparse.Namespace, report: Report, encoder: str, task: str, size: str, seed: int) -> None:
    train, test = texts_of(options, task, size)
    file = options.folder / f"{task}-{size.replace(' ', '-')}.csv"
    with open(file, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *train])
    fit = random.Random(1).sample(train, min(len(train), options.fit_texts))
    source = options.models / encoder
    for name, pooler in START.items():
        key = f"{encoder} / {task} / {size} / {name}"
        if key not in report.results["scores"]:
            score = evaluate(SimCSE(source, pooler_type=pooler, device="cpu"), fit, test)
            report.save(scores=report.results["scores"] | {key: score})
    for name, pooling in POOLERS.items():
        key = f"{encoder} / {task} / {size} / {name} / {seed}"
        if key in report.results["scores"]:
            continue
        trained = options.folder / "model"
        train(
            "sup",
            model_name_or_path=source,
            train_file=file,
            output_dir=trained,
            overwrite_output_dir=True,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=RATES[encoder],
            seed=seed,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            **pooling,
        )
        score = evaluate(SimCSE(trained, device="cpu"), fit, test)
        report.save(scores=report.results["scores"] | {key: score})
        print(key, score, flush=True)


def texts_of(options: argparse.Namespace, task: str, size: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Read texts with their classes: those of training, at most `SIZES[size]` of a class, and those of the test."""
    if task == "TREC":
        splits = read_transfer_task("TREC", options.data / "senteval/downstream")
        parts = {part: [(text, str(label)) for (text,), label in rows] for part, rows in splits.items()}
    else:
        parts = {}
        for part in ("train", "test"):
            with open(options.data / f"banking77/{part}.csv", encoding="utf-8", newline="") as stream:
                parts[part] = [(row["text"], row["category"]) for row in csv.DictReader(stream)]
    for rows in parts.values():
        random.Random(0).shuffle(rows)
    labels = sorted({label for _, label in parts["train"]})
    kept = [row for label in labels for row in [row for row in parts["train"] if row[1] == label][: SIZES[size]]]
    return kept, parts["test"][: options.test_texts]


def evaluate(model: SimCSE, fit: list[tuple[str, str]], test: list[tuple[str, str]]) -> dict[str, float]:
    """Score a logistic regression and the nearest centroid in percent."""
    vectors = [model.encode([text for text, _ in rows], normalize_embeddings=True).numpy() for rows in (fit, test)]
    labels = [[label for _, label in rows] for rows in (fit, test)]
    scaler = StandardScaler().fit(vectors[0])
    probe = LogisticRegression(C=0.1, max_iter=500).fit(scaler.transform(vectors[0]), labels[0])
    centroids = NearestCentroid().fit(vectors[0], labels[0])
    return {
        "logistic regression": 100 * probe.score(scaler.transform(vectors[1]), labels[1]),
        "nearest centroid": 100 * centroids.score(vectors[1], labels[1]),
    }


def table(results: dict) -> str:
    names = [*START, *POOLERS]
    rows = []
    for measure in ("logistic regression", "nearest centroid"):
        for encoder in RATES:
            for task in ("TREC", "Banking77"):
                for size in SIZES:
                    cells = []
                    for name in names:
                        work = f"{encoder} / {task} / {size} / {name}"
                        found = [x[measure] for key, x in results["scores"].items() if key.startswith(work)]
                        cells.append(mean_of(found))
                    rows.append([measure, encoder, task, size, *cells])
    return markdown(["", "encoder", "task", "texts", *names], rows)


def mean_of(scores: list[float]) -> str:
    if not scores:
        return ""
    return f"{statistics.mean(scores):.1f}" + (f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else "")
