"""Run an evaluation: read the tasks, encode their texts once, and score them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from .bootstrap import Scores
from .classifier import SEED
from .embeddings import Encoder, SentenceEmbeddings
from .metrics import alignment, isotropy, singular_spectrum, uniformity
from .protocol import PAPER_PROTOCOL, Protocol
from .report import add_averages
from .sts import (
    HUB,
    STS_SPLITS,
    STS_SUBSETS,
    STS_TASKS,
    TaskNotFound,
    correlations,
    predict_pairs,
    read_sts_task,
    score_parts,
    score_subsets,
)
from .transfer import TRANSFER_TASKS, read_transfer_task, score_transfer_task

logger = logging.get_logger(__name__)

ALL_TASKS = (*STS_TASKS, *TRANSFER_TASKS, "SST5")
ALIGNMENT_ABOVE = 4.0  # STS-B pairs with a higher gold score count as positive (SimCSE, footnote 3)


def default_tasks(task_set: str, mode: str) -> tuple:
    """Return the tasks of `sts`, `transfer` or `full`; in mode `dev`, only those that have a dev score."""
    sts = tuple(STS_SPLITS) if mode == "dev" else STS_TASKS
    return {"sts": sts, "transfer": TRANSFER_TASKS, "full": sts + TRANSFER_TASKS}[task_set]


@dataclass
class TaskData:
    """The data of the tasks of one evaluation.

    Args:
        sts (`dict[str, dict[str, ScoredPairs]]`): Subsets or splits by task.
        transfer (`dict[str, dict[str, LabelledTexts]]`): Splits by task.
        pairs (`dict[str, ScoredPairs]`): Further sets of pairs by name.
        geometry (`dict[str, ScoredPairs]`): The splits of STS-B, if the geometry is measured.
        user_tasks (`dict[str, UserTask]`): Tasks from a user's own files by name.
        missing (`dict[str, str]`): Why a task has no data.
    """

    sts: dict = field(default_factory=dict)
    transfer: dict = field(default_factory=dict)
    pairs: dict = field(default_factory=dict)
    geometry: dict = field(default_factory=dict)
    user_tasks: dict = field(default_factory=dict)
    missing: dict = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Yield the texts of all tasks; they may repeat."""
        for parts in (*self.sts.values(), self.pairs, self.geometry, self.user_tasks, *self.transfer.values()):
            for part in parts.values():
                yield from part.texts

    def prompted_for(self, model: Any) -> "TaskData":
        """Return the data with the model's prompts `query` and `document` in retrieval and reranking.

        A model with a default prompt puts that one before every text, and gets no others.
        """
        prompts = getattr(model, "prompts", {})
        query = prompts.get("query", "")
        document = prompts.get("document", "")
        if getattr(model, "default_prompt_name", None) is not None or not (query or document):
            return self
        prompted = {name: task.with_prompts(query, document) for name, task in self.user_tasks.items()}
        return replace(self, user_tasks=prompted)


@dataclass
class Evaluation:
    """The results of an evaluation, and the scores for a paired comparison with another model.

    Args:
        results (`dict[str, Any]`): By task, as `docs/evaluation.md` lists it, and `average`.
        scores (`dict`): For each task and each subset or split, the arrays `gold`, `group` (see [`groups_to_draw`])
            and `predicted` or, for a transfer task, `correct`, all of shape `(n,)`; or those of a [`TaskResult`] for a
            task from a user's own files. The order of the examples is the same for every model.
    """

    results: dict
    scores: Scores


def read_tasks(
    tasks: tuple,
    data_dir: str | Path | None,
    protocol: Protocol = PAPER_PROTOCOL,
    pairs: tuple = (),
    geometry: bool = False,
    user_tasks: dict | None = None,
) -> TaskData:
    """Read the data of the tasks.

    Args:
        tasks (`tuple[str, ...]`): Names of tasks.
        data_dir (`str | Path`, *optional*): SentEval's `downstream` folder or, for STS tasks, another source that
            `read_sts_task` reads. Required if there are tasks.
        protocol (`Protocol`, *optional*): Its mode decides which splits are read.
        pairs (`tuple[ScoredPairs, ...]`, *optional*): Further sets of pairs, each of them a task with its own name.
        geometry (`bool`, *optional*, defaults to `False`): Whether to read all of STS-B for the geometry.
        user_tasks (`dict[str, UserTask]`, *optional*): Tasks from a user's own files, as
            `user_tasks.name_tasks` returns them.

    Returns:
        [`TaskData`]: The data. A task without data is listed in `missing`, and a warning says so.

    Raises:
        FileNotFoundError: If `data_dir` does not exist, or if the folder of a task is incomplete.
        ValueError: If a task is unknown, data is malformed, or `data_dir` has none of the tasks.
    """
    unknown = [task for task in tasks if task not in ALL_TASKS]
    if unknown:
        raise ValueError(f"unknown task {', '.join(unknown)}. Use names out of {', '.join(ALL_TASKS)}.")
    if len(set(tasks)) != len(tasks):
        raise ValueError(f"a task is named twice in {', '.join(tasks)}. Name each task once.")
    if data_dir is None and (tasks or geometry):
        raise ValueError(
            "data_dir is missing. Give SentEval's `downstream` folder, which holds the data of the tasks."
        )
    data_dir = data_dir or ""
    if data_dir != HUB and not Path(data_dir).is_dir():
        raise FileNotFoundError(f"data_dir {data_dir} does not exist. Give SentEval's `downstream` folder.")
    data = TaskData(user_tasks=user_tasks or {})
    splits = ("dev",) if protocol.mode == "dev" else ("test", "dev")
    for task in tasks:
        try:
            if task in STS_TASKS:
                data.sts[task] = read_sts_task(task, data_dir, splits)
            else:
                data.transfer[task] = read_transfer_task(task, data_dir)
        except TaskNotFound as error:
            data.missing[task] = str(error)
            logger.warning(f"{task} is not evaluated: {error}.")
    if tasks and len(data.missing) == len(tasks):
        raise ValueError(
            f"data_dir {data_dir} has none of the tasks {', '.join(tasks)} ({tasks[0]}: {data.missing[tasks[0]]}). "
            "Give SentEval's `downstream` folder."
        )
    for extra in pairs:
        if extra.name in {*data.pairs, *tasks, *data.user_tasks}:
            raise ValueError(f"two tasks are named {extra.name}. Rename the file of pairs of this name.")
        data.pairs[extra.name] = extra
    if geometry:
        try:
            data.geometry = read_sts_task("STSBenchmark", data_dir, ("train", "dev", "test"))
        except TaskNotFound as error:
            raise FileNotFoundError(f"the geometry is measured on STS-B, which is missing: {error}.") from error
    return data


def score_tasks(
    data: TaskData,
    embeddings: SentenceEmbeddings,
    tasks: tuple,
    protocol: Protocol = PAPER_PROTOCOL,
    device: str | None = None,
) -> Evaluation:
    """Score tasks with the embeddings of their texts.

    Args:
        data (`TaskData`): The data that `read_tasks` returned.
        embeddings (`SentenceEmbeddings`): Embeddings of `data.texts()`.
        tasks (`tuple[str, ...]`): The tasks in the order of the results, including those without data.
        protocol (`Protocol`, *optional*): How to score.
        device (`str`, *optional*): Where to train classifiers. Defaults to a GPU if there is one.

    Returns:
        [`Evaluation`]: The results and scores.

    Raises:
        ValueError: If similarities or gold scores are constant. The message names the task and its subset or split.
    """
    results: dict = {}
    scores: Scores = {}
    for task in tasks:
        if task in data.missing:
            results[task] = {"missing": data.missing[task]}
        elif task in data.transfer:
            splits = data.transfer[task]
            results[task], answers = score_transfer_task(
                task, splits, embeddings, protocol.mode, device, protocol.seed
            )
            scores[task] = {task: answers}
        else:
            parts = {name: predict_pairs(embeddings, pairs) for name, pairs in data.sts[task].items()}
            if task in STS_SUBSETS:
                scores[task] = parts
                results[task] = score_subsets(task, parts)
            else:
                scores[task] = {protocol.split: parts[protocol.split]}
                results[task] = {"splits": score_parts(task, parts)}
    for name, pairs in data.pairs.items():
        part = predict_pairs(embeddings, pairs)
        results[name] = correlations(part["predicted"], part["gold"], name)
        scores[name] = {"pairs": part}
    for name, user_task in data.user_tasks.items():
        result = user_task.evaluate(embeddings, embeddings.similarity)
        results[name] = user_task.document(result)
        scores[name] = {user_task.kind: result.scores}
    if data.geometry:
        # Alignment on STS-B pairs with scores above 4, the rest on all sentences (SimCSE, footnote 3)
        rows: list = []
        for pairs in data.geometry.values():
            rows += zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
        sentences = list(dict.fromkeys(text for row in rows for text in row[:2]))
        positives = [row for row in rows if row[2] > ALIGNMENT_ABOVE]
        firsts = embeddings(first for first, _, _ in positives)
        seconds = embeddings(second for _, second, _ in positives)
        x = torch.from_numpy(embeddings(sentences))
        results["geometry"] = {
            "alignment": alignment(torch.from_numpy(firsts), torch.from_numpy(seconds)),
            "uniformity": uniformity(x),
            "isotropy": isotropy(x),
            "singular_spectrum": singular_spectrum(x),
            "positive_pairs": len(positives),
            "sentences": len(sentences),
            "splits": list(data.geometry),
        }
    add_averages(results, [*tasks, *data.pairs], protocol)
    return Evaluation(results, scores)


def evaluate_tasks(
    model: Encoder,
    data_dir: str | Path | None,
    tasks: tuple,
    protocol: Protocol = PAPER_PROTOCOL,
    pairs: tuple = (),
    geometry: bool = False,
    device: str | None = None,
) -> Evaluation:
    """Read the tasks, encode each distinct text of all of them once, and score them.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array of shape `(n, dim)`.
        data_dir (`str | Path`, *optional*): See [`read_tasks`].
        tasks (`tuple[str, ...]`): Names of tasks.
        protocol (`Protocol`, *optional*): How to score.
        pairs (`tuple[ScoredPairs, ...]`, *optional*): Further sets of pairs.
        geometry (`bool`, *optional*, defaults to `False`): Whether to measure the geometry on STS-B.
        device (`str`, *optional*): Where to train classifiers. Defaults to a GPU if there is one.

    Returns:
        [`Evaluation`]: The results and scores.

    Raises:
        FileNotFoundError: See [`read_tasks`].
        ValueError: If [`read_tasks`], [`SentenceEmbeddings`] or [`score_tasks`] finds an error in the data or the
            embeddings.
    """
    data = read_tasks(tasks, data_dir, protocol, pairs, geometry)
    embeddings = SentenceEmbeddings(model, data.texts())
    return score_tasks(data, embeddings, tasks, protocol, device)


def evaluate_sts(
    model: Encoder,
    data_dir: str | Path,
    tasks: tuple | None = None,
    mode: str = "test",
    aggregation: str = "all",
    metric: str = "spearman",
) -> dict:
    """Evaluate on the STS tasks, by default with the paper's protocol: cosine, Spearman's correlation, `all`.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array or tensor of shape `(n, dim)`.
        data_dir (`str | Path`): SentEval's `downstream` folder, a folder of plain tables, or `"hub"`.
        tasks (`tuple[str, ...]`, *optional*): Names of tasks. Defaults to the paper's seven. In mode `"dev"` only
            STSBenchmark and SICKRelatedness have a score.
        mode (`str`, *optional*, defaults to `"test"`): See [`Protocol`].
        aggregation (`str`, *optional*, defaults to `"all"`): See [`Protocol`].
        metric (`str`, *optional*, defaults to `"spearman"`): See [`Protocol`].

    Returns:
        `dict[str, Any]`: Scores times 100 by task, and their average, for example
        `results["STS12"]["aggregate"]["all"]["spearman"]`, `results["STSBenchmark"]["splits"]["test"]["spearman"]` and
        `results["average"]["value"]`.

    Raises:
        FileNotFoundError: See [`read_tasks`].
        ValueError: See [`evaluate_tasks`].
    """
    tasks = tuple(tasks or default_tasks("sts", mode))
    return evaluate_tasks(model, data_dir, tasks, Protocol(mode, aggregation, metric)).results


def evaluate_transfer(
    model: Encoder,
    data_dir: str | Path,
    tasks: tuple | None = None,
    mode: str = "test",
    device: str | None = None,
    seed: int = SEED,
) -> dict:
    """Evaluate on the transfer tasks by SentEval's protocol: logistic regression on frozen embeddings.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array or tensor of shape `(n, dim)`.
        data_dir (`str | Path`): SentEval's `downstream` folder.
        tasks (`tuple[str, ...]`, *optional*): Names of tasks. Defaults to the paper's seven.
        mode (`str`, *optional*, defaults to `"test"`): See [`Protocol`].
        device (`str`, *optional*): Where to train the classifiers. Defaults to a GPU if there is one.
        seed (`int`, *optional*, defaults to `1111`): Seed of folds, starts and orders.

    Returns:
        `dict[str, Any]`: Scores times 100 by task, and their average: `results["MR"]["accuracy"]`,
        `results["average"]["value"]`.

    Raises:
        FileNotFoundError: See [`read_tasks`].
        ValueError: See [`evaluate_tasks`].
    """
    tasks = tuple(tasks or default_tasks("transfer", mode))
    return evaluate_tasks(model, data_dir, tasks, Protocol(mode, seed=seed), device=device).results
