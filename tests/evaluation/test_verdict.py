"""The verdict over ways and seeds: what its differences are, what one seed says, and what their intervals hold."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from simcse_hf.evaluation.verdict import Sample, Scored, differences, make_samples, mean_sample


def answers(drawing, accuracy):
    rows = np.arange(200)
    correct = drawing.random(200) < accuracy
    return Scored(100 * correct.mean(), {"test": {"correct": correct, "gold": rows, "group": rows}})


def study(task, seeds=(1, 2, 3)):
    """Ways of which each is right in 70% of the rows, beside the start."""
    drawing = np.random.default_rng(5)
    scores = {"start": {None: answers(drawing, 0.5)}}
    for way in "abc":
        scores[way] = {seed: answers(drawing, 0.7) for seed in seeds}
    return make_samples(scores, task, resamples=200)


def test_ways_are_compared_seed_by_seed_and_their_order_does_not_matter():
    samples = study("x")
    found = differences(samples)
    assert len(found) == 6
    expected = samples["a"].mean - samples["b"].mean
    assert found["a", "b"].value == pytest.approx(expected) and found["a", "b"].seeds == 3
    assert found["start", "a"].high < 0 and not found["start", "a"].is_better
    same = differences(samples | {"again": samples["a"]}, [("a", "again")])["a", "again"]
    assert same.value == 0 and same.low <= 0 <= same.high


def test_one_seed_of_a_trained_way_says_nothing_and_two_starts_have_an_interval():
    samples = study("x", seeds=[42])
    assert differences(samples)["a", "b"].low is None
    found = differences(samples | {"other start": samples["start"]}, [("start", "other start")])
    assert found["start", "other start"].low is not None
    assert samples["a"].sd is None


def test_the_mean_over_tasks_has_the_seeds_that_all_tasks_have():
    on_x, on_y = study("x"), study("y", seeds=[2, 3, 4])
    mean = mean_sample([on_x["a"], on_y["a"]])
    assert list(mean.figures) == [2, 3] and len(mean.tasks) == 2
    assert mean.figures[2] == (on_x["a"].figures[2] + on_y["a"].figures[2]) / 2


@pytest.mark.parametrize("seeds", [[None], [1, 2]])
def test_resamples_of_several_seeds_keep_the_ranks_that_pairs_have_among_all(seeds):
    drawing = np.random.default_rng(6)
    predicted = drawing.normal(size=40).round(1)  # with ties
    gold = predicted + drawing.normal(size=40)
    parts = {"test": {"predicted": predicted, "gold": gold, "group": np.arange(40)}}
    scores = {"way": dict.fromkeys(seeds, Scored(70.0, parts))}
    found = make_samples(scores, "x", resamples=5, random=np.random.default_rng(3))["way"].resampled[seeds[0]]
    ranks = scipy.stats.rankdata(predicted), scipy.stats.rankdata(gold)
    for value, rows in zip(found, np.random.default_rng(3).integers(40, size=(5, 40)), strict=True):
        if seeds == [None]:
            expected = scipy.stats.spearmanr(predicted[rows], gold[rows])[0]
        else:
            expected = scipy.stats.pearsonr(ranks[0][rows], ranks[1][rows])[0]
        assert value == pytest.approx(100 * expected)


# --- seeds and examples ---


def of_normals(drawing, ways, seeds, spread, start=True, resamples=1000):
    """Equal ways: examples change a way by 0.5 points and a seed by 0.3; seeds differ by `spread`."""

    def sample(own, keys):
        figures = {}
        resampled = {}
        for key in keys:
            rows = own + 0.3 * drawing.normal(size=1 + resamples)
            figures[key] = 70 + rows[0] + (0 if key is None else spread * drawing.normal())
            resampled[key] = figures[key] + rows[1:]
        return Sample(figures, resampled)

    samples = {"start": sample(0.5 * drawing.normal(size=1 + resamples), [None])} if start else {}
    for way in range(ways):
        samples[f"way {way}"] = sample(0.5 * drawing.normal(size=1 + resamples), range(seeds))
    return samples


def test_the_interval_of_one_pair_is_cochrans_mean_of_two_quantiles():
    """The seeds vary by Student's t, and the examples that they share as normal variables."""
    samples = of_normals(np.random.default_rng(1), 1, 3, 2.0)
    found = differences(samples, [("way 0", "start")])["way 0", "start"]
    way, start = samples["way 0"], samples["start"]
    changes = np.array([way.resampled[seed] - start.resampled[None] for seed in range(3)])
    figures = np.array([way.figures[seed] - start.figures[None] for seed in range(3)])
    within = changes.var(axis=0, ddof=1).mean() - changes.mean(axis=1).var(ddof=1)
    of_seeds = figures.var(ddof=1) / 3
    of_examples = changes.mean(axis=0).var() - within / 3
    t, normal = scipy.stats.t.ppf(0.975, 2), scipy.stats.norm.ppf(0.975)
    half = (normal * of_examples + t * of_seeds) / np.sqrt(of_examples + of_seeds)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.02)
    assert found.value == pytest.approx(figures.mean())


def test_all_intervals_of_equal_ways_hold_together_in_95_percent_of_studies():
    """With two seeds, Bonferroni's intervals would be hundreds of points wide."""
    drawing = np.random.default_rng(2)
    held = 0
    for _ in range(100):
        found = differences(of_normals(drawing, 4, 2, 1.0, resamples=500)).values()
        held += all(each.low <= 0 <= each.high for each in found)
    assert held >= 90
    assert max(each.high - each.low for each in found) < 30


def test_the_order_of_ways_and_seeds_do_not_matter():
    samples = of_normals(np.random.default_rng(3), 3, 3, 1.0)
    turned = {}
    for way in reversed(samples):
        figures = dict(reversed(samples[way].figures.items()))
        turned[way] = replace(samples[way], figures=figures)
    again = differences(turned)
    for (first, second), each in differences(samples).items():
        other = again[second, first].opposite
        assert [other.value, other.low, other.high] == pytest.approx([each.value, each.low, each.high])


def test_ways_without_common_seeds_are_compared_pair_by_pair():
    samples = of_normals(np.random.default_rng(4), 3, 3, 1.0, start=False)
    one = samples["way 0"]
    samples["other seeds"] = replace(
        one, figures={7: 70.0, 8: 71.0}, resampled={7: one.resampled[0], 8: one.resampled[1]}
    )
    found = differences(samples)
    assert found["way 0", "other seeds"].seeds == 0 and found["way 0", "other seeds"].low is None
    known = [("way 0", "way 1"), ("way 0", "way 2"), ("way 1", "way 2")]
    alone = differences(samples, known[:1], 1 - 0.05 / 3)
    assert found[known[0]] == alone[known[0]]
    optimistic = replace(samples["way 1"], optimism={seed: 2.0 for seed in range(3)})
    moved = differences({"way 0": one, "way 1": optimistic})["way 0", "way 1"]
    assert moved.value == pytest.approx(alone[known[0]].value + 2)
