"""The command `export`: writes a model in the form that another library or runtime reads, also in int8."""

import platform
import random
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import torch

from ..data.table import stream_texts
from ..encoding.graphs import GRAPHS, export_graph, feeds, silent, weights_of
from ..encoding.simcse import SimCSE, load_model
from ..evaluation.protocol import PAPER_PROTOCOL
from ..evaluation.scoring import read_tasks, score_model
from ..evaluation.tasks import Task
from ..models.pooling import POOLERS
from ..names import Export, Instructions, Int8Method, ModelOptions, WeightOptions
from ..runtime.encoders import as_encoder
from ..runtime.errors import DataError, ModelError, SettingError, check_values
from ..runtime.files import StrPath
from ..runtime.outputs import Result, output_folder

#: The runtimes of an export to int8. Of the first one the first method is tried first.
INT8_EXPORTS = {"int8": ("openvino", "onnx"), **{f"{name}-int8": (name,) for name in GRAPHS}}
_TEXTS = 1000
_CALIBRATION = 300
#: Embeddings of texts, and the STS average; that is empty if no STS sets are measured.
Measurement = tuple[torch.Tensor, dict[str, Any]]


@dataclass(frozen=True)
class Exported(Result):
    """A model that was exported.

    Args:
        output (`Path`): The folder, or the graph in it.
        to (`str`): The form.
        pooler_type (`str`): The pooler of its embeddings.
        measured (`dict[str, Any]`): What int8 loses; empty for another form. `backend`, `method` and `file` of the
            graph; `mean_cosine` and `lowest_cosine` of the embeddings of some `texts` to those in float32; `loss`, in
            points of the STS average with `data_dir`, else 100 * (1 - mean cosine); and with `data_dir` the
            `sts_tasks` and their average `sts_before` and `sts_after`.
    """

    output: Path
    to: str
    pooler_type: str
    measured: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, with those of `measured` among them."""
        fields = super().to_dict()
        return fields | fields.pop("measured")

    def __str__(self) -> str:
        line = f"{self.output}: embeddings of pooler {self.pooler_type!r}"
        return f"{line}\n{_describe(self.measured)}" if self.measured else line


def export(
    model: StrPath | SimCSE,
    output: StrPath,
    *,
    to: Export,
    texts: StrPath | None = None,
    data_dir: StrPath | None = None,
    calibrate: StrPath | None = None,
    max_loss: float = 0.5,
    method: Int8Method | None = None,
    instructions: Instructions | None = None,
    overwrite: bool = False,
    postprocess: bool = True,
    **loading: Unpack[WeightOptions],
) -> Exported:
    """Write a model for sentence-transformers, ONNX Runtime or OpenVINO, also in int8.

    int8 is compared with float32 before anything is written.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        output (`str` or `os.PathLike`): Folder to write.
        to (`str`): Form to write, where int8 is openvino-int8 or, if that loses too much, onnx-int8.
        texts (`str` or `os.PathLike`, *optional*): For int8, a file of texts: a line each, or csv, tsv, json, jsonl
            or parquet; the first 1,000 are encoded.
        data_dir (`str` or `os.PathLike`, *optional*): For int8, SentEval's downstream folder, to compare STS scores.
        calibrate (`str` or `os.PathLike`, *optional*): For int8, a file of texts like yours, of which the first 300
            give the ranges of activations. The default is texts of `texts`.
        max_loss (`float`, *optional*, defaults to `0.5`): For int8, the largest loss: points of the STS average or,
            without `data_dir`, 100 * (1 - mean cosine).
        method (`str`, *optional*): For int8, how activations are rounded: by ranges of each batch (dynamic, and mixed
            for ONNX) or measured before (static). The default is the first that loses no more than `max_loss`.
        instructions (`str`, *optional*): Processor instructions to export int8 for. The default is those of this
            processor.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        postprocess (`bool`, *optional*, defaults to `True`): Apply the whitening or flow saved beside the model.
        **loading (`WeightOptions`): How the model is loaded; on the CPU, unless `device` says otherwise.

    Returns:
        `Exported`: Where the model is, and what int8 loses.

    Raises:
        ImportError: If the extra of the runtime is not installed.
        SettingError: If options do not fit `to`.
        ModelError: If the form cannot express the model, or int8 loses too much.

    Examples:
        >>> from sentence_transformers import SentenceTransformer
        >>> from simcse_hf import export
        >>> print(export("outputs/my-model", "outputs/exported", to="sentence-transformers"))
        outputs/exported: embeddings of pooler 'avg'
        >>> SentenceTransformer("outputs/exported", device="cpu").encode("The chef cooked the soup.").shape
        (64,)
    """
    # 1. Refuse options that do not fit together.
    of_int8 = {
        "texts": texts,
        "data_dir": data_dir,
        "calibrate": calibrate,
        "max_loss": max_loss != 0.5,
        "method": method,
        "instructions": instructions,
    }
    unused = [name for name, value in of_int8.items() if value]
    if to not in INT8_EXPORTS and unused:
        raise SettingError(f"{', '.join(unused)}: only for exports to {', '.join(INT8_EXPORTS)}")
    if to in INT8_EXPORTS and texts is None and data_dir is None:
        raise SettingError(f"an export to {to} measures what is lost: give texts, data_dir or both")
    if to in INT8_EXPORTS:
        known = dict.fromkeys(name for backend in INT8_EXPORTS[to] for name in GRAPHS[backend].methods)
        check_values((None, *known), method=method)

    # 2. Export the model.
    options: ModelOptions = {**loading}
    if not postprocess:
        options["postprocess"] = False
    if not isinstance(model, SimCSE):
        options.setdefault("device", "cpu")
    source = model.name_or_path if isinstance(model, SimCSE) else model
    measured: dict[str, Any] = {}
    with output_folder(output, overwrite, "config.json", [source]) as new:
        loaded = load_model(model, **options)
        if to in INT8_EXPORTS:
            path, measured = export_int8(loaded, new, to, texts, data_dir, calibrate, max_loss, method, instructions)
        elif to in GRAPHS:
            path = export_graph(loaded, new, to)
        else:
            path = export_sentence_transformers(loaded, new)
    return Exported(Path(output).expanduser() / path.relative_to(new), to, loaded.pooler_type, measured)


# sentence-transformers ----------------------------------------------------------------------------------------------


def export_sentence_transformers(simcse: SimCSE, directory: Path) -> Path:
    """Write a directory that `SentenceTransformer(directory)` loads, with the same embeddings as `simcse`.

    Checkpoints saved by this package are such directories already. The export is for published SimCSE models, whose
    config names no pooler, and for a pooler other than the checkpoint's.

    Args:
        simcse (`SimCSE`): The model with the pooler to export.
        directory (`Path`): A directory that does not exist.

    Returns:
        `Path`: The directory.

    Raises:
        FileExistsError: If `directory` exists.
        ModelError: If sentence-transformers has no such pooler or no flow.
    """
    if simcse.postprocessing is not None and simcse.postprocessing.method == "flow":
        raise ModelError(
            f"{simcse.name_or_path} applies a flow, for which sentence-transformers has no module. Load the model "
            "with SimCSE, or export it without the flow (--no_postprocess, or postprocess=False)."
        )
    if POOLERS[simcse.pooler_type].mode is None:
        raise ModelError(
            f"sentence-transformers has no pooling like {simcse.pooler_type!r}, so it would compute other embeddings. "
            "Choose another pooler, export to ONNX, or load the checkpoint with SimCSE."
        )
    directory.mkdir(parents=True)
    simcse.save_pretrained(directory)
    return directory


# int8 ---------------------------------------------------------------------------------------------------------------


def export_int8(
    simcse: SimCSE,
    directory: Path,
    to: str,
    texts: StrPath | None,
    data_dir: StrPath | None,
    calibrate: StrPath | None,
    max_loss: float,
    method: str | None,
    instructions: str | None,
) -> tuple[Path, dict[str, Any]]:
    """Write a graph in int8 beside that in float32, which `SimCSE(directory, backend=...)` loads.

    The forms of int8 are tried in a fixed order, the one that is fastest on most processors first, and the first that
    does not lose too much is written. Without `texts`, 1,000 texts of the STS sets are encoded. Without `calibrate`,
    the ranges of activations are those of the 300 texts after the encoded ones, or of as many as there are.

    Args:
        simcse (`SimCSE`): As in [`export_graph`].
        directory (`Path`): As in [`export_graph`].
        to (`str`): One of `INT8_EXPORTS`.
        texts (`str` or `os.PathLike`, *optional*): As in [`export`], like those that follow.
        data_dir (`str` or `os.PathLike`, *optional*): SentEval's folder.
        calibrate (`str` or `os.PathLike`, *optional*): A file of texts for the ranges of activations.
        max_loss (`float`): The largest loss.
        method (`str`, *optional*): The only method to try.
        instructions (`str`, *optional*): One of `INSTRUCTIONS`; defaults to [`processor_instructions`].

    Returns:
        `tuple[Path, dict[str, Any]]`: The path of the graph, and what it loses.

    Raises:
        ImportError: If the extras of the runtimes are not installed.
        DataError: If a file has no texts, or the folder no STS sets.
        ModelError: As [`export_graph`], or if each form loses too much. Nothing is written then.
    """
    # 1. What the forms are calibrated and measured with.
    tasks, _, _ = read_tasks(data_dir=data_dir)
    if texts is not None:
        lines = _read(texts, _TEXTS + _CALIBRATION)
    else:
        distinct = sorted({text for task in tasks.values() for text in task.texts})
        lines = random.Random(0).choices(distinct, k=_TEXTS + _CALIBRATION)
    calibration = (lines[_TEXTS:] or lines)[:_CALIBRATION] if calibrate is None else _read(calibrate, _CALIBRATION)
    lines = lines[:_TEXTS]
    simcse.model.cpu().float()
    before = measure(simcse, lines, tasks)

    # 2. Each form, until one loses little enough. AVX2 adds products of 8 bits in 16 bits, which overflow.
    instructions = instructions or processor_instructions()
    bits = 7 if instructions == "avx2" else 8
    tried = []
    for backend in INT8_EXPORTS[to]:
        graph = GRAPHS[backend]
        file = graph.int8[instructions]
        with TemporaryDirectory() as work:
            folder = Path(work, backend)
            plain = export_graph(simcse, folder, backend)
            rows = feeds(simcse, calibration)
            for name in graph.methods:
                if method not in (None, name):
                    continue
                with silent():
                    graph.quantize(plain, folder / file, name, rows, bits)
                loss = lost(before, measure(SimCSE(folder, backend=backend), lines, tasks))
                loss = {"backend": backend, "method": name, "file": file, **loss}
                if loss["loss"] <= max_loss:
                    shutil.copytree(folder, directory)
                    return directory / file, loss
                tried.append(_describe(loss))
                for path in (file, weights_of(file)):
                    (folder / path).unlink(missing_ok=True)
    raise ModelError(
        f"nothing was written, because int8 loses more than max_loss {max_loss:g}: {'; '.join(tried)}. Allow more, or "
        "calibrate with texts like yours."
    )


def _read(file: StrPath, count: int) -> list[str]:
    texts = [text for _, text in islice(stream_texts(file), count)]
    if not texts:
        raise DataError(f"{file} has no texts to measure the export with: name a file of texts.")
    return texts


def measure(model: SimCSE, texts: list[str], tasks: dict[str, Task]) -> Measurement:
    """Return the embeddings of texts, and the STS average if there are tasks."""
    average = {}
    if tasks:
        average = score_model(as_encoder(model), tasks, PAPER_PROTOCOL, show_progress_bar=False).results["average"]
    return model.encode(texts), average


def lost(before: Measurement, after: Measurement) -> dict[str, Any]:
    """Say what an export loses, from what was measured in float32 and with it: `loss` and more, as in [`Exported`]."""
    cosines = (before[0] * after[0]).sum(dim=1)
    mean = cosines.mean().item()
    result = {
        "texts": len(cosines),
        "mean_cosine": mean,
        "lowest_cosine": cosines.min().item(),
        "loss": 100 * (1 - mean),
    }
    if before[1]:
        score, now = before[1]["value"], after[1]["value"]
        result |= {"sts_tasks": after[1]["tasks"], "sts_before": score, "sts_after": now, "loss": score - now}
    return result


def _describe(measured: dict[str, Any]) -> str:
    """Say in a line what a form of int8 loses."""
    lost = "mean cosine to float32 {mean_cosine:.4f}, lowest {lowest_cosine:.4f}"
    if "sts_before" in measured:
        lost = "STS average of {sts} sets {sts_before:.2f} before, {sts_after:.2f} after; " + lost
    line = "{backend}, {method}: " + lost
    return line.format(**measured, sts=len(measured.get("sts_tasks", ())))


def processor_instructions() -> str:
    """Return which of `INSTRUCTIONS` this processor multiplies integers of 8 bits with, AVX2 if torch cannot tell."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "arm"
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if found.get("amx_int8"):
        return "amx"
    if found.get("avx512_vnni") or found.get("avx_vnni"):
        return "vnni"
    return "avx2"
