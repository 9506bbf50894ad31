"""The bridge to mteb. What runs mteb itself needs the `mteb` extra."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, tiny_config
from evaluation_helpers import BagOfWords, random_columns
from inference_helpers import as_sentence_transformer
from transformers import BertModel

from simcse_hf import SimCSE
from simcse_hf.evaluation import mteb as mteb_tasks
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.mteb import BENCHMARK, english_tasks, evaluate_mteb, mteb_averages
from simcse_hf.evaluation.report import Evaluation, write_results

PAPER = Path(__file__).parents[3] / "shared" / "papers" / "non_contrastive.txt"
#: The averages that the paper prints for its categories in this order, then the average over all data sets.
CATEGORIES = dict(Classification=12, Clustering=11, PairClassification=3, Reranking=4, Retrieval=15, STS=10)
CATEGORIES["Summarization"] = 1
PAPER_AVERAGES = {"SimCSE": [64.6, 30.8, 74.5, 47.3, 23.6, 74.4, 27.7, 47.4]}


def test_averages_count_the_data_sets_that_they_cover(tmp_path, monkeypatch):
    scores = {"STS12": 50.0, "SICK-R": 70.0, "SummEval": 30.0, "Some other set": 0.0}
    categories = {"Retrieval": ["NQ"], "STS": ["STS12", "STS13", "SICK-R"], "Summarization": ["SummEval"]}
    monkeypatch.setattr(mteb_tasks, "english_tasks", lambda: categories)
    averages = mteb_averages(scores)
    assert averages == {
        "STS": {"value": 60.0, "tasks": 2, "of": 3},
        "Summarization": {"value": 30.0, "tasks": 1, "of": 1},
        "average": {"value": 50.0, "tasks": 3, "of": 5},
    }
    assert mteb_averages({"Some other set": 1.0}) == {}
    write_results(tmp_path / "r.json", {"results": {"mteb": scores, "mteb_averages": averages}}, {})
    lines = str(Evaluation.read(tmp_path / "r.json")).splitlines()
    assert lines[-3].split() == ["STS", "60.00", "2", "of", "3"]
    assert lines[-1].split() == ["Avg.", "over", "all", "data", "sets", "50.00", "3", "of", "5"]


def test_without_mteb_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match=r"simcse-hf\[mteb\]"):
        evaluate_mteb(BagOfWords(), ["STS12"])


def test_the_english_benchmark_is_that_of_the_paper():
    """Tables 4 and 6 of the non-contrastive paper: the scores of a RoBERTa model on 56 data sets, and their means."""
    pytest.importorskip("mteb", reason="needs the mteb extra")
    assert {category: len(tasks) for category, tasks in english_tasks().items()} == CATEGORIES
    with pytest.raises(ValueError, match="mteb does not know the data set 'Nonsense'"):
        evaluate_mteb(BagOfWords(), ["Nonsense"])
    if not PAPER.is_file():
        pytest.skip("the text of the paper is not beside the repository")
    names = {name for tasks in english_tasks().values() for name in tasks}
    rows = [[cell.strip() for cell in line.split("|")] for line in PAPER.read_text(encoding="utf-8").splitlines()]
    named = [(re.split("[ ♢♡♠]", cells[0])[0], cells) for cells in rows if len(cells) > 7]
    averages = mteb_averages({name: float(cells[1]) for name, cells in named if name in names})
    assert [average["value"] for average in averages.values()] == pytest.approx(PAPER_AVERAGES["SimCSE"], abs=0.11)
    assert [average["tasks"] for average in averages.values()] == [*CATEGORIES.values(), 56]


def test_mteb_gives_the_score_of_our_evaluation(monkeypatch):
    mteb = pytest.importorskip("mteb", reason="needs the mteb extra")
    import datasets

    first, second, scores = random_columns(40, 0)
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


@pytest.mark.parametrize(
    "prompts",
    [
        {"query": "the dog sang : ", "document": "a small mat : "},
        {"NFCorpus-query": "the dog sang : ", "Retrieval": "a small mat : ", "query": "old house : "},
        {"query": "the dog sang : ", "other": "a small mat : "},
    ],
    ids=lambda prompts: "+".join(prompts),
)
def test_mteb_puts_the_prompts_of_a_model_before_its_texts_as_with_sentence_transformers(prompts, save_checkpoint):
    mteb = pytest.importorskip("mteb", reason="needs the mteb extra")
    import datasets
    from sentence_transformers import SentenceTransformer

    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    torch.manual_seed(0)
    folder = as_sentence_transformer(save_checkpoint(BertModel(tiny_config())), pooling, True, prompts=prompts)
    random = np.random.default_rng(0)
    words = [word for word in VOCABULARY if word.isalpha()]
    texts = list(dict.fromkeys(" ".join(random.choice(words, 5)) for _ in range(80)))
    documents = {f"d{i}": text for i, text in enumerate(texts)}
    queries = {f"q{i}": " ".join(text.split()[1:4]) for i, text in enumerate(texts[:40])}
    tables = {
        name: datasets.Dataset.from_dict({"id": list(each), "text": list(each.values())})
        for name, each in (("corpus", documents), ("queries", queries))
    }
    judged = {f"q{i}": {f"d{i}": 1, f"d{i + 1}": 1} for i in range(40)}
    task = mteb.get_task("NFCorpus")
    task.dataset = {"default": {"test": tables | {"relevant_docs": judged, "top_ranked": None}}}
    task.data_loaded = True

    def score(model):
        result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
        return result.task_results[0].get_score()

    model = SimCSE(folder, device="cpu")
    expected = score(SentenceTransformer(str(folder), device="cpu"))
    assert score(model) == expected
    model.prompts = {"query": "", "document": ""}
    assert score(model) != expected
