"""The settings of a contrastive model, as they are saved in `config.json`: who decides them, and the encoder's limits.

The first of these that has a value decides:

1. what the caller wrote, on the command line, in a recipe or in Python;
2. what the starting checkpoint was trained with;
3. the settings of the objective's paper (`Objective.defaults`);
4. the defaults of a command, such as those of `simcse-hf train unsup`;
5. the default of the package.

Here this holds for a model. `training.decide` decides the settings of a run by the same order.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import chain
from numbers import Integral
from typing import Any

from transformers import AutoModel, PreTrainedConfig

from ..objectives import (
    OBJECTIVES,
    described_objective,
    import_objective,
    objective_class,
    part_weights,
    split_options,
)
from ..objectives.info_nce import DEFAULT_TEMPERATURES
from ..objectives.promptbert import DENOISINGS
from ..runtime.errors import ModelError, SettingError, check_values, did_you_mean
from .pooling import POOLERS, TEMPLATE_POOLER

#: Settings, options or arguments by their names, and objects of JSON files.
Values = dict[str, Any]
SECTION = "simcse"
#: The entry of `config.json` with a threshold for cosines. It belongs to the weights, so training removes it.
THRESHOLD = "similarity_threshold"
#: The entry with the teacher whose vectors a student learned, and the student's own embedding of a sentence.
SPACE = "teacher_space"
MIN_LENGTH = 3  # [CLS], a token and [SEP]
#: Similarities that a model may be compared by, under sentence-transformers' names.
SIMILARITY_FUNCTIONS = ("cosine", "dot", "euclidean", "manhattan")

#: `None` is a value of these settings. For all others it means that nobody has chosen one.
_OPTIONAL = ("max_length", "default_prompt_name", "truncate_dim")
#: Pooler-specific settings, dropped when the pooler changes.
_OF_POOLER = {
    "cls": ("mlp_only_train",),
    TEMPLATE_POOLER: ("templates", "mask_token_id", "template_edges", "denoising"),
}


@dataclass(frozen=True)
class PoolingSettings:
    """What makes an embedding of a text: everything that inference needs.

    Args:
        pooler_type (`str`): One of `POOLERS`. `"mask"` needs `templates`, and only `"cls"` uses the dense + tanh
            head.
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
        similarity_fn_name (`str`): The similarity by which embeddings are compared in inference, one of
            `SIMILARITY_FUNCTIONS`. Training sets it to the similarity of the objective, if that has one.
        max_length (`int`, *optional*): The number of tokens that texts are truncated to in inference. `None` stands
            for the limit of the tokenizer and the encoder.
        prompts (`dict[str, str]`): Texts that are put before a sentence, by name, as in sentence-transformers.
        default_prompt_name (`str`, *optional*): The prompt that is used if none is named.
        truncate_dim (`int`, *optional*): How many leading dimensions `SimCSE.encode` keeps, as in
            sentence-transformers. Training and its dev scores use all of them.
    """

    pooler_type: str = "cls"
    mlp_only_train: bool = False
    templates: list = field(default_factory=list)
    mask_token_id: int = -1
    template_edges: list = field(default_factory=list)
    denoising: str = "none"
    dense_layers: list = field(default_factory=list)
    normalize: bool = False
    similarity_fn_name: str = "cosine"
    max_length: int | None = None
    prompts: dict = field(default_factory=dict)
    default_prompt_name: str | None = None
    truncate_dim: int | None = None


@dataclass(frozen=True)
class TrainingSettings:
    """What turns embeddings into a loss: everything that only training needs.

    Args:
        objective (`str`): The name of an objective or a sum of them (see `simcse_hf.objectives`).
        objective_options (`dict`): The options of the objective with the values that are used, such as `temperature`
            and `similarity`; those of a sum after the name of their part, as `simcse.temperature`.
        dataset_objectives (`dict[str, dict]`): For a run on several data sets with different objectives, `objective`
            and `objective_options` of each data set by its name, or nothing for the objective above.
        do_mlm (`bool`): Carry the masked-LM head, and add its loss if the batch has masked inputs.
        mlm_weight (`float`): Lambda, the weight of the masked-LM loss (appendix A).
        fixed_mask (`bool`): The views of a sentence share one dropout mask ("fixed 0.1" in Table 3).
        max_seq_length (`int`): The number of tokens that texts were truncated to in training, with special tokens.
    """

    objective: str = "simcse"
    objective_options: dict = field(default_factory=dict)
    dataset_objectives: dict = field(default_factory=dict)
    do_mlm: bool = False
    mlm_weight: float = 0.1
    fixed_mask: bool = False
    max_seq_length: int = 32


#: The tables of the section `simcse` of `config.json`, with the names of their settings.
TABLES = {
    "pooling": frozenset(setting.name for setting in fields(PoolingSettings)),
    "training": frozenset(setting.name for setting in fields(TrainingSettings)),
}
SETTING_NAMES = frozenset().union(*TABLES.values())
#: Options of objectives that are also keyword arguments of `from_pretrained`, beside the settings.
LOSS_OPTIONS = ("temperature", "similarity", "hard_negative_weight", "matryoshka_dims", "encoders")


@dataclass(frozen=True)
class ContrastiveSettings(PoolingSettings, TrainingSettings):
    """All settings of a contrastive model, saved as the section `simcse` of the encoder's `config.json`.

    The section has two tables, `pooling` ([`PoolingSettings`]) and `training` ([`TrainingSettings`]).
    `from_pretrained(..., head="auto")` recognizes checkpoints of this package by it. [`resolve_settings`] decides
    the values.

    Raises:
        ValueError: If a value has the wrong type or is outside its range. The message names the setting.

    Examples:
        >>> from simcse_hf import ContrastiveSettings
        >>> settings = ContrastiveSettings(pooler_type="avg", objective="cosent")
        >>> settings.to_section()["training"]["objective"]
        'cosent'
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            name = setting.name
            value = getattr(self, name)
            # A bool is an int to Python, but `mlm_weight=True` is a mistake.
            kind: Any = setting.type
            is_bool = isinstance(value, bool)
            if kind is float and isinstance(value, (int, float)) and not is_bool:  # also those of numpy
                object.__setattr__(self, name, float(value))
            elif not isinstance(value, kind) or (is_bool and kind is not bool):
                wanted = getattr(kind, "__name__", kind)
                raise SettingError(f"{name} must be {wanted}, got {value!r}")
        check_values(POOLERS, pooler_type=self.pooler_type)
        check_values(DENOISINGS, denoising=self.denoising)
        check_values(SIMILARITY_FUNCTIONS, similarity_fn_name=self.similarity_fn_name)
        check_values((None, *self.prompts), default_prompt_name=self.default_prompt_name)
        check_values("a number of 0 or more", mlm_weight=self.mlm_weight)
        check_values("an integer above 0", truncate_dim=self.truncate_dim)
        for name in ("max_seq_length", "max_length"):
            length = getattr(self, name)
            if length is not None and length < MIN_LENGTH:
                raise SettingError(f"{name} must be at least {MIN_LENGTH} ([CLS], a token, [SEP]), got {length!r}")
        texts = [*self.prompts, *self.prompts.values()]
        if not all(isinstance(text, str) for text in texts):
            raise SettingError(f"prompts must be a table of texts by name, got {self.prompts!r}")
        for name, own in self.dataset_objectives.items():
            is_table = isinstance(own, dict) and own.keys() in (set(), {"objective", "objective_options"})
            if not is_table or not isinstance(own.get("objective", ""), str):
                raise SettingError(f"dataset_objectives, {name!r}: it must be a table with an objective, got {own!r}")
        if not all(isinstance(layer, dict) for layer in self.dense_layers):
            raise SettingError(f"dense_layers must be a list of tables, got {self.dense_layers!r}")
        if (self.pooler_type == TEMPLATE_POOLER) != bool(self.templates):
            raise SettingError(
                f"pooler_type is {self.pooler_type!r} and templates is {self.templates!r}: set pooler_type='mask' and "
                "templates, such as ['This sentence : \"{text}\" means [MASK].'], or neither."
            )
        if self.denoising != "none" and len(self.templates) != 1:
            raise SettingError(
                f"denoising is {self.denoising!r} and templates is {self.templates!r}: give exactly one template, or "
                "set denoising to 'none'."
            )
        if self.mlp_only_train and self.pooler_type != "cls":
            raise SettingError(
                f"mlp_only_train concerns the head of pooler_type 'cls', and {self.pooler_type!r} has none. Drop "
                "mlp_only_train or use pooler_type 'cls'."
            )

    def to_section(self) -> dict[str, Values]:
        """Return the settings as they are saved in `config.json`."""
        values = asdict(self)
        if self.truncate_dim is None:  # which earlier versions do not know
            del values["truncate_dim"]
        return {
            table: {name: values[name] for name in sorted(names & values.keys())} for table, names in TABLES.items()
        }

    @property
    def inference_pooler(self) -> str:
        """The pooler of evaluation mode: `cls_before_pooler` if the head is for training only."""
        return "cls_before_pooler" if self.mlp_only_train else self.pooler_type

    def losses(self) -> dict[str, tuple[str, Values]]:
        """Return the name and the options of each objective: by its data set, or under `""` for a single one."""
        main = (self.objective, self.objective_options)
        losses = {}
        for name, own in self.dataset_objectives.items():
            losses[name] = (own["objective"], own["objective_options"]) if own else main
        return losses or {"": main}

    @property
    def matryoshka_dims(self) -> list[int]:
        """The widths below the full one that some objective trains, the largest first."""
        widths = (options.get("matryoshka_dims", ()) for _, options in self.losses().values())
        return sorted(set(chain.from_iterable(widths)), reverse=True)


def read_section(section: Mapping[str, Any] | None) -> Values:
    """Return the settings of a section by name, without its two tables.

    Args:
        section (`dict`, *optional*): The section `simcse` of a `config.json`.

    Returns:
        `Values`: The settings that it holds.

    Raises:
        SettingError: If it does not hold the two tables.
    """
    if section is None:
        return {}
    is_table = isinstance(section, dict) and all(isinstance(table, dict) for table in section.values())
    if not is_table or not section.keys() <= TABLES.keys():
        raise SettingError(
            f"The section {SECTION!r} of config.json must hold the tables {' and '.join(TABLES)}, got "
            f"{section!r:.200}. Remove the section to use the defaults."
        )
    values = {}
    for table in section.values():
        values.update(table)
    return values


def chosen(settings: Values) -> Values:
    """Leave out the settings that are `None` because nobody has chosen a value."""
    return {name: value for name, value in settings.items() if value is not None or name in _OPTIONAL}


def resolve_settings(section: Values | None = None, **given: Any) -> ContrastiveSettings:
    """Decide the settings of a model.

    What a checkpoint has saved for training counts only under the same objective; what belongs to one pooler, such as
    its dense layers, only with that pooler.

    Args:
        section (`Mapping[str, Any]`, *optional*): The section `simcse` of the checkpoint's `config.json`.
        given (`Any`): Settings of the caller, and options of the objective under their own names (`LOSS_OPTIONS`).
            `None` means that the caller has none, but for `max_length` and `default_prompt_name`.

    Returns:
        [`ContrastiveSettings`]: The settings.

    Raises:
        SettingError: If a setting is unknown, a value is not valid, or no part of the objective has a given option.
    """
    saved = read_section(section)
    given = chosen(given)
    # 1. Options of the objective, which the caller gives in a table and under their own names.
    shared = {name: given.pop(name) for name in LOSS_OPTIONS if name in given}
    table = given.pop("objective_options", {})
    saved_options = saved.pop("objective_options", {})
    for options in (table, saved_options):
        if not isinstance(options, Mapping):
            raise SettingError(f"objective_options must be a table of options, got {options!r}")
    for name, value in table.items():
        if shared.get(name, value) != value:
            raise SettingError(f"{name} is {shared[name]!r} and in objective_options {value!r}: give one of the two")
    options = {**shared, **table}
    unknown = sorted({*given, *saved} - SETTING_NAMES)
    if unknown:
        raise SettingError(
            f"unknown setting(s) {', '.join(unknown)} of a contrastive model{did_you_mean(unknown, SETTING_NAMES)}; "
            f"known settings are {', '.join(sorted(SETTING_NAMES))}."
        )
    # 2. What the checkpoint has saved for the same objective and the same pooler, and what the paper says.
    objective = saved.get("objective", ContrastiveSettings.objective)
    if given.get("objective", objective) != objective:
        saved = {name: value for name, value in saved.items() if name in TABLES["pooling"]}
        saved_options = {}
    if "objective" in given:
        objective = given["objective"]
        import_objective(objective)
    if "pooler_type" in given and not _poolers(given) & _poolers(saved):
        saved.pop("dense_layers", None)  # they were trained on the embeddings of the other pooler
    taken = SETTING_NAMES - {"max_seq_length"}  # which the command line takes, if the encoder has as many positions
    paper = {name: value for name, value in paper_settings(objective).items() if name in taken}
    pooler_type = (paper | saved | given).get("pooler_type", ContrastiveSettings.pooler_type)
    saved_pooler = saved.get("pooler_type")
    for pooler, names in _OF_POOLER.items():
        for name in names:
            if pooler != pooler_type:
                paper.pop(name, None)
            if pooler != pooler_type or pooler != saved_pooler:
                saved.pop(name, None)
    # 3. The values, with every option of every objective.
    all_options = resolve_options(objective, options, saved_options)
    settings = ContrastiveSettings(**paper | saved | given, objective_options=all_options)
    if options:  # refuse values that are not valid before anything is loaded
        for name, used in settings.losses().values():
            if all(part in OBJECTIVES for part in part_weights(name)):
                described_objective(name, used)
    return settings


def readable_options(objective: str, options: Values) -> Values:
    """Return the options that a part of an objective reads: all of them if its class is not imported."""
    known = {"matryoshka_dims"}
    for part in part_weights(objective):
        found = OBJECTIVES.get(part)
        known.update(options if found is None else found.options)
    return {name: value for name, value in options.items() if name in known}


def settings_of_config(config: PreTrainedConfig) -> ContrastiveSettings:
    """Return the settings that the config of an encoder holds, and the defaults of those that it does not have."""
    return resolve_settings(getattr(config, SECTION, None))


def resolve_options(objective: str, given: Values, saved: Mapping[str, Any] = {}) -> Values:
    """Decide every option of an objective.

    An option goes to every part of a sum that has it, and `simcse.temperature` to one part. The temperature that
    nobody has chosen is the default of the similarity that the part uses, wherever the similarity was chosen.

    Args:
        objective (`str`): The name of an objective, or a sum of names.
        given (`Mapping[str, Any]`): Options of the caller.
        saved (`Mapping[str, Any]`, *optional*): Options of the checkpoint, for the same objective.

    Returns:
        `Values`: The value of every option, those of a sum as `part.option`.

    Raises:
        ModelError: If no part has a given option. The message names the option and those that there are.
    """
    parts = part_weights(objective)
    if any(part not in OBJECTIVES for part in parts):  # a class of the user's own, which is not imported yet
        return {**saved, **given}
    given_parts = split_options(objective, given)
    try:
        saved_parts = split_options(objective, saved)
    except ValueError as error:
        raise ModelError(f"objective_options of the checkpoint: {error}") from None
    resolved: Values = {}
    for part in parts:
        default = dict(objective_class(part).options)
        own = saved_parts[part]
        new = given_parts[part]
        if "similarity" in new and new["similarity"] != (default | own)["similarity"]:
            default["temperature"] = None
            own.pop("temperature", None)  # that of the checkpoint belongs to the other similarity
        options = default | own | new
        if "temperature" in options and options["temperature"] is None:
            options["temperature"] = DEFAULT_TEMPERATURES.get(str(options.get("similarity", "cosine")))
        prefix = f"{part}." if len(parts) > 1 else ""
        resolved |= {prefix + name: value for name, value in options.items()}
    widths = given.get("matryoshka_dims", saved.get("matryoshka_dims"))
    if widths:
        resolved["matryoshka_dims"] = list(widths)
    return resolved


def paper_settings(objective: str) -> Values:
    """Return the settings of the paper of an objective, of a sum those of its first part."""
    first = OBJECTIVES.get(next(iter(part_weights(objective))))
    return {} if first is None else dict(first.defaults)


def _poolers(settings: Values) -> set[str]:
    """Return the poolers of training and of inference."""
    poolers = {str(settings.get("pooler_type"))}
    if settings.get("mlp_only_train"):
        poolers.add("cls_before_pooler")
    return poolers


_UNLIMITED = 1 << 30  # a tokenizer without a length limit reports a far larger number
#: What counts the positions of RoBERTa and its relatives from `pad_token_id + 1`: 514 rows of positions serve 512
#: tokens.
_COUNTS_POSITIONS = "create_position_ids_from_input_ids"
#: Parts of the names of a config's values that change no embedding: heads of other tasks, the first weights, tokens
#: that only tasks read, and what only training or generation uses.
_CHANGE_NOTHING = (
    "classif summary initializer init_std use_cache tie_word bos_ eos_ sep_token cls_token decoder_bias sparse_pred "
    "layerdrop deterministic pretraining_tp"
).split()


@cache
def _counts_from_padding(config_class: type[PreTrainedConfig]) -> bool:
    """Return whether encoders of a config count their positions from `pad_token_id + 1`."""
    encoder = AutoModel._model_mapping.get(config_class, None)
    module = sys.modules.get(getattr(encoder, "__module__", ""))
    parts = vars(module).items() if module else ()
    return any(name == _COUNTS_POSITIONS or hasattr(part, _COUNTS_POSITIONS) for name, part in parts)


def layers_of(config: PreTrainedConfig, settings: PoolingSettings) -> list[object]:
    """Return what decides, beside the weights, how an encoder and the layers after its pooler compute embeddings.

    Args:
        config (`PreTrainedConfig`): The config of the encoder. Only values of its own kind that are not the usual ones
            count, because another version of transformers may add some.
        settings (`PoolingSettings`): The settings of the model.

    Returns:
        `list`: The values of the config in a fixed order, the dense layers, whether vectors become unit vectors,
        and how many dimensions of them are kept.
    """
    usual = type(config)().to_dict()
    left_out = {*PreTrainedConfig().to_dict(), *dropout_rates(config)}
    if not _counts_from_padding(type(config)):  # type: ignore[arg-type]
        left_out.add("pad_token_id")
    values = []
    for name, value in sorted(config.to_dict().items()):
        is_known = name in usual and name not in left_out
        if is_known and value != usual[name] and not any(part in name for part in _CHANGE_NOTHING):
            values.append((name, value))
    normalizes = settings.normalize or settings.similarity_fn_name == "cosine"
    return [values, settings.dense_layers, normalizes, settings.truncate_dim]


def dropout_rates(config: PreTrainedConfig) -> dict[str, float]:
    """Return the dropout rates of an encoder by their names in its config, without those of classification heads."""
    rates = {}
    for name, rate in config.to_dict().items():
        is_dropout = "dropout" in name or name.endswith("pdrop")  # GPT-2's embd_pdrop
        if is_dropout and "classifier" not in name and type(rate) in (int, float):
            rates[name] = rate
    return rates


def length_limit(
    config: PreTrainedConfig,
    settings: PoolingSettings,
    tokenizer_limit: int | None,
    *others: int | None,
) -> int | None:
    """Return the length that texts are cut to unless another is given, in training's dev scores and in inference.

    Args:
        config (`PreTrainedConfig`): The config of the encoder.
        settings (`PoolingSettings`): The settings of the model, which may name a length.
        tokenizer_limit (`int`, *optional*): The tokenizer's `model_max_length`, which counts if they name none.
        *others (`int`, *optional*): Further limits, such as that of a fitted whitening.

    Returns:
        `int`, *optional*: The smallest of the limits in tokens, or `None` if there is none.
    """
    limits = (max_positions(config), settings.max_length or tokenizer_limit, *others)
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
    if not _counts_from_padding(type(config)) or config.pad_token_id is None:  # type: ignore[arg-type]
        return rows
    return rows - config.pad_token_id - 1


def check_max_length(max_seq_length: int, config: PreTrainedConfig, where: str = "") -> None:
    """Refuse a sequence length that leaves no room for a token or exceeds the encoder's positions.

    Args:
        max_seq_length (`int`): The length in tokens, with special tokens.
        config (`PreTrainedConfig`): The config of the encoder.
        where (`str`, *optional*): What messages begin with.

    Raises:
        SettingError: If the length is no integer, too small or too large.
    """
    if not isinstance(max_seq_length, Integral) or max_seq_length < MIN_LENGTH:  # Integral: also those of numpy
        raise SettingError(
            f"{where}max_seq_length must be an integer of at least {MIN_LENGTH} ([CLS], a token, [SEP]), got "
            f"{max_seq_length!r}"
        )
    positions = max_positions(config)
    if positions is not None and max_seq_length > positions:
        raise SettingError(
            f"{where}max_seq_length is {max_seq_length}, but this encoder ({config.model_type}) has {positions} "
            "positions: lower it, or take an encoder that reads longer texts."
        )
