"""Evaluate with a whitening or flow that is fitted on each evaluation set's own texts ("target" in the papers)."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from ..postprocessing.per_set import fit_per_set
from .pairs import ScoredPairs
from .report import add_averages
from .run import PAPER_PROTOCOL, Evaluation, Protocol, TaskData, score_tasks


def score_per_set(
    data: TaskData,
    embed: Callable[[list[str]], np.ndarray],
    tasks: tuple[str, ...],
    protocol: Protocol = PAPER_PROTOCOL,
    device: str | None = None,
    method: str = "whitening",
    **settings: Any,
) -> Evaluation:
    """Fit a transform on each set's own texts and score the set with the transformed embeddings.

    Args:
        data (`TaskData`): What `read_tasks` returned: STS tasks, pairs and geometry. The subsets of an STS task are
            one set.
        embed (`Callable[[list[str]], np.ndarray]`): Returns raw embeddings, of a model that applies no transform.
        tasks (`tuple[str, ...]`): The tasks in the order of the results.
        protocol (`Protocol`, *optional*): How to score.
        device (`str`, *optional*): Where to train a regressor. The default is a GPU if there is one.
        method (`str`, *optional*, defaults to `"whitening"`): `"whitening"` or `"flow"`.
        **settings (`Any`): Arguments of `fit_whitening` (`dim`) or `fit_flow`.

    Returns:
        `Evaluation`: Results and scores, as `score_tasks` returns them.

    Raises:
        ValueError: If there are transfer tasks, or a set has too few texts for the transform.
    """
    if data.transfer:
        raise ValueError(
            f"transforms are fitted on each set for STS tasks and pairs only: leave out {', '.join(data.transfer)}"
        )
    texts = {name: _texts(parts.values()) for name, parts in data.sts.items()}
    texts |= {name: _texts([pairs]) for name, pairs in data.pairs.items()}
    if data.geometry:
        texts["geometry"] = _texts(data.geometry.values())
    transformed = fit_per_set(embed, texts, method, **settings)
    results: dict[str, Any] = {}
    scores: dict[str, Any] = {}

    def score(name: str, part: TaskData, names: tuple[str, ...]) -> None:
        evaluation = score_tasks(part, cast(Any, transformed.get(name)), names, protocol, device)
        results[name] = evaluation.results[name]
        scores.update(evaluation.scores)

    for task in tasks:
        missing = {task: data.missing[task]} if task in data.missing else {}
        sts = {task: data.sts[task]} if task in data.sts else {}
        score(task, TaskData(sts=sts, missing=missing), (task,))
    for name, pairs in data.pairs.items():
        score(name, TaskData(pairs={name: pairs}), ())
    if data.geometry:
        score("geometry", TaskData(geometry=data.geometry), ())
    add_averages(results, tasks + tuple(data.pairs), protocol.mode, protocol.aggregation, protocol.metric)
    return Evaluation(results, scores)


def _texts(parts: Iterable[ScoredPairs]) -> list[str]:
    return [text for pairs in parts for text in (*pairs.sentences1, *pairs.sentences2)]
