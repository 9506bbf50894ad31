"""Tasks from a user's own files: classification, nearest texts, clustering, pairs, reranking and retrieval."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .base import TaskResult, UserTask, paired_interval

__all__ = [
    "TaskResult",
    "UserTask",
    "name_general_tasks",
    "name_tasks",
    "paired_interval",
    "read_task",
]

#: The kinds of tasks from a user's own files.
KINDS = ("classification", "nearest", "clustering", "pairs", "reranking", "retrieval")


def read_task(kind: str, path: str | Path, label_separator: str | None = None) -> UserTask:
    """Read a task from a file or folder.

    Args:
        kind (`str`): Kind of task, one of `KINDS`.
        path (`str | Path`): The file or folder; `docs/evaluation.md` describes the layout of each kind.
        label_separator (`str`, *optional*): What stands between several labels in a cell of labelled texts.

    Returns:
        [`UserTask`]: The task.

    Raises:
        FileNotFoundError: If the file or folder does not exist.
        ValueError: If the kind is unknown, or the data is malformed. The message names the file and the row.

    Examples:
        >>> from simcse_hf import SimCSE, read_task
        >>> task = read_task("classification", "tickets.csv")
        >>> len(task), task.metric
        (256, 'accuracy')
        >>> result = task.evaluate(SimCSE("outputs/my-model", device="cpu"))
        >>> list(result.metrics)
        ['accuracy', 'knn_accuracy']
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of task. Use one of {', '.join(KINDS)}.")
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder (task {kind}).")
    from . import labelled, ranking  # scikit-learn takes a second to import

    of_labels: dict[str, Callable[[Path, str | None], UserTask]] = {
        "classification": labelled.read_classification,
        "nearest": labelled.read_nearest,
        "clustering": labelled.read_clustering,
    }
    if kind in of_labels:
        return of_labels[kind](path, label_separator)
    readers: dict[str, Callable[[Path], UserTask]] = {
        "pairs": ranking.read_pairs,
        "reranking": ranking.read_reranking,
        "retrieval": ranking.read_retrieval,
    }
    return readers[kind](path)


def name_tasks(tasks: Iterable[str | UserTask], label_separator: str | None = None) -> dict[str, UserTask]:
    """Read tasks, and name them as they are called in results.

    The first task of a kind has the name of its kind, and any other one the name of its kind and of its file, such as
    `classification:test`.

    Args:
        tasks (`Iterable[str | UserTask]`): The tasks, or words such as `"classification=dev.csv"`.
        label_separator (`str`, *optional*): See [`read_task`].

    Returns:
        `dict[str, UserTask]`: The tasks by name.

    Raises:
        ValueError: If a word is not KIND=FILE, a file cannot be read, or two tasks would have the same name.
    """
    named: dict[str, UserTask] = {}
    for task in tasks:
        if isinstance(task, str):
            kind, _, path = task.partition("=")
            if not path:
                raise ValueError(f"a task must be KIND=FILE, such as classification=dev.csv, got {task!r}.")
            task = read_task(kind, path, label_separator)
        name = task.kind if task.kind not in named else f"{task.kind}:{task.name}"
        if name in named:
            raise ValueError(f"{task.source}: another {task.kind} task is named {task.name}. Rename one of the files.")
        named[name] = task
    return named


def name_general_tasks(tasks: Sequence[str | UserTask], label_separator: str | None = None) -> dict[str, UserTask]:
    """Read the tasks on which `--general` says what was forgotten, and name them as [`name_tasks`] does.

    Args:
        tasks (`Sequence[str | UserTask]`): As there; a word without `=` names scored pairs, as that of a dev set does.
        label_separator (`str`, *optional*): See [`read_task`].

    Returns:
        `dict[str, UserTask]`: The tasks by name; that of the first scored pairs is `sts`.

    Raises:
        ValueError: If there is no such task, or two would have the same name.
    """
    from .ranking import ScoredPairsTask, read_pairs

    read = []
    for task in tasks:
        if isinstance(task, str) and "=" not in task:
            task = read_pairs(Path(task), ScoredPairsTask)
        read.append(task)
    return name_tasks(read, label_separator)
