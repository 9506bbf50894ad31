"""Two neighbouring spans of a document against two dropout masks of one span, from raw encoders and a finished one.

    python -m benchmarks spans --output benchmarks/results/spans.json

A span is two consecutive sentences of a Wikipedia article. Each start is trained on the same spans by SimCSE with view
`next_sentence` (the next span is the positive) and with `identity` (dropout). It is scored on articles that it has not
seen (is the nearest other span one of the same article?), and on STS-B dev.
"""

import argparse
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from simcse_hf import SimCSE
from simcse_hf.data.documents import read_documents
from simcse_hf.evaluation.report import spread
from simcse_hf.training.recipe import Recipe

from .forgetting import Nearest, headline, measure, part, stsb
from .harness import SHARED, Report, machine, markdown, model_or_default

#: The starts, with the learning rate of `adapt` for a finished encoder and the papers' for a raw one.
STARTS = {
    "minilm-remasked-6x384": (SHARED / "models/minilm-remasked-6x384", 3e-5),
    "wiki-mlm-4x256": (SHARED / "models/wiki-mlm-4x256", 3e-5),
    "all-MiniLM-L6-v2": (None, 1e-5),
}
VIEWS = ("identity", "next_sentence")
#: Articles of the task, and of the training texts, which follow them in the file; and spans of an article in the task.
TESTED, TRAINED, SPANS = 120, 600, 4
STEPS, BATCH, LENGTH = 100, 16, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])


def spans_of(articles: list[list[str]]) -> list[list[str]]:
    """Join each two consecutive sentences of each article."""
    joined = []
    for sentences in articles:
        pairs = zip(sentences[::2], sentences[1::2], strict=False)
        joined.append([f"{first} {second}" for first, second in pairs])
    return joined


def run(options: argparse.Namespace, report: Report) -> None:
    documents = spans_of(list(islice(read_documents(SHARED / "data/wiki/wiki_documents.txt.gz"), TESTED + TRAINED)))
    texts = []
    labels = []
    for number, spans in enumerate(documents[:TESTED]):
        texts += spans[:SPANS]
        labels += [str(number)] * len(spans[:SPANS])
    tasks = {"nearest": Nearest(texts, labels), "STS-B dev": stsb()}
    report.save(machine=machine())
    with TemporaryDirectory() as name:
        file = Path(name, "spans.txt")
        file.write_text("\n\n".join("\n".join(spans) for spans in documents[TESTED:] if spans) + "\n")
        for seed in options.seeds:
            for start, (folder, rate) in STARTS.items():
                found = report.results.setdefault(start, {})
                model = model_or_default(folder)
                if "start" not in found:
                    found["start"] = score(SimCSE(model, pooler_type="avg", device="cpu"), tasks)
                for view in VIEWS:
                    if str(seed) not in found.setdefault(view, {}):
                        output = Path(name, f"{start}-{view}-{seed}")
                        train(model, output, file, view, rate, seed)
                        found[view][str(seed)] = score(SimCSE(output, device="cpu"), tasks)
                        report.save()


def train(start: Path, output: Path, file: Path, view: str, rate: float, seed: int) -> None:
    """Train as `simcse-hf train unsup` does."""
    values = {
        "model_name_or_path": str(start),
        "pooler_type": "avg",
        "train_file": str(file),
        "view": view,
        "output_dir": str(output),
        "max_steps": STEPS,
        "learning_rate": rate,
        "per_device_train_batch_size": BATCH,
        "max_seq_length": LENGTH,
        "seed": seed,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    Recipe.read("unsup", values).train()


def score(model: SimCSE, tasks: dict) -> dict[str, float]:
    """Return what a model scores in each task, times 100."""
    with torch.inference_mode():
        return {name: float(headline(part(scored))) for name, scored in measure(model, tasks).items()}


def table(results: dict) -> str:
    rows = []
    for start in STARTS:
        found = results.get(start, {})
        for view in ("start", *VIEWS):
            runs = [found["start"]] if view == "start" and found else list(found.get(view, {}).values())
            if runs:
                cells = [spread([each[task] for each in runs]) for task in ("nearest", "STS-B dev")]
                rows.append([start, view, *cells, len(runs)])
    return markdown(["start", "view", "nearest span of the same article", "STS-B dev", "seeds"], rows)
