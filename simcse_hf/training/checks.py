"""Checks of a run: refuse runs that cannot learn, and warn about those that learn too little."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from ..data.views import DATASET_VIEWS
from ..models.gradcache import preserve_random_state
from ..models.settings import ContrastiveSettings, dropout_rates
from .dev_sets import DevSetCallback
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: Steps of a run below which their number is reported.
FEW_STEPS = 50


def check_dev_sets(
    dev_sets: Sequence[DevSetCallback], args: SimCSETrainingArguments, has_eval_dataset: bool = True
) -> None:
    """Refuse dev sets whose metrics would overwrite each other, and a best model by a loss that is never computed.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets of a trainer.
        args (`SimCSETrainingArguments`): The training arguments.
        has_eval_dataset (`bool`, *optional*, defaults to `True`): Whether there is an `eval_dataset` for `eval_loss`.

    Raises:
        ValueError: If two dev sets have the same name, or only dev sets are evaluated and `metric_for_best_model` is
            none of theirs.
    """
    names = [name for dev_set in dev_sets for name in dev_set.sources]
    repeated = sorted({repr(name) for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"two dev sets are named {', '.join(repeated)}, so their metrics would overwrite each other: name them "
            "with SimilarityEvalCallback(file, name=...)"
        )
    metric = (args.metric_for_best_model or "").removeprefix("eval_")
    if not metric or not dev_sets or has_eval_dataset:
        return
    if metric == "loss":
        raise ValueError(
            "metric_for_best_model='loss' needs an eval_dataset, and there are only dev sets: pass eval_dataset=..., "
            "or leave metric_for_best_model out to use the metric of the first dev set"
        )
    if not metric.startswith(tuple(f"{name}_" for name in names)):
        raise ValueError(
            f"metric_for_best_model={metric!r} is no metric of the dev sets {', '.join(names)}: take one such as "
            f"{dev_sets[0].headline!r}"
        )


def warn_of_idle_settings(args: SimCSETrainingArguments, settings: ContrastiveSettings) -> None:
    """Warn of arguments that have no effect on the run.

    Args:
        args (`SimCSETrainingArguments`): The arguments of the run.
        settings (`ContrastiveSettings`): The settings of its model.
    """
    if args.learning_rate == 0:
        logger.warning("learning_rate is 0, so the weights do not change.")
    if 0 < args.max_steps < args.warmup_steps:
        logger.warning(f"warmup_steps = {args.warmup_steps} is longer than the run.")
    if settings.mlm_weight != 0.1 and not settings.do_mlm:
        logger.warning("mlm_weight has no effect without do_mlm.")
    if args.mlm_probability != 0.15 and not settings.do_mlm:
        logger.warning("mlm_probability has no effect without do_mlm.")
    if args.view_both and args.view not in DATASET_VIEWS:
        logger.warning(f"view_both has no effect with view {args.view}.")


def check_batches(
    args: SimCSETrainingArguments, rows: int | None, num_sentences: int, compares_rows: bool = True
) -> None:
    """Check that the rows fill the batches, and say what weakens them.

    Args:
        args (`SimCSETrainingArguments`): The training arguments.
        rows (`int`, *optional*): Number of training rows, `None` for a stream, which checks it when it ends.
        num_sentences (`int`): Number of texts in a row.
        compares_rows (`bool`, *optional*, defaults to `True`): Whether the objective compares the rows of a batch
            (see [`Objective`]). If it does not, small batches weaken nothing.

    Raises:
        ValueError: If there are fewer rows than a batch needs.
    """
    batch = args.train_batch_size * args.world_size
    if compares_rows and args.gradient_accumulation_steps > 1:
        logger.warning(
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps} adds no negatives: every forward pass "
            f"contrasts its own {batch} texts. A larger batch, more processes, or gradcache_chunk_size adds some."
        )
    if rows is None:
        return
    few = f"train_dataset has {rows} rows, fewer than one batch of {batch}"
    if rows < batch and args.dataloader_drop_last:
        raise ValueError(
            f"{few}, and dataloader_drop_last drops it: lower per_device_train_batch_size or unset "
            "dataloader_drop_last"
        )
    if rows < batch and args.world_size > 1:
        raise ValueError(
            f"{few} over {args.world_size} processes. Accelerate would repeat rows to fill it, and a repeated text "
            "would be its own negative: lower per_device_train_batch_size or use fewer processes"
        )
    if compares_rows and not args.dataloader_drop_last and rows % batch == 1 and num_sentences < 3:
        logger.warning(
            f"The last batch of an epoch ({rows} rows, {batch} in a batch) is a single text: 1 row in an epoch has no "
            "negatives and teaches nothing. dataloader_drop_last=True leaves it out."
        )
    in_step = batch * args.gradient_accumulation_steps
    in_epoch = -(-rows // in_step)
    steps = math.ceil(in_epoch * args.num_train_epochs)
    if args.max_steps <= 0 and steps < FEW_STEPS:
        logger.warning(
            f"{rows} rows in batches of {in_step} make {in_epoch} step(s) in an epoch and {steps} in all, which is "
            "little to learn from. A smaller per_device_train_batch_size or more num_train_epochs gives more steps."
        )


def warn_of_ignored_fsdp() -> None:
    """Warn if Accelerate was asked for FSDP and ignores it on this device."""
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        logger.warning(
            "FSDP was requested, but Accelerate ignores it on this device: each process holds the whole model."
        )


def check_fsdp(model: Any, version: int | None) -> None:
    """Check that FSDP can shard a model with its objective.

    Args:
        model (`ContrastiveModel`): The model, with its objective.
        version (`int`, *optional*): The version of FSDP.

    Raises:
        ValueError: If the objective shares the encoder's weights, or FSDP2 meets the masked-LM loss.
    """
    instead = "Train with DistributedDataParallel (accelerate_configs/multi_gpu.yaml)."
    encoder = {id(parameter) for parameter in model.base_model.parameters()}
    if any(id(parameter) in encoder for parameter in model.objective.parameters()):
        raise ValueError(
            f"objective {model.settings.objective!r} does not work with FSDP, which shards the layers of the encoder "
            f"that the objective also uses. {instead}"
        )
    if version == 2 and model.settings.do_mlm:
        raise ValueError(
            "do_mlm does not work with FSDP2: the masked-LM head shares its weights with the embeddings, and FSDP2 "
            f"would put the two into different groups. {instead}"
        )


class DropoutCheck:
    """Check that the two views of a sentence differ, and that dropout of attention weights is part of it.

    With equal views there is nothing to learn from (SimCSE, Table 3, p = 0). With less dropout than the config says,
    another method would be trained without notice: some attention functions accept a rate and ignore it.

    Args:
        model (`ContrastiveModel`): The model that is about to be trained.
        batch (`Mapping[str, torch.Tensor]`): A batch of single sentences with their views.
        context (`Callable`): Makes the context of a training step, such as autocast.
        padded (`bool`): Whether training pads, although the model would not.
    """

    def __init__(self, model: Any, batch: Mapping[str, torch.Tensor], context: Any, padded: bool):
        self.model = model
        self.ids = batch["input_ids"].to(model.device)
        self.mask = batch["attention_mask"].to(model.device)
        self.context = context
        self.padded = padded

    def run(self) -> None:
        """Check the views.

        Raises:
            ValueError: If they are equal, or the attention implementation ignores its dropout rate.
        """
        config = self.model.config
        rates = dict(sorted(dropout_rates(config).items()))
        if self._views_are_equal():
            described = ", ".join(f"{name} = {rate}" for name, rate in rates.items()) or "no such setting"
            raise ValueError(
                "both views of a sentence have the same embedding: without effective dropout there is nothing to "
                f"learn from (SimCSE, Table 3). The encoder has {described}; its attention implementation is "
                f"{config._attn_implementation}. Set dropout above 0 when loading, for example "
                "from_pretrained(..., hidden_dropout_prob=0.1) for BERT, attention_dropout=0.1, "
                "embedding_dropout=0.1, mlp_dropout=0.1 for ModernBERT, or attention_dropout=0.3 for Llama (--dropout "
                "on the command line); or train on pairs. To run Table 3's row p = 0, set view to fixed_mask, which "
                "makes equal views on purpose."
            )
        requested = {name: rate for name, rate in rates.items() if "attention" in name and rate}
        if requested and self._views_are_equal(only_attention_dropout=True):
            described = ", ".join(f"{name} = {rate}" for name, rate in requested.items())
            zero = ", ".join(f"{name}=0.0" for name in requested)
            raise ValueError(
                f"the attention implementation {config._attn_implementation} drops no attention weights, although the "
                f"config says {described}: unsupervised SimCSE learns from dropout, and would lose this part of it. "
                'Load the model with attn_implementation="sdpa", "eager" or "flash_attention_2"; or request no '
                f"attention dropout (from_pretrained(..., {zero})); or train on pairs."
            )

    @torch.no_grad()
    def _views_are_equal(self, only_attention_dropout: bool = False) -> bool:
        """Return whether the views of the first rows have one embedding in a training step.

        With `only_attention_dropout`, all other dropout is switched off. The model and the random state stay as they
        were.
        """
        model = self.model
        training = model.training
        unpadded = model.unpadded
        if self.padded:
            model.unpadded = False
        with ExitStack() as on_exit:
            if only_attention_dropout:
                for module in model.modules():
                    if isinstance(module, nn.Dropout):
                        on_exit.callback(module.register_forward_hook(_keep_only_attention_dropout).remove)
            on_exit.enter_context(preserve_random_state(model.device))
            on_exit.enter_context(self.context())
            try:
                flat = model.train().embed(self.ids.flatten(0, 1), self.mask.flatten(0, 1))
            finally:
                model.train(training)
                model.unpadded = unpadded
        embeddings = flat.unflatten(0, self.ids.shape[:2])
        return torch.equal(embeddings[:, 0], embeddings[:, 1])


def _keep_only_attention_dropout(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Undo the dropout of states: attention weights have an axis of heads, and so four axes; other states fewer."""
    return output if output.dim() == 4 else inputs[0]
