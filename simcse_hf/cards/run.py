"""What a training run was: its start, data, arguments, hardware and dev figures, from the Trainer that ran it."""

import os
import platform
from dataclasses import MISSING, fields
from enum import Enum

import torch
from transformers import PreTrainedConfig, Trainer, TrainingArguments

from ..configuration import ContrastiveSettings

# Arguments that decide where a run writes and what it tells, not what it learns.
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


def describe_run(trainer: Trainer) -> dict:
    """What stands in `results.json` and in the card about how a model came about.

    Args:
        trainer: after training.

    Returns:
        `base_model`, `train_rows`, `num_sentences`, `arguments` (those that differ from their default), `steps`,
        `epochs`, `train_loss` (None before the end of training), `processes`, `hardware`, `seed`.
    """
    rows = trainer.train_dataset
    return {
        "base_model": trainer.model.name_or_path or None,
        "train_rows": None if rows is None else len(rows),
        "num_sentences": None if rows is None or len(rows) == 0 else len(rows[0]["input_ids"]),
        "arguments": changed_arguments(trainer.args),
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "train_loss": next((x["train_loss"] for x in reversed(trainer.state.log_history) if "train_loss" in x), None),
        "processes": trainer.args.world_size,
        "hardware": hardware(trainer.args.device),
        "seed": trainer.args.seed,
    }


def changed_arguments(args: TrainingArguments) -> dict:
    """The hyper-parameters among `args` that differ from their default, as JSON knows them."""
    found = {}
    for field in fields(args):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value, default = (_plain(x) for x in (getattr(args, field.name), default))
        if not field.init or field.name.startswith(_NOT_HYPERPARAMETERS) or default is MISSING:
            continue
        if value is not None and value != default and (value or default):
            found[field.name] = value
    return found


def changed_settings(config: PreTrainedConfig) -> dict:
    """Settings of the contrastive head and dropout rates of the encoder that differ from their default."""
    settings = ContrastiveSettings.from_config(config).to_dict()
    rates = {name: rate for name, rate in config.to_dict().items() if "dropout" in name and "classifier" not in name}
    return {**_changed(settings, ContrastiveSettings().to_dict()), **_changed(rates, type(config)().to_dict())}


def hardware(device: torch.device) -> str:
    """The processor of a process, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def _changed(values: dict, defaults: dict) -> dict:
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def _plain(value):
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (str, int, float, bool, list, dict, type(MISSING))) else None
