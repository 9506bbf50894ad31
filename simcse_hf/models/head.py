"""The dense + tanh head of encoders without a pooler of their own, and the file that stores a head."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig

from ..ops.files import find_file, select_hub_arguments

# sentence-transformers' folder and format for a dense layer. The head has a file of its own, so that AutoModel loads
# the encoder's weights without an unexpected key.
FOLDER = "2_Dense"
WEIGHTS = "model.safetensors"


class SentenceHead(nn.Module):
    """Compute tanh(W x + b), which is BERT's pooler layer, for encoders that lack one."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map embeddings of shape `(batch, dim)` to embeddings of the same shape."""
        return torch.tanh(self.dense(embeddings))


def save_head(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Write a head to the folder `2_Dense` of a checkpoint.

    Args:
        directory (`str` or `os.PathLike`): The checkpoint.
        state_dict (`dict[str, torch.Tensor]`): The head's weight and bias, under names that end in these words.
    """
    folder = Path(directory) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"linear.{name.rsplit('.', 1)[1]}": tensor.contiguous() for name, tensor in state_dict.items()}
    outputs, inputs = tensors["linear.weight"].shape
    layer = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (folder / "config.json").write_text(json.dumps(layer, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_head(head: SentenceHead, name_or_path: str | os.PathLike, kwargs: dict[str, Any]) -> bool:
    """Load the weights of a head, if the checkpoint has one.

    Args:
        head ([`SentenceHead`]): The head. It is changed in place.
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        kwargs (`dict`): The arguments of `from_pretrained`. Only those that locate files are used.

    Returns:
        `bool`: Whether the checkpoint has a head.
    """
    path = find_file(name_or_path, f"{FOLDER}/{WEIGHTS}", **select_hub_arguments(kwargs))
    if path is None:
        return False
    tensors = load_file(path)
    head.dense.load_state_dict({name.removeprefix("linear."): tensor for name, tensor in tensors.items()})
    return True
