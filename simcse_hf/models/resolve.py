"""The one place that decides the settings of a model; `training.decide` decides those of a run by the same order.

The first of these that has a value decides:

1. what the caller wrote, on the command line, in a recipe or in Python;
2. what the starting checkpoint was trained with;
3. the settings of the objective's paper (`Objective.defaults`);
4. the defaults of a command, such as those of `simcse-hf train unsup`;
5. the default of the package.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import logging

from ..objectives import (
    OBJECTIVES,
    described_objective,
    import_objective,
    objective_class,
    part_weights,
    split_options,
)
from ..objectives.info_nce import DEFAULT_TEMPERATURES
from ..runtime.errors import did_you_mean
from .pooling import TEMPLATE_POOLER
from .settings import (
    LOSS_OPTIONS,
    SECTION,
    SETTING_NAMES,
    TABLES,
    ContrastiveSettings,
    Values,
    read_section,
)

logger = logging.get_logger(__name__)

#: `None` is a value of these settings. For all others it means that nobody has chosen one.
_OPTIONAL = ("max_length", "default_prompt_name")
#: Pooler-specific settings, dropped when the pooler changes.
_OF_POOLER = {
    "cls": ("mlp_only_train",),
    TEMPLATE_POOLER: ("templates", "mask_token_id", "template_edges", "denoising"),
}


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
        ValueError: If a setting is unknown, a value is not valid, or no part of the objective has a given option.
    """
    saved = read_section(section)
    given = chosen(given)
    # 1. Options of the objective, which the caller gives in a table and under their own names.
    shared = {name: given.pop(name) for name in LOSS_OPTIONS if name in given}
    table = given.pop("objective_options", {})
    saved_options = saved.pop("objective_options", {})
    for options in (table, saved_options):
        if not isinstance(options, Mapping):
            raise ValueError(f"objective_options must be a table of options, got {options!r}")
    for name, value in table.items():
        if shared.get(name, value) != value:
            raise ValueError(f"{name} is {shared[name]!r} and in objective_options {value!r}: give one of the two")
    options = {**shared, **table}
    unknown = sorted({*given, *saved} - SETTING_NAMES)
    if unknown:
        known = f"{did_you_mean(unknown, SETTING_NAMES)}; known settings are {', '.join(sorted(SETTING_NAMES))}."
        raise ValueError(f"unknown setting(s) {', '.join(unknown)} of a contrastive model{known}")
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
        ValueError: If no part has a given option. The message names the option and those that there are.
    """
    parts = part_weights(objective)
    if any(part not in OBJECTIVES for part in parts):  # a class of the user's own, which is not imported yet
        return {**saved, **given}
    given_parts = split_options(objective, given)
    try:
        saved_parts = split_options(objective, saved)
    except ValueError as error:
        raise ValueError(f"objective_options of the checkpoint: {error}") from None
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
