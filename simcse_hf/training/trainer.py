"""The Trainer of contrastive models."""

import os
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
)
from transformers.trainer_utils import EvalLoopOutput, HubStrategy
from transformers.utils import logging

from ..data.collator import ContrastiveCollator
from ..data.templates import template_settings
from ..data.view_dataset import SeededDataset
from ..data.views import MASKED_LM_VIEWS, MaskedLMView, masked_lm_rate
from ..models.auto import AutoModelForCL
from ..models.configuration import check_max_length
from ..models.modeling import ContrastiveModel
from ..models.sentence_transformers import copy_sentence_transformers_files
from ..objectives import TrainingRows, objective_class
from ..objectives.masked_lm import mask_tokens
from ..ops.memory import keep_freed_memory
from ..publishing import CARD, is_written_by_hand, write_card
from .callbacks import DatasetEpoch, LossTracker, SimilarityEvalCallback
from .gradcache import CachedBatch, check_gradcache, own_random_state
from .record import describe_run
from .rows import padded_length, tokenized_rows, training_rows
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)


class SimCSETrainer(Trainer):
    """transformers' Trainer for contrastive models.

    What it adds: the batches of [`ContrastiveCollator`], masked inputs for the auxiliary loss, the parts of the loss
    in the log, dev evaluation by [`SimilarityEvalCallback`], and refusals of what silently spoils contrastive
    training. Saving, resuming, mixed precision, several processes and tracking are transformers'.

    Args:
        model: a contrastive model, or a directory or hub name for `AutoModelForCL.from_pretrained`.
        args: the arguments.
        train_dataset: texts (columns `sent0`, `sent1`, ..., see `load_text_dataset`) or token ids, one column
            `input_ids` (see `tokenize_dataset`).
        eval_dataset: of the same form, for `eval_loss`; the dev set of scored pairs is `dev_set`.
        dev_set: scored pairs, or their file, for [`SimilarityEvalCallback`]; several are given as callbacks instead.
        processing_class: the tokenizer; default: the model's own.
        callbacks, others: as in transformers.

    Raises:
        ValueError: settings under which training would be without effect or wrong, each with what to change.
    """

    def __init__(
        self,
        model: str | os.PathLike | ContrastiveModel,
        args: SimCSETrainingArguments | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        dev_set: object | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        **others,
    ):
        args = args or SimCSETrainingArguments(output_dir="outputs/simcse")
        if not isinstance(model, nn.Module):
            model = AutoModelForCL.from_pretrained(model)
        if processing_class is None:
            processing_class = AutoTokenizer.from_pretrained(model.name_or_path)
        check_max_length(args.max_seq_length, model.config)
        args.view = args.view or objective_class(model.settings.objective).view
        model.update_settings(
            max_seq_length=args.max_seq_length,
            fixed_mask=args.view == "fixed_mask",
            **template_settings(model.settings.templates, processing_class),
        )
        if model.objective is None:
            model.prepare_objective()
        if train_dataset is not None:
            train_dataset = training_rows(train_dataset, processing_class, args, model.settings.templates)
        if eval_dataset is not None:
            eval_dataset = tokenized_rows(eval_dataset, processing_class, args, model.settings.templates)
        self.loss_tracker = LossTracker()
        callbacks = [*(callbacks or []), self.loss_tracker]
        if isinstance(train_dataset, SeededDataset):
            callbacks.append(DatasetEpoch(train_dataset))
        if dev_set is not None:
            callbacks.append(SimilarityEvalCallback(dev_set))
        self.similarity_evals = [callback for callback in callbacks if isinstance(callback, SimilarityEvalCallback)]
        if self.similarity_evals:
            if eval_dataset is None:
                eval_dataset = Dataset.from_dict(
                    {"input_ids": []}
                )  # the Trainer evaluates only where it has a data set
            if args.load_best_model_at_end and args.metric_for_best_model in (None, "loss"):
                args.metric_for_best_model = f"{self.similarity_evals[0].name}_spearman"
                args.greater_is_better = True
        self.masked_lm_view = None
        if args.view in MASKED_LM_VIEWS:
            self.masked_lm_view = MaskedLMView(
                args.view_model or model.name_or_path, processing_class, masked_lm_rate(args.view, args.view_rate)
            ).to(args.device)
        self.masker = None
        if model.settings.do_mlm:
            self.masker = DataCollatorForLanguageModeling(processing_class, mlm_probability=args.mlm_probability)
        collator = ContrastiveCollator(
            processing_class,
            pad_to=padded_length(train_dataset, args, model.settings.template_edges)
            if args.pad_to_max_length
            else None,
            repeat=model.objective.num_views,
            add_text_ids=model.objective.needs_text_ids,
        )
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            data_collator=others.pop("data_collator", collator),
            callbacks=callbacks,
            **others,
        )

    # --- training --------------------------------------------------------------------------------------------------

    def train(self, *args, **kwargs):
        self._check_run()
        if self.args.device.type == "cpu":
            keep_freed_memory()
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """Return the training data loader, with a random generator of its own.

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

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if "view_seed" in inputs:
            inputs = self._with_masked_lm_view(inputs)
        if self.masker is not None and model.training:
            masked, targets = mask_tokens(inputs["input_ids"], self.masker)
            inputs = {**inputs, "mlm_input_ids": masked, "mlm_targets": targets}
        if self.args.gradcache_chunk_size is not None and model.training:
            trim = not self.args.pad_to_max_length
            self._cached = CachedBatch(
                self.model, inputs, self.args.gradcache_chunk_size, trim, self.accelerator.autocast
            )
            return (self._cached.output.loss, self._cached.output) if return_outputs else self._cached.output.loss
        loss, output = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if model.training:
            self.loss_tracker.add(output)
        return (loss, output) if return_outputs else loss

    def _with_masked_lm_view(self, inputs: dict) -> dict:
        ids, mask, seeds = (inputs[name] for name in ("input_ids", "attention_mask", "view_seed"))
        view = self.masked_lm_view
        first = 0 if self.args.view_both else 1
        columns = [
            view(ids[:, column], mask[:, column], seeds ^ column) if column >= first else ids[:, column]
            for column in range(ids.shape[1])
        ]
        others = {name: tensor for name, tensor in inputs.items() if name != "view_seed"}
        return {**others, "input_ids": torch.stack(columns, dim=1)}

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.args.gradcache_chunk_size is None:
            return super().training_step(model, inputs, num_items_in_batch)
        no_sync = partial(self.accelerator.no_sync, model)
        with no_sync():  # the gradient goes as far as the vectors and the objective's parameters
            super().training_step(model, inputs, num_items_in_batch)
        cached, self._cached = self._cached, None
        share = 1 / self.current_gradient_accumulation_steps
        scaler = self.accelerator.scaler
        scaled = share if scaler is None else scaler.scale(torch.tensor(share, device=self.args.device))
        output = cached.backward(model, no_sync, scaled)
        self.loss_tracker.add(output)
        return output.loss * share

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = {**logs, **self.loss_tracker.means()}
        super().log(logs, start_time)

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        if self.similarity_evals and len(self.eval_dataset) == 0:
            texts = sum(callback.num_texts for callback in self.similarity_evals)
            output = EvalLoopOutput(predictions=None, label_ids=None, metrics={}, num_samples=texts)
        else:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        for callback in self.similarity_evals:
            with self.compute_loss_context_manager():
                found = callback.evaluate(self.model_wrapped, self.processing_class)
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    # --- what is checked before the first step ---------------------------------------------------------------------

    def _check_sharding(self) -> None:
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if self.is_fsdp_enabled and plugin.fsdp_version == 2 and self.model.settings.do_mlm:
            raise ValueError(
                "do_mlm does not go with FSDP2: the masked-LM head is tied to the embeddings, and its two places fall "
                "into two groups of weights. Train without do_mlm, or with DistributedDataParallel "
                "(examples/accelerate_configs/multi_gpu.yaml)."
            )
        if not self.is_fsdp_enabled and os.environ.get("ACCELERATE_USE_FSDP") == "true":
            logger.warning(
                "FSDP is asked for, and accelerate leaves it aside on this device: each process holds the whole model."
            )

    def _check_run(self) -> None:
        if self.train_dataset is None or len(self.train_dataset) == 0:
            raise ValueError("train_dataset is empty: give a training file with at least one batch of texts")
        num_sentences = len(self.train_dataset[0]["input_ids"])
        batch = self.args.train_batch_size * self.args.world_size
        rows = len(self.train_dataset)
        objective = self.model.objective
        objective.check(
            TrainingRows(num_sentences, self.args.train_batch_size, self.args.world_size, self.train_dataset)
        )
        if self.args.gradcache_chunk_size is not None:
            check_gradcache(objective, self.args)
        self._check_sharding()
        if self.args.dataloader_drop_last and rows < batch:
            raise ValueError(
                f"train_dataset has {rows} rows, fewer than one batch of {batch}, and "
                "dataloader_drop_last drops it: lower per_device_train_batch_size or unset dataloader_drop_last"
            )
        if not self.args.dataloader_drop_last and rows % batch == 1 and num_sentences < 3:
            logger.warning(
                f"the last batch of an epoch ({rows} rows, {batch} a batch) is a single text: 1 row an epoch has no "
                "negatives and teaches nothing. dataloader_drop_last=True leaves it out."
            )
        if self.args.gradient_accumulation_steps > 1:
            logger.warning(
                f"gradient_accumulation_steps = {self.args.gradient_accumulation_steps} adds no negatives: every "
                f"forward pass contrasts its own {batch} texts. A larger batch, or more processes, does."
            )
        if num_sentences == 1 and objective.num_views > 1 and self.args.view == "identity":
            self._check_dropout()
        if num_sentences > 1 and self.args.view == "fixed_mask":
            raise ValueError(f"view fixed_mask is for single sentences; the training rows hold {num_sentences} texts")

    def _check_dropout(self) -> None:
        """Two views of a text must differ, or unsupervised training pulls nothing together (Table 3, p = 0), and by
        all the dropout that the config asks for, or it is another method that is trained.
        """
        config = self.model.config
        if self._views_are_equal():
            names = sorted(n for n in config.to_dict() if "dropout" in n and "classifier" not in n)
            found = ", ".join(f"{name} = {getattr(config, name)}" for name in names) or "no such setting"
            raise ValueError(
                "both views of a sentence give the same vector: without effective dropout there is nothing to learn "
                f"from (SimCSE, Table 3). The encoder has {found}; its attention implementation is "
                f"{config._attn_implementation}. Set dropout above 0 when loading, for example "
                "from_pretrained(..., hidden_dropout_prob=0.1) for BERT, or attention_dropout=0.1, "
                "embedding_dropout=0.1, mlp_dropout=0.1 for ModernBERT (--dropout 0.1 in the scripts); or train on "
                "pairs."
            )
        rates = {name: rate for name, rate in config.to_dict().items() if "dropout" in name}
        of_attention = {name: rate for name, rate in rates.items() if "attention" in name and rate}
        if of_attention and self._views_are_equal(only_attention_dropout=True):
            asked = ", ".join(f"{name} = {rate}" for name, rate in of_attention.items())
            zero = ", ".join(f"{name}=0.0" for name in of_attention)
            raise ValueError(
                f"the attention implementation {config._attn_implementation} drops no attention weights, although the "
                f"config says {asked}: unsupervised SimCSE learns from dropout, and would lose this part of it. Load "
                'the model with attn_implementation="sdpa", "eager" or "flash_attention_2"; or ask for no attention '
                f"dropout (from_pretrained(..., {zero})); or train on pairs."
            )

    @torch.no_grad()
    def _views_are_equal(self, only_attention_dropout: bool = False) -> bool:
        """Whether the first text's views have one vector, on the path of a training step."""
        model = self.model
        batch = self.data_collator([self.train_dataset[0]] * 8)  # at low rates, one may be spared by chance
        ids, mask = (batch[name].to(model.device) for name in ("input_ids", "attention_mask"))
        hooks = []
        if only_attention_dropout:  # what else is dropped has no axis of heads
            hooks = [
                module.register_forward_hook(lambda _, inputs, out: out if out.dim() == 4 else inputs[0])
                for module in model.modules()
                if isinstance(module, nn.Dropout)
            ]
        training, unpadded = model.training, model.unpadded
        if self.args.torch_compile or self.args.gradient_checkpointing:  # neither is in force yet
            model.unpadded = False
        try:
            with own_random_state(model.device), self.compute_loss_context_manager():
                vectors = model.train()(ids, mask, return_loss=False).sentence_embeddings
        finally:
            model.train(training)
            model.unpadded = unpadded
            for hook in hooks:
                hook.remove()
        return torch.equal(vectors[:, 0], vectors[:, 1])

    # --- files of our own: the head of encoders without a pooler, the objective's state ------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_own_files(resume_from_checkpoint)

    def _load_best_model(self):
        super()._load_best_model()
        self._load_own_files(self.state.best_model_checkpoint)

    def _load_own_files(self, checkpoint: str | os.PathLike) -> None:
        # FSDP and DeepSpeed have just loaded the whole state from a file of theirs, and into shards.
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if not sharded and Path(checkpoint, "model.safetensors").exists():
            self.model.load_own_files(checkpoint)

    # --- the hub ---------------------------------------------------------------------------------------------------

    def create_model_card(self, language=None, license=None, tags=None, dataset=None, **others) -> None:
        """Writes this package's card (see `simcse-hf card`) into `output_dir`; one written by hand is left as it is.

        Args:
            language, license, tags, dataset: as in transformers.
            others: transformers' other arguments; what they say is known here.
        """
        card = Path(self.args.output_dir, CARD)
        if not self.is_world_process_zero() or is_written_by_hand(card):
            return
        try:
            write_card(
                self.args.output_dir,
                repo_id=self.hub_model_id,
                run=describe_run(self),
                language=language,
                license=license,
                datasets=[dataset] if isinstance(dataset, str) else dataset,
                tags=[tags] if isinstance(tags, str) else tags,
            )
        except ValueError as error:  # a run is not lost over its card
            logger.warning(f"There is no card, as its figures are in doubt: {error}")
            card.unlink(missing_ok=True)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # The Trainer pushes output_dir, into which it copies from the checkpoint a list of files of its own.
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if self.args.hub_strategy != HubStrategy.END and (self.args.hub_always_push or not busy):
            if self.is_world_process_zero():
                copy_sentence_transformers_files(checkpoint_folder, self.args.output_dir)
        super()._push_from_checkpoint(checkpoint_folder)
