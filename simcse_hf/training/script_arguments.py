"""The arguments of the training commands: command line over YAML file over defaults."""

from argparse import SUPPRESS, Action
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, HfArgumentParser, PreTrainedConfig, TrainingArguments
from transformers.utils import logging

from ..data.nli_groups import SAMPLINGS
from ..data.sample import sample_files
from ..models.checkpoint import HEAD_CHOICES
from ..models.poolers import POOLER_TYPES, TEMPLATE_POOLER
from ..objectives import OBJECTIVES, objective_class
from ..objectives.info_nce import SIMILARITIES, log_weight
from ..objectives.is_bert import NGRAM_POOLER
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
    pooler_type: str = field(
        default="cls",
        metadata={
            "aliases": ["--pooler"],
            "help": "How token states become an embedding. The pooler mask needs --templates; ngrams is IS-BERT's.",
            "choices": (*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER),
        },
    )
    templates: list[str] | None = field(
        default=None,
        metadata={
            "help": "Templates with {text} and [MASK] for the pooler mask: one for anchors, one for other texts."
        },
    )
    mlp_only_train: bool = field(
        default=False, metadata={"help": "Use the dense + tanh head during training only (pooler cls)."}
    )
    temp: float | None = field(
        default=None,
        metadata={"help": "Temperature of the contrastive softmax; default: 0.05, or 1 with --similarity dot."},
    )
    similarity: str = field(
        default="cosine", metadata={"help": "Similarity of two embeddings: cosine or dot.", "choices": SIMILARITIES}
    )
    hard_negative_weight: float = field(
        default=0.0,
        metadata={"help": "Logarithm of alpha, the weight of an anchor's own hard negatives (SimCSE, Eq. 8)."},
    )
    hard_negative_alpha: float | None = field(
        default=None, metadata={"help": "alpha itself, instead of --hard_negative_weight."}
    )
    do_mlm: bool = field(default=False, metadata={"help": "Add the auxiliary masked-LM loss."})
    mlm_weight: float = field(default=0.1, metadata={"help": "Weight of the auxiliary masked-LM loss."})
    objective: str = field(default="simcse", metadata={"help": f"Training objective: {', '.join(OBJECTIVES)}."})
    objective_options: list[str] = field(
        default_factory=list,
        metadata={"help": "Options of the objective as name=value pairs; a table in YAML."},
    )
    matryoshka_dims: str | None = field(
        default=None,
        metadata={"help": "Also apply the objective to these leading dimensions, for example 256,128,64."},
    )
    encoders: int = field(
        default=1,
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
        """Return the keyword arguments for `AutoModelForCL.from_pretrained`."""
        return {
            "head": self.head,
            "pooler_type": self.pooler_type,
            "mlp_only_train": self.mlp_only_train,
            "temperature": self.temp,
            "similarity": self.similarity,
            "hard_negative_weight": log_weight(self.hard_negative_weight, self.hard_negative_alpha),
            "do_mlm": self.do_mlm,
            "mlm_weight": self.mlm_weight,
            "objective": self.objective,
            "objective_options": _parse_options(self.objective_options),
            "matryoshka_dims": _parse_dims(self.matryoshka_dims),
            "encoders": self.encoders,
            "unpadded": self.unpadded,
            "templates": self.templates or [],
        }

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
        try:
            config = AutoConfig.from_pretrained(name, **self.hub_options())
        except OSError as error:
            raise ValueError(f"--model_name_or_path {name}: no model there. {error}") from error
        return settings | dropout_settings(config, self.dropout) | self.hub_options()


@dataclass
class DataArguments:
    """The training texts and the dev set."""

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
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first rows only."})
    dev_file: str | None = field(
        default=None,
        metadata={
            "help": "Dev set of scored pairs: SentEval's sts-dev.csv, or a table with the columns sentence1, "
            "sentence2, score."
        },
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Delete the earlier run in --output_dir and start again."}
    )
    sample_dir: str = field(
        default="outputs/sample",
        metadata={"help": "Where the sample corpus and encoder are kept, for runs without a model and texts."},
    )


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
    argv: Sequence[str], defaults: dict[str, Any] | None = None, sample: dict[str, Any] | None = None
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

    Returns:
        `tuple[ModelArguments, DataArguments, SimCSETrainingArguments]`: The parsed arguments.

    Raises:
        ValueError: If the YAML file is no table of known arguments, or values contradict each other.
    """
    argv, from_file = split_config(argv, ARGUMENT_CLASSES)
    explicit = from_file | explicit_arguments(argv, ARGUMENT_CLASSES)
    values = dict(defaults or {})
    objective = explicit.get("objective", values.get("objective", "simcse"))
    papers = _objective_defaults(objective, explicit, values)
    values |= papers
    if sample is not None and not names_a_model_or_texts(explicit):
        directory = explicit.get("sample_dir", DataArguments.sample_dir)
        values |= sample | {"dev_file": str(sample_files(directory)[0].dev)}
    values |= from_file
    final = values | explicit
    if final.get("pooler_type", "cls") != "cls" and "mlp_only_train" not in explicit:
        values["mlp_only_train"] = False  # The head belongs to the pooler cls.
    if "eval_steps" in explicit and "save_steps" not in explicit:
        values["save_steps"] = final["eval_steps"]  # As in the reference, a model is saved whenever it is evaluated.
    if final.get("dev_file") is None:
        # There is no best model without evaluations, and saving need not keep step with them.
        values["load_best_model_at_end"] = False
    return parse_over(values, ARGUMENT_CLASSES, argv)


def names_a_model_or_texts(arguments: dict[str, Any]) -> bool:
    """Return whether the arguments name a model or training texts; if not, the run uses the offline sample."""
    return any(arguments.get(name) for name in ("model_name_or_path", "train_file", "dataset_name"))


def _objective_defaults(objective: str, explicit: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the objective's paper, and log those that take effect and change something."""
    papers = dict(objective_class(objective).defaults)
    unknown = sorted(set(papers) - {f.name for cls in ARGUMENT_CLASSES for f in fields(cls) if f.init})
    if unknown:
        raise ValueError(f"{objective_class(objective).__name__}.defaults: unknown argument(s) {', '.join(unknown)}")
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


def split_config(argv: Sequence[str], classes: Sequence[type]) -> tuple[list[str], dict[str, Any]]:
    """Separate a YAML file on the command line from the other arguments.

    Args:
        argv (`Sequence[str]`): Command line; a first argument that ends in .yaml or .yml, or `--config FILE`, names
            the file.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `tuple[list[str], dict[str, Any]]`: The other arguments and the file's values.

    Raises:
        ValueError: If `--config` has no value, or the file is no table of known arguments.
    """
    argv = list(argv)
    if argv and argv[0].endswith((".yaml", ".yml")):
        return argv[1:], read_yaml(argv[0], classes)
    if "--config" not in argv:
        return argv, {}
    position = argv.index("--config")
    if position + 1 == len(argv):
        raise ValueError("--config needs the path of a YAML file")
    return argv[:position] + argv[position + 2 :], read_yaml(argv[position + 1], classes)


def explicit_arguments(argv: Sequence[str], classes: Sequence[type]) -> dict[str, Any]:
    """Return the arguments that a command line names, without any defaults."""
    parser = make_parser(classes)
    for action in parser._actions:
        action.default, action.required = SUPPRESS, False
    # The parser of all values answers --help, because it knows the defaults.
    return vars(parser.parse_known_args([word for word in argv if word not in ("-h", "--help")])[0])


def parse_over(values: dict[str, Any], classes: Sequence[type], argv: Sequence[str]) -> tuple[Any, ...]:
    """Parse a command line over default values.

    Args:
        values (`dict[str, Any]`): Defaults by argument name.
        classes (`Sequence[type]`): Argument dataclasses.
        argv (`Sequence[str]`): Command line, without a YAML file.

    Returns:
        `tuple[Any, ...]`: One object of each dataclass.

    Raises:
        ValueError: If values contradict each other.
    """
    parser = make_parser(classes)
    # Strings pass through the argument's type, as if typed on the command line: YAML reads 3e-5 as a string.
    parser.set_defaults(**{name: str(v) if isinstance(v, float) else v for name, v in values.items()})
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            list(argv), return_remaining_strings=True, look_for_args_file=False
        )
    except ValueError as error:  # Raised here, it is reported in one line, like this package's own errors.
        raise ValueError(str(error)) from error
    if unknown:
        parser.error(f"unknown argument(s): {' '.join(unknown)}")
    return tuple(parsed)


def make_parser(classes: Sequence[type]) -> HfArgumentParser:
    """Make a parser whose help shows this package's arguments first and transformers' last."""
    parser = HfArgumentParser(classes, usage="%(prog)s [recipe.yaml] [--name value ...]", allow_abbrev=False)
    inherited = {f.name for f in fields(TrainingArguments)}
    ours = parser.add_argument_group("arguments of this package")
    theirs = parser.add_argument_group("arguments of transformers.TrainingArguments")
    options = [group for group in parser._action_groups if group not in (ours, theirs)]
    actions: list[Action] = [action for action in parser._actions if action.dest != "help"]
    for group in options:
        group._group_actions = [action for action in group._group_actions if action.dest == "help"]
    ours._group_actions = [action for action in actions if action.dest not in inherited]
    theirs._group_actions = [action for action in actions if action.dest in inherited]
    return parser


def read_yaml(path: str, classes: Sequence[type]) -> dict[str, Any]:
    """Read arguments from a YAML file.

    Args:
        path (`str`): The file.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `dict[str, Any]`: Values by argument name.

    Raises:
        ValueError: If the file is no YAML table, or names an unknown argument.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a table of arguments (name: value)")
    if "pooler" in values:
        values["pooler_type"] = values.pop("pooler")
    unknown = sorted(set(values) - {f.name for cls in classes for f in fields(cls) if f.init})
    if unknown:
        raise ValueError(f"{path}: unknown argument(s) {', '.join(map(str, unknown))}")
    return values
