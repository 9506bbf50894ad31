"""The dense + tanh head of encoders without a pooler of their own, and the file a head is kept in."""

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig

from ..ops.files import find_file, select_hub_arguments

# sentence-transformers' place and format for a dense layer. A file of its own keeps the encoder's weights loadable by
# AutoModel without an unexpected key.
FOLDER = "2_Dense"
WEIGHTS = "model.safetensors"


class SentenceHead(nn.Module):
    """tanh(W x + b): BERT's pooler layer for encoders that lack one. (n, dim) -> (n, dim)."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(vectors))


def save_head(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Writes a head, its weight and bias under names that end so, to `directory/2_Dense`."""
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


def load_head(head: SentenceHead, name_or_path: str | os.PathLike, kwargs: dict) -> bool:
    """Fills `head` from a directory or hub name.

    Args:
        head: filled in place.
        name_or_path: of the checkpoint.
        kwargs: of `from_pretrained`; those that concern the hub are used.

    Returns:
        Whether the checkpoint has a head.
    """
    path = find_file(name_or_path, f"{FOLDER}/{WEIGHTS}", **select_hub_arguments(kwargs))
    if path is None:
        return False
    tensors = load_file(path)
    head.dense.load_state_dict({name.removeprefix("linear."): tensor for name, tensor in tensors.items()})
    return True
