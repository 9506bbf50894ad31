"""Which model to take on two tasks, keyword search among them; and how often a model as good as the best is dropped.

    python -m benchmarks which_model --output benchmarks/results/which_model.json
    python -m benchmarks which_model --output benchmarks/results/which_model.json --table

The tasks are Banking77 (the intent of the nearest of the training texts) and the search for the second caption of a
picture of Flickr30k by its first one, among those of 1,000 pictures. The command is `simcse-hf compare --models`, also
without all-MiniLM-L6-v2; the second call reads what the first one has kept. Nothing is trained, so there are no seeds.

In the simulation all models are equally good: each is right with a probability of 0.8 in rows of which some are easier
for all of them. It counts the trials in which a model is shown to be worse than the best one, which is always wrong,
with the intervals of the choice and with plain intervals. The part `pairs` compares two ways to score a pair by BM25.
"""

import argparse
import gzip
import json
from pathlib import Path

import bm25s
import numpy as np
from sklearn.metrics import average_precision_score
from tqdm import trange

from simcse_hf.evaluation import Evaluation, compare
from simcse_hf.evaluation.bm25 import BM25, SETTINGS
from simcse_hf.evaluation.compare import compare_evaluations

from .harness import SHARED, Report, machine, markdown, model_or_default

ENCODERS = ("wiki-mlm-4x256", "minilm-remasked-6x384")
MINILM = "all-MiniLM-L6-v2"
MODELS = (2, 4, 8)
PARTS = ("simulation", "pairs", "models")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with data/ and models/")
    parser.add_argument("--folder", type=Path, default=Path("outputs/which_model"), help="for what is kept")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--trials", type=int, default=400, help="default: 400")


def run(options: argparse.Namespace, report: Report) -> None:
    if "simulation" in options.parts:
        report.save(machine=machine(), dropped=simulate(options.trials), trials=options.trials)
    if "pairs" in options.parts:
        report.save(pairs=score_pairs(options.shared / "data"))
    if "models" in options.parts:
        compare_models(options, report)


def compare_models(options: argparse.Namespace, report: Report) -> None:
    """Compare all models, and those without all-MiniLM-L6-v2."""
    retrieval = write_captions(options.shared / "data/flickr30k/captions_test.tsv.gz", options.folder / "flickr")
    tasks = [f"knn={options.shared / 'data/banking77'}", f"retrieval={retrieval}"]
    folders = {name: options.shared / "models" / name for name in ENCODERS} | {MINILM: model_or_default(None)}
    comparisons = {}
    for title, names in (("all", [*folders]), (f"without {MINILM}", ENCODERS)):
        models = ["bm25", *(str(folders[name]) for name in names)]
        output = options.folder / "which.json"
        found = compare(models=models, task=tasks, pooler_type="avg", output=output, overwrite=True)
        short = {"bm25": "bm25"} | {str(folder): name for name, folder in folders.items()}
        comparisons[title] = {
            "best": short[found.baseline],
            "choice": short[found.choice],
            "models": [
                {
                    "model": short[name],
                    "scores": found.scores[name] | {"mean": found.averages["mean"][name]},
                    "against the best": found.differences.get(name),
                    **found.costs[name],
                }
                for name in models
            ],
        }
        report.save(comparisons=comparisons)


def write_captions(file: Path, folder: Path) -> Path:
    """Write the search for the second caption of each picture by its first one, in BEIR's layout."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        captions = [line.rstrip("\n").split("\t") for line in stream]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, letter, column in (("queries", "q", 0), ("corpus", "d", 1)):
        rows = [json.dumps({"_id": f"{letter}{row}", "text": each[column]}) for row, each in enumerate(captions)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    judged = "".join(f"q{row}\td{row}\t1\n" for row in range(len(captions)))
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def score_pairs(data: Path) -> dict[str, dict[str, float]]:
    """Return the average precision of pairs by the plain scores of both ways and by shares, for three sets."""
    twitter = [
        line.rstrip("\n").split("\t") for line in gzip.open(data / "twitter_url/test.tsv.gz", "rt", encoding="utf-8")
    ]
    mrpc = read_lines(data / "senteval/downstream/MRPC/msr_paraphrase_test.txt")[1:]
    stsb = read_lines(data / "senteval/downstream/STS/STSBenchmark/sts-test.csv")
    sets = {
        "Twitter URL": [(first, second, int(label)) for label, first, second in twitter],
        "MRPC": [(row[3], row[4], int(row[0])) for row in mrpc],
        "STS-B, from 4 on": [(row[5], row[6], int(float(row[4]) >= 4)) for row in stsb],
    }
    found = {}
    for name, rows in sets.items():
        first, second, gold = zip(*rows, strict=True)
        texts = list(dict.fromkeys([*first, *second]))
        words = bm25s.tokenize(texts, stopwords=None, return_ids=False, show_progress=False)
        index = bm25s.BM25(**SETTINGS)
        index.index(words, show_progress=False)
        row_of = {text: row for row, text in enumerate(texts)}
        plain = np.zeros(len(rows))
        for queries, documents in ((first, second), (second, first)):
            for pair, (query, document) in enumerate(zip(queries, documents, strict=True)):
                ids = index.get_tokens_ids(words[row_of[query]])
                plain[pair] += index.get_scores_from_ids(ids)[row_of[document]]
        scored = {"plain": plain, "share": BM25(texts).pairs(first, second)}
        found[name] = {way: round(100 * average_precision_score(gold, each), 2) for way, each in scored.items()}
    return found


def read_lines(file: Path) -> list[list[str]]:
    """Read the cells of a file of SentEval."""
    return [line.split("\t") for line in file.read_text(encoding="utf-8-sig").splitlines()]


def simulate(trials: int, rows: int = 500) -> dict[str, dict[str, float]]:
    """Return the share of trials in which one of several equally good models is shown to be worse than the best."""
    random = np.random.default_rng(0)
    shares: dict[str, dict[str, float]] = {}
    for number in MODELS:
        dropped = {"allowing for the choice": 0, "plain intervals": 0}
        for _ in trange(trials, desc=f"{number} models"):
            ease = random.normal(size=rows)
            named = {}
            for model in range(number):
                correct = (ease + random.normal(size=rows)) / np.sqrt(2) < 0.8416  # in 80% of the rows
                named[str(model)] = answers(correct)
            chosen = compare_evaluations(named, resamples=200, choose=True)
            plain = compare_evaluations({chosen.baseline: named[chosen.baseline], **named}, resamples=1000)
            for way, comparison, key in (("allowing for the choice", chosen, "mean"), ("plain intervals", plain, "x")):
                dropped[way] += any(each[key]["high"] < 0 for each in comparison.differences.values())
        shares[str(number)] = {way: round(100 * count / trials, 1) for way, count in dropped.items()}
    return shares


def answers(correct: np.ndarray) -> Evaluation:
    """Return the evaluation of a model that is right in some rows."""
    rows = np.arange(len(correct))
    result = {"kind": "knn", "metrics": ["accuracy"], "accuracy": 100 * float(correct.mean())}
    part = {"correct": correct, "gold": rows, "unit": rows, "group": rows}
    return Evaluation({"x": result}, {"x": {"x": part}}, cost={"texts_per_second": 1.0, "megabytes": 1.0})


def table(results: dict) -> str:
    """Format a table of each comparison, and of the simulation."""
    tables = []
    for title, comparison in results.get("comparisons", {}).items():
        rows = []
        for each in comparison["models"]:
            against = "the best"
            if each["against the best"]:
                difference, low, high = each["against the best"]["mean"].values()
                against = f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"
            scores = [f"{score:.2f}" for score in each["scores"].values()]
            speed = f"{each['texts_per_second']:,.0f}"
            rows.append([each["model"], *scores, against, speed, f"{each['megabytes']:.0f}"])
        header = ["model", *comparison["models"][0]["scores"], "against the best", "texts/s", "MB"]
        tables += [f"{title}: best {comparison['best']}, choice {comparison['choice']}", markdown(header, rows)]
    for title, key in (("pairs", "pairs"), ("models", "dropped")):
        if key in results:
            ways = list(next(iter(results[key].values())))
            tables.append(markdown([title, *ways], [[name, *found.values()] for name, found in results[key].items()]))
    return "\n\n".join(tables)
