"""Measure one model for an analysis: its figures, its geometry, and nearest neighbours."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ...evaluation.embeddings import Encoder, SentenceEmbeddings
from ...evaluation.run import ALL_SPLITS, PAPER_PROTOCOL, Evaluation, Protocol, TaskData, read_tasks, score_tasks
from ...evaluation.sts_data import read_sts_task
from ...evaluation.tasks import TaskNotFound
from .neighbours import POOL, find_neighbours

STSB = "STSBenchmark"


@dataclass
class MeasuredModel:
    """A model in an analysis.

    Args:
        evaluation (`Evaluation`): Its figures and scores, with `geometry` in the results if there was STS-B.
        description (`dict`): The settings it was measured with: `model`, `pooler`, `max_length` and others.
        neighbours (`list[dict]`): As [`find_neighbours`] returns them; empty for a result file.
    """

    evaluation: Evaluation
    description: dict[str, Any]
    neighbours: list[dict[str, Any]]


@dataclass
class AnalysisData:
    """What every model of an analysis is measured on.

    Args:
        tasks (`tuple[str, ...]`): Names of the tasks.
        data (`TaskData`): Their texts, with all of STS-B for the geometry, if it is there.
        sentences (`list[str]`): The texts among which neighbours are searched.
        notes (`dict[str, str]`): What is not measured, and why.
    """

    tasks: tuple[str, ...]
    data: TaskData
    sentences: list[str]
    notes: dict[str, str]


def prepare_data(
    tasks: tuple[str, ...],
    data_dir: str | Path | None,
    protocol: Protocol = PAPER_PROTOCOL,
    sentences: list[str] | None = None,
    **further: Any,
) -> AnalysisData:
    """Read what the models are measured on.

    Args:
        tasks (`tuple[str, ...]`): Names of tasks.
        data_dir (`str` or `Path`, *optional*): See [`simcse_hf.evaluation.run.read_tasks`].
        protocol (`Protocol`, *optional*): How to score.
        sentences (`list[str]`, *optional*): Texts for the nearest neighbours. By default the sentences of STS-B, or
            of the pairs if there is no STS-B.
        **further (`Any`): `pairs` and `user_tasks` of `read_tasks`.

    Returns:
        `AnalysisData`: The data. Without STS-B the geometry is left out, and `notes` says so.

    Raises:
        FileNotFoundError: See `read_tasks`.
        ValueError: See `read_tasks`.
    """
    data = read_tasks(tasks, data_dir, protocol, **further)
    missing = "no --data_dir was given"
    if data_dir is not None:
        try:
            data.geometry = read_sts_task(STSB, data_dir, ALL_SPLITS)
        except TaskNotFound as error:
            missing = str(error)
    notes = {} if data.geometry else {"geometry": f"it is measured on STS-B, which is missing ({missing})"}
    if sentences is None:
        pairs = list(data.geometry.values()) or list(data.pairs.values())
        sentences = [text for each in pairs for text in chain(each.sentences1, each.sentences2)]
    return AnalysisData(tasks, data, list(dict.fromkeys(sentences))[:POOL], notes)


def measure_model(
    model: Encoder, data: AnalysisData, description: dict[str, Any], protocol: Protocol = PAPER_PROTOCOL
) -> MeasuredModel:
    """Encode every text once, and measure the model on it.

    Args:
        model (`Encoder`): Any object with `encode(list[str])`.
        data (`AnalysisData`): What to measure on.
        description (`dict`): The model's settings, for the report.
        protocol (`Protocol`, *optional*): How to score.

    Returns:
        `MeasuredModel`: The measurements.

    Raises:
        ValueError: If embeddings are not finite or all the same, or a task cannot be scored.
    """
    task_data = data.data.prompted_for(model)
    embeddings = SentenceEmbeddings(model, chain(task_data.texts(), data.sentences))
    evaluation = score_tasks(task_data, embeddings, data.tasks, protocol)
    return MeasuredModel(evaluation, description, find_neighbours(embeddings, data.sentences))
