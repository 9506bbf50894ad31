"""Measure a trained model for a table, and read the figures of its columns from the results."""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simcse_hf.evaluation.bootstrap import Scores, resampled_scores
from simcse_hf.evaluation.embeddings import Encoder, SentenceEmbeddings, embed_all
from simcse_hf.evaluation.mteb import evaluate_mteb, mteb_averages
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.report import Evaluation
from simcse_hf.evaluation.scoring import read_tasks, score_tasks
from simcse_hf.evaluation.tasks import SENTEVAL, Task, roles_of
from simcse_hf.evaluation.tasks.base import headline
from simcse_hf.evaluation.tasks.senteval import (
    STS_SUBSETS,
    STS_TASKS,
    TRANSFER_TASKS,
    LabelledTexts,
    ScoredPairsTask,
    TransferTask,
    read_scored_pairs,
    read_sts_task,
)

from .regressor import score_regressor
from .variants import NLI_FILES, Variant, nli_sentences, score_per_set, split_variant, transformed

DEV = "STS-B dev"
_PLAIN = Variant()


@dataclass(frozen=True)
class Metric:
    """What a column of a table shows.

    Args:
        group (`str`): The evaluation that measures it: a key of `GROUPS`.
        tasks (`tuple[str, ...]`): The tasks whose figures are averaged.
    """

    group: str
    tasks: tuple[str, ...]


MTEB_OF_THE_PAPER = "MTEB(eng, v1)"
_MTEB = "Classification Clustering PairClassification Reranking Retrieval STS Summarization".split()
_TRANSFER_8 = (*TRANSFER_TASKS, "SST5")
#: The tasks and the mode of each evaluation.
GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "dev": ((), "test"),
    "sts": (STS_TASKS, "test"),
    "transfer": (_TRANSFER_8, "test"),
    "transfer_dev": (TRANSFER_TASKS, "dev"),
    "geometry": ((), "test"),
    "mteb": ((), "test"),
    "regressor": (("STSBenchmark", "SICKRelatedness"), "test"),
}
#: Evaluations that keep no scores of single examples, so that their figures are not resampled.
_NOT_RESAMPLED = ("transfer_dev", "geometry", "mteb")
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
    "regressor": Metric("regressor", GROUPS["regressor"][0]),
    **{f"mteb {category}": Metric("mteb", (category,)) for category in _MTEB},
    **{name: Metric("geometry", (name,)) for name in ("alignment", "uniformity")},
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
    _resampled: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    def resample_task(self, group: str, task: str, aggregation: str, correlation: str, resamples: int) -> np.ndarray:
        """Compute the figure of a task on resamples of its examples, once; they are the same for every run.

        Args:
            group (`str`): The evaluation, with its variant.
            task (`str`): A task of it.
            aggregation (`str`): How STS12 to STS16 make one figure.
            correlation (`str`): `"spearman"` or `"pearson"`.
            resamples (`int`): Number of resamples.

        Returns:
            `numpy.ndarray`: Figures x 100 of shape `(resamples,)`.
        """
        kept = (group, task, aggregation, correlation, str(resamples))
        if kept not in self._resampled:
            drawn = np.random.default_rng(zlib.crc32(task.encode()))
            parts = self.scores[group][task]
            protocol = Protocol(aggregation=aggregation, metric=correlation)
            self._resampled[kept] = resampled_scores([parts], protocol, resamples, drawn)[0]
        return self._resampled[kept]


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
def _data(group: str, senteval: Path, dev_file: Path | None, transfer_examples: int | None) -> dict[str, Task]:
    """Read the data of a group once in a process."""
    tasks, mode = GROUPS[group]
    if group == "dev":
        assert dev_file is not None
        return read_tasks(pairs=(read_scored_pairs(dev_file, DEV),))[0]
    if group == "mteb":
        return {}
    if group == "regressor":
        splits = {task: read_sts_task(task, senteval, ("test", "dev", "train")) for task in tasks}
        return {task: ScoredPairsTask.of(task, parts, task) for task, parts in splits.items()}
    data, _, _ = read_tasks(tasks=tasks, data_dir=senteval, mode=mode, geometry=group == "geometry")
    if transfer_examples is not None:
        for name, task in data.items():
            if isinstance(task, TransferTask):
                drawn = {split: _draw(examples, transfer_examples) for split, examples in task.splits.items()}
                data[name] = TransferTask.of(name, drawn, task.source, task.protocol)
    return data


def _draw(examples: LabelledTexts, count: int) -> LabelledTexts:
    """Return at most `count` examples, drawn at random; they are the same in every call."""
    if count >= len(examples):
        return examples
    return [examples[row] for row in sorted(random.Random(0).sample(range(len(examples)), count))]


def measure(
    load: Callable[[str | None], Encoder],
    groups: Sequence[str],
    senteval: Path,
    dev_file: Path | None,
    nli: Path | None,
    transfer_examples: int | None = None,
) -> Measured:
    """Measure a model.

    Args:
        load (`Callable[[str | None], Encoder]`): Returns the model with a pooler, or with its own for `None`.
        groups (`Sequence[str]`): Keys of `GROUPS`, each possibly with a variant; see [`Variant.of`].
        senteval (`Path`): SentEval's `downstream` folder.
        dev_file (`Path`, *optional*): STS-B dev, for the group `dev`.
        nli (`Path`, *optional*): The NLI sentences on which transforms are fitted.
        transfer_examples (`int`, *optional*): Number of examples to draw from each split of a transfer task; by
            default all.

    Returns:
        [`Measured`]: The results and scores.

    Raises:
        ValueError: If a transform is to be fitted on NLI sentences and there are none.
    """
    measured = Measured()
    parts = {name: split_variant(name) for name in groups}
    for pooler in dict.fromkeys(variant.pooler for _, variant in parts.values()):
        named = {name: part for name, part in parts.items() if part[1].pooler == pooler}
        model = load(pooler)
        data = {name: _data(group, senteval, dev_file, transfer_examples) for name, (group, _) in named.items()}
        texts = [text for part in data.values() for of_role in roles_of(part).values() for text in of_role]
        if any(variant.fit_on == "nli" for _, variant in named.values()):
            if nli is None:
                raise ValueError(
                    f"a transform is fitted on NLI sentences: put {' or '.join(NLI_FILES)} into --data_dir"
                )
            texts += nli_sentences(nli)
        embeddings = embed_all(model, {None: texts})
        for name, (group, variant) in named.items():
            if group == "mteb":
                scores = evaluate_mteb(model, [MTEB_OF_THE_PAPER])
                measured.results[name] = mteb_averages(scores, [MTEB_OF_THE_PAPER])
                measured.scores[name] = {}
                continue
            evaluation = _score(data[name], embeddings, group, variant, nli)
            results = evaluation.results
            measured.results[name] = {task: x for task, x in results.items() if not task.startswith("average")}
            measured.scores[name] = evaluation.scores
    return measured


def _score(
    data: dict[str, Task], embeddings: SentenceEmbeddings, group: str, variant: Variant, nli: Path | None
) -> Evaluation:
    if variant.fit_on == "target":
        assert variant.method is not None
        return score_per_set(data, embeddings, variant.method)
    embed: Any = embeddings
    if group == "regressor":
        scored = {}
        for name, task in data.items():
            assert isinstance(task, ScoredPairsTask)
            scored[name] = score_regressor(name, task.parts | task.shared, embed)
        results = {task: splits["test"] for task, (splits, _) in scored.items()}
        return Evaluation(results, {task: {"test": arrays["test"]} for task, (_, arrays) in scored.items()})
    if variant.method is not None and nli is not None:
        texts = roles_of(data)[None]
        embed = transformed(embeddings, variant.method, nli_sentences(nli), texts)
    return score_tasks(data, embed)


def is_resampled(name: str) -> bool:
    """Return whether the figures of a metric can be resampled over the test examples."""
    return metric(name).group not in _NOT_RESAMPLED


def figure(
    measured: Measured, name: str, aggregation: str, correlation: str, variant: Variant = _PLAIN
) -> tuple[float, tuple[str, ...]]:
    """Return the figure of a metric, x 100 (alignment and uniformity as they are), and the tasks that it averages.

    Args:
        measured (`Measured`): The results of a run.
        name (`str`): One of `METRICS`.
        aggregation (`str`): How STS12 to STS16 make one figure.
        correlation (`str`): `"spearman"` or `"pearson"`.
        variant (`Variant`, *optional*): How embeddings were read from the model.

    Returns:
        `tuple[float, tuple[str, ...]]`: The figure, NaN if there is none, and the tasks that have data.
    """
    chosen = metric(name)
    results = measured.results.get(variant.of(chosen.group), {})
    mode = GROUPS[chosen.group][1]
    values: dict[str, float | None]
    if chosen.group == "geometry":
        values = {task: results.get("geometry", {}).get(task) for task in chosen.tasks}
    elif chosen.group == "regressor":
        values = {task: results[task][correlation] for task in chosen.tasks if task in results}
    elif chosen.group == "mteb":
        values = {task: results[task]["value"] for task in chosen.tasks if task in results}
    else:
        protocol = Protocol(mode, aggregation, correlation)
        values = {task: headline(results[task], protocol) for task in chosen.tasks if task in results}
    present = {task: value for task, value in values.items() if value is not None}
    mean = float(np.mean(list(present.values()))) if present else float("nan")
    return mean, tuple(present)


def resample(
    measured: Measured,
    name: str,
    aggregation: str,
    correlation: str,
    variant: Variant = _PLAIN,
    *,
    resamples: int,
) -> np.ndarray:
    """Compute the figure of a metric on resamples of the test examples, which are the same for every run.

    Accuracies on dev splits are folds of a cross-validation, of which no answers are kept, as are none of alignment,
    uniformity and MTEB. They are not resampled.

    Args:
        measured (`Measured`): The results of a run.
        name (`str`): One of `METRICS`.
        aggregation (`str`): How STS12 to STS16 make one figure.
        correlation (`str`): `"spearman"` or `"pearson"`.
        variant (`Variant`, *optional*): How embeddings were read from the model.
        resamples (`int`): Number of resamples.

    Returns:
        `numpy.ndarray`: Figures x 100 of shape `(resamples,)`.
    """
    value, tasks = figure(measured, name, aggregation, correlation, variant)
    if not is_resampled(name) or not tasks:
        return np.full(resamples, value)
    group = variant.of(metric(name).group)
    drawn = [measured.resample_task(group, task, aggregation, correlation, resamples) for task in tasks]
    return np.mean(drawn, axis=0)
