"""What embeddings are scored by: SentEval's tasks, scored pairs, the geometry, and tasks from a user's own files."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...data.read import TextSource, open_one
from ...runtime.errors import SettingError
from ...runtime.files import StrPath
from ..protocol import PAPER_PROTOCOL, Protocol
from .base import Task, TaskResult, paired_interval, roles_of
from .labelled import ClassificationTask, ClusteringTask, KNNTask
from .ranking import PairsTask, RerankingTask, RetrievalTask
from .senteval import (
    STS_PAIRS,
    TRANSFER_TASKS,
    ScoredPairsTask,
    TaskNotFound,
    TransferTask,
    read_sts_task,
    read_transfer_task,
)

__all__ = [
    "Task",
    "TaskResult",
    "name_general_tasks",
    "name_tasks",
    "paired_interval",
    "read_task",
    "roles_of",
]

#: The kinds of tasks from a user's own files.
KINDS: dict[str, type[Task]] = {
    "classification": ClassificationTask,
    "knn": KNNTask,
    "clustering": ClusteringTask,
    "pairs": PairsTask,
    "reranking": RerankingTask,
    "retrieval": RetrievalTask,
}
#: The tasks of SentEval.
SENTEVAL: dict[str, type[Task]] = {
    **dict.fromkeys(STS_PAIRS, ScoredPairsTask),
    **dict.fromkeys((*TRANSFER_TASKS, "SST5"), TransferTask),
}


def class_of(name: str, document: Mapping[str, Any]) -> type[Task]:
    """Return the class of the task that a result file has an entry of, under a name."""
    if "kind" in document:
        return KINDS.get(document["kind"], Task)  # files keep kinds that are gone
    return SENTEVAL.get(name, ScoredPairsTask)


def read_senteval_task(name: str, data_dir: StrPath, protocol: Protocol, device: str | None = None) -> Task:
    """Read a task of SentEval.

    Args:
        name (`str`): One of `SENTEVAL`.
        data_dir (`str` or `os.PathLike`): See [`read_sts_task`] and [`read_transfer_task`].
        protocol (`Protocol`): Its mode decides which splits are read.
        device (`str`, *optional*): Where to train classifiers. Defaults to a GPU if there is one.

    Returns:
        [`Task`]: The task.

    Raises:
        TaskNotFound: If there is no such data.
        FileNotFoundError: If a part of it is missing.
        ValueError: If data is malformed.
    """
    if SENTEVAL[name] is TransferTask:
        return TransferTask.of(name, read_transfer_task(name, data_dir), str(data_dir), protocol, device)
    splits = ("dev",) if protocol.mode == "dev" else ("test", "dev")
    return ScoredPairsTask.of(name, read_sts_task(name, data_dir, splits), str(data_dir), protocol)


def read_task(
    kind: str,
    path: StrPath | TextSource,
    label_separator: str | None = None,
    protocol: Protocol = PAPER_PROTOCOL,
    name: str | None = None,
) -> Task:
    """Read a task from a file or folder, or from rows in memory.

    Args:
        kind (`str`): Kind of task: classification, knn, clustering, pairs, reranking or retrieval; or the name of a
            task of SentEval.
        path (`str`, `os.PathLike` or `Any`): The file or folder; `docs/evaluation.md` describes the layout of each
            kind. For a task of SentEval, its folder "downstream". Also a data frame or other rows, which have the
            columns of the file.
        label_separator (`str`, *optional*): What stands between several labels in a cell of labelled texts.
        protocol (`Protocol`, *optional*): How a task of SentEval is scored.
        name (`str`, *optional*): What messages and results call rows in memory. Defaults to what they are.

    Returns:
        [`Task`]: The task.

    Raises:
        FileNotFoundError: If the file or folder does not exist.
        SettingError: If the kind is unknown, rows are given for a kind that is a folder, or the data is malformed.
            The message names the file and the row.

    Examples:
        >>> from simcse_hf import SimCSE, read_task
        >>> task = read_task("classification", "tickets.csv")
        >>> len(task), task.metric
        (256, 'accuracy')
        >>> result = task.evaluate(SimCSE("outputs/my-model", device="cpu"))
        >>> list(result.metrics)
        ['accuracy', 'knn_accuracy']
    """
    if kind not in {**KINDS, **SENTEVAL}:
        raise SettingError(f"{kind!r} is no kind of task. Use one of {', '.join(KINDS)}, or a task of SentEval.")
    if not isinstance(path, (str, os.PathLike)):
        if kind in SENTEVAL:
            raise SettingError(f"{kind} is read from a folder: name SentEval's folder downstream, not its rows.")
        return KINDS[kind].read(open_one(path, name, split=None), label_separator)
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder (task {kind}).")
    if kind in KINDS:
        return KINDS[kind].read(path, label_separator)
    try:
        task = read_senteval_task(kind, path, protocol)
    except TaskNotFound as error:
        raise FileNotFoundError(f"{path}: {kind} is not there: {error}.") from error
    task.kind = kind  # type: ignore[misc]
    return task


def name_tasks(
    tasks: Iterable[str | Task | tuple[str, Any]],
    label_separator: str | None = None,
    protocol: Protocol = PAPER_PROTOCOL,
) -> dict[str, Task]:
    """Read tasks, and name them as they are called in results.

    The first task of a kind has the name of its kind, and any other one the name of its kind and of its file, such as
    `classification:test`. Rows in memory are named by their place: `classification:task 2`.

    Args:
        tasks (`Iterable[str | Task | tuple]`): The tasks, words such as `"classification=dev.csv"`, or pairs of a kind
            and rows in memory, such as `("classification", frame)`.
        label_separator (`str`, *optional*): See [`read_task`].
        protocol (`Protocol`, *optional*): See [`read_task`].

    Returns:
        `dict[str, Task]`: The tasks by name.

    Raises:
        SettingError: If an entry is none of these, a file cannot be read, or two tasks would have the same name.
    """
    named = {}
    for number, task in enumerate(tasks, 1):
        if isinstance(task, str):
            kind, equals, path = task.partition("=")
            task = (kind, path) if equals and path else task
        if isinstance(task, tuple) and len(task) == 2:
            kind, rows = task
            task = read_task(kind, rows, label_separator, protocol, f"task {number}")
        if not isinstance(task, Task):
            got = repr(task) if isinstance(task, str) else f"a {type(task).__name__}"
            raise SettingError(
                f"task {number} must be KIND=FILE, such as classification=dev.csv, or in Python a pair of a kind and "
                f"rows, got {got}."
            )
        name = task.kind if task.kind not in named else f"{task.kind}:{task.name}"
        if name in named:
            raise SettingError(
                f"{task.source}: another {task.kind} task is named {task.name}. Rename one of the files."
            )
        named[name] = task
    return named


def name_general_tasks(tasks: Sequence[str | Task], label_separator: str | None = None) -> dict[str, Task]:
    """Read the tasks on which `--general` says what was forgotten, and name them as [`name_tasks`] does.

    Args:
        tasks (`Sequence[str | Task]`): As there; a word without `=` names scored pairs, as that of a dev set does.
        label_separator (`str`, *optional*): See [`read_task`].

    Returns:
        `dict[str, Task]`: The tasks by name; that of the first scored pairs is `sts`.

    Raises:
        ValueError: If there is no such task, or two would have the same name.
    """
    read = []
    for task in tasks:
        if isinstance(task, str) and "=" not in task:
            task = ScoredPairsTask.read(Path(task), None)
        read.append(task)
    return name_tasks(read, label_separator)
