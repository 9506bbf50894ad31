"""The verdict over ways and seeds: what its differences are, and what one seed says."""

import numpy as np
import pytest

from simcse_hf.evaluation.verdict import differences, make_samples, mean_sample
from simcse_hf.runtime.errors import DataError


def answers(drawing, accuracy, rows=200):
    rows = np.arange(rows)
    return {"test": {"correct": drawing.random(len(rows)) < accuracy, "gold": rows, "group": rows}}


def study(task, seeds=(1, 2, 3), ways=("a", "b", "c")):
    """Ways of which each is right in 70% of the rows, beside the start."""
    drawing = np.random.default_rng(5)
    scores = {"start": {None: answers(drawing, 0.5)}}
    for way in ways:
        scores[way] = {seed: answers(drawing, 0.7) for seed in seeds}
    figures = {}
    for way, by_seed in scores.items():
        figures[way] = {seed: 100 * parts["test"]["correct"].mean() for seed, parts in by_seed.items()}
    return scores, figures, make_samples(scores, figures, task, resamples=200)


def test_ways_are_compared_seed_by_seed_and_their_order_does_not_matter():
    _, figures, samples = study("x")
    found = differences(samples)
    assert len(found) == 6
    expected = np.mean(list(figures["a"].values())) - np.mean(list(figures["b"].values()))
    assert found["a", "b"].value == pytest.approx(expected) and found["a", "b"].seeds == 3
    assert found["start", "a"].is_worse and not found["start", "a"].is_better
    same = differences(samples | {"again": samples["a"]}, [("a", "again")])["a", "again"]
    assert same.value == 0 and same.low <= 0 <= same.high


def test_one_seed_of_a_trained_way_says_nothing_and_two_starts_have_an_interval():
    _, _, samples = study("x", seeds=[42])
    assert differences(samples)["a", "b"].low is None
    found = differences(samples | {"other start": samples["start"]}, [("start", "other start")])
    assert found["start", "other start"].low is not None
    assert samples["a"].sd is None


def test_the_mean_over_tasks_has_the_seeds_that_all_tasks_have():
    _, _, on_x = study("x")
    _, _, on_y = study("y", seeds=[2, 3, 4])
    mean = mean_sample([on_x["a"], on_y["a"]])
    assert list(mean.figures) == [2, 3] and len(mean.tasks) == 2
    assert mean.figures[2] == (on_x["a"].figures[2] + on_y["a"].figures[2]) / 2


def test_other_examples_are_refused_with_the_names_of_both_ways():
    scores, figures, _ = study("x")
    scores["b"][2] = answers(np.random.default_rng(0), 0.7, rows=199)
    with pytest.raises(DataError, match="x: b and start were not evaluated on the same examples"):
        make_samples(scores, figures, "x")
