"""An exported graph in place of the encoder: ONNX Runtime or OpenVINO computes the embeddings on the CPU."""

import os
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig

from ..models.modeling import ContrastiveOutput
from ..models.settings import settings_of_config
from ..names import BACKENDS
from ..runtime.errors import check_values
from ..runtime.files import digest
from ..runtime.loading import HubArguments, explain_damage, find_file
from .graphs import EMBEDDING, GRAPHS, INPUTS, Compute, weights_of


class ForeignGraph(ValueError):
    """A graph of another program than this package."""


class ExportedModel(nn.Module):
    """A graph that `simcse-hf export` wrote, called like a contrastive model.

    A graph in int8 takes precedence over the one in float32 beside it. Batches are computed side by side, each by one
    thread; there are as many as torch has threads when the graph is loaded (`torch.set_num_threads` or
    `OMP_NUM_THREADS`).

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of the export.
        backend (`str`): `"onnx"` or `"openvino"`.
        config (`PreTrainedConfig`): The config of the export, which names the pooler of the graph.
        dtype (`torch.dtype`): `torch.float32` or, with OpenVINO, `torch.bfloat16`, in which it then computes.
        **hub_arguments (`HubArguments`): As in [`SimCSE`].

    Raises:
        ImportError: If the backend's runtime is not installed.
        ValueError: If the backend is unknown, or the model has no graph for it, or one of another program.
    """

    head_source = "kept"
    #: Graphs compute padding, so their batches are smaller than those of torch.
    token_budget = 512

    def __init__(
        self,
        name_or_path: str | os.PathLike,
        backend: str,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        **hub_arguments: Unpack[HubArguments],
    ) -> None:
        super().__init__()
        check_values(BACKENDS, backend=backend)
        graph = GRAPHS[backend]
        for name in dict.fromkeys([*graph.int8.values(), graph.file, graph.earlier]):
            path = find_file(name_or_path, name, **hub_arguments)
            if path is not None:
                break
        else:
            raise ValueError(f"{name_or_path} has no {graph.file}. {_write_one(name_or_path, backend)}")
        self.files = [path]
        self.rounds = name in graph.int8.values() or dtype != torch.float32
        weights = find_file(name_or_path, weights_of(name), **hub_arguments)  # downloads it beside the graph
        if weights is not None:
            self.files.append(weights)
        self.backend = backend
        self.config = config
        self.dtype = dtype
        self.settings = settings_of_config(config)
        self.streams = torch.get_num_threads()
        self.digests = [digest(file) for file in self.files]
        with explain_damage(name_or_path):
            self.compute = self._open()
        self.device_of_inputs = nn.Parameter(torch.zeros(0), requires_grad=False)

    def _open(self) -> Compute:
        """Open the graph, if it is one of this package."""
        path = self.files[0]
        inputs, outputs, compute = GRAPHS[self.backend].open(path, self.streams, self.dtype)
        if sorted(inputs) != sorted(INPUTS) or EMBEDDING not in outputs:
            raise ForeignGraph(
                f"{path} takes {', '.join(inputs)} and returns {', '.join(outputs)}. A graph that is read here takes "
                f"{' and '.join(INPUTS)} and returns {EMBEDDING}. {_write_one('MODEL', self.backend)}"
            )
        # The first call prepares what all calls share, and it is made here, by one thread. Two threads that made it at
        # once waited for each other for ever: one held Python's global lock, and the other a lock of OpenVINO.
        first = compute(np.zeros((1, 1), np.int64), np.ones((1, 1), np.int64))
        self.embedding_dim = first.shape[1]
        return compute

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open graph, which no other process can use."""
        return {**self.__dict__, "compute": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the graph again, if its files are as they were."""
        super().__setstate__(state)
        for file, before in zip(self.files, self.digests, strict=True):
            if not os.path.exists(file) or digest(file) != before:
                raise ValueError(f"{file} was changed or removed after the model was loaded. Load the model again.")
        self.compute = self._open()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> ContrastiveOutput:
        """Compute embeddings of shape `(batch, dim)` from token ids and a mask of shape `(batch, length)`."""
        embeddings = self.compute(input_ids.numpy(), attention_mask.numpy())
        return ContrastiveOutput(sentence_embeddings=torch.from_numpy(embeddings))

    def update_settings(self, **settings: object) -> None:
        """Refuse, because a graph cannot be changed or saved."""
        raise ValueError("an exported graph cannot be saved: copy its folder, or save the model that was exported")

    def get_input_embeddings(self) -> SimpleNamespace:
        """Return the number of token ids that the graph knows, by the name that torch's embeddings have for it."""
        return SimpleNamespace(num_embeddings=self.config.vocab_size)


def _write_one(name_or_path: str | os.PathLike, backend: str) -> str:
    return f"Write one with `simcse-hf export {name_or_path} --to {backend} --output FOLDER`, and load that."


def refuse_settings(**asked: object) -> None:
    """Raise a `ValueError` that names the settings, among those asked for, which an exported graph cannot change."""
    for name, is_changed in asked.items():
        if is_changed:
            raise ValueError(f"an exported graph cannot be changed: leave out {name}, or export the model again.")
