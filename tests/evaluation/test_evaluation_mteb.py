"""The bridge to mteb. What runs mteb itself needs the `mteb` extra."""

import re
import sys
from pathlib import Path

import pytest
from evaluation_helpers import BagOfWords, random_pairs

from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.mteb import BENCHMARK, MTEB_TASKS, evaluate_mteb, mteb_averages, mteb_task_names
from simcse_hf.evaluation.report import format_table, read_results, write_results

PAPER = Path(__file__).parents[3] / "shared" / "papers" / "non_contrastive.txt"
#: The averages that the paper prints in the order of `MTEB_TASKS`, then the average over all data sets.
PAPER_AVERAGES = {
    "SimCSE": [64.6, 30.8, 74.5, 47.3, 23.6, 74.4, 27.7, 47.4],
    "VICReg (dropout)": [61.3, 33.4, 68.2, 46.1, 19.9, 70.5, 28.7, 45.1],
    "VICReg (shuffle)": [63.0, 32.4, 70.7, 47.3, 20.7, 70.6, 29.2, 45.7],
    "Barlow Twins (dropout)": [65.2, 33.9, 70.6, 47.3, 24.1, 71.1, 28.9, 47.5],
    "Barlow Twins (shuffle)": [59.4, 28.1, 73.1, 45.3, 21.5, 72.2, 27.6, 44.5],
    "Barlow Twins (NLI)": [60.3, 36.8, 71.2, 47.6, 25.1, 70.0, 27.5, 47.1],
    "Barlow Twins (WikiAuto)": [58.1, 33.5, 67.7, 45.6, 25.9, 70.6, 31.1, 46.0],
}


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


@pytest.mark.skipif(not PAPER.is_file(), reason="the text of the paper is not beside the repository")
def test_the_averages_of_the_papers_data_sets_are_those_that_it_prints():
    """Tables 4 and 6: the scores of seven RoBERTa models on 56 data sets, and their means."""
    columns = [{} for _ in PAPER_AVERAGES]
    for line in PAPER.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        name = re.split("[ ♢♡♠]", cells[0])[0]
        if name in mteb_task_names(["all"]) and len(cells) > len(columns):
            for column, cell in zip(columns, cells[1:], strict=False):
                column[name] = float(cell)
    for column, printed in zip(columns, PAPER_AVERAGES.values(), strict=True):
        averages = mteb_averages(column)
        assert [average["value"] for average in averages.values()] == pytest.approx(printed, abs=0.11)
        assert [average["tasks"] for average in averages.values()] == [12, 11, 3, 4, 15, 10, 1, 56]


def test_averages_count_the_data_sets_that_they_cover():
    scores = {"STS12": 50.0, "SICK-R": 70.0, "SummEval": 30.0, "Some other set": 0.0}
    averages = mteb_averages(scores)
    assert averages == {
        "STS": {"value": 60.0, "tasks": 2, "of": 10},
        "Summarization": {"value": 30.0, "tasks": 1, "of": 1},
        "average": {"value": 50.0, "tasks": 3, "of": 56},
    }
    assert mteb_averages({"Some other set": 1.0}) == {}


def test_a_saved_result_file_shows_the_averages_with_their_data_sets(tmp_path):
    scores = {"STS12": 50.0, "SICK-R": 70.0}
    write_results(tmp_path / "r.json", {"results": {"mteb": scores, "mteb_averages": mteb_averages(scores)}}, {})
    results = read_results(tmp_path / "r.json")[0]["results"]
    lines = format_table(results, "test", "all", "spearman").splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["STS", "60.00", "2", "of", "10"],
        ["Avg.", "over", "all", "data", "sets", "60.00", "2", "of", "56"],
    ]


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
