"""Paired bootstrap: score several systems on the same resampled examples."""

from collections.abc import Collection

import numpy as np
from numpy import ndarray
from scipy.special import ndtri, stdtrit
from scipy.stats import binomtest

from .groups import groups_to_draw
from .protocol import Protocol

CHUNK_ELEMENTS = 1 << 22  # counts held at once: 32 MB
ROUNDING = 1e-9  # an interval that is narrower has ends that differ by rounding errors only

#: Arrays by name, those of a task by subset or split, and those of an [`Evaluation`] by task.
Arrays = dict[str, ndarray]
Parts = dict[str, Arrays]
Scores = dict[str, Parts]


def resampled_counts(
    groups: ndarray,
    resamples: int,
    random: np.random.Generator,
) -> ndarray:
    """Draw whole groups of examples with replacement; return how often each example occurs in each sample.

    Args:
        groups (`numpy.ndarray`): The number of the group of each example, from 0, of shape `(n,)`.
        resamples (`int`): Number of samples.
        random (`numpy.random.Generator`): Random generator.

    Returns:
        `numpy.ndarray`: The counts, of shape `(resamples, n)`.
    """
    n = int(groups.max()) + 1
    drawn = random.integers(n, size=(resamples, n))
    drawn += n * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * n)
    return counts.reshape(resamples, n)[:, groups]


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


def counted_ranks(values: ndarray, counts: ndarray) -> ndarray:
    """Rank values within samples that hold each value `counts` times; tied values share their mean rank.

    Args:
        values (`numpy.ndarray`): Of shape `(n,)`.
        counts (`numpy.ndarray`): How often each value occurs in each sample, of shape `(samples, n)`.

    Returns:
        `numpy.ndarray`: The ranks, of shape `(samples, n)`. The rank of a value with count 0 has no meaning.
    """
    tied = counted_values(values, counts)
    below = tied.cumsum(axis=1) - tied
    ranks = below + (tied + 1) / 2
    place = np.unique(values, return_inverse=True)[1]
    return ranks[:, place]


def counted_correlation(
    x: ndarray,
    y: ndarray,
    counts: ndarray,
    metric: str,
) -> ndarray:
    """Correlate two variables within samples that hold each pair `(x[i], y[i])` `counts[:, i]` times.

    Args:
        x (`numpy.ndarray`): The first variable, of shape `(n,)`.
        y (`numpy.ndarray`): The second variable, of shape `(n,)`.
        counts (`numpy.ndarray`): How often each pair occurs in each sample, of shape `(samples, n)`.
        metric (`str`): `"spearman"` or `"pearson"`.

    Returns:
        `numpy.ndarray`: Correlations of shape `(samples,)`; NaN for a sample in which a variable is constant.
    """
    if metric == "spearman":
        x = counted_ranks(x, counts)
        y = counted_ranks(y, counts)
    total = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
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
    cuts = last_of_equals(similarity[order])
    retrieved = counts.cumsum(axis=1)[:, cuts]
    found = (counts * gold[order]).cumsum(axis=1)[:, cuts]
    new = np.diff(found, axis=1, prepend=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(retrieved > 0, found / retrieved, 0)
        return (new * precision).sum(axis=1) / found[:, -1]


def last_of_equals(ranked: ndarray) -> ndarray:
    """Return whether each of some sorted values is the last of those that equal it, of shape `(n,)`."""
    return np.append(np.diff(ranked) != 0, True)


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
    pairs = np.stack([gold, clusters])
    both = np.unique(pairs, axis=1, return_inverse=True)[1].ravel()
    total = _counted_entropy(gold, counts) + _counted_entropy(clusters, counts)
    mutual = total - _counted_entropy(both, counts)
    return np.divide(2 * mutual, total, out=np.ones_like(total), where=total > 0)


def _counted_entropy(labels: ndarray, counts: ndarray) -> ndarray:
    shares = counted_values(labels, counts) / counts.sum(axis=1, keepdims=True)
    logs = np.log(np.where(shares > 0, shares, 1))
    return -(shares * logs).sum(axis=1)


def check_resampling(resamples: int, confidence: float) -> None:
    """Raise a `ValueError` unless there is at least one resample and the confidence lies between 0 and 1."""
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(
            f"confidence must lie between 0 and 1 and resamples must be at least 1, got {confidence} and {resamples}."
        )


def interval(drawn: ndarray, confidence: float, draws: int = 0) -> tuple[float, float]:
    """Return the percentile interval of resampled differences (Efron and Tibshirani 1993, chapter 13).

    Resampling cannot see what did not happen in a single row. If two systems are right and wrong in the same rows, or
    one is right wherever the other is wrong, every resample has the same difference. The interval is then that of
    [`proportion_interval`] for the share of rows that differ. Where no row differs, either system may be the better
    one, so the interval reaches as far to both sides.

    Args:
        drawn (`numpy.ndarray`): The resampled differences, times 100.
        confidence (`float`): Confidence level.
        draws (`int`, *optional*, defaults to `0`): What [`independent_draws`] returned.

    Returns:
        `tuple[float, float]`: The two ends.
    """
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.nanquantile(drawn, ends)
    if draws and high - low < ROUNDING:
        near, far = proportion_interval(abs(low) / 100, draws, confidence)
        if abs(low) < ROUNDING:
            near = -far
        if low < 0:
            near, far = -far, -near
        low = 100 * near
        high = 100 * far
    return float(low), float(high)


def proportion_interval(share: float, draws: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a share in that many independent draws (Wilson 1927); it has a width at 0 and 1."""
    found = binomtest(round(share * draws), draws).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def independent_draws(systems: list[Parts]) -> int:
    """Return in how many independent draws a task's score is a mean of values from 0 to 1, or 0 if it is no mean."""
    parts = _with_groups(systems)
    name = next(iter(parts))
    if "correct" in parts[name] or "value" in parts[name]:
        return len(np.unique(groups_to_draw(parts[name], name)))
    return 0


def _with_groups(systems: list[Parts]) -> Parts:
    """Return the first system whose scores say which rows share texts, or the first of all if there is none."""
    for parts in systems:
        if all("group" in part for part in parts.values()):
            return parts
    return systems[0]


def mean_over_drawn_seeds(
    scores: ndarray,
    random: np.random.Generator,
    confidence: float,
) -> ndarray:
    """Average the resampled scores of several seeds, and add what other seeds of the training would change.

    The scores of n seeds differ by their training and by their test examples. The variance s² of their means over the
    resamples holds both, and the mean variance v of their deviations within a resample is the second part. So
    (s² - v) / n is what the seeds add to the variance of the average (a component of variance; Searle, Casella and
    McCulloch 1992, chapter 3). It is added as a normal variable, and is 0 where the seeds differ no more than the
    examples explain. n - 1 differences estimate it, so the normal quantile of the confidence is replaced by that of
    Student's t with n - 1 degrees of freedom.

    Args:
        scores (`numpy.ndarray`): The score of each seed on the same resamples, of shape `(seeds, resamples)`.
        random (`numpy.random.Generator`): Random generator.
        confidence (`float`): Confidence level of the interval that is made of the result.

    Returns:
        `numpy.ndarray`: Averages of shape `(resamples,)`; those of `scores` itself for one seed.
    """
    n = len(scores)
    average = scores.mean(axis=0)
    if n == 1:
        return average
    deviations = scores - average
    means = np.nanmean(deviations, axis=1)
    variances = np.nanvar(deviations, axis=1)
    of_seeds = np.nansum(means**2) / (n - 1)  # s²
    of_examples = np.nansum(variances) / (n - 1)  # v
    added = np.sqrt(max(of_seeds - of_examples, 0) / n)
    quantile = (1 + confidence) / 2
    wider = stdtrit(n - 1, quantile) / ndtri(quantile)
    return average + wider * added * random.standard_normal(average.shape)


def resampled_scores(
    systems: list,
    aggregation: str = "all",
    metric: str = "spearman",
    resamples: int = 1000,
    random: np.random.Generator | None = None,
    left_out: bool = False,
) -> ndarray:
    """Score each system of a task on the same resamples of its examples, which are drawn within each subset.

    Args:
        systems (`list[Parts]`): For each system, the task's entry of `Evaluation.scores`: for each subset or split,
            the array `gold` and what is scored: `predicted` scores, `correct` answers or the `value` of each example
            (accuracy or mean), the `similarity` of pairs (average precision), or `clusters` (V-measure). All systems
            have the examples in the same order. Examples of one `group`, if a system has this array, share texts and
            are drawn together; see [`groups_to_draw`].
        aggregation (`str`, *optional*, defaults to `"all"`): `"all"`, `"mean"` or `"wmean"`, for `predicted` scores.
        metric (`str`, *optional*, defaults to `"spearman"`): `"spearman"` or `"pearson"`, for `predicted` scores.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        random (`numpy.random.Generator`, *optional*): Random generator. The default has the seed 0.
        left_out (`bool`, *optional*, defaults to `False`): Score the examples that each resample did not draw.

    Returns:
        `numpy.ndarray`: The task's scores times 100, of shape `(len(systems), resamples)`.

    Raises:
        ValueError: If the aggregation or the metric is unknown.
    """
    Protocol(aggregation=aggregation, metric=metric)  # refuses unknown names
    random = random or np.random.default_rng(0)
    groups = [groups_to_draw(part, name) for name, part in _with_groups(systems).items()]

    def scores(counts: list) -> list:
        return [_scores(parts, counts, aggregation, metric) for parts in systems]

    chunk = max(1, CHUNK_ELEMENTS // sum(map(len, groups)))
    drawn = []
    for start in range(0, resamples, chunk):
        number = min(chunk, resamples - start)
        counts = [resampled_counts(each, number, random) for each in groups]
        if left_out:
            counts = [(each == 0).astype(int) for each in counts]
        drawn.append(scores(counts))
    values = np.concatenate(drawn, axis=1)
    if not left_out and any("clusters" in part for part in systems[0].values()):
        # A row that is drawn twice agrees with itself, which raises the V-measure of every resample. Removing this
        # bias makes the resamples vary around the score of the whole task.
        once = [np.ones((1, len(each)), dtype=int) for each in groups]
        whole = scores(once)
        values += np.array(whole) - values.mean(axis=1, keepdims=True)
    return 100 * values


def optimism_of_choice(start: Parts, candidates: list[Parts], chosen: int, resamples: int = 200) -> float:
    """Estimate by how much the change to a candidate is too high because it was chosen by its score on these examples.

    Each resample chooses the candidate with the highest score on the examples that it drew, and measures the change
    from the start to it on the examples that it left out, which had no part in the choice (Efron and Tibshirani 1997,
    Improvements on cross-validation). The mean of these changes is that of a choice among the candidates; what the
    change to the chosen candidate has beyond it is the optimism of the choice.

    Args:
        start (`dict`): The scores of the start, as an entry of `Evaluation.scores`.
        candidates (`list[dict]`): Those of the candidates.
        chosen (`int`): The position of the chosen candidate.
        resamples (`int`, *optional*, defaults to `200`): Number of resamples.

    Returns:
        `float`: The optimism, times 100, at least 0.
    """
    systems = [start, *candidates]
    drawn = resampled_scores(systems, resamples=resamples)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may leave out too little to be scored
        left_out = resampled_scores(systems, resamples=resamples, left_out=True)
    comparable = np.nan_to_num(drawn[1:], nan=-np.inf)
    best = 1 + comparable.argmax(axis=0)
    measured = left_out[best, np.arange(resamples)] - left_out[0]
    of_chosen = drawn[1 + chosen] - drawn[0]
    optimism = np.nanmean(of_chosen) - np.nanmean(measured)
    return max(0.0, float(optimism))


def _scores(
    task: Parts,
    counts: list,
    aggregation: str,
    metric: str,
) -> ndarray:
    """Return the scores of one system on some samples, of shape `(samples,)`; only correlations have subsets."""
    parts = list(task.values())
    if "predicted" not in parts[0]:
        return _score(parts[0], counts[0])
    if aggregation == "all":
        whole = join_parts(parts)
        count = np.concatenate(counts, axis=1)
        return counted_correlation(whole["predicted"], whole["gold"], count, metric)
    values = []
    for part, count in zip(parts, counts, strict=True):
        values.append(counted_correlation(part["predicted"], part["gold"], count, metric))
    weights = [len(part["gold"]) for part in parts] if aggregation == "wmean" else None
    return np.average(values, axis=0, weights=weights)


def join_parts(parts: Collection) -> Arrays:
    """Return the predicted and gold scores of several subsets as those of one."""
    whole = {}
    for name in ("predicted", "gold"):
        whole[name] = np.concatenate([part[name] for part in parts])
    return whole


def _score(part: Arrays, counts: ndarray) -> ndarray:
    if "similarity" in part:
        return counted_average_precision(part["similarity"], part["gold"], counts)
    if "clusters" in part:
        of_columns = []
        for column in part["clusters"].T:
            of_columns.append(counted_v_measure(column, part["gold"], counts))
        return np.mean(of_columns, axis=0)
    values = part["correct"] if "correct" in part else part["value"]
    return counts @ values / counts.sum(axis=1)
