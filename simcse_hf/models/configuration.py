"""The `simcse` section of an encoder's config.json: everything the contrastive head needs, validated."""

import math
from dataclasses import asdict, dataclass, field, fields, replace

from transformers import PreTrainedConfig

from ..objectives.info_nce import SIMILARITIES
from .poolers import POOLER_TYPES, TEMPLATE_POOLER

SECTION = "simcse"
MIN_LENGTH = 3  # [CLS], a token and [SEP]


@dataclass(frozen=True)
class ContrastiveSettings:
    """Settings of a contrastive model, saved as the section `simcse` of the backbone's config.

    The section is also the marker by which `from_pretrained(..., head="auto")` knows one of our checkpoints.

    Args:
        pooler_type: one of [`POOLER_TYPES`], or `mask` with `templates`. The dense + tanh head follows `cls` only.
        mlp_only_train: with `cls`, use the head in training mode only (the paper's choice for unsupervised models,
            Table 6); in evaluation mode the vector is then the plain [CLS] output.
        temperature: of the contrastive softmax.
        similarity: `"cosine"`, or `"dot"` for the dot product ("N/A" in Table D.1).
        hard_negative_weight: log of Eq. 8's alpha (see [`InfoNCE`]).
        do_mlm: carry the masked-LM head and, given masked inputs, add its loss.
        mlm_weight: lambda of the auxiliary loss (appendix A).
        fixed_mask: the views of a sentence share one dropout mask ("fixed 0.1" in Table 3).
        max_seq_length: tokens a text was cut to in training, special tokens included.
        objective: name of a registered objective (see `simcse_hf.objectives`).
        objective_options: its own options.
        matryoshka_dims: leading dimensions that each carry the objective too (Kusupati et al. 2022); none: all only.
        encoders: 2 trains an independent encoder for all columns but the first (Table 2).
        templates: texts with `{text}` and `[MASK]` that a text is put into, for pooler `mask` (arXiv:2201.04337): the
            first for anchors and for use, the last for the other columns of training; a single text becomes a column
            for each.
        mask_token_id: of the tokenizer; filled in with `template_edges` where a tokenizer is at hand.
        template_edges: for every template the numbers of tokens before and after the text.

    Raises:
        ValueError: a value of the wrong kind or outside its range, named.
    """

    pooler_type: str = "cls"
    mlp_only_train: bool = False
    temperature: float = 0.05
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

    def __post_init__(self):
        for setting in fields(self):
            value, kind = getattr(self, setting.name), setting.type
            right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, setting.name, float(value))
            elif not right:
                raise ValueError(f"{setting.name} must be {kind.__name__}, got {value!r}")
        poolers = (*POOLER_TYPES, TEMPLATE_POOLER)
        _require(self.pooler_type in poolers, "pooler_type", f"one of {', '.join(poolers)}", self.pooler_type)
        if (self.pooler_type == TEMPLATE_POOLER) != bool(self.templates):
            raise ValueError(
                f"pooler_type is {self.pooler_type!r} and templates are {self.templates!r}: pooler 'mask' and "
                "templates go together, for example templates=['This sentence : \"{text}\" means [MASK].']"
            )
        _require(self.similarity in SIMILARITIES, "similarity", f"one of {', '.join(SIMILARITIES)}", self.similarity)
        _require(0 < self.temperature < math.inf, "temperature", "a number above 0", self.temperature)
        _require(math.isfinite(self.hard_negative_weight), "hard_negative_weight", "finite", self.hard_negative_weight)
        _require(0 <= self.mlm_weight < math.inf, "mlm_weight", "0 or more", self.mlm_weight)
        _require(
            self.max_seq_length >= MIN_LENGTH,
            "max_seq_length",
            "at least 3 ([CLS], a token, [SEP])",
            self.max_seq_length,
        )
        _require(self.encoders in (1, 2), "encoders", "1 or 2", self.encoders)
        if self.mlp_only_train and self.pooler_type != "cls":
            raise ValueError(
                f"mlp_only_train concerns the head of pooler_type 'cls'; pooler_type {self.pooler_type!r} has none. "
                "Drop mlp_only_train or use pooler_type 'cls'."
            )

    @property
    def inference_pooler(self) -> str:
        """The pooler whose vectors are the model's product: `cls_before_pooler` where the head is for training."""
        return "cls_before_pooler" if self.mlp_only_train else self.pooler_type

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_config(cls, config: PreTrainedConfig, **overrides) -> "ContrastiveSettings":
        """The config's section (defaults where it has none), with `overrides` on top.

        Raises:
            ValueError: an unknown setting, or a value that is not valid.
        """
        section = getattr(config, SECTION, None) or {}
        if not isinstance(section, dict):
            raise ValueError(f"the section {SECTION!r} of config.json must be a table of settings, got {section!r}")
        unknown = sorted((section.keys() | overrides.keys()) - SETTING_NAMES)
        if unknown:
            raise ValueError(
                f"unknown setting(s) {', '.join(unknown)} for the contrastive head; "
                f"known are {', '.join(sorted(SETTING_NAMES))}"
            )
        return replace(cls(**section), **overrides) if overrides else cls(**section)


SETTING_NAMES = frozenset(field.name for field in fields(ContrastiveSettings))


def _require(holds: bool, name: str, expectation: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {expectation}, got {value!r}")


def max_positions(config: PreTrainedConfig) -> int | None:
    """Tokens a text may have at most, special tokens included; None where the encoder sets no bound.

    RoBERTa and its relatives count positions from `pad_token_id + 1`: the table serves fewer tokens than it has rows.
    """
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows <= 0:
        return None
    offset = (
        config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS and config.pad_token_id is not None else 0
    )
    return rows - offset


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


def check_max_length(max_seq_length: int, config: PreTrainedConfig) -> None:
    """Raises ValueError for a length without room for a token, or beyond the encoder's positions."""
    if max_seq_length < MIN_LENGTH:
        raise ValueError(f"a max_seq_length of {max_seq_length} leaves no room for [CLS], a token and [SEP]")
    positions = max_positions(config)
    if positions is not None and max_seq_length > positions:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but this encoder ({config.model_type}) has {positions} positions. "
            f"Use max_seq_length {positions} or less."
        )
