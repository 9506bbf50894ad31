"""What everything that searches, mines or scores asks of a model, whichever library it comes from: embeddings."""

import inspect
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy import ndarray

#: What a text is to a model; `None` for a text that is neither.
Role = Literal["query", "document"] | None


class Encoder(Protocol):
    """Anything that turns texts into embeddings; `encode_query`, `encode_document` or `prompts` are used if there."""

    def encode(self, texts: list[str]) -> ndarray | torch.Tensor:
        """Return one embedding per text, as an array or tensor of shape `(n, dim)`."""


def similarity_of(model: object) -> str:
    """Return how a model compares embeddings: by the cosine, unless it says otherwise."""
    return getattr(model, "similarity_fn_name", "cosine")


def embed_texts(
    model: Encoder,
    texts: Sequence[str],
    role: Role = None,
    *,
    as_pooled: bool = False,
    truncate_dim: int | None = None,
    show_progress_bar: bool = False,
) -> ndarray:
    """Encode texts as queries, as documents or as they are, by the model's method for them or with its prompt.

    Args:
        model (`Encoder`): The model.
        texts (`Sequence[str]`): The texts.
        role (`str`, *optional*): `"query"`, `"document"`, or `None` for other texts.
        as_pooled (`bool`, *optional*, defaults to `False`): Do not scale the embeddings, if the model can leave that.
        truncate_dim (`int`, *optional*): Keep only the leading dimensions.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar, if the model has one.

    Returns:
        `np.ndarray`: Embeddings of shape `(texts, dim)` in float32, or in float64 if the model returns that.
    """
    wanted: dict[str, Any] = {"convert_to_numpy": True, "show_progress_bar": show_progress_bar}
    if as_pooled:
        wanted["normalize_embeddings"] = None
    taken = inspect.signature(model.encode).parameters
    options = {name: value for name, value in wanted.items() if name in taken}
    if truncate_dim is not None:
        options["truncate_dim"] = truncate_dim
    encode: Any = getattr(model, f"encode_{role}", None)
    if encode is None:
        encode = model.encode
        prompt = getattr(model, "prompts", {}).get(role) or ""
        texts = [prompt + text for text in texts]
    embeddings = encode(texts, **options)
    if isinstance(embeddings, torch.Tensor):
        embeddings = embeddings.detach().cpu()
        if embeddings.dtype == torch.bfloat16:  # numpy does not know it
            embeddings = embeddings.float()
    embeddings = np.asarray(embeddings)
    return embeddings if embeddings.dtype == np.float64 else embeddings.astype(np.float32)
