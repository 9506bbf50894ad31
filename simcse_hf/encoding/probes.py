"""Texts by whose embeddings a saved threshold and a fitted transform know their model, also after rounding.

Digests (`runtime/identity.py`) are equal only for weights that are equal bit by bit. The same weights in another data
type, in an exported graph or with a merged adapter have another digest, and nearly the same embeddings.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F

from ..models.settings import THRESHOLD
from ..retrieval.description import PROBE, SAME, SAME_ROUNDED, agreement
from ..runtime.identity import Identity
from .batching import BatchEncoder

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
# Cosines may differ by this share of the largest distance (1 - cosine), as in bfloat16.
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


def probe_embedding(encoder: BatchEncoder, max_length: int | None) -> list[float]:
    """Return the unit embedding of a sentence without a prompt or a transform, by which a fit knows its weights."""
    encoder = BatchEncoder(encoder.model, encoder.tokenizer, max_length)
    embeddings = encoder.embed(encoder.tokenize([PROBE]), split_over_processes=False)
    return F.normalize(embeddings[0].cpu(), dim=-1).tolist()


def has_weights_of(encoder: BatchEncoder, probe: Sequence[float], max_length: int | None) -> bool:
    """Return whether [`probe_embedding`] gave this for the weights of an encoder, up to rounding."""
    now = np.array(probe_embedding(encoder, max_length), dtype=np.float32)
    least = SAME_ROUNDED if getattr(encoder.model, "rounds", False) else SAME
    return agreement(now, np.array(probe, dtype=np.float32)) >= least
