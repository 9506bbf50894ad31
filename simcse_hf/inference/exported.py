"""An exported graph in place of the encoder: ONNX Runtime or OpenVINO computes the embeddings on the CPU."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Unpack

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig

from ..models.modeling import ContrastiveOutput
from ..models.resolve import settings_of_config
from ..names import BACKENDS
from ..ops.checks import check_values
from ..ops.errors import require_extra
from ..ops.files import HubArguments, find_file

#: The graph in float32 that `simcse-hf export` writes for each backend, where other libraries look for it.
GRAPHS = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
#: The graph in int8 for each backend and the processor's instructions, as sentence-transformers names it.
INT8_GRAPHS = {
    "onnx": {
        "vnni": "onnx/model_qint8_avx512_vnni.onnx",
        "amx": "onnx/model_qint8_avx512_vnni.onnx",
        "avx2": "onnx/model_quint8_avx2.onnx",
        "arm": "onnx/model_qint8_arm64.onnx",
    },
    "openvino": dict.fromkeys(("vnni", "amx", "avx2", "arm"), "openvino/openvino_model_qint8_quantized.xml"),
}
_EARLIER = {"onnx": "model.onnx", "openvino": "openvino_model.xml"}  # until version 0.4
EMBEDDING = "sentence_embedding"
Compute = Callable[[np.ndarray, np.ndarray], np.ndarray]


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
        ValueError: If the backend is unknown, or the model has no graph for it.
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
        names = [*INT8_GRAPHS[backend].values(), GRAPHS[backend], _EARLIER[backend]]
        for name in dict.fromkeys(names):
            path = find_file(name_or_path, name, **hub_arguments)
            if path is not None:
                break
        else:
            command = f"simcse-hf export {name_or_path} --to {backend} --output FOLDER"
            raise ValueError(f"{name_or_path} has no {GRAPHS[backend]}. Write one with `{command}`, and load that.")
        self.files = [path]
        weights = find_file(name_or_path, weights_of(name), **hub_arguments)  # downloads it beside the graph
        if weights is not None:
            self.files.append(weights)
        self.config = config
        self.dtype = dtype
        self.settings = settings_of_config(config)
        self.streams = torch.get_num_threads()
        self.compute = _open_onnx(path) if backend == "onnx" else _open_openvino(path, self.streams, dtype)
        # The first call prepares what all calls share, and it is made here, by one thread. Two threads that made it at
        # once waited for each other for ever: one held Python's global lock, and the other a lock of OpenVINO.
        first = self.compute(np.zeros((1, 1), np.int64), np.ones((1, 1), np.int64))
        self.embedding_dim = first.shape[1]
        self.device_of_inputs = nn.Parameter(torch.zeros(0), requires_grad=False)

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


def weights_of(graph: str) -> str:
    """Return the file beside a graph that holds its weights; ONNX has it for large models only."""
    if graph.endswith(".xml"):
        return graph.removesuffix(".xml") + ".bin"
    return f"{graph}.data"


def refuse_changes(**asked: object) -> None:
    """Raise a `ValueError` that names the settings, among those asked for, which an exported graph cannot change."""
    for name, is_changed in asked.items():
        if is_changed:
            raise ValueError(f"a graph is computed as it is, on the CPU: leave out {name}, or export the model again.")


def _open_onnx(path: str) -> Compute:
    onnxruntime = require_extra("onnxruntime", "onnx", "the backend onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return session.run([EMBEDDING], {"input_ids": ids, "attention_mask": mask})[0]

    return compute


def _open_openvino(path: str, streams: int, dtype: torch.dtype) -> Compute:
    openvino = require_extra("openvino", "openvino", "the backend openvino")
    options = {
        "INFERENCE_NUM_THREADS": streams,
        "NUM_STREAMS": streams,
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
    }
    compiled = openvino.Core().compile_model(path, "CPU", options)
    output = compiled.output(EMBEDDING)

    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        # A request of its own for each call, so that threads may share the model.
        return compiled.create_infer_request().infer([ids, mask])[output].copy()

    return compute
