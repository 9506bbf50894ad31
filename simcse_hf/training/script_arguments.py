"""The arguments of the training commands: command line over YAML file over defaults."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import yaml
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging

from ..data.nli import SAMPLINGS
from ..models.checkpoint import HEAD_CHOICES
from ..models.poolers import POOLER_TYPES, TEMPLATE_POOLER
from ..models.sentence_transformers import read_sentence_transformers_settings
from ..models.settings import SECTION, SETTING_NAMES, ContrastiveSettings, max_positions
from ..objectives import OBJECTIVES, objective_class
from ..objectives.info_nce import SIMILARITIES, log_weight
from ..objectives.is_bert import NGRAM_POOLER
from ..objectives.promptbert import DENOISINGS
from .parser import explicit_arguments, parse_over, split_config
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)


@dataclass
class ModelArguments:
    """The model to start from, its pooler and its objective, under the names of the reference implementation."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Encoder to start from: a directory or a model id on the hub."}
    )
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer to use instead of the model's own."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model on the hub."})
    cache_dir: str | None = field(default=None, metadata={"help": "Directory where downloaded models are kept."})
    head: str = field(
        default="auto",
        metadata={
            "help": "What happens to a dense + tanh head in the starting checkpoint: keep it, draw a fresh one, or "
            "decide by whether it was trained on sentences (auto).",
            "choices": HEAD_CHOICES,
        },
    )
    pooler_type: str | None = field(
        default=None,
        metadata={
            "aliases": ["--pooler"],
            "help": "How token states become an embedding. The pooler mask needs --templates; ngrams is IS-BERT's; "
            "default: the checkpoint's, else the objective's, else cls.",
            "choices": (*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER),
        },
    )
    templates: list[str] | None = field(
        default=None,
        metadata={
            "help": "Templates with {text} and [MASK] for the pooler mask: one for anchors, one for other texts."
        },
    )
    denoising: str | None = field(
        default=None,
        metadata={
            "help": "Subtract the template's own embedding in training and at inference (pooler mask, one template): "
            "transform passes both through the layer before BERT's vocabulary, tanh the difference through a new one.",
            "choices": DENOISINGS,
        },
    )
    mlp_only_train: bool | None = field(
        default=None, metadata={"help": "Use the dense + tanh head during training only (pooler cls)."}
    )
    temp: float | None = field(
        default=None,
        metadata={"help": "Temperature of the contrastive softmax; default: 0.05, or 1 with --similarity dot."},
    )
    similarity: str | None = field(
        default=None,
        metadata={
            "help": "Similarity of two embeddings: cosine or dot; default: the objective's, else cosine.",
            "choices": SIMILARITIES,
        },
    )
    hard_negative_weight: float | None = field(
        default=None,
        metadata={"help": "Logarithm of alpha, the weight of an anchor's own hard negatives (SimCSE, Eq. 8)."},
    )
    hard_negative_alpha: float | None = field(
        default=None, metadata={"help": "alpha itself, instead of --hard_negative_weight."}
    )
    false_negative_margin: float | None = field(
        default=None,
        metadata={
            "help": "Leave candidates out of the loss that are more similar to the anchor than its positive by more "
            "than this (objective simcse); default: every candidate counts."
        },
    )
    do_mlm: bool | None = field(default=None, metadata={"help": "Add the auxiliary masked-LM loss."})
    mlm_weight: float | None = field(
        default=None, metadata={"help": "Weight of the auxiliary masked-LM loss; default: the objective's, else 0.1."}
    )
    objective: str = field(default="simcse", metadata={"help": f"Training objective: {', '.join(OBJECTIVES)}."})
    objective_options: list[str] = field(
        default_factory=list,
        metadata={"help": "Options of the objective as name=value pairs; a table in YAML."},
    )
    matryoshka_dims: str | None = field(
        default=None,
        metadata={"help": "Also apply the objective to these leading dimensions, for example 256,128,64."},
    )
    encoders: int | None = field(
        default=None,
        metadata={"help": "Number of encoders; with 2, one encodes the anchors and one the other texts (Table 2)."},
    )
    unpadded: bool = field(
        default=True, metadata={"help": "Skip padding in the computation where the encoder supports it."}
    )
    dropout: float | None = field(
        default=None,
        metadata={"help": "Set every dropout rate of the encoder (Table 3); default: its config's rates."},
    )

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments for `AutoModelForCL.from_pretrained`; `None` where nothing was chosen."""
        return {
            "head": self.head,
            "pooler_type": self.pooler_type,
            "mlp_only_train": self.mlp_only_train,
            "temperature": self.temp,
            "similarity": self.similarity,
            "hard_negative_weight": self._hard_negative_weight(),
            "do_mlm": self.do_mlm,
            "mlm_weight": self.mlm_weight,
            "objective": self.objective,
            "objective_options": self._options() or None,
            "matryoshka_dims": None if self.matryoshka_dims is None else _parse_dims(self.matryoshka_dims),
            "encoders": self.encoders,
            "unpadded": self.unpadded,
            "templates": self.templates,
            "denoising": self.denoising,
        }

    def _hard_negative_weight(self) -> float | None:
        if self.hard_negative_alpha is None:
            return self.hard_negative_weight
        return log_weight(self.hard_negative_weight or 0.0, self.hard_negative_alpha)

    def _options(self) -> dict[str, Any]:
        options = _parse_options(self.objective_options)
        if self.false_negative_margin is not None:
            options["false_negative_margin"] = self.false_negative_margin
        return options

    def hub_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `from_pretrained` that say which files on the hub are meant."""
        return {"cache_dir": self.cache_dir, "revision": self.model_revision}

    def load_options(self) -> dict[str, Any]:
        """Return all keyword arguments for `AutoModelForCL.from_pretrained`: settings, dropout rates, hub options.

        Returns:
            `dict[str, Any]`: The keyword arguments.

        Raises:
            ValueError: If no model is named, there is none under that name, or a value is invalid.
        """
        name, settings = self.model_name_or_path, self.settings()
        if name is None:
            raise ValueError("--model_name_or_path is missing: name the encoder to start from")
        rates = dropout_settings(_config(name, self.hub_options()), self.dropout)
        return settings | rates | self.hub_options()


@dataclass
class DataArguments:
    """The training texts and the dev set, and what to do with the output directory."""

    train_file: str | None = field(
        default=None, metadata={"help": "File of training texts: txt, csv, tsv, json, jsonl or parquet, also .gz."}
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Training texts on the hub: a data set id, or id:config."}
    )
    dataset_split: str = field(default="train", metadata={"help": "Split of the data set on the hub."})
    columns: list[str] | None = field(
        default=None, metadata={"help": "Text columns in the order anchor, positive, hard negatives."}
    )
    nli_sampling: str | None = field(
        default=None,
        metadata={
            "help": "Rows for objectives that learn from labelled NLI pairs (columns premise, hypothesis, label): "
            "pairs, or premises with all of their hypotheses; default: pairs.",
            "choices": SAMPLINGS,
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read the training texts while training, without caching them; needs --max_steps. For texts that "
            "are larger than the memory or the disk cache."
        },
    )
    max_train_samples: int | None = field(
        default=None,
        metadata={
            "help": "Train on the first rows only; `simcse-hf build-nli --max_rows` draws a random sample."
        },
    )
    dev_file: str | None = field(
        default=None,
        metadata={
            "help": "Dev set of scored pairs: SentEval's sts-dev.csv, or a table with the columns sentence1, "
            "sentence2, score."
        },
    )
    dev_task: list[str] = field(
        default_factory=list,
        metadata={
            "action": "extend",
            "help": "Dev task from a file of yours as KIND=FILE, repeatable; KIND is classification, clustering, "
            "pairs, reranking or retrieval.",
        },
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Delete the earlier run in --output_dir and start again."}
    )
    seeds: list[int] | None = field(
        default=None,
        metadata={
            "help": "Train several times, in --output_dir/seed-N: a number of runs (3: seeds 42, 43, 44) or a list of "
            "seeds. The model of the best one on the dev set is saved in --output_dir."
        },
    )


#: Names of the model's settings as arguments; the length is one of training.
_SETTINGS = (SETTING_NAMES | {"temp"}) - {"max_seq_length", "temperature"}

ARGUMENT_CLASSES = (ModelArguments, DataArguments, SimCSETrainingArguments)


def dropout_settings(config: PreTrainedConfig, rate: float | None) -> dict[str, float]:
    """Return the config values that set every dropout rate of an encoder.

    Args:
        config (`PreTrainedConfig`): The encoder's config.
        rate (`float`, *optional*): Dropout rate; `None` keeps the config's rates.

    Returns:
        `dict[str, float]`: Config names with the new rate. Rates of classification heads are left out.

    Raises:
        ValueError: If `rate` is not a probability below 1.
    """
    if rate is None:
        return {}
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {rate}")
    return {
        name: rate
        for name, value in config.to_dict().items()
        if "dropout" in name and "classifier" not in name and isinstance(value, (int, float))
    }


def parse_arguments(
    argv: Sequence[str],
    defaults: dict[str, Any] | None = None,
    sample: dict[str, Any] | None = None,
    supervised: bool = False,
) -> tuple[ModelArguments, DataArguments, SimCSETrainingArguments]:
    """Parse the arguments of a contrastive training run.

    An argument on the command line wins over the YAML file, which wins over the settings of the objective's paper
    (`Objective.defaults`), which win over `defaults`.

    Args:
        argv (`Sequence[str]`): Command line without the program's name. A first argument that ends in .yaml or .yml,
            or `--config FILE`, names a file of argument names and values.
        defaults (`dict[str, Any]`, *optional*): Defaults of the command, where they differ from the dataclasses'.
        sample (`dict[str, Any]`, *optional*): Defaults that win over the objective's when neither a model nor texts
            are named.
        supervised (`bool`, *optional*, defaults to `False`): Whether the objective's `supervised_defaults` apply.

    Returns:
        `tuple[ModelArguments, DataArguments, SimCSETrainingArguments]`: The parsed arguments.

    Raises:
        ValueError: If the YAML file is no table of known arguments, or values contradict each other.
    """
    argv, from_file = split_config(argv, ARGUMENT_CLASSES)
    typed = explicit_arguments(argv, ARGUMENT_CLASSES)
    explicit = from_file | typed
    values = dict(defaults or {})
    objective = explicit.get("objective", values.get("objective", "simcse"))
    papers = _objective_defaults(objective, supervised, explicit, values)
    # The model itself finds its settings in the objective's table, after those of the checkpoint.
    left_to_the_model = _SETTINGS & objective_class(objective).defaults.keys()
    if supervised:
        left_to_the_model -= objective_class(objective).supervised_defaults.keys()
    values = {name: x for name, x in (values | papers).items() if name not in left_to_the_model}
    if sample is not None and not names_a_model_or_texts(explicit):
        values |= sample
    values |= from_file
    final = values | explicit
    if "seed" in explicit and explicit.get("seeds") is not None:
        raise ValueError(
            f"seed is {explicit['seed']} and seeds {explicit['seeds']}: give one of the two, --seed for one run or "
            "--seeds with the list of seeds for several"
        )
    if "max_seq_length" in papers and "max_seq_length" not in explicit:
        values["max_seq_length"] = _paper_length(values["max_seq_length"], final)
    pooler = final.get("pooler_type") or _saved_pooler(final) or papers.get("pooler_type", "cls")
    if pooler != "cls" and "mlp_only_train" not in explicit:
        values.pop("mlp_only_train", None)  # The head belongs to the pooler cls.
    if "eval_steps" in explicit and "save_steps" not in explicit:
        values["save_steps"] = final["eval_steps"]  # As in the reference, a model is saved whenever it is evaluated.
    if final.get("dev_file") is None and not final.get("dev_task"):
        # There is no best model without evaluations, and saving need not keep step with them.
        values["load_best_model_at_end"] = False
    if "dev_task" in typed:  # Its words would be appended to those of the YAML file.
        values.pop("dev_task", None)
    return parse_over(values, ARGUMENT_CLASSES, argv)


def names_a_model_or_texts(arguments: dict[str, Any]) -> bool:
    """Return whether the arguments name a model or training texts; if not, the run uses the offline sample."""
    return any(arguments.get(name) for name in ("model_name_or_path", "train_file", "dataset_name"))


def _paper_length(length: int, arguments: dict[str, Any]) -> int:
    """Return the paper's length in tokens, or the most that the encoder can take if that is less."""
    name = arguments.get("model_name_or_path")
    hub = {"cache_dir": arguments.get("cache_dir"), "revision": arguments.get("model_revision", "main")}
    try:
        positions = None if not name else max_positions(_config(name, hub))
    except ValueError:  # Loading the model says so, after the other arguments are read.
        return length
    if positions is None or positions >= length:
        return length
    logger.info(f"{name}: max_seq_length is {positions}, because the encoder has no more positions (paper: {length}).")
    return positions


def _saved_pooler(arguments: dict[str, Any]) -> str | None:
    """Return the pooler that the model to start from was saved with, if it was saved with one."""
    name = arguments.get("model_name_or_path")
    revision = arguments.get("model_revision", ModelArguments.model_revision)
    hub = {"cache_dir": arguments.get("cache_dir"), "revision": revision}
    try:
        section = None if not name else getattr(_config(name, hub), SECTION, None)
    except ValueError:  # Loading the model says so, after the other arguments are read.
        return None
    if section is not None:
        return ContrastiveSettings.resolve(section).pooler_type
    return read_sentence_transformers_settings(name, **hub).pooler_type if name else None


def _config(name: str, hub: dict[str, Any]) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(name, **hub)
    except OSError as error:
        raise ValueError(f"--model_name_or_path {name}: no model there. {error}") from error


def _objective_defaults(
    objective: str, supervised: bool, explicit: dict[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of the objective's paper, and log those that take effect and change something."""
    chosen = objective_class(objective)
    papers = chosen.defaults | (chosen.supervised_defaults if supervised else {})
    unknown = sorted(set(papers) - {f.name for cls in ARGUMENT_CLASSES for f in fields(cls) if f.init})
    if unknown:
        raise ValueError(f"{chosen.__name__}.defaults: unknown argument(s) {', '.join(unknown)}")
    applied = {name: value for name, value in papers.items() if name not in explicit and defaults.get(name) != value}
    if applied:
        listed = ", ".join(f"{name}={value!r}" for name, value in applied.items())
        logger.info(f"Defaults of the paper behind objective {objective}: {listed}. Explicit arguments override them.")
    return papers


def _parse_options(options: list[str] | dict[str, Any]) -> dict[str, Any]:
    """Turn `["name=value", ...]` into a table, reading numbers, booleans and lists as YAML does."""
    if isinstance(options, dict):
        return options
    pairs = [option.partition("=") for option in options]
    invalid = [name for name, equals, _ in pairs if not (name and equals)]
    if invalid:
        raise ValueError(f"--objective_options takes name=value, got {', '.join(map(repr, invalid))}")
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def _parse_dims(dims: str | list[int] | None) -> list[int]:
    words = dims.split(",") if isinstance(dims, str) else dims or []
    try:
        return [int(word) for word in words]
    except (TypeError, ValueError):
        raise ValueError(f"--matryoshka_dims takes numbers with commas, such as 256,128,64, got {dims!r}") from None
