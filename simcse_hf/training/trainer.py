"""The Trainer of contrastive models."""

import os
import re
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_utils import EvalLoopOutput, HubStrategy
from transformers.utils import logging

from ..data.stream import StreamedRows
from ..data.view_dataset import SeededDataset
from ..models.adapters import has_adapter, load_trained_weights, save_trained_weights
from ..models.checkpoint import OBJECTIVE_FILE, load_objective_state, reload_own_files, replace_model
from ..models.gradcache import CachedBatch
from ..models.modeling import ContrastiveModel
from ..models.sentence_transformers import copy_sentence_transformers_files
from ..objectives import Objective
from ..objectives.masked_lm import mask_batch
from ..ops.attention import avoid_cudnn_attention
from ..ops.cpu import keep_freed_memory
from ..ops.distributed import hold_together, on_first_process
from ..ops.errors import refuse
from ..ops.files import folder_problem, write_json
from ..ops.loading import load_pretrained
from ..publishing import CARD, is_written_by_hand, write_card
from .checkpoints import CheckpointName, FiniteWeights, StopOnSignal, resolve_checkpoint, staged
from .checks import check_dev_sets, check_run
from .collapse import CollapseWatch
from .dev_scores import keep_dev_scores
from .dev_sets import DevSetCallback, make_dev_sets
from .loss_tracker import LossTracker
from .preparation import is_mixture, load_model, make_masked_lm_view, make_masker, prepare_model, set_defaults
from .rows import RowMaker, Rows
from .rows_callback import RowsCallback
from .run_record import SETTINGS, compare_settings, describe_run, run_settings, weights_digest
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: What the saved state of an optimizer would override.
_OPTIMIZER_SETTINGS = ("initial_lr", "weight_decay", "betas", "eps", "momentum")
#: Outputs of the model that are no predictions: one number a batch.
_PARTS_OF_THE_LOSS = ("contrastive_loss", "mlm_loss", "parts")


class SimCSETrainer(Trainer):
    """transformers' Trainer for contrastive models.

    It adds the batches of [`ContrastiveCollator`], masked inputs for the auxiliary loss, the parts of the loss in the
    log, evaluation on dev sets by [`SimilarityEvalCallback`], and checks before the first step. Mixed precision,
    several processes and tracking are transformers' own.

    A checkpoint is whole or absent, and resuming compares it with its manifest of digests. Weights that are not finite
    are never saved and end the run with an error. SIGTERM and SIGINT save a checkpoint before they end the run.

    Args:
        model (`str`, `os.PathLike` or `ContrastiveModel`, *optional*): A contrastive model, or a directory or hub name
            for `AutoModelForCL.from_pretrained`. `None` with `model_init`.
        args (`SimCSETrainingArguments`, *optional*): The training arguments. The trainer works on a copy.
        train_dataset (`Dataset`, `list` or `dict`, *optional*): Texts, with columns named as in `load_text_dataset`,
            or token ids in one column `input_ids` (see `tokenize_dataset`); or several such data sets by name, each
            batch from one of them (see `datasets` and `dataset_shares` of the arguments).
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

    model: ContrastiveModel  # transformers: any nn.Module, or None
    args: SimCSETrainingArguments
    processing_class: PreTrainedTokenizerBase  # transformers: also image processors, or None
    train_dataset: Rows | None  # transformers: any data set
    settings: dict[str, Any] = {}  # of the run, which train() compares with those of the checkpoint it resumes from
    changes: Sequence[dict[str, Any]] = ()  # the differences that were allowed

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
        # 1. The model, its tokenizer, and the arguments, of which the caller keeps the original.
        args = SimCSETrainingArguments(output_dir="outputs/simcse") if args is None else args
        if not isinstance(args, SimCSETrainingArguments):
            given = f"args is a {type(args).__name__}, but SimCSETrainer needs SimCSETrainingArguments"
            raise TypeError(f"{given}: create them with the same values, SimCSETrainingArguments(output_dir=...)")
        args = args.copy()
        model_init = kwargs.get("model_init")
        if (model is None) == (model_init is None):
            raise ValueError("SimCSETrainer needs either a model or model_init")
        set_seed(args.seed)  # A fresh head is drawn when the model is loaded.
        start = load_model(model, model_init)
        tokenizer = processing_class or load_pretrained(AutoTokenizer.from_pretrained, start.name_or_path)

        # 2. What the caller left open: length, view (the objective's), the first dev set's metric.
        set_defaults(args, start.settings, train_dataset)
        dev_sets = [x for x in callbacks or () if isinstance(x, DevSetCallback)] + make_dev_sets(dev_set, dev_tasks)
        if dev_sets and args.best_metric_is_default:
            args.metric_for_best_model, args.greater_is_better = dev_sets[0].headline, args.best_direction is not False
        check_dev_sets(dev_sets, args, eval_dataset is not None)

        # 3. The model gets the settings of the run, which the rows and the objective read.
        prepare_model(start, args, tokenizer, dev_sets)
        self.make_rows = RowMaker(start, tokenizer, args)
        rows = None if train_dataset is None else self.make_rows.for_training(train_dataset)
        collator = kwargs.pop("data_collator", None) or self.make_rows.collator(start.objective, rows)
        self.masked_lm_view = make_masked_lm_view(start, tokenizer, args)
        self.masker = make_masker(tokenizer, args.mlm_probability) if start.settings.do_mlm else None

        # 4. The callbacks run in this order: the last ones see what the others request.
        self.loss_tracker = LossTracker()
        self.collapse_watch, self.stop_on_signal = CollapseWatch(self.loss_tracker), StopOnSignal()
        others = [x for x in callbacks or () if x not in dev_sets]
        watches = [self.loss_tracker, self.collapse_watch, RowsCallback(rows)]
        self._counted: tuple[Any, int] | None = None  # a model and the number of its parameters
        self.start_digest = weights_digest(start)
        self._resumed: str | None = None  # the checkpoint that train() resumes from, until its weights are loaded
        super().__init__(
            model=None if model is None else start,
            args=args,
            train_dataset=rows,
            eval_dataset=_no_rows(dev_sets, args) if eval_dataset is None else self._tokenize_all(eval_dataset),
            processing_class=tokenizer,
            data_collator=collator,
            callbacks=[*others, *watches, *dev_sets, self.stop_on_signal, FiniteWeights()],
            **kwargs,
        )

    def call_model_init(self, trial: Any = None) -> ContrastiveModel:
        """Call `model_init`, as each trial of `hyperparameter_search` does, and prepare its model for training."""
        model = load_model(None, self.model_init, trial)
        prepare_model(model, self.args, self.make_rows.tokenizer)
        return model

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Search as transformers does, by default for the highest headline metric of the first dev set."""
        if self.dev_sets and len(args) < 2 and kwargs.get("compute_objective") is None:
            kwargs["compute_objective"] = itemgetter(f"eval_{self.dev_sets[0].headline}")
            kwargs["direction"] = kwargs.get("direction") or "maximize"
        return super().hyperparameter_search(*args, **kwargs)

    @property
    def contrastive_objective(self) -> Objective:
        """The objective of the model."""
        return cast(Objective, self.model.objective)

    @property
    def dev_sets(self) -> list[DevSetCallback]:
        """The dev sets, in the order they were added."""
        return [x for x in self.callback_handler.callbacks if isinstance(x, DevSetCallback)]

    @property
    def found_batch(self) -> dict[str, int]:
        """The batch size that `auto_find_batch_size` found, if it is smaller than the one asked for."""
        size = self._train_batch_size
        return {"per_device_train_batch_size": size} if size < self.args.train_batch_size else {}

    @property
    def known_rows(self) -> Dataset | SeededDataset | None:
        """The training rows; of a stream the first ones, by which the run is checked and described."""
        return self.train_dataset.head if isinstance(self.train_dataset, StreamedRows) else self.train_dataset

    def train(self, resume_from_checkpoint: CheckpointName | None = None, *args: Any, **kwargs: Any) -> Any:
        """Check the run, and train as transformers does.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`, *optional*): A checkpoint, or `True` for the newest
                whole checkpoint in `output_dir`.
            args (`Any`): As in transformers.
            kwargs (`Any`): As in transformers.

        Returns:
            `TrainOutput`: As in transformers.

        Raises:
            ValueError: If the run cannot train, could not learn anything, or has no whole checkpoint to resume from.
            FloatingPointError: If the loss or a weight is not finite.
            SystemExit: After SIGTERM, with status 143.
            KeyboardInterrupt: After SIGINT.
        """
        check_run(self)
        self._resumed = None
        if resume_from_checkpoint:
            self._resumed = resolve_checkpoint(resume_from_checkpoint, str(self.args.output_dir))
        self.settings, self.changes = run_settings(self), []
        if self._resumed is not None:
            compare = partial(compare_settings, self._resumed, self.settings, self.args.allow_changes)
            self.changes = on_first_process(compare)
        self._start_stream()
        if self.args.device.type == "cpu":
            keep_freed_memory()
        start = self.args.eval_on_start
        self.args.eval_on_start &= self._resumed is None or bool(self.changes)  # the checkpoint has that of the start
        held = hold_together(self._get_output_dir(kwargs.get("trial")))  # a trial of a search has its own folder
        with held, self.stop_on_signal.caught(self.args), avoid_cudnn_attention(self.args.device):
            try:
                return super().train(self._resumed, *args, **kwargs)
            except FloatingPointError:
                if self.optimizer is not None:
                    self.optimizer.state.clear()  # Its averages are not finite either, and would break the next run.
                raise
            except (SystemExit, KeyboardInterrupt):
                if self.stop_on_signal.is_stopping:  # The checkpoint is whole: close the trackers, finish the upload.
                    self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
                    self._finish_current_push()
                raise
            finally:
                self.args.eval_on_start = start

    def _start_stream(self) -> None:
        if isinstance(self.train_dataset, StreamedRows):
            self.train_dataset.forget()
            if self._resumed is not None:
                self.train_dataset.load_state(self._resumed)

    def get_train_dataloader(self) -> DataLoader:
        """Make the data loader of training, with a random generator of its own.

        A loader draws a seed for its workers whenever they start. From the global generator, that would change the
        dropout masks: persistent workers start once, others in every epoch, and all of them once more on a resume.

        Returns:
            `torch.utils.data.DataLoader`: The loader. A stream makes its own batches, and splits them over the
                processes.
        """
        if self.found_batch:
            logger.warning(
                f"auto_find_batch_size: the memory holds {self._train_batch_size} of the {self.args.train_batch_size} "
                "rows asked for, so each sentence has fewer negatives; results.json records it"
            )
        if isinstance(self.train_dataset, StreamedRows):
            if self.train_dataset.batch_size != self._train_batch_size:  # another attempt or trial
                self.train_dataset.batch_size = self._train_batch_size
                self._start_stream()
            options: dict[str, Any] = {"collate_fn": self.data_collator, "pin_memory": self.args.dataloader_pin_memory}
            loader = DataLoader(self.train_dataset, batch_size=None, **options)
        else:
            loader = super().get_train_dataloader()
        # Accelerate's loader wraps the one that starts the workers.
        base = getattr(loader, "base_dataloader", loader)
        base.generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        return self.make_rows.sampler(super()._get_train_sampler(train_dataset), self._train_batch_size)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *args: Any) -> Any:
        """Take the batches of a step; none if a finished run was resumed, of which transformers takes one more."""
        if self.state.global_step < self.state.max_steps:
            return super().get_batch_samples(epoch_iterator, num_batches, *args)
        self.control.should_training_stop = True
        return [], None

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
        if "attention_mask" not in inputs:  # A custom collator may omit it.
            inputs["attention_mask"] = (inputs["input_ids"] != self.processing_class.pad_token_id).long()
        if "view_seed" in inputs:
            ids, mask, seeds = inputs["input_ids"], inputs["attention_mask"], inputs.pop("view_seed")
            first, view = 0 if self.args.view_both else 1, self.masked_lm_view
            assert view is not None
            views = [view(ids[:, i], mask[:, i], seeds ^ i) if i >= first else ids[:, i] for i in range(ids.shape[1])]
            inputs["input_ids"] = torch.stack(views, dim=1)
        if self.masker is not None and training:
            inputs = mask_batch(
                inputs, self.masker, self.contrastive_objective.mlm_columns(inputs["input_ids"].shape[1])
            )
        return inputs

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Take the gradient of a batch, in one pass or, with `gradcache_chunk_size`, in chunks."""
        in_chunks = self.args.gradcache_chunk_size is not None
        loss = (
            self._step_in_chunks(model, inputs)
            if in_chunks
            else super().training_step(model, inputs, num_items_in_batch)
        )
        self.loss_tracker.add_step(loss)
        return loss

    def _step_in_chunks(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
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
                cast(int, self.args.gradcache_chunk_size),
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

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Estimate the operations of a step, as transformers does, but count the parameters of a model only once.

        Args:
            inputs (`dict`): A batch.

        Returns:
            `int`: Six operations for each token and parameter, embeddings left out.
        """
        if self._counted is None or self._counted[0] is not self.model:
            self._counted = self.model, cast(Any, self.model).num_parameters(exclude_embeddings=True)
        return 6 * inputs["input_ids"].numel() * self._counted[1]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log metrics, with the parts of the loss beside the loss."""
        if "loss" in logs:
            logs = {**logs, **self.loss_tracker.means(), **self.collapse_watch.measure_batch()}
        if "train_runtime" in logs:  # transformers gives those of the last part of a resumed run
            whole = self.loss_tracker.record()
            logs |= {"train_runtime": whole["seconds"], "train_loss": whole["loss"] / max(1, self.state.global_step)}
        super().log(logs, start_time)

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback; a [`DevSetCallback`] is evaluated from now on."""
        super().add_callback(callback)
        check_dev_sets(self.dev_sets, self.args)
        if isinstance(callback, DevSetCallback):
            callback.use_prompts(self.model.settings)
        if getattr(self, "eval_dataset", None) is None:
            self.eval_dataset = _no_rows(self.dev_sets, self.args)

    def _tokenize_all(self, data: Any) -> Any:
        if is_mixture(data):
            return {name: self.make_rows.for_evaluation(name, rows) for name, rows in data.items()}
        return self.make_rows.tokenized(data)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Make the data loader of an evaluation, of texts or of token ids."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            eval_dataset = self.make_rows.tokenized(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Make the data loader of a prediction, of texts or of token ids."""
        return super().get_test_dataloader(self.make_rows.tokenized(test_dataset, "test_dataset"))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as transformers does; during training, keep what the dev sets scored.

        Args:
            args (`Any`): As in transformers.
            kwargs (`Any`): As in transformers.

        Returns:
            `dict[str, float]`: The metrics.
        """
        metrics = super().evaluate(*args, **kwargs)
        if self.is_in_train and self.is_world_process_zero():
            keep_dev_scores(self.dev_sets, self.state, str(self.args.output_dir))
        return metrics

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
            texts = sum(len(dev_set.texts) for dev_set in self.dev_sets)
            output = EvalLoopOutput(cast(Any, None), label_ids=None, metrics={}, num_samples=texts)
        else:
            ignored = list(_PARTS_OF_THE_LOSS) if ignore_keys is None else ignore_keys
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignored, metric_key_prefix)
        prefix = self._dev_prefix(metric_key_prefix)
        if description == "Evaluation" and prefix is not None:  # `predict` is about its own data only.
            # A compiled model would compile a second graph for the batches of the dev sets.
            model = getattr(self.model_wrapped, "_orig_mod", self.model_wrapped)
            for dev_set in self.dev_sets:
                with self.compute_loss_context_manager():
                    metrics = dev_set.evaluate(model, self.processing_class)
                assert output.metrics is not None
                output.metrics.update({f"{prefix}_{name}": value for name, value in metrics.items()})
        return output

    def _dev_prefix(self, prefix: str) -> str | None:
        """Return the prefix of the dev sets' metrics, or `None` if they were evaluated with an earlier data set.

        With `eval_dataset={"a": ..., "b": ...}` there is an evaluation with the prefix `eval_a` and one with `eval_b`;
        the first also evaluates the dev sets, as `eval_stsb_spearman`.
        """
        names = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else []
        # Of "news" and "old_news", the prefix `eval_old_news` is that of the longer one.
        name = max((name for name in names if prefix.endswith(f"_{name}")), key=len, default=None)
        if name is None:
            return prefix
        return prefix.removesuffix(f"_{name}") if name == names[0] else None

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        directory = output_dir or str(self.args.output_dir)
        with replace_model(directory, self.args.should_save, self.model.save_adapter) as folder:
            super()._save(str(folder), state_dict)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        cast(Any, self.state.stateful_callbacks)[LossTracker.RECORD] = self.loss_tracker.record()
        with staged(self, trial) as folder:
            super()._save_checkpoint(model, trial)
            if isinstance(self.train_dataset, StreamedRows) and self.is_world_process_zero():
                self.train_dataset.save_state(str(folder))
            if self.args.should_save:
                if has_adapter(self.model):
                    save_trained_weights(self.model, folder)
                write_json(folder / SETTINGS, {"settings": self.settings, "changes": self.changes})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both; with `allow_changes`, the settings of this run take the place of those in the checkpoint."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        own = [{k: v for k, v in x.items() if k in _OPTIMIZER_SETTINGS} for x in groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not any("settings" in x for x in self.changes):
            return
        for group, values in zip(cast(Any, self.optimizer).param_groups, own, strict=True):
            if group.get("initial_lr"):
                group["lr"] = group["lr"] * values["initial_lr"] / group["initial_lr"]
            group.update(values)
        if hasattr(self.lr_scheduler, "base_lrs"):
            cast(Any, self.lr_scheduler).base_lrs = [x["initial_lr"] for x in own]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if load_trained_weights(self.model, resume_from_checkpoint):
            load_objective_state(self.model, Path(resume_from_checkpoint, OBJECTIVE_FILE))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Load the best checkpoint, if it is still as it was saved."""
        best = self.state.best_model_checkpoint
        problem = on_first_process(lambda: best and folder_problem(best))
        refuse(
            {
                f"the best checkpoint {best} cannot be loaded: {problem}. Nothing was saved as the final model. The "
                f"weights of the last step are in the newest checkpoint in {self.args.output_dir}: to save them, "
                "repeat the command with --resume_from_checkpoint true --load_best_model_at_end false.": problem
            }
        )
        if has_adapter(self.model):
            self._load_from_checkpoint(str(best))
        else:
            super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Load the model's own files, after transformers has loaded the other weights of a checkpoint.

        It does so before a resumed run, and at the end for the best model. The own files are the head of an encoder
        without a pooler and the state of the objective, which transformers would report as missing.
        """
        checkpoint, self._resumed = self._resumed or self.state.best_model_checkpoint, None
        # FSDP and DeepSpeed have just loaded the whole state from a file of theirs, and into shards.
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if checkpoint and not sharded and Path(checkpoint, "model.safetensors").exists():
            reload_own_files(self.model, checkpoint)
        own_files = [re.compile(x) for x in getattr(self.model, "_keys_to_ignore_on_load_missing", None) or ()]
        tied = getattr(self.model, "all_tied_weights_keys", {})  # which are saved once
        missing = [x for x in load_result.missing_keys if x not in tied and not any(p.match(x) for p in own_files)]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # The Trainer pushes output_dir, into which it copies its own list of files from the checkpoint.
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        pushes = self.args.hub_strategy != HubStrategy.END and (self.args.hub_always_push or not busy)
        if pushes and self.is_world_process_zero():
            copy_sentence_transformers_files(checkpoint_folder, str(self.args.output_dir))
        super()._push_from_checkpoint(checkpoint_folder)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        *args: Any,
        dataset: str | list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write this package's model card into `output_dir`, unless there is one written by hand.

        Args:
            language (`str`, *optional*): As in transformers.
            license (`str`, *optional*): As in transformers.
            tags (`str` or `list[str]`, *optional*): As in transformers.
            args (`Any`): Ignored, like `kwargs`: the card is built from the run itself.
            dataset (`str` or `list[str]`, *optional*): As in transformers.
            kwargs (`Any`): Ignored.
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


def _no_rows(dev_sets: Sequence[DevSetCallback], args: SimCSETrainingArguments) -> Dataset | None:
    """Return a data set without rows if there are dev sets: the Trainer evaluates only if it has a data set."""
    # Grouping by length reads the lengths of evaluation rows, too.
    return Dataset.from_dict({"input_ids": [], args.length_column_name: []}) if dev_sets else None
