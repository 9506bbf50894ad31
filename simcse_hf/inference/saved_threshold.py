"""The threshold that `simcse-hf evaluate --save_threshold` saved with a model."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..models.settings import THRESHOLD

if TYPE_CHECKING:
    from .simcse import SimCSE

#: Texts by whose cosines a threshold knows the embeddings that it was chosen for.
PROBES = ("A man plays the guitar.", "Somebody makes music.", "The parcel did not arrive.", "Prices rose in May.")
_TOLERANCE = 0.02  # of the largest distance, for example in another precision
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
    probe = np.array(saved["probe"])
    if np.abs(probe - probe_cosines(model)).max() > _TOLERANCE * (1 - probe.min()):
        raise ValueError(
            f"the threshold of {model.name_or_path} was chosen with other weights or settings: the model now gives "
            f"other cosines than it was chosen for. {_CHOOSE}"
        )
    return saved["cosine"]
