"""What a positive is told from: the batch, the row's own hard negatives, and the terms of Qwen3-Embedding.

    python -m benchmarks negatives --output benchmarks/results/negatives.json
    python -m benchmarks negatives --output benchmarks/results/negatives.json --table

For each seed and encoder, `simcse-hf train sup` learns with each value of the option `negatives` from NLI triplets and
from two captions of images of Flickr30k with three hard negatives, which the encoder itself mined. The rows are other
ones for each seed. The score is Spearman's correlation on STS-B dev for the first, and for the second how often the
second caption of an image is nearest to the first one among 1,000 images of the test set. Runs that the output file
already holds are not repeated.
"""

import argparse
import csv
import gzip
import random
import statistics
from pathlib import Path

import torch

from simcse_hf import SimCSE, mine, train
from simcse_hf.evaluation.metrics import spearman
from simcse_hf.objectives.info_nce import NEGATIVES

from .equal_texts import pairs_of
from .harness import SHARED, Report, dev_pairs, machine, markdown

RATES = {"wiki-mlm-4x256": 3e-4, "minilm-remasked-6x384": 5e-5}
#: The rows, and the score of the models that learn from them.
ROWS = {"NLI triplets": "STS-B dev", "Flickr pairs, mined": "Flickr R@1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="folder with flickr30k/, nli/, senteval/")
    parser.add_argument("--models", type=Path, default=SHARED / "models", help="folder of the encoders")
    parser.add_argument("--encoders", nargs="+", default=["wiki-mlm-4x256"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path("outputs/negatives"), help="for texts and models")


def run(options: argparse.Namespace, report: Report) -> None:
    settings = {"steps": options.steps, "batch_size": options.batch_size, "rates": RATES}
    report.save(machine=machine(), settings=settings, scores=report.results.get("scores", {}))
    options.folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:  # outermost, so that an interrupted run is balanced
        for encoder in options.encoders:
            start = options.models / encoder
            for rows in ROWS:
                before = f"{encoder} / {rows} / before"
                if before not in report.results["scores"]:
                    score = evaluate(options, rows, SimCSE(start, pooler_type="avg", device="cpu"))
                    report.save(scores=report.results["scores"] | {before: score})
                keys = {negatives: f"{encoder} / {rows} / {negatives} / {seed}" for negatives in NEGATIVES}
                if set(keys.values()) <= report.results["scores"].keys():
                    continue
                file = write_rows(options, rows, start, seed)
                for negatives, key in keys.items():
                    if key not in report.results["scores"]:
                        model = train_once(options, start, file, negatives, seed)
                        score = evaluate(options, rows, model)
                        report.save(scores=report.results["scores"] | {key: score})
                        print(key, score, flush=True)


def write_rows(options: argparse.Namespace, rows: str, start: Path, seed: int) -> Path:
    """Write the training rows of a seed."""
    number = options.steps * options.batch_size
    file = options.folder / f"{rows.split()[0]}-{start.name}-{seed}.csv"
    if rows == "NLI triplets":
        with gzip.open(options.data / "nli/nli_triplets.csv.gz", "rt", encoding="utf-8", newline="") as stream:
            header, *triplets = csv.reader(stream)
        drawn = [header, *random.Random(seed).sample(triplets, number)]
        with open(file, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows(drawn)
        return file
    pairs = options.folder / "pairs.csv"
    with open(pairs, "w", encoding="utf-8", newline="") as stream:
        captions = pairs_of(options.data, 3 * number, seed)[::4]
        csv.writer(stream).writerows([("anchor", "positive"), *captions])
    mined = mine(
        SimCSE(start, pooler_type="avg", device="cpu"),
        pairs,
        file,
        num_negatives=3,
        range_max=100,
        relative_margin=0.0,
        overwrite=True,
        show_progress_bar=False,
    )
    print(mined, flush=True)
    return file


def train_once(options: argparse.Namespace, start: Path, file: Path, negatives: str, seed: int) -> SimCSE:
    trained = options.folder / f"model-{start.name}"
    train(
        "sup",
        model_name_or_path=start,
        train_file=file,
        output_dir=trained,
        overwrite_output_dir=True,
        pooler_type="avg",
        objective_options={"negatives": negatives},
        max_steps=options.steps,
        max_train_samples=options.steps * options.batch_size,
        per_device_train_batch_size=options.batch_size,
        learning_rate=RATES[start.name],
        seed=seed,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    return SimCSE(trained, device="cpu")


def evaluate(options: argparse.Namespace, rows: str, model: SimCSE) -> float:
    """Score a model on STS-B dev or on the captions of 1,000 images, times 100."""
    if rows == "NLI triplets":
        pairs = dev_pairs(options.data)
        cosines = model.similarity_pairwise(pairs.sentences1, pairs.sentences2)
        return 100 * spearman(cosines, pairs.scores)
    with gzip.open(options.data / "flickr30k/captions_test.tsv.gz", "rt", encoding="utf-8") as stream:
        captions = [line.rstrip("\n").split("\t")[:2] for line in stream][:1000]
    first, second = (torch.as_tensor(model.encode(list(texts))) for texts in zip(*captions, strict=True))
    nearest = (first @ second.T).argmax(1)
    return 100 * float((nearest == torch.arange(len(captions))).double().mean())


def table(results: dict) -> str:
    scores = results["scores"]
    lines = []
    for encoder in RATES:
        for rows, name in ROWS.items():
            before = scores.get(f"{encoder} / {rows} / before")
            if before is None:
                continue
            cells = [f"{before:.2f}"]
            for negatives in NEGATIVES:
                work = f"{encoder} / {rows} / {negatives} /"
                found = [score for key, score in scores.items() if key.startswith(work)]
                spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
                cells.append(f"{statistics.mean(found):.2f}{spread}" if found else "")
            lines.append([encoder, rows, name, *cells])
    return markdown(["encoder", "rows", "score", "before", *NEGATIVES], lines)
