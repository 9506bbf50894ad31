"""Confidence intervals for the difference of two systems on a user's task."""

import numpy as np

from ..bootstrap import resampled_figures
from .base import TaskResult, UserTask


def paired_interval(
    task: UserTask,
    before: list[TaskResult],
    after: list[TaskResult],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Compare two systems on the same resamples of the scored units (a paired percentile bootstrap).

    A system that was trained with several seeds has a result for each of them; its figure, on the whole task and on
    each resample, is the mean over them. The interval says what another draw of rows or queries could have shown.

    Args:
        task (`UserTask`): The task that gave the results.
        before (`list[TaskResult]`): Results of the first system, one for each seed.
        after (`list[TaskResult]`): Results of the second system, one for each seed.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Confidence level.
        seed (`int`, *optional*, defaults to `0`): Seed of the resamples.

    Returns:
        `tuple[float, float, float]`: The difference of the headline metric (after minus before, times 100), and the
        two ends of its interval.

    Raises:
        ValueError: If a list is empty, a setting is out of range, or the results are not those of the same units.
    """
    if not before or not after:
        raise ValueError("a comparison needs at least one result of each system.")
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(
            f"confidence must lie between 0 and 1 and resamples must be at least 1, got {confidence} and {resamples}."
        )
    results = [*before, *after]
    if any(not np.array_equal(result.scores["unit"], before[0].scores["unit"]) for result in results):
        raise ValueError(f"{task.source}: the results are not those of the same {task.unit}s.")
    systems = [{task.kind: result.scores} for result in results]
    random = np.random.default_rng(seed)
    figures = resampled_figures(systems, "all", "spearman", resamples, random)
    drawn = figures[len(before) :].mean(axis=0) - figures[: len(before)].mean(axis=0)
    low, high = np.nanquantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    means = [np.mean([result.metrics[task.metric] for result in part]) for part in (before, after)]
    return float(means[1] - means[0]), float(low), float(high)
