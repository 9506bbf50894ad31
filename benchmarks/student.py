"""Train students in the space of all-MiniLM-L6-v2: their queries search the documents that the teacher has encoded.

    python -m benchmarks student --output benchmarks/results/student.json
    python -m benchmarks student --output benchmarks/results/student.json --only similarities --seeds 42

A run trains without labels on 20,000 Wikipedia sentences, 20,000 training captions of Flickr30k and the 10,003
training texts of Banking77. `flickr`: a caption of each of 1,000 test images finds another caption of its image among
those of 2,014 images. `banking`: each of 3,080 test texts finds training texts of its intent. The scores are nDCG@10,
and `share` is that of the teacher's own score, with its 95% interval over queries and seeds. Runs that the output file
holds are not repeated.
"""

import argparse
import csv
import gzip
import random
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from datasets import Dataset

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.evaluation.tasks.ranking import Query, RetrievalTask

from .harness import SHARED, Report, markdown, model_or_default

DATA = SHARED / "data"
COMMON = {
    "per_device_train_batch_size": 64,
    "max_seq_length": 64,
    "bf16": True,
    "use_cpu": True,
    "save_strategy": "no",
    "disable_tqdm": True,
    "report_to": "none",
}
SMALL = {"max_steps": 900, "learning_rate": 5e-4, "warmup_steps": 50}
LARGE = {"max_steps": 150, "learning_rate": 2e-4, "warmup_steps": 15}
VECTORS = {"objective": "distill", "objective_options": {"loss": "vectors"}}
#: The student, the arguments of its run, and the settings of its model.
RUNS = {
    "wiki-mlm-4x256": ("wiki-mlm-4x256", SMALL, VECTORS),
    "minilm-remasked-6x384": ("minilm-remasked-6x384", LARGE, VECTORS),
    "similarities": ("wiki-mlm-4x256", SMALL, {"objective": "distill"}),
}
RESAMPLES = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--steps", type=int, help="in place of the steps of a run")
    parser.add_argument("--learning_rate", type=float, help="in place of the learning rate of a run")
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/student"))


def lines(name: str) -> list[str]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def labelled(name: str) -> list[dict[str, str]]:
    with open(DATA / "banking77" / name, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def training_texts() -> list[str]:
    draw = random.Random(0)
    captions = [caption for image in lines("flickr30k/captions_train.tsv.gz") for caption in image.split("\t")]
    texts = draw.sample(lines("wiki/wiki_sentences.txt.gz")[::20], 20_000) + draw.sample(captions, 20_000)
    texts = list(dict.fromkeys(texts + [row["text"] for row in labelled("train.csv")]))
    draw.shuffle(texts)
    return texts


def tasks() -> dict[str, RetrievalTask]:
    images = [image.split("\t") for part in ("test", "val") for image in lines(f"flickr30k/captions_{part}.tsv.gz")]
    captions = [Query(image[0], {str(number): 1}) for number, image in enumerate(images[:1000])]
    corpus = {str(number): image[1] for number, image in enumerate(images)}
    rows = labelled("train.csv")
    of_intent: dict[str, dict[str, int]] = {}
    for number, row in enumerate(rows):
        of_intent.setdefault(row["category"], {})[str(number)] = 1
    questions = [Query(row["text"], of_intent[row["category"]]) for row in labelled("test.csv")]
    return {
        "flickr": RetrievalTask("flickr30k", "flickr", captions, corpus),
        "banking": RetrievalTask(
            "banking77", "banking", questions, {str(number): row["text"] for number, row in enumerate(rows)}
        ),
    }


class Asking:
    """Encodes queries with one model and documents with another."""

    def __init__(self, queries: SimCSE, documents: SimpleNamespace | SimCSE):
        self.encode_query = queries.encode
        self.encode_document = documents.encode
        self.encode = queries.encode
        self.similarity_fn_name = "cosine"


def kept(model: SimCSE, documents: dict[str, np.ndarray]) -> SimpleNamespace:
    """Return a model that encodes each text once, as a benchmark asks for the same documents again and again."""

    def encode(texts: list[str], **_: object) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in documents]
        documents.update(zip(new, model.encode(new, convert_to_numpy=True), strict=True))
        return np.stack([documents[text] for text in texts])

    return SimpleNamespace(encode=encode)


def share(scores: np.ndarray, of_teacher: np.ndarray) -> list[float]:
    """Return the share of the teacher's score, and its 95% interval over queries and seeds, times 100.

    Args:
        scores (`np.ndarray`): Of shape `(seeds, queries)`.
        of_teacher (`np.ndarray`): Of shape `(queries,)`.

    Returns:
        `list[float]`: The share and the bounds.
    """
    draw = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        queries = draw.integers(len(of_teacher), size=len(of_teacher))
        seeds = draw.integers(len(scores), size=len(scores))
        drawn.append(scores[seeds][:, queries].mean() / of_teacher[queries].mean())
    return (100 * np.array([scores.mean() / of_teacher.mean(), *np.quantile(drawn, [0.025, 0.975])])).tolist()


def run(options: argparse.Namespace, report: Report) -> None:
    teacher_name = str(model_or_default(None))
    teacher = SimCSE(teacher_name)
    cached = kept(teacher, {})
    judged = tasks()
    work = options.work_dir
    work.mkdir(parents=True, exist_ok=True)
    reference = report.results.setdefault("teacher", {})
    for task_name, task in judged.items():
        path = work / f"teacher-{task_name}.npy"
        if task_name not in reference or not path.exists():
            result = task.evaluate(Asking(cached, cached))
            np.save(path, result.scores[task.kind]["value"])
            reference[task_name] = result.metrics["ndcg@10"]
    rows = Dataset.from_dict({"text": training_texts()})
    for name, seed in ((name, seed) for name in options.only for seed in options.seeds):
        start, arguments, settings = RUNS[name]
        given = {"max_steps": options.steps, "learning_rate": options.learning_rate}
        arguments = arguments | {option: value for option, value in given.items() if value is not None}
        described = {"start": start, "arguments": arguments | COMMON, "settings": settings}
        found = report.results.setdefault(name, described)
        if str(seed) in found:
            continue
        model = AutoModelForCL.from_pretrained(SHARED / "models" / start, pooler_type="avg", **settings)
        folder = work / f"{name}-{seed}"
        trainer = SimCSETrainer(
            model, SimCSETrainingArguments(str(folder), seed=seed, teacher=[teacher_name], **arguments, **COMMON), rows
        )
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
        trainer.save_model()
        student = SimCSE(folder)
        found[str(seed)] = {"seconds": seconds}
        for task_name, task in judged.items():
            for kind, documents in (("queries", cached), ("both", student)):
                if kind == "queries" and student.dim != teacher.dim:
                    continue
                result = task.evaluate(Asking(student, documents))
                np.save(work / f"{name}-{seed}-{task_name}-{kind}.npy", result.scores[task.kind]["value"])
                found[str(seed)][f"{task_name}, {kind}"] = result.metrics["ndcg@10"]
        report.save()
    for name in RUNS.keys() & report.results.keys():
        for task_name in judged:
            for kind in ("queries", "both"):
                paths = sorted(work.glob(f"{name}-[0-9]*-{task_name}-{kind}.npy"))
                if paths:
                    scores = np.stack([np.load(path) for path in paths])
                    of_teacher = np.load(work / f"teacher-{task_name}.npy")
                    report.results[name][f"share, {task_name}, {kind}"] = share(scores, of_teacher)
    report.save()


def table(results: dict) -> str:
    rows = []
    for name, result in results.items():
        for kind in ("queries", "both"):
            cells = []
            for task in ("flickr", "banking"):
                values = [
                    run[f"{task}, {kind}"]
                    for seed, run in result.items()
                    if seed.isdecimal() and f"{task}, {kind}" in run
                ]
                if name in RUNS and values:
                    whole, low, high = result[f"share, {task}, {kind}"]
                    cells += [f"{np.mean(values):.2f}", f"{whole:.1f}% ({low:.1f} to {high:.1f})"]
            if cells:
                rows.append([name, kind, *cells, len(values)])
    rows.insert(0, ["teacher", "both", *[x for task in results["teacher"].values() for x in (f"{task:.2f}", "")], ""])
    return markdown(["student", "encodes", "flickr", "share", "banking", "share", "seeds"], rows)
