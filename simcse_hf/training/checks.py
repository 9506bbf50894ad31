"""Checks before the first step: refuse runs that cannot learn, and warn about those that learn too little."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from datasets import Dataset
from torch import nn
from transformers import TrainerCallback
from transformers.utils import logging

from ..data.stream import StreamedRows
from ..data.view_dataset import SeededDataset
from ..objectives import TrainingRows
from .base import ContrastiveTrainer, prepared_objective
from .callbacks import DevSetCallback
from .dropout_rates import ATTENTION, DropoutRate, measure_dropout
from .gradcache import check_gradcache, preserve_random_state
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: Repetitions are reported above this share of the training rows.
DUPLICATE_SHARE = 0.05


def check_args_type(args: Any) -> None:
    """Refuse arguments of another class, which lack the settings of contrastive training.

    Args:
        args (`Any`): What the caller gave as `args`.

    Raises:
        TypeError: If `args` is no `SimCSETrainingArguments`.
    """
    if not isinstance(args, SimCSETrainingArguments):
        raise TypeError(
            f"args is a {type(args).__name__}, but SimCSETrainer needs SimCSETrainingArguments: create them with the "
            "same values, for example SimCSETrainingArguments(output_dir=..., max_seq_length=32)"
        )


def check_model_type(model: Any) -> None:
    """Refuse a model without a contrastive head and objective.

    Args:
        model (`Any`): What the caller gave as `model`; a PEFT wrapper of a contrastive model is accepted.

    Raises:
        TypeError: If the model is no contrastive model.
    """
    if not hasattr(model, "prepare_objective"):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no contrastive objective: load it with "
            "AutoModelForCL.from_pretrained(...), or pass its directory or hub name to SimCSETrainer"
        )


def check_dev_set_names(callbacks: list[Any]) -> None:
    """Refuse two dev sets whose metrics would overwrite each other.

    Args:
        callbacks (`list[Any]`): All callbacks of a trainer.

    Raises:
        ValueError: If two dev sets have the same name.
    """
    names = [name for callback in callbacks if isinstance(callback, DevSetCallback) for name in callback.sources]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"two dev sets are named {repeated[0]!r}, so their metrics would overwrite each other: name them with "
            "SimilarityEvalCallback(file, name=...)"
        )


def check_best_metric(args: SimCSETrainingArguments, eval_dataset: Any, evals: Sequence[TrainerCallback]) -> None:
    """Refuse to choose the best model by a loss that is never computed.

    Args:
        args (`SimCSETrainingArguments`): The training arguments.
        eval_dataset (`Any`): The caller's `eval_dataset`, which gives `eval_loss`.
        evals (`Sequence[TrainerCallback]`): The dev sets.

    Raises:
        ValueError: If `metric_for_best_model` is the loss, and only dev sets are evaluated.
    """
    by_loss = args.metric_for_best_model in ("loss", "eval_loss")
    if args.load_best_model_at_end and by_loss and eval_dataset is None and evals:
        raise ValueError(
            "metric_for_best_model='loss' needs an eval_dataset, and there are only dev sets: pass "
            "eval_dataset=..., or leave metric_for_best_model out to use the metric of the first dev set"
        )


def check_run(trainer: ContrastiveTrainer) -> None:
    """Check the rows, the batch, the objective and the sharding of a run.

    Args:
        trainer (`ContrastiveTrainer`): The trainer that is about to train.

    Raises:
        ValueError: If the run cannot train, or could not learn anything.
    """
    args, rows = trainer.args, trainer.known_rows
    streamed = isinstance(trainer.train_dataset, StreamedRows)
    if streamed:
        logger.info(
            f"train_dataset is a stream: its first {len(rows or [])} rows were checked. The others are checked when "
            "they are read, and texts that are cut to max_seq_length are not counted."
        )
    if rows is None or len(rows) == 0:
        raise ValueError("train_dataset is empty: give a training file with at least one batch of texts")
    num_sentences = len(rows[0]["input_ids"])
    objective = prepared_objective(trainer.model)
    objective.check(TrainingRows(num_sentences, args.train_batch_size, args.world_size, rows))
    if args.gradcache_chunk_size is not None:
        check_gradcache(objective, args)
    check_length_grouping(args, rows)
    check_duplicates(args, rows)
    check_sharding(trainer)
    check_batches(args, None if streamed else len(rows), num_sentences, objective.contrasts_rows)
    # Two encoders give a text two embeddings without dropout.
    is_dropout_the_view = args.view == "identity" and trainer.model.second_encoder is None
    if num_sentences == 1 and objective.num_views > 1 and is_dropout_the_view:
        check_dropout(trainer)
    if num_sentences > 1 and args.view == "fixed_mask":
        raise ValueError(f"view fixed_mask is for single sentences; the training rows hold {num_sentences} texts")


def check_batches(
    args: SimCSETrainingArguments, rows: int | None, num_sentences: int, contrasts_rows: bool = True
) -> None:
    """Check that the rows fill the batches, and say what weakens them.

    Args:
        args (`SimCSETrainingArguments`): The training arguments.
        rows (`int`, *optional*): Number of training rows, `None` for a stream, which checks it when it ends.
        num_sentences (`int`): Number of texts in a row.
        contrasts_rows (`bool`, *optional*, defaults to `True`): Whether the objective compares the rows of a batch
            (see [`Objective`]). If it does not, small batches weaken nothing.

    Raises:
        ValueError: If there are fewer rows than a batch needs.
    """
    batch = args.train_batch_size * args.world_size
    if rows is None:
        rows = batch
    if args.dataloader_drop_last and rows < batch:
        raise ValueError(
            f"train_dataset has {rows} rows, fewer than one batch of {batch}, and dataloader_drop_last drops it: "
            "lower per_device_train_batch_size or unset dataloader_drop_last"
        )
    if args.world_size > 1 and rows < batch:
        raise ValueError(
            f"train_dataset has {rows} rows, fewer than the batch of {batch} over {args.world_size} processes: "
            "Accelerate would repeat rows to fill it, and a repeated text would be its own negative. Lower "
            "per_device_train_batch_size or use fewer processes"
        )
    if not contrasts_rows:
        return
    if not args.dataloader_drop_last and rows % batch == 1 and num_sentences < 3:
        logger.warning(
            f"The last batch of an epoch ({rows} rows, {batch} in a batch) is a single text: 1 row in an epoch has no "
            "negatives and teaches nothing. dataloader_drop_last=True leaves it out."
        )
    if args.gradient_accumulation_steps > 1:
        logger.warning(
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps} adds no negatives: every forward pass "
            f"contrasts its own {batch} texts. A larger batch, more processes, or gradcache_chunk_size adds some."
        )


def check_duplicates(args: SimCSETrainingArguments, rows: Any) -> None:
    """Count the rows that repeat an earlier one, and say so if there are many.

    Args:
        args (`SimCSETrainingArguments`): The training arguments.
        rows (`Any`): The training rows. Only those of a `datasets.Dataset` are counted.
    """
    if not isinstance(rows, Dataset) or args.process_index > 0:
        return
    repeated = count_repeated_rows(rows)
    if repeated > DUPLICATE_SHARE * len(rows):
        logger.warning(
            f"{repeated:,} of {len(rows):,} training rows ({repeated / len(rows):.0%}) repeat an earlier row. "
            "Repeated texts are seen more often than the others and leave fewer negatives in a batch: remove them, "
            "unless that is intended."
        )


def count_repeated_rows(rows: Dataset) -> int:
    """Count the rows whose token ids equal those of an earlier row, by digests of 64 bits."""
    digests = [np.empty(0, dtype=np.uint64)]
    for batch in rows.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=10_000):
        digests.append(np.fromiter(_row_digests(batch["input_ids"].combine_chunks()), dtype=np.uint64))
    return len(rows) - len(np.unique(np.concatenate(digests)))


def _row_digests(rows: Any) -> Iterator[int]:
    """Yield a digest of each row of an Arrow array of lists of texts, from the bytes of their tokens and lengths."""
    # The rows [[5, 6], [7]] and [[8]] are the tokens 5 6 7 8, the texts' bounds 0 2 3 4 and the rows' bounds 0 2 3.
    texts = rows.flatten()
    text_bounds, row_bounds = (x.offsets.to_numpy().astype(np.int64) for x in (texts, rows))
    text_bounds, row_bounds = text_bounds - text_bounds[0], row_bounds - row_bounds[0]
    tokens, lengths = texts.flatten().to_numpy(zero_copy_only=False), np.diff(text_bounds)
    token_bytes, length_bytes = tokens.tobytes(), lengths.tobytes()
    token_ends = (text_bounds[row_bounds] * tokens.itemsize).tolist()
    length_ends = (row_bounds * lengths.itemsize).tolist()
    for place in range(len(rows)):
        seed = xxhash.xxh3_64_intdigest(length_bytes[length_ends[place] : length_ends[place + 1]])
        yield xxhash.xxh3_64_intdigest(token_bytes[token_ends[place] : token_ends[place + 1]], seed)


def check_length_grouping(args: SimCSETrainingArguments, rows: Any) -> None:
    """Refuse to group rows by their length where no column says how long they are.

    Without the column, transformers takes the number of texts in a row for its length, so all rows are equally long.

    Args:
        args (`SimCSETrainingArguments`): The training arguments.
        rows (`Any`): The training rows.

    Raises:
        ValueError: If the rows are drawn anew when they are read, or have no column of lengths.
    """
    if args.train_sampling_strategy != "group_by_length" or args.length_column_name in rows.column_names:
        return
    if isinstance(rows, SeededDataset):
        raise ValueError(
            f"train_sampling_strategy='group_by_length' does not work with a {type(rows).__name__}, whose rows are "
            "drawn anew in every epoch, so their lengths are not known in advance. Use "
            "train_sampling_strategy='random', or train on texts with view='identity'."
        )
    raise ValueError(
        "train_sampling_strategy='group_by_length' needs the number of tokens of each training row in the column "
        f"{args.length_column_name!r}, and train_dataset has {', '.join(rows.column_names)}. Add the column, pass "
        "texts in place of token ids, or use train_sampling_strategy='random'."
    )


def check_sharding(trainer: ContrastiveTrainer) -> None:
    """Check that FSDP can shard the model, and warn if Accelerate ignores FSDP.

    Args:
        trainer (`ContrastiveTrainer`): The trainer that is about to train.

    Raises:
        ValueError: If FSDP is combined with an objective that shares the encoder's weights, or FSDP2 with the
            masked-LM loss.
    """
    if trainer.is_fsdp_enabled and prepared_objective(trainer.model).shares_encoder_weights:
        raise ValueError(
            f"objective {trainer.model.settings.objective!r} does not work with FSDP, which shards the layers of the "
            "encoder that the objective also uses: train with DistributedDataParallel "
            "(examples/accelerate_configs/multi_gpu.yaml)"
        )
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", None) == 2 and trainer.model.settings.do_mlm:
        raise ValueError(
            "do_mlm does not work with FSDP2: the masked-LM head shares its weights with the embeddings, and FSDP2 "
            "would put the two into different groups. Train without do_mlm, or with DistributedDataParallel "
            "(examples/accelerate_configs/multi_gpu.yaml)."
        )
    if not trainer.is_fsdp_enabled and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        logger.warning(
            "FSDP was requested, but Accelerate ignores it on this device: each process holds the whole model."
        )


def check_dropout(trainer: ContrastiveTrainer) -> None:
    """Check that the two views of a sentence differ, by all the dropout that the config asks for.

    With equal views there is nothing to learn from (SimCSE, Table 3, p = 0). With less dropout than the config says,
    another method would be trained without notice: some attention kernels accept a rate and ignore or round it.

    Args:
        trainer (`ContrastiveTrainer`): The trainer that is about to train.

    Raises:
        ValueError: If the views are equal, the attention implementation ignores its dropout rate, or a realised rate
            differs from the requested one.
    """
    config = trainer.model.config
    if _views_are_equal(trainer):
        names = sorted(n for n in config.to_dict() if "dropout" in n and "classifier" not in n)
        described = ", ".join(f"{name} = {getattr(config, name)}" for name in names) or "no such setting"
        problem = (
            "both views of a sentence have the same embedding: without effective dropout there is nothing to learn "
            f"from (SimCSE, Table 3). The encoder has {described}; its attention implementation is "
            f"{config._attn_implementation}."
        )
        if trainer.args.allow_zero_dropout:
            logger.warning(f"allow_zero_dropout: {problem}")
            return
        raise ValueError(
            f"{problem} Set dropout above 0 when loading, for example from_pretrained(..., hidden_dropout_prob=0.1) "
            "for BERT, or attention_dropout=0.1, embedding_dropout=0.1, mlp_dropout=0.1 for ModernBERT (--dropout 0.1 "
            "on the command line); or train on pairs. To run Table 3's row p = 0, set allow_zero_dropout."
        )
    requested = {name: rate for name, rate in config.to_dict().items() if "attention" in name and "dropout" in name}
    requested = {name: rate for name, rate in requested.items() if rate}
    rates = _dropout_rates(trainer)
    of_attention = [rate for rate in rates if rate.place.startswith(ATTENTION)]
    ignored = any(rate.dropped == 0 and not rate.is_as_requested for rate in of_attention)
    if requested and (ignored or not of_attention and _views_are_equal(trainer, only_attention_dropout=True)):
        described = ", ".join(f"{name} = {rate}" for name, rate in requested.items())
        zero = ", ".join(f"{name}=0.0" for name in requested)
        raise ValueError(
            f"the attention implementation {config._attn_implementation} drops no attention weights, although the "
            f"config says {described}: unsupervised SimCSE learns from dropout, and would lose this part of it. Load "
            'the model with attn_implementation="sdpa", "eager" or "flash_attention_2"; or request no attention '
            f"dropout (from_pretrained(..., {zero})); or train on pairs."
        )
    check_rates(rates)


def check_rates(rates: Sequence[DropoutRate]) -> None:
    """Refuse dropout at another rate than the requested one.

    Args:
        rates (`Sequence[DropoutRate]`): The rates that were measured.

    Raises:
        ValueError: If a rate differs by more than its tolerance and the error of the measurement.
    """
    for rate in rates:
        if not rate.is_as_requested:
            raise ValueError(
                f"the {rate.place} drops {rate.realised:.4f} of {rate.count} values, although the model asks for a "
                f"rate of {rate.requested:g}: unsupervised SimCSE learns from dropout, and its result depends on the "
                "rate. Some attention kernels round it, for example to a multiple of 1/16. Choose another kernel: "
                "call train() inside torch.nn.attention.sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, "
                'SDPBackend.MATH]), or load the model with attn_implementation="eager". For modules, load it with '
                "fast_dropout=False."
            )


def _views_are_equal(trainer: ContrastiveTrainer, only_attention_dropout: bool = False) -> bool:
    """Return whether the first text's views have one embedding in a training step.

    With `only_attention_dropout`, all other dropout is switched off.
    """
    hooks = []
    if only_attention_dropout:  # Attention weights have an axis of heads, and so four axes; other states have fewer.
        hooks = [
            module.register_forward_hook(lambda _, inputs, out: out if out.dim() == 4 else inputs[0])
            for module in trainer.model.modules()
            if isinstance(module, nn.Dropout)
        ]
    try:
        embeddings = _embed_views(trainer, _first_views(trainer))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.equal(embeddings[:, 0], embeddings[:, 1])


def _dropout_rates(trainer: ContrastiveTrainer) -> list[DropoutRate]:
    batch = _first_views(trainer)
    with measure_dropout(trainer.model, batch["attention_mask"].flatten(0, 1)) as rates:
        _embed_views(trainer, batch)
    return rates


def _first_views(trainer: ContrastiveTrainer) -> dict[str, torch.Tensor]:
    """Return a batch of the views of the first text."""
    assert trainer.known_rows is not None
    batch = trainer.data_collator([trainer.known_rows[0]] * 8)  # At low rates, one text may be spared by chance.
    return {name: batch[name].to(trainer.model.device) for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def _embed_views(trainer: ContrastiveTrainer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Embed a batch as a training step would, and leave the model and the random state as they were."""
    model = trainer.model
    training, unpadded = model.training, model.unpadded
    if trainer.args.torch_compile or trainer.args.gradient_checkpointing:  # Training will pad, once they are set up.
        model.unpadded = False
    try:
        with preserve_random_state(model.device), trainer.compute_loss_context_manager():
            ids, mask = batch["input_ids"], batch["attention_mask"]
            return model.train().embed(ids.flatten(0, 1), mask.flatten(0, 1)).unflatten(0, ids.shape[:2])
    finally:
        model.train(training)
        model.unpadded = unpadded
