"""Read and write the files by which sentence-transformers knows a model's pooling, dense layers and prompts."""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..objectives.is_bert import NGRAM_POOLER
from ..ops.files import find_file
from ..postprocessing.files import FOLDER as POSTPROCESSING_FOLDER
from .head import FOLDER, POOLER_FOLDERS, WEIGHTS, save_dense, save_head
from .poolers import SECOND_LAYER, TEMPLATE_POOLER, needs_hidden_states
from .settings import ContrastiveSettings, max_positions

logger = logging.get_logger(__name__)

DENSE_FOLDER = "dense_layers"  # with a folder 0, 1, ... for each

#: Everything that may be written at the top of a checkpoint, with folders. The folders of our own poolers are no
#: modules of sentence-transformers, but they are needed wherever the weights are.
NAMES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling",
    "1_WeightedLayerPooling",
    "2_Pooling",
    FOLDER,
    DENSE_FOLDER,
    *POOLER_FOLDERS.values(),
)

_ADVICE = "Download or export the model again."

# The names of sentence-transformers 2 to 5, which 6 still reads.
_MODULE = "sentence_transformers.models."

#: Poolers that no stock module of sentence-transformers computes.
NOT_IN_SENTENCE_TRANSFORMERS = ("avg_no_cls", TEMPLATE_POOLER, NGRAM_POOLER)


#: sentence-transformers' pooling modes by our names. Up to version 5, the config holds a flag for each mode.
_POOLERS = {"cls": "cls_before_pooler", "mean": "avg", "max": "max"}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class SentenceTransformersSettings:
    """What sentence-transformers' files say about a model.

    Args:
        pooler_type (`str`, *optional*): The pooling, by our name. `None` if the model has no `modules.json`, or if
            `unsupported` says why its modules cannot be reproduced here.
        dense_layers (`list[dict]`): The configs of the `Dense` modules after the pooling, in their order.
        dense_folders (`list[str]`): The folder of each dense layer.
        normalize (`bool`): Whether the last module scales embeddings to unit length.
        max_seq_length (`int`, *optional*): The number of tokens that a text is truncated to.
        prompts (`dict[str, str]`): The prompts by name. A prompt is put before the text.
        default_prompt_name (`str`, *optional*): The prompt that is used when none is named.
        unsupported (`str`): Why the modules cannot be reproduced here. Empty if they can.
    """

    pooler_type: str | None = None
    dense_layers: list[dict[str, Any]] = field(default_factory=list)
    dense_folders: list[str] = field(default_factory=list)
    normalize: bool = False
    max_seq_length: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    unsupported: str = ""


def read_sentence_transformers_settings(
    name_or_path: str | os.PathLike, **hub_kwargs: Any
) -> SentenceTransformersSettings:
    """Read `modules.json`, `sentence_bert_config.json` and `config_sentence_transformers.json` of a model.

    Args:
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        hub_kwargs (`Any`): `revision`, `token`, `cache_dir`, `local_files_only` and `subfolder`, as in
            `from_pretrained`.

    Returns:
        `SentenceTransformersSettings`: What the files say. All fields have their defaults if there are no files.

    Raises:
        ValueError: If a file is not valid JSON, or holds a value of another type. The message names the file.
    """
    where = f"{name_or_path}/config_sentence_transformers.json"
    library = _read_json(name_or_path, "config_sentence_transformers.json", hub_kwargs)
    prompts = _value(library, "prompts", dict, where) or {}
    settings: dict[str, Any] = {
        "prompts": {name: text for name in prompts if (text := _value(prompts, name, str, where)) is not None},
        "default_prompt_name": _value(library, "default_prompt_name", str, where),
    }
    if settings["default_prompt_name"] not in (None, *settings["prompts"]):
        raise ValueError(f"{where}: no prompt is named {settings['default_prompt_name']!r}, the default. {_ADVICE}")
    modules = _read_json(name_or_path, "modules.json", hub_kwargs, list)
    if modules:
        transformer = _read_json(name_or_path, "sentence_bert_config.json", hub_kwargs)
        where = f"{name_or_path}/sentence_bert_config.json"
        settings["max_seq_length"] = _value(transformer, "max_seq_length", int, where)
        if transformer.get("do_lower_case"):
            logger.warning(
                f"{name_or_path}: sentence_bert_config.json sets do_lower_case, which is left to the tokenizer here. "
                "If the tokenizer keeps capitals, convert texts to lower case yourself."
            )
        settings |= _read_modules(name_or_path, modules, settings["prompts"], hub_kwargs)
    return SentenceTransformersSettings(**settings)


def _read_modules(name_or_path: str | os.PathLike, modules: list, prompts: dict, hub_kwargs: dict) -> dict[str, Any]:
    where = f"{name_or_path}/modules.json"
    for module in modules:
        if not isinstance(module, dict) or None in (_value(module, name, str, where) for name in ("path", "type")):
            raise ValueError(f"{where}: a module must have a path and a type, got {module!r}. {_ADVICE}")
        if ".." in Path(module["path"]).parts or Path(module["path"]).is_absolute():
            raise ValueError(f"{where}: the path {module['path']!r} leaves the model's folder. {_ADVICE}")
    # A whitening or flow of this package is a module too, and is loaded from its own folder.
    modules = [module for module in modules if module["path"] != POSTPROCESSING_FOLDER]
    names = [module["type"].rsplit(".", 1)[-1] for module in modules]
    middle = names[2:-1] if names[-1:] == ["Normalize"] else names[2:]
    if names[:2] != ["Transformer", "Pooling"] or set(middle) - {"Dense"}:
        return {
            "unsupported": f"{name_or_path} is a sentence-transformers model of {' + '.join(names)}. This package "
            "loads Transformer + Pooling, followed by any number of Dense modules and Normalize"
        }
    pooling = _read_json(name_or_path, f"{modules[1]['path']}/config.json", hub_kwargs)
    modes = _read_pooling_modes(pooling, f"{name_or_path}/{modules[1]['path']}/config.json")
    pooler_type = _POOLERS.get(_POOLING_FLAGS.get(modes[0], modes[0])) if len(modes) == 1 else None
    if pooler_type is None:
        return {
            "unsupported": f"{name_or_path} pools by {', '.join(modes) or 'nothing'}, which is not one of our poolers"
        }
    if not pooling.get("include_prompt", True) and any(prompts.values()):
        return {"unsupported": f"{name_or_path} leaves its prompts out of the pooling (include_prompt is false)"}
    folders = [module["path"] for module, name in zip(modules, names, strict=True) if name == "Dense"]
    layers = [_read_json(name_or_path, f"{folder}/config.json", hub_kwargs) for folder in folders]
    if any(layer.get("use_residual") or _has_other_input(layer) for layer in layers):
        return {"unsupported": f"{name_or_path} has a Dense module with a residual connection or on token embeddings"}
    return {
        "pooler_type": pooler_type,
        "dense_layers": [
            _dense_arguments(layer, f"{name_or_path}/{folder}/config.json")
            for layer, folder in zip(layers, folders, strict=True)
        ],
        "dense_folders": folders,
        "normalize": names[-1] == "Normalize",
    }


def _read_pooling_modes(pooling: dict[str, Any], where: str) -> list[str]:
    modes = _value(pooling, "pooling_mode", (str, list), where) or [
        flag for flag, is_on in pooling.items() if flag.startswith("pooling_mode_") and is_on
    ]
    modes = [modes] if isinstance(modes, str) else modes
    if not all(isinstance(mode, str) for mode in modes):
        raise ValueError(f"{where}: pooling_mode must name modes, got {modes!r}. {_ADVICE}")
    return modes


def _has_other_input(layer: dict) -> bool:
    names = ("module_input_name", "module_output_name")
    return any(layer.get(name) not in (None, "sentence_embedding") for name in names)


def _dense_arguments(layer: dict[str, Any], where: str) -> dict[str, Any]:
    types = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}
    arguments = {
        name: value for name, kind in types.items() if (value := _value(layer, name, kind, where)) is not None
    }
    if not all(arguments.get(name, 0) >= 1 for name in ("in_features", "out_features")):
        raise ValueError(f"{where}: in_features and out_features must be sizes, got {layer!r}. {_ADVICE}")
    return arguments


def _value(table: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return an optional value of a table, and refuse one of another type."""
    value = table.get(key)
    # A bool is an int to Python, but a length or size of `true` is a mistake.
    if value is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    raise ValueError(f"{where}: {key!r} must be of type {names}, got {value!r}. {_ADVICE}")


def _read_json(name_or_path: str | os.PathLike, filename: str, hub_kwargs: dict, kind: type = dict) -> Any:
    """Return the content of an optional file, which is a table or a list; an empty one if there is no file."""
    path = find_file(name_or_path, filename, **hub_kwargs)
    if path is None:
        return kind()
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}). {_ADVICE}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold a {kind.__name__}, not {type(content).__name__}. {_ADVICE}")
    return content


def save_sentence_transformers_files(
    directory: str | os.PathLike,
    config: PreTrainedConfig,
    settings: ContrastiveSettings,
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
    | those of two layers | `WeightedLayerPooling` (weight 1 for the two, 0 for the others), `Pooling(mean)` |
    | `avg_no_cls` | none: sentence-transformers averages over every token |
    | `mask` | none: sentence-transformers has no templates |
    | `ngrams` | none: the `CNN` of sentence-transformers has no activation |

    For a model that sentence-transformers cannot reproduce, a warning is logged and `modules.json` is removed.

    Args:
        directory (`str` or `os.PathLike`): The checkpoint. It is created if necessary.
        config (`PreTrainedConfig`): The config of the encoder.
        settings (`ContrastiveSettings`): The settings of the model.
        head (`dict[str, torch.Tensor]`): Weight and bias of the dense + tanh head, under names that end in these
            words. Empty if the head is not a single dense layer.
        dense_layers (`list[dict[str, torch.Tensor]]`): Weight and bias of each of `settings.dense_layers`.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if head:
        save_head(directory, head)
    shutil.rmtree(directory / DENSE_FOLDER, ignore_errors=True)
    for number, (layer, state) in enumerate(zip(settings.dense_layers, dense_layers, strict=True)):
        save_dense(directory / DENSE_FOLDER / str(number), layer, state)
    reason = _why_not_in_sentence_transformers(config, settings.inference_pooler, head)
    if reason:
        logger.warning(
            f"{directory}: no sentence-transformers files are written, because {reason}. SentenceTransformer would "
            "give other embeddings. Load the model with SimCSE."
        )
        (directory / "modules.json").unlink(missing_ok=True)  # of an earlier save, with another pooler
        return
    modules = _save_modules(directory, config, settings)
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_MODULE}{name}"} for i, (name, path) in enumerate(modules)
    ]
    _write_json(directory / "modules.json", rows)
    _write_json(directory / "sentence_bert_config.json", _transformer_config(config, settings))
    library = {"prompts": settings.prompts, "default_prompt_name": settings.default_prompt_name}
    _write_json(directory / "config_sentence_transformers.json", {**library, "similarity_fn_name": "cosine"})


def _why_not_in_sentence_transformers(
    config: PreTrainedConfig, pooler_type: str, head: dict[str, torch.Tensor]
) -> str | None:
    if pooler_type == "cls" and not head:
        return "the head is not a single dense layer"
    if pooler_type in NOT_IN_SENTENCE_TRANSFORMERS:
        return f"sentence-transformers has no pooling like {pooler_type!r}"
    if needs_hidden_states(pooler_type) and config.model_type == "funnel":
        return "WeightedLayerPooling expects one hidden state per layer, and Funnel's decoder adds others"
    return None


def _save_modules(directory: Path, config: PreTrainedConfig, settings: ContrastiveSettings) -> list[tuple[str, str]]:
    """Save the configs of the modules, and return the class and the folder of each."""
    pooler_type = settings.inference_pooler
    modules = [("Transformer", "")]
    if needs_hidden_states(pooler_type):
        modules.append(("WeightedLayerPooling", "1_WeightedLayerPooling"))
        _save_layer_weights(directory / "1_WeightedLayerPooling", config, pooler_type)
    modules.append(("Pooling", f"{len(modules)}_Pooling"))
    mode = {"cls": "cls", "cls_before_pooler": "cls", "max": "max"}.get(pooler_type, "mean")
    flags = {flag: name == mode for flag, name in _POOLING_FLAGS.items()}
    pooling = {"word_embedding_dimension": config.hidden_size, **flags, "pooling_mode_mean_sqrt_len_tokens": False}
    _write_json(directory / modules[-1][1] / "config.json", pooling)
    if pooler_type == "cls":
        modules.append(("Dense", FOLDER))
    modules += [("Dense", f"{DENSE_FOLDER}/{number}") for number in range(len(settings.dense_layers))]
    if settings.normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    return modules


def _transformer_config(config: PreTrainedConfig, settings: ContrastiveSettings) -> dict[str, Any]:
    # None stands for the tokenizer's limit or the rows of the position table, whichever is smaller. RoBERTa serves
    # fewer tokens than it has rows.
    positions, rows = max_positions(config), getattr(config, "max_position_embeddings", None)
    length = None if positions == rows else positions
    if settings.max_length is not None:
        length = min(settings.max_length, positions or settings.max_length)
    transformer: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
    if needs_hidden_states(settings.inference_pooler):
        transformer["config_args"] = {"output_hidden_states": True}
    return transformer


def copy_sentence_transformers_files(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copy what [`save_sentence_transformers_files`] and `save_pooler_layers` have written.

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
    _write_json(
        folder / "config.json",
        {"word_embedding_dimension": config.hidden_size, "layer_start": first, "num_hidden_layers": layers},
    )
    save_file({"layer_weights": weights}, folder / WEIGHTS, metadata={"format": "pt"})


def _write_json(path: Path, content: dict | list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
