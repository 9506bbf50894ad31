"""One verdict over several ways to train: paired differences whose intervals hold both tests and seeds, together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy import ndarray
from scipy.special import ndtr, ndtri, stdtrit

from ..runtime.errors import DataError
from ..runtime.identity import mark
from .bootstrap import ROUNDING, Parts, interval, resampled_scores, scored_examples, widen
from .protocol import PAPER_PROTOCOL, Protocol

#: The seed of a training; `None` for a system that is not trained, such as the start or keyword search.
Seed = int | None
_STUDIES = 5000  # that are simulated


class Scored(NamedTuple):
    """What a system scored on a task.

    Args:
        figure (`float`): The score, times 100.
        parts (`Parts`): What is resampled: the task's entry of `Evaluation.scores`.
        optimism (`float`, *optional*, defaults to `0.0`): By how much the score is too high because a checkpoint was
            chosen by it.
    """

    figure: float
    parts: Parts
    optimism: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The scores of one way to train on a task, or their mean over several tasks, all times 100.

    Args:
        figures (`dict[int | None, float]`): The score of each seed. A system that is not trained has the key `None`.
        resampled (`dict[int | None, numpy.ndarray]`): For the same seeds, the scores on resamples of the examples, of
            shape `(resamples,)`. All samples of a task share the resamples.
        optimism (`dict[int | None, float]`, *optional*): By how much a figure is too high because a checkpoint was
            chosen by it. Differences are taken without it.
        tasks (`Sequence[Parts]`, *optional*): What was resampled: an entry of `Evaluation.scores` for each task.
    """

    figures: Mapping[Seed, float]
    resampled: Mapping[Seed, ndarray]
    optimism: Mapping[Seed, float] = field(default_factory=dict)
    tasks: Sequence[Parts] = ()

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(list(self.figures.values())))

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over the seeds; `None` for one seed."""
        return float(np.std(list(self.figures.values()), ddof=1)) if len(self.figures) > 1 else None

    @property
    def is_trained(self) -> bool:
        """Whether other seeds could have given other scores."""
        return None not in self.figures


@dataclass(frozen=True)
class PairDifference:
    """The difference between two ways, times 100, with its interval.

    Args:
        value (`float`): First minus second: the mean over the seeds that both have, without the optimism. Without a
            common seed, the difference of their means.
        low (`float`, *optional*): The lower end. `None` if the seeds say nothing: there are fewer than two.
        high (`float`, *optional*): The upper end.
        seeds (`int`): The number of seeds that both have; 1 for two systems that are not trained.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def opposite(self) -> "PairDifference":
        """The difference of the second from the first."""
        if self.low is None or self.high is None:
            return PairDifference(-self.value, None, None, self.seeds)
        return PairDifference(-self.value, -self.high, -self.low, self.seeds)

    @property
    def is_better(self) -> bool:
        """Whether the first way is better: the interval lies above 0."""
        return self.low is not None and self.low > 0


def make_samples(
    scores: Mapping[str, Mapping[Seed, Scored]],
    task: str,
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
    random: np.random.Generator | None = None,
) -> dict[str, Sample]:
    """Score several ways on the same resamples of the examples of a task.

    If a way has several seeds, its intervals are made of variances in place of percentiles, so ranks are fixed, which
    gives differences of Spearman's correlation the right variance.

    Args:
        scores (`dict[str, dict[int | None, Scored]]`): What each way scored on the task with each seed.
        task (`str`): The name of the task.
        protocol (`Protocol`, *optional*): See [`resampled_scores`].
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        random (`numpy.random.Generator`, *optional*): Random generator. The default has a seed that depends on the
            name of the task, so that the resamples of two tasks are independent.

    Returns:
        `dict[str, Sample]`: The sample of each way.

    Raises:
        DataError: If two ways were not scored on the same examples.
    """
    keys = [(way, seed) for way, by_seed in scores.items() for seed in by_seed]
    systems = [scores[way][seed].parts for way, seed in keys]
    (first, _), *_ = keys
    examples = scored_examples(systems[0])
    for (way, _), system in zip(keys, systems, strict=True):
        if scored_examples(system) != examples:
            raise DataError(f"{task}: {way} and {first} were not evaluated on the same examples.")
    random = random or np.random.default_rng([0, mark([task])])
    has_seeds = any(len(by_seed) > 1 for by_seed in scores.values())
    on_resamples = resampled_scores(systems, protocol, resamples, random, fixed_ranks=has_seeds)
    drawn = dict(zip(keys, on_resamples, strict=True))
    samples = {}
    for way, by_seed in scores.items():
        samples[way] = Sample(
            figures={seed: each.figure for seed, each in by_seed.items()},
            resampled={seed: drawn[way, seed] for seed in by_seed},
            optimism={seed: each.optimism for seed, each in by_seed.items()},
            tasks=systems[:1],
        )
    return samples


def mean_sample(samples: Sequence[Sample]) -> Sample:
    """Average the scores of a way over tasks, whose examples were resampled independently.

    Args:
        samples (`Sequence[Sample]`): The samples of the way, one for each task.

    Returns:
        [`Sample`]: Its seeds are those that all of them have.
    """
    first, *others = samples
    seeds = [seed for seed in first.figures if all(seed in other.figures for other in others)]
    tasks = [parts for sample in samples for parts in sample.tasks]
    figures = {}
    resampled = {}
    optimism = {}
    for seed in seeds:
        figures[seed] = float(np.mean([sample.figures[seed] for sample in samples]))
        resampled[seed] = np.mean([sample.resampled[seed] for sample in samples], axis=0)
        optimism[seed] = float(np.mean([sample.optimism.get(seed, 0.0) for sample in samples]))
    return Sample(figures, resampled, optimism, tasks)


def differences(
    samples: Mapping[str, Sample],
    pairs: Sequence[tuple[str, str]] | None = None,
    confidence: float = 0.95,
) -> dict[tuple[str, str], PairDifference]:
    """Compare ways in pairs, with intervals that say what other examples and other seeds could have shown.

    Runs of one seed see the same rows in the same order, so ways are compared seed by seed, and example by example. A
    difference varies with the examples, as the resamples show; with what a seed does to one way only; and, if the
    other system is not trained, with what a seed does to all ways. The variances of the three parts add up, and half
    of an interval is their root, times the mean of the quantiles of the parts, weighted by their variances (Cochran
    1964). These are normal for the examples. For the seeds they are those of Student's t: `seeds - 1` times `ways - 1`
    degrees of freedom for what is a way's own, as all ways estimate it together (for a way that varies more, its own
    estimate counts), and `seeds - 1` for what is common to all.

    Intervals of several pairs hold together: all are wider by a factor that is found by simulation (Westfall and Young
    1993). Equal ways are drawn that vary as these do, and the factor lets all intervals hold their differences in the
    given share of the draws. They are also widened for few examples (see [`widen`]). A single pair
    of systems that are not trained has the percentile interval of [`interval`].

    Args:
        samples (`dict[str, Sample]`): The sample of each way on one task, or on average.
        pairs (`Sequence[tuple[str, str]]`, *optional*): The pairs to compare. The default is all of them.
        confidence (`float`, *optional*, defaults to `0.95`): How often all intervals hold their differences together.

    Returns:
        `dict[tuple[str, str], PairDifference]`: The first way minus the second, for each pair.
    """
    if pairs is None:
        pairs = list(combinations(samples, 2))
    compared = {pair: _Contrast.of(samples[pair[0]], samples[pair[1]]) for pair in pairs}
    known = {}
    for pair, each in compared.items():
        # One seed of a trained way does not say what another would give.
        if each.seeds > 1 or (each.seeds == 1 and not each.is_trained):
            known[pair] = each
    ways, scores = _scores_by_seed(samples)
    found = {}
    for pair, each in compared.items():
        found[pair] = PairDifference(each.value, None, None, each.seeds)
    if ways and scores.shape[1] < 2:  # each pair by itself, with the correction of Bonferroni
        level = 1 - (1 - confidence) / max(len(known), 1)
        for pair in known:
            found |= differences({way: samples[way] for way in pair}, [pair], level)
        return found
    if known:
        contrasts = np.zeros((len(known), len(ways)))
        for row, (first, second) in zip(contrasts, known, strict=True):
            row += [float(way == first) - float(way == second) for way in ways]
        ends = _intervals(list(known.values()), scores, contrasts, confidence)
        for pair, (low, high) in zip(known, ends, strict=True):
            found[pair] = replace(found[pair], low=low, high=high)
    return found


@dataclass(frozen=True)
class _Contrast:
    """The difference of two samples: its value, and by seed on the resamples `(seeds, resamples)`."""

    value: float
    drawn: ndarray
    is_trained: bool
    tasks: Sequence[Parts]

    @classmethod
    def of(cls, first: Sample, second: Sample) -> "_Contrast":
        values = []
        drawn = []
        for one, other in _common_seeds(first, second):
            optimism = first.optimism.get(one, 0.0) - second.optimism.get(other, 0.0)
            values.append(first.figures[one] - second.figures[other] - optimism)
            drawn.append(first.resampled[one] - second.resampled[other] - optimism)
        value = float(np.mean(values)) if values else first.mean - second.mean
        return cls(value, np.array(drawn), first.is_trained or second.is_trained, first.tasks)

    @property
    def seeds(self) -> int:
        return len(self.drawn)

    def share_of_all_seeds(self, is_scored: ndarray) -> float:
        """Return the share of the variance over the examples that all seeds have in common: more seeds keep it."""
        if self.seeds == 1:
            return 1.0
        drawn = self.drawn[:, is_scored]
        of_mean = drawn.mean(axis=0).var()
        of_one_seed = (drawn.var(axis=1).mean() - of_mean) * self.seeds / (self.seeds - 1)
        return max(0.0, 1 - of_one_seed / self.seeds / of_mean) if of_mean > 0 else 1.0


def _common_seeds(first: Sample, second: Sample) -> list[tuple[Seed, Seed]]:
    """Pair the seeds of two samples. A system that is not trained is the same beside every seed."""
    if not first.is_trained:
        return [(None, seed) for seed in second.figures]
    if not second.is_trained:
        return [(seed, None) for seed in first.figures]
    common = [seed for seed in first.figures if seed is not None and seed in second.figures]
    return [(seed, seed) for seed in sorted(common)]


def _scores_by_seed(samples: Mapping[str, Sample]) -> tuple[list[str], ndarray]:
    """Return the ways with several seeds, and their scores `(ways, seeds)` on the seeds that all of them have."""
    ways = [way for way in sorted(samples) if samples[way].is_trained and len(samples[way].figures) > 1]
    if not ways:
        return [], np.zeros((0, 0))
    common = set.intersection(*(set(samples[way].figures) for way in ways))
    seeds = sorted(common, key=str)
    scores = []
    for way in ways:
        sample = samples[way]
        scores.append([sample.figures[seed] - sample.optimism.get(seed, 0.0) for seed in seeds])
    return ways, np.array(scores)


def _intervals(
    pairs: Sequence[_Contrast], scores: ndarray, contrasts: ndarray, confidence: float
) -> list[tuple[float, float]]:
    """Return the two ends of each difference; see [`differences`].

    Args:
        pairs (`Sequence[_Contrast]`): The pairs.
        scores (`numpy.ndarray`): The score of each way with each seed, of shape `(ways, seeds)`.
        contrasts (`numpy.ndarray`): 1 for the first way of a pair and -1 for the second, of shape `(pairs, ways)`. A
            system that is not trained has no place.
        confidence (`float`): How often all intervals hold their differences together.
    """
    # 1. The variance of each part, and the quantiles
    quantile = (1 + confidence) / 2
    normal = float(ndtri(quantile))
    drawn = np.array([pair.drawn.mean(axis=0) for pair in pairs])
    is_scored = np.isfinite(drawn).all(axis=0)  # a resample may have too little to be scored
    drawn = drawn[:, is_scored]
    shares = np.array([pair.share_of_all_seeds(is_scored) for pair in pairs])
    parts = np.zeros((len(pairs), 3))
    parts[:, 0] = shares * drawn.var(axis=1)
    quantiles = np.array([normal, 0, 0])
    if len(scores):
        ways, seeds = scores.shape
        parts[:, 1:] = _variances_by_seed(scores, contrasts)
        quantiles[1:] = stdtrit([max(ways - 1, 1) * (seeds - 1), seeds - 1], quantile)
    factor = 1.0
    if len(pairs) > 1:
        factor = _factor_for_all(drawn, parts, quantiles, scores, contrasts, confidence)

    # 2. The ends, which need not be as far from the difference above as below
    found = []
    for pair, on_resamples, share, variances in zip(pairs, drawn, shares, parts, strict=True):
        centre = float(on_resamples.mean())
        ends = interval(on_resamples, confidence, pair.tasks)
        if len(pairs) > 1 and pair.tasks:
            ends = widen(centre, ends, 2 * float(ndtr(factor * normal)) - 1, pair.tasks)
        distances = []
        for end in ends:
            variances = np.array([share * ((end - centre) / normal) ** 2, *variances[1:]])
            distances.append(factor * float(_half_of(variances, quantiles)))
        found.append((centre - distances[0], centre + distances[1]))
    return found


def _half_of(variances: ndarray, quantiles: ndarray) -> ndarray:
    """Return half of an interval from the variances of its parts `(..., parts)` and their quantiles (Cochran 1964)."""
    total = variances.sum(axis=-1)
    return variances @ quantiles / np.sqrt(np.where(total > 0, total, 1))


def _variances_by_seed(scores: ndarray, contrasts: ndarray) -> ndarray:
    """Estimate how much other seeds would change differences between ways.

    Args:
        scores (`numpy.ndarray`): The score of each way with each seed, of shape `(..., ways, seeds)`.
        contrasts (`numpy.ndarray`): The ways of each pair, of shape `(pairs, ways)`.

    Returns:
        `numpy.ndarray`: The variance of each difference by what a seed does to its ways only, and by what it does to
        all ways, of shape `(..., pairs, 2)`.
    """
    ways, seeds = scores.shape[-2:]
    each, common = _components(scores)
    is_alone = contrasts.sum(axis=1) ** 2  # a way beside a system that is not trained
    own = each @ (contrasts**2).T * (1 - is_alone / ways)
    return np.stack([own, common[..., None] * is_alone], axis=-1) / seeds


def _components(scores: ndarray) -> tuple[ndarray, ndarray]:
    """Estimate the variance of each way beyond what its seeds do to all ways, and that of the mean over the ways."""
    ways, seeds = scores.shape[-2:]
    mean = scores.mean(axis=-2, keepdims=True)
    rest = scores - mean
    rest = rest - rest.mean(axis=-1, keepdims=True)
    squares = (rest**2).sum(axis=-1) / (seeds - 1)  # the mean is 1 - 2 / ways of its own, and 1 / ways of that of all
    pooled = squares.sum(axis=-1, keepdims=True) / max(ways - 1, 1)
    own = squares
    if ways > 2:
        own = (squares - pooled / ways) / (1 - 2 / ways)
    common = mean[..., 0, :].var(axis=-1, ddof=1)
    return np.maximum(own, pooled), common


def _factor_for_all(
    drawn: ndarray, parts: ndarray, quantiles: ndarray, scores: ndarray, contrasts: ndarray, confidence: float
) -> float:
    """Return by what factor several intervals are widened, so that they hold their differences together.

    In each simulated study of equal ways, the examples change the differences as in one of the resamples; the seeds
    change them by normal variables with the estimated variances, which are then estimated anew.

    Args:
        drawn (`numpy.ndarray`): The differences on the resamples, of shape `(pairs, resamples)`.
        parts (`numpy.ndarray`): Their variances by examples, ways and seeds, of shape `(pairs, 3)`.
        quantiles (`numpy.ndarray`): The quantiles of the parts.
        scores (`numpy.ndarray`): The score of each way with each seed, of shape `(ways, seeds)`.
        contrasts (`numpy.ndarray`): The ways of each pair, of shape `(pairs, ways)`.
        confidence (`float`): How often the intervals hold their differences together.

    Returns:
        `float`: The factor, at least 1.
    """
    pairs = len(drawn)
    if parts.sum(axis=1).min() < ROUNDING**2:  # two systems differ in no resample
        return float(ndtri(1 - (1 - confidence) / 2 / pairs) / quantiles[0])
    centred = (drawn - drawn.mean(axis=1, keepdims=True)).T
    changes = centred * np.sqrt(parts[:, 0] / np.maximum(drawn.var(axis=1), ROUNDING**2))
    changes = np.resize(changes, (max(_STUDIES, len(changes)), pairs))  # each resample several times
    variances = np.repeat(parts[None], len(changes), axis=0)
    if len(scores):
        ways, seeds = scores.shape
        random = np.random.default_rng(0)
        each, common = _components(scores)
        common = np.maximum(common - each.mean() / ways, 0)
        simulated = np.sqrt(each)[:, None] * random.normal(size=(len(changes), ways, seeds))
        simulated += np.sqrt(common) * random.normal(size=(len(changes), 1, seeds))
        changes = changes + simulated.mean(axis=2) @ contrasts.T
        variances[:, :, 1:] = _variances_by_seed(simulated, contrasts)
    largest = np.max(np.abs(changes) / _half_of(variances, quantiles), axis=1)
    return max(1.0, float(np.quantile(largest, confidence)))
