"""Save and load a transform beside its model, in the folder `postprocessing` of the model directory."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..ops.files import find_file, write_atomically
from .flow import Flow
from .interface import VectorTransform
from .whitening import Whitening

METHODS: dict[str, type[VectorTransform]] = {"whitening": Whitening, "flow": Flow}

FOLDER = "postprocessing"
DESCRIPTION = "postprocessing.json"
WEIGHTS = "model.safetensors"
MODULES = "modules.json"

_LAYOUT_VERSION = 1
_DENSE = "sentence_transformers.models.Dense"


@dataclass(frozen=True)
class Fit:
    """The record of what a transform was fitted on; saved with it.

    Args:
        pooler (`str`): The pooler whose embeddings the transform takes.
        max_length (`int`, *optional*): Number of tokens that a text was truncated to. `None` for no limit.
        file (`str`): Name of the file of sentences.
        columns (`list[str]`): The columns of that file.
        sentences (`int`): Number of sentences.
        settings (`dict`): Arguments of the method.
        log_likelihood (`list[float]`, *optional*): For a flow, the mean log-likelihood of the sentences in nats per
            dimension, before training and after each epoch.
    """

    pooler: str
    max_length: int | None
    file: str
    columns: list[str]
    sentences: int
    settings: dict[str, Any]
    log_likelihood: list[float] | None = None


def save_transform(directory: str | os.PathLike, transform: VectorTransform, fit: Fit) -> None:
    """Write a transform into a model directory, replacing an earlier one.

    The folder `postprocessing` holds `postprocessing.json` (method, shape and [`Fit`]) and `model.safetensors`. If the
    directory has sentence-transformers' `modules.json`, the folder becomes one of its modules, before a `Normalize`. A
    whitening becomes a `Dense` without activation, which gives the same embeddings. A flow is named by our class:
    sentence-transformers refuses to load it, and does not silently give the embeddings without the flow.

    Args:
        directory (`str` or `os.PathLike`): The model directory.
        transform (`VectorTransform`): The transform.
        fit (`Fit`): What it was fitted on.
    """
    directory = Path(directory)
    description = {
        "layout": _LAYOUT_VERSION,
        "method": transform.method,
        "options": transform.options(),
        "input_dim": transform.input_dim,
        "output_dim": transform.output_dim,
        "fit": asdict(fit),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in transform.state_dict().items()}
    module_type = f"{type(transform).__module__}.{type(transform).__name__}"
    with write_atomically(directory / FOLDER) as folder:
        folder.mkdir()
        _write_json(folder / DESCRIPTION, description)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        if transform.method == "whitening":
            module_type = _DENSE
            dense = {
                "in_features": transform.input_dim,
                "out_features": transform.output_dim,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            _write_json(folder / "config.json", dense)
    if (directory / MODULES).exists():
        _add_module(directory / MODULES, module_type)


def _add_module(path: Path, module_type: str) -> None:
    modules = [module for module in json.loads(path.read_text(encoding="utf-8")) if module["path"] != FOLDER]
    last = next((i for i, module in enumerate(modules) if module["type"].endswith(".Normalize")), len(modules))
    modules.insert(last, {"path": FOLDER, "type": module_type})
    _write_json(path, [module | {"idx": i, "name": str(i)} for i, module in enumerate(modules)])


def _write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def find_transform(name_or_path: str | os.PathLike, hub: dict[str, Any]) -> tuple[VectorTransform, Fit] | None:
    """Load the transform saved beside a model.

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of the model.
        hub (`dict[str, Any]`): `revision`, `token`, `cache_dir`, `local_files_only`.

    Returns:
        `tuple[VectorTransform, Fit]`, *optional*: The transform and what it was fitted on; `None` if there is none.

    Raises:
        ValueError: If a file is damaged, missing or of a later version. The message names it.
    """
    path = _file(name_or_path, DESCRIPTION, hub)
    if path is None:
        return None
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        layout, method = description["layout"], description["method"]
        options, fit = dict(description["options"]), Fit(**description["fit"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(_damage(path, error)) from error
    if layout != _LAYOUT_VERSION:
        raise ValueError(f"{path}: layout {layout!r}, but this version reads {_LAYOUT_VERSION}; fit again.")
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"{path}: unknown method {method!r}; known are {', '.join(METHODS)}. Fit again.")
    try:
        with torch.device("meta"):  # without memory, whatever the sizes are: the weights come from the file
            transform = METHODS[method](**options)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(_damage(path, error)) from error
    weights = _file(name_or_path, WEIGHTS, hub)
    if weights is None:
        raise ValueError(f"{path.parent / WEIGHTS} is missing: fit the transform again.")
    try:
        transform.load_state_dict(load_file(weights), assign=True)
        transform.requires_grad_(False).eval()
        finite = bool(torch.isfinite(transform.transform(torch.zeros(1, transform.input_dim))).all())
    except (SafetensorError, RuntimeError, IndexError, OSError) as error:
        raise ValueError(_damage(weights, error)) from error
    if not finite:
        raise ValueError(f"{weights}: holds values that are not finite; fit the transform again.")
    return transform, fit


def _damage(path: Path, error: Exception) -> str:
    reason = " ".join(str(error).split())
    return f"{path}: damaged ({type(error).__name__}: {reason}); fit the transform again."


def _file(name_or_path: str | os.PathLike, name: str, hub: dict[str, Any]) -> Path | None:
    path = find_file(name_or_path, f"{FOLDER}/{name}", **hub)
    return None if path is None else Path(path)
