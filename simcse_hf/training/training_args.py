"""The arguments of a contrastive training run, as the user wrote them."""

import os
from dataclasses import dataclass
from typing import Any

import yaml
from transformers import TrainingArguments
from transformers.utils import logging

from ..data.samplers import BATCH_SAMPLERS, SHARES
from ..data.views import VIEW_CLASSES
from ..kernels.cpu import bfloat16_slowdown, has_only_cpu, lacks_bfloat16
from ..models.settings import Values
from ..runtime.errors import check_values
from ..runtime.messages import LAUNCHED, check_together
from .parser import option

logger = logging.get_logger(__name__)


@dataclass
class SimCSETrainingArguments(TrainingArguments):
    """transformers' TrainingArguments with what contrastive training adds.

    Defaults that differ from transformers': `remove_unused_columns=False` (the collator selects what it needs),
    `ddp_find_unused_parameters=False` (every trainable parameter is used), `dataloader_pin_memory` off on CPUs and
    `accelerator_config.non_blocking` on where memory is pinned, and `logging_nan_inf_filter=False` (the filter hides a
    broken loss, which ends a run here, and makes the host wait for the device in every step).

    What nobody has set is `None`: the Trainer decides it in a copy of these arguments, as `models.resolve` says, and
    never changes the caller's object. With `load_best_model_at_end` and a dev set, `metric_for_best_model` is its
    Spearman correlation by default.

    What each field means stands beside it; `simcse-hf train unsup --help_all` prints it for all of them.

    Examples:
        >>> from simcse_hf import SimCSETrainingArguments
        >>> args = SimCSETrainingArguments("outputs/new", learning_rate=3e-5, view="delete_one_word")
        >>> args.view, args.max_seq_length  # what nobody has set
        ('delete_one_word', None)
    """

    _argument_group_name = "training"

    max_seq_length: int | None = option(
        None,
        "Number of tokens, special tokens included, to which longer texts are cut. Columns may differ: "
        "anchor=32,positive=256 (a table in YAML); without negative=, hard negatives have the length of positive; "
        "default: the checkpoint's, else 32.",
    )
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
        "How often a batch comes from each of several data sets: in proportion to its rows, or from all in turn "
        "(round_robin). If the data sets have a share, that decides.",
        choices=SHARES,
    )
    batch_sampler: str = option(
        BATCH_SAMPLERS[0],
        "How the rows of a batch of all processes are drawn: in any order (batch_sampler), or so that no text stands "
        "in two of them (no_duplicates). Rows that then fit into no whole batch are left out of the epoch.",
        choices=BATCH_SAMPLERS,
    )
    view: str | None = option(
        None,
        "How the positive of a single sentence is made: identity (another dropout mask), fixed_mask (the "
        "same mask), an augmentation, or a later sentence of the document; default: the objective's.",
        choices=VIEW_CLASSES,
    )
    view_rate: float | None = option(None, "Share of the words that an augmentation changes; default: the view's.")
    view_both: bool = option(False, "Augment the anchor too, as non-contrastive training does.")
    mlm_probability: float = option(0.15, "Share of the tokens that the auxiliary masked-LM loss predicts.")
    gradcache_chunk_size: int | None = option(
        None,
        "Encode a batch of any size in chunks of this many rows, at the price of a second forward pass (GradCache); "
        "default: the whole batch in one pass.",
    )
    allow_changes: bool = option(
        False, "Resume although settings, texts or weights differ from those of the checkpoint, and record it."
    )
    stop_on_collapse: bool = option(
        False,
        "End the run if the embeddings collapse to a point or to a few directions; default: only warn.",
    )
    teacher: list[str] | None = option(
        None,
        "Frozen models, or folders of their vectors for the training rows, that --objective distill learns from, "
        "weighted equally or as NAME:WEIGHT.",
    )
    guide: list[str] | None = option(
        None,
        "Frozen models, or folders of vectors, whose similarities say which candidates of the contrastive loss are "
        "false negatives.",
    )
    lora_r: int | None = option(
        None, "Freeze the encoder and train a LoRA adapter of this rank with the head (extra lora)."
    )
    lora: dict | str | None = option(
        None,
        'Arguments of peft\'s LoraConfig, such as \'{"r": 8, "lora_alpha": 32}\' (a table in YAML); default: '
        "lora_alpha is twice r, and all linear layers of the encoder get an adapter.",
    )
    save_adapter: bool = option(False, "Save the adapter of the model in place of the merged model.")
    remove_unused_columns: bool = option(False, "Without effect: batches hold what the objective reads.")
    logging_nan_inf_filter: bool = option(
        False, "transformers' filter of the log. A loss that is not finite ends the run in any case."
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Passed to DistributedDataParallel; every trainable parameter is used."
    )

    eval_on_start: bool | None = option(  # type: ignore[assignment]
        None, "Evaluate before the first step; default: if there is a dev set, and the run evaluates."
    )
    dataloader_num_workers: int | None = option(  # type: ignore[assignment]
        None,
        "Processes that make batches; default: 4 on a GPU if the machine has as many cores for each of its GPUs, 0 on "
        "a CPU and for streams.",
    )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the access token: the Trainer pickles its arguments beside the model, and pushes them with it."""
        return {**self.__dict__, "hub_token": None}

    def __copy__(self) -> Any:
        """Return a copy with the access token."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def tables(self) -> dict[str, Values]:
        """What `datasets` says about each data set."""
        return self.datasets if isinstance(self.datasets, dict) else {}

    @property
    def lora_settings(self) -> Values:
        """The arguments of peft's `LoraConfig`, empty without an adapter. By default `lora_alpha` is twice `r`."""
        given = self.lora if isinstance(self.lora, dict) else {}
        if self.lora is None and self.lora_r is None:
            return {}
        rank = given.get("r", self.lora_r)
        return {"r": rank, "lora_alpha": 2 * (rank or 0), **given}

    @property
    def rows_seed(self) -> int:
        """The seed of what is drawn from training rows: their order, views and spans."""
        return self.seed if self.data_seed is None else self.data_seed

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If a value cannot work.
        """
        # 1. Words become tables, and transformers fills in its values.
        if isinstance(self.prompts, list):
            self.prompts = dict(word.partition("=")[::2] for word in self.prompts)  # type: ignore[assignment]
        if isinstance(self.lora, str):
            self.lora = yaml.safe_load(self.lora)
        if has_only_cpu():
            self.use_cpu = True  # without it, transformers refuses bf16 on a CPU, and joins no processes
        has_accelerator_config = self.accelerator_config is not None
        # transformers checks its arguments and fills some of them in: what nobody has set stays open.
        left_open = ("metric_for_best_model", "greater_is_better", "dataloader_num_workers")
        given = {name: getattr(self, name) for name in left_open}
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = 0
        super().__post_init__()
        if LAUNCHED & os.environ.keys():
            check_together(self.world_size)
        for name, value in given.items():
            setattr(self, name, value)
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # There is no device to copy to.
        elif self.dataloader_pin_memory and not has_accelerator_config:
            # Otherwise each batch waits for the previous step.
            self.accelerator_config.non_blocking = True  # type: ignore[union-attr]

        # 2. Single values, and values that do not go together.
        check_values((None, *VIEW_CLASSES), view=self.view)
        check_values(SHARES, dataset_shares=self.dataset_shares)
        check_values(BATCH_SAMPLERS, batch_sampler=self.batch_sampler)
        check_values(
            "an integer above 0",
            per_device_train_batch_size=self.per_device_train_batch_size,
            gradcache_chunk_size=self.gradcache_chunk_size,
            lora_r=self.lora_r,
        )
        check_values("an integer of 0 or more", seed=self.seed)
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"mlm_probability must lie between 0 and 1, got {self.mlm_probability}")
        if self.neftune_noise_alpha is not None and self.gradcache_chunk_size is not None:
            raise ValueError(
                "neftune_noise_alpha does not work with gradcache_chunk_size, because its noise depends on the length "
                "of a padded batch, and so on the chunks: leave one of the two out"
            )
        if self.batch_sampler == "no_duplicates" and self.train_sampling_strategy != "random":
            raise ValueError(
                "batch_sampler = 'no_duplicates' and train_sampling_strategy each choose the order of the rows: give "
                "one of them"
            )
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor = {self.label_smoothing_factor} has no effect, because contrastive "
                "objectives have no labels: leave it out"
            )
        if self.auto_find_batch_size:
            raise ValueError(
                "auto_find_batch_size would take a smaller batch, which has fewer negatives: leave it out, and set "
                "gradcache_chunk_size, which keeps them"
            )
        if self.train_sampling_strategy == "batch_rebalance":
            raise ValueError(
                "train_sampling_strategy 'batch_rebalance' makes batches of different sizes, in which texts have "
                "different numbers of negatives: use 'group_by_length', or leave it out"
            )

        # 3. Tables.
        tables = {} if self.datasets is None else self.datasets
        if not isinstance(tables, dict) or not all(isinstance(own, dict) for own in tables.values()):
            raise ValueError(
                f"datasets must be a table with a table of settings for each data set, got {self.datasets!r:.100}"
            )
        if self.lora is not None and not isinstance(self.lora, dict):
            raise ValueError(f"lora must be a table of arguments of peft's LoraConfig, got {self.lora!r}")
        rank = (self.lora or {}).get("r", self.lora_r)
        if self.lora is not None and (rank is None or rank < 1):
            raise ValueError(f"r in lora, or lora_r in its place, must be at least 1, got {rank}")
        if self.lora_r is not None and rank != self.lora_r:
            raise ValueError(f"lora_r is {self.lora_r} and r in lora {rank}: give one of the two")

        # 4. The device.
        if self.fp16 and self.device.type == "cpu":
            raise ValueError("fp16 does nothing on a CPU: use bf16, or neither")
        if self.n_gpu > 1:
            raise ValueError(
                f"{self.n_gpu} GPUs are visible to one process: nn.DataParallel would split the batch and with it the "
                f"negatives. Start one process a GPU (accelerate launch --num_processes {self.n_gpu} ...) or show it "
                "one (CUDA_VISIBLE_DEVICES=0)."
            )
        if self.bf16 and self.device.type == "cpu" and lacks_bfloat16():
            logger.warning_once(
                "this processor has no bfloat16 instructions: a product of matrices takes "
                f"{bfloat16_slowdown():.0f} times as long as in float32. Train without bf16 (--bf16 false)"
            )
