"""`simcse-hf evaluate` and `simcse-hf compare`, from the command line to their files."""

import pytest
from cli_helpers import status
from conftest import read_json
from evaluation_helpers import BagOfWords, labelled_rows, write_rows, write_senteval, write_user_tasks

from simcse_hf.evaluation import Comparison, scoring


@pytest.fixture(scope="module")
def folder(module_path):
    return write_senteval(module_path)


@pytest.fixture(autouse=True)
def encoders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(name, **loading):
        encoder = BagOfWords({"wide": 64, "narrow": 2}[name])
        encoder.name_or_path = name
        return encoder

    monkeypatch.setattr(scoring, "load_model", load)


@pytest.fixture
def run(capsys):
    """`run(command, line)` returns what a command writes to `--output`, and what it prints."""

    def run(command, line, output="results.json"):
        assert status(command, *line.split(), "--output", output, "--overwrite") == 0
        return read_json(output), capsys.readouterr().out

    return run


def test_prints_a_table_and_writes_json(run, folder, tmp_path):
    write_user_tasks(tmp_path)
    line = f"--model wide --data_dir {folder} --verbose --aggregation wmean --geometry --task classification=rows.csv"
    document, printed = run("evaluate", line, "out/results.json")
    assert "Avg. over 3 of 7 tasks" in printed and "STS16 n/a" in printed and "STS12 MSRpar" in printed
    assert document["model"] == "wide" and "revision" in document
    assert document["protocol"]["aggregation"] == "wmean" and "torch" in document["versions"]
    results = document["results"]
    assert results["STS12"]["subsets"]["MSRpar"]["pairs"] == 30
    assert results["average"]["tasks"] == ["STS12", "STSBenchmark", "SICKRelatedness"]
    assert f"{results['average']['value']:.2f}" in printed
    assert results["geometry"]["sentences"] > 0 and "alignment" in printed
    assert not run("evaluate", f"--model wide --data_dir {folder} --quiet")[1]


def test_compares_result_files_with_models_on_tasks_that_commas_or_spaces_separate(run, folder):
    for name, tasks in (("wide", "STS12,STSBenchmark"), ("narrow", "STS12 STSBenchmark")):
        run("evaluate", f"--model {name} --data_dir {folder} --tasks {tasks}", f"{name}.json")
    files, printed = run("compare", "wide.json narrow.json")
    assert "narrow.json - wide.json" in printed
    mixed, _ = run("compare", f"wide.json narrow --data_dir {folder} --tasks STS12 STSBenchmark")
    differences = files["differences"]["narrow.json"]
    assert differences["STS12"]["low"] < differences["STS12"]["difference"] < differences["STS12"]["high"]
    assert differences == mixed["differences"]["narrow"] and differences["average"]["high"] < 0
    assert Comparison.read("results.json").differences == mixed["differences"]


# --- tasks from the user's own files ---------------------------------------------------------------------------------


def test_scores_tasks_from_files_and_compares_them(run, tmp_path):
    write_user_tasks(tmp_path)
    more = [(f"x {text}", label) for text, label in labelled_rows(40)]
    write_rows(tmp_path / "more.csv", ["text", "label"], more)
    tasks = "--task classification=rows.csv --task retrieval=beir --task classification=more.csv"
    narrow, _ = run("evaluate", f"--model narrow {tasks}", "narrow.json")
    document, printed = run("evaluate", f"--model wide {tasks}", "wide.json")
    results = document["results"]
    assert list(results) == ["classification", "retrieval", "classification:more"]
    assert "scikit-learn" in document["versions"]
    comparison, compared = run("compare", "narrow.json wide.json")
    assert "classification accuracy" in compared and "Avg." not in compared
    assert compared.startswith("scores x 100\n"), "there is no correlation of STS, whose protocol would be named"
    for kind, metric in (("classification", "accuracy"), ("retrieval", "ndcg@10")):
        assert results[kind]["metrics"][0] == metric
        assert f"{kind}: {metric} " in printed and results[kind]["protocol"] in printed
        change = results[kind][metric] - narrow["results"][kind][metric]
        assert comparison["differences"]["wide.json"][kind]["difference"] == pytest.approx(change)
