"""Texts by whose embeddings a saved threshold and a fitted transform know their model, also after rounding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

from ..models.settings import THRESHOLD
from ..postprocessing.transform import FOLDER, Fit
from ..retrieval.indexes.description import PROBE, agreement
from ..runtime.identity import Identity
from .batching import Encoder

#: The cosines of the first one with the others are saved with a threshold.
PROBES = ("A man plays the guitar.", "Somebody makes music.", "The parcel did not arrive.", "Prices rose in May.")
# Texts of unequal length, so that a batch has padding, with capital letters, digits and other alphabets.
_LINES = """\
Cats sleep.
cats sleep
?
A woman is slicing an onion.
A man plays the guitar on a stage in front of a large crowd.
How do I reset the password of my account?
The invoice #4711 of 3.5.2026 over $1,299.90 is unpaid!
  Spaces   and a\ttab
https://example.org/a/b?c=d
{"key": ["value", null]}
Prices rose in May, fell in June, and nobody knows why they stayed the same for the rest of the year.
Zoë naïvely ordered a crème brûlée in Łódź.
Die Größe der Straße überrascht.
Погода сегодня хорошая.
今天天气很好。
مرحبا بالعالم
नमस्ते दुनिया
I ❤️ this 😀"""
#: What a server is compared by: the last two are longer than most models read.
SERVED = [*_LINES.split("\n"), "word " * 600, "Prices rose in May. " * 150]
# They may differ by this share of the largest distance (1 - cosine), as in bfloat16.
_TOLERANCE = 0.02
#: Least cosine of two embeddings of one text by a model and its graph in float32.
SAME_GRAPH = 0.9999


@dataclass(frozen=True)
class SavedThreshold:
    """The lowest cosine of two texts that count as similar.

    Args:
        cosine (`float`): The cosine.
        probe (`list[float]`): What [`probe_cosines`] returned when it was chosen.
        model (`Mapping`, *optional*): The model's identity for pairs of texts then; unknown until version 0.4.
    """

    cosine: float
    probe: list[float]
    model: Mapping[str, object] | None = None

    @classmethod
    def read(cls, config: PreTrainedConfig) -> "SavedThreshold | None":
        """Return the threshold in the config of a model, `None` without one."""
        saved = getattr(config, THRESHOLD, None)
        return saved and cls(saved["cosine"], saved["probe"], saved.get("model"))

    def problem(self, model: Any) -> str:
        """Say why a [`SimCSE`] gives other embeddings than those that the threshold was chosen for, or return `""`."""
        before = np.array(self.probe)
        if not np.abs(before - probe_cosines(model)).max() <= _TOLERANCE * (1 - before.min()):
            return "a few fixed sentences had other cosines when it was chosen"
        return self.changes(model.identity().for_pairs())

    def changes(self, model: Identity) -> str:
        """Say in words what distinguishes a model from that of the threshold, which is unknown until version 0.4."""
        if self.model is None:
            return ""
        return "; ".join(Identity.from_dict(self.model).changes(model, ("dtype", "backend")))


def probe_cosines(model: Any) -> list[float]:
    """Return the cosines of a few fixed sentences by a [`SimCSE`], which are saved with a threshold."""
    embeddings = model.encode(PROBES, split_over_processes=False)
    return (embeddings[1:] @ embeddings[0]).tolist()


def probe_embedding(encoder: Encoder, max_length: int | None) -> torch.Tensor:
    """Return the unit embedding of a sentence without a prompt or a transform, by which a fit knows its weights."""
    encoder = Encoder(encoder.model, encoder.tokenizer)
    encoder.max_length = max_length
    embeddings = encoder.embed(encoder.tokenize([PROBE]), split_over_processes=False)
    return F.normalize(embeddings[0].cpu(), dim=-1)


def check_fit(encoder: Encoder, fit: Fit, least: float) -> None:
    """Refuse a whitening or flow that was fitted on the embeddings of other weights.

    Args:
        encoder (`Encoder`): The model.
        fit (`Fit`): What the transform was fitted on. One without a probe is taken as it is.
        least (`float`): The least cosine of two embeddings of one text.

    Raises:
        ValueError: If a sentence has another embedding.
    """
    if fit.probe is None:
        return
    probe = probe_embedding(encoder, fit.max_length).numpy()
    if not agreement(probe, np.array(fit.probe, dtype=np.float32)) >= least:
        raise ValueError(
            f"the files in {encoder.name_or_path}/{FOLDER} were fitted on the embeddings of other weights: fit them "
            "again, or load the model with postprocess=False."
        )


def check_graph(file: str, graph: Encoder, weights: Encoder, least: float) -> None:
    """Refuse an exported graph that lies beside other weights than those that it was made from.

    Args:
        file (`str`): The graph.
        graph (`Encoder`): The model that it computes.
        weights (`Encoder`): The model of the weights beside it.
        least (`float`): The least cosine of two embeddings of one text.

    Raises:
        ValueError: If a sentence has another embedding.
    """
    x, y = (probe_embedding(each, graph.max_length).numpy() for each in (graph, weights))
    if not agreement(x, y) >= least:
        raise ValueError(
            f"{file} is the graph of other weights than those beside it: export the model again, or move the graph "
            "into a folder of its own."
        )
