"""Checks of a run: refuse runs that cannot learn, and warn about those that learn too little."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers.utils import logging

from ..data.mixture import MixedRows
from ..data.stream import StreamedRows
from ..data.tokenize import check_known
from ..data.view_dataset import SeededDataset
from ..data.views import DATASET_VIEWS, MASKED_LM_VIEWS
from ..models.adapters import has_adapter
from ..models.gradcache import check_gradcache, preserve_random_state
from ..models.settings import dropout_rates
from ..objectives import Objective, TrainingRows
from ..objectives.composed import ByDataset
from ..ops.errors import refuse
from .dev_sets import DevSetCallback
from .training_args import SimCSETrainingArguments

if TYPE_CHECKING:
    from .trainer import SimCSETrainer

logger = logging.get_logger(__name__)

#: Share of the training rows above which repetitions are reported.
DUPLICATE_SHARE = 0.05
#: Rows whose tokens are compared with the vocabulary.
_SAMPLE_ROWS = 500
#: Steps of a run below which their number is reported.
FEW_STEPS = 50


# --- when a trainer is made ------------------------------------------------------------------------------------------


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
            the loss.
    """
    names = [name for dev_set in dev_sets for name in dev_set.sources]
    repeated = sorted({repr(name) for name in names if names.count(name) > 1})
    metric = (args.metric_for_best_model or "").removeprefix("eval_")
    by_loss, is_known = metric == "loss", metric.startswith(tuple(f"{name}_" for name in names))
    refuse(
        {
            f"two dev sets are named {', '.join(repeated)}, so their metrics would overwrite each other: name them "
            "with SimilarityEvalCallback(file, name=...)": repeated,
            "metric_for_best_model='loss' needs an eval_dataset, and there are only dev sets: pass eval_dataset=..., "
            "or leave metric_for_best_model out to use the metric of the first dev set": (
                by_loss and dev_sets and not has_eval_dataset
            ),
            f"metric_for_best_model={metric!r} is no metric of the dev sets {', '.join(names)}: take one such as "
            f"{dev_sets[0].headline if dev_sets else ''!r}": (
                metric and dev_sets and not (is_known or by_loss or has_eval_dataset)
            ),
        }
    )


# --- before the first step -------------------------------------------------------------------------------------------


def check_run(trainer: "SimCSETrainer") -> None:
    """Check the rows, the batch, the objective and the sharding of a run.

    Args:
        trainer (`SimCSETrainer`): The trainer that is about to train.

    Raises:
        ValueError: If the run cannot train, or could not learn anything.
    """
    if trainer.model is None:  # `hyperparameter_search` drops the model after each trial.
        trainer.model = trainer.call_model_init()
    args, rows, objective = trainer.args, trainer.known_rows, trainer.contrastive_objective
    streamed = isinstance(trainer.train_dataset, StreamedRows)
    if streamed:
        logger.info(
            f"train_dataset is a stream: its first {len(rows or [])} rows were checked. The others are checked when "
            "they are read, and texts that are cut to max_seq_length are not counted."
        )
    if rows is None or len(rows) == 0:
        raise ValueError("train_dataset is empty: give a training file with at least one batch of texts")
    settings = trainer.model.settings
    idle = {
        "learning_rate is 0, so the weights do not change": args.learning_rate == 0,
        f"warmup_steps = {args.warmup_steps} is longer than the run": 0 < args.max_steps < args.warmup_steps,
        "mlm_weight has no effect without do_mlm": settings.mlm_weight != 0.1 and not settings.do_mlm,
        "mlm_probability has no effect without do_mlm": args.mlm_probability != 0.15 and not settings.do_mlm,
        f"view_both has no effect with view {args.view}": args.view_both and args.view not in DATASET_VIEWS,
        f"view_model has no effect with view {args.view}": args.view_model and args.view not in MASKED_LM_VIEWS,
    }
    for problem in [problem for problem, holds in idle.items() if holds]:
        logger.warning(f"{problem}.")
    if isinstance(rows, MixedRows):
        for number, (name, part) in enumerate(rows.parts.items()):
            own = objective.of_dataset(number) if isinstance(objective, ByDataset) else objective
            try:
                _check_rows(trainer, part, own, f"train_dataset[{name!r}]", rows[int(rows.starts[number])])
            except ValueError as error:
                raise ValueError(f"data set {name!r}: {error}") from None
        check_batches(args, len(cast(Sized, trainer._get_train_sampler())), 0, not objective.reconstructs)
    else:
        _check_rows(trainer, rows, objective, "train_dataset", rows[0])
        num_sentences = len(rows[0]["input_ids"])
        check_batches(args, None if streamed else len(rows), num_sentences, not objective.reconstructs)
    if args.gradcache_chunk_size is not None:
        check_gradcache(objective, args)
    if trainer.dev_sets and args.eval_strategy == "no" and trainer.hp_search_backend is None:
        logger.warning(
            "There is a dev set, but eval_strategy is 'no', so nothing is evaluated during training: set it to "
            "'epoch', or to 'steps' with eval_steps, or call trainer.evaluate() afterwards."
        )
    check_sharding(trainer)


def _check_rows(trainer: "SimCSETrainer", rows: Any, objective: Objective, name: str, row: Mapping[str, Any]) -> None:
    """Check the rows of a data set, of which `row` is one as the collator takes it."""
    args, num_sentences = trainer.args, len(row["input_ids"])
    if trainer.model.settings.hard_negative_weight and num_sentences < 3:
        logger.warning("hard_negative_weight has no effect on rows without hard negatives.")
    wrong_view = f"view fixed_mask is for single sentences; the training rows hold {num_sentences} texts"
    refuse({wrong_view: num_sentences > 1 and args.view == "fixed_mask"})
    sample = (ids for number in range(min(_SAMPLE_ROWS, len(rows))) for ids in rows[number]["input_ids"])
    check_known(sample, trainer.make_rows.tokenizer, name)
    objective.check(TrainingRows(num_sentences, args.train_batch_size, args.world_size, rows))
    check_length_grouping(args, rows)
    if isinstance(rows, Dataset) and args.process_index == 0:
        warn_of_repeated_rows(rows)
    # Two encoders give a text two embeddings without dropout.
    is_dropout_the_view = args.view == "identity" and trainer.model.second_encoder is None
    if num_sentences == 1 and objective.num_views > 1 and is_dropout_the_view:
        check_dropout(trainer, row)


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
    streamed, rows = rows is None, batch if rows is None else rows
    drops, few = args.dataloader_drop_last, f"train_dataset has {rows} rows, fewer than one batch of {batch}"
    refuse(
        {
            f"{few}, and dataloader_drop_last drops it: lower per_device_train_batch_size or unset "
            "dataloader_drop_last": rows < batch and drops,
            f"{few} over {args.world_size} processes. Accelerate would repeat rows to fill it, and a repeated text "
            "would be its own negative: lower per_device_train_batch_size or use fewer processes": (
                rows < batch and args.world_size > 1
            ),
        }
    )
    if compares_rows and not args.dataloader_drop_last and rows % batch == 1 and num_sentences < 3:
        logger.warning(
            f"The last batch of an epoch ({rows} rows, {batch} in a batch) is a single text: 1 row in an epoch has no "
            "negatives and teaches nothing. dataloader_drop_last=True leaves it out."
        )
    in_step = batch * args.gradient_accumulation_steps
    in_epoch = -(-rows // in_step)
    steps = math.ceil(in_epoch * args.num_train_epochs)
    if not streamed and args.max_steps <= 0 and steps < FEW_STEPS:
        logger.warning(
            f"{rows} rows in batches of {in_step} make {in_epoch} step(s) in an epoch and {steps} in all, which is "
            "little to learn from. A smaller per_device_train_batch_size or more num_train_epochs gives more steps."
        )
    if compares_rows and args.gradient_accumulation_steps > 1:
        logger.warning(
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps} adds no negatives: every forward pass "
            f"contrasts its own {batch} texts. A larger batch, more processes, or gradcache_chunk_size adds some."
        )


def warn_of_repeated_rows(rows: Dataset) -> None:
    """Count the rows that repeat an earlier one, and say so if there are many.

    Args:
        rows (`datasets.Dataset`): The training rows.
    """
    repeated = count_repeated_rows(rows)
    if repeated > DUPLICATE_SHARE * len(rows):
        logger.warning(
            f"{repeated:,} of {len(rows):,} training rows ({repeated / len(rows):.0%}) repeat an earlier row. "
            "Repeated texts are seen more often than the others and leave fewer negatives in a batch: remove them, "
            "unless that is intended."
        )


def count_repeated_rows(rows: Dataset) -> int:
    """Count the rows whose token ids equal those of an earlier row, by digests of 64 bits."""
    batches = rows.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=10_000)
    digests = b"".join(digest for batch in batches for digest in _row_digests(batch["input_ids"].combine_chunks()))
    return len(rows) - len(np.unique(np.frombuffer(digests, dtype=np.uint64)))


def _row_digests(rows: Any) -> Iterator[bytes]:
    """Yield a digest of each row of an Arrow array of lists of texts, from the bytes of its tokens and lengths."""
    # The rows [[5, 6], [7]] and [[8]] are the tokens 5 6 7 8, the texts' bounds 0 2 3 4 and the rows' bounds 0 2 3.
    texts = rows.flatten()
    text_bounds, row_bounds = (x.offsets.to_numpy().astype(np.int64) for x in (texts, rows))
    text_bounds, row_bounds = text_bounds - text_bounds[0], row_bounds - row_bounds[0]
    tokens, lengths = texts.flatten().to_numpy(zero_copy_only=False), np.diff(text_bounds)
    token_bounds = text_bounds[row_bounds]
    for row in range(len(rows)):
        parts = (tokens, token_bounds), (lengths, row_bounds)
        yield blake2b(b"".join(x[at[row] : at[row + 1]].tobytes() for x, at in parts), digest_size=8).digest()


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
    problem, advice = f"train_dataset has {', '.join(rows.column_names)}", "add the column, pass texts in place of ids"
    if isinstance(rows, SeededDataset):
        problem = f"the rows of a {type(rows).__name__} are drawn anew in every epoch"
        advice = "train on texts with view='identity'"
    raise ValueError(
        "train_sampling_strategy='group_by_length' needs the number of tokens of each training row in the column "
        f"{args.length_column_name!r}, and {problem}: {advice}, or use train_sampling_strategy='random'"
    )


def check_sharding(trainer: "SimCSETrainer") -> None:
    """Check that FSDP can shard the model, and warn if Accelerate ignores FSDP.

    Args:
        trainer (`SimCSETrainer`): The trainer that is about to train.

    Raises:
        ValueError: If FSDP or DeepSpeed is combined with an adapter, FSDP with an objective that shares the encoder's
            weights, or FSDP2 with the masked-LM loss.
    """
    is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    refuse(
        {
            "an adapter does not work with FSDP and DeepSpeed, because its checkpoints are merged from whole weights. "
            "Train with DistributedDataParallel (accelerate_configs/multi_gpu.yaml).": (
                is_sharded and has_adapter(trainer.model)
            )
        }
    )
    if not trainer.is_fsdp_enabled:
        if os.environ.get("ACCELERATE_USE_FSDP") == "true":
            logger.warning(
                "FSDP was requested, but Accelerate ignores it on this device: each process holds the whole model."
            )
        return
    version = getattr(getattr(trainer.accelerator.state, "fsdp_plugin", None), "fsdp_version", None)
    encoder = {id(parameter) for parameter in trainer.model.base_model.parameters()}
    settings, instead = (
        trainer.model.settings,
        "Train with DistributedDataParallel (accelerate_configs/multi_gpu.yaml).",
    )
    refuse(
        {
            f"objective {settings.objective!r} does not work with FSDP, which shards the layers of the encoder that "
            f"the objective also uses. {instead}": (
                any(id(parameter) in encoder for parameter in trainer.contrastive_objective.parameters())
            ),
            "do_mlm does not work with FSDP2: the masked-LM head shares its weights with the embeddings, and FSDP2 "
            f"would put the two into different groups. {instead}": version == 2 and settings.do_mlm,
        }
    )


def check_dropout(trainer: "SimCSETrainer", row: Mapping[str, Any]) -> None:
    """Check that the two views of a sentence differ, and that dropout of attention weights is part of it.

    With equal views there is nothing to learn from (SimCSE, Table 3, p = 0). With less dropout than the config says,
    another method would be trained without notice: some attention functions accept a rate and ignore it.

    Args:
        trainer (`SimCSETrainer`): The trainer that is about to train.
        row (`Mapping[str, Any]`): A training row of a single sentence.

    Raises:
        ValueError: If the views are equal, or the attention implementation ignores its dropout rate.
    """
    config = trainer.model.config
    rates = dict(sorted(dropout_rates(config).items()))
    if _views_are_equal(trainer, row):
        described = ", ".join(f"{name} = {rate}" for name, rate in rates.items()) or "no such setting"
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
            "for BERT, attention_dropout=0.1, embedding_dropout=0.1, mlp_dropout=0.1 for ModernBERT, or "
            "attention_dropout=0.3 for Llama (--dropout on the command line); or train on pairs. To run Table 3's row "
            "p = 0, set allow_zero_dropout."
        )
    requested = {name: rate for name, rate in rates.items() if "attention" in name and rate}
    described = ", ".join(f"{name} = {rate}" for name, rate in requested.items())
    zero = ", ".join(f"{name}=0.0" for name in requested)
    problem = (
        f"the attention implementation {config._attn_implementation} drops no attention weights, although the config "
        f"says {described}: unsupervised SimCSE learns from dropout, and would lose this part of it. Load the model "
        'with attn_implementation="sdpa", "eager" or "flash_attention_2"; or request no attention dropout '
        f"(from_pretrained(..., {zero})); or train on pairs."
    )
    refuse({problem: requested and _views_are_equal(trainer, row, only_attention_dropout=True)})


@torch.no_grad()
def _views_are_equal(trainer: "SimCSETrainer", row: Mapping[str, Any], only_attention_dropout: bool = False) -> bool:
    """Return whether a row's views have one embedding in a training step.

    With `only_attention_dropout`, all other dropout is switched off. The model and the random state stay as they were.
    """
    model = trainer.model
    rows = trainer.data_collator([dict(row)] * 8)  # At low rates, one text may be spared by chance.
    ids, mask = (rows[name].to(model.device) for name in ("input_ids", "attention_mask"))
    training, unpadded = model.training, model.unpadded
    if trainer.args.torch_compile or trainer.args.gradient_checkpointing:  # Training will pad, once they are set up.
        model.unpadded = False
    with ExitStack() as on_exit:
        if only_attention_dropout:  # Attention weights have an axis of heads, and so four axes; other states fewer.
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    hook = module.register_forward_hook(lambda _, inputs, out: out if out.dim() == 4 else inputs[0])
                    on_exit.callback(hook.remove)
        on_exit.enter_context(preserve_random_state(model.device))
        on_exit.enter_context(trainer.compute_loss_context_manager())
        try:
            embeddings = model.train().embed(ids.flatten(0, 1), mask.flatten(0, 1)).unflatten(0, ids.shape[:2])
        finally:
            model.train(training)
            model.unpadded = unpadded
    return torch.equal(embeddings[:, 0], embeddings[:, 1])
