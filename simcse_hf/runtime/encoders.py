"""What everything that searches, mines or scores asks of a model, whichever library it comes from: embeddings."""

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy import ndarray
from torch import nn

from .identity import Identity, digest_model

#: What a text is to a model; `None` for a text that is neither.
Role = Literal["query", "document"] | None


class Encoder(Protocol):
    """Anything that turns texts into embeddings; `encode_query`, `encode_document` or `prompts` are used if there."""

    def encode(self, texts: list[str]) -> ndarray | torch.Tensor:
        """Return one embedding per text, as an array or tensor of shape `(n, dim)`."""


class TextEncoder:
    """A model of any library, behind one interface. Made by [`as_encoder`]; nothing else looks what a model has.

    Args:
        model (`Encoder`): A [`SimCSE`], a model of sentence-transformers, or any other encoder.
    """

    def __init__(self, model: Encoder) -> None:
        self.model: Any = model
        #: Its name or folder; the name of its class if it has none.
        self.name: str = getattr(model, "name_or_path", type(model).__name__)

    @property
    def similarity(self) -> str:
        """Return how the model compares embeddings: by the cosine, unless it says otherwise."""
        return getattr(self.model, "similarity_fn_name", "cosine")

    def embed(
        self,
        texts: Sequence[str],
        role: Role = None,
        *,
        as_pooled: bool = False,
        truncate_dim: int | None = None,
        show_progress_bar: bool = False,
    ) -> ndarray:
        """Encode texts as queries, as documents or as they are, by the model's method for them or with its prompt.

        Args:
            texts (`Sequence[str]`): The texts.
            role (`str`, *optional*): `"query"`, `"document"`, or `None` for other texts.
            as_pooled (`bool`, *optional*, defaults to `False`): Do not scale the embeddings, if the model can leave
                that.
            truncate_dim (`int`, *optional*): Keep only the leading dimensions.
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar, if the model has one.

        Returns:
            `np.ndarray`: Embeddings of shape `(texts, dim)` in float32, or in float64 if the model returns that.
        """
        encode: Any = getattr(self.model, f"encode_{role}", None)
        if encode is None:
            encode = self.model.encode
            prompt = getattr(self.model, "prompts", {}).get(role) or ""
            texts = [prompt + text for text in texts]
        wanted: dict[str, Any] = {"convert_to_numpy": True, "show_progress_bar": show_progress_bar}
        if as_pooled:
            wanted["normalize_embeddings"] = None
        taken = inspect.signature(encode).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        options = {name: value for name, value in wanted.items() if takes_any or name in taken}
        if truncate_dim is not None:
            options["truncate_dim"] = truncate_dim
        embeddings = encode(texts, **options)
        if isinstance(embeddings, torch.Tensor):
            embeddings = embeddings.detach().cpu()
            if embeddings.dtype == torch.bfloat16:  # numpy does not know it
                embeddings = embeddings.float()
        embeddings = np.asarray(embeddings)
        return embeddings if embeddings.dtype == np.float64 else embeddings.astype(np.float32)

    def identity(self, default: Identity | None = None) -> Identity:
        """Return what decides the embeddings: all of it for a [`SimCSE`], and what another model shows of it.

        Args:
            default (`Identity`, *optional*): The entries that a model of another package does not have.

        Returns:
            `Identity`: The identity.
        """
        model = self.model
        if hasattr(model, "identity"):
            return model.identity()
        found = default or Identity(self.name)
        known: dict[str, Any] = {
            "prompts": getattr(model, "prompts", found.prompts),
            "similarity": self.similarity,
            "max_length": getattr(model, "max_seq_length", found.max_length),
            "dtype": str(getattr(model, "dtype", found.dtype)).removeprefix("torch."),
        }
        if isinstance(model, nn.Module):
            known |= {"backend": type(model).__name__, "weights": digest_model(model)}
        return replace(found, **known)

    def teacher(self) -> Identity | None:
        """Return the model whose vectors this one has learned to give to queries, if it is such a student."""
        return self.model.taught_by() if hasattr(self.model, "taught_by") else None

    def size(self) -> int:
        """Return the size of the weights in bytes, or of the files of an exported graph; 0 if neither is known."""
        module = getattr(self.model, "model", self.model)
        size = sum(map(os.path.getsize, getattr(module, "files", ())))
        if isinstance(module, nn.Module):
            size += sum(weight.nbytes for weight in module.parameters())
        return size


def as_encoder(model: Encoder | TextEncoder) -> TextEncoder:
    """Return a model behind the interface that everything else uses. Called where a model comes in."""
    return model if isinstance(model, TextEncoder) else TextEncoder(model)
