"""A transform beside the model it was fitted for: the folder `postprocessing` of a model directory."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..ops.files import find_file
from .flow import Flow
from .interface import VectorTransform
from .whitening import Whitening

METHODS = {"whitening": Whitening, "flow": Flow}

FOLDER = "postprocessing"
DESCRIPTION = "postprocessing.json"
WEIGHTS = "model.safetensors"
MODULES = "modules.json"

_LAYOUT = 1  # of the folder
_DENSE = "sentence_transformers.models.Dense"


@dataclass(frozen=True)
class Fit:
    """What a transform was fitted on; saved with it.

    Args:
        pooler: whose vectors the transform takes.
        max_length: tokens a text was cut to; None: no limit.
        file: name of the file of sentences.
        columns: of that file.
        sentences: how many they were.
        settings: of the method.
        log_likelihood: of a flow: mean of the sentences in nats per dimension before training and after each epoch.
    """

    pooler: str
    max_length: int | None
    file: str
    columns: list[str]
    sentences: int
    settings: dict
    log_likelihood: list[float] | None = None


def save_transform(directory: str | os.PathLike, transform: VectorTransform, fit: Fit) -> None:
    """Writes a transform into a model directory, in place of one that is there.

    The folder `postprocessing` holds `postprocessing.json` (method, shape, [`Fit`]) and `model.safetensors`. Where
    the directory has sentence-transformers' `modules.json`, the folder becomes a module of it, ahead of a `Normalize`.
    For a whitening that is a `Dense` without activation, which gives the same vectors. A flow is named by its class
    here, which sentence-transformers refuses to load: better that than the vectors of a model without flow.
    """
    directory = Path(directory)
    partial = directory / f".{FOLDER}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    description = {
        "layout": _LAYOUT,
        "method": transform.method,
        "options": transform.options(),
        "input_dim": transform.input_dim,
        "output_dim": transform.output_dim,
        "fit": asdict(fit),
    }
    _write_json(partial / DESCRIPTION, description)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in transform.state_dict().items()}
    save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
    kind = f"{type(transform).__module__}.{type(transform).__name__}"
    if transform.method == "whitening":
        kind = _DENSE
        dense = {
            "in_features": transform.input_dim,
            "out_features": transform.output_dim,
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        _write_json(partial / "config.json", dense)
    shutil.rmtree(directory / FOLDER, ignore_errors=True)
    partial.rename(directory / FOLDER)
    if (directory / MODULES).exists():
        _add_module(directory / MODULES, kind)


def _add_module(path: Path, kind: str) -> None:
    modules = [module for module in json.loads(path.read_text(encoding="utf-8")) if module["path"] != FOLDER]
    last = next((i for i, module in enumerate(modules) if module["type"].endswith(".Normalize")), len(modules))
    modules.insert(last, {"path": FOLDER, "type": kind})
    _write_json(path, [module | {"idx": i, "name": str(i)} for i, module in enumerate(modules)])


def _write_json(path: Path, content: dict | list) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def find_transform(name_or_path: str | os.PathLike, hub: dict) -> tuple[VectorTransform, Fit] | None:
    """The transform of a model directory or hub name, and what it was fitted on; None where it has none.

    Args:
        name_or_path: of the model.
        hub: `revision`, `token`, `cache_dir`, `local_files_only`.

    Raises:
        ValueError: files that are damaged, missing or of a later version, named.
    """
    path = _file(name_or_path, DESCRIPTION, hub)
    if path is None:
        return None
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        layout, method = description["layout"], description["method"]
        if layout != _LAYOUT:
            raise ValueError(f"{path}: layout {layout!r}, where this version reads {_LAYOUT}; fit again.")
        if method not in METHODS:
            raise ValueError(f"{path}: method {method!r}; known are {', '.join(METHODS)}.")
        fit = Fit(**description["fit"])
        with torch.random.fork_rng(devices=[]):  # the first weights are drawn, and then replaced
            transform = METHODS[method](**description["options"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({type(error).__name__}: {error}); fit the transform again.") from error
    weights = _file(name_or_path, WEIGHTS, hub)
    if weights is None:
        raise ValueError(f"{path.parent / WEIGHTS} is missing: fit the transform again.")
    try:
        transform.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{weights}: damaged ({reason}); fit the transform again.") from error
    return transform.requires_grad_(False).eval(), fit


def _file(name_or_path: str | os.PathLike, name: str, hub: dict) -> Path | None:
    path = find_file(name_or_path, f"{FOLDER}/{name}", **hub)
    return None if path is None else Path(path)
