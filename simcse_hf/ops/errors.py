"""Raise errors with one message: for wrong arguments, missing packages, and embeddings that are not finite."""

import importlib
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from huggingface_hub import constants
from torch import Tensor

from .files import StrPath


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], where: str, advice: str) -> None:
    """Refuse to continue work under other settings than those under which it began.

    Args:
        before (`Mapping[str, Any]`): The settings of the work so far.
        now (`Mapping[str, Any]`): The settings asked for.
        where (`str`): What was made with the earlier settings, such as the folder of a checkpoint.
        advice (`str`): A last sentence that says what to do.

    Raises:
        ValueError: If a setting differs. The message names each with both values.
    """
    found = changes(before, now)
    if found:
        listed = [f"{name}: {old} there, {new} here" for name, (old, new) in found.items()]
        raise ValueError(f"{where} was made with other settings ({'; '.join(listed)}). {advice}")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that differ, each with both values; one that is missing is `None`."""
    found = {}
    for name in {**before, **now}:
        old = before.get(name)
        new = now.get(name)
        if old != new:
            found[name] = [old, new]
    return found


def require_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module (`str`): The module, such as `"faiss"`.
        extra (`str`): The extra of this package that installs it, such as `"faiss"`.
        purpose (`str`): What needs it, for the message, such as `"an approximate index"`.

    Returns:
        `ModuleType`: The module.

    Raises:
        ImportError: If the package is not installed. The message names the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module}: run pip install 'simcse-hf[{extra}]' ({error})") from error


def no_model(name: StrPath, error: Exception) -> str:
    """Say why no model could be loaded by its name, and what to do.

    Args:
        name (`str` or `os.PathLike`): What the user gave.
        error (`Exception`): What transformers or the hub raised.

    Returns:
        `str`: The message.
    """
    if os.path.isdir(name):
        return f"{name}: a file that this folder names could not be loaded ({error})"
    if constants.HF_HUB_OFFLINE:
        return (
            f"{name}: there is no such folder and no such model in the cache, and the hub is not asked because "
            "HF_HUB_OFFLINE is set: unset it, or name the folder of a model"
        )
    return f"{name} is neither the folder of a model nor the name of one on the hub that can be reached ({error})"


class NotFiniteError(ValueError):
    """An embedding holds NaN or infinity.

    Args:
        subject (`str`): What the embedding belongs to, such as `"sentence 3"`.
        position (`int`): Its position among the embeddings that were checked, from 0.
    """

    def __init__(self, subject: str, position: int) -> None:
        super().__init__(
            f"{subject} has an embedding that is not finite (NaN or infinity): use a model in float32 or bfloat16. If "
            "it is in one of these already, its weights are broken: train it again."
        )
        self.position = position


def check_finite(embeddings: np.ndarray | Tensor, name: Callable[[int], str]) -> None:
    """Raise an error unless all values of some embeddings are finite.

    Half precision overflows to infinity on some models, and a diverged training leaves NaN in the weights. Either
    would pass through a cosine, a code of 8 bits or an index without any other error.

    Args:
        embeddings (`np.ndarray` or `torch.Tensor`): Embeddings of shape `(dim,)` or `(n, dim)`.
        name (`Callable[[int], str]`): Says what an embedding belongs to, from its number, such as `"row {}".format`.

    Raises:
        NotFiniteError: If a value is NaN or infinite. The message names the first such embedding.
    """
    finite = torch.as_tensor(embeddings).isfinite()
    if not finite.all():
        is_sound = torch.atleast_2d(finite).all(dim=1)
        position = int(is_sound.int().argmin())
        raise NotFiniteError(name(position), position)
