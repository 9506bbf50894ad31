"""Decide a run: what its caller left open, how its rows are read, and what is saved with its model.

`models.settings` says whose word counts, and decides the settings of a model. Everything else about a run is decided
here, once: [`decide_command`] for what a recipe leaves to its command, and [`decide_run`] for what the arguments of a
Trainer leave open.
"""

import math
import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.read import find_paths
from ..data.token_ids import template_settings
from ..data.views import view_rate
from ..evaluation.metrics import find_metric
from ..models.checkpoint import Checkpoint
from ..models.modeling import ContrastiveModel
from ..models.settings import (
    LOSS_OPTIONS,
    SETTING_NAMES,
    ContrastiveSettings,
    Values,
    check_max_length,
    chosen,
    max_positions,
    paper_settings,
    read_section,
    readable_options,
    resolve_options,
)
from ..objectives import described_objective, import_objective
from ..runtime.errors import SettingError, check_values
from ..runtime.files import StrPath
from .arguments import DataArguments, ModelArguments, SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: The columns of a row that may have a prompt and a length of their own; `negative` stands for all hard negatives.
COLUMNS = ("anchor", "positive", "negative")
#: Schedules that follow a metric.
FOLLOW_METRIC = ("reduce_lr_on_plateau", "greedy")
#: What `datasets` may say about a data set.
DATASET_SETTINGS = ("objective", "objective_options", "prompts", "max_seq_length", "share")


@dataclass(frozen=True)
class Decided:
    """The arguments of a recipe, each decided, before the weights of the model are loaded.

    Args:
        given (`Values`): What was written, with the sample of the package where nothing is named.
        is_sample (`bool`): Whether the run trains on the sample.
        checkpoint (`Checkpoint`): The model to start from.
        model (`ModelArguments`): What was chosen for it.
        data (`DataArguments`): The training texts and the dev set.
        training (`SimCSETrainingArguments`): The arguments of the Trainer.
    """

    given: Values
    is_sample: bool
    checkpoint: Checkpoint
    model: ModelArguments
    data: DataArguments
    training: SimCSETrainingArguments

    @property
    def inputs(self) -> list[tuple[str, StrPath]]:
        """The options that name a file or folder that the run reads, with its path."""
        given = self.given
        named = [(f"--{name}", given.get(name)) for name in ("model_name_or_path", "train_file", "dev_file")]
        for option in ("dev_task", "general"):
            for task in given.get(option) or ():
                if isinstance(task, str):  # KIND=FILE, or a file
                    named.append((f"--{option}", task.partition("=")[2] or task))
        for name, own in (given.get("datasets") or {}).items():
            named.append((f"datasets, {name}:", own.get("train_file")))
        inputs = []
        for option, source in named:
            if isinstance(source, (str, os.PathLike)):
                inputs.append((option, source))
            elif isinstance(source, (list, tuple)):  # of files, or rows
                inputs += [(option, path) for path in find_paths(source) or ()]
        return inputs


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
        similarity (`str`): What the objective compares embeddings by; empty if it compares none.
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
    similarity: str


@dataclass(frozen=True)
class Run:
    """A run, decided: what the Trainer works with.

    Args:
        arguments (`SimCSETrainingArguments`): A copy of the caller's arguments without anything left open.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        settings (`Values`): The settings that the run writes into the model, and its `templates`.
        rows (`RowPlan`): How training rows are read; with several data sets, how those without a plan of their own.
        datasets (`dict[str, RowPlan]`): How the rows of each of several data sets are read, by its name.
    """

    arguments: SimCSETrainingArguments
    tokenizer: PreTrainedTokenizerBase
    settings: Values
    rows: RowPlan
    datasets: dict[str, RowPlan]


# What a recipe leaves to its command ---------------------------------------------------------------------------------


def decide_command(given: Values, defaults: Values, checkpoint: Checkpoint) -> Values:
    """Decide the arguments of a training command, and log what the checkpoint and the paper decide.

    Settings of the model are decided by [`resolve_settings`], from what is given. Here the command adds its own
    defaults to them, such as `mlp_only_train` of `simcse-hf train unsup`.

    Args:
        given (`Mapping[str, Any]`): What the recipe says.
        defaults (`Mapping[str, Any]`): The defaults of the command.
        checkpoint (`Checkpoint`): The starting checkpoint.

    Returns:
        `Values`: The value of each argument that somebody has.

    Raises:
        SettingError: If the objective is unknown, or nothing could be evaluated as it is asked for.
    """
    # 1. What the checkpoint and the paper of the objective say.
    saved = read_section(checkpoint.section)
    objective = saved.get("objective", ContrastiveSettings.objective)
    if "objective" in given:
        objective = given["objective"]
        import_objective(objective)
    of_checkpoint = {}
    if saved.get("objective") == objective and "max_seq_length" in saved:
        of_checkpoint["max_seq_length"] = saved["max_seq_length"]
    paper = paper_settings(objective)
    pooler = given.get("pooler_type") or saved.get("pooler_type") or paper.get("pooler_type", "cls")
    knows_head = saved.get("pooler_type") == "cls" or "mlp_only_train" in paper
    for name in SETTING_NAMES - {"max_seq_length"}:
        paper.pop(name, None)  # the model finds them in the same table
    if "num_train_epochs" in given:  # which the steps of a paper would leave without effect
        paper.pop("max_steps", None)
    positions = max_positions(checkpoint.config)
    if positions is not None and positions < paper.get("max_seq_length", 0):
        logger.info(f"max_seq_length is {positions}, because the encoder has no more positions.")
        paper["max_seq_length"] = positions

    # 2. The defaults of the command give way to the head of the checkpoint.
    command = dict(defaults)
    if pooler != "cls" or knows_head:
        command.pop("mlp_only_train", None)

    # 3. There is no best model without a dev set, and one is loaded only if saving keeps step with evaluation.
    if given.get("dev_file") is None and not given.get("dev_task"):
        if given.get("eval_strategy", "no") != "no" or given.get("load_best_model_at_end"):
            raise SettingError(
                "eval_strategy and load_best_model_at_end need something to evaluate: name --dev_file or --dev_task, "
                "or leave both out"
            )
        command |= {"eval_strategy": "no", "load_best_model_at_end": False}
    else:
        # As in the reference, a model is saved whenever it is evaluated.
        command["save_strategy"] = given.get("eval_strategy", command["eval_strategy"])
        command["save_steps"] = given.get("eval_steps", command["save_steps"])
        command["eval_steps"] = given.get("save_steps", command["eval_steps"])
        values = command | given
        evaluation, saving = values["eval_strategy"], values["save_strategy"]
        in_step = saving == evaluation != "no"
        if in_step and evaluation == "steps" and values["eval_steps"]:
            # A share of 0.3 is three times 0.1, but for the rounding. A share and a number have no common multiple.
            times = values["save_steps"] / values["eval_steps"]
            are_alike = (values["save_steps"] < 1) == (values["eval_steps"] < 1)
            in_step = are_alike and times >= 0.5 and math.isclose(times, round(times), rel_tol=1e-6)
        if not in_step and saving != "best":
            command["load_best_model_at_end"] = False
            if values["load_best_model_at_end"] and "load_best_model_at_end" not in given:
                logger.warning(
                    f"The last model is saved in place of the best one: saving ({saving}, {values['save_steps']} "
                    f"steps) does not keep step with evaluation ({evaluation}, {values['eval_steps']} steps)."
                )

    # 4. The first that has a value decides.
    above = dict(given)
    for source, own in {"The starting checkpoint": of_checkpoint, "The objective's paper": paper}.items():
        decided = {name: value for name, value in own.items() if name not in above}
        listed = [f"{name}={value!r}" for name, value in decided.items() if value != defaults.get(name)]
        if listed:
            logger.info(f"{source} decides {', '.join(listed)}. Arguments that are given override it.")
        above |= decided
    return command | above


# What the arguments of a Trainer leave open --------------------------------------------------------------------------


def decide_run(
    args: SimCSETrainingArguments,
    model: ContrastiveModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset_names: Sequence[str] = (),
    headline: str | None = None,
    is_stream: bool = False,
) -> Run:
    """Decide everything that the caller of a Trainer has left open.

    Args:
        args (`SimCSETrainingArguments`): The arguments as the caller made them, which stay as they are.
        model (`ContrastiveModel`): The model that the run starts from.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        dataset_names (`Sequence[str]`, *optional*): The names of several data sets.
        headline (`str`, *optional*): The main metric of the first dev set, if there is one.
        is_stream (`bool`, *optional*, defaults to `False`): Whether the training rows are a stream.

    Returns:
        [`Run`]: The run.

    Raises:
        ValueError: If the settings of a data set or a length do not fit.
    """
    if model.given_settings.get("fixed_mask") and args.view is None:
        args = with_values(args, view="fixed_mask")
    settings = model.settings
    tables: Any = args.datasets or {}
    # 1. What learns from each data set, and how its rows are read.
    of_model: Values = {"objective": settings.objective, "objective_options": settings.objective_options}
    losses = decide_losses(tables, model, of_model, dataset_names) if tables else {}
    rows = _row_plan("train_dataset", args, settings, {}, of_model)
    datasets = {}
    for name in dataset_names:
        loss = losses.get(name) or of_model
        datasets[name] = _row_plan(f"train_dataset[{name!r}]", args, settings, tables.get(name, {}), loss)
    plans = list(datasets.values()) or [rows]
    for plan in plans:
        for column, length in zip(COLUMNS, plan.lengths, strict=True):
            check_max_length(length, model.config, f"column {column} of {plan.source}: ")

    # 2. What the Trainer leaves open. A dev set says whether training has helped only if it has scored the start.
    values: Values = {"view": rows.view, "view_rate": rows.view_rate, "max_seq_length": settings.max_seq_length}
    values["dataloader_num_workers"] = 0
    if torch.cuda.is_available() and not (is_stream or args.use_cpu):
        values["dataloader_num_workers"] = min(4, (os.cpu_count() or 1) // torch.cuda.device_count())
    values["eval_on_start"] = headline is not None and args.eval_strategy != "no"

    # 3. What follows a metric follows that of the first dev set.
    follows_metric = args.lr_scheduler_type in FOLLOW_METRIC
    metric = args.metric_for_best_model
    if args.load_best_model_at_end or args.save_strategy == "best" or follows_metric:
        metric = metric or headline or "loss"
    if metric is not None:
        values |= best_by(metric, headline)
    values |= chosen({name: getattr(args, name) for name in values})
    if follows_metric:
        own: Values = {"mode": "max" if values["greater_is_better"] else "min"}
        if args.lr_scheduler_type == "greedy":
            own["min_lr"] = 0.0  # that of transformers is above most learning rates, so that none would ever fall
        values["lr_scheduler_kwargs"] = own | (args.lr_scheduler_kwargs or {})  # type: ignore[operator]

    # 4. What no caller decides. A callback may change the working directory.
    values["output_dir"] = os.path.abspath(str(args.output_dir))
    if is_stream or dataset_names:
        # Each process takes its own rows. Accelerate would let the first one cut the batches of all.
        values["accelerator_config"] = replace(args.accelerator_config, dispatch_batches=False)  # type: ignore[type-var]
    values["remove_unused_columns"] = False  # the collator takes the columns that the objective reads

    # 5. What is saved with the model: templates, lengths, the view, and the objectives of data sets.
    saved: Values = {
        "templates": settings.templates,
        "max_seq_length": max(max(plan.lengths) for plan in plans),
        "fixed_mask": args.view == "fixed_mask",
        "dataset_objectives": losses,
    }
    if losses and all(losses.values()):  # the model's own objective is then that of the first data set
        saved |= next(iter(losses.values()))
    if settings.templates:
        saved |= template_settings(settings.templates, tokenizer)

    # 6. A trained model is compared as its first objective compares.
    if "similarity_fn_name" not in model.given_settings:
        similarities = [plan.similarity for plan in plans if plan.similarity]  # some objectives compare nothing
        saved["similarity_fn_name"] = [*similarities, "cosine"][0]

    # 7. Its prompts are those of the run or, if it has none, of the first data set that has some.
    of_datasets = [own.get("prompts") for own in tables.values()]
    trained = [prompts for prompts in (args.prompts, *of_datasets) if prompts is not None]
    known = {name: text for name, text in settings.prompts.items() if text}
    if trained:
        query, document, _ = by_column(trained[0], "prompts")
        saved["prompts"] = {**settings.prompts, "query": query, "document": document}
        if query == document:  # which then also stands before texts that are neither query nor document
            saved["default_prompt_name"] = "query"
    elif known and settings.default_prompt_name is None:
        logger.info(
            f"The model has the prompts {known}, which are kept. Training puts none of them before a text unless "
            "prompts (--prompts anchor=... positive=...) names it."
        )
    return Run(with_values(args, **values), tokenizer, saved, rows, datasets)


def decide_losses(
    tables: Mapping[str, Values], model: ContrastiveModel, of_model: Values, names: Sequence[str]
) -> dict[str, Values]:
    """Decide the objective of each data set, as it would be decided for this data set alone.

    Args:
        tables (`Mapping[str, Mapping]`): What `datasets` says about each data set.
        model (`ContrastiveModel`): The model that the run starts from.
        of_model (`Mapping[str, Any]`): The `objective` of the model and its `objective_options`.
        names (`Sequence[str]`): The names of several data sets.

    Returns:
        `dict[str, Values]`: `objective` and `objective_options` by the name of the data set, empty for one that learns
        as the model does; nothing if all of them do.

    Raises:
        SettingError: If `datasets` names an unknown data set or key, or gives some of them a share.
    """
    # 1. What `datasets` says must be known.
    unknown = tables.keys() - set(names)
    if unknown:
        listed = ", ".join(map(repr, names)) or "is one"
        raise SettingError(
            f"datasets has {', '.join(map(repr, tables))}, and train_dataset {listed}: pass "
            "train_dataset={name: rows} with these names"
        )
    for name, own in tables.items():
        for key in own:
            if key not in DATASET_SETTINGS:
                raise SettingError(
                    f"datasets, {name!r}: {key} is not known; a data set has {', '.join(DATASET_SETTINGS)}"
                )
        if "objective_options" in own and "objective" not in own:
            raise SettingError(f"data set {name!r} has objective_options, but no objective")
        check_values("a number above 0", **{f"data set {name!r}: share": own.get("share")})
    shares = sum(own.get("share") is not None for own in tables.values())
    if 0 < shares < len(names):
        raise SettingError(f"datasets: {shares} of {len(names)} data sets have a share: give all of them one, or none")

    # 2. Each objective with its options.
    if not any("objective" in own for own in tables.values()):
        return {}
    shared = {name: model.given_settings[name] for name in LOSS_OPTIONS if name in model.given_settings}
    losses: dict[str, Values] = {}
    for name in names:
        own = tables.get(name, {})
        losses[name] = {}
        if "objective" not in own:
            continue
        objective = own["objective"]
        import_objective(objective)
        # The options of the checkpoint are those of the data set of this name or, without one, those of the model.
        before = model.settings.dataset_objectives.get(name) or of_model
        saved = before["objective_options"] if before["objective"] == objective else {}
        given = {**readable_options(objective, shared), **own.get("objective_options", {})}
        losses[name] = {"objective": objective, "objective_options": resolve_options(objective, given, saved)}
    return losses


# Steps ---------------------------------------------------------------------------------------------------------------


def best_by(metric: str, headline: str | None) -> Values:
    """Return the arguments that choose the best model by a metric, of which the headline of a dev set is a score."""
    higher = metric == headline or find_metric(metric).higher_is_better
    return {"metric_for_best_model": metric, "greater_is_better": higher}


def with_values(args: Any, **values: Any) -> Any:
    """Return a copy of training arguments with other values; the arguments themselves stay as they are."""
    twin = copy(args)
    for name, value in values.items():
        setattr(twin, name, value)
    return twin


def _row_plan(
    source: str, args: SimCSETrainingArguments, settings: ContrastiveSettings, own: Values, loss: Values
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
    objective = described_objective(loss["objective"], loss["objective_options"])
    length = settings.max_seq_length if args.max_seq_length is None else args.max_seq_length
    prompts = own.get("prompts", args.prompts)
    if prompts is None:
        prompts = settings.prompts.get(settings.default_prompt_name, "")
    view, rate = objective.view
    if args.view not in (None, view):
        view, rate = args.view, None
    if args.view_rate is not None and (args.view is not None or "objective" not in own):
        rate = args.view_rate  # without a view, that of the run is for the view of the run's objective
    if view != "identity" or rate is not None:
        view_rate(view, rate)  # refuses an unknown view, and a rate that the view does not take
    frozen = {}
    for name in ("teacher", "guide"):
        words = getattr(args, name)
        if words and (name in objective.vectors or "objective" not in own):  # one of several data sets may read none
            frozen[name] = [words] if isinstance(words, str) else list(words)
    return RowPlan(
        source=source,
        objective=loss["objective"],
        kind=objective.rows,
        options=loss["objective_options"],
        lengths=by_column(own.get("max_seq_length", length), f"{source}: max_seq_length"),
        prompts=by_column(prompts, f"{source}: prompts"),
        view=view,
        view_rate=rate,
        share=own.get("share"),
        frozen=frozen,
        similarity=objective.similarity,
    )


def by_column(value: Any, where: str) -> Any:
    """Return the value of an anchor, a positive and a negative, which a table may give for each of them.

    Args:
        value (`Any`): One value for all columns, or a table.
        where (`str`): The data set and the argument, for messages.

    Returns:
        `tuple`: The three values. Without one for hard negatives, they have that of the positive.

    Raises:
        SettingError: If the table names other columns.
    """
    if not isinstance(value, dict):
        return value, value, value
    unknown = [column for column in value if column not in COLUMNS]
    if unknown:
        raise SettingError(f"{where} has values for the columns {', '.join(COLUMNS)}, got {', '.join(unknown)}")
    positive = value.get("positive", "")
    return value.get("anchor", ""), positive, value.get("negative", positive)
