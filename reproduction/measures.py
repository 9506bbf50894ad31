"""What the columns of a table show: the tasks that measure a model, as it is or after a whitening or a flow."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simcse_hf.data.read import load_text_dataset
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.mteb import evaluate_mteb, mteb_averages
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.report import Evaluation
from simcse_hf.evaluation.scoring import read_tasks
from simcse_hf.evaluation.tasks import SENTEVAL, Task
from simcse_hf.evaluation.tasks.base import TaskResult, headline
from simcse_hf.evaluation.tasks.senteval import (
    STS_SUBSETS,
    STS_TASKS,
    TRANSFER_TASKS,
    LabelledTexts,
    SentEvalTask,
    TransferTask,
    read_scored_pairs,
    read_sts_task,
)
from simcse_hf.evaluation.verdict import Sample, Scored, make_samples, mean_sample
from simcse_hf.postprocessing import VectorTransform, fit_flow, fit_whitening

from .data import find_data, find_senteval
from .regressor import RegressorTask

RESAMPLES = 1000
METHODS = ("whitening", "flow")
FIT_ON = ("nli", "target")
#: Where NLI sentences are: the paper's file, or a smaller one. A transform is fitted on a sample of them.
NLI_FILES = ("data/nli_for_simcse.csv", "nli/nli_triplets.csv")
NLI_SENTENCES = 10_000
DEV = "STS-B dev"
MTEB_OF_THE_PAPER = "MTEB(eng, v1)"

#: How embeddings are transformed before they are scored: the method and what it is fitted on, or nothing.
Transform = tuple[str, ...]


@dataclass(frozen=True)
class Metric:
    """What a column of a table shows.

    Args:
        group (`str`): The evaluation that measures it.
        tasks (`tuple[str, ...]`): The tasks whose figures are averaged.
    """

    group: str
    tasks: tuple[str, ...]

    @property
    def is_resampled(self) -> bool:
        """Whether single examples have scores, so that its figures can be resampled."""
        return self.group not in ("transfer_dev", "geometry", "mteb")


_MTEB = "Classification Clustering PairClassification Reranking Retrieval STS Summarization".split()
_TRANSFER_8 = (*TRANSFER_TASKS, "SST5")
_REGRESSED = ("STSBenchmark", "SICKRelatedness")
#: The figures that a column may show: STS-B dev, an average, one task, or alignment or uniformity on STS-B.
METRICS: dict[str, Metric] = {
    "dev": Metric("dev", (DEV,)),
    "sts": Metric("sts", STS_TASKS),
    "sts_12_16": Metric("sts", tuple(STS_SUBSETS)),
    "transfer": Metric("transfer", TRANSFER_TASKS),
    "transfer_8": Metric("transfer", _TRANSFER_8),
    "transfer_dev": Metric("transfer_dev", TRANSFER_TASKS),
    **{task: Metric("sts" if task in STS_TASKS else "transfer", (task,)) for task in SENTEVAL},
    "mteb": Metric("mteb", ("average",)),
    "regressor": Metric("regressor", _REGRESSED),
    **{f"mteb {category}": Metric("mteb", (category,)) for category in _MTEB},
    **{name: Metric("geometry", (name,)) for name in ("alignment", "uniformity")},
}


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


def name_of(task: str, group: str, transform: Transform) -> str:
    """Return the name that a task has among all that a model is scored on, such as `STS12, whitening, nli`."""
    if group in ("geometry", "mteb"):
        return group
    marks = [group] if group in ("transfer_dev", "regressor") else []
    return ", ".join([task, *marks, *transform])


# Tasks ---------------------------------------------------------------------------------------------------------------


class TransformedTask(SentEvalTask):
    """A task that is scored after a transform of the embeddings.

    BERT-flow and BERT-whitening fit it on other sentences, or on the texts of each test set without their scores,
    which they call "target" (Li et al. 2020, Su et al. 2021). The subsets of an STS task are one set.

    Args:
        shared (`tuple[Task, str, tuple[str, ...]]`): The task, the method, and the texts that it is fitted on.
    """

    @classmethod
    def of(cls, task: Task, method: str, fit_on: Sequence[str]) -> "TransformedTask":
        """Make a task of another one."""
        return cls(task.source, task.name, [], (task, method, tuple(fit_on)), task.protocol)

    def __post_init__(self) -> None:
        task, _, fit_on = self.shared
        self.links = task.links
        self.roles = {None: [*task.texts, *fit_on]}

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Fit the transform, and score the task with it; see [`Task.score`]."""
        task, method, fit_on = self.shared
        texts = task.texts
        if not texts:  # its data is missing
            return task.score(embeddings)
        try:
            transform = _fitted(embeddings, method, fit_on)
        except ValueError as error:
            raise ValueError(f"{self.name}: no {method} can be fitted on its texts: {error}") from error
        vectors = transform.transform(torch.as_tensor(embeddings(texts))).numpy()
        return task.score(SentenceEmbeddings({None: texts}, vectors))


class MTEBTask(SentEvalTask):
    """The averages of MTEB, which encodes texts itself."""

    @classmethod
    def of(cls, load: Callable[[], Any]) -> "MTEBTask":
        """Make the task of a function that loads the model."""
        task = cls(MTEB_OF_THE_PAPER, "mteb", [])
        task.load = load
        return task

    def __post_init__(self) -> None:
        self.roles = {}
        self.links = []

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Evaluate the model; see [`Task.score`]."""
        scores = evaluate_mteb(self.load(), [MTEB_OF_THE_PAPER])
        return TaskResult({}, {}, mteb_averages(scores, [MTEB_OF_THE_PAPER]))


@lru_cache(maxsize=1)  # as tasks follow each other that share what they are fitted on
def _fitted(embeddings: SentenceEmbeddings, method: str, fit_on: tuple[str, ...]) -> VectorTransform:
    raw = torch.as_tensor(embeddings(fit_on))
    return fit_whitening([raw]) if method == "whitening" else fit_flow(raw)[0]


@cache
def read_group(
    group: str, transform: Transform, data_dir: Path, dev_file: str | None, examples: int | None
) -> dict[str, Task]:
    """Read the tasks of an evaluation, once in a process.

    Args:
        group (`str`): The group of a metric.
        transform (`tuple[str, ...]`): The method of a transform and what it is fitted on, or nothing.
        data_dir (`Path`): The folder of data.
        dev_file (`str`, *optional*): STS-B dev, for the group `dev`.
        examples (`int`, *optional*): Number of examples to draw from each split of a transfer task; by default all.

    Returns:
        `dict[str, Task]`: The tasks by the names of [`name_of`].

    Raises:
        ValueError: If a transform cannot be fitted, or data is missing.
    """
    if transform and group not in ("dev", "sts") and (group, transform[1]) != ("transfer", "nli"):
        raise ValueError(f"no {' fitted on '.join(transform)} is possible for the metrics of {group}")

    # 1. The tasks
    senteval = find_senteval(data_dir)
    tasks: dict[str, Task] = {}
    if group == "dev":
        path = find_data(str(dev_file), data_dir)
        if path is None:
            raise ValueError(f"missing: {dev_file}")
        tasks, _, _ = read_tasks(pairs=[read_scored_pairs(path, DEV)])
    elif group == "regressor":
        for name in _REGRESSED:
            parts = read_sts_task(name, senteval, ("test", "dev", "train"))
            tasks[name] = RegressorTask.of(name, parts, name)
    elif group == "geometry":
        tasks, _, _ = read_tasks(data_dir=senteval, tasks=(), geometry=True)
    else:
        names = {"sts": STS_TASKS, "transfer": _TRANSFER_8, "transfer_dev": TRANSFER_TASKS}[group]
        mode = "dev" if group == "transfer_dev" else "test"
        tasks, _, _ = read_tasks(data_dir=senteval, tasks=names, mode=mode)

    # 2. A sample of the examples of a transfer task
    for name, task in tasks.items():
        if examples is not None and isinstance(task, TransferTask):
            drawn = {split: _draw(rows, examples) for split, rows in task.splits.items()}
            tasks[name] = TransferTask.of(name, drawn, task.source, task.protocol)

    # 3. The transform
    if transform:
        method, fit_on = transform
        for name, task in tasks.items():
            texts = nli_sentences(data_dir) if fit_on == "nli" else task.texts
            tasks[name] = TransformedTask.of(task, method, texts)
    return {name_of(name, group, transform): task for name, task in tasks.items()}


def _draw(examples: LabelledTexts, count: int) -> LabelledTexts:
    """Return at most `count` examples, drawn at random; they are the same in every call."""
    if count >= len(examples):
        return examples
    return [examples[row] for row in sorted(random.Random(0).sample(range(len(examples)), count))]


@cache
def nli_sentences(data_dir: Path) -> tuple[str, ...]:
    """Draw distinct sentences of the NLI file in the folder of data, with seed 0."""
    for name in NLI_FILES:
        path = find_data(name, data_dir)
        if path is not None:
            rows = load_text_dataset(path)
            texts = list(dict.fromkeys(text for column in rows.column_names for text in rows[column]))
            return tuple(random.Random(0).sample(texts, min(NLI_SENTENCES, len(texts))))
    raise ValueError(f"a transform is fitted on NLI sentences: put {' or '.join(NLI_FILES)} into --data_dir")


# Figures -------------------------------------------------------------------------------------------------------------


def sample_metric(
    evaluations: Mapping[int | None, Evaluation],
    shown: Metric,
    transform: Transform,
    aggregation: Any,
    correlation: Any,
) -> tuple[Sample, list[str]]:
    """Return the figures of a metric, x 100 (alignment and uniformity as they are), and the tasks that it averages.

    Accuracies on dev splits are folds of a cross-validation, of which no answers are kept, as are none of alignment,
    uniformity and MTEB. They are the same on every resample.

    Args:
        evaluations (`dict[int | None, Evaluation]`): The results of one way to train, by seed.
        shown (`Metric`): The metric.
        transform (`tuple[str, ...]`): How embeddings were transformed.
        aggregation (`str`): How STS12 to STS16 make one figure.
        correlation (`str`): `"spearman"` or `"pearson"`.

    Returns:
        `tuple[Sample, list[str]]`: The sample, without figures if there is no data, and the tasks that have data.
    """
    protocol = Protocol("dev" if shown.group == "transfer_dev" else "test", aggregation, correlation)
    samples = []
    averaged = []
    for task in shown.tasks:
        name = name_of(task, shown.group, transform)
        figures: dict[int | None, float] = {}
        for seed, evaluation in evaluations.items():
            document = evaluation.results[name]
            if shown.group == "geometry":
                figure = document[task]
            elif shown.group == "mteb":
                figure = document[task]["value"]
            else:
                figure = headline(document, protocol)
            if figure is not None:
                figures[seed] = figure
        if not figures:  # the data of the task is missing
            continue
        averaged.append(task)
        if shown.is_resampled:
            scores = {seed: Scored(figure, evaluations[seed].scores[name]) for seed, figure in figures.items()}
            samples.append(make_samples({task: scores}, task, protocol, RESAMPLES)[task])
        else:
            resampled = {seed: np.full(RESAMPLES, figure) for seed, figure in figures.items()}
            samples.append(Sample(figures, resampled))
    return (mean_sample(samples) if samples else Sample({}, {})), averaged


def quantile_sample(points: Sequence[Sample], quantile: float) -> Sample:
    """Return a quantile over the points of a scan, for each seed with which all of them are finished."""
    first, *others = points
    if not others:
        return first
    figures = {}
    resampled = {}
    for seed in first.figures:
        if all(seed in other.figures for other in others):
            figures[seed] = float(np.quantile([each.figures[seed] for each in points], quantile))
            resampled[seed] = np.quantile([each.resampled[seed] for each in points], quantile, axis=0)
    return Sample(figures, resampled, tasks=first.tasks)
