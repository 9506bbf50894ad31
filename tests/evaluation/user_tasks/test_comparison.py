"""Paired intervals on users' tasks."""

import numpy as np
import pytest
from evaluation_helpers import binary_pairs, labelled_rows, write_rows
from sklearn.metrics import average_precision_score, v_measure_score

from simcse_hf.evaluation.bootstrap import counted_average_precision, counted_v_measure, resampled_counts
from simcse_hf.evaluation.user_tasks import paired_interval, read_task
from simcse_hf.evaluation.user_tasks.base import TaskResult

random = np.random.RandomState(0)


def accuracy_result(correct):
    """A result of 90 rows with the same labels and texts."""
    rows = np.arange(90)
    return TaskResult({"accuracy": 100 * correct.mean()}, {"correct": correct, "unit": rows, "group": rows})


@pytest.fixture
def tasks(tmp_path):
    labelled = write_rows(tmp_path / "labelled.csv", ["text", "label"], labelled_rows(90))
    pairs = write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(90))
    return [read_task("classification", labelled), read_task("clustering", labelled), read_task("pairs", pairs)]


@pytest.mark.parametrize("ties", [False, True])
def test_resampled_average_precision_is_that_of_the_written_out_sample(ties):
    similarity, gold = random.randn(40), (random.rand(40) < 0.3).astype(int)
    similarity = np.round(similarity) if ties else similarity
    counts = resampled_counts(np.arange(40), 30, np.random.default_rng(0))
    values = counted_average_precision(similarity, gold, counts)
    for value, count in zip(values, counts, strict=True):
        assert value == pytest.approx(average_precision_score(np.repeat(gold, count), np.repeat(similarity, count)))
    assert np.isnan(counted_average_precision(similarity, np.zeros(40, dtype=int), counts)).all()


def test_resampled_v_measure_is_that_of_the_written_out_sample():
    gold, clusters = random.randint(4, size=50), random.randint(3, size=50)
    counts = resampled_counts(np.arange(50), 30, np.random.default_rng(0))
    values = counted_v_measure(clusters, gold, counts)
    for value, count in zip(values, counts, strict=True):
        assert value == pytest.approx(v_measure_score(np.repeat(gold, count), np.repeat(clusters, count)))
    same = np.zeros(50, dtype=int)
    assert (counted_v_measure(same, same, counts) == 1).all()


def test_the_interval_is_that_of_a_bootstrap_written_out_with_loops(tasks):
    task = tasks[0]
    seeds = [accuracy_result(random.rand(90) < accuracy) for accuracy in (0.5, 0.6, 0.7, 0.8)]
    difference, low, high = paired_interval(task, seeds[:1], seeds[3:], resamples=400, confidence=0.9)
    hits = np.array([result.scores["correct"] for result in seeds])
    assert difference == pytest.approx(100 * (hits[3].mean() - hits[0].mean()))
    drawn = np.random.default_rng(0).integers(90, size=(400, 90))
    differences = [100 * (hits[3, rows].mean() - hits[0, rows].mean()) for rows in drawn]
    assert (low, high) == pytest.approx(tuple(np.quantile(differences, [0.05, 0.95])))


def test_seeds_that_differ_widen_the_interval_of_a_task(tasks):
    hits = np.arange(90) % 10
    start, same, low, high = (accuracy_result(hits < tenths) for tenths in (4, 8, 6, 10))
    ends = [paired_interval(tasks[0], [start], seeds) for seeds in ([same] * 3, [low, same, high])]
    assert ends[0][0] == pytest.approx(ends[1][0]) == pytest.approx(40)
    # The seeds differ by 20 points, so their mean over three has a t interval of 2 * 4.30 * 20 / sqrt(3) points.
    assert ends[1][2] - ends[1][1] == pytest.approx(8.6 * 20 / 3**0.5, rel=0.15)
    assert ends[0][2] - ends[0][1] < 30


@pytest.mark.parametrize("before, after, ends", [(8, 8, (-4.094, 4.094)), (0, 10, (95.906, 100))])
def test_a_difference_without_an_exception_has_the_interval_of_a_binomial(tasks, before, after, ends):
    hits = np.arange(90) % 10
    results = [[accuracy_result(hits < tenths)] for tenths in (before, after)]
    assert paired_interval(tasks[0], *results)[1:] == pytest.approx(ends, abs=1e-3)  # Wilson's with 90 draws
