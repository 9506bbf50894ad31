"""Errors with one form of message: for wrong arguments, missing packages, and embeddings that are not finite."""

import difflib
import importlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class SimCSEError(ValueError):
    """An error of this package, about what it was given. The message says what is wrong, where, and what to do.

    ::

        ValueError
        └── SimCSEError
            ├── DataError        a text, a row, or a file of them: correct the text
            ├── SettingError     an argument or an option: give another value
            ├── ModelError       a model, its folder or its weights: name another one, or save it again
            └── NotFiniteError   an embedding that is NaN or infinite

    So a server answers a `DataError` with "your text is wrong", and wakes somebody up for a `ModelError`. Every one is
    a `ValueError`, too.

    Examples:
        >>> from simcse_hf import DataError, SettingError, load_text_dataset
        >>> try:
        ...     load_text_dataset("sentences.txt", columns=["title"])
        ... except SettingError as error:
        ...     print("setting")
        ... except DataError as error:
        ...     print("data")
        data
    """


class DataError(SimCSEError):
    """A text, a row or a file of texts cannot be used."""


class SettingError(SimCSEError):
    """An argument has a value that is wrong, or that does not fit the others."""


class LockedError(SettingError):
    """Another process works in a folder."""


class ModelError(SimCSEError):
    """A model cannot be loaded or used as it is."""


Kind = Literal[
    "true or false",
    "an integer above 0",
    "an integer of 0 or more",
    "a finite number",
    "a number above 0",
    "a number of 0 or more",
    "a number of 0 or more and below 1",
    "a number between 0 and 1",
    "a number between -1 and 1",
]


def check_values(kind: Kind | Collection[Any], **options: Any) -> None:
    """Check that arguments have values of some kind.

    Args:
        kind (`str` or `Collection`): What they must be: one of `Kind`, a `range` of integers, or the values that they
            may have.
        **options (`Any`): The arguments by name. `None` stands for an argument that is not set, unless `kind` lists
            the values.

    Raises:
        SettingError: If one is something else. The message names the argument.
    """
    for name, value in options.items():
        hint = ""
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)  # those of numpy, too
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if isinstance(kind, range):
            fits = value is None or (is_integer and value in kind)
            wanted = f"an integer between {kind[0]} and {kind[-1]}"
        elif not isinstance(kind, str):
            fits = value in kind
            known = list(map(str, kind))
            wanted = f"one of {', '.join(known)}"
            hint = "" if fits else did_you_mean([str(value)], known)
        else:
            of_kind = {
                "true or false": isinstance(value, bool),
                "an integer above 0": is_integer and value > 0,
                "an integer of 0 or more": is_integer and value >= 0,
                "a finite number": is_number,
                "a number above 0": is_number and value > 0,
                "a number of 0 or more": is_number and value >= 0,
                "a number of 0 or more and below 1": is_number and 0 <= value < 1,
                "a number between 0 and 1": is_number and 0 <= value <= 1,
                "a number between -1 and 1": is_number and -1 <= value <= 1,
            }
            fits = value is None or of_kind[kind]
            wanted = kind
        if not fits:
            raise SettingError(f"{name} must be {wanted}, got {value!r}{hint}")


def as_list(values: Any) -> list[Any]:
    """Return the entries of an argument that takes several; a text, a path, a table or another object alone is one."""
    is_one = isinstance(values, (str, os.PathLike, Mapping)) or not isinstance(values, Iterable)
    if is_one or hasattr(values, "columns") or hasattr(values, "column_names"):
        return [values]
    return list(values)


def did_you_mean(words: Iterable[str], known: Collection[str]) -> str:
    """Return a sentence that names the known word nearest to each mistyped one.

    Args:
        words (`Iterable[str]`): Words that were not understood. Those that are near to none are left out.
        known (`Collection[str]`): The words that there are.

    Returns:
        `str`: `" (did you mean --max_steps?)"`, or an empty string.
    """
    near = []
    for word in words:
        matches = difflib.get_close_matches(word, known)
        # Of --lora_rank, --lora_r goes before --local_rank, and above all the rest of a word goes with it.
        matches.sort(key=lambda match: (not match.startswith(word), not word.startswith(match)))
        near += matches[:1]
    return f" (did you mean {', '.join(near)}?)" if near else ""


def suggest_choice(message: str) -> str:
    """Return what [`did_you_mean`] says about the invalid choice in a message of argparse, if it is about one."""
    before, _, choices = message.partition(" (choose from ")
    wrong = re.findall("invalid choice: '(.+)'", before)
    return did_you_mean(wrong, re.findall(r"[\w+.-]+", choices))


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], where: str, advice: str) -> None:
    """Refuse to continue work under other settings than those under which it began.

    Args:
        before (`Mapping[str, Any]`): The settings of the work so far.
        now (`Mapping[str, Any]`): The settings asked for.
        where (`str`): What was made with the earlier settings, such as the folder of a checkpoint.
        advice (`str`): A last sentence that says what to do.

    Raises:
        SettingError: If a setting differs. The message names each with both values.
    """
    found = changes(before, now)
    if found:
        listed = [f"{name}: {old} there, {new} here" for name, (old, new) in found.items()]
        raise SettingError(f"{where} was made with other settings ({'; '.join(listed)}). {advice}")


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


def no_model(name: str | os.PathLike[str], error: Exception) -> str:
    """Say why no model could be loaded by its name, and what to do.

    Args:
        name (`str` or `os.PathLike`): What the user gave.
        error (`Exception`): What transformers or the hub raised.

    Returns:
        `str`: The message.
    """
    from huggingface_hub import constants

    if os.path.isdir(name):
        return f"{name}: a file that this folder names could not be loaded ({error})"
    if constants.HF_HUB_OFFLINE:
        return (
            f"{name}: there is no such folder and no such model in the cache, and the hub is not asked because "
            "HF_HUB_OFFLINE is set: unset it, or name the folder of a model"
        )
    return f"{name} is neither the folder of a model nor the name of one on the hub that can be reached ({error})"


class NotFiniteError(SimCSEError):
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


def check_finite(embeddings: "np.ndarray | Tensor", name: Callable[[int], str]) -> None:
    """Raise an error unless all values of some embeddings are finite.

    Half precision overflows to infinity on some models, and a diverged training leaves NaN in the weights. Either
    would pass through a cosine, a code of 8 bits or an index without any other error.

    Args:
        embeddings (`np.ndarray` or `torch.Tensor`): Embeddings of shape `(dim,)` or `(n, dim)`.
        name (`Callable[[int], str]`): Says what an embedding belongs to, from its number, such as `"row {}".format`.

    Raises:
        NotFiniteError: If a value is NaN or infinite. The message names the first such embedding.
    """
    import torch

    finite = torch.as_tensor(embeddings).isfinite()
    if not finite.all():
        is_sound = torch.atleast_2d(finite).all(dim=1)
        position = int(is_sound.int().argmin())
        raise NotFiniteError(name(position), position)
