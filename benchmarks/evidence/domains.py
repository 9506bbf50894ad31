"""Does the text of a domain help before labelled training? The arms of `simcse-hf adapt` with the same steps.

The domains are the queries of Banking77 (classification of the test part by intent) and tweets about news (pairs of
the test part of the Twitter URL corpus, judged as paraphrases or not). The methods read the texts of the training
part, without labels. The labels are general ones (NLI triplets, then the training part of STS-B) or ten of each intent
of Banking77. A method's run on the text is made once for each seed, and both kinds of labels continue from it. The
control is labels alone, with as many steps in all as the other arms, and once with as many steps on the labels. The
intervals are those of `adapt`: rows of the task and seeds are drawn. Two adaptations by the command itself follow.
"""

import argparse
import csv
import pickle
import random
import shutil
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from simcse_hf.apps.adapt.adapt import adapt
from simcse_hf.apps.adapt.arms import CONTROL, LABELS, TEXT_SHARE, make_arms, train_stage
from simcse_hf.data.table import open_table
from simcse_hf.encoding.simcse import SimCSE
from simcse_hf.evaluation.report import spread
from simcse_hf.evaluation.tasks import Task, TaskResult, paired_interval, read_task
from simcse_hf.runtime.files import write_atomically

from ..harness import Report, machine, markdown
from .training import run_missing
from .workbench import MINILM, Workbench, twitter_rows

PRETRAINED = "minilm-remasked-6x384"
KINDS = {"banking77": "classification", "twitter_url": "pairs"}
GENERAL, OWN = "NLI and STS-B", "10 of each intent"
EVERY_ROW = {"banking77": 1, "twitter_url": 3}  # of 3,083 queries and 9,324 pairs, every so many are evaluated
STEPS, BATCH, MAX_LENGTH = 400, 16, 32
FEWER_STEPS = STEPS - round(TEXT_SHARE * STEPS)  # as many on labels as after text
FEWER = f"{CONTROL}, {FEWER_STEPS} steps"
TEXT_FIRST = ("mlm-labels", "tsdae-labels", "simcse-labels")
#: Domain, labels and arms, the most important ones first.
PLAN = (
    ("banking77", GENERAL, (CONTROL, *TEXT_FIRST, FEWER)),
    ("twitter_url", GENERAL, (CONTROL, *TEXT_FIRST, FEWER)),
    ("banking77", OWN, (CONTROL, *TEXT_FIRST)),
)


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    report.save(steps=STEPS, batch_size=BATCH, max_length=MAX_LENGTH, bf16=bench.bf16, machine=machine())
    specs: dict[str, dict[str, Any]] = {}
    for domain, kind, model in ((d, k, m) for d, k in KINDS.items() for m in (MINILM, PRETRAINED)):
        specs[f"{domain}: {model}"] = {"domain": domain, "kind": kind, "model": model, "number_of_seeds": 1}
    for domain, labels, names in PLAN:
        for name in names:
            specs[f"{domain}, {labels}: {name}"] = {
                "domain": domain,
                "kind": KINDS[domain],
                "labels": labels,
                "arm": name,
            }
    chosen = {n: s for n, s in specs.items() if not options.only or any(word in n for word in options.only)}
    run_missing(report, chosen, options.seeds, partial(evaluate, bench))
    add_intervals(bench, report)
    if not options.only or "adapt" in options.only:
        run_adapt(bench, report)


def run_adapt(bench: Workbench, report: Report) -> None:
    """Run `simcse-hf adapt` itself on Banking77: with ten labels of each intent, and every arm with general ones.

    Ten labels change the accuracy by about a point, so their first task scores all other rows, about 12,000.
    """
    (own,), folder = label_files(bench)[OWN], bench.work_dir / "few-labels"
    parts = {
        part: [cells for _, cells in open_table(bench.data / f"banking77/{part}.csv").rows(["text", "category"])]
        for part in ("train", "test")
    }
    labelled = {cells[0] for _, cells in open_table(own).rows(["text"])}
    others = [row for row in parts["train"] if row[0] not in labelled]
    folder.mkdir(exist_ok=True)
    shutil.copy(own, folder / "train.csv")
    test = bench.work_dir / "banking77-test.csv"
    for path, rows in ((test, parts["test"]), (folder / "test.csv", parts["test"] + others)):
        Dataset.from_dict({"text": [r[0] for r in rows], "label": [r[1] for r in rows]}).to_csv(path, index=False)
    everything = dict(
        corpus=str(bench.data / "banking77/train.csv"),
        column="text",
        model=str(bench.encoder(MINILM)),
        output=str(bench.work_dir / "adapted"),
        task=[f"classification={test}"],
        labels=tuple(map(str, label_files(bench)[GENERAL])),
        pretrained=str(bench.encoder(PRETRAINED)),
        budget=600.0,  # the processor may be shared
        bf16=bench.bf16,
    )
    few = everything | dict(
        output=str(bench.work_dir / "adapted-few"),
        task=[f"classification={folder}", f"clustering={test}"],
        labels=(str(own),),
        pretrained=None,
        arms=(LABELS,),
    )
    found = report.results.get("adapt", {})
    for name, settings in {OWN: few, GENERAL: everything}.items():
        if name not in found:
            began = time.process_time()
            result = {key: value for key, value in adapt(**settings).to_dict().items() if key != "arguments"}
            report.save(adapt=found | {name: result | {"cpu_minutes": round((time.process_time() - began) / 60, 1)}})
            found = report.results["adapt"]


def evaluate(bench: Workbench, spec: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train an arm, unless the spec is an untrained model, and evaluate the task of the domain."""
    if "model" in spec:
        model = SimCSE(bench.encoder(spec["model"]), pooler_type="avg")
    else:
        model = SimCSE(train(bench, spec, seed))
    result = task_of(bench, spec["domain"]).evaluate(partial(model.encode, normalize_embeddings=None))
    path = scores_file(bench, spec, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(result))
    return {"metrics": result.metrics}


def train(bench: Workbench, spec: dict[str, Any], seed: int) -> Path:
    """Train the stages of an arm; each is kept, because several arms and both domains continue from the same ones."""
    text = bench.work_dir / f"{spec['domain']}-text.jsonl"
    if not text.is_file():
        bench.texts(spec["domain"]).to_json(text)
    starts, files = (str(bench.encoder(MINILM)), str(bench.encoder(PRETRAINED))), label_files(bench)[spec["labels"]]
    steps = FEWER_STEPS if spec["arm"] == FEWER else STEPS
    arms = make_arms(starts[0], "avg", None, starts[1], text, None, files, steps)
    arm = next(arm for arm in arms if arm.name == spec["arm"].partition(",")[0])
    model, name = arm.model, MINILM if arm.model == starts[0] else PRETRAINED
    for stage in arm.stages:
        name += f"_{stage.method}-{stage.file.name.partition('.')[0]}-{stage.steps}"
        folder = bench.work_dir / "models" / f"{name}-{seed}"
        if not folder.is_dir():
            with write_atomically(folder) as temporary:
                sizes = {"per_device_train_batch_size": BATCH, "max_seq_length": MAX_LENGTH, "bf16": bench.bf16}
                train_stage(stage, model, seed, temporary, options=sizes, pooler=arm.pooler)
        model = str(folder)
    return Path(model)


def label_files(bench: Workbench) -> dict[str, dict[Path, str]]:
    """Return the files of both kinds of labels, each with its objective."""
    own = bench.work_dir / "banking77-labels.csv"
    if not own.is_file():
        own.parent.mkdir(parents=True, exist_ok=True)
        intents = defaultdict(list)
        with open(bench.data / "banking77/train.csv", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                intents[row["category"]].append(row["text"])
        drawn = [(text, intent) for intent, texts in intents.items() for text in random.Random(0).sample(texts, 10)]
        Dataset.from_dict({"text": [d[0] for d in drawn], "label": [d[1] for d in drawn]}).to_csv(own, index=False)
    sts = bench.data / "senteval/downstream/STS/STSBenchmark/sts-train.csv"
    return {
        GENERAL: {bench.data / "nli/nli_triplets.csv.gz": "simcse", sts: "cosent"},
        OWN: {own: "class_labels"},
    }


def task_of(bench: Workbench, domain: str) -> Task:
    """Write the test part of a domain in the layout of a user's own task, and read it."""
    table = bench.work_dir / f"{domain}.csv"
    if domain == "banking77":
        with open(bench.data / domain / "test.csv", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))[:: EVERY_ROW[domain]]
        columns = {"text": [row["text"] for row in rows], "label": [row["category"] for row in rows]}
    else:
        labels, first, second = zip(
            *twitter_rows(bench.data / domain / "test.tsv.gz")[:: EVERY_ROW[domain]], strict=True
        )
        columns = {"sentence1": list(first), "sentence2": list(second), "label": list(labels)}
    table.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns).to_csv(table, index=False)
    return read_task(KINDS[domain], table)


def scores_file(bench: Workbench, spec: dict[str, Any], seed: int) -> Path:
    """Return the file that keeps what the bootstrap resamples."""
    name = "-".join(str(spec[key]) for key in ("domain", "labels", "arm", "model") if key in spec)
    return bench.work_dir / "scores" / f"{name.replace(' ', '-')}-{seed}.pickle"


def add_intervals(bench: Workbench, report: Report) -> None:
    """Write the difference of each arm to its control and to the start, with 95% intervals."""
    runs = report.results["runs"]
    for domain, labels, names in PLAN:
        task = task_of(bench, domain)
        for name in names:
            others = {f"{domain}: {MINILM}", f"{domain}: {PRETRAINED}"} | {f"{domain}, {labels}: {CONTROL}"}
            entry = runs.get(key := f"{domain}, {labels}: {name}", {"seeds": {}})
            found = {other: read_scores(bench, runs, other) for other in sorted(others - {key})}
            after = read_scores(bench, runs, key)
            entry["differences"] = {
                other: [round(value, 2) for value in paired_interval(task, before, after)]
                for other, before in found.items()
                if before and after
            }
    report.save()


def read_scores(bench: Workbench, runs: dict[str, Any], name: str) -> list[TaskResult]:
    """Read what the bootstrap resamples, for every seed of a run."""
    run = runs.get(name, {"seeds": {}})
    return [pickle.loads(scores_file(bench, run["settings"], int(seed)).read_bytes()) for seed in run["seeds"]]


def table(results: dict) -> str:
    """Format the scores of each arm over its seeds, and its differences to the starts and to labels alone."""
    rows = []
    for name, run in results["runs"].items():
        metric = "accuracy" if run["settings"]["kind"] == "classification" else "average_precision"
        cells = ["{:+.2f} [{:+.2f}, {:+.2f}] over {}".format(*d, o) for o, d in run.get("differences", {}).items()]
        scores = [result["metrics"][metric] for result in run["seeds"].values()]
        if scores:
            rows.append([name, spread(scores), len(scores), "; ".join(cells)])
    return markdown(["domain, labels: arm", "score", "seeds", "differences"], rows)
