"""Dev sets are encoded and scored while a run trains; and what changes from one evaluation to another."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, product
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Value
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from transformers.utils import logging

from ..data.read import TextSource
from ..data.scored_pairs import ScoredPairs, read_scored_pairs
from ..encoding.batching import BatchEncoder
from ..evaluation.bootstrap import Scores
from ..evaluation.compare import describe_change
from ..evaluation.embeddings import SentenceEmbeddings
from ..evaluation.metrics import alignment, collapse, uniformity
from ..evaluation.protocol import Protocol
from ..evaluation.tasks import Task, name_general_tasks, name_tasks, roles_of
from ..evaluation.tasks.senteval import POSITIVE_SHARE, ScoredPairsTask
from ..evaluation.verdict import Scored, make_samples
from ..evaluation.verdict import differences as differences_of
from ..runtime.distributed import on_first_process
from ..runtime.errors import SettingError, as_list
from ..runtime.files import digest

logger = logging.get_logger(__name__)

#: How one uses an encoder that says nothing of a pooler: the mean of all tokens, or the token [CLS].
PLAIN_POOLERS = ("avg", "cls_before_pooler")
_CONFIDENCE = 0.95
_RESAMPLES = 1000


@dataclass(frozen=True)
class Change:
    """What training has changed in the main metric of the dev set, with its interval.

    Args:
        metric (`str`): The metric.
        difference (`float`): Saved weights minus start, the mean over the seeds.
        low (`float`): The lower end of the interval.
        high (`float`): Its upper end.
        confidence (`float`): The level of the interval.
        resamples (`int`): Resamples of the bootstrap.
        optimism (`float`): By how much the choice of the checkpoint on the dev set flatters it.
        seeds (`int`): The number of runs.
        source (`str`): The file of a general task.
    """

    metric: str
    difference: float
    low: float
    high: float
    confidence: float
    resamples: int
    optimism: float = 0.0
    seeds: int = 1
    source: str = ""

    def __str__(self) -> str:
        file = f"   ({Path(self.source).name})" if self.source else ""
        return describe_change(vars(self)) + file


class DevSetCallback(TrainerCallback):
    """Evaluate on tasks at every evaluation of the Trainer, for example as `eval_classification_accuracy`.

    `SimCSETrainer` calls [`evaluate`] and adds the result to its metrics before they are logged, so that its metrics
    can select the best checkpoint and stop early like any other metric. Each distinct text is encoded once per
    evaluation, and cut at the model's own limit, as in inference, and not at the `max_seq_length` of training.

    Args:
        tasks (`Mapping[str, Task]`): The tasks by their name in the metrics, at least one.

    Attributes:
        sources (`dict[str, str]`): The file of each task, by its name.
        texts (`list[str]`): The distinct texts.
        roles (`dict[Role, list[str]]`): The distinct texts of each role.
        gold (`list`): What decides the scores beside the texts: digests of the tasks' files, or gold scores.
        headlines (`list[str]`): The main metric of each task.
        headline (`str`): The first of them, which selects the best checkpoint by default. A higher value is better.
        scores (`dict`): What the last evaluation scored, for a bootstrap: for each metric that can be resampled, the
            arrays by part and name as in [`Evaluation`]. Only the first process needs to have them.
        shows_bar (`bool`): Whether an evaluation shows a bar, as the Trainer decides.
    """

    shows_bar = False
    #: What messages and settings call the sets.
    what = "dev"

    def __init__(self, tasks: Mapping[str, Task]):
        self.tasks = {name.replace(":", "_"): task for name, task in tasks.items()}
        self.sources = {name: task.source for name, task in self.tasks.items()}
        self.headlines = [f"{name}_{task.metric}" for name, task in self.tasks.items()]
        self.headline = self.headlines[0]
        self.gold: list[Any] = [digest(source) for source in self.sources.values() if Path(source).is_file()]
        self.scores: Scores = {}
        roles = roles_of(self.tasks)
        self.roles = {role: list(dict.fromkeys(texts)) for role, texts in roles.items()}
        self.texts = list(dict.fromkeys(chain.from_iterable(roles.values())))
        self._reading: tuple[object, ...] = ()

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Request an evaluation of the last weights, whether or not `eval_steps` divides the number of steps."""
        if state.global_step >= state.max_steps and args.eval_strategy == "steps":
            control.should_evaluate = True

    def evaluate_start(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Evaluate an encoder that names no pooler as the run pools it, and with the poolers that one would use.

        If one of these is better, the log says so: the change that the run reports at its end is from the better one.

        Args:
            model (`nn.Module`): A contrastive model, as wrapped for training or not.
            tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

        Returns:
            `dict[str, float]`: The metrics, and each of `headlines` by each of `PLAIN_POOLERS` that is not the run's
            own as `start_{pooler}_{headline}`; `scores` has the same names.
        """
        inner: Any = getattr(model, "module", model)
        settings = inner.settings
        found = {}
        plain = ("avg",) if inner.reads_left_to_right else PLAIN_POOLERS  # its first token sees no other
        try:
            for pooler in plain:
                if pooler != settings.inference_pooler:
                    inner.settings = replace(settings, pooler_type=pooler, mlp_only_train=False, templates=[])
                    found[pooler] = self.evaluate(model, tokenizer), self.scores
        finally:
            inner.settings = settings
        metrics = self.evaluate(model, tokenizer)
        for (pooler, (values, scores)), headline in product(found.items(), self.headlines):
            name = f"start_{pooler}_{headline}"
            value = metrics[name] = values[headline]
            if headline not in scores:  # not the first process, or nothing to resample
                continue
            self.scores[name] = scores[headline]
            if value > metrics[headline]:
                logger.info(
                    f"Before training, {headline} is {value:.2f} with the pooler {pooler} and {metrics[headline]:.2f} "
                    f"with the pooler of this run. The change is reported from the better one; --pooler_type {pooler} "
                    "trains with it."
                )
        return metrics

    def evaluate(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Encode the texts on all processes, and score them on the first one.

        Args:
            model (`nn.Module`): A contrastive model, as wrapped for training or not.
            tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

        Returns:
            `dict[str, float]`: What [`score`] returns, the same in all processes.

        Raises:
            ValueError: If embeddings are not finite, or all equal.
        """
        encoder = BatchEncoder(model, tokenizer)  # with the length of inference
        prompts = {role: encoder.resolve_prompt(role=role) for role in self.roles}
        reading = (tokenizer, encoder.max_length, encoder.settings.templates, prompts)
        if reading != self._reading:  # also when the callback serves another run
            self._token_ids = []
            for role, texts in self.roles.items():
                self._token_ids += encoder.tokenize(texts, prompts[role])
            self._reading = reading
        embeddings = encoder.embed(self._token_ids, show_progress_bar=self.shows_bar)
        similarity = encoder.settings.similarity_fn_name
        return on_first_process(lambda: self.score(SentenceEmbeddings(self.roles, embeddings.numpy(), similarity)))

    def warn_of_shared(self, texts: set[str], what: str) -> None:
        """Warn if texts of the sets also occur elsewhere; `what` says in words where."""
        shared = texts.intersection(self.texts)
        if shared:
            logger.warning(
                f"{len(shared)} of {len(self.texts)} {self.what} texts, such as {min(shared)[:60]!r}, are {what}. "
                f"The {self.what} scores may be better than those on new text."
            )

    def score(self, embeddings: SentenceEmbeddings) -> dict[str, float]:
        """Compute the metrics of the tasks, and keep the `scores`.

        Args:
            embeddings (`SentenceEmbeddings`): The embeddings of `texts`.

        Returns:
            `dict[str, float]`: The metrics of the tasks, times 100, as `{name}_{metric}`.
        """
        self.scores = {}
        metrics = {}
        for name, task in self.tasks.items():
            result = task.score(embeddings)
            if task.metric != "dev_accuracy":  # its answers are those on the test split
                self.scores[f"{name}_{task.metric}"] = result.scores
            for metric, value in result.metrics.items():
                metrics[f"{name}_{metric}"] = value
        return metrics


class GeneralTasksCallback(DevSetCallback):
    """Evaluate on tasks that the run is not about, which say what it forgets, as `eval_general_sts_spearman`."""

    what = "general"


class SimilarityEvalCallback(DevSetCallback):
    """Evaluate on a dev set of scored pairs, by default as `eval_stsb_spearman`.

    Args:
        dev_set (`str`, `os.PathLike`, `ScoredPairs` or `Any`): Pairs, or a file of them: SentEval's `sts-dev.csv`, or
            any table with the columns sentence1, sentence2, score, also in memory; or a data set on the hub as
            `name:split`.
        name (`str`, *optional*, defaults to `"stsb"`): Name of the set in the metrics.

    Examples:
        >>> from simcse_hf import SimCSETrainer, SimCSETrainingArguments, SimilarityEvalCallback
        >>> pairs = {"sentence1": ["a cat"] * 3, "sentence2": ["a kitten", "a dog", "the sea"], "score": [5, 2, 0]}
        >>> args = SimCSETrainingArguments("outputs/new", report_to="none", disable_tqdm=True)
        >>> own = SimilarityEvalCallback(pairs, "own")
        >>> trainer = SimCSETrainer("outputs/my-model", args, dev_set="sts-dev.csv", callbacks=[own])
        >>> [name for name in trainer.evaluate() if name.endswith("spearman")]
        ['eval_own_spearman', 'eval_stsb_spearman']
    """

    def __init__(self, dev_set: TextSource | ScoredPairs, name: str = "stsb"):
        is_named = isinstance(dev_set, (str, os.PathLike))
        self.pairs = read_scored_pairs(dev_set, str(dev_set) if is_named else "dev_set")
        super().__init__({name: ScoredPairsTask.of(name, {"pairs": self.pairs}, self.pairs.name)})
        self.gold = list(self.pairs.scores)

    def score(self, embeddings: SentenceEmbeddings) -> dict[str, float]:
        """Compute Spearman's correlation of cosine and score, and the geometry of the embeddings.

        Alignment is taken over the pairs scored above 80% of the highest score, and the rest over all texts.

        Args:
            embeddings (`SentenceEmbeddings`): The embeddings of `texts`.

        Returns:
            `dict[str, float]`: `{name}_spearman` (x 100), `{name}_alignment` if there are such pairs,
            `{name}_uniformity`, `{name}_mean_cosine` and `{name}_effective_rank`.
        """
        metrics = super().score(embeddings)
        [name] = self.tasks
        gold = np.asarray(self.pairs.scores)
        positive = gold > POSITIVE_SHARE * gold.max()
        if positive.any():
            sides = (self.pairs.sentences1, self.pairs.sentences2)
            first, second = (embeddings(compress(side, positive)) for side in sides)
            metrics[f"{name}_alignment"] = alignment(first, second)
        all_texts = embeddings(self.texts)
        metrics[f"{name}_uniformity"] = uniformity(all_texts)
        metrics[f"{name}_mean_cosine"], metrics[f"{name}_effective_rank"] = collapse(all_texts)
        return metrics


def make_dev_sets(
    dev_set: Any,
    dev_tasks: Sequence[Any] | None,
    general: Sequence[str | Task] = (),
    label_separator: str | None = None,
) -> list[DevSetCallback]:
    """Make the callbacks of a trainer's dev sets.

    Args:
        dev_set (`str`, `os.PathLike`, `ScoredPairs` or `Any`, *optional*): Scored pairs, also as rows, or their file.
        dev_tasks (`Sequence`, *optional*): Tasks, or words such as `"classification=dev.csv"`. The first task of a
            kind is named after its kind in the metrics, and any other one also after its file.
        general (`Sequence`, *optional*): General tasks, as in [`~tasks.name_general_tasks`].
        label_separator (`str`, *optional*): What stands between several labels in a cell of a task.

    Returns:
        `list[DevSetCallback]`: One for the scored pairs, one for all tasks, and one for all general tasks, if there
        are any.

    Raises:
        SettingError: If a word is not KIND=FILE, a file cannot be read, two tasks would have the same name, or there
            are general tasks alone.
    """
    dev_tasks = as_list(dev_tasks or ())
    general = as_list(general)
    callbacks: list[DevSetCallback] = []
    if dev_set is not None:
        callbacks.append(SimilarityEvalCallback(dev_set))
    if dev_tasks:
        callbacks.append(DevSetCallback(name_tasks(dev_tasks, label_separator, Protocol("dev"))))
    if general:
        if not callbacks:
            raise SettingError("--general is reported beside a dev set: name one with --dev_file or --dev_task, too")
        tasks_by_name = name_general_tasks(general, label_separator)
        named = {f"general_{name}": task for name, task in tasks_by_name.items()}
        chooses = {text for dev_set in callbacks for text in dev_set.texts}
        callbacks.append(GeneralTasksCallback(named))
        callbacks[-1].warn_of_shared(chooses, "also dev texts, which choose the checkpoint")
    return callbacks


def check_dev_sets(dev_sets: Sequence[DevSetCallback], args: TrainingArguments) -> None:
    """Refuse dev sets whose metrics would overwrite each other.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets of a trainer.
        args (`SimCSETrainingArguments`): The training arguments.

    Raises:
        SettingError: If two dev sets have the same name.
    """
    names = [name for dev_set in dev_sets for name in dev_set.sources]
    repeated = sorted({repr(name) for name in names if names.count(name) > 1})
    if repeated:
        raise SettingError(
            f"two dev sets are named {', '.join(repeated)}, so their metrics would overwrite each other: name them "
            "with SimilarityEvalCallback(file, name=...)"
        )
    metric = (args.metric_for_best_model or "").removeprefix("eval_")
    if metric.startswith("general_"):
        logger.warning(f"{metric} chooses the checkpoint, so its change may not show what the model forgets.")


def warn_of_overlap(rows: Any, dev_sets: Sequence[DevSetCallback]) -> None:
    """Warn if texts of the dev sets, or of general tasks, are among the training texts.

    Args:
        rows (`datasets.Dataset`): The training rows. Only columns of strings are read.
        dev_sets (`Sequence[DevSetCallback]`): The dev sets.
    """
    dev_texts = {text for dev_set in dev_sets for text in dev_set.texts}
    found: set[str] = set()
    for name, feature in rows.features.items():
        if feature == Value("string"):
            for batch in rows.select_columns(name).iter(10_000):
                found |= dev_texts.intersection(batch[name])
    for dev_set in dev_sets:
        dev_set.warn_of_shared(found, "also training texts")


def change_between(
    metric: str, systems: list, differences: Sequence[float], optimism: Sequence[float] = (0.0,)
) -> Change:
    """Return the change from every first of two systems to the second, one run after the other, with its interval."""
    runs: list[int | None] = list(range(len(differences))) if len(differences) > 1 else [None]
    starts = [Scored(0.0, parts) for parts in systems[::2]]
    saved = map(Scored, differences, systems[1::2], optimism)
    scores = {"start": dict(zip(runs, starts, strict=True)), "saved": dict(zip(runs, saved, strict=True))}
    samples = make_samples(scores, metric, resamples=_RESAMPLES, random=np.random.default_rng(0))
    [found] = differences_of(samples, [("saved", "start")], _CONFIDENCE).values()
    assert found.low is not None and found.high is not None  # as a single run has an interval over the examples
    return Change(
        metric=metric,
        difference=float(np.mean(differences)),
        low=found.low,
        high=found.high,
        confidence=_CONFIDENCE,
        resamples=_RESAMPLES,
        optimism=float(np.mean(optimism)),
        seeds=len(differences),
    )
