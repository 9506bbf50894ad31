"""A trained model for other runtimes: a sentence-transformers directory, or an ONNX graph from tokens to vectors."""

import os
import warnings
from pathlib import Path

import torch
from torch import nn
from transformers.utils import logging

from ..inference.simcse import SimCSE
from ..models.modeling import ContrastiveModel
from ..models.sentence_transformers import NOT_IN_SENTENCE_TRANSFORMERS
from ..postprocessing.files import save_transform

logger = logging.get_logger(__name__)

ONNX_FILE = "model.onnx"
ONNX_TOLERANCE = 1e-5  # between torch's and ONNX Runtime's vectors, relative to the largest entry where above 1

_ONE_FILE_LIMIT = 1_800_000_000  # bytes of weights; protobuf ends at 2 GB


def export_sentence_transformers(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Writes a directory that `SentenceTransformer(directory)` loads and that gives the vectors of `simcse`.

    Checkpoints saved by this package are such directories already. This is for published SimCSE models, whose config
    names no pooler, and for another pooler than the checkpoint's.

    Args:
        simcse: the model, with the pooler to export.
        directory: absent or empty.

    Raises:
        ValueError: `directory` holds something, or the pooler is one that sentence-transformers does not have, or the
            vectors go through a flow, which it does not have either.
    """
    if simcse.postprocessing is not None and simcse.postprocessing.method == "flow":
        raise ValueError(
            f"{simcse.name_or_path} applies a flow, which sentence-transformers has no module for. Load the model "
            "with SimCSE, or export it with --no_postprocess (postprocess=False), for vectors without the flow."
        )
    if simcse.pooler_type in NOT_IN_SENTENCE_TRANSFORMERS:
        raise ValueError(
            f"sentence-transformers has no pooling like {simcse.pooler_type!r}, so a directory for it would give "
            "other vectors. Name another pooler, export to onnx, or load the checkpoint with SimCSE."
        )
    directory = _empty_directory(directory)
    simcse.model.save_pretrained(directory)
    simcse.tokenizer.save_pretrained(directory)
    if simcse.postprocessing is not None:
        save_transform(directory, simcse.postprocessing, simcse.postprocessing_fit)
    return directory


class _SentenceVectors(nn.Module):
    def __init__(self, model: ContrastiveModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model.embed(input_ids, attention_mask)


def export_onnx(simcse: SimCSE, directory: str | os.PathLike) -> Path:
    """Writes `model.onnx`, from token ids to sentence vectors, with the tokenizer and config.json beside it.

    The graph takes `input_ids` and `attention_mask`, int64 of any (batch, length), and returns `sentence_embedding`,
    float32 of (batch, dim), after the pooler and its head, not normalised. What ONNX Runtime makes of it is compared
    with torch before this returns.

    Args:
        simcse: the model, with the pooler to export.
        directory: absent or empty.

    Returns:
        The path of `model.onnx`.

    Raises:
        ImportError: the extra `onnx` is not installed.
        ValueError: `directory` holds something, the two runtimes disagree by more than `ONNX_TOLERANCE`, or the model
            applies a whitening or flow, which the graph would not.
    """
    if simcse.postprocessing is not None:
        raise ValueError(
            f"{simcse.name_or_path} applies a {simcse.postprocessing.method}, and the ONNX graph ends at the pooler: "
            "export with --no_postprocess (postprocess=False), and transform its vectors afterwards."
        )
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError as error:
        raise ImportError(f"export to ONNX needs the extra: pip install simcse-hf[onnx] ({error})") from error
    if simcse.model.settings.templates:
        raise ValueError(
            "this model puts texts into a template, which the tokenizer beside an ONNX graph would not: load it with "
            "SimCSE"
        )
    directory = _empty_directory(directory)
    module = _SentenceVectors(simcse.model.to("cpu", torch.float32)).eval()
    longest = simcse.max_length or 12
    inputs = _example(simcse, rows=3, length=min(7, longest))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    path = directory / ONNX_FILE
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own internals
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
    simcse.model.config.save_pretrained(directory)
    if simcse.max_length:
        simcse.tokenizer.model_max_length = simcse.max_length
    simcse.tokenizer.save_pretrained(directory)
    return path


def _example(simcse: SimCSE, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of `rows` rows and their mask; every row one token shorter than the one before."""
    lengths = (length - torch.arange(rows)).clamp(min=2)
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.full((rows, length), simcse.tokenizer.pad_token_id)
    ids[mask.bool()] = torch.arange(int(mask.sum())) % simcse.model.config.vocab_size
    return ids, mask


def _check_against_torch(session, module: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    names = ("input_ids", "attention_mask")
    found = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})[0]
    with torch.no_grad():
        wanted = module(*inputs)
    difference = (torch.from_numpy(found) - wanted).abs().max().item()
    if not difference <= ONNX_TOLERANCE * max(1.0, wanted.abs().max().item()):
        raise ValueError(f"the exported graph's vectors differ from torch's by {difference:.2g}; do not use it")


def _empty_directory(directory: str | os.PathLike) -> Path:
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} is no empty directory: name another --output")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


EXPORTS = {"sentence-transformers": export_sentence_transformers, "onnx": export_onnx}
