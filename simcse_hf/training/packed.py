"""A Trainer that packs batches into buckets of fixed shape and compiles the step, where a run allows it."""

from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers.utils import logging

from ..data.buckets import SAMPLED_ROWS, BucketPlan, PackedCollator, choose_buckets
from ..data.collator import ContrastiveCollator
from ..data.views import MASKED_LM_VIEWS
from ..models.modeling import ContrastiveModel
from ..models.packed import PackedStep
from ..objectives.info_nce import PLAIN_LOGITS
from ..objectives.simcse import SimCSEObjective
from ..ops.flash import supports_flash
from ..ops.unpadded import counts_tokens, has_bert_layers
from .base import ContrastiveTrainer, prepared_objective
from .mined_rows import MinedRows
from .rows import padded_length

logger = logging.get_logger(__name__)

#: Arguments of `torch.compile` where there are no CUDA graphs: the same graphs, for tests, without a compiler.
COMPILE_ON_CPU = {"backend": "aot_eager"}
_POOLERS = ("cls", "cls_before_pooler")
_AMPERE = (8, 0)  # FlashAttention needs this compute capability


class PackedTrainer(ContrastiveTrainer):
    """[`ContrastiveTrainer`] with `packed_buckets`: batches of fixed shape, and one compiled graph for each shape.

    Packing changes neither the loss nor the gradient, only how fast they are computed. A run that cannot be packed
    trains as usual and says why.
    """

    _bucket_plan: BucketPlan | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers does, on packed batches if `packed_buckets` asks for them and the run allows it.

        Args:
            args (`Any`): As in transformers.
            kwargs (`Any`): As in transformers.

        Returns:
            `TrainOutput`: As in transformers.
        """
        self._bucket_plan = plan_buckets(self)
        if self._bucket_plan is not None:
            options = {"mode": "reduce-overhead"} if self.args.device.type == "cuda" else COMPILE_ON_CPU
            self.model.packed_step = PackedStep(self.model, **options)
        try:
            return super().train(*args, **kwargs)
        finally:
            if self._bucket_plan is not None:
                self._bucket_plan = self.model.packed_step = None  # frees the graphs

    def get_train_dataloader(self) -> DataLoader:
        """Make the data loader of training; its workers pack the batches."""
        if self._bucket_plan is None:
            return super().get_train_dataloader()
        collator = cast(ContrastiveCollator, self.data_collator)
        self.data_collator = PackedCollator(collator, self._bucket_plan, counts_tokens(self.model.base_model))
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = collator  # evaluation pads

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Take the gradient of a batch."""
        if self._bucket_plan is not None and self.args.gradient_accumulation_steps > 1:
            # Without a gradient to add to, autograd keeps the graph's own memory as the gradient, which the next batch
            # of the same step overwrites.
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return super().training_step(model, inputs, num_items_in_batch)


def plan_buckets(trainer: ContrastiveTrainer) -> BucketPlan | None:
    """Decide whether a run is packed, and into which buckets; log the decision in one line.

    Args:
        trainer (`ContrastiveTrainer`): The trainer that is about to train.

    Returns:
        `BucketPlan` or `None`: The shapes, or `None` if the run is not packed.
    """
    args = trainer.args
    if args.packed_buckets == "off":
        return None
    if args.packed_buckets == "auto" and args.device.type != "cuda":
        logger.info("packed_buckets: off, because they save launch overhead, which only a GPU has.")
        return None
    reason = why_not_packed(trainer)
    if reason is not None:
        logger.warning(f"packed_buckets: off, because {reason}. The run trains without them, at the usual speed.")
        return None
    totals, columns = _tokens_of_rows(trainer)
    rows, longest = args.train_batch_size, _longest(trainer)
    sizes = args.bucket_sizes() or choose_buckets(totals, rows, rows * columns * longest, args.seed)
    logger.info(
        f"packed_buckets: {', '.join(map(str, sizes))} tokens for {rows} rows of {columns} sentences. Batches with "
        "more tokens and incomplete batches are trained without a bucket."
    )
    return BucketPlan(sizes, rows, columns, longest)


def why_not_packed(trainer: ContrastiveTrainer) -> str | None:
    """Return why a run cannot be packed, as the end of a sentence, or `None` if it can."""
    return _reason_of_the_method(trainer) or _reason_of_the_data(trainer) or _reason_of_the_device(trainer)


def _reason_of_the_method(trainer: ContrastiveTrainer) -> str | None:
    model, args = trainer.model, trainer.args
    if not isinstance(model, ContrastiveModel):
        return f"the model is wrapped in a {type(model).__name__}"
    objective, settings = prepared_objective(model), model.settings
    if args.gradcache_chunk_size is not None:
        return "gradcache_chunk_size encodes a batch in chunks"
    if settings.do_mlm:
        return "the masked-LM loss (do_mlm) reads the tokens of padded batches"
    if type(objective) is not SimCSEObjective or objective.needs_text_ids:
        return f"only the objective simcse without mask_duplicates supports them, not {settings.objective!r}"
    if model.second_encoder is not None:
        return "there are two encoders"
    if settings.pooler_type not in _POOLERS:
        return f"only the poolers {' and '.join(_POOLERS)} support them, not {settings.pooler_type!r}"
    if args.torch_compile or args.pad_to_max_length:
        return f"{'torch_compile' if args.torch_compile else 'pad_to_max_length'} asks for padded batches"
    if not model.runs_unpadded or not has_bert_layers(model.base_model):
        return "the encoder runs with padding, or has other layers than BERT"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "FSDP and DeepSpeed gather weights inside the step"
    return None


def _reason_of_the_data(trainer: ContrastiveTrainer) -> str | None:
    args = trainer.args
    if args.view == "fixed_mask" or args.view in MASKED_LM_VIEWS:
        return f"the view {args.view} is made from padded batches"
    if isinstance(trainer.train_dataset, MinedRows):
        return "mined negatives may be exchanged after a batch was packed"
    if type(trainer.data_collator) is not ContrastiveCollator:
        return f"the collator is a {type(trainer.data_collator).__name__}"
    if args.train_sampling_strategy != "random" or args.auto_find_batch_size:
        return "the batches are not drawn at random, or their size may change (auto_find_batch_size)"
    _, columns = _tokens_of_rows(trainer, sample=1)
    candidates = args.train_batch_size * args.world_size * (columns - 1)
    if args.train_batch_size * candidates > PLAIN_LOGITS:
        return f"a batch of {args.train_batch_size} rows against {candidates} sentences is computed in chunks"
    return None


def _reason_of_the_device(trainer: ContrastiveTrainer) -> str | None:
    args = trainer.args
    if args.device.type != "cuda":
        return None  # To try them. There is no reason to use them on a CPU.
    if not (args.bf16 or args.fp16 or trainer.model.dtype in (torch.bfloat16, torch.float16)):
        return "the run is in float32, and FlashAttention needs bf16 or fp16"
    if torch.cuda.get_device_capability(args.device) < _AMPERE:
        return f"{torch.cuda.get_device_name(args.device)} is older than Ampere, which FlashAttention needs"
    if not _flash_works(trainer):
        return "torch's flash attention does not work here"
    return None


def _flash_works(trainer: ContrastiveTrainer) -> bool:
    args, config = trainer.args, trainer.model.config
    dtype = torch.bfloat16 if args.bf16 or trainer.model.dtype == torch.bfloat16 else torch.float16
    size = config.hidden_size // config.num_attention_heads
    return supports_flash(torch.empty(1, 1, size, device=args.device, dtype=dtype))


def _longest(trainer: ContrastiveTrainer) -> int:
    return padded_length(trainer.known_rows, trainer.args, trainer.model.settings.template_edges)


def _tokens_of_rows(trainer: ContrastiveTrainer, sample: int = SAMPLED_ROWS) -> tuple[np.ndarray, int]:
    """Return the number of tokens of each row of a sample, repeated sentences counted, and the sentences of a row."""
    rows = trainer.known_rows
    assert rows is not None
    chosen = np.random.default_rng(trainer.args.seed).choice(len(rows), min(sample, len(rows)), replace=False)
    sentences = [row["input_ids"] for row in rows.__getitems__(sorted(chosen.tolist()))]
    repeat = prepared_objective(trainer.model).num_views if len(sentences[0]) == 1 else 1
    return np.array([repeat * sum(map(len, row)) for row in sentences]), repeat * len(sentences[0])
