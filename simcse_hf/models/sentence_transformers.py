"""Read and write the files by which sentence-transformers knows a model's pooling, dense layers and prompts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import torch
import transformers
from transformers.utils import logging

from .._version import __version__
from ..postprocessing.transform import FOLDER as POSTPROCESSING_FOLDER
from ..runtime.errors import ModelError
from ..runtime.files import StrPath, read_json, write_json
from ..runtime.loading import MODULES, HubArguments, find_file
from .parts import ContrastiveBase
from .pooling import HEAD_FOLDER, POOLER_FOLDERS, POOLERS, save_layer
from .settings import SIMILARITY_FUNCTIONS, Values, max_positions

logger = logging.get_logger(__name__)

DENSE_FOLDER = "dense_layers"  # with a folder 0, 1, ... for each
LIBRARY = "config_sentence_transformers.json"
#: The names of the first module's file, of which the first that holds something counts. We write the first.
TRANSFORMER = tuple(
    f"sentence_{encoder}_config.json"
    for encoder in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

#: Everything that may be written at the top of a checkpoint, with folders. The folders of our own poolers are no
#: modules of sentence-transformers, but they are needed wherever the weights are.
NAMES = (
    MODULES,
    LIBRARY,
    *TRANSFORMER,
    "1_Pooling",
    "1_WeightedLayerPooling",
    "2_Pooling",
    HEAD_FOLDER,
    DENSE_FOLDER,
    *POOLER_FOLDERS.values(),
)

_ADVICE = "Download or export the model again."

# The names of sentence-transformers 2 to 5, which 6 still reads.
_MODULE = "sentence_transformers.models."

#: sentence-transformers' pooling modes by the flag that the configs before version 6 hold for each of them.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DENSE_TYPES = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}

#: Marks a key whose value leaves embeddings as they are.
NO_EFFECT = object()
_TOKENIZER = {"model_max_length": int, "use_fast": NO_EFFECT}
_MODEL = {"attn_implementation": NO_EFFECT, "add_pooling_layer": NO_EFFECT}
_CONFIG = {"output_hidden_states": NO_EFFECT, "use_cache": NO_EFFECT}
_NAMES_OF_FEATURES = {
    "module_input_name": ["sentence_embedding"],
    "module_output_name": ["sentence_embedding"],
}
#: What is done with each key that sentence-transformers 6.2 writes or reads, by the file or the kind of module. A key
#: with a type is read. One with a list is refused with any value that is not in the list, as is an unknown key.
KEYS: dict[str, Values] = {
    MODULES: {"path": str, "type": str, "name": NO_EFFECT, "idx": NO_EFFECT, "kwargs": [[]]},
    LIBRARY: {
        "prompts": dict,
        "default_prompt_name": str,
        "similarity_fn_name": list(SIMILARITY_FUNCTIONS),
        "truncate_dim": int,
        "model_type": ["SentenceTransformer"],
        "__version__": NO_EFFECT,
    },
    "Transformer": {
        "max_seq_length": int,
        "do_lower_case": bool,
        "processor_kwargs": _TOKENIZER,
        "tokenizer_args": _TOKENIZER,
        "model_kwargs": _MODEL,
        "model_args": _MODEL,
        "config_kwargs": _CONFIG,
        "config_args": _CONFIG,
        "tokenizer_name_or_path": [None],
        "transformer_task": ["feature-extraction"],
        "modality_config": {
            "text": [{"method": "forward", "method_output_name": "last_hidden_state"}],
            "message": NO_EFFECT,
        },
        "module_output_name": ["token_embeddings"],
        "processing_kwargs": [{}],
        "query_length": [None],
        "document_length": [None],
        "query_expansion": [None],
        "unpad_inputs": NO_EFFECT,
    },
    "Pooling": {
        "pooling_mode": str | list,
        **dict.fromkeys(_POOLING_FLAGS, bool),
        "include_prompt": [True],
        "word_embedding_dimension": NO_EFFECT,
        "embedding_dimension": NO_EFFECT,
    },
    "Dense": {**_DENSE_TYPES, **_NAMES_OF_FEATURES, "use_residual": [False]},
    "Normalize": _NAMES_OF_FEATURES,
    "Dropout": {"dropout": NO_EFFECT},
}


@dataclass(frozen=True)
class SentenceTransformersFiles:
    """What sentence-transformers' files say about a model.

    Args:
        pooling (`dict`): The settings ([`PoolingSettings`]) by name. Without `pooler_type`, the model has no
            `modules.json`, or `unsupported` says why its modules cannot be reproduced here.
        dense_folders (`list[str]`): The folder of each dense layer.
        unsupported (`str`): Why the modules cannot be reproduced here. Empty if they can.
        refused (`str`): Which keys of the files ask for something that is not done here. Empty if none does.
    """

    pooling: Values = field(default_factory=dict)
    dense_folders: list[str] = field(default_factory=list)
    unsupported: str = ""
    refused: str = ""


def read_sentence_transformers_files(source: StrPath, **hub: Unpack[HubArguments]) -> SentenceTransformersFiles:
    """Read `modules.json` and the files of the modules, and `config_sentence_transformers.json` of a model.

    Args:
        source (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        hub (`Any`): `revision`, `token`, `cache_dir`, `local_files_only` and `subfolder`, as in `from_pretrained`.

    Returns:
        [`SentenceTransformersFiles`]: What the files say; nothing if there are no files.

    Raises:
        ModelError: If a file is not valid JSON, or holds a value of another type. The message names the file.
    """
    refused = []

    def read_table(file: str, kind: str) -> Values:
        """Read an optional file of a kind of `KEYS`, without the values that are `null`."""
        path = find_file(source, file, **hub)
        if path is None:
            return {}
        values = read_json(path, advice=_ADVICE)
        refused.extend(_refused_keys(values, KEYS[kind], path))
        return {name: value for name, value in values.items() if value is not None}

    # 1. The prompts and the similarity.
    settings: Values = {}
    values = read_table(LIBRARY, LIBRARY)
    prompts = {name: "" if text is None else text for name, text in values.get("prompts", {}).items()}
    default = values.get("default_prompt_name")
    if not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{source}/{LIBRARY}: prompts must be texts by name, got {prompts!r}. {_ADVICE}")
    if default not in (None, *prompts):
        problem = f"no prompt is named {default!r}, the default_prompt_name"
        raise ModelError(f"{source}/{LIBRARY}: {problem}. {_ADVICE}")
    if prompts:
        settings |= {"prompts": prompts, "default_prompt_name": default}
    if values.get("truncate_dim"):
        settings["truncate_dim"] = values["truncate_dim"]
    if values.get("similarity_fn_name") in SIMILARITY_FUNCTIONS:
        settings["similarity_fn_name"] = values["similarity_fn_name"]
    # 2. The modules, and the length of the first one.
    modules, problem = _read_modules(source, hub, refused)
    if modules:
        values = {}
        for file in TRANSFORMER:
            values = values or read_table(file, "Transformer")
        length = values.get("max_seq_length")
        for name in ("tokenizer_args", "processor_kwargs"):
            length = values.get(name, {}).get("model_max_length", length)
        if length:
            settings["max_length"] = length
        if values.get("do_lower_case"):
            path = find_file(source, "tokenizer.json", **hub)
            normalizer = "" if path is None else str(read_json(path).get("normalizer"))
            if "'lowercase': True" not in normalizer and "'Lowercase'" not in normalizer:
                refused.append("do_lower_case with a tokenizer that keeps capitals")
    folders: list[str] = []
    if modules and not problem:
        # 3. Our pooler of the module `Pooling`. The head of `cls` is a module of its own, and so are the weights of
        # two layers.
        (_, pooling), *after = modules[1:]
        values = read_table(f"{pooling}/config.json", "Pooling")
        flags = [mode for flag, mode in _POOLING_FLAGS.items() if values.get(flag)]
        modes = values.get("pooling_mode") or flags or ["mean"]
        if isinstance(modes, str):
            modes = [modes]
        found = ""
        for name, pooler in POOLERS.items():
            if [pooler.mode] == modes and pooler.second_layer is None and name != "cls":
                found = found or name
        # 4. The dense layers.
        layers = []
        for kind, folder in after:
            values = read_table(f"{folder}/config.json", kind)
            if kind == "Normalize":
                continue
            for name in ("in_features", "out_features"):
                if values.get(name, 0) < 1:
                    raise ModelError(
                        f"{source}/{folder}/config.json: {name} must be a size, got {values.get(name)!r}. {_ADVICE}"
                    )
            folders.append(folder)
            layers.append({name: values[name] for name in _DENSE_TYPES if name in values})
        if found:
            settings |= {"pooler_type": found, "dense_layers": layers, "normalize": modules[-1][0] == "Normalize"}
        else:
            problem = f"pools by {', '.join(map(str, modes))}, which is not one of our poolers"
    unsupported = f"{source} {problem}" if problem else ""
    refusal = f"{source} needs something that this package does not do: {', '.join(refused)}" if refused else ""
    return SentenceTransformersFiles(settings, folders, unsupported, refusal)


def _read_modules(source: StrPath, hub: HubArguments, refused: list[str]) -> tuple[list[tuple[str, str]], str]:
    """Read the class and folder of each module, and why they cannot be reproduced here, if so."""
    path = find_file(source, MODULES, **hub)
    if path is None:
        return [], f"has {LIBRARY} and no {MODULES}, so its pooling is unknown"
    rows = read_json(path, kind=list, advice=_ADVICE)
    named: dict[object, tuple[str, str]] = {}
    for row in rows:
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("path", "type")):
            raise ModelError(f"{path}: a module must have a path and a type, got {row!r}. {_ADVICE}")
        folder = row["path"]
        if ".." in Path(folder).parts or Path(folder).is_absolute():
            raise ModelError(f"{path}: the path {folder!r} leaves the model's folder. {_ADVICE}")
        refused += _refused_keys(row, KEYS[MODULES], path)
        kind = row["type"]
        if kind.startswith("sentence_transformers."):
            kind = kind.rpartition(".")[2]
        named[row.get("name", folder)] = (kind, folder)  # of one name, sentence-transformers takes the last
    # A whitening or flow of this package is a module too, and is loaded from its own folder. Dropout is for training.
    modules = [
        (kind, folder) for kind, folder in named.values() if folder != POSTPROCESSING_FOLDER and kind != "Dropout"
    ]
    kinds = [kind for kind, _ in modules]
    files = [f"{folder}/config.json" for kind, folder in modules if kind in ("Pooling", "Dense")]
    lacking = [file for file in files if find_file(source, file, **hub) is None]
    after = kinds[2:]
    if after[-1:] == ["Normalize"]:
        after.pop()
    problem = ""
    if rows and (kinds[:2] != ["Transformer", "Pooling"] or set(after) - {"Dense"}):
        known = "Transformer + Pooling, followed by any number of Dense modules and Normalize"
        problem = f"is a sentence-transformers model of {' + '.join(kinds)}. This package loads {known}"
    elif rows and modules[0][1] not in ("", "."):
        where = f"in the folder {modules[0][1]}, not at the top, where sentence-transformers 6 saves it"
        problem = f"has its encoder {where}"
    elif lacking:
        problem = f"lacks {', '.join(lacking)}, which its {MODULES} names: copy its folders, too"
    return modules, problem


def _refused_keys(values: Values, rules: Values, where: str, prefix: str = "") -> list[str]:
    """Return the keys that are refused, and raise an error for a value of another type."""
    refused = []
    for name, value in values.items():
        rule = rules.get(name, [])
        is_unset = value is None and name in rules
        if rule is NO_EFFECT or name == "trust_remote_code" or is_unset:
            continue
        if isinstance(rule, list):
            if value not in rule:
                refused.append(f"{prefix}{name} = {value!r} in {Path(where).name}")
            continue
        kind = dict if isinstance(rule, dict) else rule
        # A bool is an int to Python, but a length or size of `true` is a mistake.
        is_mistake = isinstance(value, bool) and kind is not bool
        if not isinstance(value, kind) or is_mistake:
            wanted = kind.__name__ if isinstance(kind, type) else kind
            raise ModelError(f"{where}: {prefix}{name} must be of type {wanted}, got {value!r}. {_ADVICE}")
        if isinstance(rule, dict):
            refused += _refused_keys(value, rule, where, f"{prefix}{name}.")
    return refused


def save_sentence_transformers_files(model: ContrastiveBase, directory: Path) -> None:
    """Write the files by which `SentenceTransformer(directory)` computes the embeddings of this model.

    The folder holds the weights of the head and of dense layers already. A pooler becomes stock modules after
    `Transformer`: `Pooling` with its `mode`; behind it, for `cls`, `Dense` (the head); before it, for poolers of two
    layers, `WeightedLayerPooling` (weight 1 for the two, 0 for the others).

    For a model that sentence-transformers cannot reproduce, a warning is logged, and `modules.json` names a module
    that it refuses to load.

    Args:
        model (`ContrastiveModel`): The model.
        directory (`Path`): An existing folder without an earlier checkpoint.
    """
    config = model.config
    settings = model.settings
    name = settings.inference_pooler
    pooler = POOLERS[name]
    # 1. Refuse what would have other embeddings.
    reason = ""
    if name == "cls" and not (directory / HEAD_FOLDER).exists():
        reason = "the head is not a single dense layer"
    elif pooler.mode is None:
        reason = f"sentence-transformers has no pooling like {name!r}"
    if reason:
        logger.warning(
            f"SentenceTransformer will refuse {directory}, because {reason}: it would give other embeddings. Load the "
            "model with SimCSE."
        )
        # A module that is not sentence-transformers' own. Without modules.json it would average the tokens.
        _write_modules(directory, [(f"{__package__}.{name}", "")])
        return
    # 2. The modules, each in the folder of its number.
    modules = [(f"{_MODULE}Transformer", "")]
    # text-embeddings-inference needs the length. RoBERTa serves fewer tokens than it has positions.
    positions = max_positions(config)
    length = settings.max_length or model.tokenizer_limit
    if length is not None:
        length = min(length, positions or length)
    elif positions != getattr(config, "max_position_embeddings", None):
        length = positions
    transformer: Values = {"max_seq_length": length, "do_lower_case": False}
    if pooler.second_layer is not None:
        transformer["config_args"] = {"output_hidden_states": True}
        modules.append((f"{_MODULE}WeightedLayerPooling", "1_WeightedLayerPooling"))
        layers = config.num_hidden_layers
        first = pooler.second_layer % (layers + 1)
        weights = torch.zeros(layers + 1 - first)
        weights[[0, -1]] = 1.0
        sizes = {"word_embedding_dimension": config.hidden_size, "layer_start": first, "num_hidden_layers": layers}
        save_layer(directory / "1_WeightedLayerPooling", {"layer_weights": weights}, sizes)
    write_json(directory / TRANSFORMER[0], transformer)
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode": pooler.mode,
        "include_prompt": True,
        # Readers before version 6 know the flags only, and version 6 does not look at them beside the mode.
        **{flag: mode == pooler.mode for flag, mode in _POOLING_FLAGS.items()},
    }
    folder = f"{len(modules)}_Pooling"
    modules.append((f"{_MODULE}Pooling", folder))
    (directory / folder).mkdir(exist_ok=True)
    write_json(directory / folder / "config.json", pooling)
    if name == "cls":
        modules.append((f"{_MODULE}Dense", HEAD_FOLDER))
    for number in range(len(settings.dense_layers)):
        modules.append((f"{_MODULE}Dense", f"{DENSE_FOLDER}/{number}"))
    if settings.normalize:
        modules.append((f"{_MODULE}Normalize", f"{len(modules)}_Normalize"))
    _write_modules(directory, modules)
    # 3. Prompts and similarity.
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
        "similarity_fn_name": settings.similarity_fn_name,
        "truncate_dim": settings.truncate_dim,
    }
    write_json(directory / LIBRARY, library)


def _write_modules(directory: Path, modules: list[tuple[str, str]]) -> None:
    """Write `modules.json` with the class and the folder of each module."""
    rows = []
    for number, (kind, path) in enumerate(modules):
        rows.append({"idx": number, "name": str(number), "path": path, "type": kind})
    write_json(directory / MODULES, rows)
