"""The paired bootstrap against samples that are really drawn out."""

import numpy as np
import pytest
import scipy.stats

from simcse_hf.evaluation import Protocol, bootstrap
from simcse_hf.evaluation.bootstrap import (
    counted_correlation,
    counted_ranks,
    groups_to_draw,
    optimism_of_choice,
    resampled_counts,
    resampled_scores,
)

random = np.random.RandomState(0)


@pytest.mark.parametrize("ties", [False, True])
def test_ranks_and_correlations_equal_those_of_the_written_out_sample(ties):
    x, y = random.randn(30), random.randn(30)
    if ties:
        x, y = np.round(x), np.round(y)
    counts = resampled_counts(np.arange(30), 20, np.random.default_rng(1))
    ranks = counted_ranks(x, counts)
    for sample, count in enumerate(counts):
        drawn_x, drawn_y = np.repeat(x, count), np.repeat(y, count)
        assert np.repeat(ranks[sample], count) == pytest.approx(scipy.stats.rankdata(drawn_x))
        for metric, reference in (("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)):
            expected = reference(drawn_x, drawn_y).statistic
            assert counted_correlation(x, y, counts, metric)[sample] == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
@pytest.mark.parametrize("elements", [1, 1 << 22])
def test_resampled_scores_use_the_aggregation(monkeypatch, aggregation, elements):
    monkeypatch.setattr(bootstrap, "CHUNK_ELEMENTS", elements)
    gold = {"a": random.rand(20), "b": random.rand(50)}
    parts = {}
    for part, values in gold.items():
        predicted = values + random.rand(len(values))
        parts[part] = {"predicted": predicted, "gold": values, "group": np.arange(len(values))}
    protocol = Protocol(aggregation=aggregation, metric="pearson")
    result = resampled_scores([parts, parts], protocol, 5, np.random.default_rng(3))
    assert result.shape == (2, 5) and np.array_equal(result[0], result[1])
    if elements > 1:
        drawing = np.random.default_rng(3)
        drawn = []
        for part in parts.values():
            count = resampled_counts(np.arange(len(part["gold"])), 5, drawing)[4]
            drawn.append([np.repeat(part[name], count) for name in ("predicted", "gold")])
        single = [np.corrcoef(*each)[0, 1] for each in drawn]
        expected = {"mean": np.mean(single), "wmean": (20 * single[0] + 50 * single[1]) / 70}
        expected["all"] = np.corrcoef(*np.concatenate(drawn, axis=1))[0, 1]
        assert result[0, 4] == pytest.approx(100 * expected[aggregation])


# --- groups of rows that share texts ---


def repeated(copies, by_row=False):
    """100 accuracies, each of them `copies` times in one group, in a shuffled order."""
    order = np.random.RandomState(1).permutation(100 * copies)
    each = np.repeat(np.arange(100), copies)[order]
    return {"part": {"correct": (each % 4 > 0).astype(float), "group": np.arange(len(each)) if by_row else each}}


def test_rows_that_share_a_text_are_drawn_together():
    systems = repeated(1), repeated(9), repeated(9, by_row=True)
    alone, grouped, by_row = (resampled_scores([parts], resamples=4000)[0].std() for parts in systems)
    assert grouped == pytest.approx(alone, rel=0.05) and grouped == pytest.approx(3 * by_row, rel=0.1)


def test_a_difference_that_is_the_same_in_every_group_has_an_interval_with_a_width():
    """In each group, one system is right in one row of three more than the other, be it two or all three of them."""
    group = np.arange(90) // 3
    systems = []
    for more in (0, 1):
        correct = np.arange(90) % 3 < 1 + group % 2 + more
        systems.append({"part": {"correct": correct, "gold": np.ones(90), "group": group}})
    drawn = resampled_scores(systems)
    wilson = scipy.stats.binomtest(10, 30).proportion_ci(method="wilson")
    ends = bootstrap.interval(drawn[1] - drawn[0], 0.95, bootstrap.independent_draws(systems[0]))
    assert np.ptp(drawn[1] - drawn[0]) < 1e-12 and ends == pytest.approx([100 * wilson.low, 100 * wilson.high])


@pytest.mark.parametrize(
    "groups, drawn",
    [
        (np.arange(15), True),
        (np.maximum(np.arange(15) - 1, 0), True),  # few rows, of which two share a text
        (np.arange(400) // 20, True),
        (np.arange(400) // 21, False),
        (np.zeros(400, dtype=int), False),
        (np.maximum(np.arange(400) - 200, 0), False),  # 200 groups, but one of them has half of the rows
    ],
)
def test_too_few_groups_are_drawn_by_row_with_a_warning(groups, drawn, caplog):
    found = groups_to_draw({"group": groups}, f"part {groups.sum()}")
    assert np.array_equal(found, groups if drawn else np.arange(len(groups)))
    assert ("so the intervals resample single rows" in caplog.text) is not drawn


def test_the_optimism_of_a_choice_is_estimated_without_bias():
    drawing = np.random.default_rng(0)
    found, true = [], []
    for _ in range(30):  # ten equally good candidates, of which the best on 200 rows is chosen
        gold = drawing.normal(size=200)
        common = drawing.normal(size=200)
        predicted = gold + common + 0.5 * drawing.normal(size=(11, 200))
        systems = [{"pairs": {"predicted": each, "gold": gold, "group": np.arange(200)}} for each in predicted]
        scores = np.array([100 * scipy.stats.spearmanr(each, gold)[0] for each in predicted])
        chosen = int(scores[1:].argmax())
        found.append(optimism_of_choice(systems[0], systems[1:], chosen))
        true.append(scores[1 + chosen] - scores[0])
    assert np.mean(true) > 2 and np.mean(found) == pytest.approx(np.mean(true), rel=0.15)


# --- seeds ---


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("figures", [(70.0, 71.0), (70.0, 71.0, 74.0), (70.0, 71.0, 72.0, 73.0, 77.0)])
def test_seeds_alone_make_the_interval_of_students_t(figures, confidence):
    scores = np.repeat(np.array(figures)[:, None], 20_000, axis=1)
    drawn = bootstrap.mean_over_drawn_seeds(scores, np.random.default_rng(2), confidence)
    n = len(figures)
    low, high = scipy.stats.t.interval(confidence, n - 1, np.mean(figures), np.std(figures, ddof=1) / n**0.5)
    assert bootstrap.interval(drawn, confidence) == pytest.approx((low, high), abs=0.03 * (high - low))


def test_the_seeds_add_their_variance_beyond_that_of_the_examples():
    random = np.random.default_rng(3)
    common, own = random.normal(size=20_000), random.normal(size=(3, 20_000))
    for offsets in ((0.0, 0.0, 0.0), (0.0, 2.0, 7.0)):
        scores = 70 + np.array(offsets)[:, None] + common + own
        drawn = bootstrap.mean_over_drawn_seeds(scores, np.random.default_rng(2), 0.95)
        of_seeds = max(np.var(offsets, ddof=1) - 1, 0) / 3
        wider = scipy.stats.t.ppf(0.975, 2) / scipy.stats.norm.ppf(0.975)
        assert drawn.var() == pytest.approx(1 + 1 / 3 + wider**2 * of_seeds, rel=0.05)
    assert np.array_equal(bootstrap.mean_over_drawn_seeds(scores[:1], np.random.default_rng(2), 0.95), scores[0])
