"""The runtimes that compute an exported graph: how each opens, writes and quantises one, and where its files are."""

import functools
import io
import logging as python_logging
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..models.modeling import ContrastiveModel
from ..names import INSTRUCTIONS
from ..runtime.errors import require_extra

INPUTS = ["input_ids", "attention_mask"]
EMBEDDING = "sentence_embedding"
Compute = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: The names of the inputs and outputs of a graph, and a function that computes embeddings.
Opened = tuple[Sequence[str], Sequence[str], Compute]
# Protobuf files end at 2 GB; larger models keep their weights in a second file.
_ONE_FILE_LIMIT = 1_800_000_000


class Graph(ABC):
    """A runtime for exported graphs. A subclass is known by its `name`, and its graphs lie in a folder of this name.

    Class attributes describe it to the rest of the package:

    - `package` is what has to be installed to load a graph.
    - `file` is the graph in float32, where other libraries look for it; `earlier` that of versions until 0.4.
    - `int8` names the graph in int8 for each of `INSTRUCTIONS`, as sentence-transformers does.
    - `methods` are the forms of int8, the fastest first. `static` quantises activations by ranges that are measured
      beforehand, `dynamic` by those of each batch.
    """

    name: str
    package: str
    file: str
    earlier: str
    int8: Mapping[str, str]
    methods: tuple[str, ...]

    def __init_subclass__(cls) -> None:
        GRAPHS[cls.name] = cls()

    @abstractmethod
    def open(self, path: str, streams: int, dtype: torch.dtype) -> Opened:
        """Open a graph.

        Args:
            path (`str`): Its file.
            streams (`int`): How many batches are computed side by side.
            dtype (`torch.dtype`): The data type to compute in.

        Returns:
            `Opened`: What can be done with it.
        """

    @abstractmethod
    def export(self, simcse: Any, path: Path) -> None:
        """Write the graph of a model in float32.

        Args:
            simcse (`SimCSE`): The model, on the CPU in float32 and in evaluation mode.
            path (`Path`): The file. Its folder exists.
        """

    @abstractmethod
    def quantize(self, plain: Path, path: Path, method: str, feeds: list[dict[str, np.ndarray]], bits: int) -> None:
        """Write a graph in int8, whose weights have a scale for each output channel.

        Args:
            plain (`Path`): The graph in float32.
            path (`Path`): The file to write. Its folder exists.
            method (`str`): One of `methods`.
            feeds (`list`): Inputs that give the ranges of activations, one text each.
            bits (`int`): The bits of weights: 7 where sums of two products of 8 bits overflow.
        """


#: The runtimes by the names of `BACKENDS`.
GRAPHS: dict[str, Graph] = {}


class OnnxGraph(Graph):
    """Graphs for ONNX Runtime.

    `mixed` is dynamic, but in the first half of the layers the second product of the feed-forward layer, whose inputs
    spread most, stays in float32: it loses about a third less, at about 0.8 times the speed.
    """

    name = "onnx"
    package = "onnxruntime"
    file = "onnx/model.onnx"
    earlier = "model.onnx"
    int8 = {
        "vnni": "onnx/model_qint8_avx512_vnni.onnx",
        "amx": "onnx/model_qint8_avx512_vnni.onnx",
        "avx2": "onnx/model_quint8_avx2.onnx",
        "arm": "onnx/model_qint8_arm64.onnx",
    }
    methods = ("dynamic", "mixed", "static")

    def open(self, path: str, streams: int, dtype: torch.dtype) -> Opened:
        """Open a graph; see [`Graph.open`]. ONNX Runtime computes in float32, in as many threads as call it."""
        onnxruntime = require_extra("onnxruntime", "onnx", "the backend onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            return session.run([EMBEDDING], {"input_ids": ids, "attention_mask": mask})[0]

        return [x.name for x in session.get_inputs()], [x.name for x in session.get_outputs()], compute

    def export(self, simcse: Any, path: Path) -> None:
        """Write a graph; see [`Graph.export`]."""
        require_extra("onnxruntime", "onnx", "the export to ONNX")
        require_extra("onnxscript", "onnx", "torch's exporter to ONNX")
        axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}  # torch 2.6 refuses named ones
        # torch warns about its own internals
        with torch.no_grad(), warnings.catch_warnings(action="ignore"), silent():
            program = torch.onnx.export(
                _Embedder(simcse.model).eval(),
                example(simcse, rows=3, length=7),
                dynamo=True,
                optimize=True,
                input_names=INPUTS,
                output_names=["last_hidden_state", EMBEDDING],
                dynamic_shapes=dict.fromkeys(INPUTS, axes),
                verbose=False,
            )
            assert program is not None  # which it is where a file is named
            for node in program.model.graph:
                node.metadata_props.clear()  # which name the folders of this machine
            program.save(path, external_data=simcse.model.get_memory_footprint() > _ONE_FILE_LIMIT)

    def quantize(self, plain: Path, path: Path, method: str, feeds: list[dict[str, np.ndarray]], bits: int) -> None:
        """Write a graph in int8; see [`Graph.quantize`]."""
        quantization = require_extra("onnxruntime.quantization", "onnx", "the export to ONNX in int8")
        options = {
            "per_channel": True,
            "reduce_range": bits == 7,
            "weight_type": quantization.QuantType.QInt8,
            "use_external_data_format": Path(weights_of(str(plain))).exists(),
        }
        if method != "static":
            kept = _first_wide_products(plain) if method == "mixed" else []
            quantization.quantize_dynamic(plain, path, nodes_to_exclude=kept, **options)
            return
        rows = iter(feeds)
        quantization.quantize_static(
            plain,
            path,
            SimpleNamespace(get_next=lambda: next(rows, None)),
            op_types_to_quantize=["MatMul", "Gemm"],
            extra_options={"MatMulConstBOnly": True},
            **options,
        )


class OpenVinoGraph(Graph):
    """Graphs for OpenVINO, which are made from those for ONNX."""

    name = "openvino"
    package = "openvino"
    file = "openvino/openvino_model.xml"
    earlier = "openvino_model.xml"
    int8 = dict.fromkeys(INSTRUCTIONS, "openvino/openvino_model_qint8_quantized.xml")
    methods = ("static", "dynamic")

    def open(self, path: str, streams: int, dtype: torch.dtype) -> Opened:
        """Open a graph; see [`Graph.open`]."""
        openvino = require_extra("openvino", "openvino", "the backend openvino")
        options = {
            "INFERENCE_NUM_THREADS": streams,
            "NUM_STREAMS": streams,
            "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
        }
        compiled = openvino_core(openvino).compile_model(path, "CPU", options)

        def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            # A request of its own for each call, so that threads may share the model.
            request = compiled.create_infer_request()
            return request.infer({"input_ids": ids, "attention_mask": mask})[EMBEDDING].copy()

        return [x.any_name for x in compiled.inputs], [x.any_name for x in compiled.outputs], compute

    def export(self, simcse: Any, path: Path) -> None:
        """Write a graph; see [`Graph.export`]."""
        openvino = require_extra("openvino", "openvino", "the export to OpenVINO")
        work = path.parents[1] / "from_onnx"
        work.mkdir()
        GRAPHS["onnx"].export(simcse, work / "model.onnx")
        model = openvino_core(openvino).read_model(work / "model.onnx")
        openvino.save_model(model, path, compress_to_fp16=False)
        shutil.rmtree(work)

    def quantize(self, plain: Path, path: Path, method: str, feeds: list[dict[str, np.ndarray]], bits: int) -> None:
        """Write a graph in int8; see [`Graph.quantize`]. It serves all processors."""
        openvino = require_extra("openvino", "openvino", "the export to OpenVINO")
        nncf = require_extra("nncf", "openvino", "the export to OpenVINO in int8")
        model = openvino_core(openvino).read_model(plain)
        if method == "dynamic":
            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        else:
            data = nncf.Dataset(feeds)
            model = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds))
        openvino.save_model(model, path, compress_to_fp16=False)


def weights_of(graph: str) -> str:
    """Return the file beside a graph that holds its weights; ONNX has it for large models only."""
    if graph.endswith(".xml"):
        return graph.removesuffix(".xml") + ".bin"
    return f"{graph}.data"


@functools.cache
def openvino_core(openvino: ModuleType) -> Any:
    """Return the one core of OpenVINO that this process has, and keep it.

    Each core sets a stack for the handlers of signals. When it is freed, it restores the stack that it found. If
    core A is freed before a later core B, B restores the stack of A, which is gone: the next signal ends the process.
    """
    return openvino.Core()


class _Embedder(nn.Module):
    """The model as a function of two tensors, as torch's exporter needs it."""

    def __init__(self, model: ContrastiveModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of the last layer, which other libraries pool themselves, and the embeddings."""
        texts = {"input_ids": input_ids, "attention_mask": attention_mask}
        outputs = self.model.encode_tokens(texts, self.model.active_pooler, whole_last_layer=True)
        return outputs.last_hidden_state, self.model.embed(input_ids, attention_mask, outputs=outputs)


def example(simcse: Any, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make token ids and their mask of at most this length; each row is one token longer than the row before."""
    length = min(length, simcse.max_length or length)
    mask = torch.ones(rows, length, dtype=torch.long).tril(max(1, length - rows))
    numbers = torch.arange(mask.numel()).view_as(mask) % simcse.model.config.vocab_size
    return numbers.where(mask.bool(), simcse.tokenizer.pad_token_id), mask


def feeds(simcse: Any, texts: list[str]) -> list[dict[str, np.ndarray]]:
    """Return the inputs of the graph for each text."""
    rows = simcse.tokenize(texts, simcse.resolve_prompt(), long_texts="cut")
    return [{"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), np.int64)} for row in rows]


def _first_wide_products(plain: Path) -> list[str]:
    """Return the first half of the products of a graph that have more inputs than outputs, by name."""
    onnx = require_extra("onnx", "onnx", "the export to ONNX in int8")
    graph = onnx.load(plain, load_external_data=False).graph
    shapes = {weight.name: weight.dims for weight in graph.initializer}
    wide = []
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in shapes:
            inputs, outputs = shapes[node.input[1]]
            if inputs > outputs:
                wide.append(node.name)
    return wide[: (len(wide) + 1) // 2]


@contextmanager
def silent() -> Iterator[None]:
    """Hide what the exporting libraries log and print about their own steps, so that `--json` prints JSON alone."""
    before = python_logging.root.manager.disable
    python_logging.disable(python_logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        python_logging.disable(before)
