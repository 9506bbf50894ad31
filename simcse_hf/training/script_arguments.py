"""The arguments of the training commands: command line over YAML file over defaults."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import yaml
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging

from ..data.class_rows import is_labelled
from ..data.nli_pairs import SAMPLINGS
from ..models.checkpoint import HEAD_CHOICES, Checkpoint
from ..models.pooling import POOLER_TYPES, TEMPLATE_POOLER
from ..models.settings import SECTION, SETTING_NAMES, dropout_rates, max_positions, read_section
from ..objectives import OBJECTIVES, objective_class
from ..objectives.checks import SIMILARITIES
from ..objectives.is_bert import NGRAM_POOLER
from ..objectives.promptbert import DENOISINGS
from ..ops.errors import refuse
from ..ops.loading import load_pretrained
from .parser import fill, given_arguments, option
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)


@dataclass
class ModelArguments:
    """The model to start from, its pooler and its objective, under the names of the reference implementation."""

    model_name_or_path: str | None = option(
        None, "Encoder to start from: a directory or a model id on the hub.", aliases=["--model"]
    )
    tokenizer_name: str | None = option(None, "Tokenizer to use instead of the model's own.")
    model_revision: str = option("main", "Branch, tag or commit of the model on the hub.")
    head: str = option(
        "auto",
        "What happens to a dense + tanh head in the starting checkpoint: keep it, draw a fresh one, or "
        "decide by whether it was trained on sentences (auto).",
        choices=HEAD_CHOICES,
    )
    pooler_type: str | None = option(
        None,
        "How token states become an embedding. The pooler mask needs --templates; ngrams is IS-BERT's; "
        "default: the checkpoint's, else the objective's, else cls.",
        aliases=["--pooler"],
        choices=(*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER),
    )
    templates: list[str] | None = option(
        None, "Templates with {text} and [MASK] for the pooler mask: one for anchors, one for other texts."
    )
    denoising: str | None = option(
        None,
        "Subtract the template's own embedding in training and at inference (pooler mask, one template): "
        "transform passes both through the layer before BERT's vocabulary, tanh the difference through a new one.",
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
    objective: str = option("simcse", f"Training objective: {', '.join(OBJECTIVES)}; a checkpoint keeps its own.")
    objective_options: list[str] = option(
        list, "Options of the objective as name=value pairs; a table in YAML."
    )  # a table after __post_init__
    matryoshka_dims: str | None = option(
        None, "Also apply the objective to these leading dimensions, for example 256,128,64."
    )
    encoders: int | None = option(
        None, "Number of encoders; with 2, one encodes the anchors and one the other texts (Table 2)."
    )
    unpadded: bool = option(True, "Skip padding in the computation where the encoder supports it.")
    dropout: float | None = option(
        None, "Set every dropout rate of the encoder (Table 3); default: its config's rates."
    )

    def __post_init__(self) -> None:
        """Turn the words of the command line into a table of options and a list of dimensions.

        Raises:
            ValueError: If the words have another form.
        """
        options: Any = self.objective_options
        if not isinstance(options, dict):
            pairs = [str(word).partition("=") for word in (options if isinstance(options, list) else [options])]
            invalid = [name for name, equals, _ in pairs if not (name and equals)]
            refuse({f"--objective_options takes name=value, got {', '.join(map(repr, invalid))}": invalid})
            options = {name: _read_value(value) for name, _, value in pairs}
        self.objective_options = options
        dims: Any = self.matryoshka_dims
        try:
            dims = dims.split(",") if isinstance(dims, str) else dims
            dims = None if dims is None else [int(word) for word in dims]
        except (TypeError, ValueError):
            given = self.matryoshka_dims
            raise ValueError(
                f"--matryoshka_dims takes numbers with commas, such as 256,128,64, got {given!r}"
            ) from None
        self.matryoshka_dims = dims

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments for `AutoModelForCL.from_pretrained`; `None` where nothing was chosen."""
        names = [f.name for f in fields(self) if f.name in SETTING_NAMES | {"head", "unpadded"}]
        options = {"objective_options": self.objective_options or None}
        return {"temperature": self.temp, **{name: getattr(self, name) for name in names}, **options}

    def load_options(self) -> dict[str, Any]:
        """Return all keyword arguments for `AutoModelForCL.from_pretrained`: settings, dropout rates, revision.

        Returns:
            `dict[str, Any]`: The keyword arguments.

        Raises:
            ValueError: If no model is named, there is none under that name, or a value is invalid.
        """
        if self.model_name_or_path is None:
            raise ValueError("--model_name_or_path is missing: name the encoder to start from")
        config = _load_config(self.model_name_or_path, self.model_revision)
        return self.settings() | dropout_settings(config, self.dropout) | {"revision": self.model_revision}


@dataclass
class DataArguments:
    """The training texts and the dev set, and what to do with the output directory."""

    train_file: str | None = option(None, "File of training texts: txt, csv, tsv, json, jsonl or parquet, also .gz.")
    dataset_name: str | None = option(None, "Training texts on the hub: a data set id, or id:config.")
    dataset_split: str = option("train", "Split of the data set on the hub.")
    columns: list[str] | None = option(None, "Text columns in the order anchor, positive, hard negatives.")
    nli_sampling: str | None = option(
        None,
        "Rows for objectives that learn from labelled NLI pairs (columns premise, hypothesis, label): "
        "pairs, or premises with all of their hypotheses; default: pairs.",
        choices=SAMPLINGS,
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
        "Dev task from a file of yours as KIND=FILE, repeatable; KIND is classification, clustering, "
        "pairs, reranking or retrieval.",
        action="extend",
    )
    overwrite_output_dir: bool = option(False, "Delete the earlier run in --output_dir and start again.")
    seeds: list[int] | None = option(
        None,
        "Train several times, in --output_dir/seed-N: a number of runs (3: seeds 42, 43, 44) or a list of "
        "seeds. The model of the best one on the dev set is saved in --output_dir.",
    )


#: Names of the model's settings as arguments; the length is one of training.
_MODEL_SETTINGS = (SETTING_NAMES | {"temp"}) - {"max_seq_length", "temperature"}

ARGUMENT_CLASSES = (ModelArguments, DataArguments, SimCSETrainingArguments)


def _read_value(word: str) -> Any:
    """Read a value as YAML does, and 5e-3, which YAML takes for a text, as a number."""
    value = yaml.safe_load(word)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def dropout_settings(config: PreTrainedConfig, rate: float | None) -> dict[str, float]:
    """Return the config values that set every dropout rate of an encoder.

    Args:
        config (`PreTrainedConfig`): The encoder's config.
        rate (`float`, *optional*): Dropout rate; `None` keeps the config's rates.

    Returns:
        `dict[str, float]`: Config names with the new rate. Rates of classification heads are left out.

    Raises:
        ValueError: If `rate` is not a probability below 1, or the config has no rate.
    """
    if rate is None:
        return {}
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {rate}")
    names = dropout_rates(config)
    refuse(
        {
            f"--dropout {rate}: a {config.model_type} encoder has no dropout rate in its config. Leave it out.": (
                not names
            )
        }
    )
    return dict.fromkeys(names, rate)


def parse_arguments(
    argv: Sequence[str],
    defaults: dict[str, Any] | None = None,
    sample: dict[str, Any] | None = None,
    supervised: bool = False,
    **fixed: Any,
) -> tuple[ModelArguments, DataArguments, SimCSETrainingArguments]:
    """Parse the arguments of a contrastive training run.

    An argument on the command line wins over the YAML file, which wins over the sample's, which win over the settings
    of the objective's paper (`Objective.defaults`), which win over `defaults`. A checkpoint of this package keeps the
    settings that it was trained with, its objective and length among them, where neither line nor file names others.

    Args:
        argv (`Sequence[str]`): Command line without the program's name. A first argument without `--` names a file of
            argument names and values, or a recipe.
        defaults (`dict[str, Any]`, *optional*): Defaults of the command, where they differ from the dataclasses'.
        sample (`dict[str, Any]`, *optional*): Values for a run without a model and texts.
        supervised (`bool`, *optional*, defaults to `False`): Whether training texts with class labels choose the
            objective `class_labels`, if the arguments name none.
        fixed (`Any`): Values that win over the command line.

    Returns:
        `tuple[ModelArguments, DataArguments, SimCSETrainingArguments]`: The parsed arguments.

    Raises:
        ValueError: If the YAML file is no table of known arguments, or values contradict each other.
    """
    given = given_arguments(argv, ARGUMENT_CLASSES, defaults) | fixed
    texts = ("model_name_or_path", "train_file", "dataset_name", "datasets")
    is_offline = sample is not None and not any(map(given.get, texts))
    if supervised and "objective" not in given and _have_class_labels(given):
        given["objective"] = "class_labels"
    chosen = ((sample or {}) if is_offline else {}) | given
    start = _start_config(chosen)
    saved = read_section(getattr(start, SECTION, None))
    kept = _log_kept(chosen, saved) if saved else {}
    name = given.get("objective", kept.get("objective", "simcse"))
    papers = objective_class(name).defaults
    # The last one wins.
    values = (defaults or {}) | papers | kept | chosen
    _log_papers(name, papers, values, defaults or {})

    # What follows depends on several arguments, and changes none that is given.
    for name in papers:
        # The model finds its settings in the table of its objective, after those of its checkpoint.
        if name in _MODEL_SETTINGS and name not in given:
            del values[name]
    pooler = values.get("pooler_type") or _saved_pooler(start, values) or papers.get("pooler_type", "cls")
    if (pooler != "cls" or saved.get("pooler_type") == "cls") and "mlp_only_train" not in given:
        values.pop("mlp_only_train", None)  # The head belongs to the pooler cls, and a checkpoint knows its use.
    length, positions = values.get("max_seq_length", 32), None if start is None else max_positions(start)
    if "max_seq_length" in papers and "max_seq_length" not in given and positions is not None and positions < length:
        where = f"{values['model_name_or_path']}: max_seq_length is {positions}"
        logger.info(f"{where}, because the encoder has no more positions (paper: {length}).")
        values["max_seq_length"] = positions
    if "eval_steps" in given and "save_steps" not in given:
        values["save_steps"] = given["eval_steps"]  # As in the reference, a model is saved whenever it is evaluated.
    if values.get("dev_file") is None and not values.get("dev_task"):
        # There is no best model without evaluations, and saving need not keep step with them.
        values["load_best_model_at_end"] = False
    refuse(
        {
            f"seed is {given.get('seed')} and seeds {given.get('seeds')}: give one of the two, --seed for one run or "
            "--seeds with the list of seeds for several": "seed" in given and given.get("seeds") is not None
        }
    )
    return cast(Any, fill(ARGUMENT_CLASSES, values))


def _have_class_labels(given: dict[str, Any]) -> bool:
    """Say whether the training texts that the arguments name have class labels."""
    source = given.get("train_file") or given.get("dataset_name")
    return source is not None and is_labelled(source, given.get("dataset_split", "train"), given.get("columns"))


def _log_kept(chosen: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a checkpoint of this package decides, and log its settings and what replaces them."""
    new = {"temperature" if name == "temp" else name: value for name, value in chosen.items() if value is not None}
    same = new.get("objective", saved.get("objective")) == saved.get("objective")
    names = ("objective", "max_seq_length", "temperature") if same else ()
    kept = {
        name: saved[name] for name in (*names, "pooler_type", "mlp_only_train") if name in saved.keys() - new.keys()
    }
    changed = [
        f"{name} from {saved[name]!r} to {new[name]!r}" for name in saved if new.get(name, saved[name]) != saved[name]
    ]
    listed = ", ".join(f"{name}={value!r}" for name, value in kept.items())
    logger.info(
        f"{chosen['model_name_or_path']} keeps {listed or 'nothing'}; changed: {', '.join(changed) or 'nothing'}."
    )
    return {name: kept[name] for name in ("objective", "max_seq_length") if name in kept}


def _log_papers(objective: str, papers: dict[str, Any], values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Log the settings of the objective's paper that take effect and change something."""
    applied = [f"{name}={value!r}" for name, value in papers.items() if values[name] is value != defaults.get(name)]
    if applied:
        listed = ", ".join(applied)
        logger.info(f"Defaults of the paper behind objective {objective}: {listed}. Explicit arguments override them.")


def _start_config(values: dict[str, Any]) -> PreTrainedConfig | None:
    """Return the config of the model to start from; `None` without one, which loading the model refuses later."""
    name = values.get("model_name_or_path")
    try:
        return None if not name else _load_config(name, values.get("model_revision", "main"))
    except ValueError:
        return None


def _saved_pooler(config: PreTrainedConfig | None, values: dict[str, Any]) -> str | None:
    """Return the pooler that the model to start from was saved with, if it was saved with one."""
    if config is None:
        return None
    revision = values.get("model_revision", "main")
    return Checkpoint.find(values["model_name_or_path"], config, revision=revision).pooler_type


def _load_config(name: str, revision: str) -> PreTrainedConfig:
    try:
        return load_pretrained(AutoConfig.from_pretrained, name, revision=revision)
    except OSError as error:
        raise ValueError(f"--model_name_or_path {name}: no model there. {error}") from error
