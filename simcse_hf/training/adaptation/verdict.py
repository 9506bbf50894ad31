"""Judge the chosen model against the start model on a part of the tasks that the search never saw."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...evaluation.user_tasks import TaskResult, UserTask, paired_interval

GAIN, NO_GAIN = "gain", "no gain"
CONFIDENCE = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class TaskVerdict:
    """The figures of one task, x 100, before and after.

    Args:
        task (`str`): Name of the task.
        kind (`str`): Its kind.
        metric (`str`): Its headline metric.
        units (`int`): Scored units of the held-out part.
        before (`float`): Headline metric of the start model.
        after (`float`): Headline metric of the chosen model, averaged over seeds.
        difference (`float`): `after - before`.
        interval (`list[float]`): The two ends of the confidence interval of the difference.
        seeds (`list[float]`): Headline metric of each seed.
        metrics (`dict[str, list[float]]`): All metrics, before and after.
    """

    task: str
    kind: str
    metric: str
    units: int
    before: float
    after: float
    difference: float
    interval: list[float]
    seeds: list[float]
    metrics: dict[str, list[float]]

    @property
    def verdict(self) -> str:
        """`"gain"` if the interval lies above 0, else `"no gain"`."""
        return GAIN if self.interval[0] > 0 else NO_GAIN


def judge(
    tasks: Sequence[UserTask],
    names: Sequence[str],
    before: Sequence[TaskResult],
    after: Sequence[Sequence[TaskResult]],
) -> list[TaskVerdict]:
    """Compare a model with the start model on every task.

    The interval comes from a paired bootstrap over the held-out units, with the metric averaged over the seeds.

    Args:
        tasks (`Sequence[UserTask]`): The held-out parts of the tasks.
        names (`Sequence[str]`): Their names.
        before (`Sequence[TaskResult]`): The start model's result on each task.
        after (`Sequence[Sequence[TaskResult]]`): For each seed, its result on each task. Without seeds, the start
            model is the chosen one, and every difference is 0.

    Returns:
        `list[TaskVerdict]`: The verdict on each task.
    """
    verdicts = []
    for number, (task, name) in enumerate(zip(tasks, names, strict=True)):
        first = before[number]
        results = [seed[number] for seed in after]
        difference, low, high = 0.0, 0.0, 0.0
        if results:
            difference, low, high = paired_interval(task, [first], results, resamples=RESAMPLES, confidence=CONFIDENCE)
        seeds = [float(result.metrics[task.metric]) for result in results]
        start = float(first.metrics[task.metric])
        averaged = results or [first]
        means = {name: sum(x.metrics[name] for x in averaged) / len(averaged) for name in first.metrics}
        verdicts.append(
            TaskVerdict(
                task=name,
                kind=task.kind,
                metric=task.metric,
                units=len(task),
                before=round(start, 4),
                after=round(start + difference, 4),
                difference=round(float(difference), 4),
                interval=[round(float(low), 4), round(float(high), 4)],
                seeds=[round(value, 4) for value in seeds],
                metrics={m: [round(float(x), 4), round(float(means[m]), 4)] for m, x in first.metrics.items()},
            )
        )
    return verdicts


def sentence(verdict: TaskVerdict) -> str:
    """Return a verdict in words, such as `gain +1.9 [+0.7, +3.1] on classification (accuracy)`."""
    low, high = verdict.interval
    measured = f"{verdict.difference:+.2f} [{low:+.2f}, {high:+.2f}] on {verdict.task} ({verdict.metric})"
    return f"gain {measured}" if verdict.verdict == GAIN else f"no gain: {measured}"
