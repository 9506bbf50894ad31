"""Averages, the table, and the files of results."""

import json

import numpy as np
import pytest

from simcse_hf.evaluation.report import Evaluation, add_averages, format_rows, write_results
from simcse_hf.evaluation.scoring import Protocol
from simcse_hf.runtime.identity import Identity


def make_results():
    """The results of three STS tasks and three transfer tasks, of each of which one is missing."""
    results = {
        "STS12": {
            "pairs": 3108,
            "subsets": {"MSRpar": {"pairs": 750, "spearman": 57.841, "pearson": 58.4}},
            "aggregate": {
                "all": {"spearman": 70.126, "pearson": 60.0},
                "mean": {"spearman": 50.0, "pearson": 40.0},
                "wmean": {"spearman": 55.0, "pearson": 45.0},
            },
        },
        "STS16": {"missing": "no folder STS16-en-test"},
        "STSBenchmark": {
            "splits": {"test": {"pairs": 1379, "spearman": 80.0, "pearson": 81.0}},
        },
        "MR": {"accuracy": 75.06, "dev_accuracy": 76.08, "examples": {"train": 10662}},
        "MRPC": {
            "accuracy": 71.706,
            "dev_accuracy": 73.55,
            "f1": 80.43,
            "examples": {"train": 4076, "test": 1725},
        },
        "CR": {"missing": "no folder CR"},
    }
    add_averages(results, Protocol())
    return results


# --- the table ---


def test_the_table_shows_the_scores_and_which_tasks_are_missing():
    lines = str(Evaluation(make_results(), {})).splitlines()
    assert lines[:5] == [
        "mode test, spearman, aggregation all, x 100",
        "STS12  STS16  STSBenchmark   Avg.",
        "70.13    n/a         80.00  75.06",
        "Avg. over 2 of 3 tasks",
        "STS16 n/a: no folder STS16-en-test",
    ]
    title, header, scores, *notes = lines[6:]
    assert title == "mode test, accuracy, x 100"
    assert header.split() == "MR MRPC CR Avg.".split()
    assert scores.split() == "75.06 71.71 n/a 73.38".split()
    assert notes == ["Avg. over 2 of 3 tasks", "CR n/a: no folder CR"]
    assert format_rows([["a", 1.0]], "model", "Avg.").splitlines()[1] == "a      1.00"


def test_details_show_every_subset_and_split_with_both_metrics():
    lines = [" ".join(line.split()) for line in Evaluation(make_results(), {}).details().splitlines()]
    assert "STS12 MSRpar 750 57.84 58.40" in lines
    assert "STS12 wmean 3108 55.00 45.00" in lines
    assert "STSBenchmark test 1379 80.00 81.00" in lines
    assert "MRPC: accuracy 71.71, dev 73.55, F1 80.43, train 4076, test 1725" in lines


# --- averages ---


def average(protocol, *tasks):
    results = {task: make_results()[task] for task in tasks}
    add_averages(results, protocol)
    return results["average"]


def test_the_average_uses_the_scores_of_the_protocol_and_there_is_none_over_missing_tasks():
    found = average(Protocol("test", "wmean", "pearson"), "STS12", "STSBenchmark", "STS16")
    assert found == {"value": (45.0 + 81.0) / 2, "tasks": ["STS12", "STSBenchmark"], "missing": ["STS16"]}
    missing = average(Protocol(), "STS16")
    assert missing == {"value": None, "tasks": [], "missing": ["STS16"]}
    assert "n/a" in str(Evaluation({"STS16": {"missing": "no folder"}, "average": missing}, {}))


# --- files ---


#: What an evaluation knows beside its scores.
BESIDE = {
    "protocol": Protocol("dev", "wmean", "pearson"),
    "identity": Identity("org/name", "4" * 40, max_length=32),
    "dataset_revisions": {"STS12": "6" * 40},
    "versions": {"torch": "2.9"},
    "date": "2026-01-31",
    "cost": {"megabytes": 1.0},
}


@pytest.fixture
def file(tmp_path):
    """The file of some results, in a folder that is made for it; their scores are beside it."""
    subset = {"predicted": np.array([0.1, 0.2]), "gold": np.array([1.0, 2.0])}
    scores = {
        "STS12": {"MSRpar": subset},
        "org/name": {"pairs": {"gold": np.array([3.0])}},
    }
    path = tmp_path / "new/results.json"
    write_results(path, Evaluation(make_results(), scores, **BESIDE).to_dict(), scores)
    return path


def test_results_and_scores_are_read_back(file):
    found = Evaluation.read(file)
    assert found.results == json.loads(file.read_text())["results"] == make_results()
    assert {name: getattr(found, name) for name in BESIDE} == BESIDE
    assert found.scores["STS12"]["MSRpar"]["predicted"].tolist() == [0.1, 0.2]
    assert found.scores["org/name"]["pairs"]["gold"].tolist() == [3.0]
    file.with_name("results.scores.npz").unlink()
    assert Evaluation.read(file).scores == {}


def test_a_file_of_scores_with_a_damaged_flag_is_named(file):
    scores = file.with_name("results.scores.npz")
    content = bytearray(scores.read_bytes())
    # The two headers of the first member, and the place of their flags.
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 0x01  # encryption
    scores.write_bytes(content)
    with pytest.raises(ValueError, match=r"results\.scores\.npz: damaged .*evaluate the model again"):
        Evaluation.read(file)


def test_a_result_file_names_scores_beside_it_only(tmp_path):
    (tmp_path / "inner").mkdir()
    np.savez(tmp_path / "secret.npz", **{"STS12/all/x": np.ones(1)})
    (tmp_path / "inner/e.json").write_text(json.dumps({"results": {}, "scores": "../secret.npz"}))
    assert Evaluation.read(tmp_path / "inner/e.json").scores == {}
