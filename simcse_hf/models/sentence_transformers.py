"""Read and write the files by which sentence-transformers knows a model's pooling, dense layers and prompts."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.utils import logging

from .._version import __version__
from ..ops.files import find_file, read_json, read_json_object, write_json
from ..postprocessing.transform import FOLDER as POSTPROCESSING_FOLDER
from .pooling import (
    HEAD_FOLDER,
    NGRAM_POOLER,
    POOLER_FOLDERS,
    SECOND_LAYER,
    TANH,
    TEMPLATE_POOLER,
    save_layer,
)
from .settings import PoolingSettings, max_positions

logger = logging.get_logger(__name__)

DENSE_FOLDER = "dense_layers"  # with a folder 0, 1, ... for each

#: Everything that may be written at the top of a checkpoint, with folders. The folders of our own poolers are no
#: modules of sentence-transformers, but they are needed wherever the weights are.
NAMES = (
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("1_Pooling", "1_WeightedLayerPooling", "2_Pooling", HEAD_FOLDER, DENSE_FOLDER, *POOLER_FOLDERS.values()),
)

_ADVICE = "Download or export the model again."

# The names of sentence-transformers 2 to 5, which 6 still reads.
_MODULE = "sentence_transformers.models."

#: Poolers that no stock module of sentence-transformers computes.
NOT_IN_SENTENCE_TRANSFORMERS = ("avg_no_cls", TEMPLATE_POOLER, NGRAM_POOLER)


#: sentence-transformers' pooling modes by our names. The configs of its first versions hold a flag for each mode.
_POOLERS = {"cls": "cls_before_pooler", "mean": "avg", "max": "max", "lasttoken": "lasttoken"}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
_DENSE_TYPES = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}


@dataclass(frozen=True)
class SentenceTransformersFiles:
    """What sentence-transformers' files say about a model.

    Args:
        pooling (`dict`): The settings ([`PoolingSettings`]) by name. Without `pooler_type`, the model has no
            `modules.json`, or `unsupported` says why its modules cannot be reproduced here.
        dense_folders (`list[str]`): The folder of each dense layer.
        unsupported (`str`): Why the modules cannot be reproduced here. Empty if they can.
    """

    pooling: dict[str, Any] = field(default_factory=dict)
    dense_folders: list[str] = field(default_factory=list)
    unsupported: str = ""


def read_sentence_transformers_files(name_or_path: str | os.PathLike, **hub: Any) -> SentenceTransformersFiles:
    """Read `modules.json`, `sentence_bert_config.json` and `config_sentence_transformers.json` of a model.

    Args:
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        hub (`Any`): `revision`, `token`, `cache_dir`, `local_files_only` and `subfolder`, as in `from_pretrained`.

    Returns:
        [`SentenceTransformersFiles`]: What the files say; nothing if there are no files.

    Raises:
        ValueError: If a file is not valid JSON, or holds a value of another type. The message names the file.
    """
    library = _read(name_or_path, "config_sentence_transformers.json", hub, prompts=dict, default_prompt_name=str)
    prompts = library.get("prompts") or {}
    where = f"{name_or_path}/config_sentence_transformers.json"
    _check_types(prompts, dict.fromkeys(prompts, str), where)
    if library.get("default_prompt_name") not in (None, *prompts):
        raise ValueError(f"{where}: no prompt is named {library['default_prompt_name']!r}, the default. {_ADVICE}")
    pooling: dict[str, Any] = {}
    if prompts:
        pooling = {"prompts": prompts, "default_prompt_name": library.get("default_prompt_name")}
    path = find_file(name_or_path, "modules.json", **hub)
    modules = [] if path is None else read_json(path, advice=_ADVICE)
    if not isinstance(modules, list):
        raise ValueError(f"{path} must hold a list, not {type(modules).__name__}. {_ADVICE}")
    if not modules:
        return SentenceTransformersFiles(pooling)
    transformer = _read(name_or_path, "sentence_bert_config.json", hub, max_seq_length=int)
    if transformer.get("max_seq_length"):
        pooling["max_length"] = transformer["max_seq_length"]
    if transformer.get("do_lower_case"):
        logger.warning(
            f"{name_or_path}: sentence_bert_config.json sets do_lower_case, which is left to the tokenizer here. "
            "If the tokenizer keeps capitals, convert texts to lower case yourself."
        )
    for module in modules:
        if not isinstance(module, dict) or not all(isinstance(module.get(name), str) for name in ("path", "type")):
            raise ValueError(f"{path}: a module must have a path and a type, got {module!r}. {_ADVICE}")
        if ".." in Path(module["path"]).parts or Path(module["path"]).is_absolute():
            raise ValueError(f"{path}: the path {module['path']!r} leaves the model's folder. {_ADVICE}")
    # A whitening or flow of this package is a module too, and is loaded from its own folder.
    modules = [module for module in modules if module["path"] != POSTPROCESSING_FOLDER]
    mode, layers, reason = _read_modules(name_or_path, modules, any(prompts.values()), hub)
    if reason:
        return SentenceTransformersFiles(pooling, unsupported=f"{name_or_path} {reason}")
    dense = [{name: x[name] for name in _DENSE_TYPES if x.get(name) is not None} for x in layers.values()]
    pooling |= {"pooler_type": _POOLERS[mode], "dense_layers": dense}
    pooling["normalize"] = modules[-1]["type"].endswith("Normalize")
    return SentenceTransformersFiles(pooling, list(layers))


def _read_modules(
    name_or_path: str | os.PathLike, modules: list[dict[str, str]], has_prompts: bool, hub: dict[str, Any]
) -> tuple[str, dict[str, dict[str, Any]], str]:
    """Return the mode of the pooling, the dense layers by their folders, and why modules cannot be reproduced here."""
    names = [module["type"].rsplit(".", 1)[-1] for module in modules]
    middle = names[2:-1] if names[-1:] == ["Normalize"] else names[2:]
    if names[:2] != ["Transformer", "Pooling"] or set(middle) - {"Dense"}:
        known = "Transformer + Pooling, followed by any number of Dense modules and Normalize"
        return "", {}, f"is a sentence-transformers model of {' + '.join(names)}. This package loads {known}"
    file = f"{modules[1]['path']}/config.json"
    config = _read(name_or_path, file, hub, pooling_mode=(str, list))
    modes = config.get("pooling_mode") or [n for n, is_on in config.items() if n.startswith("pooling_mode_") and is_on]
    modes = [modes] if isinstance(modes, str) else modes
    if not all(isinstance(mode, str) for mode in modes):
        raise ValueError(f"{name_or_path}/{file}: pooling_mode must name modes, got {modes!r}. {_ADVICE}")
    mode = _POOLING_FLAGS.get(modes[0], modes[0]) if len(modes) == 1 else ""
    if mode not in _POOLERS:
        return "", {}, f"pools by {', '.join(modes) or 'nothing'}, which is not one of our poolers"
    if has_prompts and not config.get("include_prompt", True):
        return "", {}, "leaves its prompts out of the pooling (include_prompt is false)"
    layers = {}
    for folder in (module["path"] for module, name in zip(modules, names, strict=True) if name == "Dense"):
        layer = layers[folder] = _read(name_or_path, f"{folder}/config.json", hub, **_DENSE_TYPES)
        others = {layer.get("module_input_name"), layer.get("module_output_name")} - {None, "sentence_embedding"}
        if layer.get("use_residual") or others:
            return "", {}, "has a Dense module with a residual connection or on token embeddings"
        if not all((layer.get(name) or 0) >= 1 for name in ("in_features", "out_features")):
            where = f"{name_or_path}/{folder}/config.json"
            raise ValueError(f"{where}: in_features and out_features must be sizes, got {layer!r}. {_ADVICE}")
    return mode, layers, ""


def _read(name_or_path: str | os.PathLike, file: str, hub: dict[str, Any], **types: Any) -> dict[str, Any]:
    """Read an optional file of a model, in which some values have known types."""
    path = find_file(name_or_path, file, **hub)
    return {} if path is None else _check_types(read_json_object(path, advice=_ADVICE), types, path)


def _check_types(table: dict[str, Any], types: Mapping[str, type | tuple[type, ...]], where: str) -> dict[str, Any]:
    """Return a table of optional values, and refuse a value of another type."""
    for name, kind in types.items():
        value = table.get(name)
        # A bool is an int to Python, but a length or size of `true` is a mistake.
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise ValueError(f"{where}: {name!r} must be of type {names}, got {value!r}. {_ADVICE}")
    return table


def save_sentence_transformers_files(
    directory: str | os.PathLike,
    config: PreTrainedConfig,
    settings: PoolingSettings,
    head: dict[str, torch.Tensor],
    dense_layers: list[dict[str, torch.Tensor]],
) -> None:
    """Write the files by which `SentenceTransformer(directory)` computes the embeddings of this model.

    The weights and the tokenizer are left to `save_pretrained`. The poolers become stock modules of
    sentence-transformers:

    | pooler | modules after `Transformer` |
    |---|---|
    | `cls` | `Pooling(cls)`, `Dense` (the head, tanh) |
    | `cls_before_pooler` | `Pooling(cls)` |
    | `avg` | `Pooling(mean)` |
    | `max` | `Pooling(max)` |
    | `lasttoken` | `Pooling(lasttoken)` |
    | those of two layers | `WeightedLayerPooling` (weight 1 for the two, 0 for the others), `Pooling(mean)` |
    | `avg_no_cls` | none: sentence-transformers averages over every token |
    | `mask` | none: sentence-transformers has no templates |
    | `ngrams` | none: the `CNN` of sentence-transformers has no activation |

    For a model that sentence-transformers cannot reproduce, a warning is logged and there is no `modules.json`.

    Args:
        directory (`str` or `os.PathLike`): An existing folder without an earlier checkpoint.
        config (`PreTrainedConfig`): The config of the encoder.
        settings (`PoolingSettings`): The settings of the model.
        head (`dict[str, torch.Tensor]`): Weight and bias of the dense + tanh head, under names that end in these
            words. Empty if the head is not a single dense layer.
        dense_layers (`list[dict[str, torch.Tensor]]`): Weight and bias of each of `settings.dense_layers`.
    """
    directory, pooler_type = Path(directory), settings.inference_pooler
    if head and settings.pooler_type == "cls":
        outputs, inputs = next(tensor.shape for tensor in head.values() if tensor.dim() == 2)
        layer = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": TANH}
        save_layer(directory / HEAD_FOLDER, head, layer)
    for number, (layer, state) in enumerate(zip(settings.dense_layers, dense_layers, strict=True)):
        save_layer(directory / DENSE_FOLDER / str(number), state, layer)
    two_layers = pooler_type in SECOND_LAYER
    reasons = {
        "the head is not a single dense layer": pooler_type == "cls" and not head,
        f"sentence-transformers has no pooling like {pooler_type!r}": pooler_type in NOT_IN_SENTENCE_TRANSFORMERS,
    }
    for reason, is_so in reasons.items():
        if is_so:
            logger.warning(
                f"No sentence-transformers files are written, because {reason}. SentenceTransformer would give other "
                "embeddings. Load the model with SimCSE."
            )
            return
    modules = [("Transformer", "")]
    if two_layers:
        modules.append(("WeightedLayerPooling", "1_WeightedLayerPooling"))
        _save_layer_weights(directory / "1_WeightedLayerPooling", config, pooler_type)
    modules.append(("Pooling", f"{len(modules)}_Pooling"))
    mode = {"cls": "cls", **{name: mode for mode, name in _POOLERS.items()}}.get(pooler_type, "mean")
    (directory / modules[-1][1]).mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode": mode, "include_prompt": True}
    write_json(directory / modules[-1][1] / "config.json", pooling)
    modules += [("Dense", HEAD_FOLDER)] if pooler_type == "cls" else []
    modules += [("Dense", f"{DENSE_FOLDER}/{number}") for number in range(len(settings.dense_layers))]
    modules += [("Normalize", f"{len(modules)}_Normalize")] if settings.normalize else []
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_MODULE}{name}"} for i, (name, path) in enumerate(modules)
    ]
    write_json(directory / "modules.json", rows)
    write_json(directory / "sentence_bert_config.json", _transformer_config(config, settings))
    library = {
        "model_type": "SentenceTransformer",
        # A version of sentence-transformers would make older ones warn, and 5.1 to 6.2 were seen to read these files.
        "__version__": {
            "simcse_hf": __version__,
            "transformers": transformers.__version__,
            "pytorch": str(torch.__version__),
        },
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": "cosine",
    }
    write_json(directory / "config_sentence_transformers.json", library)


def _transformer_config(config: PreTrainedConfig, settings: PoolingSettings) -> dict[str, Any]:
    # None stands for the tokenizer's limit or the rows of the position table, whichever is smaller. RoBERTa serves
    # fewer tokens than it has rows.
    positions, rows = max_positions(config), getattr(config, "max_position_embeddings", None)
    length = None if positions == rows else positions
    if settings.max_length is not None:
        length = min(settings.max_length, positions or settings.max_length)
    transformer: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
    if settings.inference_pooler in SECOND_LAYER:
        transformer["config_args"] = {"output_hidden_states": True}
    return transformer


def copy_sentence_transformers_files(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copy what [`save_sentence_transformers_files`] and `save_pretrained` have written.

    Args:
        source (`str` or `os.PathLike`): The checkpoint to copy from.
        target (`str` or `os.PathLike`): An existing directory.
    """
    for name in NAMES:
        path = Path(source, name)
        if path.is_dir():
            shutil.copytree(path, Path(target, name), dirs_exist_ok=True)
        elif path.exists():
            shutil.copy(path, Path(target, name))


def _save_layer_weights(folder: Path, config: PreTrainedConfig, pooler_type: str) -> None:
    layers = config.num_hidden_layers
    first = SECOND_LAYER[pooler_type] % (layers + 1)
    weights = torch.zeros(layers + 1 - first)
    weights[[0, -1]] = 1.0
    save_layer(folder, {"layer_weights": weights})
    write_json(
        folder / "config.json",
        {"word_embedding_dimension": config.hidden_size, "layer_start": first, "num_hidden_layers": layers},
    )
