"""Judge the orderings that a paper claims, by a bootstrap over seeds and test examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcse_hf.evaluation.bootstrap import interval, mean_over_drawn_seeds

from .table import Claim

AGREES, DISAGREES, NOISE, NOT_RUN = "agrees", "disagrees", "within noise", "not run"
CONFIDENCE = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Sample:
    """The figures of a cell of a table.

    Args:
        figures (`dict[int, float]`): The figure of each seed, x 100.
        resampled (`dict[int, numpy.ndarray]`): For each seed, the figure on each resample of the test examples, of
            shape `(resamples,)`. All cells are scored on the same resamples.
    """

    figures: dict[int, float]
    resampled: dict[int, np.ndarray]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(list(self.figures.values())))


@dataclass(frozen=True)
class Difference:
    """A difference between two rows, with its confidence interval.

    Args:
        first (`str`): The row above, according to the paper.
        second (`str`): The other row.
        value (`float`): `first - second`, averaged over the seeds of both.
        low (`float`, *optional*): Lower end of the interval; `None` with fewer than two seeds.
        high (`float`, *optional*): Upper end of the interval.
        seeds (`int`): Number of seeds that both have.
    """

    first: str
    second: str
    value: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    Args:
        says (`str`): The paper's words.
        verdict (`str`): `"agrees"`, `"disagrees"`, `"within noise"` or `"not run"`.
        reason (`str`): Why, in words.
        differences (`list[Difference]`): The differences that decide.
    """

    says: str
    verdict: str
    reason: str
    differences: list[Difference] = field(default_factory=list)


def difference(first: Sample, second: Sample, confidence: float = CONFIDENCE) -> tuple[float, float, float, int]:
    """Compare two cells, with an interval that says what other seeds and other test examples could have shown.

    Each resample draws the test examples, which are the same for all runs. The seeds that both cells have are compared
    one by one, because runs of the same seed see the same rows in the same order (see [`mean_over_drawn_seeds`]).

    Args:
        first (`Sample`): A cell.
        second (`Sample`): Another cell of the same column.
        confidence (`float`, *optional*, defaults to `0.95`): Level of the interval.

    Returns:
        `tuple[float, float, float, int]`: The difference, both ends of the percentile interval, and the number of
        seeds. With a single seed the interval is unbounded.
    """
    seeds = sorted(set(first.figures) & set(second.figures))
    if not seeds:
        return float("nan"), -np.inf, np.inf, 0
    value = float(np.mean([first.figures[seed] - second.figures[seed] for seed in seeds]))
    if len(seeds) == 1:
        return value, -np.inf, np.inf, 1
    by_seed = np.stack([first.resampled[seed] - second.resampled[seed] for seed in seeds])
    figures = mean_over_drawn_seeds(by_seed, np.random.default_rng(0), confidence)
    low, high = interval(figures, confidence)
    return value, low, high, len(seeds)


def judge(claim: Claim, samples: Mapping[str, Sample]) -> Verdict:
    """Judge a claim.

    An ordering **agrees** if every difference has an interval at 95% that lies above 0: all of them have to pass, so
    no level is corrected. It **disagrees** if some interval lies below 0, at a level that Bonferroni corrects for the
    number of differences. Rows that are called alike agree if every interval lies within the margin, and disagree if
    some corrected interval lies outside it. Anything else is **within noise**.

    Args:
        claim (`Claim`): The claim.
        samples (`Mapping[str, Sample]`): The cells of its column that were run, by row.

    Returns:
        [`Verdict`]: The verdict.
    """
    if absent := [name for name in dict.fromkeys(claim.rows()) if name not in samples]:
        return Verdict(claim.says, NOT_RUN, f"not run: {'; '.join(absent)}")
    if claim.better is not None:
        pairs = [(_best(claim.better, samples), _best(other, samples)) for other in claim.than]
    else:
        rows = [_best(entry, samples) for entry in claim.similar]
        pairs = [(a, b) for number, a in enumerate(rows) for b in rows[number + 1 :]]
    measured = [difference(samples[a], samples[b]) for a, b in pairs]
    if not all(seeds for *_, seeds in measured):
        return Verdict(claim.says, NOT_RUN, "no seed is finished for both rows of a difference")
    found = []
    for (a, b), (value, low, high, seeds) in zip(pairs, measured, strict=True):
        ends = (low, high) if seeds > 1 else (None, None)
        found.append(Difference(a, b, value, *ends, seeds))
    if min(each.seeds for each in found) < 2:
        return Verdict(
            claim.says, NOISE, "one seed says nothing about what another would give; use --seeds 2 or more", found
        )
    corrected = 1 - (1 - CONFIDENCE) / len(pairs)
    wide = [difference(samples[a], samples[b], corrected) for a, b in pairs]
    margin = claim.within or 0.0
    if claim.better is not None:
        passes = [low > 0 for _, low, _, _ in measured]
        fails = [high < 0 for _, _, high, _ in wide]
        holds = "above 0"
        violates = "below 0"
    else:
        passes = [-margin < low and high < margin for _, low, high, _ in measured]
        fails = [high < -margin or low > margin for _, low, high, _ in wide]
        holds = "within the margin"
        violates = "outside it"
    if all(passes):
        all_hold = f"all {len(pairs)} differences are" if len(pairs) > 1 else "the difference is"
        return Verdict(claim.says, AGREES, f"{all_hold} {holds}", found)
    if any(fails):
        against = "; ".join(f"{a} - {b}" for (a, b), fail in zip(pairs, fails, strict=True) if fail)
        return Verdict(claim.says, DISAGREES, f"against the claim: {against}", found)
    if len(pairs) == 1:
        return Verdict(claim.says, NOISE, f"the difference is neither {holds} nor {violates}", found)
    passed = f"{sum(passes)} of {len(pairs)} differences are {holds}"
    return Verdict(claim.says, NOISE, f"{passed}; after the correction, none is {violates}", found)


def _best(entry: str | Sequence[str], samples: Mapping[str, Sample]) -> str:
    """Return the row that is meant: a list of rows stands for the best of them."""
    return entry if isinstance(entry, str) else max(entry, key=lambda name: samples[name].mean)
