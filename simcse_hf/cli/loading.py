"""From the words after `--model` to an object with `encode`."""

import importlib
import os
import sys
from pathlib import Path

from ..evaluation.word_vectors import WordVectors

WORD_VECTOR_SUFFIXES = (".txt", ".vec")


def load_model(
    name: str,
    pooler_type: str | None = None,
    device: str | None = None,
    max_length: int | None = None,
    postprocess: bool = True,
):
    """Loads what is to be evaluated.

    Args:
        name (`str`): A checkpoint folder, a hub id or a sentence-transformers folder (see `simcse_hf.SimCSE`);
            a GloVe or word2vec text file (`.txt`, `.vec`, also with `.gz`); or `module:function`, a function without
            arguments that returns an object with `encode`, its module looked for in the current folder too.
        pooler_type (`str`, *optional*): Pooler of a checkpoint, where it is not to be the one its config names.
        device (`str`, *optional*): Where to run a checkpoint; a GPU where there is one.
        max_length (`int`, *optional*): Number of tokens to which a checkpoint cuts its texts.
        postprocess (`bool`, *optional*, defaults to `True`): Whether to apply the whitening or flow beside a
            checkpoint.

    Returns:
        An object with `encode(list[str]) -> (n, dim)`.

    Raises:
        ValueError: If the folder, file, module or function is not there or is not what it should be, or if a pooler or
            length is given for a model that has none.
    """
    path = Path(name)
    if path.is_file():
        _refuse_settings(name, pooler_type, max_length)
        if Path(name.removesuffix(".gz")).suffix not in WORD_VECTOR_SUFFIXES:
            raise ValueError(
                f"{name} is a file; a model is a folder, and word vectors are a text file that ends in "
                f"{' or '.join(WORD_VECTOR_SUFFIXES)}."
            )
        return WordVectors(path)
    if ":" in name and not path.exists():
        _refuse_settings(name, pooler_type, max_length)
        return _call(name)
    if Path(name.removesuffix(".gz")).suffix in WORD_VECTOR_SUFFIXES:
        raise ValueError(f"there is no file of word vectors {name}.")
    from simcse_hf.inference.simcse import SimCSE

    try:
        return SimCSE(name, pooler_type=pooler_type, device=device, max_length=max_length, postprocess=postprocess)
    except OSError as error:
        raise ValueError(f"no model could be loaded from {name!r}: {error}") from error


def _refuse_settings(name: str, pooler_type: str | None, max_length: int | None) -> None:
    if pooler_type is not None or max_length is not None:
        raise ValueError(f"{name} takes no pooler and no max_length; they belong to a transformer checkpoint.")


def _call(name: str):
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there, something it imports is not
        raise ValueError(f"{name}: there is no module {module_name}.") from error
    finally:
        sys.path.remove(os.getcwd())
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{name}: module {module_name} has no function {function_name!r}.")
    model = function()
    if not callable(getattr(model, "encode", None)):
        raise ValueError(f"{name} returned a {type(model).__name__} without a method encode(list[str]).")
    return model
