"""Callbacks of contrastive training: evaluation on dev sets, and the parts of the loss."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import (
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ..data.stream import StreamedRows
from ..data.view_dataset import SeededDataset
from ..evaluation.geometry import alignment, effective_rank, mean_cosine, uniformity
from ..evaluation.metrics import cosine_similarity_pairs, spearman
from ..evaluation.pairs import ScoredPairs, read_scored_pairs
from ..evaluation.report import Scores
from ..inference.encoding import encode_token_ids, tokenize_texts
from ..models.modeling import ContrastiveModel, ContrastiveOutput
from ..models.settings import ContrastiveSettings, max_positions
from ..ops.distributed import sum_over_processes, world

# Pairs scored above this share of the highest score count as positives: above 4 of 5 in STS-B (SimCSE, footnote 3).
POSITIVE_SHARE = 0.8


def default_prompt(settings: ContrastiveSettings) -> str:
    """Return the prompt that the model puts before a text when none is named; often empty."""
    name = settings.default_prompt_name
    return settings.prompts[name] if name is not None else ""


class DevSetCallback(TrainerCallback, ABC):
    """Evaluate on dev sets at every evaluation of the Trainer.

    `SimCSETrainer` calls [`evaluate`] and adds the result to its metrics before they are logged, so that its metrics
    can select the best checkpoint and stop early like any other metric. Each distinct text is tokenised once, encoded
    once per evaluation, and not truncated to `max_seq_length`.

    Args:
        sources (`dict[str, str]`): The file of each dev set, by its name in the metrics.
        texts (`Sequence[str]`): The texts of all sets; they may repeat.
        token_budget (`int`, *optional*): Tokens in a padded batch; by default that of [`SimCSE.encode`].

    Attributes:
        headline (`str`): The metric that selects the best checkpoint by default. A higher value is better.
        scores (`dict`): What the last evaluation scored, for a bootstrap: for each metric that can be resampled, the
            arrays by part and name as in [`Evaluation`]. Only the first process needs to have them.
    """

    headline: str
    scores: Scores

    def __init__(self, sources: dict[str, str], texts: Sequence[str], token_budget: int | None = None):
        self.sources = sources
        self.token_budget = token_budget
        self._texts = list(dict.fromkeys(texts))
        self._row = {text: row for row, text in enumerate(self._texts)}
        self._token_ids: list[list[int]] | None = None
        self.scores = {}

    @property
    def texts(self) -> list[str]:
        """The distinct texts."""
        return self._texts

    @property
    def num_texts(self) -> int:
        """Number of distinct texts."""
        return len(self._texts)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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
        """

    def _encode(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
        """Return the embeddings of the distinct texts in all processes, which share the work."""
        if self._token_ids is None:
            inner = cast(ContrastiveModel, model.module if hasattr(model, "module") else model)
            prompt = default_prompt(inner.settings)
            texts = [prompt + text for text in self._texts]
            limits = (inner.settings.max_length, max_positions(inner.config))  # as in inference
            max_length = min((limit for limit in limits if limit is not None), default=None)
            self._token_ids = tokenize_texts(tokenizer, texts, max_length, inner.settings.templates)
        return encode_token_ids(model, self._token_ids, tokenizer.pad_token_id, token_budget=self.token_budget)


class SimilarityEvalCallback(DevSetCallback):
    """Evaluate on a dev set of scored pairs, by default as `eval_stsb_spearman`.

    Args:
        dev_set (`str`, `os.PathLike` or `ScoredPairs`): Pairs, or a file of them: SentEval's `sts-dev.csv`, or any
            table with the columns sentence1, sentence2, score.
        name (`str`, *optional*, defaults to `"stsb"`): Name of the set in the metrics.
        token_budget (`int`, *optional*): Tokens in a padded batch; by default that of [`SimCSE.encode`].
    """

    def __init__(self, dev_set: str | os.PathLike | ScoredPairs, name: str = "stsb", token_budget: int | None = None):
        self.pairs = dev_set if isinstance(dev_set, ScoredPairs) else read_scored_pairs(dev_set, name)
        source = self.pairs.name if isinstance(dev_set, ScoredPairs) else str(dev_set)
        super().__init__({name: source}, [*self.pairs.sentences1, *self.pairs.sentences2], token_budget)
        self.name = name
        self.headline = f"{name}_spearman"
        self._first = torch.tensor([self._row[text] for text in self.pairs.sentences1])
        self._second = torch.tensor([self._row[text] for text in self.pairs.sentences2])
        self._gold = np.asarray(self.pairs.scores, dtype=np.float64)
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

        Raises:
            ValueError: If embeddings are not finite, or all equal.
        """
        embeddings = self._encode(model, tokenizer)
        first, second = embeddings[self._first], embeddings[self._second]
        predicted = cosine_similarity_pairs(first, second)
        self.scores = {self.headline: {"pairs": {"predicted": np.asarray(predicted), "gold": self._gold}}}
        metrics = {f"{self.name}_spearman": 100 * spearman(predicted, self.pairs.scores)}
        if self._positive.any():
            metrics[f"{self.name}_alignment"] = alignment(first[self._positive], second[self._positive])
        metrics[f"{self.name}_uniformity"] = uniformity(embeddings)
        metrics[f"{self.name}_mean_cosine"] = mean_cosine(embeddings)
        metrics[f"{self.name}_effective_rank"] = effective_rank(embeddings)
        return metrics


class DatasetEpoch(TrainerCallback):
    """Tell a data set whose rows are drawn anew in every epoch which epoch begins."""

    def __init__(self, dataset: SeededDataset):
        self.dataset = dataset

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch; after a resume, `state.epoch` is a fraction inside the epoch."""
        self.dataset.set_epoch(int((state.epoch or 0.0) + 1e-6))


class StreamPlace(TrainerCallback):
    """Begin a stream of training rows at its first row, and count epochs as the share of the run that is done.

    The length of a stream is unknown, and after a resume transformers would count from 0 again.
    """

    def __init__(self, rows: StreamedRows):
        self.rows = rows

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the place of an earlier run of the same trainer."""
        if state.global_step == 0:
            self.rows.forget()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch."""
        state.epoch = state.global_step / state.max_steps


def row_callbacks(rows: Any) -> list[TrainerCallback]:
    """Return the callbacks that training rows of this kind need."""
    if isinstance(rows, SeededDataset):
        return [DatasetEpoch(rows)]
    return [StreamPlace(rows)] if isinstance(rows, StreamedRows) else []


class LossTracker(TrainerCallback):
    """Sum the parts of the loss on their device, give their means when the Trainer logs, and keep the last batch.

    A loss that is not finite ends the run before anything is logged, evaluated or saved. So no checkpoint with broken
    weights is written, and `save_total_limit` cannot delete a good one for it.
    """

    PARTS = ("contrastive_loss", "mlm_loss")

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._steps = 0
        #: The embeddings of the anchors of the last batch, of shape `(batch, dim)`.
        self.embeddings: torch.Tensor | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the sums of an earlier run, which may have ended with a broken loss."""
        self._sums, self._steps = {}, 0

    def add(self, output: ContrastiveOutput) -> None:
        """Add the parts of one forward pass, without waiting for the device.

        Copies are kept, because a CUDA graph writes the next batch's outputs into the same memory.
        """
        self._steps += 1
        if output.sentence_embeddings is not None:
            self.embeddings = output.sentence_embeddings.detach()[:, 0].clone()
        parts = {part: output[part] for part in self.PARTS if output.get(part) is not None} | (output.parts or {})
        for part, value in parts.items():
            total = self._sums.get(part)
            self._sums[part] = value.detach().clone() if total is None else total + value.detach()

    def means(self) -> dict[str, float]:
        """Return the mean of each part since the last call, over all processes, each of which must call."""
        steps = self._steps * world()[1]
        means = {part: (sum_over_processes(total) / steps).item() for part, total in self._sums.items()}
        self._sums, self._steps = {}, 0
        return means

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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
                        f"are untouched in {args.output_dir}. Lower the learning rate, raise the temperature, use "
                        "bf16 in place of fp16, or look for broken weights in the starting checkpoint."
                    )
