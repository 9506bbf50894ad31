"""Fit one transform per evaluation set, on the set's own texts: the "target" rows of the papers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .flow import fit_flow
from .interface import VectorTransform
from .whitening import fit_whitening

Embed = Callable[[list[str]], np.ndarray]


def fit_per_set(
    embed: Embed, texts_by_set: Mapping[str, Sequence[str]], method: str = "whitening", **settings: Any
) -> dict[str, Embed]:
    """Fit a transform on the texts of each evaluation set, without their scores.

    BERT-flow and BERT-whitening call this "target" (Li et al. 2020, Su et al. 2021): the embeddings of each set are
    transformed by a flow or whitening that was fitted on them alone.

    Args:
        embed (`Callable[[list[str]], np.ndarray]`): Returns raw embeddings of texts, of shape `(texts, dim)`.
        texts_by_set (`Mapping[str, Sequence[str]]`): The texts of each set. Repeated texts count once.
        method (`str`, *optional*, defaults to `"whitening"`): `"whitening"` or `"flow"`.
        **settings (`Any`): Arguments of [`fit_whitening`] (`dim`) or [`fit_flow`].

    Returns:
        `dict[str, Callable[[list[str]], np.ndarray]]`: For each set a function like `embed` that returns transformed
        embeddings.

    Raises:
        ValueError: If `method` is unknown, or a set has too few texts for the transform. The message names the set.
    """
    if method not in ("whitening", "flow"):
        raise ValueError(f"method must be one of whitening, flow, got {method!r}")
    functions: dict[str, Embed] = {}
    for name, texts in texts_by_set.items():
        embeddings = torch.as_tensor(embed(list(dict.fromkeys(texts))))
        try:
            transform: VectorTransform = (
                fit_whitening([embeddings], **settings)
                if method == "whitening"
                else fit_flow(embeddings, **settings)[0]
            )
        except ValueError as error:
            raise ValueError(f"{name}: no {method} can be fitted on its {len(embeddings)} texts: {error}") from error
        functions[name] = _chain(embed, transform)
    return functions


def _chain(embed: Embed, transform: VectorTransform) -> Embed:
    return lambda texts: transform.transform(torch.as_tensor(embed(texts))).numpy()
