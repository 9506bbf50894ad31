"""The record of a training run: the settings that decide its result, and its results from the log."""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from hashlib import blake2b
from pathlib import Path

import accelerate
import datasets
import torch
import transformers
from transformers import TrainerState, TrainingArguments
from transformers.utils import logging

from .._version import __version__
from ..evaluation.metrics import higher_is_better
from ..models.modeling import ContrastiveModel
from ..models.settings import Values, dropout_rates
from ..publishing.secrets import hide_secrets
from ..runtime.errors import changes, refuse_changes
from ..runtime.files import read_json_object, write_atomically, write_json
from .arguments import SimCSETrainingArguments
from .dev_sets import PLAIN_POOLERS, DevSetCallback, dev_change, general_changes, start_metric
from .rows import Rows
from .run_results import RESULTS, Changed, DevHistory, Results, RunDescription, Scored, Start, is_better

logger = logging.get_logger(__name__)

#: The settings of a run in each of its checkpoints, and what was changed at which step.
SETTINGS = "run_settings.json"
# Prefixes of arguments that decide where a run writes and what it reports, but not what it learns.
_NOT_HYPERPARAMETERS = tuple(
    "output_dir run_name project report_to logging_ log_ save_ hub_ push_to_hub trackio disable_tqdm do_ local_rank "
    "accelerator_config resume_from_checkpoint dataloader_num_workers dataloader_pin_memory use_cpu include_".split()
)
# Further prefixes of arguments that may change when a run is resumed: evaluation, speed, checks, and names of files
# that have digests among the settings.
_FREE = tuple(
    "eval_ per_device_eval_ load_best_ prediction_loss_only batch_eval_ jit_ enable_jit_ fp16_f bf16_f torch_compile "
    "dataloader_pr dataloader_pe ddp_ debug skip_memory allow_ stop_on_ gradient_checkpointing "
    "activation_checkpointing restore_callback train_file remove_unused deepspeed teacher guide "
    "ignore_data_skip metric_for_best greater_is".split()
)


def run_settings(
    args: TrainingArguments, model: ContrastiveModel, rows: Rows, dev_sets: Sequence[DevSetCallback]
) -> Values:
    """Return what decides the result of a run, in types that JSON can hold; digests stand for texts.

    Args:
        args (`TrainingArguments`): The arguments of the run.
        model (`ContrastiveModel`): The model.
        rows (`Rows`): The training rows.
        dev_sets (`Sequence[DevSetCallback]`): The dev sets.

    Returns:
        `Values`: Values by the name of the setting.
    """
    arguments = hyperparameter_values(args)
    if args.max_steps > 0:
        arguments.pop("num_train_epochs")  # which transformers then ignores
    values = {name: value for name, value in arguments.items() if not name.startswith(_FREE)}
    for name, value in asdict(model.settings).items():
        values[f"model's {name}"] = value
    values |= dropout_rates(model.config)
    values["dtype"] = str(next(model.parameters()).dtype)
    values["processes"] = args.world_size
    values["mixed precision"] = args.mixed_precision
    values |= rows.digests()
    for dev_set in dev_sets:
        content = repr((dev_set.texts, dev_set.gold)).encode()
        values[f"{dev_set.what} set {dev_set.headline}"] = blake2b(content).hexdigest()
    return json.loads(json.dumps(values, default=str))


def hyperparameter_values(args: TrainingArguments) -> Values:
    """Return the arguments that decide what a run learns, in types that JSON can hold."""
    values = {}
    for name, value in args.to_dict().items():
        if not name.startswith(_NOT_HYPERPARAMETERS):
            values[name] = value if isinstance(value, (str, int, float, list, dict)) else None
    return values


def changed_arguments(args: TrainingArguments) -> Values:
    """Return the hyper-parameters that differ from their default, in types that JSON can hold."""
    changed = {}
    values = hyperparameter_values(args)
    for field in fields(args):
        value = values.get(field.name)
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if value is not None and value != default and (value or default):
            changed[field.name] = value
    return changed


def compare_settings(checkpoint: str, now: Values, allow_changes: bool) -> list[Changed]:
    """Compare the settings of a run with those of the checkpoint that it resumes from.

    Args:
        checkpoint (`str`): The checkpoint.
        now (`Values`): See [`run_settings`].
        allow_changes (`bool`): Record a difference instead of refusing it.

    Returns:
        `list[Changed]`: The changes so far.

    Raises:
        ValueError: If a setting differs.
    """
    record = read_json_object(Path(checkpoint, SETTINGS), "settings", "changes")
    before = dict(record["settings"])
    before.pop("starting weights", None)  # of version 0.4, whose other arguments count if they were set
    before = {name: value for name, value in before.items() if value or name in now}
    if not allow_changes:
        advice = "Repeat them, or take the changes on purpose with --allow_changes (allow_changes=True)."
        refuse_changes(before, now, checkpoint, advice)
    found = changes(before, now)
    if not found:
        return record["changes"]
    logger.warning(f"{checkpoint} is continued with other settings: {found}")
    step = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json"))).global_step
    return [*record["changes"], {"step": step, "settings": found}]


def make_results(
    run: RunDescription,
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    weights: str | None = None,
) -> Results:
    """Make the results of a run after training, and write them into `output_dir` in the first process.

    Args:
        run (`RunDescription`): How the run was made.
        args (`SimCSETrainingArguments`): The arguments of the run.
        state (`TrainerState`): Its state.
        dev_sets (`Sequence[DevSetCallback]`): Its dev sets.
        weights (`str`, *optional*): The digest of its encoder.

    Returns:
        [`Results`]: The results.
    """
    folder = Path(str(args.output_dir))
    versions = {"simcse_hf": __version__, "python": platform.python_version()}
    for module in (torch, transformers, datasets, accelerate):
        versions[module.__name__] = module.__version__
    results = Results(
        dev=read_history(args, state, dev_sets, run["changes"]),
        model=str(folder.resolve()),
        run=run,
        train_seconds=last_logged(state, "train_runtime"),
        command=hide_secrets(sys.argv),
        versions=versions,
        weights=weights,
    )
    if state.is_world_process_zero:
        runs = [(folder, results)]
        tasks = {}
        for dev_set in dev_sets:
            if dev_set.what == "general":
                tasks = dict(zip(dev_set.headlines, dev_set.sources.values(), strict=True))
        results = replace(results, change=dev_change(runs), general=general_changes(runs, tasks))
        with write_atomically(folder / "trainer_state.json") as temporary:
            state.save_to_json(str(temporary))
        write_json(folder / RESULTS, results.to_dict())
    return results


def last_logged(state: TrainerState, name: str) -> float | None:
    """Return the last value of a metric in the log of a run, `None` without one."""
    for entry in reversed(state.log_history):
        if name in entry:
            return entry[name]
    return None


def read_history(
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    changes: Sequence[Changed],
) -> DevHistory | None:
    """Read what the evaluations of a run scored from its log, which a resumed run continues.

    Args:
        args (`SimCSETrainingArguments`): The arguments of the run.
        state (`TrainerState`): Its state, with the log.
        dev_sets (`Sequence[DevSetCallback]`): Its dev sets.
        changes (`Sequence[Changed]`): What was changed on purpose when the run was resumed.

    Returns:
        `DevHistory`, *optional*: The history; `None` if nothing was evaluated.
    """
    if not dev_sets:
        return None
    sources: dict[str, str] = {}
    for callback in dev_sets:
        sources |= callback.sources
    metric = _main_metric(args, dev_sets[0].headline, sources)
    evaluations = _evaluations(state, metric, changes)
    if not evaluations:
        return None
    initial = evaluations[0]
    later = evaluations[1:] or evaluations
    final = later[-1]
    saved = final
    kept = evaluations
    if args.load_best_model_at_end:
        # The weights that are saved at the end are those of the best checkpoint; the others were not saved.
        best_checkpoint = Path(state.best_model_checkpoint or "").name
        for scored in later:
            if f"checkpoint-{scored.step}" == best_checkpoint:
                saved = scored
        kept = [initial, saved, final]
    choose = max if higher_is_better(metric) else min
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    return DevHistory(
        # "pairs_more_average_precision" is a metric of the dev set "pairs_more" and not of "pairs".
        dev_set=sources[max((name for name in sources if metric.startswith(f"{name}_")), key=len)],
        metric=metric,
        start=_start(initial, metric),
        initial=initial,
        best=choose(kept, key=lambda scored: scored.metrics[metric]),
        final=final,
        saved=saved,
        chosen_among=[scored.step for scored in later] if args.load_best_model_at_end and selecting == metric else [],
    )


def _main_metric(args: SimCSETrainingArguments, headline: str, sources: Mapping[str, str]) -> str:
    """Return the metric that selects the best model, if it is one of a dev set, and otherwise the headline."""
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    is_own = selecting.startswith(tuple(f"{name}_" for name in sources))
    if is_own and args.greater_is_better == higher_is_better(selecting):
        return selecting
    return headline


def _evaluations(state: TrainerState, metric: str, changes: Sequence[Changed]) -> list[Scored]:
    """Return the evaluations that logged a metric, the last one of each step.

    Scores on a dev set that was changed on purpose cannot be compared with those before.
    """
    begin = 0
    for change in changes:
        if any(setting.startswith("dev set ") for setting in change["settings"]):
            begin = change["step"]
    by_step = {}
    for entry in state.log_history:
        step = int(entry["step"])
        if f"eval_{metric}" in entry and step >= begin:
            metrics = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            by_step[step] = Scored(step, metrics)
    return list(by_step.values())


def _start(initial: Scored, metric: str) -> Start:
    """Return the start as one would use it: with the run's pooler, or with a plain one that scores better."""
    start = Start(initial.step, {metric: initial.metrics[metric]}, metric)
    for pooler in PLAIN_POOLERS:
        name = start_metric(pooler, metric)
        value = initial.metrics.get(name)
        if value is not None and is_better(metric, value, start.metrics[metric]):
            start = Start(initial.step, {metric: value}, name, pooler)
    return start
