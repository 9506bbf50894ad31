"""Callbacks of contrastive training: similarity evaluation on a dev set, and the parts of the loss."""

import os

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback

from ..data.view_dataset import SeededDataset
from ..evaluation.geometry import alignment, uniformity
from ..evaluation.metrics import cosine_similarity_pairs, spearman
from ..evaluation.pairs import ScoredPairs, read_scored_pairs
from ..inference.batches import encode_token_ids, tokenize_texts
from ..models.configuration import max_positions
from ..models.modeling import ContrastiveOutput
from ..ops.distributed import sum_over_processes, world

POSITIVE_SHARE = 0.8  # of the highest score: STS-B pairs scored above 4 of 5 (paper, footnote 3)


class SimilarityEvalCallback(TrainerCallback):
    """Evaluates on a dev set of scored pairs at every evaluation of the Trainer.

    `SimCSETrainer` calls [`evaluate`] and adds the result to its metrics before they are logged, so that
    `eval_stsb_spearman` can choose the best checkpoint and stop early like any other metric. Each distinct text of the
    set is tokenised once and encoded once an evaluation, at full length.

    Args:
        dev_set: a file (`sts-dev.csv` of SentEval, or any table of sentence1, sentence2, score) or pairs.
        name: of the set in the metrics.
        token_budget: tokens of a padded batch; None: the default of [`SimCSE.encode`].
    """

    def __init__(self, dev_set: str | os.PathLike | ScoredPairs, name: str = "stsb", token_budget: int | None = None):
        self.pairs = dev_set if isinstance(dev_set, ScoredPairs) else read_scored_pairs(dev_set, name)
        self.source = self.pairs.name if isinstance(dev_set, ScoredPairs) else str(dev_set)
        self.name = name
        self.token_budget = token_budget
        self._texts = list(dict.fromkeys([*self.pairs.sentences1, *self.pairs.sentences2]))
        row = {text: i for i, text in enumerate(self._texts)}
        self._first = torch.tensor([row[text] for text in self.pairs.sentences1])
        self._second = torch.tensor([row[text] for text in self.pairs.sentences2])
        scores = torch.tensor(self.pairs.scores, dtype=torch.float64)
        self._positive = scores > POSITIVE_SHARE * scores.max()
        self._token_ids: list[list[int]] | None = None

    @property
    def num_texts(self) -> int:
        """Distinct texts of the set."""
        return len(self._texts)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps and args.eval_strategy != "no":
            control.should_evaluate = True  # the last weights count, whether or not eval_steps divides the steps

    def evaluate(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Spearman's correlation (x 100) of cosine and score, alignment of the pairs scored above 80% of the highest
        score, and uniformity of all texts.

        Args:
            model: a contrastive model, as wrapped for training or not.
            tokenizer: that of the model.

        Returns:
            `{name}_spearman`, `{name}_alignment` (where there are such pairs), `{name}_uniformity`.

        Raises:
            ValueError: the vectors are not finite, or all equal.
        """
        if self._token_ids is None:
            inner = model.module if hasattr(model, "module") else model
            self._token_ids = tokenize_texts(
                tokenizer, self._texts, max_positions(inner.config), inner.settings.templates
            )
        vectors = encode_token_ids(model, self._token_ids, tokenizer.pad_token_id, token_budget=self.token_budget)
        first, second = vectors[self._first], vectors[self._second]
        metrics = {f"{self.name}_spearman": 100 * spearman(cosine_similarity_pairs(first, second), self.pairs.scores)}
        if self._positive.any():
            metrics[f"{self.name}_alignment"] = alignment(first[self._positive], second[self._positive])
        metrics[f"{self.name}_uniformity"] = uniformity(vectors)
        return metrics


class DatasetEpoch(TrainerCallback):
    """Tells a data set whose rows are drawn anew every epoch which epoch begins."""

    def __init__(self, dataset: SeededDataset):
        self.dataset = dataset

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.dataset.set_epoch(int(state.epoch + 1e-6))  # a fraction inside an epoch, after a resume


class LossTracker(TrainerCallback):
    """Sums the parts of the loss on their device and hands out their means when the Trainer logs.

    Before anything is logged, evaluated or saved, a loss that is not finite ends the run: no checkpoint with broken
    weights is written, and `save_total_limit` cannot push out a good one for it.
    """

    PARTS = ("contrastive_loss", "mlm_loss")

    def __init__(self):
        self._sums: dict[str, torch.Tensor] = {}
        self._steps = 0

    def add(self, output: ContrastiveOutput) -> None:
        """Takes the parts of one forward pass in; no value is fetched from the device."""
        self._steps += 1
        found = {part: output[part] for part in self.PARTS if output.get(part) is not None} | (output.parts or {})
        for part, value in found.items():
            self._sums[part] = self._sums.get(part, 0.0) + value.detach()

    def means(self) -> dict[str, float]:
        """Mean of each part since the last call, over all processes, each of which must call."""
        steps = self._steps * world()[1]
        means = {part: (sum_over_processes(total) / steps).item() for part, total in self._sums.items()}
        self._sums, self._steps = {}, 0
        return means

    def on_step_end(self, args, state, control, **kwargs):
        cheap = args.device.type == "cpu"  # elsewhere a look at the value would stall the device every step
        if cheap or control.should_log or control.should_evaluate or control.should_save:
            for part, total in self._sums.items():
                if not torch.isfinite(total):
                    raise FloatingPointError(
                        f"{part} is {total.item()} at or before step {state.global_step}. Checkpoints saved earlier "
                        f"are untouched in {args.output_dir}. Lower the learning rate, raise the temperature, use "
                        "bf16 in place of fp16, or look for broken weights in the starting checkpoint."
                    )
