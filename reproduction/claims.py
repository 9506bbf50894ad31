"""Judge the orderings that a paper claims, by the differences of the one verdict over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from simcse_hf.evaluation.verdict import Sample, differences

from .table import Claim

AGREES, DISAGREES, NOISE, NOT_RUN = "agrees", "disagrees", "within noise", "not run"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    Args:
        says (`str`): The paper's words.
        verdict (`str`): `"agrees"`, `"disagrees"`, `"within noise"` or `"not run"`.
        reason (`str`): Why, in words.
        differences (`list[dict]`): The differences that decide: the rows `first` and `second`, and the fields of
            [`PairDifference`], with the interval at 95% of each of them alone.
    """

    says: str
    verdict: str
    reason: str
    differences: list[dict[str, Any]] = field(default_factory=list)


def judge(claim: Claim, samples: Mapping[str, Sample]) -> Verdict:
    """Judge a claim of a paper.

    An ordering **agrees** if every difference has an interval at 95% that lies above 0: all of them have to pass, so
    no level is corrected. It **disagrees** if some interval lies below 0, at the level at which all intervals hold
    together. Rows that are called alike agree if every interval lies within the margin, and disagree if some corrected
    interval lies outside it. Anything else is **within noise**.

    Args:
        claim (`Claim`): The claim.
        samples (`Mapping[str, Sample]`): The cells of its column that were run, by row.

    Returns:
        [`Verdict`]: The verdict.
    """
    absent = [name for name in dict.fromkeys(claim.rows()) if name not in samples]
    if absent:
        return Verdict(claim.says, NOT_RUN, f"not run: {'; '.join(absent)}")

    # 1. The differences, each at 95% alone and all together.
    if claim.better is not None:
        pairs = [(_best(claim.better, samples), _best(other, samples)) for other in claim.than]
        inside = (0.0, float("inf"))
        holds = "above 0"
        violates = "below 0"
    else:
        margin = claim.within or 0.0
        pairs = list(combinations([_best(entry, samples) for entry in claim.similar], 2))
        inside = (-margin, margin)
        holds = "within the margin"
        violates = "outside it"
    alone = [differences(samples, [pair], CONFIDENCE)[pair] for pair in pairs]
    together = differences(samples, pairs, CONFIDENCE)
    if any(each.seeds == 0 for each in alone):
        return Verdict(claim.says, NOT_RUN, "no seed is finished for both rows of a difference")
    found = [{"first": a, "second": b, **asdict(each)} for (a, b), each in zip(pairs, alone, strict=True)]
    passes = 0
    against = []
    for (first, second), each in zip(pairs, alone, strict=True):
        corrected = together[first, second]
        if each.low is None or each.high is None or corrected.low is None or corrected.high is None:
            reason = "one seed says nothing about what another would give; use --seeds 2 or more"
            return Verdict(claim.says, NOISE, reason, found)
        passes += inside[0] < each.low and each.high < inside[1]
        if corrected.high < inside[0] or corrected.low > inside[1]:
            against.append(f"{first} - {second}")

    # 2. The verdict.
    if passes == len(pairs):
        all_hold = f"all {len(pairs)} differences are" if len(pairs) > 1 else "the difference is"
        return Verdict(claim.says, AGREES, f"{all_hold} {holds}", found)
    if against:
        return Verdict(claim.says, DISAGREES, f"against the claim: {'; '.join(against)}", found)
    if len(pairs) == 1:
        return Verdict(claim.says, NOISE, f"the difference is neither {holds} nor {violates}", found)
    reason = f"{passes} of {len(pairs)} differences are {holds}; after the correction, none is {violates}"
    return Verdict(claim.says, NOISE, reason, found)


def _best(entry: str | Sequence[str], samples: Mapping[str, Sample]) -> str:
    """Return the row that is meant: a list of rows stands for the best of them."""
    return entry if isinstance(entry, str) else max(entry, key=lambda name: samples[name].mean)
