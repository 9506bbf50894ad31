"""Dev sets of scored pairs and of a user's own tasks, evaluated while a model trains."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset, Value
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from ..evaluation.metrics import alignment, cosine_similarity_pairs, effective_rank, mean_cosine, spearman, uniformity
from ..evaluation.report import Scores
from ..evaluation.scoring import TaskData
from ..evaluation.sts import ScoredPairs, read_pairs_argument
from ..inference.encoding import encode_token_ids, full_length, tokenize_texts
from ..models.modeling import ContrastiveModel
from ..models.settings import ContrastiveSettings, length_limit
from ..ops.distributed import on_first_process
from ..ops.files import digest

logger = logging.get_logger(__name__)

#: Pairs scored above this share of the highest score count as positives: above 4 of 5 in STS-B (SimCSE, footnote 3).
POSITIVE_SHARE = 0.8


def default_prompt(settings: ContrastiveSettings) -> str:
    """Return the prompt that the model puts before a text when none is named; often empty."""
    name = settings.default_prompt_name
    return settings.prompts[name] if name is not None else ""


class DevSetCallback(TrainerCallback, ABC):
    """Evaluate on dev sets at every evaluation of the Trainer.

    `SimCSETrainer` calls [`evaluate`] and adds the result to its metrics before they are logged, so that its metrics
    can select the best checkpoint and stop early like any other metric. Each distinct text is encoded once per
    evaluation, and cut at the model's own limit, as in inference, and not at the `max_seq_length` of training.

    Args:
        sources (`dict[str, str]`): The file of each dev set, by its name in the metrics.
        texts (`Sequence[str]`): The texts of all sets; they may repeat.

    Attributes:
        texts (`list[str]`): The distinct texts.
        gold (`list`): What decides the scores beside the texts: gold scores, or digests of the tasks' files.
        headline (`str`): The metric that selects the best checkpoint by default. A higher value is better.
        scores (`dict`): What the last evaluation scored, for a bootstrap: for each metric that can be resampled, the
            arrays by part and name as in [`Evaluation`]. Only the first process needs to have them.
    """

    headline: str
    gold: list[Any]
    scores: Scores
    shows_bar = False

    def __init__(self, sources: dict[str, str], texts: Sequence[str]):
        self.sources = sources
        self.scores = {}
        self._set_texts(texts)

    def _set_texts(self, texts: Sequence[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        self._row = {text: row for row, text in enumerate(self.texts)}
        self._made_with: tuple[Any, ...] = ()
        self._token_ids: list[list[int]] = []

    def use_prompts(self, settings: ContrastiveSettings) -> None:
        """Put the model's prompts `query` and `document` before the texts of tasks that tell the two apart.

        Args:
            settings (`ContrastiveSettings`): The settings of the model. Its default prompt stands before all texts.
        """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show a bar at each evaluation of the run, if the run shows bars."""
        self.shows_bar = not args.disable_tqdm

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Request an evaluation of the last weights, whether or not `eval_steps` divides the number of steps."""
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True

    @abstractmethod
    def evaluate(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Compute the metrics of the sets. The name of each metric begins with that of its set.

        Args:
            model (`nn.Module`): A contrastive model, as wrapped for training or not.
            tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

        Returns:
            `dict[str, float]`: The metrics, the same in all processes.

        Raises:
            ValueError: If embeddings are not finite, or all equal.
        """

    def _encode(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
        """Return the embeddings of the distinct texts in all processes, which share the work."""
        inner = cast(ContrastiveModel, model.module if hasattr(model, "module") else model)
        prompt, templates = default_prompt(inner.settings), inner.settings.templates
        max_length = length_limit(inner.config, inner.settings, tokenizer)  # as in inference
        made_with = (tokenizer, max_length, templates, prompt)
        if made_with != self._made_with:  # also when the callback serves another run
            full_length(*made_with)  # refuses a prompt without room
            texts = [prompt + text for text in self.texts]
            self._token_ids, self._made_with = tokenize_texts(tokenizer, texts, max_length, templates), made_with
        pad = tokenizer.pad_token_id
        return encode_token_ids(model, self._token_ids, pad, show_progress_bar=self.shows_bar)


class SimilarityEvalCallback(DevSetCallback):
    """Evaluate on a dev set of scored pairs, by default as `eval_stsb_spearman`.

    Args:
        dev_set (`str`, `os.PathLike` or `ScoredPairs`): Pairs, or a file of them: SentEval's `sts-dev.csv`, or any
            table with the columns sentence1, sentence2, score; or a data set on the hub as `name:split`.
        name (`str`, *optional*, defaults to `"stsb"`): Name of the set in the metrics.
    """

    def __init__(self, dev_set: str | os.PathLike | ScoredPairs, name: str = "stsb"):
        self.pairs = dev_set if isinstance(dev_set, ScoredPairs) else read_pairs_argument(str(dev_set))
        source = self.pairs.name if isinstance(dev_set, ScoredPairs) else str(dev_set)
        super().__init__({name: source}, self.pairs.texts)
        self.name, self.headline, self.gold = name, f"{name}_spearman", list(self.pairs.scores)
        columns = (self.pairs.sentences1, self.pairs.sentences2)
        self._first, self._second = (torch.tensor([self._row[text] for text in column]) for column in columns)
        self._gold, self._group = np.asarray(self.pairs.scores, dtype=np.float64), self.pairs.groups
        self._positive = torch.from_numpy(self._gold > POSITIVE_SHARE * self._gold.max())

    def evaluate(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Compute Spearman's correlation of cosine and score, and the geometry of the embeddings.

        Alignment is taken over the pairs scored above 80% of the highest score, and the rest over all texts.

        Args:
            model (`nn.Module`): A contrastive model, as wrapped for training or not.
            tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

        Returns:
            `dict[str, float]`: `{name}_spearman` (x 100), `{name}_alignment` if there are such pairs,
            `{name}_uniformity`, `{name}_mean_cosine` and `{name}_effective_rank`.
        """
        embeddings = self._encode(model, tokenizer)
        first, second = embeddings[self._first], embeddings[self._second]
        predicted = cosine_similarity_pairs(first, second)
        scores = {"predicted": np.asarray(predicted), "gold": self._gold, "group": self._group}
        self.scores = {self.headline: {"pairs": scores}}
        metrics = {"spearman": 100 * spearman(predicted, self.pairs.scores)}
        if self._positive.any():
            metrics["alignment"] = alignment(first[self._positive], second[self._positive])
        metrics["uniformity"] = uniformity(embeddings)
        metrics["mean_cosine"] = mean_cosine(embeddings)
        metrics["effective_rank"] = effective_rank(embeddings)
        return {f"{self.name}_{metric}": value for metric, value in metrics.items()}


class TasksEvalCallback(DevSetCallback):
    """Evaluate on tasks from a user's own files, for example as `eval_classification_accuracy`.

    A text that several tasks share is encoded once.

    Args:
        tasks (`dict[str, UserTask]`): The tasks by their name in the metrics, at least one.
    """

    def __init__(self, tasks: dict[str, Any]):
        texts = [text for task in tasks.values() for text in task.texts]
        super().__init__({name: task.source for name, task in tasks.items()}, texts)
        self.tasks = self._given = tasks
        name, task = next(iter(tasks.items()))
        self.headline = f"{name}_{task.metric}"
        self.gold = [digest(source) for source in self.sources.values() if Path(source).is_file()]

    def use_prompts(self, settings: ContrastiveSettings) -> None:
        """Use the prompts in retrieval and reranking; see [`DevSetCallback.use_prompts`]."""
        data = TaskData(user_tasks=self._given).prompted_for(settings)
        self.tasks = data.user_tasks
        self._set_texts(list(data.texts()))

    def evaluate(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Encode the texts on all processes, and score them on the first one.

        Args:
            model (`nn.Module`): A contrastive model, as wrapped for training or not.
            tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

        Returns:
            `dict[str, float]`: The metrics of the tasks, times 100, as `{name}_{metric}`.
        """
        embeddings = self._encode(model, tokenizer).numpy()
        return on_first_process(lambda: self._score(lambda texts: embeddings[[self._row[text] for text in texts]]))

    def _score(self, encode: Any) -> dict[str, float]:
        results = {name: task.evaluate(encode) for name, task in self.tasks.items()}
        self.scores = {f"{name}_{task.metric}": {task.kind: results[name].scores} for name, task in self.tasks.items()}
        return {f"{name}_{metric}": x for name, result in results.items() for metric, x in result.metrics.items()}


def make_dev_sets(dev_set: Any, dev_tasks: Sequence[Any] | None) -> list[DevSetCallback]:
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


def _split(word: str) -> tuple[str, Path]:
    kind, equals, path = word.partition("=")
    if not equals or not path:
        raise ValueError(f"a dev task must be KIND=FILE, such as classification=dev.csv, got {word!r}.")
    return kind, Path(path)


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
    for batch in rows.select_columns(columns).iter(10_000) if columns else ():
        found.update(dev_texts.intersection(chain.from_iterable(batch.values())))
    if found:
        logger.warning(
            f"{len(found)} of {len(dev_texts)} dev texts, such as {min(found)[:60]!r}, are also training texts. The "
            "dev scores may be better than those on new text."
        )
