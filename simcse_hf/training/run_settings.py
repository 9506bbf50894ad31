"""The settings that decide the result of a run: in each of its checkpoints, and compared when it is resumed."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils import logging

from ..models.settings import dropout_rates
from ..ops.errors import changes, refuse_changes
from ..ops.files import read_json_object
from .dev_sets import DevSetCallback
from .rows import Rows

logger = logging.get_logger(__name__)

#: The settings of a run in each of its checkpoints, what was changed at which step, and who decided each setting.
SETTINGS = "run_settings.json"
# Prefixes of arguments that decide where a run writes and what it reports, but not what it learns.
_NOT_HYPERPARAMETERS = tuple(
    "output_dir run_name project report_to logging_ log_ save_ hub_ push_to_hub trackio disable_tqdm do_ local_rank "
    "resume_from_checkpoint dataloader_num_workers dataloader_pin_memory use_cpu include_".split()
)
# Further prefixes of arguments that may change when a run is resumed: evaluation, speed, checks, and names of files
# that have digests among the settings.
_FREE = tuple(
    "eval_ per_device_eval_ load_best_ prediction_loss_only batch_eval_ jit_ enable_jit_ fp16_f bf16_f torch_compile "
    "dataloader_pr dataloader_pe ddp_ debug skip_memory allow_ stop_on_ gradient_checkpointing "
    "activation_checkpointing restore_callback train_file remove_unused accelerator_config deepspeed teacher guide "
    "ignore_data_skip metric_for_best greater_is".split()
)
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
    for name, value in model.settings.to_dict().items():
        values[f"model's {name}"] = value
    values |= dropout_rates(model.config)
    values["dtype"] = str(next(model.parameters()).dtype)
    values["processes"] = args.world_size
    values["mixed precision"] = args.mixed_precision
    values["starting weights"] = start_digest
    values["training texts"] = rows.digest()
    values |= rows.vector_digests()
    for dev_set in dev_sets:
        content = repr((dev_set.texts, dev_set.gold)).encode()
        values[f"dev set {dev_set.headline}"] = blake2b(content).hexdigest()
    return json.loads(json.dumps(values, default=str))


def hyperparameter_values(args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments that decide what a run learns, in types that JSON can hold."""
    names = [field.name for field in fields(args) if field.init and not field.name.startswith(_NOT_HYPERPARAMETERS)]
    return {name: _plain(getattr(args, name)) for name in names}


def changed_arguments(args: TrainingArguments) -> dict[str, Any]:
    """Return the hyper-parameters that differ from their default, in types that JSON can hold."""
    changed = {}
    values = hyperparameter_values(args)
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


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of a model's weights, of 65,536 to 131,071 numbers of a larger one."""
    total = blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        if not tensor.is_meta:
            part = tensor.detach().flatten()[:: max(1, tensor.numel() // _READ_NUMBERS)]
            total.update(name.encode() + part.double().cpu().numpy().tobytes())
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
