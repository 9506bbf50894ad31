"""The record of a training run: protect an earlier one, describe this one, and write results.json."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerate
import datasets
import numpy as np
import torch
import transformers
from transformers import TrainingArguments
from transformers.utils import logging

from .._version import __version__
from ..data.columns import SCORE
from ..data.documents import SpanDataset
from ..data.mixture import MixedRows
from ..data.stream import StreamedRows
from ..data.view_dataset import ViewDataset
from ..data.views import DATASET_VIEWS, DOCUMENT_VIEWS, MASKED_LM_VIEWS, masked_lm_rate
from ..evaluation.compare import describe_difference
from ..evaluation.metrics import higher_is_better
from ..models.settings import ContrastiveSettings, dropout_rates
from ..ops.errors import changes, refuse, refuse_changes
from ..ops.files import STAGING, read_json_object, write_atomically, write_json
from ..publishing.secrets import hide_secrets
from .checkpoints import checkpoints
from .dev_scores import DEV_SCORES, dev_change
from .dev_sets import DevSetCallback, SimilarityEvalCallback

if TYPE_CHECKING:
    from .trainer import SimCSETrainer

logger = logging.get_logger(__name__)

RESULTS = "results.json"
#: Written beside the folders of the runs with several seeds (`--seeds`).
SEEDS = "_seeds.json"

# Prefixes of arguments that decide where a run writes and what it reports, but not what it learns.
_NOT_HYPERPARAMETERS = tuple(
    "output_dir run_name project report_to logging_ log_ save_ hub_ push_to_hub trackio disable_tqdm do_ local_rank "
    "resume_from_checkpoint dataloader_num_workers dataloader_pin_memory use_cpu preprocessing_num_workers "
    "include_".split()
)
# Further prefixes of arguments that may change when a run is resumed: evaluation, speed, checks, and names of files
# that have digests among the settings.
_FREE = tuple(
    "eval_ per_device_eval_ load_best_ prediction_loss_only batch_eval_ jit_ enable_jit_ fp16_f bf16_f torch_compile "
    "dataloader_pr dataloader_pe ddp_ debug skip_memory allow_ stop_on_ gradient_checkpointing restore_callback "
    "train_file remove_unused accelerator_config deepspeed teacher guide".split()
)
#: The settings of a run in each of its checkpoints, and what was changed at which step.
SETTINGS = "run_settings.json"
# Numbers of a larger weight that the digest of a model reads at least.
_READ_NUMBERS = 65_536
# Number of rows that are compared to tell single sentences in several templates from pairs.
_COMPARED_ROWS = 8
# Characters of a text that a card shows as an example, at most.
_WIDGET_LENGTH = 200


def check_output_dir(args: TrainingArguments, overwrite: bool, inputs: Mapping[str, str | None]) -> None:
    """Refuse an `output_dir` that holds another run, unless resuming or overwriting was requested.

    The Trainer verifies the checkpoint when training begins.

    Args:
        args (`TrainingArguments`): Names the directory and the checkpoint.
        overwrite (`bool`): Whether [`clear_output_dir`] may delete the checkpoints and results of an earlier run.
        inputs (`Mapping[str, str]`): Files and folders that the run reads, by the options that name them.

    Raises:
        ValueError: If the directory holds another run, or one of the inputs would be deleted.
    """
    if args.resume_from_checkpoint is not None or args.process_index > 0:
        return
    directory = Path(str(args.output_dir))
    earlier = checkpoints(directory)
    for name, path in inputs.items():
        place = None if path is None else Path(path).resolve()
        lost = place and any(
            place.is_relative_to(folder.resolve()) for folder in (*earlier, *directory.glob("seed-*"))
        )
        refuse(
            {
                f"{name} {path} is a part of the earlier run in {directory}, which --overwrite_output_dir deletes: "
                "choose another --output_dir": lost and overwrite
            }
        )
    if not overwrite and (earlier or any((directory / name).exists() for name in (RESULTS, SEEDS, "config.json"))):
        raise ValueError(
            f"{directory} holds an earlier run. Continue it with --resume_from_checkpoint true, start again with "
            "--overwrite_output_dir, or choose another --output_dir."
        )


def clear_output_dir(args: TrainingArguments) -> None:
    """Delete the checkpoints and results of an earlier run, unless this one resumes it.

    Args:
        args (`TrainingArguments`): Names the directory, which [`check_output_dir`] has checked.
    """
    if args.resume_from_checkpoint is not None or args.process_index > 0:
        return
    directory = Path(str(args.output_dir))
    for folder in (*checkpoints(directory), directory / STAGING, directory / DEV_SCORES):
        shutil.rmtree(folder, ignore_errors=True)
    for name in (RESULTS, SEEDS):
        (directory / name).unlink(missing_ok=True)


# --- the description of a run ----------------------------------------------------------------------------------------


def describe_run(trainer: "SimCSETrainer") -> dict[str, Any]:
    """Describe how a model was trained.

    Args:
        trainer (`SimCSETrainer`): The trainer, after training.

    Returns:
        `dict[str, Any]`: `base_model`, `train_rows`, `num_sentences` (texts in a row), `rows` (what they hold: a name
        in `methods.ROWS`), `view` (`name`, `rate` and `both`, for single sentences), `arguments` (those that differ
        from their default), `steps`, `epochs`, `train_loss` (`None` before the end of training), `processes`,
        `hardware`, `seed`, `dev_texts` (a text of the dev set and others to compare it with, for the card).
    """
    rows = trainer.known_rows
    row_type = describe_rows(trainer)
    return {
        "base_model": trainer.model.name_or_path or None,
        "train_rows": None if rows is None or isinstance(trainer.train_dataset, StreamedRows) else len(rows),
        "num_sentences": None if rows is None or len(rows) == 0 else len(rows[0]["input_ids"]),
        "rows": row_type,
        "view": _view(trainer) if row_type == "sentences" else None,
        "datasets": {name: len(part) for name, part in rows.parts.items()} if isinstance(rows, MixedRows) else None,
        "arguments": changed_arguments(trainer.args) | trainer.found_batch,
        "changes": trainer.changes,
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "train_loss": _last_logged(trainer, "train_loss"),
        "processes": trainer.args.world_size,
        "hardware": hardware(trainer.args.device),
        "seed": trainer.args.seed,
        "dev_texts": _dev_texts(trainer.dev_sets[0]) if trainer.dev_sets else None,
    }


def _dev_texts(dev_set: DevSetCallback) -> list[str]:
    """Return four short texts of a dev set. Of scored pairs, the first two are a pair."""
    texts = dev_set.texts
    if isinstance(dev_set, SimilarityEvalCallback):
        texts = [dev_set.pairs.sentences1[0], *dev_set.pairs.sentences2]
    return [text for text in dict.fromkeys(texts) if len(text) <= _WIDGET_LENGTH][:4]


def describe_rows(trainer: "SimCSETrainer") -> str | None:
    """Return what a training row holds: a name in `methods.ROWS`, or `None` without rows.

    The number of columns does not tell. A single sentence has two if a view of it or a second template is used.
    """
    rows, settings = trainer.known_rows, trainer.model.settings
    if rows is None or len(rows) == 0 or isinstance(rows, MixedRows):
        return None
    if isinstance(rows, SpanDataset):
        return "spans"
    if isinstance(rows, ViewDataset):
        return "sentences"
    if "relations" in rows.column_names:
        return "nli"
    if SCORE in rows.column_names:
        return "scored pairs"
    if trainer.args.view in DOCUMENT_VIEWS:
        return "documents"
    width = len(rows[0]["input_ids"])
    if width == 1 or (
        width == len(settings.templates)
        and all(_is_one_text(rows[i]["input_ids"], settings) for i in range(min(_COMPARED_ROWS, len(rows))))
    ):
        return "sentences"
    return "pairs" if width == 2 else "hard negatives"


def _is_one_text(columns: list[list[int]], settings: ContrastiveSettings) -> bool:
    """Return whether the ids between the templates are those of one text, which a longer template may truncate."""
    edges = settings.template_edges
    texts = [ids[before : len(ids) - after] for ids, (before, after) in zip(columns, edges, strict=True)]
    shortest = min(map(len, texts))
    return all(text[:shortest] == texts[0][:shortest] for text in texts)


def _view(trainer: "SimCSETrainer") -> dict[str, Any] | None:
    """Describe the positives of single sentences; `None` for an objective without positives."""
    args, rows = trainer.args, trainer.known_rows
    if trainer.contrastive_objective.num_views == 1:
        return None
    if not isinstance(rows, ViewDataset):
        return {"name": args.view, "rate": None, "both": False}
    name = args.view if args.view in DATASET_VIEWS else type(rows.view).__name__  # The caller made the data set.
    rate = masked_lm_rate(name, args.view_rate) if name in MASKED_LM_VIEWS else vars(rows.view).get("rate")
    return {"name": name, "rate": rate, "both": rows.both}


def hyperparameter_values(args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments that decide what a run learns, in types that JSON can hold."""
    names = [field.name for field in fields(args) if field.init and not field.name.startswith(_NOT_HYPERPARAMETERS)]
    return {name: _plain(getattr(args, name)) for name in names}


def changed_arguments(args: TrainingArguments) -> dict[str, Any]:
    """Return the hyper-parameters that differ from their default, in types that JSON can hold."""
    changed, values = {}, hyperparameter_values(args)
    for field in fields(args):
        default = _plain(field.default if field.default_factory is MISSING else field.default_factory())
        value = values.get(field.name)
        if default is not MISSING and value is not None and value != default and (value or default):
            changed[field.name] = value
    return changed


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (str, int, float, bool, list, dict, type(MISSING))) else None


def hardware(device: torch.device) -> str:
    """Return the name of the processor that a process runs on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


# --- the settings that decide the result -----------------------------------------------------------------------------


def run_settings(trainer: "SimCSETrainer") -> dict[str, Any]:
    """Return what decides the result of a run, in types that JSON can hold; digests stand for texts and weights."""
    arguments = hyperparameter_values(trainer.args)
    if trainer.args.max_steps > 0:
        arguments.pop("num_train_epochs")  # which transformers then ignores
    dtype = next(trainer.model.parameters()).dtype
    values = {name: value for name, value in arguments.items() if not name.startswith(_FREE)}
    values |= {f"model's {name}": value for name, value in trainer.model.settings.to_dict().items()}
    values |= dropout_rates(trainer.model.config) | {"dtype": str(dtype), "processes": trainer.args.world_size}
    values |= {"starting weights": trainer.start_digest, "training texts": rows_digest(trainer.known_rows)}
    for maker in (trainer.make_rows, *trainer.make_rows.datasets.values()):
        values |= {f"{maker.source}: vectors of the {name}": x.digest for name, x in maker.vectors.items()}
    values |= {
        f"dev set {callback.headline}": blake2b(repr((callback.texts, callback.gold)).encode()).hexdigest()
        for callback in trainer.dev_sets
    }
    return json.loads(json.dumps(values, default=str))


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of a model's weights, of 65,536 to 131,071 numbers of a larger one."""
    total = blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        if not tensor.is_meta:
            part = tensor.detach().flatten()[:: max(1, tensor.numel() // _READ_NUMBERS)]
            total.update(name.encode() + part.double().cpu().numpy().tobytes())
    return total.hexdigest()


def rows_digest(rows: Any) -> str | None:
    """Return a digest of training rows in their order, of a stream's first rows."""
    if isinstance(rows, MixedRows):
        return "+".join(f"{name}:{rows_digest(part)}" for name, part in rows.parts.items())
    rows = getattr(rows, "texts", rows)
    total = blake2b(digest_size=16)
    if isinstance(rows, datasets.Dataset):
        for batch in rows.with_format("arrow").iter(batch_size=10_000):
            for column in batch.columns:
                _add_column(total, column.combine_chunks())
    elif hasattr(rows, "_tokens"):
        total.update(np.asarray(rows._tokens).tobytes())
    else:
        return None
    return total.hexdigest()


def _add_column(total: Any, column: Any) -> None:
    while hasattr(column, "value_lengths"):
        total.update(column.value_lengths().to_numpy(zero_copy_only=False).tobytes())
        column = column.flatten()
    values = column.to_numpy(zero_copy_only=False)
    total.update(repr(values.tolist()).encode() if values.dtype == object else values.tobytes())


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
    path = Path(checkpoint, SETTINGS)
    if not path.exists():
        logger.warning(f"{path} is missing: whether this run has the settings of the earlier one cannot be checked.")
        return []
    record = read_json_object(path, "settings", "changes")
    if not allow_changes:
        advice = "Repeat them, or take the changes on purpose with --allow_changes (allow_changes=True)."
        refuse_changes(record["settings"], now, checkpoint, advice)
    found = changes(record["settings"], now)
    if found:
        logger.warning(f"{checkpoint} is continued with other settings: {found}")
    step = int(Path(checkpoint).name.rpartition("-")[2])
    return record["changes"] + ([{"step": step, "settings": found}] if found else [])


# --- results.json ----------------------------------------------------------------------------------------------------


def write_results(
    trainer: "SimCSETrainer", train_texts: str | None = None, hub_datasets: Sequence[str] = ()
) -> dict[str, Any]:
    """Write `results.json` into `output_dir` after training, and print a summary.

    Args:
        trainer (`SimCSETrainer`): After `train()`.
        train_texts (`str`, *optional*): Name of the training texts, for the record.
        hub_datasets (`Sequence[str]`, *optional*, defaults to `()`): Those that are data sets on the hub.

    Returns:
        `dict[str, Any]`: The contents of `results.json`: the `initial`, `best` and `final` dev metrics, and `saved`,
        those of the saved weights, each with its step (`best` may be the start); the main metric of the first three
        under its own name (`stsb_spearman`, on a scale of 0 to 100; the metric that selects the best model, if it is
        one of a dev set, and otherwise the headline of the first), its name as `dev_metric`, what training changed in
        it as `change` (see [`dev_change`]; in the first process), and how the run was made. Without a dev set, they
        are `None`.
    """
    path = Path(str(trainer.args.output_dir), RESULTS)
    modules = (torch, transformers, datasets, accelerate)
    results = {
        **_dev_results(trainer),
        "model": str(path.parent.resolve()),
        **describe_run(trainer),
        "train_seconds": _last_logged(trainer, "train_runtime"),
        "train_texts": train_texts,
        "hub_datasets": [*hub_datasets],
        "command": hide_secrets(sys.argv),
        "settings": trainer.model.settings.to_dict(),
        "versions": {
            "simcse_hf": __version__,
            "python": platform.python_version(),
            **{module.__name__: module.__version__ for module in modules},
        },
    }
    if trainer.is_world_process_zero():
        results["change"] = dev_change([(path.parent, results)])
        with write_atomically(path.with_name("trainer_state.json")) as temporary:
            trainer.state.save_to_json(str(temporary))
        write_json(path, results)
        _print_summary(results, bool(trainer.args.load_best_model_at_end), path)
    return results


def _last_logged(trainer: "SimCSETrainer", name: str) -> float | None:
    return next((entry[name] for entry in reversed(trainer.state.log_history) if name in entry), None)


def _dev_results(trainer: "SimCSETrainer") -> dict[str, Any]:
    if not trainer.dev_sets:
        return {"dev_set": None, "dev_metric": None, **dict.fromkeys(("initial", "best", "final", "saved"))}
    args, state = trainer.args, trainer.state
    sources = {name: source for callback in trainer.dev_sets for name, source in callback.sources.items()}
    name = trainer.dev_sets[0].headline
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    own = any(selecting.startswith(f"{dev_set}_") for dev_set in sources)
    if own and args.greater_is_better == higher_is_better(selecting):
        name = selecting
    # "pairs_more_average_precision" is a metric of the dev set "pairs_more" and not of "pairs".
    dev_set = max((dev_set for dev_set in sources if name.startswith(f"{dev_set}_")), key=len)
    # Scores on a dev set that was changed on purpose cannot be compared with those before.
    begin = max((x["step"] for x in trainer.changes if "dev set " in str([*x["settings"]])), default=0)
    by_step = {
        entry["step"]: {k.removeprefix("eval_"): v for k, v in entry.items() if k == "step" or k.startswith("eval_")}
        for entry in state.log_history
        if f"eval_{name}" in entry and entry["step"] >= begin
    }
    evaluations = [*by_step.values()]
    initial, later = evaluations[0], evaluations[1:] or evaluations
    # The weights that are saved at the end are the last ones, or those of the best checkpoint.
    best_checkpoint = Path(state.best_model_checkpoint or "").name if args.load_best_model_at_end else None
    saved = next((entry for entry in later if f"checkpoint-{entry['step']}" == best_checkpoint), later[-1])
    kept = evaluations if best_checkpoint is None else [initial, saved, later[-1]]  # the others were not saved
    best = (max if higher_is_better(name) else min)(kept, key=lambda entry: entry[name])
    metrics = {"initial": initial, "best": best, "final": later[-1]}
    return {
        "dev_set": sources[dev_set],
        "dev_metric": name,
        name: {when: entry[name] for when, entry in metrics.items()},
        **metrics,
        "saved": saved,
    }


def describe_change(change: dict[str, Any]) -> str:
    """Say in words what [`dev_change`] returned."""
    return describe_difference(*(change[name] for name in ("difference", "low", "high", "confidence")))


def _warn_of_harm(results: dict[str, Any]) -> None:
    """Warn if the saved weights are worse on the dev set than those that the run began with."""
    name, start, saved = results["dev_metric"], results["initial"], results["saved"]
    if (saved[name] - start[name]) * (1 if higher_is_better(name) else -1) >= 0:
        return
    best, change = results["best"]["step"], results["change"]
    described = f" ({describe_change(change)})" if change else ""
    better = f"step {best} was better: save it with load_best_model_at_end"
    logger.warning(
        f"Training has made the model worse: {name} was {start[name]:.2f} at step {start['step']} and is "
        f"{saved[name]:.2f} with the saved weights of step {saved['step']}{described}; "
        f"{'no evaluation was better than the start' if best == start['step'] else better}. Keep the model that the "
        "run began with, or train again with a lower learning_rate, or with texts that are closer to the dev set."
    )


def _print_summary(results: dict[str, Any], best_is_saved: bool, path: Path) -> None:
    name = results["dev_metric"]
    if name is not None:
        print(f"\nDev set {results['dev_set']}, {'Spearman' if name.endswith('_spearman') else name} x 100")
        print(f"  before training   {results[name]['initial']:6.2f}")
        print(f"  best              {results[name]['best']:6.2f}   (step {results['best']['step']})")
        print(f"  last step         {results[name]['final']:6.2f}   (step {results['final']['step']})")
        if results["change"]:
            print(f"  change           {describe_change(results['change'])}")
        _warn_of_harm(results)
    which = "best" if best_is_saved else "last"
    print(f"The {which} model of the training is saved in {path.parent}; its metrics are in {path}.")
