"""What training for a domain forgets, and whether mixing the trained weights with the start brings it back.

    python -m benchmarks forgetting --output benchmarks/results/forgetting.json

all-MiniLM-L6-v2 is trained on three domains: for 60 and for 120 steps of 32 rows at the default learning rate, and for
120 steps at ten times that rate. Its weights are then mixed with those of the start, as
`(1 - alpha) * start + alpha * trained`. A third of each domain's task is what would choose alpha; the table is about
the rest. The scores of single rows go to `--scores`, and runs that it already holds are not repeated.
"""

import argparse
import csv
import gzip
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from simcse_hf import SimCSE
from simcse_hf.data.scored_pairs import connected_groups
from simcse_hf.evaluation.bootstrap import divide_groups, interval, mean_over_drawn_seeds, resampled_scores
from simcse_hf.evaluation.metrics import spearman
from simcse_hf.evaluation.tasks.sts import read_scored_pairs
from simcse_hf.training.recipe import Recipe

from .harness import SHARED, Report, machine, markdown, model_or_default

DATA = SHARED / "data"
#: The steps and the learning rate of each run, and the alphas at which it is measured.
RUNS = {
    "short": (60, 5e-5, (0.5, 1.0)),
    "long": (120, 5e-5, (1.0,)),
    "long, high rate": (120, 5e-4, (0.25, 0.5, 0.75, 1.0)),
}
GENERAL = ("STS-B dev", "Flickr30k")
#: Scored pairs, or texts, of a domain.
UNITS = 800
BATCH = 32
RESAMPLES = 1_000
Scored = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument(
        "--scores", type=Path, default=Path("outputs/forgetting.json"), help="the scores of single rows"
    )
    parser.add_argument("--only", nargs="+", choices=DOMAINS, default=list(DOMAINS), help="domains")


# --- the domains ----------------------------------------------------------------------------------------------------


def read_rows(path: Path, **dialect: Any) -> Iterator[list[str]]:
    """Yield the rows of a table, which may be compressed."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        yield from csv.reader(file, **dialect)


def banking(folder: Path) -> tuple[dict[str, Any], Any]:
    """Return the training rows of Banking77, and how to score its test set by the nearest text of the same intent."""
    train = list(read_rows(DATA / "banking77/train.csv"))[1:]
    test = list(read_rows(DATA / "banking77/test.csv"))[1:]
    rows = write(folder, [{"text": text, "label": label} for text, label in train])
    return rows, Nearest([text for text, _ in test[::3]], [label for _, label in test[::3]])


def nli(folder: Path) -> tuple[dict[str, Any], Any]:
    """Return NLI triplets, and how to score entailment against contradiction in the pairs of SNLI's test set."""
    pairs = []
    for premise, hypothesis, label, source in read_rows(DATA / "nli/nli_pairs.csv.gz"):
        if source == "snli-test" and label in ("entailment", "contradiction"):
            pairs.append((premise, hypothesis, float(label == "entailment")))
    return {"train_file": str(DATA / "nli/nli_triplets.csv.gz")}, Pairs(pairs[:UNITS])


def twitter(folder: Path) -> tuple[dict[str, Any], Any]:
    """Return the paraphrases of Twitter URL, and how to score them against the other pairs of its test set."""
    tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    train = []
    for label, first, second in read_rows(DATA / "twitter_url/train.tsv.gz", **tabs):
        if label == "1" and first != second:
            train.append({"sent0": first, "sent1": second})
    test = list(read_rows(DATA / "twitter_url/test.tsv.gz", **tabs))[:UNITS]
    return write(folder, train), Pairs([(first, second, float(label)) for label, first, second in test])


DOMAINS = {"Banking77": banking, "NLI": nli, "Twitter URL": twitter}


def write(folder: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Write training rows into a file, and return the argument that names it."""
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {"train_file": str(path)}


class Nearest:
    """The label of the nearest other text: accuracy."""

    def __init__(self, texts: list[str], labels: list[str]) -> None:
        self.texts = texts
        self.labels = np.array(labels)
        self.groups = np.arange(len(texts))

    def score(self, vectors: Mapping[str, torch.Tensor]) -> Scored:
        """Return whether the nearest text of each has its label."""
        stacked = torch.stack([vectors[text] for text in self.texts])
        cosines = stacked @ stacked.T
        cosines.fill_diagonal_(-2)
        nearest = cosines.argmax(dim=1).numpy()
        return {"correct": (self.labels[nearest] == self.labels).astype(float)}


class Pairs:
    """The cosine of pairs against their gold labels: average precision, or Spearman's correlation."""

    def __init__(self, pairs: list[tuple[str, str, float]], by: str = "similarity") -> None:
        self.first = [first for first, _, _ in pairs]
        self.second = [second for _, second, _ in pairs]
        self.gold = np.array([gold for _, _, gold in pairs])
        self.texts = [*self.first, *self.second]
        self.groups = connected_groups([pair[:2] for pair in pairs])
        self.by = by

    def score(self, vectors: Mapping[str, torch.Tensor]) -> Scored:
        """Return the cosine of each pair."""
        sides = [torch.stack([vectors[text] for text in side]) for side in (self.first, self.second)]
        return {self.by: (sides[0] * sides[1]).sum(dim=1).double().numpy(), "gold": self.gold}


class Captions:
    """Find another caption of the same image among those of 500 images: recall at 1."""

    def __init__(self) -> None:
        tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        rows = list(read_rows(DATA / "flickr30k/captions_test.tsv.gz", **tabs))[:500]
        self.queries = [row[0] for row in rows]
        self.captions = [row[1] for row in rows]
        self.texts = [*self.queries, *self.captions]
        self.groups = np.arange(len(rows))

    def score(self, vectors: Mapping[str, torch.Tensor]) -> Scored:
        """Return whether each query finds its image."""
        sides = [torch.stack([vectors[text] for text in side]) for side in (self.queries, self.captions)]
        return {"correct": ((sides[0] @ sides[1].T).argmax(dim=1).numpy() == self.groups).astype(float)}


def stsb() -> Pairs:
    """Return STS-B dev."""
    pairs = read_scored_pairs(DATA / "senteval/downstream/STS/STSBenchmark/sts-dev.csv")
    return Pairs(list(zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)), "predicted")


# --- training and mixing --------------------------------------------------------------------------------------------


def run(options: argparse.Namespace, report: Report) -> None:
    start = model_or_default(None)
    general = {"STS-B dev": stsb(), "Flickr30k": Captions()}
    scores = Report(options.scores)
    with TemporaryDirectory() as name:
        prepared = {}
        for domain in options.only:
            folder = Path(name, domain)
            folder.mkdir()
            rows, task = DOMAINS[domain](folder)
            prepared[domain] = rows, {"task": task, **general}
            found = scores.results.setdefault(domain, {})
            found["dev rows"] = divide_groups(task.groups, 1 / 3, 0, domain).tolist()
            if "start" not in found:
                found["start"] = measure(SimCSE(start, device="cpu"), prepared[domain][1])
        for seed, domain, kind in itertools.product(options.seeds, options.only, RUNS):
            steps, rate, alphas = RUNS[kind]
            known = scores.results[domain].setdefault(kind, {})
            if str(seed) not in known:
                rows, tasks = prepared[domain]
                output = Path(name, f"{domain}-{kind}-{seed}")
                train(start, output, rows, steps, rate, seed)
                known[str(seed)] = mixtures(start, output, alphas, tasks)
                scores.save()
    report.save(machine=machine(), rows=summarise(scores.results))


def train(start: Path, output: Path, rows: dict[str, Any], steps: int, rate: float, seed: int) -> None:
    """Train as `simcse-hf train sup` does."""
    values = {
        **rows,
        "model_name_or_path": str(start),
        "output_dir": str(output),
        "max_steps": steps,
        "learning_rate": rate,
        "per_device_train_batch_size": BATCH,
        "seed": seed,
        "save_strategy": "no",
        "eval_strategy": "no",
        "load_best_model_at_end": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    Recipe.read("sup", values).train()


def mixtures(start: Path, trained: Path, alphas: tuple[float, ...], tasks: Mapping[str, Any]) -> dict[str, Any]:
    """Measure mixtures of the weights of two models."""
    model = SimCSE(trained, device="cpu")
    begin = SimCSE(start, device="cpu").model.state_dict()
    end = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    found = {}
    for alpha in alphas:
        mixed = {}
        for name, weight in end.items():
            same = name in begin and weight.is_floating_point()
            mixed[name] = torch.lerp(begin[name], weight, alpha) if same else weight
        model.model.load_state_dict(mixed)
        found[str(alpha)] = measure(model, tasks)
    return found


def measure(model: SimCSE, tasks: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model scores in each task, as lists."""
    texts = list(dict.fromkeys(text for task in tasks.values() for text in task.texts))
    vectors = dict(zip(texts, model.encode(texts, normalize_embeddings=True, convert_to_tensor=True), strict=True))
    found = {}
    for name, task in tasks.items():
        scored = task.score(vectors)
        scored["group"] = np.unique(task.groups, return_inverse=True)[1]
        found[name] = {key: np.round(values, 5).tolist() for key, values in scored.items()}
    return found


# --- the table ------------------------------------------------------------------------------------------------------


def part(scored: Mapping[str, Any], rows: np.ndarray | None = None) -> dict[str, Any]:
    """Return some rows of a task's scores, as the bootstrap reads them."""
    arrays = {name: np.array(values) for name, values in scored.items()}
    if rows is not None:
        arrays = {name: values[rows] for name, values in arrays.items()}
        arrays["group"] = np.unique(arrays["group"], return_inverse=True)[1]
    return {"rows": arrays}


def headline(parts: Mapping[str, Any]) -> float:
    """Return the score of a task, times 100."""
    arrays = parts["rows"]
    if "correct" in arrays:
        return 100 * arrays["correct"].mean()
    if "similarity" in arrays:
        return 100 * average_precision_score(arrays["gold"], arrays["similarity"])
    return 100 * spearman(arrays["predicted"], arrays["gold"])


def change(before: dict[str, Any], after: list[dict[str, Any]]) -> str:
    """Say the change over the seeds, with its interval."""
    drawn = resampled_scores([before, *after], resamples=RESAMPLES)
    of_seeds = mean_over_drawn_seeds(drawn[1:] - drawn[0], np.random.default_rng(0), 0.95)
    low, high = interval(of_seeds, 0.95)
    difference = np.mean([headline(each) for each in after]) - headline(before)
    return f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def summarise(results: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table: what the start scores, and by how much each run and mixture changes it."""
    rows = []
    for domain, found in results.items():
        dev = np.array(found["dev rows"])
        start = found["start"]
        on_dev = headline(part(start["task"], dev))
        before = {"task": part(start["task"], ~dev)}
        for name in GENERAL:
            before[name] = part(start[name])
        rows.append([domain, "start", "", f"{on_dev:.2f}", *(f"{headline(each):.2f}" for each in before.values())])
        for kind, (_, _, alphas) in RUNS.items():
            runs = list(found.get(kind, {}).values())
            for alpha in alphas if runs else ():
                mixed = [run[str(alpha)] for run in runs]
                gain = np.mean([headline(part(each["task"], dev)) for each in mixed]) - on_dev
                cells = [change(before["task"], [part(each["task"], ~dev) for each in mixed])]
                for name in GENERAL:
                    cells.append(change(before[name], [part(each[name]) for each in mixed]))
                rows.append([domain, kind, f"{alpha:g}", f"{gain:+.2f}", *cells])
    return rows


def table(results: dict) -> str:
    header = ["domain", "run", "alpha", "task, dev part", "task, held-out part", *GENERAL]
    return markdown(header, results["rows"])
