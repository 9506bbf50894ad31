"""Exports a model to a sentence-transformers directory, an ONNX graph, or a graph in int8 for a CPU."""

import io
import logging as python_logging
import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from ..inference.exported import GRAPHS, WEIGHTS
from ..inference.simcse import SimCSE
from ..models.modeling import ContrastiveModel
from ..models.sentence_transformers import NOT_IN_SENTENCE_TRANSFORMERS
from ..ops.errors import refuse, require_extra

logger = logging.get_logger(__name__)

ONNX_FILE = GRAPHS["onnx"]
#: What a processor multiplies integers of 8 bits with.
INSTRUCTIONS = ("avx2", "vnni", "amx", "arm")
#: The largest allowed difference between torch and ONNX Runtime, relative to the largest entry if that exceeds 1.
ONNX_TOLERANCE = 1e-5

# Protobuf files end at 2 GB; larger models keep their weights in a second file.
_ONE_FILE_LIMIT = 1_800_000_000


def export_sentence_transformers(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Write a directory that `SentenceTransformer(directory)` loads, with the same embeddings as `simcse`.

    Checkpoints saved by this package are such directories already. The export is for published SimCSE models, whose
    config names no pooler, and for a pooler other than the checkpoint's.

    Args:
        simcse (`SimCSE`): The model with the pooler to export.
        directory (`str` or `os.PathLike`): A directory that is empty or does not exist.

    Returns:
        `Path`: The directory.

    Raises:
        ValueError: If `directory` is not empty, or if sentence-transformers has no such pooler or no flow.
    """
    no_flow = (
        f"{simcse.name_or_path} applies a flow, for which sentence-transformers has no module. Load the model with "
        "SimCSE, or export it without the flow (--no_postprocess, or postprocess=False)."
    )
    no_pooling = (
        f"sentence-transformers has no pooling like {simcse.pooler_type!r}, so it would compute other embeddings. "
        "Choose another pooler, export to ONNX, or load the checkpoint with SimCSE."
    )
    has_flow = simcse.postprocessing is not None and simcse.postprocessing.method == "flow"
    refuse({no_flow: has_flow, no_pooling: simcse.pooler_type in NOT_IN_SENTENCE_TRANSFORMERS})
    directory = _empty_directory(directory)
    simcse.save_pretrained(directory)
    return directory


class _Embedder(nn.Module):
    """The model as a function of two tensors, as torch's exporter needs it."""

    def __init__(self, model: ContrastiveModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model.embed(input_ids, attention_mask)


def export_onnx(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Write `model.onnx`, which maps token ids to embeddings, with the tokenizer and config.json.

    The graph takes `input_ids` and `attention_mask`, int64 tensors of any shape `(batch, length)`. It returns
    `sentence_embedding`, a float32 tensor of shape `(batch, dim)`, computed with the pooler and its head and not
    normalised. The function compares ONNX Runtime's output with torch's before it returns.

    Args:
        simcse (`SimCSE`): The model with the pooler to export.
        directory (`str` or `os.PathLike`): A directory that is empty or does not exist.

    Returns:
        `Path`: The path of `model.onnx`.

    Raises:
        ImportError: If the extra `onnx` is not installed.
        ValueError: If `directory` is not empty, if the two runtimes differ by more than `ONNX_TOLERANCE`, or if the
            model uses a whitening, a flow or a template, none of which the graph contains.
    """
    onnxruntime = require_extra("onnxruntime", "onnx", "the export to ONNX")
    require_extra("onnxscript", "onnx", "torch's exporter to ONNX")
    transformed = (
        f"{simcse.name_or_path} applies a {getattr(simcse.postprocessing, 'method', None)}, but the ONNX graph ends "
        "at the pooler. Export without it (--no_postprocess, or postprocess=False) and transform the embeddings "
        "afterwards."
    )
    templated = (
        "this model puts each text into a template, which the tokenizer of an ONNX graph would not do. Load the model "
        "with SimCSE instead."
    )
    refuse({transformed: simcse.postprocessing is not None, templated: simcse.model.settings.templates})
    if simcse.model.settings.default_prompt_name is not None:
        logger.warning(
            f"The model puts its prompt {simcse.model.settings.default_prompt_name!r} before each text, but the graph "
            "does not: add the prompt before you tokenize."
        )
    directory = _empty_directory(directory)
    simcse.model.cpu().float()
    module = _Embedder(simcse.model).eval()
    longest = simcse.max_length or 12
    inputs = _example(simcse, rows=3, length=min(7, longest))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    path = directory / ONNX_FILE
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    with torch.no_grad(), warnings.catch_warnings(), _silent():
        warnings.simplefilter("ignore")  # torch warns about its own internals
        torch.onnx.export(
            module,
            inputs,
            path,
            dynamo=True,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding"],
            dynamic_shapes={"input_ids": axes, "attention_mask": axes},
            external_data=size > _ONE_FILE_LIMIT,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    try:
        _check_against_torch(session, module, _example(simcse, rows=5, length=min(12, longest)))
    except ValueError:
        path.unlink()
        raise
    simcse.save_settings(directory)
    return path


def export_onnx_int8(simcse: SimCSE, directory: str | os.PathLike, instructions: str | None = None) -> Path:
    """Write `model.onnx` with weights of 8 bits, which `SimCSE(directory, backend="onnx")` loads.

    Each output channel of a weight has a scale of its own. The activations are quantised while the graph runs, by
    the range of each batch (dynamic quantisation by ONNX Runtime).

    Args:
        simcse (`SimCSE`): As in [`export_onnx`].
        directory (`str` or `os.PathLike`): As in [`export_onnx`].
        instructions (`str`, *optional*): One of `INSTRUCTIONS`; defaults to [`processor_instructions`]. AVX2 adds
            products of 8 bits in 16 bits, which overflow, so its weights get 7 bits.

    Returns:
        `Path`: The path of `model.onnx`.

    Raises:
        ImportError: If the extra `onnx` is not installed.
        ValueError: As [`export_onnx`].
    """
    path = export_onnx(simcse, directory)
    from onnxruntime import quantization

    with TemporaryDirectory() as folder, _silent():
        quantized = Path(folder, ONNX_FILE)
        quantization.quantize_dynamic(
            path,
            quantized,
            per_channel=True,
            reduce_range=(instructions or processor_instructions()) == "avx2",
            weight_type=quantization.QuantType.QInt8,
        )
        path.with_name(WEIGHTS["onnx"]).unlink(missing_ok=True)
        shutil.copyfile(quantized, path)
    return path


def export_openvino_int8(simcse: SimCSE, directory: str | os.PathLike, instructions: str | None = None) -> Path:
    """Write `openvino_model.xml` with weights of 8 bits, which `SimCSE(directory, backend="openvino")` loads.

    Each output channel of a weight has a scale of its own (NNCF's compression of weights). OpenVINO quantises the
    activations while the graph runs, in groups, where the processor has instructions for it.

    Args:
        simcse (`SimCSE`): As in [`export_onnx`].
        directory (`str` or `os.PathLike`): As in [`export_onnx`].
        instructions (`str`, *optional*): Not used: OpenVINO chooses when it loads the graph.

    Returns:
        `Path`: The path of `openvino_model.xml`.

    Raises:
        ImportError: If the extras `onnx` and `openvino` are not installed.
        ValueError: As [`export_onnx`].
    """
    openvino = require_extra("openvino", "openvino", "the export to OpenVINO")
    nncf = require_extra("nncf", "openvino", "the export to OpenVINO in int8")
    graph = export_onnx(simcse, directory)
    with _silent():
        model = nncf.compress_weights(openvino.Core().read_model(graph), mode=nncf.CompressWeightsMode.INT8_SYM)
    path = graph.with_name(GRAPHS["openvino"])
    openvino.save_model(model, path, compress_to_fp16=False)
    for file in (graph, graph.with_name(WEIGHTS["onnx"])):
        file.unlink(missing_ok=True)
    return path


def processor_instructions() -> str:
    """Return which of `INSTRUCTIONS` this processor multiplies integers of 8 bits with, AVX2 if torch cannot tell."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "arm"
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has_vnni = found.get("avx512_vnni") or found.get("avx_vnni")
    return "amx" if found.get("amx_int8") else "vnni" if has_vnni else "avx2"


def _example(simcse: SimCSE, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make token ids and their mask; each row is one token shorter than the row before."""
    lengths = (length - torch.arange(rows)).clamp(min=2)
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.full((rows, length), simcse.tokenizer.pad_token_id)
    ids[mask.bool()] = torch.arange(int(mask.sum())) % simcse.model.config.vocab_size
    return ids, mask


def _check_against_torch(session: Any, module: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    names = ("input_ids", "attention_mask")
    actual = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})[0]
    with torch.no_grad():
        expected = module(*inputs)
    difference = (torch.from_numpy(actual) - expected).abs().max().item()
    if not difference <= ONNX_TOLERANCE * max(1.0, expected.abs().max().item()):
        raise ValueError(
            f"the embeddings of the exported graph differ from torch's by {difference:.2g}, more than "
            f"{ONNX_TOLERANCE:g}. The graph was deleted; please report the model and the versions of torch and ONNX."
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Hide what the exporting libraries log and print about their own steps, so that `--json` prints JSON alone."""
    before = python_logging.root.manager.disable
    python_logging.disable(python_logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        python_logging.disable(before)


def _empty_directory(directory: str | os.PathLike) -> Path:
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} is not an empty directory. Choose another --output.")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


EXPORTS = {
    "sentence-transformers": export_sentence_transformers,
    "onnx": export_onnx,
    "onnx-int8": export_onnx_int8,
    "openvino-int8": export_openvino_int8,
}
