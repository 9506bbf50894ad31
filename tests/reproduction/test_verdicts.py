"""Verdicts on synthetic scores: they agree, disagree or are within noise."""

import numpy as np
import pytest

from reproduction.claims import AGREES, DISAGREES, NOISE, NOT_RUN, judge
from reproduction.table import Claim
from simcse_hf.evaluation.verdict import Sample

RESAMPLES = 400


def sample(mean, seeds=3, seed_sd=0.2, shift=0):
    """Scores of a cell: a value for each seed, and resamples of the test pairs that all cells share."""
    shared_noise = np.random.default_rng(7).normal(0, 0.3, RESAMPLES)
    seed_noise = np.random.default_rng(11 + shift).normal(0, seed_sd, seeds)
    own_noise = np.random.default_rng(13 + shift).normal(0, 0.1, (seeds, RESAMPLES))
    figures = {}
    resampled = {}
    for seed in range(seeds):
        figures[seed] = mean + seed_noise[seed]
        resampled[seed] = figures[seed] + shared_noise + own_noise[seed]
    return Sample(figures, resampled)


def samples_of(means):
    """A cell for each mean, in rows called "0", "1", "2" ..."""
    return {str(row): sample(mean, shift=row, seed_sd=0.1) for row, mean in enumerate(means)}


# --- verdicts ---


@pytest.mark.parametrize("means, verdict", [((82, 78, 77), AGREES), ((82, 78, 84), DISAGREES), ((82, 78, 82), NOISE)])
def test_an_ordering_agrees_only_if_every_difference_does(means, verdict):
    judged = judge(Claim("0 is best", better="0", than=["1", "2"]), samples_of(means))
    assert judged.verdict == verdict
    assert [(each["first"], each["second"], each["seeds"]) for each in judged.differences] == [
        ("0", "1", 3),
        ("0", "2", 3),
    ]


@pytest.mark.parametrize("means, verdict", [((80, 80.1, 80.2), AGREES), ((80, 84, 80), DISAGREES), ((80, 82), NOISE)])
def test_rows_that_the_paper_calls_alike_must_lie_within_the_margin(means, verdict):
    samples = samples_of(means)
    claim = Claim("no difference", similar=list(samples), within=2.0)
    assert judge(claim, samples).verdict == verdict


# --- too few runs ---

A_ABOVE_B = Claim("a is above b", better="a", than=["b"])


def test_too_few_runs_decide_nothing():
    single = sample(50, seeds=1, shift=1)
    judged = judge(A_ABOVE_B, {"a": sample(90, seeds=1), "b": single})
    assert judged.verdict == NOISE and "one seed says nothing" in judged.reason
    judged = judge(A_ABOVE_B, {"a": sample(90)})
    assert judged.verdict == NOT_RUN and judged.reason == "not run: b"
    of_seed_7 = Sample({7: single.figures[0]}, {7: single.resampled[0]})
    assert judge(A_ABOVE_B, {"a": sample(90, seeds=2), "b": of_seed_7}).verdict == NOT_RUN


# --- many comparisons ---


def cell_of_equal_seeds(figure, noise):
    """A cell whose three seeds have the same figure and the same resamples."""
    return Sample(dict.fromkeys(range(3), figure), dict.fromkeys(range(3), figure + noise))


def test_an_interval_below_zero_that_does_not_survive_the_correction_is_within_noise():
    resamples = 1000
    samples = {"best": cell_of_equal_seeds(50.0, np.zeros(resamples))}
    random = np.random.default_rng(3)
    others = [str(number) for number in range(9)]
    for name in others:
        samples[name] = cell_of_equal_seeds(50.0, random.normal(0, 1, resamples))
    samples["0"] = cell_of_equal_seeds(52.2, random.normal(0, 1, resamples))  # 2.2 standard deviations above the best
    judged = judge(Claim("best of ten", better="best", than=others), samples)
    assert judged.differences[0]["high"] < 0
    assert judged.verdict == NOISE
