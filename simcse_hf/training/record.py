"""Describe a training run for `results.json` and the model card: its model, data, arguments and hardware."""

import os
import platform
from dataclasses import MISSING, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainingArguments

from ..data.columns import SCORE
from ..data.documents import SpanDataset
from ..data.stream import StreamedRows
from ..data.view_dataset import ViewDataset
from ..data.views import DATASET_VIEWS, DOCUMENT_VIEWS, MASKED_LM_VIEWS, masked_lm_rate
from ..models.settings import ContrastiveSettings

if TYPE_CHECKING:
    from .trainer import SimCSETrainer

# Prefixes of arguments that decide where a run writes and what it reports, but not what it learns.
_NOT_HYPERPARAMETERS = (
    "output_dir",
    "run_name",
    "project",
    "report_to",
    "logging_",
    "log_",
    "save_",
    "hub_",
    "push_to_hub",
    "disable_tqdm",
    "resume_from_checkpoint",
    "do_",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "use_cpu",
    "preprocessing_num_workers",
    "trackio",
    "local_rank",
    "include_",
)

# Number of rows that are compared to tell single sentences in several templates from pairs.
_COMPARED_ROWS = 8


def describe_run(trainer: "SimCSETrainer") -> dict[str, Any]:
    """Describe how a model was trained.

    Args:
        trainer (`SimCSETrainer`): The trainer, after training.

    Returns:
        `dict[str, Any]`: `base_model`, `train_rows`, `num_sentences` (texts in a row), `rows` (what they hold: a name
        in `methods.ROWS`), `view` (`name`, `rate` and `both`, for single sentences), `arguments` (those that differ
        from their default), `steps`, `epochs`, `train_loss` (`None` before the end of training), `processes`,
        `hardware`, `seed`.
    """
    rows = trainer.known_rows
    row_type = describe_rows(trainer)
    return {
        "base_model": trainer.model.name_or_path or None,
        "train_rows": None if rows is None or isinstance(trainer.train_dataset, StreamedRows) else len(rows),
        "num_sentences": None if rows is None or len(rows) == 0 else len(rows[0]["input_ids"]),
        "rows": row_type,
        "view": _view(trainer) if row_type == "sentences" else None,
        "arguments": changed_arguments(trainer.args),
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "train_loss": next((x["train_loss"] for x in reversed(trainer.state.log_history) if "train_loss" in x), None),
        "processes": trainer.args.world_size,
        "hardware": hardware(trainer.args.device),
        "seed": trainer.args.seed,
    }


def describe_rows(trainer: "SimCSETrainer") -> str | None:
    """Return what a training row holds: a name in `methods.ROWS`, or `None` without rows.

    The number of columns does not tell. A single sentence has two if a view of it or a second template is used.
    """
    rows, settings = trainer.known_rows, trainer.model.settings
    if rows is None or len(rows) == 0:
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
    texts = [
        ids[before : len(ids) - after] for ids, (before, after) in zip(columns, settings.template_edges, strict=True)
    ]
    shortest = min(map(len, texts))
    return all(text[:shortest] == texts[0][:shortest] for text in texts)


def _view(trainer: "SimCSETrainer") -> dict[str, Any] | None:
    """Describe the positives of single sentences; `None` for an objective without positives."""
    args, rows = trainer.args, trainer.known_rows
    if trainer.objective.num_views == 1:
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


def hardware(device: torch.device) -> str:
    """Return the name of the processor that a process runs on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (str, int, float, bool, list, dict, type(MISSING))) else None
