"""The embedding of a fixed sentence, by which an index recognises its model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.finite import check_finite

_SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody asked it to."
#: Least cosine of two embeddings of one text by one model; bfloat16 and float32 agree better than this.
SAME = 0.999


def check_model(model: Any, described: dict[str, Any], folder: Path) -> None:
    """Refuse a model that does not give the embeddings of a saved index.

    Args:
        model (`SimCSE`): The model.
        described (`dict[str, Any]`): The description of the index, with the embedding of the fixed sentence.
        folder (`Path`): The folder of the index, for messages.

    Raises:
        ValueError: If the model has another pooler or size, or gives the fixed sentence another embedding.
    """
    built = f"{folder} was built with model {described['model']!r} and pooler_type {described['pooler']!r}"
    if (pooler_type := getattr(model, "pooler_type", None)) != described["pooler"]:
        raise ValueError(f"{built}, but this model has pooler_type {pooler_type!r}. Load the model with that one.")
    probe = probe_embedding(model, described["truncate_dim"])
    try:
        saved = np.array(described["probe"], dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder} has a damaged probe ({error}); build the index again.") from error
    check_finite(probe, "the probe of the model")
    check_finite(saved, f"the probe of {folder}")
    if len(probe) != len(saved):
        raise ValueError(f"{built}, which gives {len(saved)} dimensions; this model gives {len(probe)}.")
    if not (cosine := probe @ saved) >= SAME:  # also where it is NaN
        name = getattr(model, "name_or_path", None)
        raise ValueError(
            f"{built}; {name!r} is another model: their embeddings of a sentence have cosine {cosine:.4f}."
        )


def encode_documents(model: Any, texts: Sequence[str], truncate_dim: int | None) -> np.ndarray:
    """Encode texts as the model encodes documents, with its prompt for them if it has one."""
    encode = getattr(model, "encode_document", model.encode)
    return np.asarray(encode(texts, truncate_dim=truncate_dim, convert_to_numpy=True))


def probe_embedding(model: Any, truncate_dim: int | None) -> np.ndarray:
    """Return the embedding of the fixed sentence."""
    return encode_documents(model, [_SENTENCE], truncate_dim)[0]
