"""What may be asked of a contrastive training run, with the help beside it: the model, the texts, and the Trainer."""

import os
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, TrainingArguments
from transformers.integrations import get_available_reporting_integrations, is_deepspeed_available
from transformers.utils import is_liger_kernel_available, logging

from ..data.samplers import BATCH_SAMPLERS, SHARES
from ..data.views import VIEW_CLASSES
from ..kernels.cpu import has_only_cpu, lacks_bfloat16
from ..models.checkpoint import HEAD_CHOICES
from ..models.pooling import TEMPLATE_POOLER
from ..models.settings import LOSS_OPTIONS, SETTING_NAMES, Values, dropout_rates
from ..names import POOLER_TYPES
from ..objectives.info_nce import SIMILARITIES
from ..objectives.is_bert import NGRAM_POOLER
from ..objectives.promptbert import DENOISINGS
from ..runtime.errors import SettingError, check_values
from ..runtime.messages import LAUNCHED, check_together
from .parser import option, read_value

logger = logging.get_logger(__name__)


@dataclass
class ModelArguments:
    """The model to start from, its pooler and its objective, under the names of the reference implementation."""

    _argument_group_name = "model and objective"

    model_name_or_path: str | None = option(
        None,
        "Encoder to start from: folder of a model, or its name on the Hugging Face hub; also --model.",
        aliases=["--model"],
    )
    model_revision: str = option("main", "Branch, tag or commit of the model on the hub.")
    head: str = option(
        "auto",
        "What happens to a dense + tanh head in the starting checkpoint: keep it, draw a fresh one, or "
        "decide by whether it was trained on sentences (auto).",
        choices=HEAD_CHOICES,
    )
    pooler_type: str | None = option(
        None,
        "How token states become an embedding: mask needs --templates, and ngrams belongs to IS-BERT; "
        "default: the checkpoint's, else the objective's, else cls.",
        aliases=["--pooler"],
        choices=(*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER),
    )
    templates: list[str] | None = option(
        None, "Templates with {text} and [MASK] for the pooler mask: one for anchors, one for other texts."
    )
    denoising: str | None = option(
        None,
        "Subtract the embedding of the template alone, in training and at inference (pooler mask, one template): "
        "transform first passes both through the layer before BERT's vocabulary, and tanh passes the difference "
        "through a new layer.",
        choices=DENOISINGS,
    )
    mlp_only_train: bool | None = option(None, "Use the dense + tanh head during training only (pooler cls).")
    temp: float | None = option(
        None, "Temperature of the contrastive softmax; default: 0.05, or 1 with --similarity dot."
    )
    similarity: str | None = option(
        None,
        "Similarity of two embeddings: cosine or dot; default: the objective's, else cosine.",
        choices=SIMILARITIES,
    )
    hard_negative_weight: float | None = option(
        None, "Logarithm of alpha, the weight of an anchor's own hard negatives (SimCSE, Eq. 8)."
    )
    do_mlm: bool | None = option(None, "Add the auxiliary masked-LM loss.")
    mlm_weight: float | None = option(
        None, "Weight of the auxiliary masked-LM loss; default: the objective's, else 0.1."
    )
    objective: str | None = option(
        None,
        "Training objective, such as simcse or diffcse, a sum of them, or a class of yours as "
        "my_package.losses:MyLoss; its paper's settings replace the defaults; default: the checkpoint's, else simcse.",
    )
    objective_options: list[str] = option(
        list,
        "Options of the objective as name=value pairs (a table in YAML); --objective NAME --help lists those of NAME "
        "with their defaults.",
    )  # a table after __post_init__
    matryoshka_dims: list[str] | None = option(
        None, "Also apply the objective to these leading dimensions, for example 256,128,64."
    )
    unpadded: bool = option(True, "Skip padding in the computation where the encoder supports it.")
    dropout: float | None = option(
        None, "Set every dropout rate of the encoder (Table 3); default: its config's rates."
    )

    def __post_init__(self) -> None:
        """Turn the words of the command line into a table of options and a list of dimensions.

        Raises:
            SettingError: If the words have another form, or the dropout rate is no probability below 1.
        """
        given: Any = self.objective_options
        if not isinstance(given, dict):
            options = {}
            for word in given:
                name, equals, text = str(word).partition("=")
                if not (name and equals):
                    raise SettingError(f"--objective_options takes name=value, got {word!r}")
                options[name] = read_value(text)
            self.objective_options = options  # type: ignore[assignment]

        words: Any = self.matryoshka_dims
        try:
            self.matryoshka_dims = words and [int(number) for word in words for number in str(word).split(",")]
        except ValueError:
            raise SettingError(
                f"--matryoshka_dims takes numbers with commas or spaces, such as 256,128,64, got {words!r}"
            ) from None
        check_values("a number of 0 or more and below 1", dropout=self.dropout)

    def settings(self, config: PreTrainedConfig) -> Values:
        """Return the settings for `AutoModelForCL.from_pretrained`; `None` where nothing was chosen.

        Args:
            config (`PreTrainedConfig`): The config of the encoder, whose dropout rates may be replaced.

        Returns:
            `Values`: The settings. Dropout rates of classification heads are left out.

        Raises:
            SettingError: If the config has no dropout rate to set.
        """
        names = (SETTING_NAMES | set(LOSS_OPTIONS)) & vars(self).keys()
        values = {name: getattr(self, name) for name in names}
        values["temperature"] = self.temp
        values["objective_options"] = self.objective_options or None
        if self.dropout is not None:
            rates = dropout_rates(config)
            if not rates:
                raise SettingError(
                    f"--dropout {self.dropout}: a {config.model_type} encoder has no dropout rate in its config"
                )
            values |= dict.fromkeys(rates, self.dropout)
        return values


@dataclass
class DataArguments:
    """The training texts and the dev set, and what to do with the output directory."""

    _argument_group_name = "texts and output"

    train_file: str | None = option(None, "File of training texts: txt, csv, tsv, json, jsonl or parquet, also .gz.")
    dataset_name: str | None = option(
        None, "Training texts on the hub: the name of a data set, name:split or name:config:split; default: train."
    )
    columns: list[str] | None = option(None, "Text columns in the order anchor, positive, hard negatives.")
    label_separator: str | None = option(
        None, 'What stands between several labels of a text in a cell, such as ";"; also in --dev_task.'
    )
    streaming: bool = option(
        False,
        "Read the training texts while training, without caching them; needs --max_steps. For texts that "
        "are larger than the memory or the disk cache.",
    )
    max_train_samples: int | None = option(
        None, "Train on the first rows only; `simcse-hf build-nli --max_rows` draws a random sample."
    )
    dev_file: str | None = option(
        None,
        "Dev set of scored pairs: SentEval's sts-dev.csv, a table with the columns sentence1, sentence2, score, or a "
        "data set on the hub as name:split.",
    )
    dev_task: list[str] = option(
        list,
        "Dev task from a file of yours as KIND=FILE, repeatable; KIND is classification, knn, "
        "clustering, pairs, reranking or retrieval.",
        action="extend",
    )
    general: list[str] = option(
        list,
        "General tasks, on which the run says what it forgot: files of scored pairs, or KIND=FILE as in --dev_task.",
        action="extend",
    )
    overwrite_output_dir: bool = option(
        False, "Delete the earlier run in --output_dir and start again; also --overwrite.", aliases=["--overwrite"]
    )
    seeds: list[int] | None = option(
        None,
        "Train several times, in --output_dir/seed-N: a number of runs (3: seeds 42, 43, 44) or a list of "
        "seeds. The model that is best on the dev set is saved in --output_dir.",
    )


def check_packages(args: TrainingArguments) -> None:
    """Refuse what needs a package that is not installed, before transformers looks for it.

    Raises:
        SettingError: If one is missing.
    """
    trackers = {args.report_to} if isinstance(args.report_to, str) else set(args.report_to or ())
    trackers -= {"all", "none", "flyte"}  # flyte is not among those that transformers lists
    absent = [f"report_to {name}" for name in sorted(trackers) if name not in get_available_reporting_integrations()]
    if args.deepspeed and not is_deepspeed_available():
        absent.append("deepspeed")
    if args.use_liger_kernel and not is_liger_kernel_available():
        absent.append("use_liger_kernel")
    if absent:
        raise SettingError(f"{', '.join(absent)}: its package is not installed: install it, or leave the option out")


def check_learning(args: TrainingArguments) -> None:
    """Refuse a run that could not learn.

    Raises:
        SettingError: If it has no step, no pass over the texts, or no learning rate, or its weights would grow by
            their decay.
    """
    if args.max_steps == 0:
        raise SettingError("max_steps is 0, so nothing would be trained: give the number of steps, or leave it out")
    check_values("a number above 0", num_train_epochs=args.num_train_epochs, learning_rate=args.learning_rate)
    check_values("a number of 0 or more", weight_decay=args.weight_decay)


@dataclass(repr=False)  # that of transformers hides tokens
class SimCSETrainingArguments(TrainingArguments):
    """transformers' TrainingArguments with what contrastive training adds.

    Defaults that differ from transformers': `remove_unused_columns=False` (the collator selects what it needs),
    `ddp_find_unused_parameters=False` (every trainable parameter is used), `dataloader_pin_memory` off on CPUs and
    `accelerator_config.non_blocking` on where memory is pinned, and `logging_nan_inf_filter=False` (the filter hides a
    broken loss, which ends a run here, and makes the host wait for the device in every step).

    What nobody has set is `None`: the Trainer decides it in a copy of these arguments, as `models.settings` says, and
    never changes the caller's object. With `load_best_model_at_end` and a dev set, `metric_for_best_model` is its
    Spearman correlation by default.

    What each field means stands beside it; `simcse-hf train unsup --help_all` prints it for all fields of this class.

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
        "proportional",
        "How often a batch comes from each of several data sets: in proportion to its rows, or from all in turn "
        "(round_robin). If the data sets have a share, that decides.",
        choices=SHARES,
    )
    batch_sampler: str = option(
        "batch_sampler",
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

    @property
    def rows_seed(self) -> int:
        """The seed of what is drawn from training rows: their order, views and spans."""
        return self.seed if self.data_seed is None else self.data_seed

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingError: If a value cannot work.
        """
        # 1. Words become tables, and transformers fills in its values.
        if isinstance(self.prompts, list):
            self.prompts = dict(word.partition("=")[::2] for word in self.prompts)  # type: ignore[assignment]
        if isinstance(self.lora, str):
            self.lora = read_value(self.lora)
        if has_only_cpu():
            self.use_cpu = True  # without it, transformers refuses bf16 on a CPU, and joins no processes
        has_accelerator_config = self.accelerator_config is not None
        # transformers checks its arguments and fills some of them in: what nobody has set stays open.
        left_open = ("metric_for_best_model", "greater_is_better", "dataloader_num_workers")
        given = {name: getattr(self, name) for name in left_open}
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = 0
        check_packages(self)
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
            gradient_accumulation_steps=self.gradient_accumulation_steps,
        )
        check_values("an integer of 0 or more", seed=self.seed)
        check_learning(self)
        if not 0 < self.mlm_probability < 1:
            raise SettingError(f"mlm_probability must lie between 0 and 1, got {self.mlm_probability}")
        if self.label_smoothing_factor:
            raise SettingError(
                "label_smoothing_factor has no effect, because contrastive objectives have no labels: leave it out"
            )
        if self.auto_find_batch_size:
            raise SettingError(
                "auto_find_batch_size would take a smaller batch, which has fewer negatives: leave it out, and set "
                "gradcache_chunk_size, which keeps them"
            )
        if self.train_sampling_strategy == "batch_rebalance":
            raise SettingError(
                "train_sampling_strategy 'batch_rebalance' makes batches of different sizes, in which texts have "
                "different numbers of negatives: use 'group_by_length', or leave it out"
            )
        if self.batch_sampler == "no_duplicates" and self.train_sampling_strategy != "random":
            raise SettingError(
                "batch_sampler 'no_duplicates' and train_sampling_strategy each choose the order of the rows: give one"
            )

        # 3. Tables.
        tables = self.datasets or {}
        if not isinstance(tables, dict) or not all(isinstance(own, dict) for own in tables.values()):
            raise SettingError(f"datasets must be a table with a table for each data set, got {self.datasets!r:.100}")
        if not isinstance(self.lora, dict | None):
            raise SettingError(f"lora must be a table of arguments of peft's LoraConfig, got {self.lora!r}")
        if self.lora is not None or self.lora_r is not None:
            rank = (self.lora or {}).get("r", self.lora_r)
            if rank is None or rank < 1 or self.lora_r not in (None, rank):
                raise SettingError(
                    "lora_r, or r in lora, is the rank of the adapter, and at least 1: "
                    f"lora_r is {self.lora_r} and lora {self.lora}"
                )

        # 4. The device.
        if self.fp16 and self.device.type == "cpu":
            raise SettingError("fp16 does nothing on a CPU: use bf16, or neither")
        if self.n_gpu > 1:
            raise SettingError(
                f"{self.n_gpu} GPUs are visible to one process: nn.DataParallel would split the batch and with it the "
                f"negatives. Start one process a GPU (accelerate launch --num_processes {self.n_gpu} ...) or show it "
                "one (CUDA_VISIBLE_DEVICES=0)."
            )
        if self.bf16 and self.device.type == "cpu" and lacks_bfloat16():
            logger.warning_once(
                "this processor has no bfloat16 instructions, so that training takes longer than in float32. Train "
                "without bf16 (--bf16 false)"
            )
