"""The bridge to mteb. What runs mteb itself needs the `mteb` extra."""

import sys

import pytest
from evaluation_helpers import BagOfWords, random_pairs

from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.mteb import BENCHMARK, MTEB_TASKS, evaluate_mteb, mteb_task_names


def test_mteb_tasks_are_the_56_of_the_paper():
    assert len(mteb_task_names(["all"])) == 56
    assert {category: len(tasks) for category, tasks in MTEB_TASKS.items()} == {
        "Classification": 12,
        "Clustering": 11,
        "PairClassification": 3,
        "Reranking": 4,
        "Retrieval": 15,
        "STS": 10,
        "Summarization": 1,
    }


def test_mteb_categories_and_names_can_be_mixed():
    assert mteb_task_names(["Summarization", "STS12", "SummEval", "Other"]) == ["SummEval", "STS12", "Other"]


def test_without_mteb_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match=r"simcse-hf\[mteb\]"):
        evaluate_mteb(BagOfWords(), ["STS12"])


def test_mteb_knows_all_task_names():
    mteb = pytest.importorskip("mteb", reason="needs the mteb extra")
    assert {task.metadata.name for task in mteb.get_benchmark(BENCHMARK).tasks} == set(mteb_task_names(["all"]))
    with pytest.raises(ValueError, match="mteb does not know the data set 'Nonsense'"):
        evaluate_mteb(BagOfWords(), ["Nonsense"])


def test_mteb_gives_the_figure_of_our_evaluation(monkeypatch):
    mteb = pytest.importorskip("mteb", reason="needs the mteb extra")
    import datasets

    rows = random_pairs(40, 0)
    first, second, scores = (list(column) for column in zip(*rows, strict=True))
    task = mteb.get_task("STSBenchmark")
    table = datasets.Dataset.from_dict({"sentence1": first, "sentence2": second, "score": scores})
    task.dataset = {"default": datasets.DatasetDict({"test": table})}
    task.data_loaded = True
    benchmark = mteb.get_benchmark(BENCHMARK)
    monkeypatch.setattr(mteb, "get_benchmark", lambda name: type(benchmark)(name=name, tasks=[task]))
    model = BagOfWords()
    result = evaluate_mteb(model, ["STSBenchmark"], name="outputs/my/model")
    expected = spearman(cosine_similarity_pairs(model.encode(first), model.encode(second)), scores)
    assert result == {"STSBenchmark": pytest.approx(100 * expected, abs=1e-3)}
