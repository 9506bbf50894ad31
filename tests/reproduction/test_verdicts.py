"""Verdicts on synthetic scores: they agree, disagree or are within noise, as a slow reference says."""

import numpy as np
import pytest

from reproduction.table import Claim
from reproduction.verdict import AGREES, DISAGREES, NOISE, NOT_RUN, Sample, difference, judge

RESAMPLES = 400


def sample(mean, seeds=3, seed_sd=0.2, pair_sd=0.3, shift=0):
    """Scores of a cell: a value for each seed, and resamples of the test pairs around it that all cells share."""
    pairs = np.random.default_rng(7).normal(0, pair_sd, RESAMPLES)
    of_seeds = np.random.default_rng(11 + shift).normal(0, seed_sd, seeds)
    scores = {seed: mean + of_seeds[seed] for seed in range(seeds)}
    own = np.random.default_rng(13 + shift).normal(0, pair_sd / 3, (seeds, RESAMPLES))
    return Sample(scores, {seed: scores[seed] + pairs + own[seed] for seed in range(seeds)})


def slow_interval(first, second, level):
    """Draw seeds and pairs one resample at a time, and widen the part of the seeds by sqrt(n / (n - 1))."""
    n = len(first.figures)
    drawn = np.random.default_rng(0).integers(n, size=(n, RESAMPLES))
    values = []
    for b in range(RESAMPLES):
        every = [first.resampled[s][b] - second.resampled[s][b] for s in range(n)]
        of_drawn = sum(every[drawn[i, b]] for i in range(n)) / n
        values.append(sum(every) / n + (n / (n - 1)) ** 0.5 * (of_drawn - sum(every) / n))
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2])


@pytest.mark.parametrize("seeds", [2, 5])
def test_the_interval_is_that_of_a_slow_bootstrap_over_seeds_and_pairs(seeds):
    first, second = sample(80, seeds), sample(79.5, seeds, shift=1)
    value, low, high, n = difference(first, second, 0.9)
    assert n == seeds
    assert value == pytest.approx(np.mean([first.figures[s] - second.figures[s] for s in range(seeds)]))
    assert [low, high] == pytest.approx(slow_interval(first, second, 0.9))


@pytest.mark.parametrize("means, verdict", [((82, 78, 77), AGREES), ((82, 78, 84), DISAGREES), ((82, 78, 82), NOISE)])
def test_an_ordering_agrees_only_if_every_difference_does(means, verdict):
    samples = {str(n): sample(mean, shift=n) for n, mean in enumerate(means)}
    judged = judge(Claim("0 is best", better="0", than=["1", "2"]), samples)
    assert judged.verdict == verdict
    assert len(judged.differences) == 2 and all(each.seeds == 3 for each in judged.differences)


@pytest.mark.parametrize("means, verdict", [((80, 80.1, 80.2), AGREES), ((80, 84, 80), DISAGREES), ((80, 82), NOISE)])
def test_rows_that_the_paper_calls_alike_must_lie_within_the_margin(means, verdict):
    samples = {str(n): sample(mean, shift=n, seed_sd=0.1) for n, mean in enumerate(means)}
    assert judge(Claim("no difference", similar=list(samples), within=2.0), samples).verdict == verdict


def test_too_few_runs_give_no_verdict():
    claim = Claim("x", better="a", than=["b"])
    judged = judge(claim, {"a": sample(90, 1), "b": sample(50, 1, shift=1)})
    assert judged.verdict == NOISE and "one seed says nothing about what another would give" in judged.reason
    assert judge(claim, {"a": sample(90)}).reason == "not run: b"
    second = sample(80, 2, shift=1)
    later = Sample({7: second.figures[0]}, {7: second.resampled[0]})
    assert judge(claim, {"a": sample(90, 2), "b": later}).verdict == NOT_RUN


def test_an_interval_below_zero_that_does_not_survive_the_correction_is_within_noise():
    drawn = {seed: np.random.default_rng(3).normal(0, 1, 1000) for seed in (1, 2, 3)}
    samples = {"best": Sample({seed: 50.0 for seed in drawn}, {seed: np.full(1000, 50.0) for seed in drawn})}
    for number in range(9):
        value = 50.0 + (2.2 if number == 0 else 0.0)  # of differences with a standard deviation of 1
        samples[str(number)] = Sample(dict.fromkeys(drawn, value), {seed: value + drawn[1] for seed in drawn})
    judged = judge(Claim("x", better="best", than=[str(number) for number in range(9)]), samples)
    assert judged.differences[0].high < 0 and judged.verdict == NOISE
