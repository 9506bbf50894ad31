"""The one place that decides the settings of a model and of a run.

For each setting the first of these layers that has a value decides:

1. `given`: what the caller wrote, on the command line, in a recipe or in Python;
2. `checkpoint`: what the starting checkpoint was trained with;
3. `paper`: the settings of the objective's paper (`Objective.defaults`);
4. `command`: the defaults of a command, such as those of `simcse-hf train unsup`;
5. `default`: the default of the package.
"""

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..data.views import view_rate
from ..objectives import OBJECTIVES, build_objective, import_objective, objective_class, part_weights, split_options
from ..objectives.info_nce import DEFAULT_TEMPERATURES
from ..ops.cpu import has_only_cpu
from ..ops.suggestions import did_you_mean
from .pooling import TEMPLATE_POOLER
from .settings import (
    LOSS_OPTIONS,
    SECTION,
    SETTING_NAMES,
    TABLES,
    ContrastiveSettings,
    Values,
    check_max_length,
    max_positions,
    read_section,
    readable_options,
)

logger = logging.get_logger(__name__)

#: Values by the name of the setting, and the layer that decided each of them: one of `LAYERS`.
Decisions = tuple[Values, dict[str, str]]
#: An embedding size that every width of a Matryoshka fits into; the model checks its own.
_ANY_SIZE = 1 << 16
LAYERS = ("given", "checkpoint", "paper", "command", "default")
#: `None` is a value of these settings. For all others it means that nobody has chosen one.
_OPTIONAL = ("max_length", "default_prompt_name")
#: Settings that belong to one pooler, and go when another one is chosen.
_OF_POOLER = {
    "cls": ("mlp_only_train",),
    TEMPLATE_POOLER: ("templates", "mask_token_id", "template_edges", "denoising"),
}
#: The columns of a row that may have a prompt and a length of their own; `negative` stands for all hard negatives.
COLUMNS = ("anchor", "positive", "negative")
#: What `datasets` may say about a data set.
DATASET_SETTINGS = ("objective", "objective_options", "prompts", "max_seq_length", "share")
#: Arguments of the Trainer that are `None` where nobody has chosen a value.
_OPEN = (
    "view",
    "dataloader_num_workers",
    "view_rate",
    "metric_for_best_model",
    "greater_is_better",
    "max_seq_length",
)


def decide(**layers: Values) -> Decisions:
    """Take each setting from the first layer that has it.

    Args:
        layers (`Mapping[str, Any]`): Values by the name of the setting, for some of `LAYERS`, in any order.

    Returns:
        `Decisions`: The value of each setting that some layer has, and the layer that decided it.
    """
    values: Values = {}
    decided_by: dict[str, str] = {}
    for layer in reversed(LAYERS):
        own = layers.get(layer, {})
        values |= own
        decided_by |= dict.fromkeys(own, layer)
    return values, decided_by


def chosen(settings: Values) -> Values:
    """Leave out the settings that are `None` because nobody has chosen a value."""
    return {name: value for name, value in settings.items() if value is not None or name in _OPTIONAL}


# A model ------------------------------------------------------------------------------------------------------------


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
    given = chosen(given)
    saved = read_section(section)
    # 1. Options of the objective, which the caller gives in a table and under their own names.
    shared = {name: given.pop(name) for name in LOSS_OPTIONS if name in given}
    table = given.pop("objective_options", {})
    if not isinstance(table, Mapping):
        raise ValueError(f"objective_options must be a table of options, got {table!r}")
    for name, value in table.items():
        if shared.get(name, value) != value:
            raise ValueError(f"{name} is {shared[name]!r} and in objective_options {value!r}: give one of the two")
    options = {**shared, **table}
    unknown = sorted({*given, *saved} - SETTING_NAMES)
    if unknown:
        raise ValueError(
            f"unknown setting(s) {', '.join(unknown)} of a contrastive model{did_you_mean(unknown, SETTING_NAMES)}; "
            f"known settings are {', '.join(sorted(SETTING_NAMES))}."
        )
    # 2. What the checkpoint has saved for the same objective and the same pooler, and what the paper says.
    objective = saved.get("objective", ContrastiveSettings.objective)
    if given.get("objective", objective) != objective:
        saved = {name: value for name, value in saved.items() if name in TABLES["pooling"]}
    if "objective" in given:
        objective = given["objective"]
        import_parts(objective)
    saved_options = saved.pop("objective_options", {})
    saved_tables = saved.get("dataset_objectives", {})
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
    settings = ContrastiveSettings(**(paper | saved | given), objective_options=all_options)
    tables = {}
    for name, own in settings.dataset_objectives.items():
        tables[name] = own
        if not own:
            continue
        # The checkpoint's options are those of the data set of this name or, if there is none, those of the model.
        own_objective = own["objective"]
        own_options: Values = {}
        before = saved_tables.get(name) or {"objective": objective, "objective_options": saved_options}
        if "dataset_objectives" in given:
            import_parts(own_objective)
            own_options = own.get("objective_options") or {}
        own_options = {**readable_options(own_objective, shared), **own_options}
        own_saved = before.get("objective_options", {}) if before["objective"] == own_objective else {}
        decided = resolve_options(own_objective, own_options, own_saved)
        tables[name] = {"objective": own_objective, "objective_options": decided}
    settings = replace(settings, dataset_objectives=tables)
    if options:  # refuse values that are not valid before anything is loaded
        with torch.device("meta"):
            for name, used in settings.losses().values():
                if all(part in OBJECTIVES for part in part_weights(name)):
                    build_objective(name, _ANY_SIZE, used)
    return settings


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
        `dict[str, Any]`: The value of every option; those of a sum as `part.option`.

    Raises:
        ValueError: If no part has a given option. The message names the option and those that there are.
    """
    parts = part_weights(objective)
    if any(part not in OBJECTIVES for part in parts):
        return {**saved, **given}  # a class of the user's own, which is not imported yet
    given_parts = split_options(objective, given)
    try:
        saved_parts = split_options(objective, saved)
    except ValueError as error:
        raise ValueError(f"objective_options of the checkpoint: {error}") from None
    resolved: Values = {}
    for part in parts:
        options = objective_class(part).options | saved_parts[part]
        new = given_parts[part]
        if "similarity" in new and new["similarity"] != options["similarity"]:
            options["temperature"] = None  # that of the checkpoint belongs to the other similarity
        options |= new
        if "temperature" in options and options["temperature"] is None:
            options["temperature"] = DEFAULT_TEMPERATURES.get(str(options.get("similarity", "cosine")))
        for name, value in options.items():
            resolved[f"{part}.{name}" if len(parts) > 1 else name] = value
    widths = given.get("matryoshka_dims", saved.get("matryoshka_dims"))
    if widths:
        resolved["matryoshka_dims"] = list(widths)
    return resolved


def import_parts(objective: Any) -> None:
    """Import what an objective that a caller named needs, and refuse it if it is unknown.

    Args:
        objective (`str`): A name, a sum of names, or the class of a user's own module (`my_package.losses:MyLoss`),
            which is imported.

    Raises:
        ValueError: If an objective is unknown.
    """
    if not isinstance(objective, str):
        raise ValueError(f"objective must be the name of an objective, got {objective!r}")
    for part in part_weights(objective):
        import_objective(part)
        objective_class(part)


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


# A command line -----------------------------------------------------------------------------------------------------


def resolve_command(
    given: Values,
    defaults: Values,
    config: PreTrainedConfig | None = None,
    pooler_type: str | None = None,
) -> Decisions:
    """Decide the arguments of a training command.

    Settings of the model are decided when it is loaded, by [`resolve_settings`], from what is given. Here the command
    adds its own defaults to them, such as `mlp_only_train` of `simcse-hf train unsup`.

    Args:
        given (`Mapping[str, Any]`): What the command line and the recipe say.
        defaults (`Mapping[str, Any]`): The defaults of the command.
        config (`PreTrainedConfig`, *optional*): The config of the starting checkpoint.
        pooler_type (`str`, *optional*): The pooler that the starting checkpoint was saved with, if it has one.

    Returns:
        `Decisions`: The value of each argument that some layer has, and the layer that decided it.

    Raises:
        ValueError: If the objective is unknown, or nothing could be evaluated as it is asked for.
    """
    # 1. What the checkpoint and the paper of the objective say.
    saved = read_section(getattr(config, SECTION, None))
    objective = saved.get("objective", ContrastiveSettings.objective)
    if "objective" in given:
        objective = given["objective"]
        import_parts(objective)
    checkpoint = {}
    if saved.get("objective") == objective and "max_seq_length" in saved:
        checkpoint["max_seq_length"] = saved["max_seq_length"]
    paper = paper_settings(objective)
    pooler = given.get("pooler_type") or pooler_type or paper.get("pooler_type", "cls")
    knows_head = saved.get("pooler_type") == "cls" or "mlp_only_train" in paper
    for name in SETTING_NAMES - {"max_seq_length"}:
        paper.pop(name, None)  # the model finds them in the same table
    positions = None if config is None else max_positions(config)
    if positions is not None and positions < paper.get("max_seq_length", 0):
        logger.info(f"max_seq_length is {positions}, because the encoder has no more positions.")
        paper["max_seq_length"] = positions
    command = dict(defaults)
    if pooler != "cls" or knows_head:
        command.pop("mlp_only_train", None)
    # 2. The defaults of evaluation and saving give way to what is given. There is no best model without a dev set, and
    # transformers loads one only if saving keeps step with evaluation.
    if given.get("dev_file") is None and not given.get("dev_task"):
        if str(given.get("eval_strategy", "no")) != "no" or given.get("load_best_model_at_end"):
            raise ValueError(
                "eval_strategy and load_best_model_at_end need something to evaluate: name --dev_file or --dev_task, "
                "or leave both out"
            )
        command |= {"eval_strategy": "no", "load_best_model_at_end": False}
        return decide(given=given, checkpoint=checkpoint, paper=paper, command=command)
    command["eval_on_start"] = True
    if "save_strategy" not in given:
        command["save_strategy"] = given.get("eval_strategy", command.get("eval_strategy", "steps"))
    if "save_steps" not in given and "eval_steps" in given:
        command["save_steps"] = given["eval_steps"]  # as in the reference, a model is saved whenever it is evaluated
    if "eval_steps" not in given and "save_steps" in given:
        command["eval_steps"] = given["save_steps"]
    values = {**command, **given}
    evaluation = str(values.get("eval_strategy", "no"))
    saving = str(values["save_strategy"])
    in_step = saving == evaluation != "no"
    if in_step and evaluation == "steps":
        in_step = values.get("save_steps", 500) % values.get("eval_steps", 500) == 0
    if not in_step and saving != "best":
        command["load_best_model_at_end"] = False
    return decide(given=given, checkpoint=checkpoint, paper=paper, command=command)


# A run --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowPlan:
    """How the rows of a data set become token ids.

    Args:
        source (`str`): The name of the data set in messages.
        objective (`str`): The objective that learns from the rows.
        kind (`str`): What the rows are made of; see [`Objective`].
        options (`Mapping[str, Any]`): The options of the objective.
        lengths (`tuple[int, int, int]`): The most tokens of an anchor, a positive and a negative.
        prompts (`tuple[str, str, str]`): What is put before an anchor, a positive and a negative.
        view (`str`): How the positive of a single sentence is made.
        view_rate (`float`, *optional*): Share of the words that the view changes. `None` stands for the view's own.
        share (`float`, *optional*): The share of the data set in the batches of a run.
        frozen (`Mapping[str, list[str]]`): The models or folders of vectors that are `teacher` and `guide`.
    """

    source: str
    objective: str
    kind: str
    options: Values
    lengths: tuple[int, int, int]
    prompts: tuple[str, str, str]
    view: str
    view_rate: float | None
    share: float | None
    frozen: Mapping[str, list[str]]


@dataclass(frozen=True)
class Run:
    """A run, decided: what the Trainer works with.

    Args:
        arguments (`SimCSETrainingArguments`): A copy of the caller's arguments without anything left open.
        settings (`dict[str, Any]`): The settings that the run writes into the model.
        rows (`RowPlan`): How training rows are read; with several data sets, how those without a plan of their own.
        datasets (`dict[str, RowPlan]`): How the rows of each of several data sets are read, by its name.
        decided_by (`dict[str, str]`): Who decided each setting, one of `LAYERS`, as in `{"temperature": "paper"}`.
    """

    arguments: Any
    settings: Values
    rows: RowPlan
    datasets: dict[str, RowPlan]
    decided_by: dict[str, str]


def resolve_run(
    args: Any,
    model: Any,
    dataset_names: Sequence[str] = (),
    headline: str | None = None,
    is_stream: bool = False,
) -> Run:
    """Decide everything that the caller of a Trainer has left open.

    Args:
        args (`SimCSETrainingArguments`): The arguments as the caller made them, which stay as they are.
        model (`ContrastiveModel`): The model, with its settings and what its caller chose (`given_settings`).
        dataset_names (`Sequence[str]`, *optional*): The names of several data sets.
        headline (`str`, *optional*): The main metric of the first dev set, if there is one.
        is_stream (`bool`, *optional*, defaults to `False`): Whether the training rows are a stream.

    Returns:
        [`Run`]: The run.

    Raises:
        ValueError: If the settings of a data set or a length do not fit.
    """
    settings: ContrastiveSettings = model.settings
    given: Values = model.given_settings
    saved: Values = model.saved_settings
    # 1. The objective of each data set, as it would be decided for this data set alone.
    tables = args.datasets or {}
    if tables:
        _check_datasets(tables, dataset_names)
    losses: dict[str, Values] = {}
    if any("objective" in own for own in tables.values()):
        for name in dataset_names:
            own = tables.get(name, {})
            losses[name] = {key: own[key] for key in ("objective", "objective_options") if key in own}
        shared = {name: given[name] for name in LOSS_OPTIONS if name in given}
        decided = resolve_settings(settings.to_section(), dataset_objectives=losses, **shared)
        losses = decided.dataset_objectives
    # 2. How the rows of each data set are read.
    main_loss = {"objective": settings.objective, "objective_options": settings.objective_options}
    rows = _row_plan("train_dataset", args, settings, {}, main_loss)
    plans = {}
    for name in dataset_names:
        source = f"train_dataset[{name!r}]"
        loss = losses.get(name) or main_loss
        plans[name] = _row_plan(source, args, settings, tables.get(name, {}), loss)
    everything = list(plans.values()) or [rows]
    for plan in everything:
        for column, length in zip(COLUMNS, plan.lengths, strict=True):
            check_max_length(length, model.config, f"column {column} of {plan.source}: ")
    # 3. What the arguments leave open.
    values, layers_of_arguments = _open_arguments(args, settings, rows, headline, is_stream)
    arguments = with_values(args, **values)
    # 4. What is saved with the model.
    written: Values = {
        "max_seq_length": max(max(plan.lengths) for plan in everything),
        "fixed_mask": rows.view == "fixed_mask",
        "dataset_objectives": losses,
    }
    if losses and all(losses.values()):  # the model's own objective is then that of the first data set
        written |= losses[dataset_names[0]]
    if "similarity_fn_name" not in given:  # a trained model is compared as its first objective with a similarity does
        for plan in everything:
            for option, value in plan.options.items():
                if option.rpartition(".")[2] == "similarity":
                    written.setdefault("similarity_fn_name", value)
    # Prompts are those of the run or, if it has none, of the first data set that has some.
    of_datasets = [own.get("prompts") for own in tables.values()]
    trained = [prompts for prompts in (args.prompts, *of_datasets) if prompts is not None]
    known = {name: text for name, text in settings.prompts.items() if text}
    if trained:
        query, document, _ = by_column(trained[0], "prompts")
        written["prompts"] = {**settings.prompts, "query": query, "document": document}
        if query == document:  # which then also stands before texts that are neither query nor document
            written["default_prompt_name"] = "query"
    elif known and settings.default_prompt_name is None:
        logger.info(
            f"The model has the prompts {known}, which are kept. Training puts none of them before a text unless "
            "prompts (--prompts anchor=... positive=...) names it."
        )
    # 5. Who decided each setting of the model, each option of its objective and each open argument.
    decided_by = dict.fromkeys(vars(settings) | settings.objective_options, "default")
    del decided_by["objective_options"]
    layers = {  # the last one wins
        "paper": paper_settings(settings.objective).keys(),
        "checkpoint": saved.keys() | saved.get("objective_options", {}).keys(),
        "given": given.keys() | given.get("objective_options", {}).keys(),
    }
    for layer, decided in layers.items():
        for name in decided_by:
            if name in decided or name.rpartition(".")[2] in decided:
                decided_by[name] = layer
    return Run(arguments, written, rows, plans, decided_by | layers_of_arguments)


def with_values(args: Any, **values: Any) -> Any:
    """Return a copy of training arguments with other values; the arguments themselves stay as they are."""
    twin = copy(args)
    for name, value in values.items():
        setattr(twin, name, value)
    return twin


def _open_arguments(
    args: Any,
    settings: ContrastiveSettings,
    rows: RowPlan,
    headline: str | None,
    is_stream: bool,
) -> Decisions:
    """Decide the arguments that the caller may leave open."""
    given = chosen({name: getattr(args, name) for name in _OPEN})
    default: Values = {"view": rows.view, "view_rate": rows.view_rate, "dataloader_num_workers": 0}
    if not is_stream and not args.use_cpu:
        default["dataloader_num_workers"] = default_loader_workers()
    if args.needs_best_metric:
        default["metric_for_best_model"] = headline or "loss"
    metric = (default | given).get("metric_for_best_model")
    if metric is not None:
        default["greater_is_better"] = metric == headline or args.is_higher_better(metric)
    if is_stream:
        default["ignore_data_skip"] = True  # a stream finds its own place in the checkpoint
    return decide(given=given, checkpoint={"max_seq_length": settings.max_seq_length}, default=default)


def default_loader_workers() -> int:
    """Return how many processes make batches: up to 4 for each GPU, and none without a GPU."""
    if has_only_cpu() or not torch.cuda.is_available():
        return 0
    processors = os.cpu_count() or 1
    return min(4, processors // torch.cuda.device_count())


def main_class(objective: str) -> Any:
    """Return the class of an objective, of a sum that of its first part."""
    first, *_ = part_weights(objective)
    return objective_class(first)


def _check_datasets(tables: Mapping[str, Values], names: Sequence[str]) -> None:
    """Refuse tables that do not fit the data sets of these names, or that say something unknown."""
    unknown = tables.keys() - set(names)
    if unknown:
        listed = ", ".join(map(repr, names)) or "is one"
        raise ValueError(
            f"datasets has {', '.join(map(repr, tables))}, and train_dataset {listed}: pass "
            "train_dataset={name: rows} with these names"
        )
    shares = 0
    for name, own in tables.items():
        for key in own:
            if key not in DATASET_SETTINGS:
                raise ValueError(
                    f"datasets, {name!r}: {key} is not known; a data set has {', '.join(DATASET_SETTINGS)}"
                )
        if "objective_options" in own and "objective" not in own:
            raise ValueError(f"data set {name!r} has objective_options, but no objective")
        if "share" in own:
            shares += 1
            share = own["share"]
            is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
            if not is_number or not 0 < share < float("inf"):
                raise ValueError(f"data set {name!r}: share must be a number above 0, got {share!r}")
    if 0 < shares < len(names):
        raise ValueError(f"datasets: {shares} of {len(names)} data sets have a share: give all of them one, or none")


def _row_plan(
    source: str,
    args: Any,
    settings: ContrastiveSettings,
    own: Values,
    loss: Values,
) -> RowPlan:
    """Decide how the rows of a data set are read.

    Args:
        source (`str`): The name of the data set in messages.
        args (`SimCSETrainingArguments`): The arguments as the caller made them.
        settings (`ContrastiveSettings`): The settings of the model.
        own (`Mapping[str, Any]`): What `datasets` says about the data set.
        loss (`Mapping[str, Any]`): The `objective` that learns from it and its `objective_options`.

    Returns:
        `RowPlan`: The plan.
    """
    objective = loss["objective"]
    length = settings.max_seq_length if args.max_seq_length is None else args.max_seq_length
    prompts = own.get("prompts", args.prompts)
    if prompts is None:
        prompts = settings.prompts.get(settings.default_prompt_name, "")
    objective_type = main_class(objective)
    its_view, its_rate = objective_type.view
    view = args.view or its_view
    rate = args.view_rate
    if args.view is None and "objective" in own:
        rate = None  # that of the run is for the view of the run's objective
    if rate is None and view == its_view:
        rate = its_rate
    if view != "identity" or rate is not None:
        view_rate(view, rate)  # refuses an unknown view, and a rate that the view does not take
    frozen = {}
    for name in ("teacher", "guide"):
        words = getattr(args, name)
        is_read = any(name in objective_class(part).vectors for part in part_weights(objective))
        if words and (is_read or "objective" not in own):  # one of several data sets may read none
            frozen[name] = [words] if isinstance(words, str) else list(words)
    return RowPlan(
        source=source,
        objective=objective,
        kind=objective_type.rows,
        options=loss["objective_options"],
        lengths=by_column(own.get("max_seq_length", length), f"{source}: max_seq_length"),
        prompts=by_column(prompts, f"{source}: prompts"),
        view=view,
        view_rate=rate,
        share=own.get("share"),
        frozen=frozen,
    )


def by_column(value: Any, where: str) -> Any:
    """Return the value of an anchor, a positive and a negative, which a table may give for each of them.

    Args:
        value (`Any`): One value for all columns, or a table.
        where (`str`): The data set and the argument, for messages.

    Returns:
        `tuple`: The three values. Without one for hard negatives, they have that of the positive.

    Raises:
        ValueError: If the table names other columns.
    """
    if not isinstance(value, dict):
        return value, value, value
    unknown = [column for column in value if column not in COLUMNS]
    if unknown:
        raise ValueError(f"{where} has values for the columns {', '.join(COLUMNS)}, got {', '.join(unknown)}")
    positive = value.get("positive", "")
    return value.get("anchor", ""), positive, value.get("negative", positive)
