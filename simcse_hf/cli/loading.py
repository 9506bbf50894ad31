"""Load what `--model` names in `evaluate` and `compare`: any object with a method `encode`."""

import argparse
from pathlib import Path
from typing import Any

from .common import load_encoder

WORD_VECTOR_SUFFIXES = (".txt", ".vec")


def load_model(name: str, arguments: argparse.Namespace, *, device: str | None = None) -> Any:
    """Load a model to evaluate.

    Args:
        name (`str`): A checkpoint folder, a hub name or a sentence-transformers folder (see `simcse_hf.SimCSE`); a
            GloVe or word2vec text file (`.txt`, `.vec`, also with `.gz`); or `module:function`, a function without
            arguments that returns an object with `encode`. The module may stand in the current folder.
        arguments (`argparse.Namespace`): The options of `add_model_options`. They belong to checkpoints only.
        device (`str`, *optional*): Device to use if the command line names none.

    Returns:
        `Any`: An object with `encode(list[str]) -> (n, dim)`.

    Raises:
        ValueError: If the folder, file, module or function is not there or is not what it should be, or if an option
            is given that this model does not have.
    """
    path = Path(name)
    if path.is_file():
        _refuse_options(name, arguments)
        if not _has_word_vector_suffix(name):
            raise ValueError(
                f"{name} is a file: a model is a folder, and word vectors are a text file that ends in "
                f"{' or '.join(WORD_VECTOR_SUFFIXES)}."
            )
        from ..evaluation.word_vectors import WordVectors

        return WordVectors(path)
    if ":" in name and not path.exists():
        _refuse_options(name, arguments)
        from ..evaluation.functions import call_function

        return call_function(name)
    if _has_word_vector_suffix(name):
        raise ValueError(f"there is no file of word vectors {name}.")
    return load_encoder(name, arguments, device=device)


def _has_word_vector_suffix(name: str) -> bool:
    return Path(name.removesuffix(".gz")).suffix in WORD_VECTOR_SUFFIXES


def _refuse_options(name: str, arguments: argparse.Namespace) -> None:
    options = [option for option in ("pooler_type", "max_length") if getattr(arguments, option) is not None]
    if options:
        raise ValueError(
            f"{name} takes no {' and no '.join(f'--{option}' for option in options)}: only a transformer checkpoint "
            "has these options."
        )
