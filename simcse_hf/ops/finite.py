"""Refuse embeddings that hold NaN or infinity, with one message wherever they turn up."""

import numpy as np
import torch


def check_finite(embeddings: np.ndarray | torch.Tensor, what: str, first: int = 0) -> None:
    """Raise a `ValueError` unless all values of some embeddings are finite.

    Half precision overflows to infinity on some models, and a diverged training leaves NaN in the weights. Either
    would pass through a cosine, a code of 8 bits or an index without any other error.

    Args:
        embeddings (`np.ndarray` or `torch.Tensor`): Embeddings of shape `(dim,)` or `(n, dim)`.
        what (`str`): What an embedding belongs to, with `{}` for its number, such as `"sentence {}"`.
        first (`int`, *optional*, defaults to `0`): The number of the first embedding.

    Raises:
        ValueError: If a value is NaN or infinite. The message names the first such embedding.
    """
    if isinstance(embeddings, torch.Tensor):
        finite = torch.isfinite(torch.atleast_2d(embeddings)).all(dim=1).cpu().numpy()
    else:
        finite = np.isfinite(np.atleast_2d(embeddings)).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{what.format(first + int(finite.argmin()))} has an embedding that is not finite (NaN or infinity): use a "
            "model in float32 or bfloat16. If it is in one of these, its weights are broken: train it again."
        )
