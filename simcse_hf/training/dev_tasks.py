"""Tasks from a user's own files as dev sets of training."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset, Value
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..ops.distributed import on_first_process
from .callbacks import DevSetCallback, SimilarityEvalCallback

if TYPE_CHECKING:
    from ..evaluation.user_tasks import UserTask

logger = logging.get_logger(__name__)

_BATCH_ROWS = 10_000


class TasksEvalCallback(DevSetCallback):
    """Evaluate on tasks from a user's own files, for example as `eval_classification_accuracy`.

    A text that several tasks share is encoded once.

    Args:
        tasks (`dict[str, UserTask]`): The tasks by their name in the metrics, at least one.
        token_budget (`int`, *optional*): Tokens in a padded batch; by default that of [`SimCSE.encode`].
    """

    def __init__(self, tasks: "dict[str, UserTask]", token_budget: int | None = None):
        texts = [text for task in tasks.values() for text in task.texts]
        super().__init__({name: task.source for name, task in tasks.items()}, texts, token_budget)
        self.tasks = tasks
        name, task = next(iter(tasks.items()))
        self.headline = f"{name}_{task.metric}"

    def evaluate(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Encode the texts on all processes, and score them on the first one.

        Args:
            model (`nn.Module`): A contrastive model, as wrapped for training or not.
            tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

        Returns:
            `dict[str, float]`: The metrics of the tasks, times 100, as `{name}_{metric}`.

        Raises:
            ValueError: If embeddings are not finite, or all equal.
        """
        embeddings = self._encode(model, tokenizer).numpy()
        return on_first_process(lambda: self._score(lambda texts: embeddings[[self._row[text] for text in texts]]))

    def _score(self, encode: Any) -> dict[str, float]:
        results = {name: task.evaluate(encode) for name, task in self.tasks.items()}
        self.scores = {f"{name}_{task.metric}": {task.kind: results[name].scores} for name, task in self.tasks.items()}
        return {f"{name}_{metric}": x for name, result in results.items() for metric, x in result.metrics.items()}


def make_dev_sets(dev_set: Any, dev_tasks: "Sequence[str | UserTask] | None") -> list[DevSetCallback]:
    """Make the callbacks of a trainer's dev sets.

    Args:
        dev_set (`str`, `os.PathLike` or `ScoredPairs`, *optional*): Scored pairs or their file.
        dev_tasks (`Sequence`, *optional*): Tasks, or words such as `"classification=dev.csv"`. The first task of a
            kind is named after its kind in the metrics, and any other one also after its file.

    Returns:
        `list[DevSetCallback]`: One for the scored pairs, if there are any, and then one for all tasks.

    Raises:
        ValueError: If a word is not KIND=FILE, a file cannot be read, or two tasks would have the same name.
    """
    callbacks: list[DevSetCallback] = [] if dev_set is None else [SimilarityEvalCallback(dev_set)]
    if not dev_tasks:
        return callbacks
    if isinstance(dev_tasks, str):
        raise ValueError(f"dev_tasks must be a list of tasks, got the string {dev_tasks!r}.")
    from ..evaluation.user_tasks import name_tasks, read_task  # scikit-learn takes a second to import

    tasks = name_tasks(read_task(*_split(task)) if isinstance(task, str) else task for task in dev_tasks)
    return [*callbacks, TasksEvalCallback({name.replace(":", "_"): task for name, task in tasks.items()})]


def warn_of_overlap(rows: Any, dev_sets: Sequence[DevSetCallback]) -> None:
    """Warn if texts of the dev sets are among the training texts.

    Args:
        rows (`datasets.Dataset`): The training rows. Only columns of strings are read.
        dev_sets (`Sequence[DevSetCallback]`): The dev sets.
    """
    if not isinstance(rows, Dataset) or not dev_sets:
        return
    columns = [name for name, feature in rows.features.items() if feature == Value("string")]
    dev_texts = {text for dev_set in dev_sets for text in dev_set.texts}
    found: set[str] = set()
    for batch in rows.select_columns(columns).iter(_BATCH_ROWS) if columns else ():
        found.update(dev_texts.intersection(chain.from_iterable(batch.values())))
    if found:
        logger.warning(
            f"{len(found)} of {len(dev_texts)} dev texts, such as {min(found)[:60]!r}, are also training texts. The "
            "dev figures may be better than those on new text."
        )


def _split(word: str) -> tuple[str, Path]:
    kind, equals, path = word.partition("=")
    if not equals or not path:
        raise ValueError(f"a dev task must be KIND=FILE, such as classification=dev.csv, got {word!r}.")
    return kind, Path(path)
