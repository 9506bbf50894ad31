"""The settings of a contrastive model, validated and saved in `config.json`, and the limits of its encoder."""

import math
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..objectives.info_nce import SIMILARITIES, resolve_temperature
from ..objectives.is_bert import NGRAM_POOLER
from ..objectives.promptbert import DENOISINGS
from .poolers import POOLER_TYPES, TEMPLATE_POOLER

SECTION = "simcse"
_SAVE_TOKENIZER = "Save the model's own tokenizer into the model's folder (tokenizer.save_pretrained)"
MIN_LENGTH = 3  # [CLS], a token and [SEP]


@dataclass(frozen=True)
class ContrastiveSettings:
    """Settings of a contrastive model, saved as the section `simcse` of the encoder's `config.json`.

    `from_pretrained(..., head="auto")` recognizes checkpoints of this package by this section.

    Args:
        pooler_type (`str`): One of `POOLER_TYPES`, or `"mask"` with `templates`, or `"ngrams"` (IS-BERT). Only
            `"cls"` uses the dense + tanh head.
        mlp_only_train (`bool`): With `"cls"`, use the head in training mode only, as the paper does for unsupervised
            models (Table 6). In evaluation mode, the embedding is then the plain [CLS] output.
        temperature (`float`): The temperature of the contrastive softmax. Defaults to 0.05 for the cosine and to 1 for
            the dot product.
        similarity (`str`): `"cosine"`, or `"dot"` for the dot product ("N/A" in Table D.1).
        hard_negative_weight (`float`): The logarithm of alpha in Eq. 8 (see [`InfoNCE`]).
        do_mlm (`bool`): Carry the masked-LM head, and add its loss if the batch has masked inputs.
        mlm_weight (`float`): Lambda, the weight of the masked-LM loss (appendix A).
        fixed_mask (`bool`): The views of a sentence share one dropout mask ("fixed 0.1" in Table 3).
        max_seq_length (`int`): The number of tokens that texts were truncated to in training, with special tokens.
        objective (`str`): The name of a registered objective (see `simcse_hf.objectives`).
        objective_options (`dict`): The objective's own options.
        matryoshka_dims (`list`): Numbers of leading dimensions that the objective is applied to as well (Kusupati et
            al. 2022). Empty: all dimensions only.
        encoders (`int`): 2 trains an independent encoder for all columns but the first (Table 2).
        templates (`list`): Texts with `{text}` and `[MASK]` that a sentence is put into, for the pooler `"mask"`
            (arXiv:2201.04337). The first is for anchors and for inference, the last for the other columns of training.
            A single sentence becomes one column per template.
        mask_token_id (`int`): The tokenizer's id of `[MASK]`. The Trainer sets it together with `template_edges`.
        template_edges (`list`): For each template, the numbers of tokens before and after the text.
        denoising (`str`): With a single template, `"transform"` or `"tanh"` subtracts the template's own embedding,
            in training and at inference, and names the layer that belongs to the embedding (see [`TemplateHead`]).
            With `"none"`, the embedding is the state at the mask token.
        max_length (`int`, *optional*): The number of tokens that texts are truncated to in inference. `None` stands
            for the limit of the tokenizer and the encoder.
        prompts (`dict[str, str]`): Texts that are put before a sentence, by name, as in sentence-transformers.
        default_prompt_name (`str`, *optional*): The prompt that is used if none is named.
        dense_layers (`list[dict]`): The configs of sentence-transformers' `Dense` modules after the pooler (see
            [`DenseLayer`]).
        normalize (`bool`): Whether sentence-transformers' files end with `Normalize`. `SimCSE.encode` normalizes by
            its own argument, and the model itself never does.

    Raises:
        ValueError: If a value has the wrong type or is outside its range. The message names the setting.
    """

    pooler_type: str = "cls"
    mlp_only_train: bool = False
    temperature: float = None  # type: ignore[assignment]  # __post_init__ fills in the default of the similarity
    similarity: str = "cosine"
    hard_negative_weight: float = 0.0
    do_mlm: bool = False
    mlm_weight: float = 0.1
    fixed_mask: bool = False
    max_seq_length: int = 32
    objective: str = "simcse"
    objective_options: dict = field(default_factory=dict)
    matryoshka_dims: list = field(default_factory=list)
    encoders: int = 1
    templates: list = field(default_factory=list)
    mask_token_id: int = -1
    template_edges: list = field(default_factory=list)
    denoising: str = "none"
    max_length: int | None = None
    prompts: dict = field(default_factory=dict)
    default_prompt_name: str | None = None
    dense_layers: list = field(default_factory=list)
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.temperature is None:
            similarity = self.similarity if self.similarity in SIMILARITIES else "cosine"  # refused below
            object.__setattr__(self, "temperature", resolve_temperature(None, similarity))
        self._check_types()
        self._check_ranges()

    def _check_types(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            expected: Any = setting.type
            # A bool is an int to Python, but `temperature=True` is a mistake.
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if expected is float and is_number:
                object.__setattr__(self, setting.name, float(value))
            elif not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
                raise ValueError(f"{setting.name} must be {getattr(expected, '__name__', expected)}, got {value!r}")

    def _check_ranges(self) -> None:
        poolers = (*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER)
        _require(self.pooler_type in poolers, "pooler_type", f"one of {', '.join(poolers)}", self.pooler_type)
        if (self.pooler_type == TEMPLATE_POOLER) != bool(self.templates):
            raise ValueError(
                f"pooler_type is {self.pooler_type!r} and templates is {self.templates!r}, but the pooler 'mask' and "
                "templates need each other. Set both, for example pooler_type='mask' and "
                "templates=['This sentence : \"{text}\" means [MASK].'], or neither."
            )
        _require(self.denoising in DENOISINGS, "denoising", f"one of {', '.join(DENOISINGS)}", self.denoising)
        if self.denoising != "none" and len(self.templates) != 1:
            raise ValueError(
                f"denoising is {self.denoising!r} and templates is {self.templates!r}, but the embedding of one "
                "template only can be subtracted at inference. Give exactly one template, or set denoising to 'none'."
            )
        _require(self.similarity in SIMILARITIES, "similarity", f"one of {', '.join(SIMILARITIES)}", self.similarity)
        _require(0 < self.temperature < math.inf, "temperature", "a number above 0", self.temperature)
        _require(math.isfinite(self.hard_negative_weight), "hard_negative_weight", "finite", self.hard_negative_weight)
        _require(0 <= self.mlm_weight < math.inf, "mlm_weight", "0 or more", self.mlm_weight)
        length = f"at least {MIN_LENGTH} ([CLS], a token, [SEP])"
        _require(self.max_seq_length >= MIN_LENGTH, "max_seq_length", length, self.max_seq_length)
        _require(self.encoders in (1, 2), "encoders", "1 or 2", self.encoders)
        no_length = self.max_length is None or self.max_length >= MIN_LENGTH
        _require(no_length, "max_length", length, self.max_length)
        are_texts = all(isinstance(text, str) for text in (*self.prompts, *self.prompts.values()))
        _require(are_texts, "prompts", "a table of texts by name", self.prompts)
        names = ", ".join(self.prompts) or "none"
        known = self.default_prompt_name is None or self.default_prompt_name in self.prompts
        _require(known, "default_prompt_name", f"one of the prompts ({names})", self.default_prompt_name)
        are_configs = all(isinstance(layer, dict) for layer in self.dense_layers)
        _require(are_configs, "dense_layers", "a list of tables", self.dense_layers)
        if self.mlp_only_train and self.pooler_type != "cls":
            raise ValueError(
                f"mlp_only_train concerns the head of pooler_type 'cls', but pooler_type {self.pooler_type!r} has "
                "none. Drop mlp_only_train or use pooler_type 'cls'."
            )

    @property
    def inference_pooler(self) -> str:
        """The pooler of evaluation mode: `cls_before_pooler` if the head is for training only."""
        return "cls_before_pooler" if self.mlp_only_train else self.pooler_type

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as they are saved in `config.json`."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: PreTrainedConfig, **overrides: Any) -> "ContrastiveSettings":
        """Read the settings of a config.

        Args:
            config (`PreTrainedConfig`): The config of an encoder. Without the section, the defaults are used.
            overrides (`Any`): Settings that replace those of the config.

        Returns:
            [`ContrastiveSettings`]: The settings. `config` is not changed.

        Raises:
            ValueError: If a setting is unknown, or a value or a dropout rate of the encoder is not valid.
        """
        _check_dropout_rates(config)
        return cls.from_section(getattr(config, SECTION, None), **overrides)

    @classmethod
    def from_section(cls, section: dict[str, Any] | None, **overrides: Any) -> "ContrastiveSettings":
        """Read the settings of the section `simcse`.

        Args:
            section (`dict`, *optional*): The section. Without it, the defaults are used.
            overrides (`Any`): Settings that replace those of the section.

        Returns:
            [`ContrastiveSettings`]: The settings.

        Raises:
            ValueError: If a setting is unknown or a value is not valid.
        """
        section = section or {}
        if not isinstance(section, dict):
            raise ValueError(
                f"The section {SECTION!r} of config.json must be a table of settings, got {section!r}. Remove the "
                "section to use the defaults."
            )
        unknown = sorted((section.keys() | overrides.keys()) - SETTING_NAMES)
        if unknown:
            raise ValueError(
                f"unknown setting(s) {', '.join(unknown)} for the contrastive head; "
                f"known settings are {', '.join(sorted(SETTING_NAMES))}."
            )
        if overrides.get("similarity", section.get("similarity", "cosine")) != section.get("similarity", "cosine"):
            overrides.setdefault("temperature", None)  # the default of the new similarity
        return cls(**{**section, **overrides})


SETTING_NAMES = frozenset(field.name for field in fields(ContrastiveSettings))


def _require(condition: bool, name: str, expectation: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{name} must be {expectation}, got {value!r}")


#: RoBERTa and these relatives count positions from `pad_token_id + 1`: 514 rows of positions serve 512 tokens.
_OFFSET_POSITIONS = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def _check_dropout_rates(config: PreTrainedConfig) -> None:
    for name, rate in config.to_dict().items():
        if "dropout" in name and isinstance(rate, float) and not 0 <= rate <= 1:  # NaN too, which JSON files may hold
            where = f"{config.name_or_path}, config.json" if config.name_or_path else "the encoder's config"
            raise ValueError(f"{where}: {name} is {rate}. Set it to a dropout rate from 0 to 1, such as 0.1.")


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


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: Any, source: str | os.PathLike) -> None:
    """Refuse a tokenizer that has no words, no number as its longest text, or ids that the encoder does not know.

    From a model folder that lacks files of its tokenizer, transformers loads another tokenizer, or an empty one.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        model (`PreTrainedModel`): The model.
        source (`str` or `os.PathLike`): Where the model comes from, for the message.

    Raises:
        ValueError: If the tokenizer has special tokens only, or an id that is not below the number of embeddings, or
            if its `model_max_length` is not a number.
    """
    if not isinstance(longest := tokenizer.model_max_length, (int, float)):
        raise ValueError(
            f"{source}: model_max_length in tokenizer_config.json must be a number of tokens, got {longest!r:.80}"
        )
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # an encoder that reads characters has no table of tokens
        return
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{source}: the tokenizer ({type(tokenizer).__name__}) knows {len(tokenizer)} special tokens and no "
            f"words, because its files are missing. {_SAVE_TOKENIZER}."
        )
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if rows is not None and largest >= rows:
        raise ValueError(
            f"{source}: the tokenizer ({type(tokenizer).__name__}) has ids up to {largest}, but the encoder has "
            f"{rows} embeddings, for the ids below {rows}. The tokenizer belongs to another model, or its files are "
            f"incomplete. {_SAVE_TOKENIZER}; or, if you added tokens, call "
            "model.resize_token_embeddings(len(tokenizer)) before training."
        )
