"""Exports a model to a sentence-transformers directory, or to a graph in float32 for ONNX Runtime or OpenVINO."""

import io
import logging as python_logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from torch import nn
from transformers.utils import logging

from ..encoding.exported import EMBEDDING, GRAPHS, INPUTS, ExportedModel, openvino_core
from ..encoding.simcse import SimCSE
from ..models.checkpoint import save_own_files
from ..models.modeling import ContrastiveModel
from ..models.pooling import POOLERS
from ..runtime.errors import require_extra

logger = logging.get_logger(__name__)

ONNX_FILE = GRAPHS["onnx"]
#: The largest allowed difference between torch and a graph, relative to the largest entry if that exceeds 1.
TOLERANCE = 1e-5

# Protobuf files end at 2 GB; larger models keep their weights in a second file.
_ONE_FILE_LIMIT = 1_800_000_000


def export_sentence_transformers(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Write a directory that `SentenceTransformer(directory)` loads, with the same embeddings as `simcse`.

    Checkpoints saved by this package are such directories already. The export is for published SimCSE models, whose
    config names no pooler, and for a pooler other than the checkpoint's.

    Args:
        simcse (`SimCSE`): The model with the pooler to export.
        directory (`str` or `os.PathLike`): A directory that does not exist.

    Returns:
        `Path`: The directory.

    Raises:
        FileExistsError: If `directory` exists.
        ValueError: If sentence-transformers has no such pooler or no flow.
    """
    if simcse.postprocessing is not None and simcse.postprocessing.method == "flow":
        raise ValueError(
            f"{simcse.name_or_path} applies a flow, for which sentence-transformers has no module. Load the model "
            "with SimCSE, or export it without the flow (--no_postprocess, or postprocess=False)."
        )
    if POOLERS[simcse.pooler_type].mode is None:
        raise ValueError(
            f"sentence-transformers has no pooling like {simcse.pooler_type!r}, so it would compute other embeddings. "
            "Choose another pooler, export to ONNX, or load the checkpoint with SimCSE."
        )
    directory = Path(directory)
    directory.mkdir(parents=True)
    simcse.save_pretrained(directory)
    return directory


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


def export_onnx(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Write `onnx/model.onnx`, which maps token ids to embeddings, with the tokenizer and config.json.

    The graph takes `input_ids` and `attention_mask`, int64 tensors of any shape `(batch, length)`. It returns
    `last_hidden_state`, the states of the last layer of shape `(batch, length, hidden)`, and `sentence_embedding`, of
    shape `(batch, dim)`, computed with the pooler and its head and not normalized; both in float32. With the files of
    sentence-transformers beside it, its backend `onnx` loads the directory. The function compares ONNX Runtime's
    embeddings with torch's before it returns.

    Args:
        simcse (`SimCSE`): The model with the pooler to export.
        directory (`str` or `os.PathLike`): A directory that does not exist.

    Returns:
        `Path`: The path of the graph.

    Raises:
        ImportError: If the extra `onnx` is not installed.
        FileExistsError: If `directory` exists.
        ValueError: If the two runtimes differ by more than `TOLERANCE`, or if the model uses a whitening, a flow or a
            template, none of which the graph contains.
    """
    require_extra("onnxruntime", "onnx", "the export to ONNX")
    require_extra("onnxscript", "onnx", "torch's exporter to ONNX")
    settings = simcse.model.settings
    if simcse.postprocessing is not None:
        raise ValueError(
            f"{simcse.name_or_path} applies a {simcse.postprocessing.method}, but the ONNX graph ends at the pooler. "
            "Export without it (--no_postprocess, or postprocess=False) and transform the embeddings afterwards."
        )
    if settings.templates:
        raise ValueError(
            "this model puts each text into a template, which the tokenizer of an ONNX graph would not do. Load the "
            "model with SimCSE instead."
        )
    if settings.default_prompt_name is not None:
        logger.warning(
            f"The model puts its prompt {settings.default_prompt_name!r} before each text, but the graph does not: "
            "add the prompt before you tokenize."
        )
    module = _Embedder(simcse.model.cpu().float()).eval()
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}  # torch 2.6 refuses named ones
    directory = Path(directory)
    directory.mkdir(parents=True)
    path = directory / ONNX_FILE
    path.parent.mkdir()
    # torch warns about its own internals
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), silent():
        program = torch.onnx.export(
            module,
            _example(simcse, rows=3, length=7),
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
    _check_against_torch(simcse, directory, "onnx")
    simcse.save_settings(directory)
    # The layers that are averaged are not among the outputs, so sentence-transformers could not average them.
    pooler = POOLERS[simcse.pooler_type]
    if pooler.mode is not None and pooler.second_layer is None:
        save_own_files(simcse.model, directory, simcse.model.state_dict())
    return path


def export_openvino(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Write `openvino/openvino_model.xml`, a graph like that of [`export_onnx`] for OpenVINO.

    Args:
        simcse (`SimCSE`): As in [`export_onnx`].
        directory (`str` or `os.PathLike`): As in [`export_onnx`].

    Returns:
        `Path`: The path of the graph.

    Raises:
        ImportError: If the extras `onnx` and `openvino` are not installed.
        ValueError: As [`export_onnx`].
    """
    openvino = require_extra("openvino", "openvino", "the export to OpenVINO")
    onnx_graph = export_onnx(simcse, directory)
    path = Path(directory, GRAPHS["openvino"])
    openvino.save_model(openvino_core(openvino).read_model(onnx_graph), path, compress_to_fp16=False)
    shutil.rmtree(onnx_graph.parent)
    _check_against_torch(simcse, path.parents[1], "openvino")
    return path


def _example(simcse: SimCSE, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make token ids and their mask of at most this length; each row is one token longer than the row before."""
    length = min(length, simcse.max_length or length)
    mask = torch.ones(rows, length, dtype=torch.long).tril(max(1, length - rows))
    numbers = torch.arange(mask.numel()).view_as(mask) % simcse.model.config.vocab_size
    return numbers.where(mask.bool(), simcse.tokenizer.pad_token_id), mask


def _check_against_torch(simcse: SimCSE, directory: Path, backend: str) -> None:
    """Load an export as its users will, and delete the graph if its embeddings are not those of torch."""
    inputs = _example(simcse, rows=5, length=12)
    exported = ExportedModel(directory, backend, simcse.model.config, torch.float32)
    with torch.no_grad():
        expected = simcse.model.embed(*inputs)
    difference = (exported(*inputs).sentence_embeddings - expected).abs().max().item()
    largest = expected.abs().max().item()
    if not difference <= TOLERANCE * max(1.0, largest):
        Path(directory, GRAPHS[backend]).unlink()
        raise ValueError(
            f"the embeddings of the exported graph differ from torch's by {difference:.2g}, more than {TOLERANCE:g}. "
            "The graph was deleted; please report the model and the versions of torch and of the runtime."
        )


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


EXPORTS = {
    "sentence-transformers": export_sentence_transformers,
    "onnx": export_onnx,
    "openvino": export_openvino,
}
