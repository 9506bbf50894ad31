"""The Trainer of contrastive models."""

import inspect
import os
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainerCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput, HubStrategy
from transformers.utils import logging

from ..data.templates import template_settings
from ..models.auto import AutoModelForCL
from ..models.modeling import ContrastiveModel
from ..models.sentence_transformers import copy_sentence_transformers_files
from ..models.settings import check_max_length, check_tokenizer
from ..objectives import Objective, objective_class
from ..objectives.masked_lm import mask_batch
from ..ops.memory import keep_freed_memory
from ..publishing import CARD, is_written_by_hand, write_card
from .base import ContrastiveTrainer, prepared_objective
from .callbacks import DevSetCallback, LossTracker, default_prompt, row_callbacks
from .checks import check_args_type, check_best_metric, check_dev_set_names, check_model_type, check_run
from .collapse import CollapseWatch
from .dev_tasks import make_dev_sets
from .gradcache import CachedBatch
from .masking import TokenMasker
from .record import describe_run
from .rows import make_collator, make_masked_lm_view, reads_scores, tokenized_rows, training_rows
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)


class SimCSETrainer(ContrastiveTrainer):
    """transformers' Trainer for contrastive models.

    It adds the batches of [`ContrastiveCollator`], masked inputs for the auxiliary loss, the parts of the loss in the
    log, evaluation on dev sets by [`SimilarityEvalCallback`], and checks before the first step. Saving, resuming,
    mixed precision, several processes and tracking are transformers' own.

    Args:
        model (`str`, `os.PathLike` or `ContrastiveModel`, *optional*): A contrastive model, or a directory or hub name
            for `AutoModelForCL.from_pretrained`. `None` with `model_init`.
        args (`SimCSETrainingArguments`, *optional*): The training arguments. The trainer works on a copy.
        train_dataset (`Dataset` or `list`, *optional*): Texts, with columns named as in `load_text_dataset`, or token
            ids in one column `input_ids` (see `tokenize_dataset`).
        eval_dataset (`Dataset`, `list` or `dict`, *optional*): Data of the same form, for `eval_loss`; or several by
            name. The dev set of scored pairs is `dev_set`.
        dev_set (`str`, `os.PathLike` or `ScoredPairs`, *optional*): Scored pairs, or their file, for a
            [`SimilarityEvalCallback`]. For several dev sets, pass such callbacks with different names.
        processing_class (`PreTrainedTokenizerBase`, *optional*): The tokenizer; by default the model's own.
        callbacks (`list[TrainerCallback]`, *optional*): As in transformers.
        dev_tasks (`Sequence`, *optional*): Tasks from files as dev sets: `["classification=dev.csv"]`, or what
            `read_task` returns. Their metrics are logged as `eval_classification_accuracy` and the like.
        kwargs (`Any`): Further arguments of transformers' Trainer, such as `model_init`.

    Raises:
        TypeError: If the model, the arguments or a data set are of a type that cannot be trained with.
        ValueError: If settings contradict each other.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ContrastiveModel | None = None,
        args: SimCSETrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        dev_set: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        dev_tasks: Sequence[Any] | None = None,
        **kwargs: Any,
    ):
        args = SimCSETrainingArguments(output_dir="outputs/simcse") if args is None else args
        check_args_type(args)
        args = args.copy()
        model_init = kwargs.get("model_init")
        if (model is None) == (model_init is None):
            raise ValueError("SimCSETrainer needs either a model or model_init")
        set_seed(args.seed)  # A fresh head is drawn when the model is loaded.
        start = _load(_call(model_init, None) if model is None else model)
        tokenizer = processing_class or AutoTokenizer.from_pretrained(start.name_or_path)
        _set_default_view(args, objective_class(start.settings.objective))
        self._prepare_model(start, args, tokenizer)
        texts: dict[str, Any] = {"templates": start.settings.templates, "prompt": default_prompt(start.settings)}
        texts["scored"] = reads_scores(start)
        self._tokenize: partial[Any] = partial(tokenized_rows, tokenizer=tokenizer, args=args, **texts)
        if train_dataset is not None:
            train_dataset = training_rows(train_dataset, tokenizer, args, **texts)
        self.loss_tracker = LossTracker()
        self.collapse_watch = CollapseWatch(self.loss_tracker)
        callbacks = [*(callbacks or []), self.loss_tracker, self.collapse_watch, *row_callbacks(train_dataset)]
        callbacks += make_dev_sets(dev_set, dev_tasks)
        check_dev_set_names(callbacks)
        evals = [callback for callback in callbacks if isinstance(callback, DevSetCallback)]
        if evals and args.best_metric_is_default:
            args.metric_for_best_model, args.greater_is_better = evals[0].headline, True
        check_best_metric(args, eval_dataset, evals)
        self.masked_lm_view = make_masked_lm_view(start, tokenizer, args)
        self.masker = TokenMasker(tokenizer, args.mlm_probability) if start.settings.do_mlm else None
        super().__init__(
            model=None if model is None else start,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=self._tokenize_all(eval_dataset) if eval_dataset is not None else _no_rows(evals),
            processing_class=tokenizer,
            data_collator=kwargs.pop("data_collator", None) or make_collator(start, tokenizer, args, train_dataset),
            callbacks=callbacks,
            **kwargs,
        )

    @staticmethod
    def _prepare_model(
        model: ContrastiveModel, args: SimCSETrainingArguments, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """Write the settings of the run into the model, and make its objective."""
        check_max_length(args.max_seq_length, model.config)
        check_tokenizer(tokenizer, model, model.name_or_path or "the model")
        model.update_settings(
            max_seq_length=args.max_seq_length,
            fixed_mask=args.view == "fixed_mask",
            **template_settings(model.settings.templates, tokenizer),
        )
        if model.objective is None:
            model.prepare_objective()

    def call_model_init(self, trial: Any = None) -> ContrastiveModel:
        """Call `model_init`, as each trial of `hyperparameter_search` does, and prepare its model for training."""
        model = _load(_call(self.model_init, trial))
        self._prepare_model(model, self.args, self._tokenize.keywords["tokenizer"])
        return model

    # --- training --------------------------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Check the run, and train as transformers does.

        Returns:
            `TrainOutput`: As in transformers.

        Raises:
            ValueError: If the run cannot train, or could not learn anything.
            FloatingPointError: If the loss or a weight is not finite.
        """
        check_run(self)
        if self.args.device.type == "cpu":
            keep_freed_memory()
        try:
            return super().train(*args, **kwargs)
        except FloatingPointError:
            if self.optimizer is not None:
                self.optimizer.state.clear()  # Its averages are not finite either, and would break the next run.
            raise

    def get_train_dataloader(self) -> DataLoader:
        """Make the data loader of training, with a random generator of its own.

        A loader draws a seed for its workers whenever they start. From the global generator, that would change the
        dropout masks: persistent workers start once, others in every epoch, and all of them once more on a resume.

        Returns:
            `torch.utils.data.DataLoader`: The loader.
        """
        loader = super().get_train_dataloader()
        # Accelerate's loader wraps the one that starts the workers.
        base = getattr(loader, "base_dataloader", loader)
        base.generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss of a batch, and add its parts to the log."""
        inputs = self._complete_inputs(inputs, model.training)
        loss, output = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if model.training:
            self.loss_tracker.add(output)
        return (loss, output) if return_outputs else loss

    def _complete_inputs(self, inputs: dict[str, Any], training: bool) -> dict[str, Any]:
        """Add what is drawn on the device: views by a masked language model, and masks of the auxiliary loss."""
        inputs = dict(inputs)
        if "attention_mask" not in inputs:  # A collator of the caller's need not make one.
            inputs["attention_mask"] = (inputs["input_ids"] != self.processing_class.pad_token_id).long()
        if "view_seed" in inputs:
            ids, mask, seeds = inputs["input_ids"], inputs["attention_mask"], inputs.pop("view_seed")
            first, view = 0 if self.args.view_both else 1, self.masked_lm_view
            assert view is not None
            columns = [
                view(ids[:, i], mask[:, i], seeds ^ i) if i >= first else ids[:, i] for i in range(ids.shape[1])
            ]
            inputs["input_ids"] = torch.stack(columns, dim=1)
        if self.masker is not None and training:
            masked_columns = prepared_objective(self.model).mlm_columns(inputs["input_ids"].shape[1])
            inputs = mask_batch(inputs, self.masker, masked_columns)
        return inputs

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Take the gradient of a batch, in one pass or, with `gradcache_chunk_size`, in chunks."""
        if self.args.gradcache_chunk_size is None:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        if hasattr(self.optimizer, "train"):  # Schedule-free optimizers have two modes, as models do.
            cast(Any, self.optimizer).train()
        inputs = self._prepare_inputs(inputs)
        no_sync: Callable[[], AbstractContextManager] = partial(self.accelerator.no_sync, model)
        factor = 1 / self.current_gradient_accumulation_steps
        with self.compute_loss_context_manager():
            cached = CachedBatch(
                self.model,
                self._complete_inputs(inputs, training=True),
                self.args.gradcache_chunk_size,
                trim=not self.args.pad_to_max_length,
                autocast=self.accelerator.autocast,
            )
        with no_sync():  # This gradient goes as far as the embeddings and the objective's parameters.
            self.accelerator.backward(cached.output.loss * factor)
        scaler = self.accelerator.scaler
        scale = factor if scaler is None else scaler.scale(torch.tensor(factor, device=self.args.device))
        output = cached.backward(model, no_sync, scale)
        self.loss_tracker.add(output)
        return output.loss * factor

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log metrics, with the parts of the loss beside the loss."""
        if "loss" in logs:
            logs = {**logs, **self.loss_tracker.means(), **self.collapse_watch.measure_batch()}
        super().log(logs, start_time)

    # --- evaluation ------------------------------------------------------------------------------------------------

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback; a [`DevSetCallback`] is evaluated from now on."""
        super().add_callback(callback)
        check_dev_set_names(self.callback_handler.callbacks)
        if getattr(self, "eval_dataset", None) is None:
            self.eval_dataset = _no_rows(self.dev_sets)

    def _tokenize_all(self, data: Any) -> Any:
        if isinstance(data, dict) and not hasattr(data, "column_names"):  # A DatasetDict is a dict, too.
            return {name: self._tokenize(rows) for name, rows in data.items()}
        return self._tokenize(data)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Make the data loader of an evaluation, of texts or of token ids."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            eval_dataset = self._tokenize(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Make the data loader of a prediction, of texts or of token ids."""
        return super().get_test_dataloader(self._tokenize(test_dataset, name="test_dataset"))

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate the rows of a data loader, if there are any, and the dev sets."""
        if self.dev_sets and len(cast(Sized, dataloader.dataset)) == 0:
            texts = sum(callback.num_texts for callback in self.dev_sets)
            nothing = cast(Any, None)
            output = EvalLoopOutput(predictions=nothing, label_ids=None, metrics={}, num_samples=texts)
        else:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        prefix = self._dev_prefix(metric_key_prefix)
        if description == "Evaluation" and prefix is not None:  # `predict` is about its own data only.
            # A compiled model would compile a second graph for the batches of the dev sets.
            model = getattr(self.model_wrapped, "_orig_mod", self.model_wrapped)
            for callback in self.dev_sets:
                with self.compute_loss_context_manager():
                    metrics = callback.evaluate(model, self.processing_class)
                assert output.metrics is not None
                output.metrics.update({f"{prefix}_{name}": value for name, value in metrics.items()})
        return output

    def _dev_prefix(self, prefix: str) -> str | None:
        """Return the prefix of the dev sets' metrics, or `None` if they were evaluated with an earlier data set.

        With `eval_dataset={"a": ..., "b": ...}` there is an evaluation with the prefix `eval_a` and one with `eval_b`;
        the first also evaluates the dev sets, as `eval_stsb_spearman`.
        """
        names = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else []
        for position, name in enumerate(names):
            if prefix.endswith(f"_{name}"):
                return prefix.removesuffix(f"_{name}") if position == 0 else None
        return prefix

    # --- the hub ---------------------------------------------------------------------------------------------------

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write this package's model card into `output_dir`, unless there is one written by hand.

        Args:
            language (`str`, *optional*): As in transformers.
            license (`str`, *optional*): As in transformers.
            tags (`str` or `list[str]`, *optional*): As in transformers.
            model_name (`str`, *optional*): Ignored: the card is built from the run itself.
            finetuned_from (`str`, *optional*): Ignored.
            tasks (`str` or `list[str]`, *optional*): Ignored.
            dataset_tags (`str` or `list[str]`, *optional*): Ignored.
            dataset (`str` or `list[str]`, *optional*): As in transformers.
            dataset_args (`str` or `list[str]`, *optional*): Ignored.
        """
        card = Path(str(self.args.output_dir), CARD)
        if not self.is_world_process_zero() or is_written_by_hand(card):
            return
        try:
            write_card(
                str(self.args.output_dir),
                repo_id=self.hub_model_id,
                run=describe_run(self),
                language=language,
                license=license,
                datasets=[dataset] if isinstance(dataset, str) else dataset,
                tags=[tags] if isinstance(tags, str) else tags,
            )
        except ValueError as error:  # A run is not lost over its card.
            logger.warning(f"No model card was written, because its metrics are in doubt: {error}")
            card.unlink(missing_ok=True)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # The Trainer pushes output_dir, into which it copies its own list of files from the checkpoint.
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if self.args.hub_strategy != HubStrategy.END and (self.args.hub_always_push or not busy):
            if self.is_world_process_zero():
                copy_sentence_transformers_files(checkpoint_folder, str(self.args.output_dir))
        super()._push_from_checkpoint(checkpoint_folder)


def _load(model: Any) -> ContrastiveModel:
    """Load a model from its directory or hub name, and refuse one without a contrastive objective."""
    if isinstance(model, (str, os.PathLike)):
        return AutoModelForCL.from_pretrained(model)
    check_model_type(model)
    return model


def _call(model_init: Callable[..., Any] | None, trial: Any) -> Any:
    """Call `model_init` with the trial of a search, if it takes one."""
    assert model_init is not None
    return model_init(trial) if inspect.signature(model_init).parameters else model_init()


def _set_default_view(args: SimCSETrainingArguments, objective: type[Objective]) -> None:
    """Set the view that the objective is trained with, and its rate, where the arguments leave them open."""
    args.view = args.view or objective.view
    if args.view == objective.view and args.view_rate is None:
        args.view_rate = objective.view_rate


def _no_rows(evals: list[DevSetCallback]) -> Dataset | None:
    """Return a data set without rows if there are dev sets: the Trainer evaluates only if it has a data set."""
    return Dataset.from_dict({"input_ids": []}) if evals else None
