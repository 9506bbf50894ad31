"""One verdict over several ways to train: paired differences whose intervals hold both tests and seeds, together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy import ndarray

from ..runtime.errors import DataError
from ..runtime.identity import mark
from .bootstrap import Parts, interval, mean_over_drawn_seeds, resampled_scores, scored_examples
from .protocol import PAPER_PROTOCOL, Protocol

#: The seed of a training; `None` for a system that is not trained, such as the start or keyword search.
Seed = int | None


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
class Difference:
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
    def is_better(self) -> bool:
        """Whether the first way is better: the interval lies above 0."""
        return self.low is not None and self.low > 0

    @property
    def is_worse(self) -> bool:
        """Whether the first way is worse: the interval lies below 0."""
        return self.high is not None and self.high < 0


def make_samples(
    scores: Mapping[str, Mapping[Seed, Parts]],
    figures: Mapping[str, Mapping[Seed, float]],
    task: str,
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
) -> dict[str, Sample]:
    """Score several ways on the same resamples of the examples of a task.

    Args:
        scores (`dict[str, dict[int | None, Parts]]`): For each way and seed, the task's entry of `Evaluation.scores`.
        figures (`dict[str, dict[int | None, float]]`): For the same ways and seeds, the score times 100.
        task (`str`): The name of the task, which also decides the resamples: those of two tasks are independent.
        protocol (`Protocol`, *optional*): See [`resampled_scores`].
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.

    Returns:
        `dict[str, Sample]`: The sample of each way.

    Raises:
        DataError: If two ways were not scored on the same examples.
    """
    keys = [(way, seed) for way, by_seed in scores.items() for seed in by_seed]
    systems = [scores[way][seed] for way, seed in keys]
    (first, _), *_ = keys
    examples = scored_examples(systems[0])
    for (way, _), system in zip(keys, systems, strict=True):
        if scored_examples(system) != examples:
            raise DataError(f"{task}: {way} and {first} were not evaluated on the same examples.")
    random = np.random.default_rng([0, mark([task])])
    drawn = dict(zip(keys, resampled_scores(systems, protocol, resamples, random), strict=True))
    samples = {}
    for way, by_seed in scores.items():
        resampled = {seed: drawn[way, seed] for seed in by_seed}
        samples[way] = Sample({seed: figures[way][seed] for seed in by_seed}, resampled, tasks=systems[:1])
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
) -> dict[tuple[str, str], Difference]:
    """Compare ways in pairs, with intervals that say what other examples and other seeds could have shown.

    Runs of one seed see the same rows in the same order, so ways are compared seed by seed.

    Args:
        samples (`dict[str, Sample]`): The sample of each way on one task, or on average.
        pairs (`Sequence[tuple[str, str]]`, *optional*): The pairs to compare. The default is all of them.
        confidence (`float`, *optional*, defaults to `0.95`): How often all intervals hold their differences together.

    Returns:
        `dict[tuple[str, str], Difference]`: The first way minus the second, for each pair.
    """
    if pairs is None:
        pairs = list(combinations(samples, 2))
    level = 1 - (1 - confidence) / max(len(pairs), 1)
    return {(first, second): _difference(samples[first], samples[second], level) for first, second in pairs}


def _difference(first: Sample, second: Sample, level: float) -> Difference:
    seeds = _common_seeds(first, second)
    if not seeds:
        return Difference(first.mean - second.mean, None, None, 0)
    values = []
    resampled = []
    for one, other in seeds:
        optimism = first.optimism.get(one, 0.0) - second.optimism.get(other, 0.0)
        values.append(first.figures[one] - second.figures[other] - optimism)
        resampled.append(first.resampled[one] - second.resampled[other] - optimism)
    value = float(np.mean(values))
    if len(seeds) == 1 and (first.is_trained or second.is_trained):
        return Difference(value, None, None, 1)
    drawn = mean_over_drawn_seeds(np.stack(resampled), np.random.default_rng(1), level)
    low, high = interval(drawn, level, first.tasks)
    return Difference(value, low, high, len(seeds))


def _common_seeds(first: Sample, second: Sample) -> list[tuple[Seed, Seed]]:
    """Pair the seeds of two samples. A system that is not trained is the same beside every seed."""
    if not first.is_trained:
        return [(None, seed) for seed in second.figures]
    if not second.is_trained:
        return [(seed, None) for seed in first.figures]
    common = [seed for seed in first.figures if seed is not None and seed in second.figures]
    return [(seed, seed) for seed in sorted(common)]
