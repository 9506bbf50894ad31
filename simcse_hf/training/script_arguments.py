"""Arguments of the training scripts: the reference's names, a YAML file and the command line over it."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml
from transformers import HfArgumentParser, PreTrainedConfig

from ..data.nli_groups import SAMPLINGS
from ..models.checkpoint import HEAD_CHOICES
from ..models.poolers import POOLER_TYPES, TEMPLATE_POOLER
from ..objectives import OBJECTIVES
from ..objectives.info_nce import SIMILARITIES, log_weight
from .training_args import SimCSETrainingArguments


@dataclass
class ModelArguments:
    """The model to start from, and its contrastive head. Names and defaults are the reference's where it has them."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Directory or hub name of an encoder to start from."}
    )
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer, if not the model's own."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the hub."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    head: str = field(
        default="auto",
        metadata={"help": "The dense + tanh head of the start: keep, fresh, or auto.", "choices": HEAD_CHOICES},
    )
    pooler_type: str = field(
        default="cls",
        metadata={"help": "Pooler; mask needs --templates.", "choices": (*POOLER_TYPES, TEMPLATE_POOLER)},
    )
    templates: list[str] | None = field(
        default=None,
        metadata={"help": "Templates with {text} and [MASK], for pooler mask: of anchors, and of the other texts."},
    )
    mlp_only_train: bool = field(default=False, metadata={"help": "Use the head in training only (pooler cls)."})
    temp: float = field(default=0.05, metadata={"help": "Temperature of the contrastive softmax."})
    similarity: str = field(
        default="cosine", metadata={"help": "cosine, or dot for the dot product.", "choices": SIMILARITIES}
    )
    hard_negative_weight: float = field(
        default=0.0, metadata={"help": "Log of alpha, the weight of a row's own hard negatives (Eq. 8)."}
    )
    hard_negative_alpha: float | None = field(
        default=None, metadata={"help": "alpha itself, in place of hard_negative_weight."}
    )
    do_mlm: bool = field(default=False, metadata={"help": "Add the auxiliary masked-LM loss."})
    mlm_weight: float = field(default=0.1, metadata={"help": "Weight of the auxiliary masked-LM loss."})
    objective: str = field(default="simcse", metadata={"help": f"One of {', '.join(OBJECTIVES)}."})
    objective_options: list[str] = field(
        default_factory=list,
        metadata={"help": "Options of the objective, name=value each; in YAML a table."},
    )
    matryoshka_dims: str | None = field(
        default=None, metadata={"help": "Leading dimensions that carry the objective too, such as 256,128,64."}
    )
    encoders: int = field(
        default=1, metadata={"help": "2: an independent encoder for all but the first text of a row (Table 2)."}
    )
    unpadded: bool = field(
        default=True, metadata={"help": "Leave padding out of the computation where the encoder allows it."}
    )
    dropout: float | None = field(
        default=None, metadata={"help": "Every dropout rate of the encoder (Table 3); default: as in its config."}
    )

    def settings(self) -> dict:
        """The keyword arguments of a contrastive model's `from_pretrained`."""
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
            "objective_options": _options(self.objective_options),
            "matryoshka_dims": _dims(self.matryoshka_dims),
            "encoders": self.encoders,
            "unpadded": self.unpadded,
            "templates": self.templates or [],
        }


@dataclass
class DataArguments:
    """Training texts and the dev set."""

    train_file: str | None = field(
        default=None, metadata={"help": "Training texts: txt, csv, tsv, json, jsonl or parquet, also .gz."}
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Hub data set (id or id:config) of training texts."}
    )
    dataset_split: str = field(default="train", metadata={"help": "Split of the hub data set."})
    columns: list[str] | None = field(
        default=None, metadata={"help": "Columns of the texts: anchor, positive, hard negatives."}
    )
    nli_sampling: str | None = field(
        default=None,
        metadata={
            "help": "Hypotheses of a premise's row, for objectives that learn from labelled NLI pairs (columns "
            "premise, hypothesis, label); default: pairs for softmax, allpalln for the others.",
            "choices": SAMPLINGS,
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first rows only."})
    dev_file: str | None = field(
        default=None,
        metadata={"help": "Scored pairs: SentEval's sts-dev.csv, or a table of sentence1, sentence2, score."},
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Start anew in an output_dir that holds an earlier run."}
    )


def dropout_settings(config: PreTrainedConfig, rate: float | None) -> dict[str, float]:
    """Config values that set every dropout rate of an encoder (classifier heads aside) to `rate`; none for None.

    Raises:
        ValueError: `rate` is no probability.
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
    argv: Sequence[str], defaults: dict | None = None
) -> tuple[ModelArguments, DataArguments, SimCSETrainingArguments]:
    """The command line over a YAML file over `defaults`. Without dev set there is no best model to load at the end.

    Args:
        argv: arguments; a first one that ends in .yaml or .yml, or `--config FILE`, names a file of argument names and
            values.
        defaults: of a script, where they differ from the dataclasses'.

    Raises:
        ValueError: a file that is not a table of known arguments; values that do not go together.
    """
    kinds = (ModelArguments, DataArguments, SimCSETrainingArguments)
    argv = list(argv)
    config_file = None
    if argv and argv[0].endswith((".yaml", ".yml")):
        config_file = argv.pop(0)
    elif "--config" in argv:
        at = argv.index("--config")
        if at + 1 == len(argv):
            raise ValueError("--config needs the path of a YAML file")
        config_file = argv[at + 1]
        del argv[at : at + 2]
    values = dict(defaults or {})
    if config_file is not None:
        values |= read_yaml(config_file, kinds)
    typed = ArgumentParser(add_help=False, allow_abbrev=False)
    typed.add_argument("--eval_steps", type=float)
    typed.add_argument("--dev_file", default=values.get("dev_file"))
    named = typed.parse_known_args(argv)[0]
    if named.eval_steps is not None:  # the reference saves when it evaluates; --save_steps still wins
        values["save_steps"] = named.eval_steps
    if named.dev_file is None:  # else saving would have to keep step with evaluations that there are none of
        values["load_best_model_at_end"] = False
    return parse_over(values, kinds, argv)


def _options(given: list[str] | dict) -> dict:
    """`["name=value", ...]` -> a table, with numbers, truth values and lists as YAML reads them."""
    if isinstance(given, dict):
        return given
    pairs = [option.partition("=") for option in given]
    wrong = [name for name, equals, _ in pairs if not (name and equals)]
    if wrong:
        raise ValueError(f"--objective_options takes name=value, got {', '.join(map(repr, wrong))}")
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def _dims(given: str | list[int] | None) -> list[int]:
    words = given.split(",") if isinstance(given, str) else given or []
    try:
        return [int(word) for word in words]
    except (TypeError, ValueError):
        raise ValueError(f"--matryoshka_dims takes numbers with commas, such as 256,128,64, got {given!r}") from None


def parse_over(values: dict, kinds: Sequence[type], argv: Sequence[str]) -> tuple:
    """The command line over `values`, as one object of each of the dataclasses `kinds`."""
    parser = HfArgumentParser(kinds)
    # Strings pass through the argument's type, as if typed: YAML reads 3e-5 as one.
    parser.set_defaults(**{name: str(v) if isinstance(v, float) else v for name, v in values.items()})
    return parser.parse_args_into_dataclasses(argv)


def read_yaml(path: str, kinds: Sequence[type]) -> dict:
    """The arguments in a file, of the dataclasses `kinds`.

    Raises:
        ValueError: it is no YAML table, or names arguments that are not known.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a table of arguments (name: value)")
    unknown = sorted(set(values) - {f.name for kind in kinds for f in fields(kind) if f.init})
    if unknown:
        raise ValueError(f"{path}: unknown argument(s) {', '.join(map(str, unknown))}")
    return values
