"""The arguments of a contrastive training run."""

import os
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import SaveStrategy
from transformers.utils import logging

from ..data.mixture import SHARES
from ..data.views import VIEWS
from ..evaluation.metrics import higher_is_better
from ..ops.cpu import bfloat16_slowdown, has_only_cpu, lacks_bfloat16
from ..ops.errors import refuse
from .parser import option

logger = logging.get_logger(__name__)

#: The columns of a row that may have a prompt and a length of their own; `negative` stands for all hard negatives.
COLUMNS = ("anchor", "positive", "negative")


@dataclass
class SimCSETrainingArguments(TrainingArguments):
    """transformers' TrainingArguments with what contrastive training adds.

    Defaults that differ from transformers': `remove_unused_columns=False` (the collator selects what it needs),
    `ddp_find_unused_parameters=False` (every trainable parameter is used), `dataloader_pin_memory` off on CPUs and
    `accelerator_config.non_blocking` on where memory is pinned, and `logging_nan_inf_filter=False` (the filter hides a
    broken loss, which ends a run here, and makes the host wait for the device in every step). With
    `load_best_model_at_end` and a dev set, `metric_for_best_model` is its Spearman correlation by default.

    Args:
        max_seq_length (`int`, *optional*):
            Longer texts are truncated to this number of tokens, special tokens included. By default a checkpoint of
            this package keeps the number that it was trained with; otherwise 32. A table gives columns different
            numbers: `{"anchor": 32, "positive": 256}`, where the hard negatives have that of `negative` or, without
            one, of `positive`.
        prompts (`dict[str, str]`, *optional*):
            What is put before the texts of a column: `{"anchor": "query: ", "positive": "passage: "}`, and likewise
            `negative`. The model is saved with the first two as its prompts `query` and `document`, which
            `encode_query` and `encode_document` use. By default the model's default prompt stands before all texts.
        datasets (`dict[str, dict]`, *optional*):
            What is special to a data set of `train_dataset={"name": rows}`, by its name: `objective` and
            `objective_options`, `prompts`, `max_seq_length`, and `share`, a number. On the command line it is a table
            in a YAML file, where a data set also names its file, see `--train_file`.
        dataset_shares (`str`, *optional*, defaults to `"proportional"`):
            How often a batch comes from each data set: in proportion to its rows, or from all in turn
            (`"round_robin"`). The numbers `share` in `datasets` take its place.
        pad_to_max_length (`bool`, *optional*, defaults to `False`):
            Pad every batch to `max_seq_length` instead of its longest text.
        view (`str`, *optional*):
            How the positive of a single sentence is made: `"identity"` (the sentence again, under another dropout
            mask), `"fixed_mask"` (under the same mask; "fixed 0.1" in Table 3 of SimCSE), a discrete augmentation
            (Table 1; see `simcse_hf.data.views`), or a later sentence of the document (Table 2). The default is the
            objective's, `"identity"` for most.
        view_rate (`float`, *optional*):
            Share of the words that an augmentation changes. The default is the view's.
        view_both (`bool`, *optional*, defaults to `False`):
            Augment the anchor too, as non-contrastive training does.
        view_model (`str`, *optional*):
            Masked language model of the views `"mlm"` and `"crop+mlm"`. The default is the starting model.
        mlm_probability (`float`, *optional*, defaults to `0.15`):
            Share of the tokens that the auxiliary masked-LM loss predicts, for models loaded with `do_mlm=True`.
        gradcache_chunk_size (`int`, *optional*):
            Rows that are in the encoder at a time; of texts shorter than the others there are more. A
            batch may then have any size, at the price of a second forward pass (see [`CachedBatch`]). By default the
            whole batch is encoded in one pass.
        allow_zero_dropout (`bool`, *optional*, defaults to `False`):
            Train although both views of a sentence are equal (Table 3, p = 0), which is otherwise refused.
        allow_changes (`bool`, *optional*, defaults to `False`):
            Resume although settings that decide the result differ from the checkpoint's, which is otherwise refused.
            The optimizer takes the new ones, and checkpoints and results.json record the changes.
        stop_on_collapse (`bool`, *optional*, defaults to `False`):
            End the run with an error if the embeddings collapse to a point or to a few directions (see
            [`CollapseWatch`]), which otherwise gives a warning.
        teacher (`list[str]`, *optional*):
            Frozen models, or folders of their vectors for the training rows, that `objective="distill"` learns from;
            see [`RowVectors`]. Several are weighted equally, or as in `["a:0.33", "b:0.67"]`.
        guide (`list[str]`, *optional*):
            Frozen models, or folders of vectors, whose similarities say which candidates of the contrastive loss are
            false negatives; see [`InfoNCE`].
        batch_neighbors (`int`, *optional*, defaults to `0`):
            After each row, put up to so many rows into the batch that the teacher (or else the guide) finds the most
            similar by their first texts. Every row is still drawn once an epoch.
        lora_r (`int`, *optional*):
            Freeze the encoder and train a LoRA adapter of this rank with the head. The merged model is saved.
        lora_alpha (`int`, *optional*):
            The adapter's updates are scaled by `lora_alpha / lora_r`. Defaults to twice `lora_r`.
        lora_dropout (`float`, *optional*, defaults to `0.0`):
            Dropout rate inside the adapter.
        lora_targets (`list[str]`, *optional*):
            Names of the layers that get an adapter. Defaults to all linear layers of the encoder.
        save_adapter (`bool`, *optional*, defaults to `False`):
            Save the adapter of the model in place of the merged model.
        shuffle_buffer (`int`, *optional*, defaults to `10000`):
            Rows of a stream (`--streaming`) that are read and shuffled together. Other training rows are shuffled as
            a whole.
        preprocessing_num_workers (`int`, *optional*):
            Number of processes that tokenise.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            See transformers.
        logging_nan_inf_filter (`bool`, *optional*, defaults to `False`):
            See transformers.
        ddp_find_unused_parameters (`bool`, *optional*, defaults to `False`):
            See transformers.
        dataloader_num_workers (`int`, *optional*):
            Processes that make batches. By default 4 on a GPU if the machine has as many cores for each of its GPUs,
            so that a step never waits for the collator, and 0 on a CPU and for streams.
    """

    max_seq_length: int = option(
        None,
        "Longer texts are truncated to so many tokens, by column as anchor=32,positive=256 (a table in YAML); "
        "default: the checkpoint's, else 32.",
    )  # an integer or a table after __post_init__
    prompts: list[str] | None = option(
        None,
        "Put texts before those of a column, such as 'anchor=query: ' 'positive=passage: ' (a table in YAML), "
        "and save them as the model's prompts query and document; default: the model's default prompt before all.",
    )  # a table after __post_init__
    datasets: dict | str | None = option(
        None,
        "Several data sets, in a YAML file: a table of tables with train_file or dataset_name, columns, objective, "
        "objective_options, prompts, max_seq_length and share.",
    )
    dataset_shares: str = option(
        SHARES[0],
        "How often a batch comes from each of several data sets, without numbers share.",
        choices=SHARES,
    )
    pad_to_max_length: bool = option(False, "Pad every batch to max_seq_length instead of its longest text.")
    view: str | None = option(
        None,
        "How the positive of a single sentence is made: identity (another dropout mask), fixed_mask (the "
        "same mask), an augmentation, or a later sentence of the document; default: the objective's.",
        choices=VIEWS,
    )
    view_rate: float | None = option(None, "Share of the words that an augmentation changes; default: the view's.")
    view_both: bool = option(False, "Augment the anchor too, not only the positive.")
    view_model: str | None = option(
        None, "Masked language model of the views mlm and crop+mlm; default: the starting model."
    )
    mlm_probability: float = option(0.15, "Share of the tokens that the auxiliary masked-LM loss predicts.")
    gradcache_chunk_size: int | None = option(
        None, "Encode the batch in chunks of so many rows, for batches of any size (GradCache)."
    )
    allow_zero_dropout: bool = option(
        False, "Train although both views of a sentence are equal, as with --dropout 0 (Table 3, p = 0)."
    )
    allow_changes: bool = option(
        False, "Resume although settings, texts or weights differ from those of the checkpoint, and record it."
    )
    stop_on_collapse: bool = option(False, "End the run if the embeddings collapse to a point or to a few directions.")
    teacher: list[str] | None = option(
        None, "Models, or folders of vectors, that --objective distill learns from; with weights as NAME:WEIGHT."
    )
    guide: list[str] | None = option(
        None, "Models, or folders of vectors, by which false negatives are left out of the contrastive loss."
    )
    batch_neighbors: int = option(
        0, "Put so many rows that the teacher or guide finds the most similar beside a row in the batch."
    )
    lora_r: int | None = option(None, "Freeze the encoder and train a LoRA adapter of this rank (extra lora).")
    lora_alpha: int | None = option(None, "Scale of the adapter's updates, times lora_r; default: twice lora_r.")
    lora_dropout: float = option(0.0, "Dropout rate inside the adapter.")
    lora_targets: list[str] | None = option(
        None, "Names of the layers that get an adapter, such as query value; default: all linear layers."
    )
    save_adapter: bool = option(False, "Save the adapter instead of the merged model.")
    shuffle_buffer: int = option(10_000, "With --streaming: rows that are read and shuffled together.")
    preprocessing_num_workers: int | None = option(None, "Number of processes that tokenise.")
    remove_unused_columns: bool = option(False, "Remove columns that the model's forward pass does not take.")
    logging_nan_inf_filter: bool = option(
        False, "transformers' filter of the log. A loss that is not finite ends the run in any case."
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Passed to DistributedDataParallel; every trainable parameter is used."
    )

    dataloader_num_workers: int | None = option(
        None, "Processes that make batches; default: up to 4 on a GPU, 0 on a CPU."
    )  # type: ignore[assignment]  # an integer after __post_init__

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the access token: the Trainer pickles its arguments beside the model, and pushes them with it."""
        return {**self.__dict__, "hub_token": None}

    @property
    def rows_seed(self) -> int:
        """The seed of what is drawn from training rows: their order, views and spans."""
        return self.seed if self.data_seed is None else self.data_seed

    def copy(self) -> Self:
        """Return a copy that may be changed, with the access token."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __post_init__(self) -> None:
        """Check the values and set the defaults that depend on the device.

        Raises:
            ValueError: If a value cannot work.
        """
        has_accelerator_config = self.accelerator_config is not None
        #: Whether nobody has chosen a length: the trainer then takes that of the model.
        self.length_is_default = self.max_seq_length is None
        #: Whether the view was left open: it is then the objective's, of a data set the one of its own objective.
        self.view_is_default = self.view is None
        self.max_seq_length = 32 if self.max_seq_length is None else self.max_seq_length
        if isinstance(self.prompts, list):
            self.prompts = dict(word.partition("=")[::2] for word in self.prompts)  # type: ignore[assignment]
        is_open, self.best_direction = self.metric_for_best_model is None, self.greater_is_better
        if not is_open and self.greater_is_better is None:
            self.greater_is_better = higher_is_better(str(self.metric_for_best_model))
        #: Whether the number of loader workers was left open; a stream then sets it to 0.
        self.loader_workers_are_default = self.dataloader_num_workers is None
        if (self.bf16 or self.bf16_full_eval) and has_only_cpu():
            self.use_cpu = True  # transformers refuses bf16 on a CPU without it
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = 0 if self.use_cpu else default_loader_workers()
        super().__post_init__()
        #: Whether the trainer may replace `metric_for_best_model`: where one is needed, transformers takes "loss".
        self.best_metric_is_default = is_open and (
            self.metric_for_best_model is not None or self.save_strategy == SaveStrategy.BEST
        )
        problems = {
            f"view must be one of {', '.join(VIEWS)}, got {self.view!r}": self.view not in (None, *VIEWS),
            f"mlm_probability must lie between 0 and 1, got {self.mlm_probability}": not 0 < self.mlm_probability < 1,
            f"gradcache_chunk_size must be at least 1, got {self.gradcache_chunk_size}": (
                self.gradcache_chunk_size is not None and self.gradcache_chunk_size < 1
            ),
            "neftune_noise_alpha does not work with gradcache_chunk_size, because its noise depends on the length of "
            "a padded batch, and so on the chunks: leave one of the two out": (
                self.neftune_noise_alpha is not None and self.gradcache_chunk_size is not None
            ),
            f"per_device_train_batch_size must be at least 1, got {self.per_device_train_batch_size}": (
                self.per_device_train_batch_size < 1
            ),
            f"seed must be at least 0, got {self.seed}": self.seed < 0,
            f"shuffle_buffer must be at least 1, got {self.shuffle_buffer}": self.shuffle_buffer < 1,
            f"label_smoothing_factor = {self.label_smoothing_factor} has no effect, because contrastive objectives "
            "have no labels: leave it out": self.label_smoothing_factor,
            "fp16 does nothing on a CPU: use bf16, or neither": self.fp16 and self.device.type == "cpu",
            f"{self.n_gpu} GPUs are visible to one process: nn.DataParallel would split the batch and with it the "
            f"negatives. Start one process a GPU (accelerate launch --num_processes {self.n_gpu} ...) or show it one "
            "(CUDA_VISIBLE_DEVICES=0).": self.n_gpu > 1,
        }
        refuse(problems | self._problems_of_columns() | self._problems_of_lora())
        if self.bf16 and self.device.type == "cpu" and lacks_bfloat16():
            logger.warning_once(
                "this processor has no bfloat16 instructions: a product of matrices takes "
                f"{bfloat16_slowdown():.0f} times as long as in float32. Train without bf16 (--bf16 false)"
            )
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # There is no device to copy to.
        elif self.dataloader_pin_memory and not has_accelerator_config:
            # Otherwise each batch waits for the previous step.
            cast(AcceleratorConfig, self.accelerator_config).non_blocking = True

    def _problems_of_lora(self) -> dict[str, Any]:
        return {
            f"lora_r must be at least 1, got {self.lora_r}": self.lora_r is not None and self.lora_r < 1,
            f"lora_dropout must be at least 0 and below 1, got {self.lora_dropout}": not 0 <= self.lora_dropout < 1,
            "lora_alpha, lora_dropout and lora_targets need lora_r: set it, or leave them out": (
                self.lora_r is None and (self.lora_alpha or self.lora_dropout or self.lora_targets)
            ),
        }

    def of_datasets(self) -> dict[str, Self]:
        """Return the arguments of each data set by its name: copies with its own prompts and length."""
        twins = {name: self.copy() for name in self.datasets or ()}
        for name, own in cast(dict, self.datasets or {}).items():
            twins[name].__dict__.update({key: own[key] for key in ("prompts", "max_seq_length") if key in own})
            twins[name].datasets = None
            refuse({f"data set {name!r}: {x}": bad for x, bad in twins[name]._problems_of_columns().items()})
        return twins

    @staticmethod
    def by_column(value: Any) -> list[Any]:
        """Return the value of an anchor, a positive and a negative, which a table may give for each of them."""
        if not isinstance(value, dict):
            return [value] * len(COLUMNS)
        nothing = type(next(iter(value.values()), ""))()
        positive = value.get("positive", nothing)
        return [value.get("anchor", nothing), positive, value.get("negative", positive)]

    def _problems_of_columns(self) -> dict[str, Any]:
        """Return what is wrong with the data sets, the prompts and the lengths, by the message about it."""
        tables: list[Any] = [self.prompts, self.max_seq_length]
        columns = [name for table in tables if isinstance(table, dict) for name in table]
        own = self.datasets.values() if isinstance(self.datasets, dict) else [self.datasets]
        return {
            f"datasets must be a table with a table of settings for each data set, got {self.datasets!r:.100}": (
                self.datasets is not None and not all(isinstance(settings, dict) for settings in own)
            ),
            f"max_seq_length by column needs a number for anchor and one for positive, got {self.max_seq_length}": (
                isinstance(self.max_seq_length, dict) and {"anchor", "positive"} - self.max_seq_length.keys()
            ),
            f"max_seq_length must be at least 3 ([CLS], a token, [SEP]), got {self.max_seq_length}": not all(
                isinstance(length, int) and length >= 3 for length in self.by_column(self.max_seq_length)
            ),
            f"prompts and max_seq_length have values for the columns {', '.join(COLUMNS)}, got {', '.join(columns)}": (
                set(columns) - set(COLUMNS)
            ),
        }


def default_loader_workers() -> int:
    """Return how many processes make batches: up to 4 for each GPU, and none without a GPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return min(4, (os.cpu_count() or 1) // gpus) if gpus else 0
