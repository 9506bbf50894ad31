"""Verdicts on synthetic figures: they agree, disagree or are within noise, as a slow reference says."""

import numpy as np
import pytest

from reproduction.table import Claim
from reproduction.verdict import AGREES, DISAGREES, NOISE, NOT_RUN, Sample, difference, judge

RESAMPLES = 400


def sample(mean, seeds=3, seed_sd=0.2, pair_sd=0.3, shift=0):
    """Figures of a cell: a value for each seed, and resamples of the test pairs around it that all cells share."""
    pairs = np.random.default_rng(7).normal(0, pair_sd, RESAMPLES)
    of_seeds = np.random.default_rng(11 + shift).normal(0, seed_sd, seeds)
    figures = {seed: mean + of_seeds[seed] for seed in range(seeds)}
    own = np.random.default_rng(13 + shift).normal(0, pair_sd / 3, (seeds, RESAMPLES))
    return Sample(figures, {seed: figures[seed] + pairs + own[seed] for seed in range(seeds)})


def slow_interval(first, second, level):
    """Draw seeds and pairs one resample at a time, and widen the part of the seeds by sqrt(n / (n - 1))."""
    n = len(first.figures)
    drawn = np.random.default_rng(0).integers(n, size=(n, RESAMPLES))
    values = []
    for b in range(RESAMPLES):
        every = [first.resampled[s][b] - second.resampled[s][b] for s in range(n)]
        mean = sum(every) / n
        of_drawn = sum(every[drawn[i, b]] for i in range(n)) / n
        values.append(mean + (n / (n - 1)) ** 0.5 * (of_drawn - mean))
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2])


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_interval_is_that_of_a_slow_bootstrap_over_seeds_and_pairs(seeds):
    first, second = sample(80, seeds), sample(79.5, seeds, shift=1)
    value, low, high, n = difference(first, second, 0.9)
    assert n == seeds
    assert value == pytest.approx(np.mean([first.figures[s] - second.figures[s] for s in range(seeds)]))
    assert [low, high] == pytest.approx(slow_interval(first, second, 0.9))


def test_the_spread_of_seeds_is_not_underestimated():
    """Over many draws of three seeds, the width of the interval fits the standard error of the mean of three."""
    random = np.random.default_rng(5)
    spreads = []
    for _ in range(300):
        figures = dict(enumerate(random.normal(0, 1, 3)))
        cell = Sample(figures, {seed: np.full(2000, value) for seed, value in figures.items()})
        zero = Sample(dict.fromkeys(figures, 0.0), {seed: np.zeros(2000) for seed in figures})
        _, low, high, _ = difference(cell, zero, 0.6827)
        spreads.append(((high - low) / 2) ** 2)
    assert np.mean(spreads) == pytest.approx(1 / 3, rel=0.25)


@pytest.mark.parametrize(
    "better, others, verdict",
    [
        (82, [78, 77], AGREES),
        (82, [78, 84], DISAGREES),
        (82, [78, 82], NOISE),
    ],
)
def test_an_ordering_agrees_only_if_every_difference_does(better, others, verdict):
    samples = {"a": sample(better), **{str(n): sample(mean, shift=n + 1) for n, mean in enumerate(others)}}
    judged = judge(Claim("a is best", better="a", than=[str(n) for n in range(len(others))]), samples)
    assert judged.verdict == verdict
    assert len(judged.differences) == len(others) and all(each.seeds == 3 for each in judged.differences)


@pytest.mark.parametrize("means, verdict", [((80, 80.1, 80.2), AGREES), ((80, 84, 80), DISAGREES), ((80, 82), NOISE)])
def test_rows_that_the_paper_calls_alike_must_lie_within_the_margin(means, verdict):
    samples = {str(n): sample(mean, shift=n, seed_sd=0.1) for n, mean in enumerate(means)}
    claim = Claim("no difference", similar=list(samples), within=2.0)
    assert judge(claim, samples).verdict == verdict


def test_a_list_of_rows_stands_for_the_best_of_them():
    samples = {"a": sample(80), "low": sample(60, shift=1), "high": sample(85, shift=2)}
    judged = judge(Claim("tuned is better", better=["low", "high"], than=["a"]), samples)
    assert judged.verdict == AGREES and judged.differences[0].first == "high"


def test_one_seed_gives_no_verdict():
    judged = judge(Claim("x", better="a", than=["b"]), {"a": sample(90, 1), "b": sample(50, 1, shift=1)})
    assert judged.verdict == NOISE and "one seed says nothing about what another would give" in judged.reason


def test_a_claim_about_rows_that_were_not_run_is_not_judged():
    judged = judge(Claim("x", better="a", than=["b", "c"]), {"a": sample(90)})
    assert (judged.verdict, judged.reason) == (NOT_RUN, "not run: b; c")


def test_rows_without_a_common_seed_are_not_judged():
    first, second = sample(90, 2), sample(80, 2, shift=1)
    later = Sample({7: second.figures[0]}, {7: second.resampled[0]})
    assert judge(Claim("x", better="a", than=["b"]), {"a": first, "b": later}).verdict == NOT_RUN


def test_chance_alone_seldom_gives_a_verdict():
    """Of cells without any difference, at most a few in a hundred get a verdict, whichever way."""
    random = np.random.default_rng(3)
    verdicts = []
    for _ in range(200):
        cells = {}
        for name in "abc":
            figures = dict(enumerate(random.normal(80, 0.3, 5)))
            cells[name] = Sample(figures, {seed: value + np.zeros(500) for seed, value in figures.items()})
        verdicts.append(judge(Claim("a is best", better="a", than=["b", "c"]), cells).verdict)
    assert verdicts.count(NOISE) > 170


def test_an_interval_below_zero_that_does_not_survive_the_correction_is_within_noise_and_the_reason_says_so():
    generator = np.random.default_rng(3)
    drawn = {seed: generator.normal(0, 1, 1000) for seed in (1, 2, 3)}
    samples = {"best": Sample({seed: 50.0 for seed in drawn}, {seed: np.full(1000, 50.0) for seed in drawn})}
    for number in range(9):
        shift = 2.2 if number == 0 else 0.0  # of differences with a standard deviation of 1
        resampled = {seed: 50.0 + shift + drawn[1] for seed in drawn}
        samples[str(number)] = Sample({seed: 50.0 + shift for seed in drawn}, resampled)
    judged = judge(Claim("x", better="best", than=[str(number) for number in range(9)]), samples)
    assert judged.differences[0].high < 0
    assert (judged.verdict, judged.reason) == (
        NOISE,
        "0 of 9 differences are above 0; after the correction, none is below 0",
    )
