"""Texts with several labels: training with all of them, and with the first one alone.

    python -m benchmarks several_labels --output benchmarks/results/several_labels.json
    python -m benchmarks several_labels --output benchmarks/results/several_labels.json --table

The set is made of Banking77: a text is one question or, as often, two questions of other intents that were joined, and
has the one or two intents as its labels. The first label is that of the question which stands first. For each seed the
texts are other ones, and an encoder is trained by `simcse-hf train sup` with all labels and with the first ones. The
score is the macro-F1 of the task classification, whose classifiers are fitted on `--fit_texts` of the training texts
with all labels. Runs that the output file already holds are not repeated.
"""

import argparse
import csv
import json
import random
import statistics
from pathlib import Path

from simcse_hf import SimCSE, train
from simcse_hf.evaluation.tasks import paired_interval, read_task

from .harness import SHARED, Report, machine, markdown

Texts = list[tuple[str, list[str]]]
LABELS = {"all labels": None, "the first label": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="folder with banking77/")
    parser.add_argument("--model", type=Path, default=SHARED / "models/wiki-mlm-4x256", help="the encoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--train_texts", type=int, default=2000)
    parser.add_argument("--fit_texts", type=int, default=1000)
    parser.add_argument("--test_texts", type=int, default=600)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--folder", type=Path, default=Path("outputs/several_labels"), help="for texts and models")


def run(options: argparse.Namespace, report: Report) -> None:
    names = ("train_texts", "fit_texts", "test_texts", "steps", "batch_size", "learning_rate")
    settings = {name: getattr(options, name) for name in names}
    report.save(machine=machine(), model=options.model.name, settings=settings)
    report.save(scores=report.results.get("scores", {}), changes=report.results.get("changes", {}))
    for seed in options.seeds:
        if f"all labels / {seed}" in report.results["changes"]:
            continue
        texts = joined(options.data / "banking77/train.csv", options.train_texts, seed)
        folder = options.folder / f"task-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "train.jsonl", texts[: options.fit_texts])
        write(folder / "test.jsonl", joined(options.data / "banking77/test.csv", options.test_texts, seed))
        task = read_task("classification", folder)
        results = {"before": task.evaluate(SimCSE(options.model, pooler_type="avg", device="cpu"))}
        for name, most in LABELS.items():
            file = options.folder / f"train-{seed}.jsonl"
            write(file, [(text, labels[:most]) for text, labels in texts])
            results[name] = task.evaluate(train_once(options, file, seed))
        for name, result in results.items():
            report.save(scores=report.results["scores"] | {f"{name} / {seed}": result.metrics})
            print(name, seed, result.metrics, flush=True)
        for name, other in {"all labels": "before", "all labels, not the first": "the first label"}.items():
            change = paired_interval(task, [results[other]], [results["all labels"]])
            report.save(changes=report.results["changes"] | {f"{name} / {seed}": change})


def joined(file: Path, number: int, seed: int) -> Texts:
    """Draw texts of one question, and as many of two questions with other intents."""
    with open(file, encoding="utf-8", newline="") as stream:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(stream)]
    draw = random.Random(seed)
    draw.shuffle(rows)
    texts: Texts = []
    while len(texts) < number:
        text, label = rows.pop()
        other_text, other_label = rows[-1]
        if len(texts) % 2 and label != other_label:
            rows.pop()
            texts.append((f"{text} {other_text}", [label, other_label]))
        else:
            texts.append((text, [label]))
    return texts


def write(file: Path, texts: Texts) -> None:
    lines = [json.dumps({"text": text, "label": labels}) for text, labels in texts]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def train_once(options: argparse.Namespace, file: Path, seed: int) -> SimCSE:
    trained = options.folder / "model"
    train(
        "sup",
        model_name_or_path=options.model,
        train_file=file,
        output_dir=trained,
        overwrite_output_dir=True,
        pooler_type="avg",
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        seed=seed,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    return SimCSE(trained, device="cpu")


def table(results: dict) -> str:
    rows = []
    for name in ("before", *LABELS):
        cells = []
        for metric in ("macro_f1", "knn_macro_f1"):
            found = [scores[metric] for key, scores in results["scores"].items() if key.startswith(f"{name} /")]
            spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.1f}{spread}")
        rows.append([name, *cells])
    return markdown(["trained with", "macro-F1", "macro-F1 of the nearest texts"], rows)
