"""Run an evaluation: read the tasks, encode their texts once, and score them."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from torch import nn
from transformers.utils import logging

from ..data.scored_pairs import ScoredPairs, read_scored_pairs
from ..encoding.simcse import SimCSE, load_model
from ..names import KEYWORDS, Aggregation, Metric, Mode, ModelOptions, TaskSet
from ..retrieval.indexes.description import Role
from ..runtime.distributed import wait_for_all, world
from ..runtime.files import StrPath
from ..runtime.identity import Identity, digest_value
from ..runtime.messages import join_processes
from ..runtime.outputs import check_output_file
from .bm25 import BM25
from .bm25 import KINDS as KEYWORD_KINDS
from .bootstrap import Scores
from .embeddings import Encoder, SentenceEmbeddings
from .metrics import alignment, isotropy, singular_spectrum, uniformity
from .protocol import PAPER_PROTOCOL, Protocol
from .report import Evaluation, add_averages, versions, write_results
from .sts import (
    HUB,
    HUB_REVISIONS,
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
from .threshold import check_can_save, choose_threshold, read_goal
from .threshold import save_threshold as write_threshold
from .transfer import TRANSFER_TASKS, read_transfer_task, score_transfer_task
from .user_tasks import UserTask, name_tasks

logger = logging.get_logger(__name__)

ALL_TASKS = (*STS_TASKS, *TRANSFER_TASKS, "SST5")
ALIGNMENT_ABOVE = 4.0  # STS-B pairs with a higher gold score count as positive (SimCSE, footnote 3)


@dataclass
class TaskData:
    """The data of the tasks of one evaluation, and how they are scored.

    Args:
        tasks (`tuple[str, ...]`): The tasks of SentEval in the order of the results, including those without data.
        protocol (`Protocol`): How to score them.
        sts (`dict[str, dict[str, ScoredPairs]]`): Subsets or splits by task.
        transfer (`dict[str, dict[str, LabelledTexts]]`): Splits by task.
        pairs (`dict[str, ScoredPairs]`): Further sets of pairs by name.
        geometry (`dict[str, ScoredPairs]`): The splits of STS-B, if the geometry is measured.
        user_tasks (`dict[str, UserTask]`): Tasks from a user's own files by name.
        missing (`dict[str, str]`): Why a task has no data.
    """

    tasks: tuple[str, ...] = ()
    protocol: Protocol = PAPER_PROTOCOL
    sts: dict = field(default_factory=dict)
    transfer: dict = field(default_factory=dict)
    pairs: dict = field(default_factory=dict)
    geometry: dict = field(default_factory=dict)
    user_tasks: dict = field(default_factory=dict)
    missing: dict = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Yield the texts of all tasks; they may repeat."""
        return chain.from_iterable(self.roles.values())

    def only(self, name: str) -> "TaskData":
        """Return the data of one task."""
        part = {}
        for kind, tasks in vars(self).items():
            if isinstance(tasks, dict) and name in tasks:
                part[kind] = {name: tasks[name]}
        return TaskData(tuple(task for task in self.tasks if task == name), self.protocol, **part)

    @property
    def roles(self) -> Mapping[Role, list[str]]:
        """The texts of all tasks, by what they are to a model."""
        found: dict[Role, list[str]] = {}
        for parts in (*self.sts.values(), self.pairs, self.geometry, self.user_tasks, *self.transfer.values()):
            for part in parts.values():
                for role, texts in getattr(part, "roles", {None: part.texts}).items():
                    found.setdefault(role, []).extend(texts)
        return found


def load_encoder(model: StrPath | Encoder, loading: ModelOptions) -> Encoder:
    """Load a model by its name or folder, or keyword search. Any other object is an encoder, and taken as it is."""
    if model == KEYWORDS:
        join_processes()
        return BM25()
    if isinstance(model, (str, os.PathLike)):
        return load_model(model, **loading)
    not_used = loading.keys() - {"device"}  # on which classifiers are trained
    if not_used:
        raise ValueError(f"the model is loaded already: leave out {', '.join(sorted(not_used))}")
    return model


def check_keywords(data: TaskData, **options: object) -> None:
    """Raise a `ValueError` that names what keyword search cannot do: tasks, and options for models with vectors."""
    cannot = [*data.tasks, *data.pairs, *(name for name, value in options.items() if value)]
    cannot += [name for name, task in data.user_tasks.items() if task.kind not in KEYWORD_KINDS]
    if cannot:
        raise ValueError(
            f"{KEYWORDS} compares words and has no vectors, so it cannot do {', '.join(cannot)}. It can do the tasks "
            f"{', '.join(KEYWORD_KINDS)}; nearest=FILE reads the files of classification."
        )


def name_of(model: StrPath | Encoder) -> str:
    """Return the name or folder of a model; that of its class for an encoder that has none."""
    if isinstance(model, (str, os.PathLike)):
        return str(model)
    return getattr(model, "name_or_path", type(model).__name__)


def evaluate(
    model: StrPath | Encoder,
    *,
    task_set: TaskSet | None = None,
    tasks: Sequence[str] | str | None = None,
    data_dir: StrPath | None = None,
    pairs: Sequence[StrPath] = (),
    task: Sequence[str | UserTask] = (),
    label_separator: str | None = None,
    mode: Mode = "test",
    aggregation: Aggregation = "all",
    metric: Metric = "spearman",
    seed: int = 1111,
    threshold: str | None = None,
    save_threshold: bool = False,
    geometry: bool = False,
    mteb: Sequence[str] = (),
    output: StrPath | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **loading: Unpack[ModelOptions],
) -> Evaluation:
    """Score a model on semantic similarity (STS), transfer tasks and tasks from your own files.

    Args:
        model (`str`, `os.PathLike` or `Encoder`): Folder of a model, or its name on the Hugging Face hub;
            bm25 for keyword search without a model (a folder of this name is ./bm25); in Python also an object with
            `encode(list[str])` that returns an array of shape `(n, dim)`.
        task_set (`str`, *optional*): Tasks that are read from `data_dir`. The default is sts.
        tasks (`Sequence[str]` or `str`, *optional*): In place of `task_set`, names out of STS12, STS13, STS14, STS15,
            STS16, STSBenchmark, SICKRelatedness, MR, CR, SUBJ, MPQA, SST2, TREC, MRPC, SST5.
        data_dir (`str` or `os.PathLike`, *optional*): The folder "downstream" of SentEval; for STS also a folder of
            plain tables, or "hub" to download data sets.
        pairs (`Sequence[str]`, *optional*): Files of scored pairs, or hub data sets as name:split.
        task (`Sequence[str | UserTask]`, *optional*): Tasks from files of yours, as KIND=FILE; KIND is one of
            classification, nearest, clustering, pairs, reranking, retrieval.
        label_separator (`str`, *optional*): What stands between several labels of a text in a cell, such as ";".
        mode (`str`, *optional*, defaults to `"test"`): Which splits are scored: those for testing, or for development
            (dev); fasttest is test with SentEval's faster settings of the classifiers.
        aggregation (`str`, *optional*, defaults to `"all"`): The score of STS12 to STS16: over their pairs together
            (all), or the mean of their subsets, plain or weighted by size (wmean).
        metric (`str`, *optional*, defaults to `"spearman"`): Correlation by which pairs are scored.
        seed (`int`, *optional*, defaults to `1111`): Seed of the classifiers.
        threshold (`str`, *optional*): Choose, with the task pairs=FILE, the cosine from which two texts are similar:
            f1 for the highest F1, or e.g. precision=0.95 for the highest recall at this precision.
        save_threshold (`bool`, *optional*, defaults to `False`): Save the threshold with the model, in its
            config.json; the command also renews its card.
        geometry (`bool`, *optional*, defaults to `False`): Also measure alignment, uniformity and the singular values
            of the embeddings of STS-B.
        mteb (`Sequence[str]`, *optional*): Data sets of MTEB, one of its benchmarks, or categories of that; "all" is
            the benchmark "MTEB(eng, v2)".
        output (`str` or `os.PathLike`, *optional*): JSON file of the results, which `simcse-hf compare` and `simcse-hf
            card` read.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a bar while texts are encoded.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        [`Evaluation`]: The results, with which a paired comparison is possible. With several processes, those of all
        but the first are empty.

    Raises:
        ValueError: If options do not fit together, or data, embeddings or the threshold are wrong.
        FileNotFoundError: If a file does not exist.

    Examples:
        >>> from simcse_hf import evaluate
        >>> evaluation = evaluate("outputs/my-model", pairs=["sts-dev.csv"], task=["classification=tickets.csv"])
        >>> evaluation.results["sts-dev"]["spearman"] > 50
        True
        >>> evaluation.results["classification"]["accuracy"] > 80
        True
    """
    # 1. Refuse options that do not fit together
    if data_dir is None and not (pairs or task or mteb):
        raise ValueError("there is nothing to evaluate: give data_dir, pairs, task or mteb")
    if save_threshold:
        check_can_save(name_of(model), threshold)
    check_output_file(output, overwrite)
    named = name_tasks(task, label_separator)
    precision = read_goal(threshold, named)

    # 2. Score the model
    protocol = Protocol(mode, aggregation, metric, seed)
    data = read_tasks(tasks, data_dir, protocol, map(read_scored_pairs, pairs), geometry, named.values(), task_set)
    if model == KEYWORDS:
        check_keywords(data, geometry=geometry, mteb=mteb, threshold=threshold, **loading)
    encoder = load_encoder(model, loading)
    identity = Identity.of(encoder)
    if threshold is not None and identity.similarity != "cosine":
        raise ValueError(f"threshold is a cosine: leave it out for {identity.name_or_path} ({identity.similarity})")
    evaluation = score_model(encoder, data, loading.get("device"), show_progress_bar)
    if mteb:
        from .mteb import evaluate_mteb, mteb_averages, named_benchmark

        scores = evaluate_mteb(encoder, mteb)
        evaluation.results.update(mteb=scores, mteb_averages=mteb_averages(scores, named_benchmark(mteb)))
    if world()[0] > 0:
        return evaluation
    if data_dir == HUB:
        evaluation = replace(evaluation, dataset_revisions=HUB_REVISIONS)

    # 3. Choose the threshold; the results, which may have taken long, are also written without one
    try:
        if threshold is not None:
            source = evaluation.results["pairs"]["source"]
            chosen = choose_threshold(evaluation.scores["pairs"]["pairs"], precision, source)
            evaluation = replace(evaluation, threshold=chosen)
    except ValueError:
        logger.warning(f"No threshold was chosen. The scores:\n{evaluation}")
        raise
    finally:
        if output is not None:
            write_results(output, evaluation.to_dict(), evaluation.scores)
    if save_threshold and evaluation.threshold is not None and isinstance(encoder, SimCSE):
        evaluation = replace(evaluation, threshold_file=str(write_threshold(encoder, evaluation.threshold)))
    return evaluation


def score_model(model: Encoder, data: TaskData, device: str | None, show_progress_bar: bool) -> Evaluation:
    """Encode each distinct text of the tasks once, in all processes, and score the tasks in the first one.

    Args:
        model (`Encoder`): The model, which encodes queries and documents as in a search.
        data (`TaskData`): The data that [`read_tasks`] returned.
        device (`str`, *optional*): Where to train classifiers; a GPU if there is one for `None`.
        show_progress_bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Evaluation`]: The results and scores, with the identity of the model; nothing in the other processes.

    Raises:
        ValueError: See [`SentenceEmbeddings`] and [`score_tasks`].
    """
    start = time.perf_counter()
    embeddings = model if isinstance(model, BM25) else SentenceEmbeddings(model, data.roles, show_progress_bar)
    if world()[0] > 0:
        return Evaluation({}, {})
    encoded = time.perf_counter()
    evaluation = score_tasks(data, embeddings, device)
    if isinstance(model, BM25):  # it works while it is scored
        encoded = time.perf_counter()
    texts = len(set(data.texts()))
    module = getattr(model, "model", model)
    size = sum(map(os.path.getsize, getattr(module, "files", ())))  # of an exported graph
    if isinstance(module, nn.Module):
        size += sum(weight.nbytes for weight in module.parameters())
    return replace(
        evaluation,
        identity=Identity.of(model),
        versions=versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cost={"texts_per_second": texts / (encoded - start), "megabytes": size / 1e6},
    )


def score_once(
    model: Encoder, data: TaskData, device: str | None, show_progress_bar: bool, folder: Path | None
) -> Evaluation:
    """Score a model, and keep the evaluation of each task by itself in a folder, where a later call reads it.

    A task is scored again if its data, the protocol, the model (its [`Identity`]), the packages, the device or the
    number of threads have changed; and with an encoder whose identity says nothing of its tokenizer.

    Args:
        model (`Encoder`): See [`score_model`].
        data (`TaskData`): See [`score_model`].
        device (`str`, *optional*): See [`score_model`].
        show_progress_bar (`bool`): See [`score_model`].
        folder (`Path`, *optional*): The folder; without one, all tasks are scored together, and nothing is kept.

    Returns:
        [`Evaluation`]: The results and scores of all tasks, with the mean of their costs.
    """
    identity = Identity.of(model)
    made_by = [replace(identity, name_or_path=None, revision=None), versions(), device, torch.get_num_threads()]
    whole = Evaluation({}, {}, data.protocol, identity)
    costs = []
    parts = [data]
    if folder is not None:
        parts = [data.only(name) for name in (*data.tasks, *data.pairs, *data.user_tasks)]
    for part in parts:
        path = folder and folder / f"{digest_value([part, *made_by])}.json"
        if path and path.exists() and identity.tokenizer:
            evaluation = Evaluation.read(path)
        else:
            evaluation = score_model(model, part, device, show_progress_bar)
            if path and evaluation.results:
                write_results(path, evaluation.to_dict(), evaluation.scores)
        wait_for_all()  # or one process would see a file that another one has not seen
        whole.results.update(evaluation.results)
        whole.scores.update(evaluation.scores)
        if evaluation.scores:
            costs.append(evaluation.cost)
    cost = {key: float(np.mean([each[key] for each in costs])) for key in evaluation.cost}
    return replace(whole, cost=cost)


def read_tasks(
    tasks: str | Sequence[str] | None,
    data_dir: StrPath | None,
    protocol: Protocol = PAPER_PROTOCOL,
    pairs: Iterable[ScoredPairs] = (),
    geometry: bool = False,
    user_tasks: Iterable[str | UserTask] = (),
    task_set: TaskSet | None = None,
) -> TaskData:
    """Read the data of the tasks.

    Args:
        tasks (`str` or `Sequence[str]`, *optional*): Names of tasks; for `None` those of `task_set`, if there is a
            `data_dir`.
        data_dir (`str` or `os.PathLike`, *optional*): SentEval's `downstream` folder or, for STS tasks, another source
            that `read_sts_task` reads. Required if there are tasks.
        protocol (`Protocol`, *optional*): Its mode decides which splits are read.
        pairs (`Iterable[ScoredPairs]`, *optional*): Further sets of pairs, each of them a task with its own name.
        geometry (`bool`, *optional*, defaults to `False`): Whether to read all of STS-B for the geometry.
        user_tasks (`Iterable[str | UserTask]`, *optional*): Tasks from a user's own files; see
            [`~user_tasks.name_tasks`].
        task_set (`str`, *optional*): `"sts"`, which is the default, `"transfer"` or `"full"`. In mode `dev`, a set has
            only the tasks with a dev score.

    Returns:
        [`TaskData`]: The data. A task without data is listed in `missing`, and a warning says so.

    Raises:
        FileNotFoundError: If `data_dir` does not exist, or if the folder of a task is incomplete.
        ValueError: If there are both `tasks` and a `task_set`, a task is unknown, data is malformed, or `data_dir` has
            none of the tasks.
    """
    # 1. The names of the tasks
    if tasks is not None and task_set is not None:
        raise ValueError("tasks and task_set name the tasks twice: leave out one of them")
    if tasks is None and data_dir is not None:
        sts = tuple(STS_SPLITS) if protocol.mode == "dev" else STS_TASKS
        tasks = {"sts": sts, "transfer": TRANSFER_TASKS, "full": sts + TRANSFER_TASKS}[task_set or "sts"]
    elif tasks is not None:
        given = [tasks] if isinstance(tasks, str) else tasks
        tasks = " ".join(given).replace(",", " ").split()
    tasks = tuple(tasks or ())
    unknown = [task for task in tasks if task not in ALL_TASKS]
    if unknown:
        raise ValueError(f"unknown task {', '.join(unknown)}. Use names out of {', '.join(ALL_TASKS)}.")
    if len(set(tasks)) != len(tasks):
        raise ValueError(f"a task is named twice in {', '.join(tasks)}. Name each task once.")
    if data_dir is None and (tasks or geometry):
        raise ValueError("data_dir is missing. Give SentEval's `downstream` folder.")
    data_dir = data_dir or ""
    if data_dir != HUB and not Path(data_dir).is_dir():
        raise FileNotFoundError(f"data_dir {data_dir} does not exist. Give SentEval's `downstream` folder.")

    # 2. Their data
    data = TaskData(tasks, protocol, user_tasks=name_tasks(user_tasks))
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
        reason = f"{tasks[0]}: {data.missing[tasks[0]]}"
        raise ValueError(f"data_dir {data_dir} has none of the tasks {', '.join(tasks)} ({reason}).")
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


def score_tasks(data: TaskData, embeddings: SentenceEmbeddings, device: str | None = None) -> Evaluation:
    """Score tasks with the embeddings of their texts.

    Args:
        data (`TaskData`): The data that `read_tasks` returned.
        embeddings (`SentenceEmbeddings`): Embeddings of `data.roles`.
        device (`str`, *optional*): Where to train classifiers. Defaults to a GPU if there is one.

    Returns:
        [`Evaluation`]: The results and scores.

    Raises:
        ValueError: If similarities or gold scores are constant. The message names the task and its subset or split.
    """
    protocol = data.protocol
    results: dict = {}
    scores: Scores = {}
    for task in data.tasks:
        if task in data.missing:
            results[task] = {"missing": data.missing[task]}
        elif task in data.transfer:
            results[task], answers = score_transfer_task(task, data.transfer[task], embeddings, protocol, device)
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
        result = user_task.score(embeddings.over(user_task.roles))
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
        x = embeddings(sentences)
        results["geometry"] = {
            "alignment": alignment(firsts, seconds),
            "uniformity": uniformity(x),
            "isotropy": isotropy(x),
            "singular_spectrum": singular_spectrum(x),
            "positive_pairs": len(positives),
            "sentences": len(sentences),
            "splits": list(data.geometry),
        }
    add_averages(results, [*data.tasks, *data.pairs], protocol)
    return Evaluation(results, scores, protocol)
