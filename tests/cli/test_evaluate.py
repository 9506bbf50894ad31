"""`simcse-hf evaluate` and `simcse-hf compare`, from the command line to their files."""

import json

import pytest
from conftest import tiny_config
from evaluation_helpers import random_pairs, write, write_sick, write_sts, write_stsb, write_transfer
from transformers import BertModel

from simcse_hf.cli.evaluate import compare_main, evaluate_main
from simcse_hf.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downstream")
    write_sts(folder, "STS12")
    write_stsb(folder)
    write_sick(folder)
    write_transfer(folder)
    return folder


@pytest.fixture(autouse=True)
def encoders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "cli_encoders.py",
        [
            "from evaluation_helpers import BagOfWords",
            "def wide(): return BagOfWords(64)",
            "def narrow(): return BagOfWords(2)",
        ],
    )


def test_prints_a_table_and_writes_json(folder, tmp_path, capsys):
    output = tmp_path / "out/results.json"
    words = ["--model", "cli_encoders:wide", "--data_dir", str(folder), "--output", str(output), "--verbose"]
    assert evaluate_main([*words, "--aggregation", "wmean", "--geometry"]) == 0
    printed = capsys.readouterr().out
    assert "Avg. over 3 of 7 tasks" in printed and "STS16 n/a" in printed and "STS12 MSRpar" in printed
    assert "alignment" in printed
    document = json.loads(output.read_text())
    assert document["model"] == "cli_encoders:wide" and "revision" in document
    assert document["protocol"]["aggregation"] == "wmean" and "torch" in document["versions"]
    results = document["results"]
    assert results["STS12"]["subsets"]["MSRpar"]["pairs"] == 30
    assert results["average"]["tasks"] == ["STS12", "STSBenchmark", "SICKRelatedness"]
    assert f"{results['average']['value']:.2f}" in printed
    assert results["geometry"]["sentences"] > 0


def test_scores_only_the_requested_tasks(folder, capsys):
    assert (
        evaluate_main(
            ["--model", "cli_encoders:wide", "--data_dir", str(folder), "--tasks", "TREC,STS12", "--mode", "fasttest"]
            + ["--device", "cpu"]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "TREC" in printed and "STS12" in printed and "accuracy" in printed


def test_scores_a_file_of_pairs_without_a_data_dir(save_checkpoint, tmp_path, capsys):
    path = write(tmp_path / "mine.tsv", [f"{score}\t{a}\t{b}" for a, b, score in random_pairs(20, 0)])
    output = tmp_path / "r.json"
    words = [
        "--model",
        str(save_checkpoint(BertModel(tiny_config()))),
        "--pooler",
        "avg",
        "--pairs",
        str(path),
        "--output",
        str(output),
    ]
    assert evaluate_main(words) == 0
    assert "mine" in capsys.readouterr().out
    document = json.loads(output.read_text())
    assert document["pooler"] == "avg" and document["results"]["mine"]["pairs"] == 20


def test_compares_result_files_with_models(folder, tmp_path, capsys):
    common = ["--data_dir", str(folder), "--tasks", "STS12,STSBenchmark"]
    for name in ("wide", "narrow"):
        evaluate_main(["--model", f"cli_encoders:{name}", *common, "--output", f"{name}.json"])
    capsys.readouterr()
    assert compare_main(["wide.json", "narrow.json", "--output", "files.json"]) == 0
    assert "narrow.json - wide.json" in capsys.readouterr().out
    assert compare_main(["wide.json", "cli_encoders:narrow", *common, "--output", "mixed.json"]) == 0
    files, mixed = (json.loads((tmp_path / name).read_text()) for name in ("files.json", "mixed.json"))
    differences = files["differences"]["narrow.json"]
    assert differences["STS12"]["low"] < differences["STS12"]["difference"] < differences["STS12"]["high"]
    assert differences == mixed["differences"]["cli_encoders:narrow"]


def test_refuses_to_compare_results_of_another_mode(folder):
    evaluate_main(
        ["--model", "cli_encoders:wide", "--data_dir", str(folder), "--tasks", "STS12", "--output", "a.json"]
    )
    with pytest.raises(ValueError, match="a.json was evaluated with mode 'test', not 'dev'"):
        compare_main(["a.json", "cli_encoders:narrow", "--data_dir", str(folder), "--mode", "dev"])


@pytest.mark.parametrize(
    "words, message",
    [
        (["evaluate", "--model", "x:y"], "nothing to evaluate"),
        (["evaluate", "--model", "x:y", "--data_dir", "d", "--mode", "train"], "invalid choice: 'train'"),
        (["evaluate", "--model", "x:y", "--data_dir", "d", "--task_set", "sts", "--tasks", "MR"], "not allowed with"),
        (["compare", "a", "a"], "at least two different"),
        (["compare", "a", "b"], "give --data_dir or --pairs"),
    ],
)
def test_wrong_usage_ends_with_status_2(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "cli_encoders:none", "--data_dir", "."], "has no function 'none'"),
        (["--model", "cli_encoders:wide", "--data_dir", "absent"], "data_dir absent does not exist"),
        (["--model", "cli_encoders:wide", "--data_dir", ".", "--tasks", "STS99"], "unknown task STS99"),
    ],
)
def test_invalid_input_gives_a_one_line_error(words, message, capsys):
    assert main(["evaluate", *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("simcse-hf evaluate: error: ") and message in error
