"""`simcse-hf evaluate` and `simcse-hf compare`, from the command line to their files."""

import json
from pathlib import Path

import pytest
from cli_helpers import status
from evaluation_helpers import (
    BagOfWords,
    binary_pairs,
    labelled_rows,
    random_texts,
    write_beir,
    write_rows,
    write_sick,
    write_sts,
    write_stsb,
    write_transfer,
)

from simcse_hf.evaluation import Comparison, Evaluation, compare, evaluate, scoring


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
    sizes = {"wide": 64, "narrow": 2}

    def load(name, **loading):
        encoder = BagOfWords(sizes[name])
        encoder.name_or_path = name
        return encoder

    monkeypatch.setattr(scoring, "load_model", load)


@pytest.fixture
def run(capsys):
    """`run(command, line)` returns what a command writes to `--output`, and what it prints."""

    def run(command, line, output="results.json"):
        assert status(command, *line.split(), "--output", output, "--overwrite") == 0
        return json.loads(Path(output).read_text()), capsys.readouterr().out

    return run


def test_prints_a_table_and_writes_json(run, folder):
    line = f"--model wide --data_dir {folder} --verbose --aggregation wmean --geometry"
    document, printed = run("evaluate", line, "out/results.json")
    assert "Avg. over 3 of 7 tasks" in printed and "STS16 n/a" in printed and "STS12 MSRpar" in printed
    assert "alignment" in printed
    assert document["model"] == "wide" and "revision" in document
    assert document["protocol"]["aggregation"] == "wmean" and "torch" in document["versions"]
    results = document["results"]
    assert results["STS12"]["subsets"]["MSRpar"]["pairs"] == 30
    assert results["average"]["tasks"] == ["STS12", "STSBenchmark", "SICKRelatedness"]
    assert f"{results['average']['value']:.2f}" in printed
    assert results["geometry"]["sentences"] > 0


@pytest.mark.parametrize(("options", "prints"), [("", True), ("--quiet", False), ("--quiet --json", True)])
def test_quiet_prints_no_table_that_it_writes(options, prints, run, folder):
    document, printed = run("evaluate", f"--model wide --data_dir {folder} {options}")
    assert document["results"] and bool(printed) == prints


@pytest.mark.parametrize("names", ["STS12,STSBenchmark", "STS12 STSBenchmark"])
def test_tasks_are_named_with_commas_or_spaces(names, run, folder):
    document, _ = run("evaluate", f"--model wide --data_dir {folder} --tasks {names}")
    assert {"STS12", "STSBenchmark"} <= document["results"].keys()


def test_compares_result_files_with_models(run, folder, capsys):
    common = f"--data_dir {folder} --tasks STS12,STSBenchmark"
    for name in ("wide", "narrow"):
        run("evaluate", f"--model {name} {common}", f"{name}.json")
    files, printed = run("compare", "wide.json narrow.json")
    assert "narrow.json - wide.json" in printed
    assert status("compare", "wide.json", "narrow.json", "--data_dir", str(folder), "--tasks", "STS12") == 2
    assert "result files have their tasks: leave out" in capsys.readouterr().err
    mixed, _ = run("compare", f"wide.json narrow {common}")
    differences = files["differences"]["narrow.json"]
    assert differences["STS12"]["low"] < differences["STS12"]["difference"] < differences["STS12"]["high"]
    assert differences == mixed["differences"]["narrow"]
    assert Comparison.read("results.json").differences == mixed["differences"]


def test_a_script_gets_what_the_command_writes(run, folder):
    document, printed = run("evaluate", f"--model wide --data_dir {folder} --tasks STS12,STSBenchmark")
    evaluation = evaluate("wide", data_dir=folder, tasks=["STS12", "STSBenchmark"], output="mine.json")
    assert f"{evaluation}\n" == printed
    assert evaluation.to_dict()["results"] == document["results"] == Evaluation.read("mine.json").results
    assert Evaluation.read("mine.json").identity == evaluation.identity
    narrow = evaluate("narrow", data_dir=folder, tasks=["STS12", "STSBenchmark"], output="narrow.json")
    assert narrow.results["average"]["value"] < evaluation.results["average"]["value"]
    assert compare(["mine.json", "narrow.json"]).differences["narrow.json"]["average"]["high"] < 0


def test_files_are_written_although_nothing_can_be_printed(run, folder, monkeypatch):
    def fail(*words, **options):
        raise UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)")

    monkeypatch.setattr("builtins.print", fail)
    with pytest.raises(UnicodeEncodeError):
        status(
            "evaluate",
            "--model",
            "wide",
            "--data_dir",
            str(folder),
            "--tasks",
            "STS12",
            "--output",
            "e.json",
        )
    assert Evaluation.read("e.json").results["average"]["tasks"] == ["STS12"]


# --- tasks from the user's own files ---------------------------------------------------------------------------------


#: The headline metric of each kind of task, and the file of the task.
TASKS = {
    "classification": ("accuracy", "mine.csv"),
    "clustering": ("v_measure", "mine.csv"),
    "pairs": ("average_precision", "pairs.csv"),
    "reranking": ("map", "ranked.jsonl"),
    "retrieval": ("ndcg@10", "beir"),
}
HEADLINES = {kind: metric for kind, (metric, _) in TASKS.items()}
EVERY_TASK = " ".join(f"--task {kind}={file}" for kind, (_, file) in TASKS.items())


@pytest.fixture
def user_files(tmp_path):
    labelled = labelled_rows(40)
    write_rows(tmp_path / "mine.csv", ["text", "label"], labelled)
    write_rows(
        tmp_path / "more.csv",
        ["text", "label"],
        [(f"x {text}", label) for text, label in labelled],
    )
    write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(30))
    ranked = [(a, [b], random_texts(3, i)) for i, (a, b, _) in enumerate(binary_pairs(12, 1))]
    write_rows(tmp_path / "ranked.jsonl", ["query", "positive", "negative"], ranked)
    corpus = {f"d{i}": f"{text} {i}" for i, text in enumerate(random_texts(30, 5))}
    queries = {f"q{i}": corpus[f"d{i}"] for i in range(8)}
    write_beir(tmp_path / "beir", corpus, queries, {f"q{i}": {f"d{i}": 1} for i in range(8)})


def test_scores_tasks_from_files_and_compares_them(run, user_files):
    narrow = run(
        "evaluate",
        f"--model narrow {EVERY_TASK} --task classification=more.csv",
        "narrow.json",
    )[0]
    document, printed = run(
        "evaluate",
        f"--model wide {EVERY_TASK} --task classification=more.csv",
        "wide.json",
    )
    results = document["results"]
    assert list(results) == [*HEADLINES, "classification:more"] and "scikit-learn" in document["versions"]
    for kind, metric in HEADLINES.items():
        assert 0 <= results[kind][metric] <= 100 and results[kind]["metrics"][0] == metric
        assert f"{kind}: {metric} " in printed and results[kind]["protocol"] in printed
    assert {"mrr@10", "recall@100"} <= set(results["retrieval"])
    assert results["classification:more"]["source"].endswith("more.csv")

    comparison, printed = run("compare", "narrow.json wide.json")
    assert "classification accuracy" in printed and "retrieval ndcg@10" in printed and "Avg." not in printed
    assert printed.startswith("scores x 100\n"), "there is no correlation of STS, whose protocol would be named"
    differences = comparison["differences"]["wide.json"]
    for kind, metric in HEADLINES.items():
        assert differences[kind]["low"] <= differences[kind]["difference"] <= differences[kind]["high"]
        change = results[kind][metric] - narrow["results"][kind][metric]
        assert differences[kind]["difference"] == pytest.approx(change)


def test_tasks_from_files_stay_out_of_the_average_of_sts(run, folder, user_files):
    tasks = "--tasks STS12 --task classification=mine.csv --task clustering=mine.csv"
    results = json.loads(run("evaluate", f"--model wide --data_dir {folder} {tasks} --json")[1])["results"]
    assert results["average"]["tasks"] == ["STS12"] and "accuracy" in results["classification"]


def test_tasks_of_the_same_name_are_refused(user_files, capsys):
    for words, message in (
        (
            "--task pairs=pairs.csv " * 3,
            "another pairs task is named pairs. Rename one of the files",
        ),
        ("--task pairs=pairs.csv --pairs pairs.csv", "two tasks are named pairs"),
    ):
        assert status("evaluate", "--model", "wide", *words.split()) == 2
        assert message in capsys.readouterr().err
