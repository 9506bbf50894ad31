"""The files by which `SentenceTransformer(directory)` gives a checkpoint's own vectors, written beside its weights."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedConfig
from transformers.utils import logging

from .head import FOLDER, WEIGHTS, save_head
from .poolers import TEMPLATE_POOLER, needs_hidden_states
from .positions import max_positions

logger = logging.get_logger(__name__)

#: Everything that may be written at the top of a checkpoint, folders included.
NAMES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling",
    "1_WeightedLayerPooling",
    "2_Pooling",
    FOLDER,
)

# The names of sentence-transformers 2 to 5, which 6 still reads.
_MODULE = "sentence_transformers.models."

#: Poolers that no stock module of sentence-transformers computes.
NOT_IN_SENTENCE_TRANSFORMERS = ("avg_no_cls", TEMPLATE_POOLER)


def save_sentence_transformers_files(
    directory: str | os.PathLike, config: PreTrainedConfig, pooler_type: str, head: dict[str, torch.Tensor]
) -> None:
    """Writes them; the weights and the tokenizer are left to `save_pretrained`.

    The poolers in sentence-transformers' modules, without code of ours:

    | pooler | modules after `Transformer` |
    |---|---|
    | `cls` | `Pooling(cls)`, `Dense` (the head, tanh) |
    | `cls_before_pooler` | `Pooling(cls)` |
    | `avg` | `Pooling(mean)` |
    | those of two layers | `WeightedLayerPooling` (weight 1 for the two, 0 for the others), `Pooling(mean)` |
    | `avg_no_cls` | none: its mean takes every token, so nothing is written |
    | `mask` | none: it knows no templates |

    Args:
        directory: of the checkpoint; made where it is not there.
        config: of the encoder.
        pooler_type: the pooler of inference, one of [`POOLER_TYPES`].
        head: weight and bias of the dense + tanh head, under names that end so. With pooler `cls` and an empty `head`
            (an encoder whose own pooler is another layer, weights that are saved elsewhere) nothing is written,
            as sentence-transformers could only give other vectors.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if pooler_type == "cls" and not head:
        logger.warning(f"{directory}: the head is no single dense layer; no sentence-transformers files are written.")
        return
    if pooler_type in NOT_IN_SENTENCE_TRANSFORMERS:
        logger.warning(
            f"{directory}: sentence-transformers has no pooling like {pooler_type!r}; none of its files are written. "
            "SentenceTransformer would take the mean of all tokens and give other vectors: load it with SimCSE."
        )
        (directory / "modules.json").unlink(missing_ok=True)  # an earlier save's would speak of another pooler
        return
    if head:
        save_head(directory, head)
    folders = [("Transformer", "")]
    if needs_hidden_states(pooler_type):
        folders.append(("WeightedLayerPooling", "1_WeightedLayerPooling"))
        _save_layer_weights(directory / "1_WeightedLayerPooling", config, pooler_type)
    folders.append(("Pooling", f"{len(folders)}_Pooling"))
    mean = pooler_type not in ("cls", "cls_before_pooler")
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": not mean,
        "pooling_mode_mean_tokens": mean,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    _write_json(directory / folders[-1][1] / "config.json", pooling)
    if pooler_type == "cls":
        folders.append(("Dense", FOLDER))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_MODULE}{kind}"} for i, (kind, path) in enumerate(folders)
    ]
    _write_json(directory / "modules.json", modules)
    # None stands for the tokenizer's limit, or the rows of the position table where they are fewer. RoBERTa's serve
    # fewer tokens than that.
    positions, rows = max_positions(config), getattr(config, "max_position_embeddings", None)
    transformer: dict = {"max_seq_length": None if positions == rows else positions, "do_lower_case": False}
    if needs_hidden_states(pooler_type):
        transformer["config_args"] = {"output_hidden_states": True}
    _write_json(directory / "sentence_bert_config.json", transformer)
    _write_json(
        directory / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )


def copy_sentence_transformers_files(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies what [`save_sentence_transformers_files`] wrote from one directory to another that is there."""
    for name in NAMES:
        path = Path(source, name)
        if path.is_dir():
            shutil.copytree(path, Path(target, name), dirs_exist_ok=True)
        elif path.exists():
            shutil.copy(path, Path(target, name))


def _save_layer_weights(folder: Path, config: PreTrainedConfig, pooler_type: str) -> None:
    layers = config.num_hidden_layers
    first = {"avg_top2": layers - 1, "avg_first_last": 1, "avg_embeddings_last": 0}[pooler_type]
    weights = torch.zeros(layers + 1 - first)
    weights[[0, -1]] = 1.0
    _write_json(
        folder / "config.json",
        {"word_embedding_dimension": config.hidden_size, "layer_start": first, "num_hidden_layers": layers},
    )
    save_file({"layer_weights": weights}, folder / WEIGHTS, metadata={"format": "pt"})


def _write_json(path: Path, content: dict | list) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
