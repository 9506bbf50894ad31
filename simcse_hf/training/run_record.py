"""The record of a training run: the settings that decide its result, what its dev sets said, and results.json."""

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import accelerate
import datasets
import torch
import transformers
from transformers import TrainerState, TrainingArguments
from transformers.utils import logging

from .._version import __version__
from ..evaluation.compare import describe_difference
from ..evaluation.metrics import higher_is_better, with_scale
from ..models.settings import dropout_rates
from ..ops.errors import changes, refuse_changes
from ..ops.files import read_json_object, read_template, write_atomically, write_json
from ..publishing.secrets import hide_secrets
from .dev_sets import PLAIN_POOLERS, DevSetCallback, dev_change, start_metric
from .output_folder import RESULTS
from .rows import Rows
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: The settings of a run in each of its checkpoints, what was changed at which step, and who decided each setting.
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
# What `results.json` says of the dev sets, all `None` without one.
_OF_DEV_SETS = ("dev_set", "dev_metric", "initial", "best", "final", "start", "saved", "chosen_among")
# Numbers of a larger weight that the digest of a model reads at least.
_READ_NUMBERS = 65_536


def run_settings(
    args: TrainingArguments, model: Any, rows: Rows, dev_sets: Sequence[DevSetCallback], start_digest: str
) -> dict[str, Any]:
    """Return what decides the result of a run, in types that JSON can hold; digests stand for texts and weights.

    Args:
        args (`TrainingArguments`): The arguments of the run.
        model (`ContrastiveModel`): The model.
        rows (`Rows`): The training rows.
        dev_sets (`Sequence[DevSetCallback]`): The dev sets.
        start_digest (`str`): The digest of the weights that the run began with.

    Returns:
        `dict[str, Any]`: Values by the name of the setting.
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
    values["starting weights"] = start_digest
    values |= rows.digests()
    for dev_set in dev_sets:
        content = repr((dev_set.texts, dev_set.gold)).encode()
        values[f"dev set {dev_set.headline}"] = blake2b(content).hexdigest()
    return json.loads(json.dumps(values, default=str))


def hyperparameter_values(args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments that decide what a run learns, in types that JSON can hold."""
    values = {}
    for name, value in args.to_dict().items():
        if not name.startswith(_NOT_HYPERPARAMETERS):
            values[name] = value if isinstance(value, (str, int, float, list, dict)) else None
    return values


def changed_arguments(args: TrainingArguments) -> dict[str, Any]:
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


def weights_digest(model: Any) -> str:
    """Return a digest of a model's weights, of 65,536 to 131,071 numbers of a larger one.

    A head that no embedding goes through is left out: it is drawn anew whenever the model is loaded.

    Args:
        model (`ContrastiveModel`): The model.

    Returns:
        `str`: The digest.
    """
    total = blake2b(digest_size=16)
    unused: set[int] = set()
    if model.settings.pooler_type != "cls":
        unused = {tensor.data_ptr() for tensor in model.contrastive_head.state_dict().values()}
    for name, tensor in model.state_dict().items():
        if not tensor.is_meta and tensor.data_ptr() not in unused:
            step = max(1, tensor.numel() // _READ_NUMBERS)
            numbers = tensor.flatten()[::step].double().cpu().numpy()
            total.update(name.encode() + numbers.tobytes())
    return total.hexdigest()


def compare_settings(checkpoint: str, now: dict[str, Any], allow_changes: bool) -> list[dict[str, Any]]:
    """Compare the settings of a run with those of the checkpoint that it resumes from.

    Args:
        checkpoint (`str`): The checkpoint.
        now (`dict[str, Any]`): See [`run_settings`].
        allow_changes (`bool`): Record a difference instead of refusing it.

    Returns:
        `list[dict]`: The changes so far: `step` and `settings`, each with the earlier and the later value.

    Raises:
        ValueError: If a setting differs.
    """
    record = read_json_object(Path(checkpoint, SETTINGS), "settings", "changes")
    if not allow_changes:
        advice = "Repeat them, or take the changes on purpose with --allow_changes (allow_changes=True)."
        refuse_changes(record["settings"], now, checkpoint, advice)
    found = changes(record["settings"], now)
    if not found:
        return record["changes"]
    logger.warning(f"{checkpoint} is continued with other settings: {found}")
    step = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json"))).global_step
    return [*record["changes"], {"step": step, "settings": found}]


def write_results(
    record: dict[str, Any],
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
) -> dict[str, Any]:
    """Write `results.json` into `output_dir` after training, and print a summary.

    Args:
        record (`dict[str, Any]`): What is known about the run beside its scores.
        args (`SimCSETrainingArguments`): The arguments of the run.
        state (`TrainerState`): Its state.
        dev_sets (`Sequence[DevSetCallback]`): Its dev sets.

    Returns:
        `dict[str, Any]`: The contents of `results.json`: the `initial`, `best` and `final` dev metrics, and `saved`,
        those of the saved weights, each with its step (`best` may be the start); the steps of the evaluations that
        chose the saved weights by the main metric as `chosen_among`; the main metric of the first three
        under its own name (`stsb_spearman`, on a scale of 0 to 100; the metric that selects the best model, if it is
        one of a dev set, and otherwise the headline of the first), its name as `dev_metric`, what training changed in
        it as `change` (see [`dev_change`]; in the first process), and how the run was made. Without a dev set, they
        are `None`.
    """
    path = Path(str(args.output_dir), RESULTS)
    versions = {"simcse_hf": __version__, "python": platform.python_version()}
    for module in (torch, transformers, datasets, accelerate):
        versions[module.__name__] = module.__version__
    results = {
        **dict.fromkeys(_OF_DEV_SETS),
        **_dev_results(args, state, dev_sets, record["changes"]),
        "model": str(path.parent.resolve()),
        **record,
        "train_seconds": last_logged(state, "train_runtime"),
        "command": hide_secrets(sys.argv),
        "versions": versions,
    }
    if state.is_world_process_zero:
        results["change"] = dev_change([(path.parent, results)])
        with write_atomically(path.with_name("trainer_state.json")) as temporary:
            state.save_to_json(str(temporary))
        write_json(path, results)
        _print_summary(results, bool(args.load_best_model_at_end), path)
    return results


def last_logged(state: TrainerState, name: str) -> float | None:
    """Return the last value of a metric in the log of a run, `None` without one."""
    for entry in reversed(state.log_history):
        if name in entry:
            return entry[name]
    return None


def _dev_results(
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    changes: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    if not dev_sets:
        return {}
    sources: dict[str, str] = {}
    for callback in dev_sets:
        sources |= callback.sources
    name = dev_sets[0].headline
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    is_own = selecting.startswith(tuple(f"{dev_set}_" for dev_set in sources))
    if is_own and args.greater_is_better == higher_is_better(selecting):
        name = selecting
    # "pairs_more_average_precision" is a metric of the dev set "pairs_more" and not of "pairs".
    dev_set = max((dev_set for dev_set in sources if name.startswith(f"{dev_set}_")), key=len)
    # What each evaluation with the metric logged, the last one of each step. Scores on a dev set that was changed on
    # purpose cannot be compared with those before.
    begin = 0
    for change in changes:
        if any(setting.startswith("dev set ") for setting in change["settings"]):
            begin = change["step"]
    by_step = {}
    for entry in state.log_history:
        step = entry["step"]
        if f"eval_{name}" in entry and step >= begin:
            logged = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            by_step[step] = {"step": step, **logged}
    if not by_step:
        return {}
    evaluations = list(by_step.values())
    initial = evaluations[0]
    later = evaluations[1:] or evaluations
    saved = later[-1]
    kept = evaluations
    chooses = args.load_best_model_at_end and selecting == name
    if args.load_best_model_at_end:
        # The weights that are saved at the end are those of the best checkpoint; the others were not saved.
        best_checkpoint = Path(state.best_model_checkpoint or "").name
        for entry in later:
            if f"checkpoint-{entry['step']}" == best_checkpoint:
                saved = entry
        kept = [initial, saved, later[-1]]
    choose = max if higher_is_better(name) else min
    best = choose(kept, key=lambda entry: entry[name])
    metrics = {"initial": initial, "best": best, "final": later[-1]}
    # The run is compared with its start as one would use it: an encoder that names no pooler is used with the better
    # of `PLAIN_POOLERS`, and not through a head that was drawn a minute ago.
    start: dict[str, Any] = {"step": initial["step"], "pooler": None, "metric": name, name: initial[name]}
    for pooler in PLAIN_POOLERS:
        metric = start_metric(pooler, name)
        if metric in initial and _is_better(name, initial[metric], start[name]):
            start |= {"pooler": pooler, "metric": metric, name: initial[metric]}
    return {
        "dev_set": sources[dev_set],
        "dev_metric": name,
        name: {when: entry[name] for when, entry in metrics.items()},
        **metrics,
        "start": start,
        "saved": saved,
        "chosen_among": [entry["step"] for entry in later] if chooses else [],
    }


def _is_better(metric: str, value: float, other: float) -> bool:
    return value > other if higher_is_better(metric) else value < other


def describe_change(change: dict[str, Any]) -> str:
    """Say in words what [`dev_change`] returned."""
    return describe_difference(change["difference"], change["low"], change["high"], change["confidence"])


def _print_summary(results: dict[str, Any], best_is_saved: bool, path: Path) -> None:
    values = {**results, "best_is_saved": best_is_saved, "path": path}
    name = results["dev_metric"]
    if name is not None:
        start = results["start"][name]
        values["scale"] = with_scale(name)
        values["change"] = results["change"] and describe_change(results["change"])
        values["is_worse"] = _is_better(name, start, results["saved"][name])
        values["was_better"] = _is_better(name, results["best"][name], start)
    pages = Path(__file__).parent
    print(read_template(pages / "results_of_run.txt").render(values))
    if values.get("is_worse"):
        warning = read_template(pages / "worse_than_start.txt").render(values)
        logger.warning(" ".join(warning.split()))
