"""Does training on the text of a domain help? Every method with the same steps, and what `simcse-hf adapt` decides.

The domains are the queries of Banking77 (classification and clustering of the test part by intent) and tweets about
news (pairs of the test part of the Twitter URL corpus, judged as paraphrases or not). Training reads the texts of the
training part, without labels. The interval of each gain comes from a paired bootstrap over the rows of the task, with
the metric averaged over the seeds.
"""

import argparse
import json
import pickle
import shutil
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from simcse_hf.data.read import open_table
from simcse_hf.evaluation.report import spread
from simcse_hf.evaluation.user_tasks import TaskResult, UserTask, paired_interval, read_task
from simcse_hf.models.modeling import ContrastiveModel
from simcse_hf.postprocessing import VectorTransform, fit_whitening

from ..harness import Report, markdown
from .training import Spec, continue_masked_lm, run_missing, train
from .workbench import MINILM, WHITENING_SENTENCES, Workbench, load_for_inference, twitter_rows

Encode = Callable[[list[str]], Any]
STARTS = (MINILM, "minilm-remasked-6x384")
METRICS = {"classification": "accuracy", "clustering": "v_measure", "pairs": "average_precision"}
DOMAINS = {"banking77": ("classification", "clustering"), "twitter_url": ("pairs",)}
EVERY_PAIR = 3  # of the 9,324 pairs of the Twitter URL corpus, a third is evaluated
STEPS, BATCH = 60, 32
POOLER = "avg"
PEER = "TSDAE of sentence-transformers"
WHITENED_DIM = 256  # as in the paper of whitening; the 384 dimensions of these embeddings vary in 381 directions
#: The objective of each method and its learning rate. `mlm` and `peer` are trained by other code.
METHODS: dict[str, dict[str, Any]] = {
    "masked-LM": {"method": "mlm", "rate": 5e-5},
    "TSDAE": {"objective": "tsdae", "rate": 3e-5},
    PEER: {"method": "peer", "rate": 3e-5},
    "SimCSE": {"objective": "simcse", "rate": 1e-5},
    "ESimCSE": {"objective": "esimcse", "rate": 1e-5},
    "Contrastive Tension": {"objective": "contrastive_tension", "rate": 1e-5},
}


def specs(start: str, domain: str) -> dict[str, Spec]:
    """Return the runs of a start and a domain: no training, whitening, and every method."""
    common = {"start": start, "domain": domain, "text": domain}
    runs: dict[str, Spec] = {
        "start": common | {"method": "none", "number_of_seeds": 1},
        "whitening": common | {"method": "whitening", "number_of_seeds": 1},
    }
    for name, settings in METHODS.items():
        arguments = {"learning_rate": settings["rate"], "per_device_train_batch_size": BATCH, "max_steps": STEPS}
        model = {"pooler_type": POOLER, "objective": settings.get("objective", "simcse")}
        method = settings.get("method", "objective")
        runs[name] = common | {"method": method, "settings": model, "arguments": arguments}
    return {f"{domain}, {start}: {name}": spec for name, spec in runs.items()}


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    for domain, kinds in DOMAINS.items():
        tasks = write_tasks(bench, domain, kinds)
        for start in STARTS:
            chosen = {
                name: spec
                for name, spec in specs(start, domain).items()
                if not options.only or any(word in name for word in options.only)
            }

            def run_once(spec: Spec, seed: int, tasks: list[UserTask] = tasks) -> dict[str, Any]:
                return evaluate(bench, spec, seed, tasks)

            run_missing(report, chosen, options.seeds, run_once)
            add_intervals(bench, report, chosen, tasks)


def write_tasks(bench: Workbench, domain: str, kinds: tuple[str, ...]) -> list[UserTask]:
    """Write the test part of a domain in the layout of a user's own task, and read it."""
    folder, table = bench.data / domain, bench.work_dir / f"{domain}.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    if domain == "banking77":
        rows = [row for _, row in open_table(folder / "test.csv").rows(["text", "category"])]
        Dataset.from_dict({"text": [r[0] for r in rows], "label": [r[1] for r in rows]}).to_csv(table, index=False)
    else:
        labels, first, second = zip(*twitter_rows(folder / "test.tsv.gz")[::EVERY_PAIR], strict=True)
        columns = {"sentence1": first, "sentence2": second, "label": labels}
        Dataset.from_dict({name: list(values) for name, values in columns.items()}).to_csv(table, index=False)
    return [read_task(kind, table) for kind in kinds]


def evaluate(bench: Workbench, spec: Spec, seed: int, tasks: list[UserTask]) -> dict[str, Any]:
    """Train by one method, if there is one, and evaluate the tasks of the domain."""
    started = time.perf_counter()
    encode = TRAINERS[spec["method"]](bench, spec, seed)
    seconds = round(time.perf_counter() - started)
    results = {task.kind: task.evaluate(encode) for task in tasks}
    path = scores_file(bench, spec, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(results))
    return {"metrics": {kind: result.metrics for kind, result in results.items()}, "train_seconds": seconds}


def scores_file(bench: Workbench, spec: Spec, seed: int) -> Path:
    """Return the file that keeps what the bootstrap resamples."""
    settings = json.dumps(spec, sort_keys=True)
    return bench.work_dir / "scores" / f"{zlib.crc32(settings.encode()):08x}-{seed}.pickle"


# --- methods: each trains, or does not, and returns a function that encodes -----------------------------------------


def no_training(bench: Workbench, spec: Spec, seed: int) -> Encode:
    """Encode with the start, whitened if the method says so."""
    model = load_for_inference(bench.encoder(spec["start"]), POOLER)
    whitening = None
    if spec["method"] == "whitening":
        sentences = bench.rows(spec["text"], WHITENING_SENTENCES)["sent0"]
        embeddings = bench.encode(model, sentences, bench.tokenizer(spec["start"]))
        whitening = fit_whitening([embeddings], dim=WHITENED_DIM)
    return encoder_of(bench, spec, model, whitening)


def train_objective(bench: Workbench, spec: Spec, seed: int) -> Encode:
    model, _ = train(bench, spec, seed, evaluate=False)
    return encoder_of(bench, spec, model)


def train_masked_lm(bench: Workbench, spec: Spec, seed: int) -> Encode:
    name = f"masked-lm-{spec['domain']}-{seed}"
    settings = {"seed": seed, "text": spec["text"], "warmup_steps": 0, "weight_decay": 0.0}
    continue_masked_lm(bench, spec["start"], name, **settings, **spec["arguments"])
    model = load_for_inference(bench.work_dir / name, POOLER)
    shutil.rmtree(bench.work_dir / name)
    return encoder_of(bench, spec, model)


def train_peer(bench: Workbench, spec: Spec, seed: int) -> Encode:
    """Train by sentence-transformers' TSDAE, on the rows and for the steps of ours."""
    from .peers import train_peer_tsdae  # sentence-transformers takes seconds to import

    steps, batch, rate = (spec["arguments"][name] for name in ("max_steps", *BATCH_AND_RATE))
    texts = bench.rows(spec["text"], steps * batch)["sent0"]
    model = train_peer_tsdae(
        bench.encoder(spec["start"]), texts, steps=steps, batch=batch, rate=rate, seed=seed, bf16=bench.bf16
    )
    return partial(model.encode, show_progress_bar=False)


BATCH_AND_RATE = ("per_device_train_batch_size", "learning_rate")
TRAINERS: dict[str, Callable[[Workbench, Spec, int], Encode]] = {
    "none": no_training,
    "whitening": no_training,
    "objective": train_objective,
    "mlm": train_masked_lm,
    "peer": train_peer,
}


def encoder_of(
    bench: Workbench, spec: Spec, model: ContrastiveModel, transform: VectorTransform | None = None
) -> Encode:
    """Return a function that encodes texts, and applies a whitening if there is one."""
    tokenizer = bench.tokenizer(spec["start"])

    def encode(texts: list[str]) -> np.ndarray:
        embeddings = bench.encode(model, texts, tokenizer)
        return (embeddings if transform is None else transform.transform(embeddings)).numpy()

    return encode


# --- intervals and the table ----------------------------------------------------------------------------------------


def add_intervals(bench: Workbench, report: Report, names: Iterable[str], tasks: list[UserTask]) -> None:
    """Write the gain of each run over its start, with its 95% interval, for every task.

    The interval needs the scores of every seed. A run that gets a further seed in another `work_dir` than its first
    ones therefore has no gain.
    """
    runs = report.results["runs"]

    def scores_of(name: str) -> list[Path]:
        return [scores_file(bench, runs[name]["settings"], int(seed)) for seed in runs[name]["seeds"]]

    def read(paths: list[Path]) -> list[dict[str, TaskResult]]:
        return [pickle.loads(path.read_bytes()) for path in paths]

    for name in names:
        start = f"{name.rpartition(': ')[0]}: start"
        after_paths, before_paths = scores_of(name), scores_of(start) if start in runs else []
        if name == start or not any(path.exists() for path in after_paths):
            continue
        if not before_paths or not all(path.exists() for path in before_paths + after_paths):
            runs[name].pop("gain", None)
            print(f"{name}: no interval, because {bench.work_dir} lacks scores of it or of its start", flush=True)
            continue
        before, after = read(before_paths), read(after_paths)
        runs[name]["gain"] = {
            task.kind: [
                round(value, 2)
                for value in paired_interval(task, [r[task.kind] for r in before], [r[task.kind] for r in after])
            ]
            for task in tasks
        }
    report.save()


def table(results: dict) -> str:
    """Format the headline metric of each task and its gain, as [low, high]."""
    tables = []
    for domain, kinds in DOMAINS.items():
        rows = []
        for name, run in results["runs"].items():
            if run["settings"]["domain"] == domain and run["seeds"]:
                cells = []
                for kind in kinds:
                    metrics = [result["metrics"][kind][METRICS[kind]] for result in run["seeds"].values()]
                    gain = run.get("gain", {}).get(kind)
                    cells += [spread(metrics), "" if gain is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*gain)]
                rows.append([name.removeprefix(f"{domain}, "), *cells, len(run["seeds"])])
        header = [cell for kind in kinds for cell in (f"{kind}, {METRICS[kind]}", "gain")]
        if rows:
            tables.append(f"{domain}\n\n" + markdown([domain, *header, "seeds"], rows))
    return "\n\n".join(tables)
