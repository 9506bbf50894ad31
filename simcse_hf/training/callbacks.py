"""Callbacks of contrastive training: dev sets and their scores, the parts of the loss, and the watch for collapse."""

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from datasets import Dataset, Value
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from ..data.stream import StreamedRows
from ..data.view_dataset import SeededDataset
from ..evaluation.bootstrap import interval, mean_over_drawn_seeds, resampled_scores
from ..evaluation.metrics import alignment, cosine_similarity_pairs, effective_rank, mean_cosine, spearman, uniformity
from ..evaluation.report import Scores, load_scores, save_scores
from ..evaluation.scoring import TaskData
from ..evaluation.sts import ScoredPairs, read_pairs_argument
from ..inference.encoding import encode_token_ids, full_length, tokenize_texts
from ..models.modeling import ContrastiveModel, ContrastiveOutput
from ..models.settings import ContrastiveSettings, length_limit
from ..ops.distributed import on_first_process, sum_over_processes, world
from ..ops.files import digest
from .checkpoints import ADVICE

if TYPE_CHECKING:
    from ..evaluation.user_tasks import UserTask

logger = logging.get_logger(__name__)

#: Pairs scored above this share of the highest score count as positives: above 4 of 5 in STS-B (SimCSE, footnote 3).
POSITIVE_SHARE = 0.8
#: Folder of `output_dir` with the scores of each evaluation that is still needed.
DEV_SCORES = "_dev_scores"
#: Bound on the mean of 1 - cosine below which embeddings have collapsed to a point, if it has halved since the start:
#: untrained encoders may begin as close to each other as that.
LEAST_SPREAD = 0.02
#: Steps after which embeddings within that bound from the start on have not moved apart.
STUCK_STEPS = 100
#: Share of the start's effective rank above 1 below which embeddings have collapsed to a few directions.
LEAST_SHARE_OF_RANK = 0.1
#: Rows of a batch whose geometry is measured. More would cost time and change little.
MOST_ROWS = 256
_CONFIDENCE, _RESAMPLES = 0.95, 1000


def default_prompt(settings: ContrastiveSettings) -> str:
    """Return the prompt that the model puts before a text when none is named; often empty."""
    name = settings.default_prompt_name
    return settings.prompts[name] if name is not None else ""


# --- dev sets --------------------------------------------------------------------------------------------------------


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

    def __init__(self, tasks: "dict[str, UserTask]"):
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


# --- scores of the dev sets ------------------------------------------------------------------------------------------


def keep_dev_scores(dev_sets: Sequence[DevSetCallback], state: TrainerState, output_dir: str) -> None:
    """Write what an evaluation scored, and delete what is neither the first, the best nor the last evaluation.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets, which were evaluated just now.
        state (`TrainerState`): The step, and the step of the best checkpoint so far.
        output_dir (`str`): The output directory of the run.
    """
    scores = {metric: parts for dev_set in dev_sets for metric, parts in dev_set.scores.items()}
    if not scores:
        return
    folder = Path(output_dir, DEV_SCORES)
    folder.mkdir(parents=True, exist_ok=True)
    save_scores(_scores_path(output_dir, state.global_step), scores)
    steps = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.npz"))
    for step in steps[1:]:
        saved = f"checkpoint-{step}" == Path(state.best_model_checkpoint or "").name
        if not saved and step not in (state.global_step, state.best_global_step):
            _scores_path(output_dir, step).unlink()


def _scores_path(output_dir: str | Path, step: int) -> Path:
    return Path(output_dir, DEV_SCORES, f"step-{step}.npz")


def dev_change(runs: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any] | None:
    """Compare the saved weights of a run, or of its repetitions with other seeds, with the start on the dev set.

    The interval is a percentile bootstrap over the examples of the dev set, on which both are scored, and with several
    seeds over the seeds as well. The dev set chose the checkpoint and the seed, so the gain is somewhat optimistic.

    Args:
        runs (`Sequence[tuple[Path, dict]]`): For each seed, the output directory and the content of `results.json`.

    Returns:
        `dict[str, Any]`: `metric`, `difference` (saved minus initial, mean over the seeds), `low`, `high`,
        `confidence`, `resamples` and `seeds` (their number); `None` without the scores of both evaluations.
    """
    metric = runs[0][1]["dev_metric"]
    if metric is None:
        return None
    paths = [_scores_path(folder, results[when]["step"]) for folder, results in runs for when in ("initial", "saved")]
    scores = [load_scores(path) for path in paths if path.is_file()]
    if len(scores) < len(paths) or not all(metric in each for each in scores):
        return None
    systems = [each[metric] for each in scores]
    resampled = resampled_scores(systems, "all", "spearman", _RESAMPLES, np.random.default_rng(0))
    drawn = mean_over_drawn_seeds(resampled[1::2] - resampled[::2], np.random.default_rng(1), _CONFIDENCE)
    low, high = interval(drawn, _CONFIDENCE)
    return {
        "metric": metric,
        "difference": float(np.mean([results["saved"][metric] - results["initial"][metric] for _, results in runs])),
        "low": low,
        "high": high,
        "confidence": _CONFIDENCE,
        "resamples": _RESAMPLES,
        "seeds": len(runs),
    }


# --- rows ------------------------------------------------------------------------------------------------------------


class RowsCallback(TrainerCallback):
    """Tell rows that are drawn anew in every epoch which epoch begins, and count the epochs of a stream.

    The length of a stream is unknown, and after a resume transformers would count from 0 again. So its epoch is the
    share of the run that is done.

    Args:
        rows (`Any`): The training rows.
    """

    def __init__(self, rows: Any):
        self.rows = rows

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        if isinstance(self.rows, SeededDataset):
            self.rows.set_epoch(int((state.epoch or 0.0) + 1e-6))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Set the epoch of the run."""
        if isinstance(self.rows, StreamedRows):
            state.epoch = state.global_step / state.max_steps


# --- the loss and the embeddings -------------------------------------------------------------------------------------


class LossTracker(TrainerCallback):
    """Sum the parts of the loss on their device, give their means when the Trainer logs, and keep the last batch.

    A loss that is not finite ends the run before anything is logged, evaluated or saved. So no checkpoint with broken
    weights is written, and `save_total_limit` cannot delete a good one for it.
    """

    PARTS = ("contrastive_loss", "mlm_loss")
    RECORD = "run_so_far"  # where a checkpoint keeps what `record` returns

    def __init__(self) -> None:
        self._run_loss: float | torch.Tensor = 0.0
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()  # a part may be in the batches of one data set only
        #: The embeddings of the anchors of the last batch, of shape `(batch, dim)`.
        self.embeddings: torch.Tensor | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Forget the sums of an earlier run, whose loss may be broken, and take those of a run that is resumed."""
        self._sums, self._counts = {}, Counter()
        earlier = cast(Any, state.stateful_callbacks).get(self.RECORD, {})
        self._run_loss, self._began = earlier.get("loss", 0.0), time.monotonic() - earlier.get("seconds", 0.0)

    def add_step(self, loss: torch.Tensor) -> None:
        """Add the loss of a training step, without waiting for the device."""
        exact = torch.float32 if loss.device.type == "mps" else torch.float64  # a sum that no order changes
        self._run_loss = self._run_loss + loss.detach().to(exact)

    def record(self) -> dict[str, float]:
        """Return the sum of the losses and the seconds since step 0. Each process must call."""
        loss = self._run_loss
        if isinstance(loss, torch.Tensor):
            loss = (sum_over_processes(loss) / world()[1]).item()
        return {"loss": loss, "seconds": time.monotonic() - self._began}

    def add(self, output: ContrastiveOutput) -> None:
        """Add the parts of one forward pass, without waiting for the device.

        Copies are kept, because a CUDA graph writes the next batch's outputs into the same memory.
        """
        if output.sentence_embeddings is not None:
            self.embeddings = output.sentence_embeddings.detach()[:, 0].clone()
        parts = {part: output[part] for part in self.PARTS if output.get(part) is not None} | (output.parts or {})
        for part, value in parts.items():
            self._counts[part] += 1
            total = self._sums.get(part)
            self._sums[part] = value.detach().clone() if total is None else total + value.detach()

    def means(self) -> dict[str, float]:
        """Return the mean of each part since the last call, over all processes, each of which must call."""
        counts = {part: count * world()[1] for part, count in self._counts.items()}
        means = {part: (sum_over_processes(total) / counts[part]).item() for part, total in self._sums.items()}
        self._sums, self._counts = {}, Counter()
        return means

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the run if a part of the loss is not finite.

        Raises:
            FloatingPointError: If a part of the loss is NaN or infinite.
        """
        is_cheap = args.device.type == "cpu"  # Elsewhere, reading the value makes the host wait for the device.
        if is_cheap or control.should_log or control.should_evaluate or control.should_save:
            for part, total in self._sums.items():
                if not torch.isfinite(total):
                    raise FloatingPointError(
                        f"{part} is {total.item()} at or before step {state.global_step}. Checkpoints saved earlier "
                        f"are untouched in {args.output_dir}. {ADVICE}"
                    )


class CollapseError(RuntimeError):
    """The embeddings of a run have collapsed, and `stop_on_collapse` is set."""

    exit_status = 1  # of the command line


class CollapseWatch(TrainerCallback):
    """Log the geometry of the embeddings, and warn once if they collapse to a point or to a few directions.

    The anchors of the last batch are measured whenever the loss is logged, in training mode, and logged as
    `batch_mean_cosine`, `batch_effective_rank` and `batch_uniformity`. The dev set of a [`SimilarityEvalCallback`] is
    measured at every evaluation (`eval_stsb_mean_cosine`, ...). Each is compared with its own first value, which for
    batches is that of the first step. Embeddings that begin as a point, as those of untrained encoders may, and are
    one still after `STUCK_STEPS` steps have collapsed, too: the loss then stays at the logarithm of the batch size.
    Jing et al. 2022 (arXiv:2110.09348) describe both ways to collapse, and RankMe (arXiv:2210.02885) shows that the
    effective rank predicts how useful embeddings are.

    Args:
        tracker (`LossTracker`): Keeps the embeddings of the last batch.
    """

    def __init__(self, tracker: LossTracker):
        self._tracker = tracker
        self._first: dict[str, tuple[float, float]] = {}
        self._has_warned = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start anew, or with the first values in the log of a resumed run."""
        self._first, self._has_warned = {}, False
        for entry in state.log_history:
            self._first = _measures(entry) | self._first

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure the first batch, before the encoder has changed much."""
        if "batch" not in self._first:
            self._first |= _measures(self.measure_batch())

    def measure_batch(self) -> dict[str, float]:
        """Measure the last batch, averaged over the processes, each of which must call.

        Returns:
            `dict[str, float]`: Nothing if the objective returned no embeddings that can be compared.
        """
        batch = self._tracker.embeddings
        if batch is None or len(batch) < 2:
            return {}
        batch = batch[:MOST_ROWS].float()
        is_sound = torch.isfinite(batch).all() and batch.norm(dim=1).all()
        values = [f(batch) for f in (mean_cosine, effective_rank, uniformity)] if is_sound else [0.0] * 3
        *sums, sound = sum_over_processes(torch.tensor([*values, float(is_sound)], device=batch.device)).tolist()
        if sound < world()[1]:  # in some process they cannot be measured
            return {}
        names = ("batch_mean_cosine", "batch_effective_rank", "batch_uniformity")
        return {name: value / sound for name, value in zip(names, sums, strict=True)}

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any) -> None:
        """Compare what is logged with the first values.

        Raises:
            CollapseError: If the embeddings have collapsed and `stop_on_collapse` is set.
        """
        for source, (spread, rank) in _measures(event["logs"]).items():
            first_spread, first_rank = self._first.setdefault(source, (spread, rank))
            is_point = spread < LEAST_SPREAD and spread < first_spread / 2
            is_stuck = max(spread, first_spread) < LEAST_SPREAD and state.global_step >= STUCK_STEPS
            is_line = rank - 1 < LEAST_SHARE_OF_RANK * (first_rank - 1)
            if self._has_warned or not (is_point or is_stuck or is_line):
                continue
            self._has_warned = True
            what = "began as a point and have not moved apart" if is_stuck else "have collapsed"
            message = (
                f"the embeddings {what} at step {state.global_step} ({source}): the mean cosine of two texts "
                f"is {1 - spread:.4f} ({1 - first_spread:.4f} at the start) and the effective rank {rank:.1f} "
                f"({first_rank:.1f}). Lower the learning rate, check the training texts for repetitions, or use an "
                "objective with negatives."
            )
            if getattr(args, "stop_on_collapse", False):
                raise CollapseError(f"{message} Checkpoints saved earlier are untouched in {args.output_dir}.")
            if state.is_world_process_zero:
                logger.warning(f"{message} --stop_on_collapse ends such a run.")


def _measures(logs: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return (1 - mean cosine, effective rank) of each set of texts in a log entry, by the prefix of their names."""
    sources = [name.removesuffix("_mean_cosine") for name in logs if name.endswith("_mean_cosine")]
    ranked = [source for source in sources if f"{source}_effective_rank" in logs]
    return {source: (1 - logs[f"{source}_mean_cosine"], logs[f"{source}_effective_rank"]) for source in ranked}
