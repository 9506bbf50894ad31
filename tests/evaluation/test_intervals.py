"""The paired bootstrap against samples that are really drawn out, and comparisons with its intervals."""

from functools import partial

import numpy as np
import pytest
import scipy.stats
from evaluation_helpers import labelled_rows, write_rows
from sklearn.metrics import average_precision_score, v_measure_score

from simcse_hf.evaluation import Evaluation, Protocol, bootstrap
from simcse_hf.evaluation.bootstrap import (
    counted_average_precision,
    counted_correlation,
    counted_v_measure,
    groups_to_draw,
    optimism_of_choice,
    resampled_counts,
    resampled_scores,
)
from simcse_hf.evaluation.compare import compare_evaluations
from simcse_hf.evaluation.sts import score_subsets
from simcse_hf.evaluation.user_tasks import paired_interval, read_task
from simcse_hf.evaluation.user_tasks.base import TaskResult

random = np.random.RandomState(0)
X, Y = random.randn(2, 40)
GROUPS, CLUSTERS = random.randint(4, size=40), random.randint(3, size=40)
#: For each statistic, the columns it takes, how it is counted, and its definition.
STATISTICS = {
    "spearman": (X, Y, partial(counted_correlation, metric="spearman"), lambda *xy: scipy.stats.spearmanr(*xy)[0]),
    "pearson": (X, Y, partial(counted_correlation, metric="pearson"), lambda *xy: scipy.stats.pearsonr(*xy)[0]),
    "average precision": (X, GROUPS > 2, counted_average_precision, lambda x, y: average_precision_score(y, x)),
    "v measure": (CLUSTERS, GROUPS, counted_v_measure, lambda x, y: v_measure_score(y, x)),
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_resampled_statistics_equal_those_of_the_written_out_sample(statistic, ties):
    x, y, counted, reference = STATISTICS[statistic]
    if ties:
        x, y = np.round(x), np.round(y)
    counts = resampled_counts(np.arange(40), 20, np.random.default_rng(1))
    for value, count in zip(counted(x, y, counts), counts, strict=True):
        assert value == pytest.approx(reference(np.repeat(x, count), np.repeat(y, count)))
    if counted is counted_average_precision:
        assert np.isnan(counted(x, np.zeros(40, dtype=int), counts)).all()
    if counted is counted_v_measure:
        assert (counted(np.zeros(40, dtype=int), np.zeros(40, dtype=int), counts) == 1).all()


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
        candidate = systems.pop(1 + chosen)
        found.append(optimism_of_choice(systems[0], candidate, systems[1:]))
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


def test_the_interval_is_that_of_a_bootstrap_written_out_with_loops(tmp_path):
    task = read_task("classification", write_rows(tmp_path / "rows.csv", ["text", "label"], labelled_rows(90)))
    hits = random.rand(2, 90) < np.array([[0.5], [0.8]])
    before, after = (
        TaskResult({"accuracy": 100 * each.mean()}, {"correct": each, "unit": np.arange(90), "group": np.arange(90)})
        for each in hits
    )
    difference, low, high = paired_interval(task, [before], [after], resamples=400, confidence=0.9)
    assert difference == pytest.approx(100 * (hits[1].mean() - hits[0].mean()))
    drawn = np.random.default_rng(0).integers(90, size=(400, 90))
    differences = [100 * (hits[1, rows].mean() - hits[0, rows].mean()) for rows in drawn]
    assert (low, high) == pytest.approx(tuple(np.quantile(differences, [0.05, 0.95])))


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
    assert comparison.baseline == "good" and comparison.tasks == ["STS12", "STS16", "MR"]
    for task in ("STS12", "MR", "average", "average_transfer"):
        result = comparison.differences["bad"][task]
        assert result["low"] < result["difference"] < result["high"] < 0
    good, bad = comparison.scores.values()
    assert bad["STS16"] is None
    assert comparison.differences["bad"]["STS12"]["difference"] == pytest.approx(bad["STS12"] - good["STS12"])
    assert comparison.averages["average"]["tasks"] == ["STS12"]


def test_the_formatted_comparison_has_a_row_per_model_and_per_difference():
    evaluations = {"x": evaluation(0.2, 0), "y": evaluation(0.6, 1), "z": evaluation(0.3, 2, stored=False)}
    comparison = compare_evaluations(evaluations)
    rows = [line.split() for line in str(comparison).splitlines()]
    assert rows[2] == ["STS12", "STS16", "Avg."]
    assert [row[0] for row in rows[3:6]] == ["x", "y", "z"] and rows[3][2] == "n/a"
    assert ["y", "-", "x", "95%", "interval"] in rows
    result = comparison.differences["z"]["STS12"]
    assert result["low"] is None and result["difference"] < 0, "without stored scores there is no interval"
    assert "n/a" in rows[-1]


def test_answers_on_dev_splits_have_no_interval_because_they_are_not_stored():
    pair = {name: evaluation(0.3, seed, accuracy=0.7) for seed, name in enumerate("xy")}
    assert compare_evaluations(pair, Protocol(mode="dev")).differences["y"]["MR"]["low"] is None


def test_the_same_answers_do_not_mean_that_two_models_are_equal():
    pair = {name: evaluation(0.3, 0, accuracy=0.7) for name in "xy"}
    differences = compare_evaluations(pair, resamples=10).differences["y"]
    for task in ("MR", "average_transfer"):  # Wilson's interval for 0 of 500 rows
        assert [differences[task]["low"], differences[task]["high"]] == pytest.approx([-0.7624, 0.7624], abs=1e-3)
    assert differences["STS12"]["low"] == differences["STS12"]["high"] == 0


def test_scores_that_were_stored_without_groups_are_refused():
    with pytest.raises(ValueError, match="test: .*do not say which rows share texts"):
        groups_to_draw({"gold": np.arange(3)}, "test")
