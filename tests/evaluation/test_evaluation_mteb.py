"""The bridge to mteb. What runs mteb itself needs the `mteb` extra."""

import re
import sys
from unittest.mock import create_autospec

import pytest
from conftest import tiny_config
from encoding_helpers import as_sentence_transformer, perturb, random_texts
from evaluation_helpers import BagOfWords, random_columns
from transformers import BertModel

from simcse_hf import SimCSE, evaluate
from simcse_hf.evaluation import mteb as mteb_tasks
from simcse_hf.evaluation.mteb import BENCHMARK, as_mteb, evaluate_mteb, mteb_averages, read_benchmark
from simcse_hf.evaluation.report import Evaluation, write_results

FIRST = "MTEB(eng, v1)"


def test_averages_count_the_data_sets_that_they_cover(tmp_path, monkeypatch):
    scores = {"STS12": 50.0, "SICK-R": 70.0, "SummEval": 30.0, "Some other set": 0.0}
    categories = {"Retrieval": ["NQ"], "STS": ["STS12", "STS13", "SICK-R"], "Summarization": ["SummEval"]}
    monkeypatch.setattr(mteb_tasks, "read_benchmark", lambda names: (BENCHMARK, categories))
    averages = mteb_averages(scores, ["all"])
    assert averages == {
        "STS": {"value": 60.0, "tasks": 2, "of": 3, "benchmark": BENCHMARK},
        "Summarization": {"value": 30.0, "tasks": 1, "of": 1, "benchmark": BENCHMARK},
        "average": {"value": 50.0, "tasks": 3, "of": 5, "benchmark": BENCHMARK},
    }
    assert mteb_averages({"Some other set": 1.0}, ["all"]) == {}
    write_results(tmp_path / "r.json", {"results": {"mteb": scores, "mteb_averages": averages}}, {})
    lines = str(Evaluation.read(tmp_path / "r.json")).splitlines()
    assert " ".join(lines[-3].split()) == "MTEB(eng, v2): STS 60.00 2 of 3"
    assert " ".join(lines[-1].split()) == "MTEB(eng, v2): all data sets 50.00 3 of 5"


def test_without_mteb_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match=r"simcse-hf\[mteb\]"):
        evaluate_mteb(BagOfWords(), ["STS12"])


@pytest.fixture
def mteb():
    return pytest.importorskip("mteb")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of mteb's results, which is empty."""
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "mteb"))
    return tmp_path / "mteb/results"


@pytest.fixture
def task(mteb, monkeypatch):
    """A task of mteb with data of its own, of each English benchmark the only one."""
    import datasets
    from mteb.mocks.mock_tasks import MockSTSTask

    made = MockSTSTask()
    table = dict(zip(("sentence1", "sentence2", "score"), random_columns(40, 0), strict=True))
    made.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(table)})
    made.data_loaded = True
    find = mteb.get_benchmark
    monkeypatch.setattr(mteb, "get_benchmark", lambda name: type(find(name))(name=name, tasks=[made]))
    return made


@pytest.mark.parametrize(
    "tasks, benchmark, size",
    [(["all"], BENCHMARK, 41), (["STS12", FIRST], FIRST, 56), (["STS"], BENCHMARK, 41)],
)
def test_a_benchmark_is_named_among_the_tasks(tasks, benchmark, size, mteb):
    name, categories = read_benchmark(tasks)
    assert name == benchmark and sum(map(len, categories.values())) == size


@pytest.mark.parametrize("tasks", [["Nonsense"], [FIRST, "MTEB(fra, v1)"]], ids=["no name", "two benchmarks"])
def test_what_mteb_does_not_know_is_refused(tasks, mteb):
    with pytest.raises(ValueError, match=f"mteb does not know .* '{re.escape(tasks[-1])}'"):
        evaluate_mteb(BagOfWords(), tasks)


@pytest.mark.parametrize("tasks", [[FIRST], ["MockSTSTask"]])
def test_results_are_in_the_cache_of_mteb_as_it_reads_them(tasks, task, model, cache, mteb):
    [score] = evaluate_mteb(model, tasks).values()
    [file] = cache.glob(f"*/{as_mteb(model).mteb_model_meta.revision}/MockSTSTask.json")
    assert file.parents[1].name.startswith("local__") and (file.parent / "model_meta.json").exists()
    [read] = mteb.ResultCache().load_results(models=[as_mteb(model).mteb_model_meta], tasks=[task]).model_results
    assert 100 * read.task_results[0].get_score() == pytest.approx(score, abs=1e-3), "mteb rounds"
    found = evaluate(model, mteb=tasks)
    assert found.results["mteb"] == {"MockSTSTask": pytest.approx(score, abs=1e-3)}
    assert {each["benchmark"] for each in found.results["mteb_averages"].values()} == {read_benchmark(tasks)[0]}


def count_calls(monkeypatch, cls):
    """Replace `encode` of a class by a function that counts its calls."""
    encode = create_autospec(cls.encode, side_effect=cls.encode)
    monkeypatch.setattr(cls, "encode", encode)
    return encode


def test_what_was_measured_is_read_again_for_the_same_weights_and_settings_only(task, model, cache, monkeypatch):
    encode = count_calls(monkeypatch, SimCSE)
    score = evaluate_mteb(model, ["all"])
    first = encode.call_count
    again = evaluate_mteb(SimCSE(model.name_or_path, device="cpu"), ["all"])
    assert first and again == pytest.approx(score, abs=1e-3)
    assert encode.call_count == first
    model.max_length = 3
    evaluate_mteb(model, ["all"])
    assert encode.call_count > first and len(list(cache.glob("*/*"))) == 2
    perturb(model.model)
    evaluate_mteb(model, ["all"])
    assert len(list(cache.glob("*/*"))) == 3


def test_a_model_of_the_hub_or_without_weights_is_measured_again(task, model, cache, monkeypatch):
    """The commit of a model of the hub, which is its revision, does not say how the model was loaded."""
    model.name_or_path, model.revision = "org/model", "a" * 40
    for encoder in (model, BagOfWords()):
        encode = count_calls(monkeypatch, type(encoder))
        evaluate_mteb(encoder, ["all"])
        first = encode.call_count
        evaluate_mteb(encoder, ["all"])
        assert encode.call_count == 2 * first
    assert (cache / f"org__model/{'a' * 40}/MockSTSTask.json").exists()


@pytest.mark.parametrize(
    "prompts",
    [
        {"NFCorpus-query": "the dog sang : ", "Retrieval": "a small mat : ", "query": "old house : "},
        {"query": "the dog sang : ", "other": "a small mat : "},
    ],
    ids=lambda prompts: "+".join(prompts),
)
def test_mteb_puts_the_prompts_of_a_model_before_its_texts_as_with_sentence_transformers(
    prompts, save_checkpoint, mteb
):
    from sentence_transformers import SentenceTransformer

    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    folder = as_sentence_transformer(save_checkpoint(BertModel(tiny_config())), pooling, True, prompts=prompts)
    task = retrieval_task(mteb)

    def score(model):
        result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
        return result.task_results[0].get_score()

    model = SimCSE(folder, device="cpu")
    expected = score(SentenceTransformer(str(folder), device="cpu"))
    assert score(as_mteb(model)) == expected
    model.prompts = {"query": "", "document": ""}
    assert score(as_mteb(model)) != expected


def retrieval_task(mteb):
    """NFCorpus with texts of the tiny vocabulary: each query is a part of a document."""
    import datasets

    texts = list(dict.fromkeys(random_texts(80, words=(5, 6))))
    parts = [" ".join(text.split()[1:4]) for text in texts[:40]]
    tables = {"corpus": ("d", texts), "queries": ("q", parts)}
    for name, (letter, rows) in tables.items():
        ids = [f"{letter}{number}" for number in range(len(rows))]
        tables[name] = datasets.Dataset.from_dict({"id": ids, "text": rows})
    judged = {f"q{i}": {f"d{i}": 1, f"d{i + 1}": 1} for i in range(40)}
    task = mteb.get_task("NFCorpus")
    task.dataset = {"default": {"test": tables | {"relevant_docs": judged, "top_ranked": None}}}
    task.data_loaded = True
    return task
