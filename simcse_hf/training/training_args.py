"""Arguments of a contrastive training run."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

from ..data.views import VIEWS


@dataclass
class SimCSETrainingArguments(TrainingArguments):
    """transformers' TrainingArguments with what contrastive training adds.

    Defaults that differ: `remove_unused_columns=False` (the collator chooses), `ddp_find_unused_parameters=False`
    (every trainable parameter is used), `dataloader_pin_memory` off on CPUs and `accelerator_config.non_blocking` on
    where memory is pinned, `logging_nan_inf_filter=False` (it hides a broken loss, which ends a run here, and makes
    the host wait for the device every step), and `metric_for_best_model`, where a best model is asked for and there is
    a dev set, is its Spearman correlation.

    Args:
        max_seq_length (`int`, *optional*, defaults to 32):
            Tokens a text is cut to, special tokens included.
        pad_to_max_length (`bool`, *optional*, defaults to `False`):
            Pad every batch to `max_seq_length` instead of its longest text.
        view (`str`, *optional*):
            How the positive of a single sentence comes about: `"identity"` (the sentence again, under another dropout
            mask), `"fixed_mask"` (under the same mask; "fixed 0.1" in Table 3 of the paper), a discrete augmentation
            (Table 1; see `simcse_hf.data.views`), or a later sentence of the document (Table 2). Default: that of the
            objective, `"identity"` for most.
        view_rate (`float`, *optional*):
            Share of the words that an augmentation changes; default: that of the view.
        view_both (`bool`, *optional*, defaults to `False`):
            Augment the anchor too, as non-contrastive training does.
        view_model (`str`, *optional*):
            Masked language model of the views `"mlm"` and `"crop+mlm"`; default: the one that training starts from.
        mlm_probability (`float`, *optional*, defaults to 0.15):
            Share of the tokens that the auxiliary masked-LM loss predicts, for models loaded with `do_mlm=True`.
        gradcache_chunk_size (`int`, *optional*):
            Rows of the batch that are in the encoder at a time: with it a batch may have any size, at the price of a
            second forward pass (see [`CachedBatch`]). Default: the whole batch, in one pass.
        preprocessing_num_workers (`int`, *optional*):
            Processes to tokenise with.
    """

    max_seq_length: int = field(default=32, metadata={"help": "Tokens a text is cut to, special tokens included."})
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad every batch to max_seq_length instead of its longest text."}
    )
    view: str | None = field(
        default=None,
        metadata={
            "help": "Positive of a single sentence: identity (another dropout mask), fixed_mask (the same mask), an "
            "augmentation, or a later sentence of the document. Default: that of the objective.",
            "choices": VIEWS,
        },
    )
    view_rate: float | None = field(
        default=None, metadata={"help": "Share of the words an augmentation changes; default: that of the view."}
    )
    view_both: bool = field(default=False, metadata={"help": "Augment the anchor too, not only the positive."})
    view_model: str | None = field(
        default=None, metadata={"help": "Masked language model of the views mlm and crop+mlm; default: the start."}
    )
    mlm_probability: float = field(
        default=0.15, metadata={"help": "Share of the tokens that the auxiliary masked-LM loss predicts."}
    )
    gradcache_chunk_size: int | None = field(
        default=None,
        metadata={"help": "Rows in the encoder at a time: batches of any size for a second forward pass (GradCache)."},
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes to tokenise with."})
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Remove columns the model's forward does not know."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Leave losses that are not finite out of the log; here they end the run."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Passed to DistributedDataParallel; every trainable parameter is used."}
    )

    def __getstate__(self) -> dict:
        """Without the access token: the Trainer pickles its arguments beside the model, and pushes them with it."""
        return {**self.__dict__, "hub_token": None}

    def __post_init__(self):
        chosen = self.accelerator_config is not None
        super().__post_init__()
        if self.view is not None and self.view not in VIEWS:
            raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {self.view!r}")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"mlm_probability must lie between 0 and 1, got {self.mlm_probability}")
        if self.gradcache_chunk_size is not None and self.gradcache_chunk_size < 1:
            raise ValueError(f"gradcache_chunk_size must be at least 1, got {self.gradcache_chunk_size}")
        if self.max_seq_length < 3:
            raise ValueError(f"max_seq_length must be at least 3 ([CLS], a token, [SEP]), got {self.max_seq_length}")
        if self.fp16 and self.device.type == "cpu":
            raise ValueError("fp16 does nothing on a CPU: use bf16, or neither")
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # there is no device to copy to
        elif self.dataloader_pin_memory and not chosen:
            self.accelerator_config.non_blocking = True  # or every batch waits for the step before it
        if self.n_gpu > 1:
            raise ValueError(
                f"{self.n_gpu} GPUs are visible to one process: nn.DataParallel would split the batch and with it the "
                "negatives. Start one process a GPU (accelerate launch --num_processes "
                f"{self.n_gpu} ...) or show it one (CUDA_VISIBLE_DEVICES=0)."
            )
