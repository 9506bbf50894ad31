"""The paired bootstrap against samples that are really drawn out, and comparisons with its intervals."""

from functools import partial

import numpy as np
import pytest
import scipy.stats
from evaluation_helpers import compare_systems, labelled_rows, write_rows
from sklearn.metrics import average_precision_score, f1_score, v_measure_score

from simcse_hf import paired_interval, read_task
from simcse_hf.evaluation import Evaluation, Protocol
from simcse_hf.evaluation.bootstrap import (
    counted_average_precision,
    counted_correlation,
    counted_macro_f1,
    counted_v_measure,
    groups_to_draw,
    interval,
    optimism_of_choice,
    resampled_scores,
    widen,
)
from simcse_hf.evaluation.tasks import TaskResult
from simcse_hf.evaluation.tasks.senteval import score_subsets

random = np.random.RandomState(0)

# --- statistics of a sample that is given by the number of times that each example occurs ---

X, Y = random.randn(2, 40)
GROUPS = random.randint(4, size=40)
CLUSTERS = random.randint(3, size=40)


def spearman(x, y):
    return scipy.stats.spearmanr(x, y)[0]


def pearson(x, y):
    return scipy.stats.pearsonr(x, y)[0]


def average_precision(similarity, gold):
    return average_precision_score(gold, similarity)


def macro_f1(assigned, gold):
    """Of one label, of which a sample may have no row."""
    return f1_score(gold, assigned) if gold.any() else np.nan


def counted_f1(assigned, gold, counts):
    return counted_macro_f1(assigned[:, None] > 0, gold[:, None] > 0, counts)


#: What is scored, its gold values, and the statistic of counted and of written-out samples.
STATISTICS = {
    "spearman": (X, Y, partial(counted_correlation, metric="spearman"), spearman),
    "pearson": (X, Y, partial(counted_correlation, metric="pearson"), pearson),
    "average precision": (X, GROUPS > 2, counted_average_precision, average_precision),
    "v measure": (CLUSTERS, GROUPS, counted_v_measure, v_measure_score),
    "F1": (X > 0, GROUPS > 2, counted_f1, macro_f1),
}


def drawn(groups, samples, drawing):
    """How often each example occurs in each sample of whole groups."""
    n = groups.max() + 1
    return np.stack([np.bincount(row, minlength=n)[groups] for row in drawing.integers(n, size=(samples, n))])


@pytest.fixture
def counts():
    """How often each of 40 examples occurs in each of 20 samples."""
    return drawn(np.arange(40), 20, np.random.default_rng(1))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_resampled_statistics_equal_those_of_the_written_out_sample(statistic, ties, counts):
    x, y, counted, definition = STATISTICS[statistic]
    if ties:
        x = np.round(x)
        y = np.round(y)
    for value, count in zip(counted(x, y, counts), counts, strict=True):
        written_out_x = np.repeat(x, count)
        written_out_y = np.repeat(y, count)
        assert value == pytest.approx(definition(written_out_x, written_out_y))


def test_samples_that_a_statistic_is_not_defined_for_have_a_limit_or_no_number(counts):
    one = np.zeros(40, dtype=int)
    assert np.isnan(counted_average_precision(X, one, counts)).all()
    assert (counted_v_measure(one, one, counts) == 1).all()


# --- scores of subsets ---


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
def test_systems_are_scored_on_the_same_resamples_by_the_aggregation(aggregation):
    subsets = evaluation(0.5, 4).scores["STS12"]
    protocol = Protocol(aggregation=aggregation, metric="pearson")
    scores = resampled_scores([subsets, subsets], protocol, 5, np.random.default_rng(3))
    assert scores.shape == (2, 5) and np.array_equal(scores[0], scores[1])
    drawing = np.random.default_rng(3)
    sample = {}
    for name, part in subsets.items():
        fifth = drawn(part["group"], 5, drawing)[4]
        sample[name] = {each: np.repeat(part[each], fifth) for each in ("predicted", "gold")}
    expected = score_subsets("STS12", sample)["aggregate"][aggregation]["pearson"]
    assert scores[0, 4] == pytest.approx(expected)


# --- groups of rows that share texts ---


def standard_error(copies, by_row=False):
    """That of the mean of 100 answers, each of them `copies` times in one group, in a shuffled order."""
    order = np.random.RandomState(1).permutation(100 * copies)
    answer = np.repeat(np.arange(100), copies)[order]
    group = np.arange(len(answer)) if by_row else answer
    correct = (answer % 4 > 0).astype(float)
    part = {"part": {"correct": correct, "group": group}}
    [scores] = resampled_scores([part], resamples=10_000)  # more than fit into memory at once
    assert len(scores) == 10_000
    return scores.std()


def test_rows_that_share_a_text_count_as_one():
    assert standard_error(copies=9) == pytest.approx(standard_error(copies=1), rel=0.05)
    assert standard_error(copies=9) == pytest.approx(3 * standard_error(copies=9, by_row=True), rel=0.1)


def answers(correct_rows_of_three):
    """Groups of three rows, of which so many are right."""
    group = np.arange(90) // 3
    correct = np.arange(90) % 3 < correct_rows_of_three[group]
    return {"part": {"correct": correct, "gold": np.ones(90), "group": group}}


def test_a_difference_that_is_the_same_in_every_group_has_wilsons_interval():
    """In each group, one system is right in one row of three more than the other, be it two or all three of them."""
    right = 1 + np.arange(30) % 2
    systems = [answers(right), answers(right + 1)]
    first, second = resampled_scores(systems)
    assert np.ptp(second - first) < 1e-12
    wilson = scipy.stats.binomtest(10, 30).proportion_ci(method="wilson")
    ends = interval(second - first, 0.95, systems[:1])
    assert ends == pytest.approx([100 * wilson.low, 100 * wilson.high])


@pytest.mark.parametrize("pairs, is_known", [(4, False), (5, True)])
def test_a_correlation_of_fewer_than_five_pairs_says_nothing_about_others(pairs, is_known):
    gold = np.arange(pairs)
    first, second = ({"dev": {"predicted": x, "gold": gold, "group": gold}} for x in (gold, -gold))
    difference = resampled_scores([second])[0] - resampled_scores([first])[0]
    assert np.nanmax(difference) < 0, "each resample turns the order round"
    low, high = interval(difference, 0.95, [first])
    assert (high < 0) == is_known and low == -200


@pytest.mark.parametrize(
    "groups, by_row",
    [
        (np.maximum(np.arange(15) - 1, 0), False),
        (np.arange(400) // 20, False),
        (np.arange(400) // 21, True),
        (np.maximum(np.arange(400) - 200, 0), True),
    ],
    ids=["few rows, of which two share a text", "20 groups", "19 groups and a rest", "one group has half of the rows"],
)
def test_too_few_groups_are_drawn_by_row_with_a_warning(groups, by_row, caplog):
    drawn = groups_to_draw(groups, f"part {groups.sum()}")
    assert np.array_equal(drawn, np.arange(len(groups)) if by_row else groups)
    assert ("so the intervals resample single rows" in caplog.text) is by_row


# --- the optimism of a choice ---


def choice_among_equals(drawing):
    """Choose the best of ten equally good candidates on 200 pairs; return the estimated and the true optimism."""
    gold = drawing.normal(size=200)
    common = drawing.normal(size=200)
    predicted = gold + common + 0.5 * drawing.normal(size=(11, 200))
    systems = []
    scores = []
    for each in predicted:
        systems.append({"pairs": {"predicted": each, "gold": gold, "group": np.arange(200)}})
        scores.append(100 * spearman(each, gold))
    start, *candidates = systems
    best = int(np.argmax(scores[1:]))
    chosen = candidates.pop(best)
    true_optimism = scores[1 + best] - scores[0]
    return optimism_of_choice(start, chosen, candidates), true_optimism


def test_the_optimism_of_a_choice_is_estimated_without_bias():
    drawing = np.random.default_rng(0)
    choices = [choice_among_equals(drawing) for _ in range(30)]
    estimated, true = np.mean(choices, axis=0)
    assert true > 2
    assert estimated == pytest.approx(true, rel=0.15)


# --- seeds ---


def test_a_widened_interval_of_few_normal_values_is_students():
    """Without it, one of five equally good models was called worse in 7 of 100 draws of 30 rows."""
    values = np.random.default_rng(3).normal(size=30)
    parts = {"rows": {"value": values, "group": np.arange(30)}}
    [sampled] = resampled_scores([parts], resamples=40_000)
    mean = 100 * values.mean()
    found = widen(mean, interval(sampled, 0.995), 0.995, [parts])
    students = scipy.stats.t.interval(0.995, 29, mean, 100 * scipy.stats.sem(values))
    assert found == pytest.approx(students, rel=0.05)


# --- a task of a user ---


def classified(correct):
    """The result of a classification of 90 texts, none of which stands in two rows."""
    scores = {"gold": np.arange(90), "correct": correct, "unit": np.arange(90), "group": np.arange(90)}
    return TaskResult({"accuracy": 100 * correct.mean()}, {"classification": scores})


def test_the_interval_is_that_of_a_bootstrap_written_out_with_loops(tmp_path):
    task = read_task("classification", write_rows(tmp_path / "rows.csv", ["text", "label"], labelled_rows(90)))
    before = random.rand(90) < 0.5
    after = random.rand(90) < 0.8
    results = [classified(before)], [classified(after)]
    difference, low, high = paired_interval(task, *results, resamples=400, confidence=0.9)
    differences = []
    for rows in np.random.default_rng(0).integers(90, size=(400, 90)):
        differences.append(100 * (after[rows].mean() - before[rows].mean()))
    assert [low, high] == pytest.approx(np.quantile(differences, [0.05, 0.95]))
    assert difference == pytest.approx(100 * (after.mean() - before.mean()))


# --- comparisons of evaluations ---

GOLD = {"a": random.rand(200), "b": random.rand(300)}


def evaluation(noise, seed, stored=True, accuracy=None):
    """An evaluation of STS12, and of MR if there is an accuracy; STS16 is missing."""
    drawing = np.random.RandomState(seed)
    parts = {}
    for part, gold in GOLD.items():
        predicted = gold + noise * drawing.randn(len(gold))
        parts[part] = {"predicted": predicted, "gold": gold, "group": np.arange(len(gold))}
    results = {"STS12": score_subsets("STS12", parts), "STS16": {"missing": "no folder"}}
    scores = {"STS12": parts}
    if accuracy is not None:
        correct = drawing.rand(500) < accuracy
        results["MR"] = {"accuracy": 100 * correct.mean(), "dev_accuracy": 1.0, "examples": {"train": 500}}
        gold = np.arange(500) % 2
        scores["MR"] = {"MR": {"correct": correct, "gold": gold, "group": np.arange(500)}}
    return Evaluation(results, scores if stored else {})


def test_models_are_compared_with_the_first_in_every_task():
    good = evaluation(0.2, 1, accuracy=0.8)
    bad = evaluation(0.6, 2, accuracy=0.6)
    comparison = compare_systems({"good": good, "bad": bad})
    assert comparison.baseline == "good" and comparison.tasks == ["STS12", "STS16", "MR"]
    differences = comparison.differences["bad"]
    assert list(differences) == ["STS12", "MR", "average", "average_transfer"]
    for result in differences.values():
        assert result["low"] < result["difference"] < result["high"] < 0
    scores = comparison.scores
    assert differences["STS12"]["difference"] == pytest.approx(scores["bad"]["STS12"] - scores["good"]["STS12"])
    assert scores["bad"]["STS16"] is None and comparison.averages["average"]["tasks"] == ["STS12"]


def test_without_stored_scores_there_is_a_difference_without_an_interval():
    stored = {"x": evaluation(0.2, 0), "y": evaluation(0.6, 1)}
    comparison = compare_systems({**stored, "z": evaluation(0.3, 2, stored=False)})
    result = comparison.differences["z"]["STS12"]
    assert result["low"] is None and result["difference"] < 0
    lines = [line.split() for line in str(comparison).splitlines()]
    assert lines[2] == "STS12 STS16 Avg.".split()
    assert [line[0] for line in lines[3:6]] == list("xyz") and lines[3][2] == "n/a"
    assert "y - x 95% interval".split() in lines and "n/a" in lines[-1]
    pair = {name: evaluation(0.3, seed, accuracy=0.7) for seed, name in enumerate("xy")}
    of_dev_splits = compare_systems(pair, Protocol(mode="dev"))  # answers on these are not stored
    assert of_dev_splits.differences["y"]["MR"]["low"] is None


def test_the_same_answers_do_not_mean_that_two_models_are_equal():
    """The interval of equal answers is Wilson's for 0 of 500 rows; a correlation has no such rows."""
    pair = {name: evaluation(0.3, 0, accuracy=0.7) for name in "xy"}
    differences = compare_systems(pair, resamples=40).differences["y"]
    for task, end in (("MR", 0.7624), ("average_transfer", 0.7624), ("STS12", 0)):
        found = [differences[task]["low"], differences[task]["high"]]
        assert found == pytest.approx([-end, end], abs=1e-3)
