"""Interpret the arguments of `SimCSE`: what to load a checkpoint with."""

from typing import Any

from transformers import PreTrainedConfig

from ..models.poolers import POOLER_TYPES
from ..models.settings import SECTION, ContrastiveSettings
from ..ops.files import HUB_ARGUMENTS


def check_hub_arguments(arguments: dict[str, Any]) -> None:
    """Raise a `TypeError` for an argument that nothing takes, in particular for the old name of `pooler_type`."""
    unknown = sorted(arguments.keys() - set(HUB_ARGUMENTS))
    if not unknown:
        return
    advice = "the pooler is chosen by pooler_type" if "pooler" in unknown else f"known are {', '.join(HUB_ARGUMENTS)}"
    raise TypeError(f"SimCSE got the unknown argument(s) {', '.join(unknown)}: {advice}")


def section_pooler(config: PreTrainedConfig) -> str | None:
    """Return the pooler that a checkpoint of ours names in its config; `None` for other checkpoints."""
    section = getattr(config, SECTION, None)
    return None if section is None else ContrastiveSettings.from_config(config).inference_pooler


def inference_settings(config: PreTrainedConfig, pooler_type: str | None, head: str | None = None) -> dict[str, Any]:
    """Choose the settings that load a checkpoint for inference.

    Args:
        config (`PreTrainedConfig`): The checkpoint's config.
        pooler_type (`str`, *optional*): The pooler that the user asked for.
        head (`str`, *optional*): The head that the user asked for.

    Returns:
        `dict[str, Any]`: Keyword arguments of `AutoModelForCL.from_pretrained`.

    Raises:
        ValueError: If the pooler or the head is unknown.
    """
    settings: dict[str, Any] = {"do_mlm": False}  # the masked-LM head serves training only
    if head not in (None, "pooler", "dense"):
        raise ValueError(f"head must be 'pooler' or 'dense', got {head!r}")
    if head is not None:
        settings["head"] = head
    if pooler_type is None:
        return settings
    if pooler_type not in POOLER_TYPES:
        raise ValueError(f"pooler_type must be one of {', '.join(POOLER_TYPES)}, got {pooler_type!r}")
    settings |= {"pooler_type": pooler_type, "mlp_only_train": False, "templates": [], "denoising": "none"}
    if section_pooler(config) not in (None, pooler_type):
        settings["dense_layers"] = []  # they were trained on the embeddings of the other pooler
    return settings
