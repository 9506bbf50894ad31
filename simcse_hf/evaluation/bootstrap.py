"""The paired bootstrap over the scores of single examples, whose groups share texts."""

import math
from collections.abc import Iterable

import numpy as np
from numpy import ndarray
from scipy.special import ndtri, stdtrit
from scipy.stats import rankdata
from transformers.utils import logging

from ..runtime.errors import DataError, SettingError, check_values
from .protocol import PAPER_PROTOCOL, Protocol

logger = logging.get_logger(__name__)

#: Fewest groups that the bootstrap draws, counted by their effective number.
LEAST_GROUPS = 20
#: Fewest groups from which a correlation, or another score that is not a mean, gets an interval.
FEWEST_GROUPS = 5
_LARGEST = 200.0  # difference of two correlations, times 100
# A part may be this much smaller than asked for before a split is refused.
_SMALLEST_OF_SHARE = 0.5
CHOICES = 200  # resamples of a choice of a checkpoint
CHUNK_ELEMENTS = 1 << 22  # counts held at once: 32 MB
ROUNDING = 1e-9  # an interval that is narrower has ends that differ by rounding errors only

#: Arrays by name, those of a task by subset or split, and those of an [`Evaluation`] by task.
Arrays = dict[str, ndarray]
Parts = dict[str, Arrays]
Scores = dict[str, Parts]


def divide_groups(
    groups: ndarray, share: float, seed: int, where: str, advice: str = "Give two separate files instead."
) -> ndarray:
    """Divide units so that no group is in both parts: large groups first, each to the part that lacks more units.

    Args:
        groups (`numpy.ndarray`): The group of each unit, of shape `(n,)`.
        share (`float`): Share of the units in the first part.
        seed (`int`): Seed of the order of groups of equal size.
        where (`str`): The task's file, for messages.
        advice (`str`, *optional*): What the error says to do.

    Returns:
        `numpy.ndarray`: Whether each unit belongs to the first part, of shape `(n,)`.

    Raises:
        DataError: If a group is so large that a part would have less than half of its share.
    """
    numbers, sizes = np.unique(groups, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    wanted = np.array([share, 1 - share]) * len(groups)
    lacking = wanted.copy()
    chosen = []
    for position in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        part = int(np.argmax(lacking))
        lacking[part] -= sizes[position]
        if part == 0:
            chosen.append(numbers[position])
    if (wanted - lacking < _SMALLEST_OF_SHARE * wanted).any():
        raise DataError(
            f"{where}: {sizes.max()} of {len(groups)} rows are linked by shared texts, so two parts would have texts "
            f"in common. {advice}"
        )
    return np.isin(groups, chosen)


def groups_to_draw(groups: ndarray, where: str) -> ndarray:
    """Return what the bootstrap draws as a whole: groups of rows that share texts, or single rows.

    Rows that share a text are alike in what a model makes of it, so an interval that draws them one by one is too
    narrow. Groups are drawn if there are enough of them, or at least half as many as rows. Groups of n rows in all, of
    which group i has n_i, vary as n² / Σ n_i² groups of equal size do (Kish 1965, section 8.2), so one that holds most
    rows counts for little.

    Args:
        groups (`numpy.ndarray`): The number of the group of each row, of shape `(n,)`.
        where (`str`): Name of the subset or split, for messages.

    Returns:
        `numpy.ndarray`: The number of the group of each row, of shape `(n,)`.
    """
    n = len(groups)
    sizes = np.bincount(groups)
    least = min(LEAST_GROUPS, n / 2)  # few rows make few groups, which are drawn all the same
    if n**2 < least * (sizes**2).sum():
        logger.warning_once(
            f"{where}: most rows share texts with each other (the largest group has {sizes.max()} of {n} rows), so "
            "the intervals resample single rows and may be too narrow. Use pairs with more different texts."
        )
        return np.arange(n)
    return groups


def counted_values(values: ndarray, counts: ndarray) -> ndarray:
    """Count equal values together.

    Args:
        values (`numpy.ndarray`): Of shape `(n,)`.
        counts (`numpy.ndarray`): How often each of them occurs in each sample, of shape `(samples, n)`.

    Returns:
        `numpy.ndarray`: How often each distinct value occurs in each sample, in ascending order of the values, of
        shape `(samples, distinct)`.
    """
    order = np.argsort(values, kind="stable")
    is_first = np.append(True, np.diff(values[order]) != 0)
    starts = np.flatnonzero(is_first)
    return np.add.reduceat(counts[:, order], starts, axis=1)


def counted_correlation(x: ndarray, y: ndarray, counts: ndarray, metric: str) -> ndarray:
    """Correlate two variables within samples that hold each pair `(x[i], y[i])` `counts[:, i]` times.

    For Spearman's correlation, the values are ranked within each sample, and tied values share their mean rank.

    Args:
        x (`numpy.ndarray`): The first variable, of shape `(n,)`.
        y (`numpy.ndarray`): The second variable, of shape `(n,)`.
        counts (`numpy.ndarray`): How often each pair occurs in each sample, of shape `(samples, n)`.
        metric (`str`): `"spearman"` or `"pearson"`.

    Returns:
        `numpy.ndarray`: Correlations of shape `(samples,)`; NaN for a sample in which a variable is constant.
    """
    total = counts.sum(axis=1, keepdims=True)
    centred = []
    for values in (x, y):
        if metric == "spearman":
            tied = counted_values(values, counts)
            below = tied.cumsum(axis=1) - tied
            ranks = below + (tied + 1) / 2
            values = ranks[:, np.unique(values, return_inverse=True)[1]]
        centred.append(values - (counts * values).sum(axis=1, keepdims=True) / total)
    x, y = centred
    covariance = (counts * x * y).sum(axis=1)
    x_variance = (counts * x * x).sum(axis=1)
    y_variance = (counts * y * y).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return covariance / np.sqrt(x_variance * y_variance)


def counted_average_precision(similarity: ndarray, gold: ndarray, counts: ndarray) -> ndarray:
    """Compute the average precision within samples that hold each pair `counts[:, i]` times.

    Args:
        similarity (`numpy.ndarray`): The score that ranks the pairs, of shape `(n,)`. Pairs with equal scores are
            counted together, as in scikit-learn.
        gold (`numpy.ndarray`): 1 for a positive pair and 0 for a negative one, of shape `(n,)`.
        counts (`numpy.ndarray`): How often each pair occurs in each sample, of shape `(samples, n)`.

    Returns:
        `numpy.ndarray`: Average precisions of shape `(samples,)`; NaN for a sample without a positive pair.
    """
    order = np.argsort(-similarity, kind="stable")
    counts = counts[:, order]
    cuts = np.append(np.diff(similarity[order]) != 0, True)  # the last of each equal values
    retrieved = counts.cumsum(axis=1)[:, cuts]
    found = (counts * gold[order]).cumsum(axis=1)[:, cuts]
    new = np.diff(found, axis=1, prepend=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(retrieved > 0, found / retrieved, 0)
        return (new * precision).sum(axis=1) / found[:, -1]


def counted_v_measure(clusters: ndarray, gold: ndarray, counts: ndarray) -> ndarray:
    """Compute the V-measure within samples that hold each row `counts[:, i]` times.

    Homogeneity is I / H(gold) and completeness I / H(clusters), with the mutual information I, so their harmonic mean
    is 2 I / (H(gold) + H(clusters)).

    Args:
        clusters (`numpy.ndarray`): The cluster of each row, of shape `(n,)`.
        gold (`numpy.ndarray`): The label of each row, of shape `(n,)`.
        counts (`numpy.ndarray`): How often each row occurs in each sample, of shape `(samples, n)`.

    Returns:
        `numpy.ndarray`: V-measures of shape `(samples,)`; 1 where there is one label and one cluster only.
    """

    def entropy(labels: ndarray) -> ndarray:
        shares = counted_values(labels, counts) / counts.sum(axis=1, keepdims=True)
        logs = np.log(np.where(shares > 0, shares, 1))
        return -(shares * logs).sum(axis=1)

    _, both = np.unique(np.stack([gold, clusters]), axis=1, return_inverse=True)
    both = both.ravel()
    total = entropy(gold) + entropy(clusters)
    mutual = total - entropy(both)
    return np.divide(2 * mutual, total, out=np.ones_like(total), where=total > 0)


def counted_macro_f1(assigned: ndarray, labels: ndarray, counts: ndarray) -> ndarray:
    """Compute the mean F1 of labels within samples that hold each row `counts[:, i]` times.

    Args:
        assigned (`numpy.ndarray`): Whether a row was given each label, of shape `(n, labels)`.
        labels (`numpy.ndarray`): Whether it has the label, of shape `(n, labels)`.
        counts (`numpy.ndarray`): How often each row occurs in each sample, of shape `(samples, n)`.

    Returns:
        `numpy.ndarray`: Means over the labels that a row of the sample has, of shape `(samples,)`.
    """
    has_label = counts @ labels
    right = counts @ (assigned & labels)
    f1 = 2 * right / np.maximum(has_label + counts @ assigned, 1)
    return np.mean(f1, axis=1, where=has_label > 0)


def check_interval(confidence: float, resamples: int = 1000) -> None:
    """Check that there are intervals of a confidence level from a number of resamples.

    Args:
        confidence (`float`): The confidence level.
        resamples (`int`, *optional*, defaults to `1000`): The number of resamples.

    Raises:
        SettingError: If the level does not lie between 0 and 1, or the ends lie beyond all resamples.
    """
    check_values("a number between 0 and 1", confidence=confidence)
    check_values("an integer above 0", resamples=resamples)
    if confidence in (0, 1):
        raise SettingError(f"confidence must lie between 0 and 1, got {confidence}")
    least = math.ceil(round(2 / (1 - confidence), 6))
    if resamples < least:
        raise SettingError(
            f"resamples must be at least {least} for a confidence of {confidence:g}, got {resamples}: with fewer, the "
            "ends of an interval lie beyond all resamples"
        )


def interval(drawn: ndarray, confidence: float, tasks: Iterable[Parts] = ()) -> tuple[float, float]:
    """Return the percentile interval of resampled differences (Efron and Tibshirani 1993, chapter 13).

    Resampling cannot see what did not happen in a single row. If two systems are right and wrong in the same rows, or
    one is right wherever the other is wrong, every resample has the same difference. The interval is then that of
    [`proportion_interval`] for the share of rows that differ, if the scores are means over rows of values from 0 to 1.
    Where no row differs, either system may be the better one, so the interval reaches as far to both sides.

    Resamples of four pairs have nearly the same ranks, so the spread of their correlations does not show what other
    pairs would give. For scores that are not means, such as a correlation, the interval therefore holds every possible
    difference if there are fewer than `FEWEST_GROUPS` groups.

    Args:
        drawn (`numpy.ndarray`): The resampled differences, times 100.
        confidence (`float`): Confidence level.
        tasks (`Iterable[Parts]`, *optional*): The tasks over which the difference is averaged, as entries of
            `Evaluation.scores`.

    Returns:
        `tuple[float, float]`: The two ends.
    """
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.nanquantile(drawn, ends)
    draws = []
    for parts in tasks:
        part = next(iter(parts.values()))
        number = count_groups(parts)
        is_mean = "correct" in part or "value" in part
        if not is_mean and number < FEWEST_GROUPS:
            return -_LARGEST, _LARGEST
        draws.append(number if is_mean else 0)
    fewest = min(draws, default=0)
    if fewest and high - low < ROUNDING:
        near, far = proportion_interval(abs(low) / 100, fewest, confidence)
        if abs(low) < ROUNDING:
            near = -far
        if low < 0:
            near, far = -far, -near
        low = 100 * near
        high = 100 * far
    return float(low), float(high)


def count_groups(parts: Parts) -> int:
    """Count the groups that the bootstrap draws in all subsets of a task."""
    return sum(len(np.unique(groups_to_draw(part["group"], name))) for name, part in parts.items())


def widen(centre: float, ends: tuple[float, float], confidence: float, tasks: Iterable[Parts]) -> tuple[float, float]:
    """Widen a percentile interval of few examples, whose ends are too near, above all at high levels.

    With n groups, the variance of the resamples is too small by the factor (n - 1) / n, and their quantiles are those
    of a normal variable, which are nearer than those of Student's t with n - 1 degrees of freedom. Both are corrected
    (the expanded percentile interval of Hesterberg 2015).

    Args:
        centre (`float`): The difference.
        ends (`tuple[float, float]`): The ends of its interval.
        confidence (`float`): Confidence level of the interval.
        tasks (`Iterable[Parts]`): What was resampled. That with the fewest groups counts.

    Returns:
        `tuple[float, float]`: The ends, farther from the centre.
    """
    n = max(min(map(count_groups, tasks)), 2)
    quantile = (1 + confidence) / 2
    factor = stdtrit(n - 1, quantile) / ndtri(quantile) * np.sqrt(n / (n - 1))
    low, high = (centre + factor * (end - centre) for end in ends)
    return float(low), float(high)


def proportion_interval(share: float, draws: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a share in that many independent draws (Wilson 1927); it has a width at 0 and 1."""
    z = ndtri((1 + confidence) / 2)
    scale = 2 * (draws + z**2)
    centre = (2 * draws * share + z**2) / scale
    width = z / scale * np.sqrt(4 * draws * share * (1 - share) + z**2)
    low = centre - width if share > 0 else 0.0
    high = centre + width if share < 1 else 1.0
    return float(low), float(high)


def resampled_scores(
    systems: list,
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
    random: np.random.Generator | None = None,
    left_out: bool = False,
    fixed_ranks: bool = False,
) -> ndarray:
    """Score each system of a task on the same resamples of its examples, which are drawn within each subset.

    Args:
        systems (`list[Parts]`): For each system, the task's entry of `Evaluation.scores`: for each subset or split,
            the array `gold` and what is scored: `predicted` scores, `correct` answers or the `value` of each example
            (accuracy or mean), the `similarity` of pairs (average precision), `clusters` (V-measure), or `assigned`
            and true `labels` (macro-F1). All systems have the examples in the same order. Examples of one `group`
            share texts and are drawn together; see [`groups_to_draw`].
        protocol (`Protocol`, *optional*): Its aggregation and metric decide how `predicted` scores are scored.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        random (`numpy.random.Generator`, *optional*): Random generator. The default has the seed 0.
        left_out (`bool`, *optional*, defaults to `False`): Score the examples that each resample did not draw.
        fixed_ranks (`bool`, *optional*, defaults to `False`): Compute Spearman's correlation of a resample from the
            ranks that its pairs have among all pairs. A pair that a resample holds twice is then not tied with itself,
            as no pair of a new sample is, and with few pairs a difference between systems varies as it does between
            new samples. A single score varies too little with fixed ranks.

    Returns:
        `numpy.ndarray`: The task's scores times 100, of shape `(len(systems), resamples)`.
    """
    random = random or np.random.default_rng(0)
    groups = [groups_to_draw(part["group"], name) for name, part in systems[0].items()]
    chunk = max(1, CHUNK_ELEMENTS // sum(map(len, groups)))
    drawn = []
    for start in range(0, resamples, chunk):
        number = min(chunk, resamples - start)
        counts = []
        for each in groups:  # whole groups, with replacement
            n = int(each.max()) + 1
            places = random.integers(n, size=(number, n)) + n * np.arange(number)[:, None]
            times = np.bincount(places.ravel(), minlength=number * n).reshape(number, n)
            counts.append(times[:, each])
        if left_out:
            counts = [(each == 0).astype(int) for each in counts]
        drawn.append([_scores(parts, counts, protocol, fixed_ranks) for parts in systems])
    values = np.concatenate(drawn, axis=1)
    if not left_out and any("clusters" in part for part in systems[0].values()):
        # A row that is drawn twice agrees with itself, which raises the V-measure of every resample. Removing this
        # bias makes the resamples vary around the score of the whole task.
        once = [np.ones((1, len(each)), dtype=int) for each in groups]
        whole = [_scores(parts, once, protocol) for parts in systems]
        values += np.array(whole) - values.mean(axis=1, keepdims=True)
    return 100 * values


def _scores(task: Parts, counts: list, protocol: Protocol, fixed_ranks: bool = False) -> ndarray:
    """Return the scores of one system on some samples, of shape `(samples,)`; only correlations have subsets."""
    parts = list(task.values())
    part = parts[0]
    of_part = counts[0]
    for name in ("correct", "value"):
        if name in part:
            return of_part @ part[name] / of_part.sum(axis=1)
    if "similarity" in part:
        return counted_average_precision(part["similarity"], part["gold"], of_part)
    if "assigned" in part:
        return counted_macro_f1(part["assigned"], part["labels"], of_part)
    if "clusters" in part:
        return np.mean([counted_v_measure(each, part["gold"], of_part) for each in part["clusters"].T], axis=0)
    if protocol.aggregation == "all":
        parts = [{name: np.concatenate([each[name] for each in parts]) for name in ("predicted", "gold")}]
        counts = [np.concatenate(counts, axis=1)]
    correlations = []
    for part, of_part in zip(parts, counts, strict=True):
        predicted = part["predicted"]
        gold = part["gold"]
        metric = protocol.metric
        if fixed_ranks and metric == "spearman":
            predicted = rankdata(predicted)
            gold = rankdata(gold)
            metric = "pearson"
        correlations.append(counted_correlation(predicted, gold, of_part, metric))
    weights = [len(part["gold"]) for part in parts] if protocol.aggregation == "wmean" else None
    return np.average(correlations, axis=0, weights=weights)


def scored_examples(parts: Parts) -> list:
    """Return what tells the examples that were scored from any others, in their order."""
    found = []
    for name, part in parts.items():
        unit = part.get("unit", part["gold"])  # STS and transfer tasks have none
        found.append((name, part["gold"].tolist(), unit.tolist()))
    return found


def optimism_of_choice(start: Parts, chosen: Parts, others: list[Parts]) -> float:
    """Estimate by how much the change to a candidate is too high because it was chosen by its score on these examples.

    Each resample chooses the candidate with the highest score on the examples that it drew, and measures the change
    from the start to it on the examples that it left out, which had no part in the choice (Efron and Tibshirani 1997,
    Improvements on cross-validation). The mean of these changes is that of a choice among the candidates; what the
    change to the chosen candidate has beyond it is the optimism of the choice.

    Args:
        start (`dict`): The scores of the start, as an entry of `Evaluation.scores`.
        chosen (`dict`): Those of the chosen candidate.
        others (`list[dict]`): Those of the other candidates.

    Returns:
        `float`: The optimism, times 100, at least 0.
    """
    systems = [start, chosen, *others]
    drawn = resampled_scores(systems, resamples=CHOICES)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may leave out too little to be scored
        left_out = resampled_scores(systems, resamples=CHOICES, left_out=True)
    comparable = np.nan_to_num(drawn[1:], nan=-np.inf)
    best = 1 + comparable.argmax(axis=0)
    measured = left_out[best, np.arange(CHOICES)] - left_out[0]
    optimism = np.nanmean(drawn[1] - drawn[0]) - np.nanmean(measured)
    return max(0.0, float(optimism))
