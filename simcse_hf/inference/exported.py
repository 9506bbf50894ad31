"""An exported graph in place of the encoder: ONNX Runtime or OpenVINO computes the embeddings on the CPU."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig

from ..models.modeling import ContrastiveOutput
from ..models.resolve import settings_of_config
from ..ops.errors import require_extra
from ..ops.files import find_file

#: The graph that `simcse-hf export` writes for each backend.
GRAPHS = {"onnx": "model.onnx", "openvino": "openvino_model.xml"}
#: The file beside the graph that holds its weights; ONNX has it for large models only.
WEIGHTS = {"onnx": "model.onnx.data", "openvino": "openvino_model.bin"}
_FORMATS = {"onnx": "onnx", "openvino": "openvino-int8 --texts FILE"}  # of `simcse-hf export`
Compute = Callable[[np.ndarray, np.ndarray], np.ndarray]


class ExportedModel(nn.Module):
    """A graph that `simcse-hf export` wrote, called like a contrastive model.

    The number of threads is that of torch (`torch.set_num_threads` or `OMP_NUM_THREADS`) when the graph is loaded.

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of the export.
        backend (`str`): `"onnx"` or `"openvino"`.
        config (`PreTrainedConfig`): The config of the export, which names the pooler of the graph.
        **hub_arguments (`Any`): As in [`SimCSE`].

    Raises:
        ImportError: If the backend's runtime is not installed.
        ValueError: If the backend is unknown, or the model has no graph for it.
    """

    head_source = "kept"
    dtype = torch.float32

    def __init__(
        self, name_or_path: str | os.PathLike, backend: str, config: PreTrainedConfig, **hub_arguments: Any
    ) -> None:
        super().__init__()
        if backend not in GRAPHS:
            raise ValueError(f"backend must be one of torch, {', '.join(GRAPHS)}, got {backend!r}")
        path = find_file(name_or_path, GRAPHS[backend], **hub_arguments)
        if path is None:
            raise ValueError(
                f"{name_or_path} has no {GRAPHS[backend]}. Write one with `simcse-hf export {name_or_path} --to "
                f"{_FORMATS[backend]} --output FOLDER`, and load that folder."
            )
        weights = find_file(name_or_path, WEIGHTS[backend], **hub_arguments)  # downloads it beside the graph
        self.files = [path] if weights is None else [path, weights]
        self.config = config
        self.settings = settings_of_config(config)
        opened = _open_onnx(path) if backend == "onnx" else _open_openvino(path)
        self.compute, self.embedding_dim = opened
        self.device_of_inputs = nn.Parameter(torch.zeros(0), requires_grad=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> ContrastiveOutput:
        """Compute embeddings of shape `(batch, dim)` from token ids and a mask of shape `(batch, length)`."""
        embeddings = self.compute(input_ids.numpy(), attention_mask.numpy())
        return ContrastiveOutput(sentence_embeddings=torch.from_numpy(embeddings))

    def update_settings(self, **settings: Any) -> None:
        """Refuse, because a graph cannot be changed or saved."""
        raise ValueError("an exported graph cannot be saved: copy its folder, or save the model that was exported")

    def get_input_embeddings(self) -> SimpleNamespace:
        """Return the number of token ids that the graph knows, by the name that torch's embeddings have for it."""
        return SimpleNamespace(num_embeddings=self.config.vocab_size)


def refuse_changes(**asked: Any) -> None:
    """Raise a `ValueError` that names the settings, among those asked for, which an exported graph cannot change."""
    for name, is_changed in asked.items():
        if is_changed:
            raise ValueError(
                f"an exported graph is computed as it is, on the CPU: leave out {name}, or export the model again "
                "with it."
            )


def _open_onnx(path: str) -> tuple[Compute, int]:
    onnxruntime = require_extra("onnxruntime", "onnx", "the backend onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    return compute, session.get_outputs()[0].shape[-1]


def _open_openvino(path: str) -> tuple[Compute, int]:
    openvino = require_extra("openvino", "openvino", "the backend openvino")
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", options)

    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        # A request of its own for each call, so that threads may share the model.
        return compiled.create_infer_request().infer([ids, mask])[0].copy()

    return compute, compiled.output(0).partial_shape[-1].get_length()
