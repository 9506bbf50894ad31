"""Tasks from a user's own files: classification, clustering, pairs, reranking and retrieval."""

from collections.abc import Callable, Iterable
from pathlib import Path

from .base import TaskResult, UserTask, paired_interval
from .labelled import read_classification, read_clustering
from .ranking import read_pairs, read_reranking, read_retrieval

__all__ = [
    "KINDS",
    "TaskResult",
    "UserTask",
    "name_tasks",
    "paired_interval",
    "read_task",
]

KINDS: dict[str, Callable[[Path], UserTask]] = {
    "classification": read_classification,
    "clustering": read_clustering,
    "pairs": read_pairs,
    "reranking": read_reranking,
    "retrieval": read_retrieval,
}


def read_task(kind: str, path: str | Path) -> UserTask:
    """Read a task from a file or folder.

    Args:
        kind (`str`): Kind of task, a name in `KINDS`.
        path (`str | Path`): The file or folder; `docs/evaluation.md` describes the layout of each kind.

    Returns:
        [`UserTask`]: The task.

    Raises:
        FileNotFoundError: If the file or folder does not exist.
        ValueError: If the kind is unknown, or the data is malformed. The message names the file and the row.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of task. Use one of {', '.join(KINDS)}.")
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder (task {kind}).")
    return KINDS[kind](path)


def name_tasks(tasks: Iterable) -> dict:
    """Name tasks as they are called in results.

    The first task of a kind has the name of its kind, and any other one the name of its kind and of its file, such as
    `classification:test`.

    Args:
        tasks (`Iterable[UserTask]`): The tasks.

    Returns:
        `dict[str, UserTask]`: The tasks by name.

    Raises:
        ValueError: If two tasks would have the same name.
    """
    named: dict = {}
    for task in tasks:
        name = task.kind if task.kind not in named else f"{task.kind}:{task.name}"
        if name in named:
            raise ValueError(f"{task.source}: another {task.kind} task is named {task.name}. Rename one of the files.")
        named[name] = task
    return named
