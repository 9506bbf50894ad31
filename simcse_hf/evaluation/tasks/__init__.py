"""What embeddings are scored by: SentEval's tasks, scored pairs, the geometry, and tasks from a user's own files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    "read_task", "roles_of",
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
    kind: str, path: StrPath, label_separator: str | None = None, protocol: Protocol = PAPER_PROTOCOL
) -> Task:
    """Read a task from a file or folder.

    Args:
        kind (`str`): Kind of task: classification, knn, clustering, pairs, reranking or retrieval; or the name of a
            task of SentEval.
        path (`str` or `os.PathLike`): The file or folder; `docs/evaluation.md` describes the layout of each kind. For
            a task of SentEval, its folder "downstream".
        label_separator (`str`, *optional*): What stands between several labels in a cell of labelled texts.
        protocol (`Protocol`, *optional*): How a task of SentEval is scored.

    Returns:
        [`Task`]: The task.

    Raises:
        FileNotFoundError: If the file or folder does not exist.
        SettingError: If the kind is unknown, or the data is malformed. The message names the file and the row.

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
    tasks: Iterable[str | Task], label_separator: str | None = None, protocol: Protocol = PAPER_PROTOCOL
) -> dict[str, Task]:
    """Read tasks, and name them as they are called in results.

    The first task of a kind has the name of its kind, and any other one the name of its kind and of its file, such as
    `classification:test`.

    Args:
        tasks (`Iterable[str | Task]`): The tasks, or words such as `"classification=dev.csv"`.
        label_separator (`str`, *optional*): See [`read_task`].
        protocol (`Protocol`, *optional*): See [`read_task`].

    Returns:
        `dict[str, Task]`: The tasks by name.

    Raises:
        SettingError: If a word is not KIND=FILE, a file cannot be read, or two tasks would have the same name.
    """
    named: dict[str, Task] = {}
    for task in tasks:
        if isinstance(task, str):
            kind, _, path = task.partition("=")
            if not path:
                raise SettingError(f"a task must be KIND=FILE, such as classification=dev.csv, got {task!r}.")
            task = read_task(kind, path, label_separator, protocol)
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
