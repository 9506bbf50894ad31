"""Averages, the table, and the files of results."""

import json

import numpy as np
import pytest

from simcse_hf.evaluation.report import Evaluation, add_averages, describe_protocol, read_results, write_results
from simcse_hf.evaluation.scoring import Protocol


def results():
    values = {"all": (70.126, 60.0), "mean": (50.0, 40.0), "wmean": (55.0, 45.0)}
    aggregate = {name: {"spearman": first, "pearson": second} for name, (first, second) in values.items()}
    subsets = {"MSRpar": {"pairs": 750, "spearman": 57.841, "pearson": 58.4}}
    result = {
        "STS12": {"pairs": 3108, "subsets": subsets, "aggregate": aggregate},
        "STS16": {"missing": "no folder STS16-en-test"},
        "STSBenchmark": {"splits": {"test": {"pairs": 1379, "spearman": 80.0, "pearson": 81.0}}},
        "MR": {"accuracy": 75.06, "dev_accuracy": 76.08, "examples": {"train": 10662}},
        "MRPC": {"accuracy": 71.706, "dev_accuracy": 73.55, "f1": 80.43, "examples": {"train": 4076, "test": 1725}},
        "CR": {"missing": "no folder CR"},
    }
    add_averages(result, tuple(result), Protocol())
    return result


def test_the_table_shows_missing_tasks_and_the_number_of_averaged_tasks():
    lines = str(Evaluation(results(), {})).splitlines()
    assert lines[:5] == [
        "mode test, spearman, aggregation all, x 100",
        "STS12  STS16  STSBenchmark   Avg.",
        "70.13    n/a         80.00  75.06",
        "Avg. over 2 of 3 tasks",
        "STS16 n/a: no folder STS16-en-test",
    ]
    assert lines[6] == "mode test, accuracy, x 100" and lines[7].split() == ["MR", "MRPC", "CR", "Avg."]
    assert lines[8].split() == ["75.06", "71.71", "n/a", "73.38"]
    assert lines[9:] == ["Avg. over 2 of 3 tasks", "CR n/a: no folder CR"]
    assert "0.00" not in " ".join(lines).split()


def test_the_average_uses_the_scores_of_the_protocol():
    result = results()
    add_averages(result, ("STS12", "STSBenchmark", "STS16"), Protocol("test", "wmean", "pearson"))
    assert result["average"] == {"value": 63.0, "tasks": ["STS12", "STSBenchmark"], "missing": ["STS16"]}
    add_averages(result, ("STS16",), Protocol())
    assert result["average"] == {"value": None, "tasks": [], "missing": ["STS16"]}
    assert "n/a" in str(Evaluation({"STS16": result["STS16"], "average": result["average"]}, {}))


def test_results_are_written_and_read_back(tmp_path):
    subset = {"predicted": np.array([0.1, 0.2]), "gold": np.array([1.0, 2.0])}
    scores = {"STS12": {"MSRpar": subset}, "org/name": {"pairs": {"gold": np.array([3.0])}}}
    document = {"model": "m", "protocol": describe_protocol(Protocol()), "results": results()}
    write_results(tmp_path / "new" / "results.json", document, scores)
    written = json.loads((tmp_path / "new/results.json").read_text())
    assert written["results"]["STS12"]["aggregate"]["wmean"]["spearman"] == 55.0
    assert written["protocol"]["metric"] == "spearman"
    settings = {"optimizer": "adam", "batch_size": 64, "tenacity": 5, "epoch_size": 4, "folds": 10}
    assert written["protocol"]["classifier"].items() >= settings.items()
    fast = {"optimizer": "rmsprop", "batch_size": 128, "tenacity": 3, "epoch_size": 2, "folds": 5}
    assert describe_protocol(Protocol("fasttest"))["classifier"].items() >= fast.items()
    read, read_scores = read_results(tmp_path / "new/results.json")
    assert read["results"] == written["results"]
    assert read_scores["org/name"]["pairs"]["gold"].tolist() == [3.0]
    assert read_scores["STS12"]["MSRpar"]["predicted"].tolist() == [0.1, 0.2]
    (tmp_path / "new/results.scores.npz").unlink()
    assert read_results(tmp_path / "new/results.json")[1] == {}


@pytest.mark.parametrize("flag", [0x01, 0x40], ids=["encryption", "strong encryption"])
def test_a_file_of_scores_with_a_damaged_flag_is_named(tmp_path, flag):
    write_results(tmp_path / "e.json", {"results": {}}, {"STS12": {"all": {"predicted": np.ones(3)}}})
    content = bytearray((tmp_path / "e.scores.npz").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the headers of a member, and their flags
        content[content.index(signature) + offset] |= flag
    (tmp_path / "e.scores.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"e\.scores\.npz: damaged .*evaluate the model again"):
        read_results(tmp_path / "e.json")
