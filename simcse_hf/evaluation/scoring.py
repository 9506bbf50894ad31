"""Run an evaluation: read the tasks, encode their texts once, and score them."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from transformers.utils import logging

from ..data.scored_pairs import ScoredPairs, read_scored_pairs
from ..encoding.simcse import SimCSE, load_model
from ..names import KEYWORDS, Aggregation, Correlation, EvaluationOptions, Mode, ModelOptions, TaskSet
from ..runtime.distributed import on_first_process, wait_for_all, world
from ..runtime.encoders import Encoder, TextEncoder, as_encoder
from ..runtime.errors import SettingError, as_list
from ..runtime.files import StrPath
from ..runtime.identity import digest_texts, digest_value
from ..runtime.messages import join_processes
from ..runtime.outputs import check_output_file
from .bm25 import BM25
from .classifier import SEED
from .embeddings import embed_all
from .mteb import evaluate_mteb, mteb_averages
from .protocol import Protocol
from .report import Evaluation, add_averages, versions, write_results
from .tasks import KINDS, SENTEVAL, Task, name_tasks, read_senteval_task, roles_of
from .tasks.senteval import (
    HUB,
    HUB_REVISIONS,
    STS_SPLITS,
    STS_TASKS,
    TRANSFER_TASKS,
    GeometryTask,
    MissingTask,
    ScoredPairsTask,
    TaskNotFound,
    read_sts_task,
)
from .threshold import choose_threshold, read_goal
from .threshold import save_threshold as write_threshold

logger = logging.get_logger(__name__)


def load_encoder(model: StrPath | Encoder, loading: ModelOptions) -> Any:
    """Load a model by its name or folder, or keyword search. Any other object is an encoder, and taken as it is."""
    if model == KEYWORDS:
        join_processes()
        return BM25()
    if isinstance(model, (str, os.PathLike)):
        return as_encoder(load_model(model, **loading))
    not_used = loading.keys() - {"device"}  # on which classifiers are trained
    if not_used:
        raise SettingError(f"the model is loaded already: leave out {', '.join(sorted(not_used))}")
    return as_encoder(model)


def check_keywords(tasks: Mapping[str, Task], **options: object) -> None:
    """Raise a `ValueError` that names what keyword search cannot do: tasks, and options for models with vectors."""
    cannot = [name for name, task in tasks.items() if task.needs_vectors]
    cannot += [name for name, value in options.items() if value]
    if cannot:
        kinds = [kind for kind, task in KINDS.items() if not task.needs_vectors]
        raise SettingError(
            f"{KEYWORDS} compares words and has no vectors, so it cannot do {', '.join(cannot)}. It can do the tasks "
            f"{', '.join(kinds)}; knn=FILE reads the files of classification."
        )


def name_of(model: StrPath | Encoder) -> str:
    """Return the name or folder of a model; that of its class for an encoder that has none."""
    if isinstance(model, (str, os.PathLike)):
        return str(model)
    return as_encoder(model).name


def evaluate(
    model: StrPath | Encoder,
    *,
    threshold: str | None = None,
    save_threshold: bool = False,
    geometry: bool = False,
    mteb: Sequence[str] = (),
    output: StrPath | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Score a model on semantic similarity (STS), transfer tasks and tasks from your own files.

    Args:
        model (`str`, `os.PathLike` or `Encoder`): Folder of a model, or its name on the Hugging Face hub;
            bm25 for keyword search without a model (a folder of this name is ./bm25); in Python also an object with
            `encode(list[str])` that returns an array of shape `(n, dim)`.
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
        **options (`EvaluationOptions`): The tasks, how they are scored, and how the model is loaded.

    Returns:
        [`Evaluation`]: The results, with which a paired comparison is possible. With several processes, those of all
        but the first are empty.

    Raises:
        SettingError: If options do not fit together.
        ValueError: If data, embeddings or the threshold are wrong.
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
    mteb = as_list(mteb)
    if save_threshold:
        folder = Path(name_of(model)).expanduser()
        if threshold is None:
            raise SettingError("save_threshold needs a goal: add --threshold f1 or --threshold precision=0.95")
        if not (folder / "config.json").is_file():
            raise SettingError(f"save_threshold writes into the model's folder, but {folder} is none")
        if (folder / "manifest.json").exists():
            raise SettingError(f"{folder} is a checkpoint, whose files must stay: name the saved model")
    check_output_file(output, overwrite, (".json",))
    data, protocol, loading = read_tasks(geometry=geometry, **options)
    if not data and not mteb:
        raise SettingError("there is nothing to evaluate: give data_dir, pairs, task or mteb")
    precision = read_goal(threshold, data)

    # 2. Score the model
    if model == KEYWORDS:
        check_keywords(data, mteb=mteb, threshold=threshold, **loading)
    encoder = load_encoder(model, loading)
    identity = encoder.identity()
    if threshold is not None and identity.similarity != "cosine":
        raise SettingError(f"threshold is a cosine: leave it out for {identity.name_or_path} ({identity.similarity})")
    evaluation = score_model(encoder, data, protocol, show_progress_bar)
    if mteb:
        scores = evaluate_mteb(encoder.model, mteb)
        evaluation.results.update(mteb=scores, mteb_averages=mteb_averages(scores, mteb))
    if world()[0] > 0:
        return evaluation
    if options.get("data_dir") == HUB:
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
    if save_threshold and evaluation.threshold is not None and isinstance(encoder.model, SimCSE):
        evaluation = replace(evaluation, threshold_file=str(write_threshold(encoder.model, evaluation.threshold)))
    return evaluation


def score_model(
    model: TextEncoder | BM25, tasks: Mapping[str, Task], protocol: Protocol, show_progress_bar: bool
) -> Evaluation:
    """Encode each distinct text of the tasks once, in all processes, and score the tasks in the first one.

    Args:
        model (`TextEncoder` or `BM25`): The model, which encodes queries and documents as in a search.
        tasks (`Mapping[str, Task]`): The tasks that [`read_tasks`] returned.
        protocol (`Protocol`): How they are scored.
        show_progress_bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Evaluation`]: The results and scores, with the identity of the model; nothing in the other processes.

    Raises:
        ValueError: See [`embed_all`]; or if similarities or gold scores are constant. The message names the task and
            its subset or split.
    """
    start = time.perf_counter()
    roles = roles_of(tasks)
    embeddings = None if isinstance(model, BM25) else embed_all(model, roles, show_progress_bar)
    if world()[0] > 0:
        return Evaluation({}, {})
    encoded = time.perf_counter()
    results: dict = {}
    scores: dict = {}
    for name, task in tasks.items():
        # Keyword search counts the documents of each task or, if it has none, all its texts.
        ranker: Any = embeddings or BM25([*task.roles.values()][-1])
        result = task.score(ranker)
        results[name] = task.document(result)
        if result.scores:
            scores[name] = result.scores
            _, results[name]["texts"] = digest_texts(chain.from_iterable(task.roles.values()))
    add_averages(results, protocol)
    if isinstance(model, BM25):  # it works while it is scored
        encoded = time.perf_counter()
    texts = len(set().union(*roles.values()))
    size = 0 if isinstance(model, BM25) else model.size()
    return Evaluation(
        results,
        scores,
        protocol,
        identity=model.identity(),
        versions=versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cost={"texts_per_second": texts / (encoded - start), "megabytes": size / 1e6},
    )


def kept_files(folder: Path, tasks: Mapping[str, Task], protocol: Protocol, *made_by: Any) -> dict[str, Path]:
    """Return the file of a folder in which the score of each task is kept.

    Args:
        folder (`Path`): The folder.
        tasks (`Mapping[str, Task]`): The tasks. Other items have another file.
        protocol (`Protocol`): How they are scored.
        made_by (`Any`): What else may change a score, such as the model where a folder holds the scores of several.

    Returns:
        `dict[str, Path]`: The file of each task.
    """
    return {name: folder / f"{digest_value([name, task, protocol, *made_by])}.json" for name, task in tasks.items()}


def score_missing(
    files: Mapping[str, Path],
    open_model: Callable[[], TextEncoder | BM25],
    tasks: Mapping[str, Task],
    protocol: Protocol,
    show_progress_bar: bool,
) -> Evaluation:
    """Score a model on the tasks whose file is not there yet, write their files, and read all of them.

    Args:
        files (`Mapping[str, Path]`): The file of each task; see [`kept_files`].
        open_model (`Callable`): Loads the model, if a score is missing.
        tasks (`Mapping[str, Task]`): The tasks.
        protocol (`Protocol`): How they are scored.
        show_progress_bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Evaluation`]: The results of all tasks, and their mean cost.
    """
    missing = on_first_process(lambda: [name for name, path in files.items() if not path.exists()])
    if missing:
        model = open_model()
        for name in missing:
            evaluation = score_model(model, {name: tasks[name]}, protocol, show_progress_bar)
            if evaluation.results:  # in the first process
                write_results(files[name], evaluation.to_dict(), evaluation.scores)
        wait_for_all()
    whole = Evaluation({}, {}, protocol)
    costs = []
    for path in files.values():
        one = Evaluation.read(path)
        whole.results.update(one.results)
        whole.scores.update(one.scores)
        if one.scores:  # the task has data
            costs.append(one.cost)
    if not costs:
        return whole
    return replace(whole, cost={key: fmean(each[key] for each in costs) for key in costs[0]})


def read_tasks(
    *,
    task_set: TaskSet | None = None,
    tasks: Sequence[str] | str | None = None,
    data_dir: StrPath | None = None,
    pairs: Iterable[StrPath | ScoredPairs] = (),
    task: Iterable[str | Task | tuple[str, Any]] = (),
    label_separator: str | None = None,
    mode: Mode = "test",
    aggregation: Aggregation = "all",
    metric: Correlation = "spearman",
    seed: int = SEED,
    geometry: bool = False,
    **loading: Unpack[ModelOptions],
) -> tuple[dict[str, Task], Protocol, ModelOptions]:
    """Read the tasks of an evaluation.

    Args:
        task_set (`str`, *optional*): `"sts"`, which is the default, `"transfer"` or `"full"`. In mode `dev`, a set has
            only the tasks with a dev score.
        tasks (`str` or `Sequence[str]`, *optional*): Names of tasks; for `None` those of `task_set`, if there is a
            `data_dir`.
        data_dir (`str` or `os.PathLike`, *optional*): SentEval's `downstream` folder or, for STS tasks, another source
            that `read_sts_task` reads. Required if there are tasks.
        pairs (`Iterable[str | ScoredPairs]`, *optional*): Further sets of pairs or their files, each of them a task
            with its own name.
        task (`Iterable[str | Task | tuple]`, *optional*): A user's own tasks; see [`~tasks.name_tasks`].
        label_separator (`str`, *optional*): What stands between several labels in a cell of them.
        mode (`str`, *optional*, defaults to `"test"`): See [`Protocol`], also for the next ones.
        aggregation (`str`, *optional*, defaults to `"all"`): How subsets give one score.
        metric (`str`, *optional*, defaults to `"spearman"`): The correlation.
        seed (`int`, *optional*, defaults to `1111`): Seed of the classifiers.
        geometry (`bool`, *optional*, defaults to `False`): Whether to read all of STS-B for the geometry.
        **loading (`ModelOptions`): How models are loaded; classifiers are trained on their `device`.

    Returns:
        `tuple[dict[str, Task], Protocol, ModelOptions]`: The tasks by name, how they are scored, and `loading`. Of a
        task without data, the result says that it is missing, and why.

    Raises:
        FileNotFoundError: If `data_dir` does not exist, or if the folder of a task is incomplete.
        SettingError: If there are both `tasks` and a `task_set`, a task is unknown, data is malformed, or `data_dir`
            has none of the tasks.
    """
    protocol = Protocol(mode, aggregation, metric, seed)

    # 1. The names of the tasks of SentEval
    if tasks is not None and task_set is not None:
        raise SettingError("tasks and task_set name the tasks twice: leave out one of them")
    names: Sequence[str] = ()
    if tasks is not None:
        given = [tasks] if isinstance(tasks, str) else tasks
        names = " ".join(given).replace(",", " ").split()
    elif data_dir is not None:
        sts = tuple(STS_SPLITS) if mode == "dev" else STS_TASKS
        names = {"sts": sts, "transfer": TRANSFER_TASKS, "full": sts + TRANSFER_TASKS}[task_set or "sts"]
    unknown = [name for name in names if name not in SENTEVAL]
    if unknown:
        raise SettingError(f"unknown task {', '.join(unknown)}. Use names out of {', '.join(SENTEVAL)}.")
    if data_dir is None and (names or task_set or geometry):
        raise SettingError("data_dir is missing. Give SentEval's `downstream` folder.")
    if data_dir not in (None, HUB) and not Path(data_dir).is_dir():
        raise FileNotFoundError(f"data_dir {data_dir} does not exist. Give SentEval's `downstream` folder.")

    # 2. Their data
    found: dict[str, Task] = {}
    missing = {}
    for name in names:
        try:
            found[name] = read_senteval_task(name, data_dir or "", protocol, loading.get("device"))
        except TaskNotFound as error:
            missing[name] = str(error)
            found[name] = MissingTask(str(data_dir), name, [str(error)])
            logger.warning(f"{name} is not evaluated: {error}.")
    if names and len(missing) == len(found):
        raise SettingError(
            f"data_dir {data_dir} has none of the tasks {', '.join(names)} ({names[0]}: {missing[names[0]]})."
        )

    # 3. A user's own
    own = name_tasks(as_list(task), label_separator, protocol)
    for source in as_list(pairs):
        scored = read_scored_pairs(source)
        where = str(source) if isinstance(source, (str, os.PathLike)) else scored.name
        if scored.name in found or scored.name in own:
            raise SettingError(f"two tasks are named {scored.name}. Rename the file of pairs of this name.")
        found[scored.name] = ScoredPairsTask.of(scored.name, {"pairs": scored}, where, protocol)
    found |= own
    if geometry:
        parts = read_sts_task("STSBenchmark", data_dir or "", ("train", "dev", "test"))
        found["geometry"] = GeometryTask.of("geometry", parts, str(data_dir))
    return found, protocol, loading
