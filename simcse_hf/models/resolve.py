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
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..data.views import view_rate
from ..objectives import (
    build_objective,
    find_objective,
    import_objective,
    objective_class,
    part_weights,
    split_options,
)
from ..objectives.checks import DEFAULT_TEMPERATURES
from ..ops.cpu import has_only_cpu
from .pooling import TEMPLATE_POOLER
from .settings import (
    LOSS_OPTIONS,
    SECTION,
    SETTING_NAMES,
    TABLES,
    ContrastiveSettings,
    check_max_length,
    check_setting_names,
    max_positions,
    read_section,
)

logger = logging.get_logger(__name__)

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
_NOTHING_TO_EVALUATE = (
    "eval_strategy and load_best_model_at_end need something to evaluate: name --dev_file or --dev_task, or leave "
    "both out"
)
#: What `datasets` may say about a data set.
DATASET_SETTINGS = ("objective", "objective_options", "prompts", "max_seq_length", "share")


@dataclass(frozen=True)
class Decision:
    """The value of a setting, and the layer that decided it: one of `LAYERS`."""

    value: Any
    layer: str


def decide(**layers: Mapping[str, Any]) -> dict[str, Decision]:
    """Take each setting from the first layer that has it.

    Args:
        layers (`Mapping[str, Any]`): Values by the name of the setting, for some of `LAYERS`, in any order.

    Returns:
        `dict[str, Decision]`: The decision on each setting that some layer has.
    """
    decisions: dict[str, Decision] = {}
    for layer in LAYERS:
        for name, value in layers.get(layer, {}).items():
            decisions.setdefault(name, Decision(value, layer))
    return decisions


def chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the settings that are `None` because nobody has chosen a value."""
    return {name: value for name, value in settings.items() if value is not None or name in _OPTIONAL}


# A model ------------------------------------------------------------------------------------------------------------


def resolve_settings(section: Mapping[str, Any] | None = None, **given: Any) -> ContrastiveSettings:
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
    options = given_options(given)
    shared = shared_options(given)
    given = {name: value for name, value in given.items() if name not in LOSS_OPTIONS}
    check_setting_names(given)
    saved = read_section(section)  # type: ignore[arg-type]
    objective = given.get("objective", saved.get("objective", ContrastiveSettings.objective))
    if "objective" in given or not isinstance(objective, str):
        known_parts(objective)
    if saved.get("objective", objective) != objective:
        saved = {name: value for name, value in saved.items() if name in TABLES["pooling"]}
    saved_options = saved.pop("objective_options", {})
    if not isinstance(saved_options, Mapping):
        raise ValueError(f"objective_options must be a table of options, got {saved_options!r}")
    if "pooler_type" in given and not _poolers(given) & _poolers(saved):
        saved.pop("dense_layers", None)  # they were trained on the embeddings of the other pooler
    paper = {name: value for name, value in paper_settings(objective).items() if name in SETTING_NAMES}
    paper.pop("max_seq_length", None)  # the command line takes it, if the encoder has as many positions
    pooler_type = (paper | saved | given).get("pooler_type", ContrastiveSettings.pooler_type)
    for pooler, names in _OF_POOLER.items():
        for name in names:
            if pooler_type != pooler:
                paper.pop(name, None)
            if pooler_type != pooler or saved.get("pooler_type") != pooler:
                saved.pop(name, None)
    values = paper | saved | given
    values["objective_options"] = resolve_options(objective, options, saved_options)
    settings = ContrastiveSettings(**values)
    if settings.dataset_objectives:
        settings = _complete_tables(settings, shared, is_given="dataset_objectives" in given)
    if options:  # refuse values that are not valid before anything is loaded
        with torch.device("meta"):
            for name, used in settings.losses().values():
                if all(find_objective(part) for part in part_weights(name)):
                    build_objective(name, _ANY_SIZE, used)
    return settings


def _complete_tables(settings: ContrastiveSettings, shared: Mapping[str, Any], is_given: bool) -> ContrastiveSettings:
    """Decide every option of the objectives of several data sets, which the caller gave or the checkpoint saved."""
    tables = {}
    for name, own in settings.dataset_objectives.items():
        tables[name] = own
        if own:
            known_options = own.get("objective_options", {})
            new = readable_options(own["objective"], shared)
            if is_given:
                complete = resolve_options(own["objective"], new | known_options)
            else:
                complete = resolve_options(own["objective"], new, known_options)
            tables[name] = {"objective": own["objective"], "objective_options": complete}
    return replace(settings, dataset_objectives=tables)


def settings_of_config(config: PreTrainedConfig) -> ContrastiveSettings:
    """Return the settings that the config of an encoder holds, and the defaults of those that it does not have."""
    return resolve_settings(getattr(config, SECTION, None))


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the objective that a caller gave, in `objective_options` and under their own names.

    Args:
        given (`Mapping[str, Any]`): The settings of the caller.

    Returns:
        `dict[str, Any]`: The options; those of a part keep its name, as `simcse.temperature`.

    Raises:
        ValueError: If an option is given twice with different values.
    """
    options = shared_options(given)
    table = given.get("objective_options") or {}
    if not isinstance(table, Mapping):
        raise ValueError(f"objective_options must be a table of options, got {table!r}")
    for name, value in table.items():
        if options.get(name, value) != value:
            raise ValueError(f"{name} is {options[name]!r} and in objective_options {value!r}: give one of the two")
    return options | dict(table)


def shared_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a caller gave under their own names, which count in every objective that has them."""
    return {name: given[name] for name in LOSS_OPTIONS if given.get(name) is not None}


def resolve_options(
    objective: str, given: Mapping[str, Any], saved: Mapping[str, Any] | None = None
) -> dict[str, Any]:
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
    saved = saved or {}
    parts = part_weights(objective)
    if any(find_objective(part) is None for part in parts):
        return dict(saved) | dict(given)  # a class of the user's own, which is not imported yet
    given_parts = split_options(objective, given)
    try:
        saved_parts = split_options(objective, saved)
    except ValueError as error:
        raise ValueError(f"objective_options of the checkpoint: {error}") from None
    resolved: dict[str, Any] = {}
    for part in parts:
        options = objective_class(part).options() | saved_parts[part]
        new = given_parts[part]
        if new.get("similarity", options.get("similarity")) != options.get("similarity"):
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


def known_parts(objective: Any) -> list[Any]:
    """Return the classes of the parts of an objective that a caller named.

    Args:
        objective (`str`): A name, a sum of names, or the class of a user's own module (`my_package.losses:MyLoss`),
            which is imported.

    Returns:
        `list[type[Objective]]`: The classes.

    Raises:
        ValueError: If an objective is unknown.
    """
    if not isinstance(objective, str):
        raise ValueError(f"objective must be the name of an objective, got {objective!r}")
    classes = []
    for part in part_weights(objective):
        import_objective(part)
        classes.append(objective_class(part))
    return classes


def paper_settings(objective: str) -> dict[str, Any]:
    """Return the settings of the paper of an objective, of a sum those of its first part."""
    first = find_objective(next(iter(part_weights(objective))))
    return {} if first is None else dict(first.defaults)


def _poolers(settings: Mapping[str, Any]) -> set[str]:
    """Return the poolers of training and of inference."""
    poolers = {str(settings.get("pooler_type"))}
    if settings.get("mlp_only_train"):
        poolers.add("cls_before_pooler")
    return poolers


# A command line -----------------------------------------------------------------------------------------------------


def resolve_command(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    section: Mapping[str, Any] | None = None,
    config: PreTrainedConfig | None = None,
    pooler_type: str | None = None,
) -> dict[str, Decision]:
    """Decide the arguments of a training command.

    Settings of the model are decided when it is loaded, by [`resolve_settings`], from what is given. Here the command
    adds its own defaults to them, such as `mlp_only_train` of `simcse-hf train unsup`.

    Args:
        given (`Mapping[str, Any]`): What the command line and the recipe say.
        defaults (`Mapping[str, Any]`): The defaults of the command.
        section (`Mapping[str, Any]`, *optional*): The section `simcse` of the starting checkpoint.
        config (`PreTrainedConfig`, *optional*): The config of the starting checkpoint.
        pooler_type (`str`, *optional*): The pooler that the starting checkpoint was saved with, if it has one.

    Returns:
        `dict[str, Decision]`: The decision on each argument that some layer has.

    Raises:
        ValueError: If the objective is unknown, or nothing could be evaluated as it is asked for.
    """
    saved = read_section(section)  # type: ignore[arg-type]
    objective = given.get("objective", saved.get("objective", ContrastiveSettings.objective))
    if "objective" in given:
        known_parts(objective)
    checkpoint = {}
    if saved.get("objective") == objective and "max_seq_length" in saved:
        checkpoint["max_seq_length"] = saved["max_seq_length"]
    paper = paper_settings(objective)
    for name in SETTING_NAMES - {"max_seq_length"}:
        paper.pop(name, None)  # the model finds them in the same table
    positions = None if config is None else max_positions(config)
    if positions is not None and positions < paper.get("max_seq_length", 0):
        logger.info(f"max_seq_length is {positions}, because the encoder has no more positions.")
        paper["max_seq_length"] = positions
    command = _evaluation_defaults(given, dict(defaults))
    pooler = given.get("pooler_type") or pooler_type or paper_settings(objective).get("pooler_type", "cls")
    if pooler != "cls" or saved.get("pooler_type") == "cls" or "mlp_only_train" in paper_settings(objective):
        command.pop("mlp_only_train", None)  # the head belongs to the pooler cls, and a checkpoint knows its use
    return decide(given=given, checkpoint=checkpoint, paper=paper, command=command)


def _evaluation_defaults(given: Mapping[str, Any], command: dict[str, Any]) -> dict[str, Any]:
    """Let the defaults of evaluation and saving give way to what is given."""
    # There is no best model without a dev set, and transformers loads one only if saving keeps step with evaluation.
    if given.get("dev_file") is None and not given.get("dev_task"):
        if str(given.get("eval_strategy", "no")) != "no" or given.get("load_best_model_at_end"):
            raise ValueError(_NOTHING_TO_EVALUATE)
        command |= {"eval_strategy": "no", "load_best_model_at_end": False}
        return command
    command["eval_on_start"] = True
    if "save_strategy" not in given:
        command["save_strategy"] = given.get("eval_strategy", command.get("eval_strategy", "steps"))
    if "save_steps" not in given and "eval_steps" in given:
        command["save_steps"] = given["eval_steps"]  # as in the reference, a model is saved whenever it is evaluated
    if "eval_steps" not in given and "save_steps" in given:
        command["eval_steps"] = given["save_steps"]
    values = command | dict(given)
    evaluation = str(values.get("eval_strategy", "no"))
    saving = str(values["save_strategy"])
    in_step = saving == evaluation and evaluation != "no"
    if in_step and evaluation == "steps":
        in_step = values.get("save_steps", 500) % values.get("eval_steps", 500) == 0
    if not in_step and saving != "best":
        command["load_best_model_at_end"] = False
    return command


# A run --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowPlan:
    """How the rows of a data set become token ids.

    Args:
        source (`str`): The name of the data set in messages.
        objective (`str`): The objective that learns from the rows.
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
    options: Mapping[str, Any]
    lengths: tuple[int, int, int]
    prompts: tuple[str, str, str]
    view: str
    view_rate: float | None = None
    share: float | None = None
    frozen: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the rows are made of; see [`Objective`]."""
        return main_class(self.objective).rows


@dataclass(frozen=True)
class Run:
    """A run, decided: what the Trainer works with.

    Args:
        arguments (`SimCSETrainingArguments`): A copy of the caller's arguments without anything left open.
        settings (`dict[str, Any]`): The settings that the run writes into the model.
        rows (`RowPlan`): How training rows are read; with several data sets, how those without a plan of their own.
        datasets (`dict[str, RowPlan]`): How the rows of each of several data sets are read, by its name.
        decisions (`dict[str, Decision]`): Who decided each setting that the caller may leave open.
    """

    arguments: Any
    settings: dict[str, Any]
    rows: RowPlan
    datasets: dict[str, RowPlan]
    decisions: dict[str, Decision]

    def decided_by(self) -> dict[str, str]:
        """Return the layer that decided each setting, by its name."""
        return {name: decision.layer for name, decision in self.decisions.items()}


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
    tables = {}
    losses = {}
    if dataset_names or args.datasets:
        tables = _dataset_tables(args, dataset_names)
        losses = _dataset_losses(settings, model.given_settings, tables)
    decisions = _open_arguments(args, settings, headline, is_stream)
    arguments = with_values(args, **{name: decision.value for name, decision in decisions.items()})
    decisions |= _decisions_of_model(model) | decisions
    rows = _row_plan(arguments, args, settings, "train_dataset", {}, (settings.objective, settings.objective_options))
    plans = {}
    for name, own in tables.items():
        source = f"train_dataset[{name!r}]"
        loss = losses.get(name, (settings.objective, settings.objective_options))
        plans[name] = _row_plan(arguments, args, settings, source, own, loss)
    for plan in plans.values() or [rows]:
        check_max_length(max(plan.lengths), model.config)
    written = _settings_of_run(arguments, settings, model.given_settings, rows, plans, losses)
    return Run(arguments, written, rows, plans, decisions)


def _decisions_of_model(model: Any) -> dict[str, Decision]:
    """Say who decided each setting of a model and each option of its objective, see [`resolve_settings`]."""
    settings: ContrastiveSettings = model.settings
    given = model.given_settings.keys() | given_options(model.given_settings).keys()
    layers = {
        "given": given,
        "checkpoint": model.saved_settings.keys() | model.saved_settings.get("objective_options", {}).keys(),
        "paper": paper_settings(settings.objective).keys(),
    }
    values = settings.to_dict()
    values |= values.pop("objective_options")
    decisions = {}
    for name, value in values.items():
        names = {name, name.rpartition(".")[2]}
        deciding = [layer for layer, known in layers.items() if names & known]
        decisions[name] = Decision(value, deciding[0] if deciding else "default")
    return decisions


def with_values(args: Any, **values: Any) -> Any:
    """Return a copy of training arguments with other values; the arguments themselves stay as they are."""
    twin = copy(args)
    for name, value in values.items():
        setattr(twin, name, value)
    return twin


def _open_arguments(
    args: Any, settings: ContrastiveSettings, headline: str | None, is_stream: bool
) -> dict[str, Decision]:
    """Decide the arguments that are `None` where nobody has chosen a value."""
    view, rate = main_class(settings.objective).view
    default: dict[str, Any] = {
        "view": view,
        "dataloader_num_workers": 0 if is_stream or args.use_cpu else default_loader_workers(),
    }
    if args.view in (None, view):
        default["view_rate"] = rate
    if args.needs_best_metric:
        default["metric_for_best_model"] = headline or "loss"
    names = (*default, "view_rate", "metric_for_best_model", "greater_is_better", "max_seq_length")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    metric = given.get("metric_for_best_model", default.get("metric_for_best_model"))
    if metric is not None:
        default["greater_is_better"] = metric == headline or args.is_higher_better(metric)
    if is_stream:
        default["ignore_data_skip"] = True  # a stream finds its own place in the checkpoint
    return decide(given=given, checkpoint={"max_seq_length": settings.max_seq_length}, default=default)


def default_loader_workers() -> int:
    """Return how many processes make batches: up to 4 for each GPU, and none without a GPU."""
    if has_only_cpu() or not torch.cuda.is_available():
        return 0
    return min(4, (os.cpu_count() or 1) // torch.cuda.device_count())


def main_class(objective: str) -> Any:
    """Return the class of an objective, of a sum that of its first part."""
    return objective_class(next(iter(part_weights(objective))))


def _dataset_tables(args: Any, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what the arguments say about each data set of the training data."""
    tables = args.datasets or {}
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
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < float("inf"):
                raise ValueError(f"data set {name!r}: share must be a number above 0, got {share!r}")
    if 0 < shares < len(names):
        raise ValueError(f"datasets: {shares} of {len(names)} data sets have a share: give all of them one, or none")
    return {name: tables.get(name, {}) for name in names}


def _dataset_losses(
    settings: ContrastiveSettings, given: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Decide the objective of each data set that names one, as it would be decided for this data set alone."""
    # An option that the caller gave for the whole run counts in each objective that has it. A checkpoint's options
    # count under the same objective: those of the data set of this name or, if there is none, those of the model.
    losses = {}
    saved = settings.losses()
    shared = shared_options(given)
    for name, own in tables.items():
        if "objective" not in own:
            continue
        objective = own["objective"]
        known_parts(objective)
        options = readable_options(objective, shared) | dict(own.get("objective_options") or {})
        earlier = saved.get(name, (settings.objective, settings.objective_options))
        same = earlier[1] if earlier[0] == objective else {}
        losses[name] = (objective, resolve_options(objective, options, same))
    return losses


def readable_options(objective: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some options that a part of an objective has, and `matryoshka_dims`."""
    parts = part_weights(objective)
    readable = {}
    for name, value in options.items():
        part, _, option = name.rpartition(".")
        addressed = [part] if part else list(parts)
        has_it = any(other in parts and option in objective_class(other).options() for other in addressed)
        if has_it or name == "matryoshka_dims":
            readable[name] = value
    return readable


def _row_plan(
    resolved: Any,
    given: Any,
    settings: ContrastiveSettings,
    source: str,
    own: Mapping[str, Any],
    loss: tuple[str, dict[str, Any]],
) -> RowPlan:
    objective, options = loss
    prompts = own.get("prompts", given.prompts)
    if prompts is None:
        name = settings.default_prompt_name
        prompts = "" if name is None else settings.prompts[name]
    view, rate = main_class(objective).view
    if given.view is not None:
        rate = given.view_rate if given.view_rate is not None or given.view != view else rate
        view = given.view
    elif given.view_rate is not None and "objective" not in own:
        rate = given.view_rate
    if view != "identity" or rate is not None:
        view_rate(view, rate)  # refuses an unknown view, and a rate that the view does not take
    frozen = {}
    for name, words in {"teacher": given.teacher, "guide": given.guide}.items():
        # One of several data sets may have an objective that reads none.
        if words and ("objective" not in own or name in vectors_of(objective)):
            frozen[name] = [words] if isinstance(words, str) else list(words)
    lengths = by_column(own.get("max_seq_length", resolved.max_seq_length), "max_seq_length", source)
    return RowPlan(
        source=source,
        objective=objective,
        options=options,
        lengths=lengths,
        prompts=by_column(prompts, "prompts", source),
        view=view,
        view_rate=rate,
        share=own.get("share"),
        frozen=frozen,
    )


def vectors_of(objective: str) -> set[str]:
    """Return which vectors of frozen models the parts of an objective read: `teacher` or `guide`."""
    names: set[str] = set()
    for part in part_weights(objective):
        names.update(objective_class(part).vectors)
    return names


def by_column(value: Any, name: str, source: str = "") -> Any:
    """Return the value of an anchor, a positive and a negative, which a table may give for each of them.

    Args:
        value (`Any`): One value for all columns, or a table.
        name (`str`): The argument, for messages.
        source (`str`, *optional*): The data set, for messages.

    Returns:
        `tuple`: The three values. Without one for hard negatives, they have that of the positive.

    Raises:
        ValueError: If the table names other columns, or a length is missing or too small.
    """
    where = f"{source}: {name}" if source else name
    if isinstance(value, dict):
        unknown = [column for column in value if column not in COLUMNS]
        if unknown:
            raise ValueError(f"{where} has values for the columns {', '.join(COLUMNS)}, got {', '.join(unknown)}")
        if name == "max_seq_length" and not {"anchor", "positive"} <= value.keys():
            raise ValueError(f"{where} by column needs a number for anchor and one for positive, got {value}")
        positive = value.get("positive", "")
        values = (value.get("anchor", ""), positive, value.get("negative", positive))
    else:
        values = (value, value, value)
    if name == "max_seq_length":
        for length in values:
            if not isinstance(length, int) or length < 3:
                raise ValueError(f"{where} must be at least 3 ([CLS], a token, [SEP]), got {value}")
    return values


def _settings_of_run(
    args: Any,
    settings: ContrastiveSettings,
    given: Mapping[str, Any],
    rows: RowPlan,
    plans: Mapping[str, RowPlan],
    losses: Mapping[str, tuple[str, dict[str, Any]]],
) -> dict[str, Any]:
    """Return the settings that a run writes into its model."""
    everything = list(plans.values()) or [rows]
    written: dict[str, Any] = {
        "max_seq_length": max(max(plan.lengths) for plan in everything),
        "fixed_mask": args.view == "fixed_mask",
        "dataset_objectives": {},
    }
    if losses:
        for name in plans:
            own = losses.get(name)
            table = {} if own is None else {"objective": own[0], "objective_options": own[1]}
            written["dataset_objectives"][name] = table
        if len(losses) == len(plans):  # the model's own objective is then that of the first data set
            written["objective"], written["objective_options"] = losses[next(iter(plans))]
    similarities = []
    for plan in everything:
        similarities += [value for name, value in plan.options.items() if name.rpartition(".")[2] == "similarity"]
    if similarities and "similarity_fn_name" not in given:
        written["similarity_fn_name"] = similarities[0]
    return written | _prompt_settings(args, settings, everything)


def _prompt_settings(args: Any, settings: ContrastiveSettings, plans: Sequence[RowPlan]) -> dict[str, Any]:
    """Return the prompts that are saved with the model: those of training, in place of its own of the same name.

    They are those of the run or, if it has none, of the first data set that has some.
    """
    known = {name: text for name, text in settings.prompts.items() if text}
    tables = [own for own in (args.datasets or {}).values() if own.get("prompts") is not None]
    if args.prompts is not None:
        query, document, _ = by_column(args.prompts, "prompts")
    elif tables:
        query, document, _ = by_column(tables[0]["prompts"], "prompts")
    else:
        if known and settings.default_prompt_name is None:
            logger.info(
                f"The model has the prompts {known}, which are kept. Training puts none of them before a text unless "
                "prompts (--prompts anchor=... positive=...) names it."
            )
        return {}
    # A text that stands before all texts in training also stands before texts that are neither query nor document.
    default = "query" if query == document else settings.default_prompt_name
    prompts = {**settings.prompts, "query": query, "document": document}
    return {"prompts": prompts, "default_prompt_name": default}
