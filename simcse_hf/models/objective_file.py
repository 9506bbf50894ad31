"""The file of what is trained beside the encoder and thrown away after: the objective's state, a second encoder."""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import logging

from ..ops.files import find_file

logger = logging.get_logger(__name__)

# Only continuing a run needs it: in the main weights it would be unexpected keys for AutoModel, and names with an
# underscore are left out of what is pushed to a hub.
FILE = "_objective.safetensors"
AUXILIARY_MODULES = ("objective", "second_encoder")


def save_auxiliary_state(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Writes the tensors of [`AUXILIARY_MODULES`] of a model's state; without any, an earlier file is removed."""
    tensors = {name: x.contiguous() for name, x in state_dict.items() if name.split(".")[0] in AUXILIARY_MODULES}
    path = Path(directory, FILE)
    if tensors:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"format": "pt"})
    else:
        path.unlink(missing_ok=True)


def load_auxiliary_state(model: nn.Module, name_or_path: str | os.PathLike) -> bool:
    """Fills the auxiliary modules of a model from a directory or hub name, where it has them.

    Returns:
        Whether there was a file.

    Raises:
        ValueError: the file does not fit the model's objective.
    """
    path = find_file(name_or_path, FILE)
    if not path:
        return False
    tensors = load_file(path)
    own = {name: x for name, x in model.state_dict().items() if name.split(".")[0] in AUXILIARY_MODULES}
    if {n: x.shape for n, x in own.items()} != {n: x.shape for n, x in tensors.items()}:
        raise ValueError(
            f"{path} holds the state of another objective or of other options than this model's. Give the objective "
            "it was saved with, or remove the file to start the objective anew."
        )
    model.load_state_dict(tensors, strict=False)
    logger.info(f"The objective goes on from {path}.")
    return True
