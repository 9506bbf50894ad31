"""The settings of a contrastive model, where their defaults are decided, and the limits of its encoder."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..objectives import find_objective
from ..objectives.checks import DEFAULT_TEMPERATURES, SIMILARITIES
from ..objectives.promptbert import DENOISINGS
from ..ops.suggestions import did_you_mean
from .pooling import NGRAM_POOLER, POOLER_TYPES, TEMPLATE_POOLER

SECTION = "simcse"
#: The entry of `config.json` with a threshold for cosines. It belongs to the weights, so training removes it.
THRESHOLD = "similarity_threshold"
MIN_LENGTH = 3  # [CLS], a token and [SEP]


@dataclass(frozen=True)
class PoolingSettings:
    """What makes an embedding of a text: everything that inference needs.

    Args:
        pooler_type (`str`): One of `POOLER_TYPES`, or `"mask"` with `templates`, or `"ngrams"` (IS-BERT). Only
            `"cls"` uses the dense + tanh head.
        mlp_only_train (`bool`): With `"cls"`, use the head in training mode only, as the paper does for unsupervised
            models (Table 6). In evaluation mode, the embedding is then the plain [CLS] output.
        templates (`list`): Texts with `{text}` and `[MASK]` that a sentence is put into, for the pooler `"mask"`
            (arXiv:2201.04337). The first is for anchors and for inference, the last for the other columns of training.
            A single sentence becomes one column per template.
        mask_token_id (`int`): The tokenizer's id of `[MASK]`. The Trainer sets it together with `template_edges`.
        template_edges (`list`): For each template, the numbers of tokens before and after the text.
        denoising (`str`): With a single template, `"transform"` or `"tanh"` subtracts the template's own embedding,
            in training and at inference, and names the layer that belongs to the embedding (see [`TemplateHead`]).
            With `"none"`, the embedding is the state at the mask token.
        dense_layers (`list[dict]`): The configs of sentence-transformers' `Dense` modules after the pooler (see
            [`DenseLayer`]).
        normalize (`bool`): Whether sentence-transformers' files end with `Normalize`. `SimCSE.encode` normalizes by
            its own argument, and the model itself never does.
        max_length (`int`, *optional*): The number of tokens that texts are truncated to in inference. `None` stands
            for the limit of the tokenizer and the encoder.
        prompts (`dict[str, str]`): Texts that are put before a sentence, by name, as in sentence-transformers.
        default_prompt_name (`str`, *optional*): The prompt that is used if none is named.
    """

    pooler_type: str = "cls"
    mlp_only_train: bool = False
    templates: list = field(default_factory=list)
    mask_token_id: int = -1
    template_edges: list = field(default_factory=list)
    denoising: str = "none"
    dense_layers: list = field(default_factory=list)
    normalize: bool = False
    max_length: int | None = None
    prompts: dict = field(default_factory=dict)
    default_prompt_name: str | None = None

    @property
    def inference_pooler(self) -> str:
        """The pooler of evaluation mode: `cls_before_pooler` if the head is for training only."""
        return "cls_before_pooler" if self.mlp_only_train else self.pooler_type


@dataclass(frozen=True)
class TrainingSettings:
    """What turns embeddings into a loss: everything that only training needs.

    Args:
        objective (`str`): The name of a registered objective (see `simcse_hf.objectives`).
        objective_options (`dict`): The objective's own options.
        dataset_objectives (`dict[str, dict]`): For a run on several data sets with different objectives, the table of
            each data set in their order: `objective` and `objective_options`, or nothing for the objective above.
        temperature (`float`): The temperature of the contrastive softmax.
        similarity (`str`): `"cosine"`, or `"dot"` for the dot product ("N/A" in Table D.1).
        hard_negative_weight (`float`): The logarithm of alpha in Eq. 8 (see [`InfoNCE`]).
        do_mlm (`bool`): Carry the masked-LM head, and add its loss if the batch has masked inputs.
        mlm_weight (`float`): Lambda, the weight of the masked-LM loss (appendix A).
        fixed_mask (`bool`): The views of a sentence share one dropout mask ("fixed 0.1" in Table 3).
        matryoshka_dims (`list`): Numbers of leading dimensions that the objective is applied to as well (Kusupati et
            al. 2022). Empty: all dimensions only.
        encoders (`int`): 2 trains an independent encoder for all columns but the first (Table 2).
        max_seq_length (`int`): The number of tokens that texts were truncated to in training, with special tokens.
    """

    objective: str = "simcse"
    objective_options: dict = field(default_factory=dict)
    dataset_objectives: dict = field(default_factory=dict)
    temperature: float = DEFAULT_TEMPERATURES["cosine"]
    similarity: str = "cosine"
    hard_negative_weight: float = 0.0
    do_mlm: bool = False
    mlm_weight: float = 0.1
    fixed_mask: bool = False
    matryoshka_dims: list = field(default_factory=list)
    encoders: int = 1
    max_seq_length: int = 32


#: The tables of the section `simcse` of `config.json`.
TABLES = {"pooling": PoolingSettings, "training": TrainingSettings}
_NAMES = {table: {setting.name for setting in fields(cls)} for table, cls in TABLES.items()}
SETTING_NAMES = frozenset().union(*_NAMES.values())

#: `None` is a value of these settings. For all others it means that nobody has chosen one.
_OPTIONAL = {"max_length", "default_prompt_name"}
#: Settings that belong to one pooler, and go when another one is chosen.
_OF_POOLER = {
    "cls": ("mlp_only_train",),
    TEMPLATE_POOLER: ("templates", "mask_token_id", "template_edges", "denoising"),
}


@dataclass(frozen=True)
class ContrastiveSettings(PoolingSettings, TrainingSettings):
    """All settings of a contrastive model, saved as the section `simcse` of the encoder's `config.json`.

    The section has two tables, `pooling` ([`PoolingSettings`]) and `training` ([`TrainingSettings`]).
    `from_pretrained(..., head="auto")` recognizes checkpoints of this package by it.

    Raises:
        ValueError: If a value has the wrong type or is outside its range. The message names the setting.
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, expected = getattr(self, setting.name), setting.type
            # A bool is an int to Python, but `temperature=True` is a mistake.
            if expected is float and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, setting.name, float(value))
            elif not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):  # type: ignore[arg-type]
                raise ValueError(f"{setting.name} must be {getattr(expected, '__name__', expected)}, got {value!r}")
        self._check_ranges()

    def _check_ranges(self) -> None:
        poolers = (*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER)
        texts = (*self.prompts, *self.prompts.values())
        length = f"at least {MIN_LENGTH} ([CLS], a token, [SEP])"
        ranges = {
            "pooler_type": (self.pooler_type in poolers, f"one of {', '.join(poolers)}"),
            "denoising": (self.denoising in DENOISINGS, f"one of {', '.join(DENOISINGS)}"),
            "similarity": (self.similarity in SIMILARITIES, f"one of {', '.join(SIMILARITIES)}"),
            "temperature": (0 < self.temperature < math.inf, "a number above 0"),
            "hard_negative_weight": (math.isfinite(self.hard_negative_weight), "finite"),
            "mlm_weight": (0 <= self.mlm_weight < math.inf, "0 or more"),
            "encoders": (self.encoders in (1, 2), "1 or 2"),
            "max_seq_length": (self.max_seq_length >= MIN_LENGTH, length),
            "max_length": (self.max_length is None or self.max_length >= MIN_LENGTH, length),
            "prompts": (all(isinstance(text, str) for text in texts), "a table of texts by name"),
            "default_prompt_name": (
                self.default_prompt_name is None or self.default_prompt_name in self.prompts,
                f"one of the prompts ({', '.join(self.prompts) or 'none'})",
            ),
            "dense_layers": (all(isinstance(layer, dict) for layer in self.dense_layers), "a list of tables"),
        }
        for name, (is_valid, expectation) in ranges.items():
            if not is_valid:
                raise ValueError(f"{name} must be {expectation}, got {getattr(self, name)!r}")
        options = sorted(SETTING_NAMES & self.objective_options.keys())
        conflicts = {
            f"pooler_type is {self.pooler_type!r} and templates is {self.templates!r}, but the pooler 'mask' and "
            "templates need each other. Set both, for example pooler_type='mask' and "
            "templates=['This sentence : \"{text}\" means [MASK].'], or neither.": (
                (self.pooler_type == TEMPLATE_POOLER) != bool(self.templates)
            ),
            f"denoising is {self.denoising!r} and templates is {self.templates!r}, but the embedding of one "
            "template only can be subtracted at inference. Give exactly one template, or set denoising to 'none'.": (
                self.denoising != "none" and len(self.templates) != 1
            ),
            f"objective_options has {', '.join(options)}: settings of the model, which config.json and the card would "
            "then name with other values. Pass them beside objective_options and not in it.": bool(options),
            f"mlp_only_train concerns the head of pooler_type 'cls', but pooler_type {self.pooler_type!r} has none. "
            "Drop mlp_only_train or use pooler_type 'cls'.": self.mlp_only_train and self.pooler_type != "cls",
        }
        for problem, is_there in conflicts.items():
            if is_there:
                raise ValueError(problem)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name."""
        return asdict(self)

    def to_section(self) -> dict[str, dict[str, Any]]:
        """Return the settings as they are saved in `config.json`."""
        values = self.to_dict()
        return {table: {name: values[name] for name in sorted(names)} for table, names in _NAMES.items()}

    @classmethod
    def resolve(cls, section: dict[str, Any] | None = None, **given: Any) -> Self:
        """Decide the value of every setting.

        The first of these that has a value decides: what is given, what the checkpoint has saved, the table `defaults`
        of the objective's class, and the defaults above. What a checkpoint has saved for training counts only under
        the same objective; a temperature only with the same similarity; and what belongs to one pooler, such as its
        dense layers, only with that pooler.

        Args:
            section (`dict`, *optional*): The section `simcse` of a checkpoint.
            given (`Any`): Settings of the caller. `None` means that the caller has none, but for `max_length` and
                `default_prompt_name`.

        Returns:
            [`ContrastiveSettings`]: The settings.

        Raises:
            ValueError: If a setting is unknown, a value is not valid, or the objective does not read a given value.
        """
        saved = read_section(section)
        _check_known(given.keys())
        given = drop_unchosen(given)
        objective = given.get("objective", saved.get("objective", cls.objective))
        if saved.get("objective", objective) != objective:
            saved = {name: value for name, value in saved.items() if name in _NAMES["pooling"]}
        if given.get("similarity", saved.get("similarity")) != saved.get("similarity"):
            saved.pop("temperature", None)
        if "pooler_type" in given and not _poolers(given) & _poolers(saved):
            saved.pop("dense_layers", None)  # they were trained on the embeddings of the other pooler
        # Values of other types, such as lists, are refused below.
        known = find_objective(str(objective))
        papers = {} if known is None else known.defaults
        papers = {"temperature" if name == "temp" else name: value for name, value in papers.items()}  # as arguments
        values = {name: value for name, value in papers.items() if name in SETTING_NAMES - {"max_seq_length"}}
        pooler_type = (values | saved | given).get("pooler_type", cls.pooler_type)
        for pooler, names in _OF_POOLER.items():
            for name in names:
                if pooler_type != pooler:
                    values.pop(name, None)
                if pooler_type != pooler or saved.get("pooler_type") != pooler:
                    saved.pop(name, None)
        values |= saved
        _check_read(given, values)
        values |= given
        default = DEFAULT_TEMPERATURES.get(str(values.get("similarity", cls.similarity)))
        return cls(**{"temperature": default or cls.temperature, **values})

    @classmethod
    def from_config(cls, config: PreTrainedConfig, **given: Any) -> Self:
        """Resolve the settings with the section of a config, which is not changed; see [`resolve`].

        Args:
            config (`PreTrainedConfig`): The config of an encoder.
            given (`Any`): Settings that come before those of the config.

        Returns:
            [`ContrastiveSettings`]: The settings.

        Raises:
            ValueError: If a setting is unknown or a value is not valid.
        """
        return cls.resolve(getattr(config, SECTION, None), **given)


def drop_unchosen(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out the settings that are `None` because nobody has chosen a value."""
    return {name: value for name, value in settings.items() if value is not None or name in _OPTIONAL}


def _check_read(given: dict[str, Any], values: dict[str, Any]) -> None:
    """Refuse a setting of the loss that no objective of the model reads, unless it is given as it is."""
    before = asdict(TrainingSettings()) | values
    now = before | given
    tables = now["dataset_objectives"].values() if isinstance(now["dataset_objectives"], dict) else ()
    names = [now["objective"], *(x["objective"] for x in tables if isinstance(x, dict) and "objective" in x)]
    classes = [find_objective(str(name)) for name in names]
    for name in ("temperature", "similarity", "hard_negative_weight"):
        if now[name] != before[name] and not any(cls is None or name in cls.options() for cls in classes):
            raise ValueError(
                f"{name} is {now[name]!r}, but objective {now['objective']!r} does not read it: leave {name} out, or "
                "choose another objective."
            )


def _poolers(settings: dict[str, Any]) -> set[str]:
    """Return the poolers of training and of inference."""
    return {str(settings.get("pooler_type")), *(["cls_before_pooler"] if settings.get("mlp_only_train") else [])}


def read_section(section: dict[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a section by name, without its two tables.

    Args:
        section (`dict`, *optional*): The section `simcse` of a `config.json`.

    Returns:
        `dict[str, Any]`: The settings that it holds.

    Raises:
        ValueError: If it does not hold the two tables, or a setting is unknown.
    """
    tables = {} if section is None else section
    if not isinstance(tables, dict) or any(
        name not in TABLES or not isinstance(table, dict) for name, table in tables.items()
    ):
        raise ValueError(
            f"The section {SECTION!r} of config.json must hold the tables {' and '.join(TABLES)}, got "
            f"{section!r:.200}. Remove the section to use the defaults."
        )
    values = {name: value for table in tables.values() for name, value in table.items()}
    _check_known(values.keys())
    return values


def _check_known(names: Any) -> None:
    unknown = sorted(names - SETTING_NAMES)
    if unknown:
        raise ValueError(
            f"unknown setting(s) {', '.join(unknown)} of a contrastive model{did_you_mean(unknown, SETTING_NAMES)}; "
            f"known settings are {', '.join(sorted(SETTING_NAMES))}."
        )


_UNLIMITED = 1 << 30  # a tokenizer without a length limit reports a far larger number
#: RoBERTa and these relatives count positions from `pad_token_id + 1`: 514 rows of positions serve 512 tokens.
_OFFSET_POSITIONS = (
    "camembert data2vec-text ibert longformer mpnet roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod"
).split()


def dropout_rates(config: PreTrainedConfig) -> dict[str, float]:
    """Return the dropout rates of an encoder by their names in its config, without those of classification heads."""
    return {
        name: rate
        for name, rate in config.to_dict().items()
        if ("dropout" in name or name.endswith("pdrop"))  # GPT-2's embd_pdrop
        and "classifier" not in name
        and isinstance(rate, (int, float))
    }


def check_dropout_rates(config: PreTrainedConfig) -> None:
    """Raise a `ValueError` that names the rate and its file unless all dropout rates of a config are from 0 to 1."""
    for name, rate in config.to_dict().items():
        if "dropout" in name and isinstance(rate, float) and not 0 <= rate <= 1:  # NaN too, which JSON files may hold
            where = f"{config.name_or_path}, config.json" if config.name_or_path else "the encoder's config"
            raise ValueError(f"{where}: {name} is {rate}. Set it to a dropout rate from 0 to 1, such as 0.1.")


def length_limit(
    config: PreTrainedConfig, settings: ContrastiveSettings, tokenizer: PreTrainedTokenizerBase, *others: int | None
) -> int | None:
    """Return the length that texts are cut to unless another is given, in training's dev scores and in inference.

    Args:
        config (`PreTrainedConfig`): The config of the encoder.
        settings (`ContrastiveSettings`): The settings of the model, which may name a length.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, whose `model_max_length` counts.
        *others (`int`, *optional*): Further limits, such as that of a fitted whitening.

    Returns:
        `int`, *optional*: The smallest of the limits in tokens, or `None` if there is none.
    """
    limits = (max_positions(config), settings.max_length, getattr(tokenizer, "model_max_length", None), *others)
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)


def max_positions(config: PreTrainedConfig) -> int | None:
    """Return how many tokens a text may have, with special tokens.

    Args:
        config (`PreTrainedConfig`): The config of the encoder.

    Returns:
        `int`, *optional*: The number of positions, or `None` if the encoder has no limit.
    """
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows <= 0:
        return None
    padding = config.pad_token_id if config.model_type in _OFFSET_POSITIONS else None
    return rows if padding is None else rows - padding - 1


def check_max_length(max_seq_length: int, config: PreTrainedConfig) -> None:
    """Refuse a sequence length that leaves no room for a token or exceeds the encoder's positions.

    Args:
        max_seq_length (`int`): The length in tokens, with special tokens.
        config (`PreTrainedConfig`): The config of the encoder.

    Raises:
        ValueError: If the length is too small or too large.
    """
    if max_seq_length < MIN_LENGTH:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, which leaves no room for [CLS], a token and [SEP]. Use at least "
            f"{MIN_LENGTH}."
        )
    positions = max_positions(config)
    if positions is not None and max_seq_length > positions:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but this encoder ({config.model_type}) has {positions} positions. "
            f"Use max_seq_length {positions} or less."
        )
