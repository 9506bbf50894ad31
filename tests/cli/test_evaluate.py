"""`simcse-hf evaluate` and `simcse-hf compare`, from the command line to their files."""

import json

import pytest
from conftest import tiny_config
from evaluation_helpers import (
    BagOfWords,
    random_pairs,
    random_texts,
    write,
    write_sick,
    write_sts,
    write_stsb,
    write_transfer,
)
from transformers import BertModel

from simcse_hf.cli import evaluate
from simcse_hf.cli.common import load_in_each_process
from simcse_hf.cli.evaluate import compare_main, evaluate_main
from simcse_hf.cli.main import main


class Bag(BagOfWords):
    revision = pooler_type = max_length = postprocessing = None
    long_texts, similarity_fn_name = "cut", "cosine"


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

    def load(name, arguments):
        return Bag(sizes[name]) if name in sizes else load_in_each_process(name, arguments)

    monkeypatch.setattr(evaluate, "load_in_each_process", load)


def test_prints_a_table_and_writes_json(folder, tmp_path, capsys):
    output = tmp_path / "out/results.json"
    words = ["--model", "wide", "--data_dir", str(folder), "--output", str(output), "--verbose"]
    assert evaluate_main([*words, "--aggregation", "wmean", "--geometry"]) == 0
    printed = capsys.readouterr().out
    assert "Avg. over 3 of 7 tasks" in printed and "STS16 n/a" in printed and "STS12 MSRpar" in printed
    assert "alignment" in printed
    document = json.loads(output.read_text())
    assert document["model"] == "wide" and "revision" in document
    assert document["protocol"]["aggregation"] == "wmean" and "torch" in document["versions"]
    results = document["results"]
    assert results["STS12"]["subsets"]["MSRpar"]["pairs"] == 30
    assert results["average"]["tasks"] == ["STS12", "STSBenchmark", "SICKRelatedness"]
    assert f"{results['average']['value']:.2f}" in printed
    assert results["geometry"]["sentences"] > 0


def test_scores_only_the_requested_tasks(folder, capsys):
    words = ["--model", "wide", "--data_dir", str(folder), "--tasks", "TREC,STS12", "--mode", "fasttest"]
    assert evaluate_main([*words, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "TREC" in printed and "STS12" in printed and "accuracy" in printed


def test_scores_a_file_of_pairs_without_a_data_dir(save_checkpoint, tmp_path, capsys):
    path = write(tmp_path / "mine.tsv", [f"{score}\t{a}\t{b}" for a, b, score in random_pairs(20, 0)])
    output = tmp_path / "r.json"
    model = save_checkpoint(BertModel(tiny_config()))
    assert evaluate_main(f"--model {model} --pooler avg --pairs {path} --output {output}".split()) == 0
    assert "mine" in capsys.readouterr().out
    document = json.loads(output.read_text())
    assert document["pooler"] == "avg" and document["results"]["mine"]["pairs"] == 20


def test_compares_result_files_with_models(folder, tmp_path, capsys):
    common = ["--data_dir", str(folder), "--tasks", "STS12,STSBenchmark"]
    for name in ("wide", "narrow"):
        evaluate_main(["--model", name, *common, "--output", f"{name}.json"])
    capsys.readouterr()
    assert compare_main(["wide.json", "narrow.json", "--output", "files.json"]) == 0
    assert "narrow.json - wide.json" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        compare_main(["wide.json", "narrow.json", "--tasks", "STS12"])
    assert "result files have their tasks: leave out" in capsys.readouterr().err
    assert compare_main(["wide.json", "narrow", *common, "--output", "mixed.json"]) == 0
    files, mixed = (json.loads((tmp_path / name).read_text()) for name in ("files.json", "mixed.json"))
    differences = files["differences"]["narrow.json"]
    assert differences["STS12"]["low"] < differences["STS12"]["difference"] < differences["STS12"]["high"]
    assert differences == mixed["differences"]["narrow"]


# --- tasks from the user's own files ---------------------------------------------------------------------------------


HEADLINES = {
    "classification": "accuracy",
    "clustering": "v_measure",
    "pairs": "average_precision",
    "reranking": "map",
    "retrieval": "ndcg@10",
}


@pytest.fixture
def user_files(tmp_path):
    texts = [(f"{label} {label} {text}", label) for label in ("good", "bad") for text in random_texts(20, len(label))]
    labelled = [f"{text},{label}" for text, label in dict.fromkeys(texts)]
    write(tmp_path / "mine.csv", ["text,label", *labelled])
    write(tmp_path / "more.csv", ["text,label", *(f"x {line}" for line in labelled)])
    pairs = [f"{a} {i},{b} {i},{int(score > 2.5)}" for i, (a, b, score) in enumerate(random_pairs(30, 0))]
    write(tmp_path / "pairs.csv", ["sentence1,sentence2,label", *pairs])
    ranked = []
    for i, (a, b, _) in enumerate(random_pairs(12, 1)):
        ranked.append(json.dumps({"query": a, "positive": [f"{b} {i}"], "negative": random_texts(3, i)}))
    write(tmp_path / "ranked.jsonl", ranked)
    found = random_texts(30, 5)
    write(
        tmp_path / "beir/corpus.jsonl", [json.dumps({"_id": f"d{i}", "text": f"{t} {i}"}) for i, t in enumerate(found)]
    )
    write(tmp_path / "beir/queries.jsonl", [json.dumps({"_id": f"q{i}", "text": found[i]}) for i in range(8)])
    write(tmp_path / "beir/qrels/test.tsv", ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(8))])
    files = ("mine.csv", "mine.csv", "pairs.csv", "ranked.jsonl", "beir")
    return [
        word for kind, file in zip(HEADLINES, files, strict=True) for word in ("--task", f"{kind}={tmp_path / file}")
    ]


def test_scores_tasks_from_files_and_compares_them(user_files, tmp_path, capsys):
    for name in ("wide", "narrow"):
        words = ["--model", name, "--output", f"{name}.json", *user_files]
        assert evaluate_main([*words, "--task", f"classification={tmp_path / 'more.csv'}"]) == 0
    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "wide.json").read_text())
    results = document["results"]
    assert list(results) == [*HEADLINES, "classification:more"] and "scikit-learn" in document["versions"]
    for kind, metric in HEADLINES.items():
        assert 0 <= results[kind][metric] <= 100 and results[kind]["metrics"][0] == metric
        assert f"{kind}: {metric} " in printed and results[kind]["protocol"] in printed
    assert {"mrr@10", "recall@100"} <= set(results["retrieval"])
    assert results["classification:more"]["source"].endswith("more.csv")

    assert compare_main(["narrow.json", "wide.json", "--output", "c.json"]) == 0
    printed = capsys.readouterr().out
    assert "classification accuracy" in printed and "retrieval ndcg@10" in printed and "Avg." not in printed
    comparison = json.loads((tmp_path / "c.json").read_text())
    narrow = json.loads((tmp_path / "narrow.json").read_text())["results"]
    for kind, metric in HEADLINES.items():
        difference = comparison["differences"]["wide.json"][kind]
        assert difference["low"] <= difference["difference"] <= difference["high"]
        assert difference["difference"] == pytest.approx(results[kind][metric] - narrow[kind][metric])
    # Models are compared as result files are.
    assert compare_main(["narrow", "wide.json", "--resamples", "50", *user_files, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["differences"]["wide.json"]["pairs"]["difference"]
    assert again == pytest.approx(comparison["differences"]["wide.json"]["pairs"]["difference"])


def test_tasks_from_files_stay_out_of_the_average_of_sts(folder, user_files, capsys):
    words = ["--model", "wide", "--data_dir", str(folder), "--tasks", "STS12", *user_files[:4]]
    assert evaluate_main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["average"]["tasks"] == ["STS12"] and "accuracy" in results["classification"]


def test_results_on_other_rows_are_not_compared(user_files, tmp_path):
    for name, file in (("wide", "mine.csv"), ("narrow", "more.csv")):
        task = f"classification={tmp_path / file}"
        evaluate_main(["--model", name, "--output", f"{name}.json", "--task", task])
    with pytest.raises(ValueError, match="classification: narrow.json and wide.json were not evaluated on the same"):
        compare_main(["wide.json", "narrow.json"])


def test_tasks_of_the_same_name_are_refused(user_files, tmp_path, capsys):
    model = ["--model", "wide"]
    twice = ["--task", f"pairs={tmp_path / 'pairs.csv'}", "--task", f"pairs={tmp_path / 'pairs.csv'}"]
    assert main(["evaluate", *model, *twice, "--task", f"pairs={tmp_path / 'pairs.csv'}"]) == 2
    assert "another pairs task is named pairs. Rename one of the files" in capsys.readouterr().err
    assert main(["evaluate", *model, *twice[:2], "--pairs", str(tmp_path / "pairs.csv")]) == 2
    assert "two tasks are named pairs" in capsys.readouterr().err
