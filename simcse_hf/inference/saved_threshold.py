"""The threshold that `simcse-hf evaluate --save_threshold` saved with a model."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.utils import logging

from ..models.settings import THRESHOLD
from ..ops.errors import refuse

if TYPE_CHECKING:
    from .simcse import SimCSE

logger = logging.get_logger(__name__)

#: Texts by whose cosines a threshold knows the embeddings that it was chosen for.
PROBES = ("A man plays the guitar.", "Somebody makes music.", "The parcel did not arrive.", "Prices rose in May.")
#: Cosines may differ by this share of the largest distance (1 - cosine), as in bfloat16.
_TOLERANCE = 0.02
_CHOOSE = (
    "Choose one on labelled pairs of your own: simcse-hf evaluate --model FOLDER --task pairs=FILE --threshold f1 "
    "--save_threshold"
)


def probe_cosines(model: "SimCSE") -> list[float]:
    """Return the cosines of the first of `PROBES` with the others."""
    first, *others = torch.as_tensor(model.encode(PROBES, split_over_processes=False))
    return (torch.stack(others) @ first).tolist()


def read_threshold(model: "SimCSE") -> float:
    """Return the threshold in the config of a model.

    Args:
        model (`SimCSE`): The model.

    Returns:
        `float`: The lowest cosine of two texts that count as similar.

    Raises:
        ValueError: If none is saved, or it was chosen with other weights, another pooler, prompt or transform.
    """
    saved = getattr(model.model.config, THRESHOLD, None)
    if saved is None:
        raise ValueError(f"{model.name_or_path} has no saved threshold. {_CHOOSE}")
    problem = (
        f"the threshold of {model.name_or_path} does not fit this model: a few fixed sentences had other cosines when "
        f"it was chosen (other weights, pooler, prompt or transform). {_CHOOSE}"
    )
    refuse({problem: _is_outdated(model, saved)})
    return saved["cosine"]


def drop_outdated_threshold(model: "SimCSE") -> None:
    """Remove a threshold that does not fit the model's embeddings from its config, before this is saved."""
    saved = getattr(model.model.config, THRESHOLD, None)
    if saved is not None and _is_outdated(model, saved):
        vars(model.model.config).pop(THRESHOLD)
        logger.warning(f"{model.name_or_path}: its threshold does not fit this model and is not saved. {_CHOOSE}")


def _is_outdated(model: "SimCSE", saved: dict[str, Any]) -> bool:
    probe = np.array(saved["probe"])
    return bool(np.abs(probe - probe_cosines(model)).max() > _TOLERANCE * (1 - probe.min()))
