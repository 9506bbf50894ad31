"""Texts by whose embeddings a saved threshold and a fitted transform know their model, also after rounding."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..models.settings import THRESHOLD
from ..retrieval.description import PROBE
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


def threshold_problem(model: Any) -> str:
    """Say why the saved threshold of a [`SimCSE`] is not one of its embeddings; empty if it is, or there is none."""
    saved = getattr(model.model.config, THRESHOLD, None)
    if saved is None:
        return ""
    before = np.array(saved["probe"])
    if not np.abs(before - probe_cosines(model)).max() <= _TOLERANCE * (1 - before.min()):
        return "a few fixed sentences had other cosines when it was chosen"
    now = model.identity().for_pairs()
    return "; ".join(Identity.from_dict(saved.get("model", {})).changes(now, ("dtype", "backend")))


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
