"""Exported graphs in place of the encoder: how each runtime opens, writes and quantises one, and a model of one."""

import functools
import io
import logging as python_logging
import os
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..models.checkpoint import save_own_files
from ..models.modeling import ContrastiveModel, ContrastiveOutput
from ..models.pooling import POOLERS
from ..models.settings import settings_of_config
from ..names import BACKENDS, INSTRUCTIONS
from ..runtime.errors import ModelError, check_values, require_extra
from ..runtime.files import StrPath, digest
from ..runtime.loading import HubArguments, explain_damage, find_file

logger = logging.get_logger(__name__)

INPUTS = ["input_ids", "attention_mask"]
EMBEDDING = "sentence_embedding"
Compute = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: Inputs of a graph, one text each.
Feeds = list[dict[str, np.ndarray]]
#: The largest allowed difference between torch and a graph, relative to the largest entry if that exceeds 1.
TOLERANCE = 1e-5
#: The names of the inputs and outputs of a graph, and a function that computes embeddings.
Opened = tuple[Sequence[str], Sequence[str], Compute]
# Protobuf files end at 2 GB; larger models keep their weights in a second file.
_ONE_FILE_LIMIT = 1_800_000_000


class Graph(ABC):
    """A runtime for exported graphs. A subclass is known by its `name`, and its graphs lie in a folder of this name.

    Class attributes describe it to the rest of the package:

    - `package` is what has to be installed to load a graph.
    - `file` is the graph in float32, where other libraries look for it.
    - `int8` names the graph in int8 for each of `INSTRUCTIONS`, as sentence-transformers does.
    - `methods` are the forms of int8, the fastest first. `static` quantises activations by ranges that are measured
      beforehand, `dynamic` by those of each batch.
    """

    name: str
    package: str
    file: str
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
    def quantize(self, plain: Path, path: Path, method: str, feeds: Feeds, bits: int) -> None:
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

    def quantize(self, plain: Path, path: Path, method: str, feeds: Feeds, bits: int) -> None:
        """Write a graph in int8; see [`Graph.quantize`]."""
        quantization = require_extra("onnxruntime.quantization", "onnx", "the export to ONNX in int8")
        options = {
            "per_channel": True,
            "reduce_range": bits == 7,
            "weight_type": quantization.QuantType.QInt8,
            "use_external_data_format": Path(weights_of(str(plain))).exists(),
        }
        wide = []  # the products that have more inputs than outputs
        if method == "mixed":
            onnx = require_extra("onnx", "onnx", "the export to ONNX in int8")
            graph = onnx.load(plain, load_external_data=False).graph
            shapes = {weight.name: weight.dims for weight in graph.initializer}
            for node in graph.node:
                if node.op_type == "MatMul" and node.input[1] in shapes:
                    inputs, outputs = shapes[node.input[1]]
                    if inputs > outputs:
                        wide.append(node.name)
        if method != "static":
            kept = wide[: (len(wide) + 1) // 2]
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

    def quantize(self, plain: Path, path: Path, method: str, feeds: Feeds, bits: int) -> None:
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
        outputs = self.model.encode_tokens(texts, whole_last_layer=True)
        return outputs.last_hidden_state, self.model.embed(input_ids, attention_mask, outputs=outputs)


def example(simcse: Any, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make token ids and their mask of at most this length; each row is one token longer than the row before."""
    length = min(length, simcse.max_length or length)
    mask = torch.ones(rows, length, dtype=torch.long).tril(max(1, length - rows))
    numbers = torch.arange(mask.numel()).view_as(mask) % simcse.model.config.vocab_size
    return numbers.where(mask.bool(), simcse.tokenizer.pad_token_id), mask


def feeds(simcse: Any, texts: list[str]) -> Feeds:
    """Return the inputs of the graph for each text."""
    rows = simcse.tokenize(texts, simcse.resolve_prompt(), long_texts="cut")
    return [{"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), np.int64)} for row in rows]


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


class ForeignGraph(ModelError):
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
        name_or_path: StrPath,
        backend: str,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        **hub_arguments: Unpack[HubArguments],
    ) -> None:
        super().__init__()
        check_values(BACKENDS, backend=backend)
        graph = GRAPHS[backend]
        for name in dict.fromkeys([*graph.int8.values(), graph.file]):
            path = find_file(name_or_path, name, **hub_arguments)
            if path is not None:
                break
        else:
            raise ModelError(f"{name_or_path} has no {graph.file}. {_write_one(name_or_path, backend)}")
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
                raise ModelError(f"{file} was changed or removed after the model was loaded. Load the model again.")
        self.compute = self._open()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> ContrastiveOutput:
        """Compute embeddings of shape `(batch, dim)` from token ids and a mask of shape `(batch, length)`."""
        embeddings = self.compute(input_ids.numpy(), attention_mask.numpy())
        return ContrastiveOutput(sentence_embeddings=torch.from_numpy(embeddings))

    def update_settings(self, **settings: object) -> None:
        """Refuse, because a graph cannot be changed or saved."""
        raise ModelError("an exported graph cannot be saved: copy its folder, or save the model that was exported")

    def get_input_embeddings(self) -> SimpleNamespace:
        """Return the number of token ids that the graph knows, by the name that torch's embeddings have for it."""
        return SimpleNamespace(num_embeddings=self.config.vocab_size)


def export_graph(simcse: Any, directory: Path, backend: str) -> Path:
    """Write a graph that maps token ids to embeddings, with the tokenizer and config.json.

    The graph takes `input_ids` and `attention_mask`, int64 tensors of any shape `(batch, length)`. It returns
    `last_hidden_state`, the states of the last layer of shape `(batch, length, hidden)`, and `sentence_embedding`, of
    shape `(batch, dim)`, computed with the pooler and its head and not normalized; both in float32. With the files of
    sentence-transformers beside it, its backends load the directory. The function compares the runtime's embeddings
    with torch's before it returns.

    Args:
        simcse (`SimCSE`): The model with the pooler to export.
        directory (`Path`): A directory that does not exist.
        backend (`str`): The runtime, one of `GRAPHS`.

    Returns:
        `Path`: The path of the graph.

    Raises:
        ImportError: If the extras of the runtime are not installed.
        FileExistsError: If `directory` exists.
        ModelError: If the two runtimes differ by more than `TOLERANCE`, or if the model uses a whitening, a flow or a
            template, none of which the graph contains.
    """
    settings = simcse.model.settings
    if simcse.postprocessing is not None:
        raise ModelError(
            f"{simcse.name_or_path} applies a {simcse.postprocessing.method}, but the graph ends at the pooler. "
            "Export without it (--no_postprocess, or postprocess=False) and transform the embeddings afterwards."
        )
    if settings.templates:
        raise ModelError(
            "this model puts each text into a template, which the tokenizer of a graph would not do. Load the model "
            "with SimCSE instead."
        )
    if settings.default_prompt_name is not None:
        logger.warning(
            f"The model puts its prompt {settings.default_prompt_name!r} before each text, but the graph does not: "
            "add the prompt before you tokenize."
        )
    simcse.model.cpu().float()
    path = directory / GRAPHS[backend].file
    directory.mkdir(parents=True)
    path.parent.mkdir()
    GRAPHS[backend].export(simcse, path)

    # Load it as its users will, and delete the graph if its embeddings are not those of torch.
    inputs = example(simcse, rows=5, length=12)
    exported = ExportedModel(directory, backend, simcse.model.config, torch.float32)
    with torch.no_grad():
        expected = simcse.model.embed(*inputs)
    difference = (exported(*inputs).sentence_embeddings - expected).abs().max().item()
    largest = expected.abs().max().item()
    if not difference <= TOLERANCE * max(1.0, largest):
        path.unlink()
        raise ModelError(
            f"the embeddings of the exported graph differ from torch's by {difference:.2g}, more than {TOLERANCE:g}. "
            "The graph was deleted; please report the model and the versions of torch and of the runtime."
        )
    simcse.save_settings(directory)
    # The layers that are averaged are not among the outputs, so sentence-transformers could not average them.
    pooler = POOLERS[simcse.pooler_type]
    if pooler.mode is not None and pooler.second_layer is None:
        save_own_files(simcse.model, directory, simcse.model.state_dict())
    return path


def _write_one(name_or_path: StrPath, backend: str) -> str:
    return f"Write one with `simcse-hf export {name_or_path} --to {backend} --output FOLDER`, and load that."


def refuse_settings(**asked: object) -> None:
    """Raise a `ValueError` that names the settings, among those asked for, which an exported graph cannot change."""
    for name, is_changed in asked.items():
        if is_changed:
            raise ModelError(f"an exported graph cannot be changed: leave out {name}, or export the model again.")
