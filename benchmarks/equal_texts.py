"""Pairs with repeated anchors: equal anchors whose positives are negatives, are left out, or never share a batch.

    python -m benchmarks equal_texts --output benchmarks/results/equal_texts.json
    python -m benchmarks equal_texts --output benchmarks/results/equal_texts.json --table

Each image of Flickr30k has five captions, and gives four pairs with the same anchor, its first caption. Images with a
caption that stands in an evaluation set are left out. For each seed, an encoder is trained on the pairs of `--images`
other images by `simcse-hf train sup` with each way to treat equal anchors, and scored on STS-B dev. Runs that the
output file already holds are not repeated.
"""

import argparse
import csv
import gzip
import random
import statistics
from pathlib import Path
from typing import Any

from simcse_hf import train

from .harness import SHARED, Report, machine, markdown

#: The options of each way to treat equal texts.
WAYS: dict[str, dict[str, Any]] = {
    "negatives": {},
    "mask_duplicates": {"objective_options": {"mask_duplicates": True}},
    "no_duplicates": {"batch_sampler": "no_duplicates"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="folder with flickr30k/ and senteval/")
    parser.add_argument("--model", type=Path, default=SHARED / "models/wiki-mlm-4x256", help="the encoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--images", type=int, nargs="+", default=[100, 400], help="images that give pairs")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--folder", type=Path, default=Path("outputs/equal_texts"), help="for texts and models")


def run(options: argparse.Namespace, report: Report) -> None:
    settings = {name: getattr(options, name) for name in ("steps", "batch_size", "learning_rate")}
    report.save(machine=machine(), model=options.model.name, settings=settings)
    report.save(scores=report.results.get("scores", {}))
    options.folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:  # outermost, so that an interrupted run is balanced
        for images in options.images:
            file = options.folder / "pairs.csv"
            with open(file, "w", encoding="utf-8", newline="") as stream:
                csv.writer(stream).writerows([("anchor", "positive"), *pairs_of(options.data, images, seed)])
            for way, treatment in WAYS.items():
                key = f"{images} images / {way} / {seed}"
                if key in report.results["scores"]:
                    continue
                results = train(
                    "sup",
                    model_name_or_path=options.model,
                    train_file=file,
                    dev_file=options.data / "senteval/downstream/STS/STSBenchmark/sts-dev.csv",
                    output_dir=options.folder / "model",
                    overwrite_output_dir=True,
                    pooler_type="avg",
                    max_steps=options.steps,
                    eval_steps=options.steps,
                    eval_on_start=False,
                    per_device_train_batch_size=options.batch_size,
                    learning_rate=options.learning_rate,
                    seed=seed,
                    report_to="none",
                    use_cpu=True,
                    disable_tqdm=True,
                    **treatment,
                )
                score = results.dev.final.metrics["stsb_spearman"]
                report.save(scores=report.results["scores"] | {key: score})
                print(key, score, flush=True)


def pairs_of(data: Path, images: int, seed: int) -> list[tuple[str, str]]:
    """Pair the first caption of some images with each of the others."""
    with open(data / "flickr30k/evaluation_overlap.tsv", encoding="utf-8") as stream:
        overlap = {int(line) for part, line in csv.reader(stream, delimiter="\t") if part == "train"}
    with gzip.open(data / "flickr30k/captions_train.tsv.gz", "rt", encoding="utf-8") as stream:
        captions = [line.rstrip("\n").split("\t") for number, line in enumerate(stream, 1) if number not in overlap]
    drawn = random.Random(seed).sample(captions, images)
    return [(anchor, caption) for anchor, *others in drawn for caption in others]


def table(results: dict) -> str:
    scores = results["scores"]
    rows = []
    for images in dict.fromkeys(key.split(" / ")[0] for key in scores):
        cells = []
        for way in WAYS:
            found = [score for key, score in scores.items() if key.startswith(f"{images} / {way} /")]
            spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.2f}{spread}")
        rows.append([images, *cells])
    return markdown(["Spearman x 100 on STS-B dev", *WAYS], rows)
