"""Choose an arm on one part of a task, and judge it on the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...evaluation.user_tasks import TaskResult, UserTask, paired_interval

GAIN = "gain"
NO_GAIN = "no gain"
CONFIDENCE = 0.95
RESAMPLES = 1000
#: Points on dev that do not outweigh a simpler arm. Dev parts of at most 2,000 rows cannot tell smaller differences
#: apart, and without the rule a whitening's gain would be put down to a training run that adds 0.1 by chance.
TIE_MARGIN = 0.25


def choose(scores: Mapping[str, float]) -> str:
    """Return the first arm whose score is within `TIE_MARGIN` of the best one.

    With 80.0 for a whitening, 80.2 for labels and 81.0 for masked-LM and then labels, the last one is chosen; with
    80.1 in its place, the whitening.

    Args:
        scores (`Mapping[str, float]`): The dev score of each arm, the simplest arm first.

    Returns:
        `str`: The name of an arm.
    """
    best = max(scores.values())
    return next(name for name, score in scores.items() if score >= best - TIE_MARGIN)


@dataclass(frozen=True)
class Comparison:
    """Two arms on the held-out part of a task, x 100.

    Args:
        task (`str`): Name of the task.
        metric (`str`): Its headline metric.
        units (`int`): Scored rows or queries.
        against (`str`): Name of the arm to compare with.
        before (`float`): Its headline metric, averaged over its seeds.
        after (`float`): Headline metric of the chosen arm, averaged over its seeds.
        difference (`float`): `after - before`.
        interval (`list[float]`): The two ends of the confidence interval of the difference.
    """

    task: str
    metric: str
    units: int
    against: str
    before: float
    after: float
    difference: float
    interval: list[float]

    @property
    def verdict(self) -> str:
        """`"gain"` if the interval lies above 0, else `"no gain"`."""
        return GAIN if self.interval[0] > 0 else NO_GAIN

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


def compare(
    task: UserTask, name: str, against: str, before: Sequence[TaskResult], after: Sequence[TaskResult]
) -> Comparison:
    """Compare two arms on a part of a task.

    The interval comes from a paired bootstrap over the rows or queries, and says what other seeds of the training
    could have shown as well. So the seeds must not be those by which an arm was chosen.

    Args:
        task (`UserTask`): The part of the task.
        name (`str`): Its name.
        against (`str`): Name of the first arm.
        before (`Sequence[TaskResult]`): Results of the first arm, one for each seed.
        after (`Sequence[TaskResult]`): Results of the second arm, one for each seed.

    Returns:
        `Comparison`: The scores and their difference.
    """
    interval = paired_interval(task, list(before), list(after), resamples=RESAMPLES, confidence=CONFIDENCE)
    difference, low, high = (round(float(value), 4) for value in interval)
    old = round(fmean(result.metrics[task.metric] for result in before), 4)
    new = round(fmean(result.metrics[task.metric] for result in after), 4)
    return Comparison(name, task.metric, len(task), against, old, new, difference, [low, high])
