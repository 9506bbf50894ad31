"""The arguments of the training commands: words of a command line and a recipe become values."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging

from ..data.read import is_labelled
from ..models.checkpoint import HEAD_CHOICES, Checkpoint
from ..models.pooling import TEMPLATE_POOLER
from ..models.resolve import resolve_command
from ..models.settings import LOSS_OPTIONS, SETTING_NAMES, dropout_rates
from ..names import POOLER_TYPES
from ..objectives.info_nce import SIMILARITIES
from ..objectives.is_bert import NGRAM_POOLER
from ..objectives.promptbert import DENOISINGS
from ..ops.loading import load_pretrained
from .parser import fill, given_arguments, option
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)


@dataclass
class ModelArguments:
    """The model to start from, its pooler and its objective, under the names of the reference implementation."""

    _argument_group_name = "model and objective"

    model_name_or_path: str | None = option(
        None, "Encoder to start from: a directory or a model id on the hub; also --model.", aliases=["--model"]
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
    objective: str | None = option(
        None,
        "Training objective, such as simcse or diffcse, a sum of them, or a class of yours as "
        "my_package.losses:MyLoss; its paper's settings replace the defaults; default: the checkpoint's, else simcse.",
    )
    objective_options: list[str] = option(
        list, "Options of the objective as name=value pairs; a table in YAML."
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
            ValueError: If the words have another form.
        """
        given: Any = self.objective_options
        if not isinstance(given, dict):
            options = {}
            for word in [given] if isinstance(given, str) else given:
                name, equals, text = str(word).partition("=")
                if not (name and equals):
                    raise ValueError(f"--objective_options takes name=value, got {word!r}")
                value = yaml.safe_load(text)
                with suppress(ValueError):  # YAML takes 5e-3 for a text
                    value = float(value) if isinstance(value, str) else value
                options[name] = value
            self.objective_options = options  # type: ignore[assignment]

        words: Any = self.matryoshka_dims
        if words is not None:
            listed = words if isinstance(words, list) else [words]
            try:
                numbers = [int(number) for word in listed for number in str(word).split(",")]
            except ValueError:
                raise ValueError(
                    f"--matryoshka_dims takes numbers with commas or spaces, such as 256,128,64, got {words!r}"
                ) from None
            self.matryoshka_dims = numbers  # type: ignore[assignment]

    def settings(self) -> dict[str, Any]:
        """Return the settings for `AutoModelForCL.from_pretrained`; `None` where nothing was chosen."""
        names = (SETTING_NAMES | set(LOSS_OPTIONS) | {"head", "unpadded"}) & vars(self).keys()
        values = {name: getattr(self, name) for name in names}
        values["temperature"] = self.temp
        values["objective_options"] = self.objective_options or None
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


ARGUMENT_CLASSES = (ModelArguments, DataArguments, SimCSETrainingArguments)


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
    if not names:
        raise ValueError(f"--dropout {rate}: a {config.model_type} encoder has no dropout rate in its config")
    return dict.fromkeys(names, rate)


@dataclass(frozen=True)
class CommandArguments:
    """The arguments of a training command.

    Args:
        model (`ModelArguments`): The model to start from.
        data (`DataArguments`): The training texts and the dev set.
        training (`SimCSETrainingArguments`): The arguments of the Trainer.
        decided_by (`Mapping[str, str]`): Who decided each argument.
    """

    model: ModelArguments
    data: DataArguments
    training: SimCSETrainingArguments
    decided_by: Mapping[str, str]

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """What is said about each of several data sets, by its name."""
        tables: Any = self.training.datasets or {}
        return tables

    def load_options(self) -> dict[str, Any]:
        """Return all keyword arguments for `AutoModelForCL.from_pretrained`: settings, dropout rates, revision.

        Returns:
            `dict[str, Any]`: The keyword arguments.

        Raises:
            ValueError: If no model is named, there is none under that name, or a value is invalid.
        """
        model = self.model
        if model.model_name_or_path is None:
            raise ValueError("--model_name_or_path is missing: name the encoder to start from")
        config = load_config(model.model_name_or_path, model.model_revision)
        return {**model.settings(), **dropout_settings(config, model.dropout), "revision": model.model_revision}


def parse_arguments(
    argv: Sequence[str],
    defaults: dict[str, Any] | None = None,
    sample: dict[str, Any] | None = None,
    supervised: bool = False,
    **fixed: Any,
) -> CommandArguments:
    """Parse the arguments of a contrastive training run.

    An argument on the command line wins over the YAML file. What neither names is decided by `models.resolve`: by the
    starting checkpoint, the objective's paper, or the defaults of the command.

    Args:
        argv (`Sequence[str]`): Command line without the program's name. A first argument without `--` names a file of
            argument names and values, or a recipe.
        defaults (`dict[str, Any]`, *optional*): Defaults of the command, where they differ from the dataclasses'.
        sample (`dict[str, Any]`, *optional*): Values for a run without a model and texts.
        supervised (`bool`, *optional*, defaults to `False`): Whether training texts with class labels choose the
            objective `class_labels`, if the arguments name none.
        fixed (`Any`): Values that win over the command line.

    Returns:
        [`CommandArguments`]: The arguments.

    Raises:
        ValueError: If the YAML file is no table of known arguments, or values contradict each other.
    """
    defaults = defaults or {}
    given = given_arguments(argv, ARGUMENT_CLASSES, defaults) | fixed
    texts = ("model_name_or_path", "train_file", "dataset_name", "datasets")
    if sample is not None and not any(given.get(name) for name in texts):
        sample = dict(sample)
        if "objective" in given:  # whose paper has a pooler of its own
            sample.pop("pooler_type", None)
        given = sample | given
    if "seed" in given and given.get("seeds") is not None:
        raise ValueError(
            f"seed is {given['seed']} and seeds {given['seeds']}: give one of the two, --seed for one run or --seeds "
            "with the list of seeds for several"
        )
    source = given.get("train_file") or given.get("dataset_name")
    if supervised and "objective" not in given and source and is_labelled(source, columns=given.get("columns")):
        given["objective"] = "class_labels"
    name: Any = given.get("model_name_or_path")
    revision = given.get("model_revision", "main")
    config = None
    pooler_type = None
    if name:
        with suppress(ValueError):  # no model there: `load_options` refuses the name
            config = load_config(name, revision)
    if config is not None:
        pooler_type = Checkpoint.find(name, config, revision=revision).section["pooling"].get("pooler_type")
    values, decided_by = resolve_command(given, defaults, config, pooler_type)

    # Log the values that the checkpoint and the paper decide and that change something.
    for layer, source in {"checkpoint": "The starting checkpoint", "paper": "The objective's paper"}.items():
        listed = []
        for name, value in values.items():
            if decided_by[name] == layer and value != defaults.get(name):
                listed.append(f"{name}={value!r}")
        if listed:
            logger.info(f"{source} decides {', '.join(listed)}. Arguments that are given override it.")
    model, data, training = fill(ARGUMENT_CLASSES, values)
    return CommandArguments(model, data, training, decided_by)


def load_config(name: str, revision: str) -> PreTrainedConfig:
    """Load the config of an encoder.

    Args:
        name (`str`): A directory, or the name of a model on the hub.
        revision (`str`): The branch, tag or commit on the hub.

    Returns:
        `PreTrainedConfig`: The config.

    Raises:
        ValueError: If there is no model under this name.
    """
    try:
        return load_pretrained(AutoConfig.from_pretrained, name, revision=revision)
    except OSError as error:
        raise ValueError(f"--model_name_or_path {name}: no model there. {error}") from error
