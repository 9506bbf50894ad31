"""Texts by whose embeddings a saved threshold and a fitted transform know their model, also after rounding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

from ..indexes.description import PROBE, SAME
from ..models.settings import THRESHOLD
from ..postprocessing.transform import FOLDER, Fit
from .encoder import Encoder

#: The cosines of the first one with the others are saved with a threshold.
PROBES = ("A man plays the guitar.", "Somebody makes music.", "The parcel did not arrive.", "Prices rose in May.")
# They may differ by this share of the largest distance (1 - cosine), as in bfloat16.
_TOLERANCE = 0.02


@dataclass(frozen=True)
class SavedThreshold:
    """The lowest cosine of two texts that count as similar.

    Args:
        cosine (`float`): The cosine.
        probe (`list[float]`): What [`SimCSE.probe_cosines`] returned when it was chosen.
    """

    cosine: float
    probe: list[float]

    @classmethod
    def read(cls, config: PreTrainedConfig) -> "SavedThreshold | None":
        """Return the threshold in the config of a model, `None` without one."""
        saved = getattr(config, THRESHOLD, None)
        return saved and cls(saved["cosine"], saved["probe"])

    def fits(self, cosines: Sequence[float]) -> bool:
        """Return whether a model with these cosines gives the embeddings that the threshold was chosen for."""
        before = np.array(self.probe)
        largest = np.abs(before - cosines).max()
        return bool(largest <= _TOLERANCE * (1 - before.min()))


def probe_embedding(encoder: Encoder, max_length: int | None) -> torch.Tensor:
    """Return the unit embedding of a sentence without a prompt or a transform, by which a fit knows its weights."""
    encoder = Encoder(encoder.model, encoder.tokenizer)
    encoder.max_length = max_length
    embeddings = encoder.embed(encoder.tokenize([PROBE]), split_over_processes=False)
    return F.normalize(embeddings[0].cpu(), dim=-1)


def check_fit(encoder: Encoder, fit: Fit) -> None:
    """Refuse a whitening or flow that was fitted on the embeddings of other weights.

    Args:
        encoder (`Encoder`): The model.
        fit (`Fit`): What the transform was fitted on. One without a probe is taken as it is.

    Raises:
        ValueError: If a sentence has another embedding.
    """
    if fit.probe is None:
        return
    probe = probe_embedding(encoder, fit.max_length)
    saved = torch.tensor(fit.probe)
    if probe.shape != saved.shape or probe @ saved < SAME:
        raise ValueError(
            f"the files in {encoder.name_or_path}/{FOLDER} were fitted on the embeddings of other weights: fit them "
            "again, or load the model with postprocess=False."
        )
