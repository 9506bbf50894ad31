"""Verdicts on synthetic scores: they agree, disagree or are within noise, as a slow reference says."""

import numpy as np
import pytest
import scipy.stats

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


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("level", [0.9, 0.99])
def test_without_an_effect_of_the_pairs_the_interval_is_that_of_the_t_test(seeds, level):
    first, second = (sample(mean, seeds, pair_sd=0, shift=shift) for mean, shift in ((80, 0), (79.5, 1)))
    value, low, high, n = difference(first, second, level)
    by_seed = [first.figures[s] - second.figures[s] for s in range(seeds)]
    assert n == seeds and value == pytest.approx(np.mean(by_seed))
    half = scipy.stats.t.ppf((1 + level) / 2, seeds - 1) * np.std(by_seed, ddof=1) / seeds**0.5
    assert [low, high] == pytest.approx([value - half, value + half], abs=0.2 * half)


@pytest.mark.parametrize("means, verdict", [((82, 78, 77), AGREES), ((82, 78, 84), DISAGREES), ((82, 78, 82), NOISE)])
def test_an_ordering_agrees_only_if_every_difference_does(means, verdict):
    samples = {str(n): sample(mean, shift=n, seed_sd=0.1) for n, mean in enumerate(means)}
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
