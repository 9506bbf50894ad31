"""The JSON document of an evaluation, for all kinds of task, keeps the form that version 0.5 gave it."""

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import BagOfWords, write_beir, write_rows, write_sts, write_stsb, write_transfer

from simcse_hf import evaluate, read_task
from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.training.dev_sets import make_dev_sets

#: What commit 566eddf wrote, without what depends on the machine.
REFERENCE = Path(__file__).with_name("evaluation_566eddf.json")
SENTEVAL = ("MR", "STS12", "STS14", "STSBenchmark", "TREC")
#: numpy 1 rounds differently, which changes the ranks of texts with the same words.
OLD_NUMPY = np.__version__ < "2"
WORDS = "cat dog sun rain bird tree road city".split()


def write_tasks(folder):
    """Write a task of each kind, and return what names them."""
    write_sts(folder, "STS12")
    write_stsb(folder)
    write_transfer(folder)
    texts = [f"{WORDS[n % 8]} {WORDS[n // 8 % 8]} {WORDS[(3 * n) % 7]} number {n}" for n in range(48)]
    write_rows(folder / "labels.csv", ["text", "label"], [(text, WORDS[n % 3]) for n, text in enumerate(texts)])
    several = [(text, ["a", "b", "c"][n % 3 : n % 3 + 2]) for n, text in enumerate(texts)]
    write_rows(folder / "several.jsonl", ["text", "label"], several)
    pairs = [(texts[n], texts[(5 * n + 1) % 48], n % 2) for n in range(24)]
    write_rows(folder / "pairs.csv", ["sentence1", "sentence2", "label"], pairs)
    scored = [(texts[n], texts[(7 * n + 2) % 48], n % 5) for n in range(24)]
    write_rows(folder / "own.csv", ["sentence1", "sentence2", "score"], scored)
    queries = [(texts[n], [texts[n + 8]], texts[n + 2 : n + 6]) for n in range(12)]
    write_rows(folder / "reranking.jsonl", ["query", "positive", "negative"], queries)
    judged = {f"q{n}": {f"d{n + 8}": 1, f"d{n + 16}": 2} for n in range(8)}
    corpus = {f"d{n}": text for n, text in enumerate(texts)}
    write_beir(folder / "retrieval", corpus, {f"q{n}": texts[n] for n in range(8)}, judged)
    kinds = {
        "classification": "labels.csv",
        "clustering": "labels.csv",
        "pairs": "pairs.csv",
        "reranking": "reranking.jsonl",
        "retrieval": "retrieval",
    }
    words = [f"{kind}={folder / file}" for kind, file in kinds.items()]
    return [*words, f"classification={folder / 'several.jsonl'}"], [str(folder / "own.csv")]


def flat(value, name=""):
    """Yield the values of nested objects and lists with their place, in their order."""
    if isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from flat(part, f"{name}/{key}")
    else:
        yield name, value


def test_the_document_has_the_form_of_566eddf(tmp_path):
    """The evaluation has a task of each kind. The names and shapes of the stored scores are compared, too."""
    task, pairs = write_tasks(tmp_path)
    task.append(f"knn={tmp_path / 'labels.csv'}")
    path = tmp_path / "evaluation.json"
    options = {"mode": "fasttest", "geometry": True, "device": "cpu", "output": path}
    evaluate(BagOfWords(), data_dir=tmp_path, tasks=SENTEVAL, pairs=pairs, task=task, **options)
    document = json.loads(path.read_text("utf-8").replace(str(tmp_path), "FOLDER"))
    for name in ("versions", "date", "cost"):
        document[name] = None
    # What later versions know, too
    for name in ("config", "saved_as"):
        document["identity"].pop(name)
    for result in document["results"].values():
        result.pop("texts", None)
    with np.load(tmp_path / "evaluation.scores.npz") as scores:
        found = {"document": document, "scores": {name: list(scores[name].shape) for name in scores.files}}
    expected = json.loads(REFERENCE.read_text("utf-8"))
    assert [name for name, _ in flat(found)] == [name for name, _ in flat(expected)]
    for (name, value), (_, before) in zip(flat(found), flat(expected), strict=True):
        if isinstance(before, float) and OLD_NUMPY:
            assert isinstance(value, float), name
        else:
            assert value == (pytest.approx(before, abs=1e-6) if isinstance(before, float) else before), name


def test_tasks_of_senteval_are_tasks_by_the_same_words(tmp_path):
    write_tasks(tmp_path)
    task = [f"STSBenchmark={tmp_path}", f"MR={tmp_path}"]
    options = {"device": "cpu", "mode": "dev"}
    by_word = evaluate(BagOfWords(), task=task, **options).results
    by_name = evaluate(BagOfWords(), tasks="STSBenchmark,MR", data_dir=tmp_path, **options).results
    assert by_word == by_name
    [dev_set] = make_dev_sets(None, task)
    metrics = dev_set.score(embed_all(BagOfWords(), dev_set.roles))
    assert metrics["STSBenchmark_spearman"] == by_name["STSBenchmark"]["splits"]["dev"]["spearman"]
    assert list(metrics) == ["STSBenchmark_spearman", "MR_dev_accuracy"]
    assert list(dev_set.scores) == ["STSBenchmark_spearman"]  # dev answers are not kept


@pytest.mark.parametrize("name", ["STS12", "STSBenchmark", "MR"])
def test_a_task_of_senteval_is_split_in_two(tmp_path, name):
    write_tasks(tmp_path)
    task = read_task(name, tmp_path)
    first, second = task.split(1 / 3)
    assert len(first) + len(second) == len(task)
    assert set(first.evaluate(BagOfWords()).metrics) == {task.metric}
