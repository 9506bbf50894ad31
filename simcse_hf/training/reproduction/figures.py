"""Measure a trained model for a table, and read the figures of its columns from the results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...evaluation.bootstrap import resampled_figures
from ...evaluation.embeddings import Encoder, SentenceEmbeddings
from ...evaluation.pairs import read_scored_pairs
from ...evaluation.report import Scores, headline
from ...evaluation.run import Protocol, TaskData, read_tasks, score_tasks
from ...evaluation.tasks import ALL_TASKS, STS_TASKS, TRANSFER_TASKS

DEV = "STS-B dev"


@dataclass(frozen=True)
class Metric:
    """What a column of a table shows.

    Args:
        group (`str`): The evaluation that measures it: a key of `GROUPS`.
        tasks (`tuple[str, ...]`): The tasks whose figures are averaged.
    """

    group: str
    tasks: tuple[str, ...]


#: The tasks and the mode of each evaluation.
GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "dev": ((), "test"),
    "sts": (STS_TASKS, "test"),
    "transfer": (TRANSFER_TASKS, "test"),
    "transfer_dev": (TRANSFER_TASKS, "dev"),
}
#: The figures that a column may show: STS-B dev, an average, or one task.
METRICS: dict[str, Metric] = {
    "dev": Metric("dev", (DEV,)),
    **{group: Metric(group, tasks) for group, (tasks, _) in GROUPS.items() if tasks},
    **{task: Metric("sts" if task in STS_TASKS else "transfer", (task,)) for task in ALL_TASKS if task != "SST5"},
}


@dataclass
class Measured:
    """The results of a run.

    Args:
        results (`dict`): For each group, the results by task, as in [`Evaluation`].
        scores (`dict`): For each group, the scores by task that the bootstrap resamples.
    """

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)


def metric(name: str) -> Metric:
    """Return the metric of a name.

    Args:
        name (`str`): One of `METRICS`.

    Returns:
        [`Metric`]: The metric.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in METRICS:
        raise ValueError(f"metric {name!r} is unknown; use one of {', '.join(METRICS)}")
    return METRICS[name]


@cache
def _data(group: str, senteval: Path, dev_file: Path | None) -> TaskData:
    """Read the data of a group once in a process."""
    tasks, mode = GROUPS[group]
    if group == "dev":
        assert dev_file is not None
        return read_tasks((), None, pairs=(read_scored_pairs(dev_file, DEV),))
    return read_tasks(tasks, senteval, Protocol(mode=mode))


def measure(model: Encoder, groups: Sequence[str], senteval: Path, dev_file: Path | None) -> Measured:
    """Measure a model.

    Args:
        model (`Encoder`): An object with `encode`.
        groups (`Sequence[str]`): Keys of `GROUPS`.
        senteval (`Path`): SentEval's `downstream` folder.
        dev_file (`Path`, *optional*): STS-B dev, for the group `dev`.

    Returns:
        [`Measured`]: The results and scores.
    """
    data = {group: _data(group, senteval, dev_file) for group in groups}
    embeddings = SentenceEmbeddings(model, (text for each in data.values() for text in each.texts()))
    measured = Measured()
    for group, each in data.items():
        tasks, mode = GROUPS[group]
        evaluation = score_tasks(each, embeddings, tasks, Protocol(mode=mode))
        measured.results[group] = {name: x for name, x in evaluation.results.items() if not name.startswith("average")}
        measured.scores[group] = evaluation.scores
    return measured


def figure(measured: Measured, name: str, aggregation: str, correlation: str) -> tuple[float, tuple[str, ...]]:
    """Return the figure of a metric, x 100, and the tasks that it averages.

    Args:
        measured (`Measured`): The results of a run.
        name (`str`): One of `METRICS`.
        aggregation (`str`): How STS12 to STS16 make one figure.
        correlation (`str`): `"spearman"` or `"pearson"`.

    Returns:
        `tuple[float, tuple[str, ...]]`: The figure, NaN if there is none, and the tasks that have data.
    """
    chosen = metric(name)
    results, mode = measured.results.get(chosen.group, {}), GROUPS[chosen.group][1]
    values = {
        task: headline(results[task], mode, aggregation, correlation) for task in chosen.tasks if task in results
    }
    present = {task: value for task, value in values.items() if value is not None}
    return (float(np.mean(list(present.values()))) if present else float("nan")), tuple(present)


def resample(runs: Sequence[Measured], name: str, aggregation: str, correlation: str, resamples: int) -> np.ndarray:
    """Compute the figure of a metric for several runs on the same resamples of the test examples.

    Accuracies on dev splits are folds of a cross-validation, of which no answers are kept. They are not resampled.

    Args:
        runs (`Sequence[Measured]`): The results of the runs.
        name (`str`): One of `METRICS`.
        aggregation (`str`): How STS12 to STS16 make one figure.
        correlation (`str`): `"spearman"` or `"pearson"`.
        resamples (`int`): Number of resamples.

    Returns:
        `numpy.ndarray`: Figures x 100 of shape `(runs, resamples)`.
    """
    chosen = metric(name)
    if chosen.group == "transfer_dev":
        figures = [figure(run, name, aggregation, correlation)[0] for run in runs]
        return np.repeat(np.array(figures)[:, None], resamples, axis=1)
    _, tasks = figure(runs[0], name, aggregation, correlation)
    drawn = [
        resampled_figures(
            [run.scores[chosen.group][task] for run in runs],
            aggregation,
            correlation,
            resamples,
            np.random.default_rng(number),
        )
        for number, task in enumerate(tasks)
    ]
    return np.mean(drawn, axis=0)
