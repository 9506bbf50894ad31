"""Documents from which cards are written, and the code in cards."""

import json
import logging
import os
import re
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from simcse_hf import SimCSE
from simcse_hf.evaluation.tasks.senteval import STS_PAIRS
from simcse_hf.publishing.card import write_card

EXAMPLES = ["A cat sits on the mat.", "A feline rests on a rug."]
LIBRARIES = ("simcse_hf", "sentence_transformers", "transformers")
PROTOCOL = {"mode": "test", "aggregation": "all", "metric": "spearman", "seed": 1111}


CARDS = Path(__file__).parent / "publishing" / "cards"


def check_card(name, text):
    """Compare a text with the expected file in tests/publishing/cards.

    After a change of what cards say, the tests write these files anew, and the diff is read:

        UPDATE_CARDS=1 python -m pytest tests/publishing -k card
    """
    text = re.sub(r"<!-- Of the files \w+ -->", "<!-- Of the files DIGEST -->", text)
    if os.environ.get("UPDATE_CARDS"):
        (CARDS / name).write_text(text, encoding="utf-8")
    assert text == (CARDS / name).read_text(encoding="utf-8")


def written(path, document):
    path.write_text(json.dumps(document))
    return path


def card_of(directory, **files):
    """Write `evaluation=document` and so on to JSON files of these names in a model's directory; return its card."""
    for name, document in files.items():
        written(directory / f"{name}.json", document)
    return write_card(directory).read_text()


@contextmanager
def log_of_package(level=logging.WARNING):
    """Collect what the package logs, also in a fixture of a module."""
    log = StringIO()
    handler = logging.StreamHandler(log)
    package = logging.getLogger("simcse_hf")
    before = package.level
    package.addHandler(handler)
    package.setLevel(level)
    try:
        yield log
    finally:
        package.removeHandler(handler)
        package.setLevel(before)


def card_and_log(directory):
    """Write the card of a model; return its text, and what was logged."""
    with log_of_package() as log:
        text = write_card(directory).read_text()
    return SimpleNamespace(text=text, log=log.getvalue())


def scores(value):
    return {"spearman": value, "pearson": value - 1}


def evaluation(directory, **changes):
    """Make a document as `simcse-hf evaluate --output` writes it, with a different value for each score."""
    results = {}
    for i, task in enumerate(("STS12", "STS13", "STS14", "STS15", "STS16")):
        aggregate = {name: scores(50.125 + i + j) for j, name in enumerate(("all", "mean", "wmean"))}
        results[task] = {
            "pairs": STS_PAIRS[task][task],
            "aggregate": aggregate,
        }
    for i, task in enumerate(("STSBenchmark", "SICKRelatedness")):
        test = {"pairs": STS_PAIRS[task]["test"], **scores(80.25 + i)}
        results[task] = {"splits": {"test": test, "dev": scores(90.5)}}
    present = [task for task in results if task != "STS14"]
    results["STS14"] = {"missing": "no folder STS14-en-test"}
    results["MR"] = {"accuracy": 71.23, "dev_accuracy": 73.0, "examples": {"train": 9}}
    results["average"] = {"value": 61.07, "tasks": present, "missing": ["STS14"]}
    results["average_transfer"] = {"value": 71.23, "tasks": ["MR"], "missing": []}
    results["geometry"] = {
        "alignment": 0.25123,
        "uniformity": -2.5,
        "isotropy": 0.3,
        "positive_pairs": 7,
        "sentences": 11,
        "splits": ["train", "dev", "test"],
    }
    protocol = PROTOCOL | {"classifier": {"model": "logistic regression"}}
    identity = SimCSE(directory, device="cpu").identity().to_dict()
    identity["max_length"] = 40
    document = {
        "model": str(directory),
        "identity": identity,
        "pooler": "cls",
        "max_length": 40,
    }
    return document | {"protocol": protocol, "results": results} | changes


def blocks(card):
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def check_examples(card, embeddings, libraries=LIBRARIES, atol=1e-5):
    """Run the code of a card, which must give these embeddings with each library."""
    for code, library in zip(blocks(card), libraries, strict=True):
        assert re.search(f"^from {library} import", code, re.MULTILINE)
        if library == "sentence_transformers":
            pytest.importorskip(library, reason="sentence_transformers is not installed")
        names = {}
        exec(code, names)
        found = F.normalize(torch.as_tensor(names["embeddings"]).double(), dim=-1)
        torch.testing.assert_close(found, embeddings.double(), rtol=0, atol=atol)
