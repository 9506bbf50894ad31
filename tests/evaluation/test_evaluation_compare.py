"""Comparison of evaluations."""

import numpy as np
import pytest

from simcse_hf.evaluation import Evaluation, Protocol
from simcse_hf.evaluation.compare import compare_evaluations, format_comparison
from simcse_hf.evaluation.sts import score_subsets

random = np.random.RandomState(0)
GOLD = {"a": random.rand(200), "b": random.rand(300)}


def evaluation(noise, seed, stored=True, accuracy=None):
    drawn = np.random.RandomState(seed)
    parts = {}
    for part, gold in GOLD.items():
        predicted = gold + noise * drawn.randn(len(gold))
        parts[part] = {"predicted": predicted, "gold": gold, "group": np.arange(len(gold))}
    results = {"STS12": score_subsets("STS12", parts), "STS16": {"missing": "no folder"}}
    scores = {"STS12": parts}
    if accuracy is not None:
        correct = drawn.rand(500) < accuracy
        results["MR"] = {"accuracy": 100 * correct.mean(), "dev_accuracy": 1.0, "examples": {"train": 500}}
        scores["MR"] = {"MR": {"correct": correct, "gold": np.arange(500) % 2, "group": np.arange(500)}}
    results["average"] = {"value": 1.0, "tasks": [], "missing": []}
    return Evaluation(results, scores if stored else {})


def test_the_interval_of_a_clear_difference_excludes_zero():
    pair = {"good": evaluation(0.2, 1, accuracy=0.8), "bad": evaluation(0.6, 2, accuracy=0.6)}
    comparison = compare_evaluations(pair)
    assert comparison["baseline"] == "good" and comparison["tasks"] == ["STS12", "STS16", "MR"]
    for task in ("STS12", "MR", "average", "average_transfer"):
        result = comparison["differences"]["bad"][task]
        assert result["low"] < result["difference"] < result["high"] < 0
    good, bad = comparison["scores"].values()
    assert bad["STS16"] is None
    assert comparison["differences"]["bad"]["STS12"]["difference"] == pytest.approx(bad["STS12"] - good["STS12"])
    assert comparison["averages"]["average"]["tasks"] == ["STS12"]


def test_a_comparison_uses_the_scores_of_the_protocol():
    pair = {"x": evaluation(0.3, 0), "y": evaluation(0.4, 1)}
    result = compare_evaluations(pair, Protocol(aggregation="wmean", metric="pearson"))
    assert result["scores"]["x"]["STS12"] == pair["x"].results["STS12"]["aggregate"]["wmean"]["pearson"]


def test_a_comparison_without_stored_scores_has_no_interval():
    comparison = compare_evaluations({"x": evaluation(0.3, 0), "y": evaluation(0.4, 1, stored=False)})
    result = comparison["differences"]["y"]["STS12"]
    assert result["low"] is None and result["difference"] < 0
    assert "n/a" in format_comparison(comparison).splitlines()[-1]


def test_the_formatted_comparison_has_a_row_per_model_and_per_difference():
    comparison = compare_evaluations({"x": evaluation(0.2, 0), "y": evaluation(0.6, 1), "z": evaluation(0.3, 2)})
    rows = [line.split() for line in format_comparison(comparison).splitlines()]
    assert rows[2] == ["STS12", "STS16", "Avg."]
    assert [row[0] for row in rows[3:6]] == ["x", "y", "z"] and rows[3][2] == "n/a"
    assert ["y", "-", "x", "95%", "interval"] in rows and ["z", "-", "x", "95%", "interval"] in rows


def test_scores_of_another_split_are_not_resampled():
    results = {"STSBenchmark": {"splits": {split: {"spearman": 50.0} for split in ("dev", "test")}}}
    named = {"predicted": random.rand(90), "gold": random.rand(90), "group": np.arange(90)}
    pair = {name: Evaluation(results, {"STSBenchmark": {"test": named}}) for name in ("x", "y")}
    compare_evaluations(pair, Protocol(mode="test"), resamples=10)
    with pytest.raises(ValueError, match="STSBenchmark: mode dev compares the split dev, but .* are of test"):
        compare_evaluations(pair, Protocol(mode="dev"), resamples=10)
    pair = {name: evaluation(0.3, seed, accuracy=0.7) for seed, name in enumerate("xy")}
    assert compare_evaluations(pair, Protocol(mode="dev"))["differences"]["y"]["MR"]["low"] is None


def test_the_resamples_of_tasks_are_independent():
    one, other = ({"x": evaluation(0.2, i), "y": evaluation(0.6, i + 1)} for i in (0, 2))
    both = {}
    for name in "xy":
        parts = {"STS12": one[name], "STS13": other[name]}
        both[name] = Evaluation(
            {task: each.results["STS12"] for task, each in parts.items()},
            {task: each.scores["STS12"] for task, each in parts.items()},
        )
    drawn = compare_evaluations(both, resamples=200)["differences"]["y"]["STS13"]
    alone = compare_evaluations(other, resamples=200)["differences"]["y"]["STS12"]
    assert drawn["difference"] == alone["difference"] and drawn["low"] != alone["low"]


def test_accuracies_alone_make_the_average_as_in_the_table_of_one_model():
    pair = {name: evaluation(0.3, seed, accuracy=0.7) for seed, name in enumerate("xy")}
    for each in pair.values():
        del each.results["STS12"]
    averages = compare_evaluations(pair, resamples=10)["averages"]
    assert averages["average"]["tasks"] == ["MR"] and "average_transfer" not in averages


def test_the_same_answers_do_not_mean_that_two_models_are_equal():
    pair = {name: evaluation(0.3, 0, accuracy=0.7) for name in "xy"}
    differences = compare_evaluations(pair, resamples=10)["differences"]["y"]
    for task in ("MR", "average_transfer"):  # Wilson's interval for 0 of 500 rows
        assert [differences[task]["low"], differences[task]["high"]] == pytest.approx([-0.7624, 0.7624], abs=1e-3)
    assert differences["STS12"]["low"] == differences["STS12"]["high"] == 0
