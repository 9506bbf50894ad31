"""`simcse-hf analyze`: from models, result files, runs and searches to a folder with a report."""

import json
import sys

import pytest

pytest.importorskip("matplotlib", reason="needs the extra plot")
pytest.importorskip("adjustText", reason="needs the extra plot")

from evaluation_helpers import write, write_stsb

from simcse_hf.cli.analyze import analyze_main, unique_names
from simcse_hf.cli.main import main
from simcse_hf.evaluation.report import read_results

MODELS = """
from evaluation_helpers import BagOfWords
class Broken(BagOfWords):
    def encode(self, texts):
        return super().encode(texts) * float("nan")
def small(): return BagOfWords(8)
def large(): return BagOfWords(64)
def broken(): return Broken(8)
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "analysed", raising=False)
    (tmp_path / "analysed.py").write_text(MODELS)
    write_stsb(tmp_path / "data")
    run = tmp_path / "run"
    run.mkdir()
    (run / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}]}))
    return tmp_path


def analyze(*words):
    return main(["analyze", "--resamples", "20", "--output", "out", "--tasks", "STSBenchmark", *words])


def test_models_are_compared_and_their_results_can_be_analysed_again(workplace, capsys):
    models = ["--model", "analysed:small", "analysed:large", "--data_dir", "data", "--names", "small", "large"]
    assert analyze(*models, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["models"]) == ["small", "large"] and document["comparison"]["baseline"] == "small"
    names = ["alignment_uniformity", "singular_values", "cosine_densities"]
    assert [picture["name"] for picture in document["pictures"]] == names
    for name in names:
        assert all((workplace / f"out/{name}.{ending}").is_file() for ending in ("png", "svg", "csv"))
    report = (workplace / "out/report.html").read_text()
    assert "Nearest neighbours" in report and "Differences to small" in report
    files = sorted(map(str, (workplace / "out/results").glob("*.json")))
    assert read_results(files[0])[1]["STSBenchmark"]["test"]["predicted"].shape == (40,)
    assert main(["analyze", "--resamples", "20", "--output", "again", "--model", *files, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert list(again["models"]) == ["1-small", "2-large"]
    assert again["models"]["1-small"]["intervals"] == document["models"]["small"]["intervals"]


def test_a_model_that_cannot_be_measured_is_told_and_the_others_are_kept(workplace, capsys):
    assert analyze("--model", "analysed:broken", "analysed:large", "--data_dir", "data") == 1
    assert "not shown: model analysed:broken: " in capsys.readouterr().out
    assert list(json.loads((workplace / "out/analysis.json").read_text())["models"]) == ["analysed:large"]
    assert analyze("--model", "analysed:broken", "--data_dir", "data", "--overwrite") == 2
    assert (workplace / "out/report.html").is_file()  # the earlier one


def test_a_run_alone_is_drawn_and_a_model_folder_with_a_log_counts_as_a_run(workplace, capsys):
    assert main(["analyze", "--run", "run", "--output", "out"]) == 0
    text = capsys.readouterr().out
    assert "out/training_curves.png" in text and "not shown: alignment and uniformity during training: run" in text
    with pytest.raises(SystemExit):  # a model needs data
        main(["analyze", "--model", "run", "--output", "other"])
    assert "give --data_dir" in capsys.readouterr().err


def test_neighbours_come_from_the_file_of_sentences(workplace, capsys):
    write(workplace / "mine.txt", ["a cat sleeps", "the cat sleeps", "a red tree", "the old house"])
    assert analyze("--model", "analysed:large", "--data_dir", "data", "--sentences", "mine.txt", "--json") == 0
    neighbours = json.loads(capsys.readouterr().out)["models"]["analysed:large"]["neighbours"]
    assert neighbours[0]["query"] == "a cat sleeps" and neighbours[0]["neighbours"][0]["text"] == "the cat sleeps"


def test_without_sts_b_the_geometry_is_left_out_with_a_reason(workplace, capsys):
    write(workplace / "pairs.tsv", [f"{i % 5}\ta cat {i}\tthe cat {i // 2}" for i in range(20)])
    assert main(["analyze", "--model", "analysed:large", "--pairs", "pairs.tsv", "--output", "out", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["omitted"]["geometry"] == "it is measured on STS-B, which is missing (no --data_dir was given)"
    assert [picture["name"] for picture in document["pictures"]] == ["cosine_densities"]


def test_an_access_token_on_the_command_line_is_hidden_in_the_report(workplace):
    token = "hf_" + "a" * 34
    assert main(["analyze", "--run", "run", "--output", f"out-{token}"]) == 0
    assert token not in (workplace / f"out-{token}/report.html").read_text()


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "there is nothing to analyse"),
        (["--run", "run", "run"], "run is named twice"),
        (["--run", "data"], "holds no training run"),
        (["--run", "run", "--confidence", "2"], "--confidence must lie between 0 and 1"),
        (["--model", "a", "b", "--names", "x", "x", "--data_dir", "data"], "--names must give 2 different names"),
        (["--grid", "absent.json"], "absent.json"),
    ],
)
def test_wrong_usage_is_one_message(workplace, words, message, capsys):
    try:
        status = main(["analyze", *words, "--output", "out"])
    except SystemExit as ended:
        status = ended.code
    assert status == 2 and message in capsys.readouterr().err
    assert not (workplace / "out").exists()


def test_a_missing_library_is_told_before_any_work(workplace, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"simcse-hf\[plot\]"):
        analyze_main(["--model", "absent-model", "--data_dir", "data", "--output", "out"])


def test_names_are_the_last_parts_that_tell_paths_apart():
    assert unique_names(["a/b/model", "a/c/model", "other"]) == ["b/model", "c/model", "other"]
    assert unique_names(["results/one.json", "princeton-nlp/x"]) == ["one", "x"]
    assert unique_names([]) == []
