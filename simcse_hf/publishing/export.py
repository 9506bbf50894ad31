"""Writes a model in the form that another library or runtime reads, also in int8 if that loses little."""

import platform
import random
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import torch
from transformers.utils import logging

from ..data.table import stream_texts
from ..encoding.graphs import GRAPHS, ExportedModel, example, feeds, silent, weights_of
from ..encoding.simcse import SimCSE, load_model
from ..evaluation.embeddings import SentenceEmbeddings
from ..evaluation.scoring import read_tasks, score_tasks
from ..evaluation.tasks.senteval import STS_TASKS
from ..models.checkpoint import save_own_files
from ..models.pooling import POOLERS
from ..names import Export, Instructions, Int8Method, ModelOptions, WeightOptions
from ..runtime.errors import DataError, ModelError, SettingError, check_values
from ..runtime.files import StrPath
from ..runtime.outputs import Result, output_folder

logger = logging.get_logger(__name__)

#: The largest allowed difference between torch and a graph, relative to the largest entry if that exceeds 1.
TOLERANCE = 1e-5
#: The runtimes of an export to int8. Of the first one the first method is tried first.
INT8_EXPORTS = {"int8": ("openvino", "onnx"), **{f"{name}-int8": (name,) for name in GRAPHS}}
_TEXTS = 1000
_CALIBRATION = 300


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
            checks = Checks(texts, data_dir, calibrate)
            path, measured = export_int8(loaded, new, to, checks, max_loss, method, instructions)
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


# Graphs -------------------------------------------------------------------------------------------------------------


def export_graph(simcse: SimCSE, directory: Path, backend: str) -> Path:
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


# int8 ---------------------------------------------------------------------------------------------------------------


class Checks:
    """The texts with which exports in int8 are calibrated and measured.

    Args:
        file (`str` or `os.PathLike`, *optional*): A file of texts. The first 1,000 are encoded; without it, 1,000 of
            the STS sets.
        data_dir (`str`, *optional*): SentEval's `downstream` folder. The STS sets that it has are scored.
        calibrate (`str`, *optional*): A file of texts, the first 300 of which give the ranges of activations. By
            default they are the 300 texts after those that are encoded, or as many as there are.

    Raises:
        ValueError: If a file has no texts, or the folder no STS sets.
    """

    def __init__(self, file: StrPath | None, data_dir: StrPath | None, calibrate: StrPath | None = None) -> None:
        self.data: Any = None
        self.before: Any = None  # the STS average in float32, which is the same for every export
        if data_dir is not None:
            self.data, _, _ = read_tasks(tasks=STS_TASKS, data_dir=data_dir)
        if file is not None:
            texts = _read(file, _TEXTS + _CALIBRATION)
        else:
            distinct = sorted({text for task in self.data.values() for text in task.texts})
            texts = random.Random(0).choices(distinct, k=_TEXTS + _CALIBRATION)
        self.texts = texts[:_TEXTS]
        if calibrate is not None:
            self.calibration = _read(calibrate, _CALIBRATION)
        else:
            self.calibration = (texts[_TEXTS:] or texts)[:_CALIBRATION]

    def measure(self, simcse: SimCSE, exported: SimCSE) -> dict[str, Any]:
        """Measure the loss of an export.

        Args:
            simcse (`SimCSE`): The model, on the CPU in float32.
            exported (`SimCSE`): Its export, loaded with its backend.

        Returns:
            `dict[str, Any]`: `loss`, and what it was computed from, as in [`Exported`].
        """
        cosines = (simcse.encode(self.texts) * exported.encode(self.texts)).sum(dim=1)
        mean = cosines.mean().item()
        result: dict[str, Any] = {
            "texts": len(self.texts),
            "mean_cosine": mean,
            "lowest_cosine": cosines.min().item(),
            "loss": 100 * (1 - mean),
        }
        if self.data is not None:
            self.before = self.before or self._score(simcse)
            after = self._score(exported)
            result |= {
                "sts_tasks": after["tasks"],
                "sts_before": self.before["value"],
                "sts_after": after["value"],
                "loss": self.before["value"] - after["value"],
            }
        return result

    def _score(self, model: SimCSE) -> Any:
        texts = [text for task in self.data.values() for text in task.texts]
        embeddings = SentenceEmbeddings(model, texts)
        return score_tasks(self.data, embeddings).results["average"]


def _read(file: StrPath, count: int) -> list[str]:
    texts = [text for _, text in islice(stream_texts(file), count)]
    if not texts:
        raise DataError(f"{file} has no texts to measure the export with: name a file of texts.")
    return texts


def export_int8(
    simcse: SimCSE,
    directory: Path,
    to: str,
    checks: Checks,
    max_loss: float = 0.5,
    method: str | None = None,
    instructions: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Write a graph in int8 beside that in float32, which `SimCSE(directory, backend=...)` loads.

    The forms of int8 are tried in a fixed order, the one that is fastest on most processors first, and the first that
    does not lose too much is written.

    Args:
        simcse (`SimCSE`): As in [`export_graph`].
        directory (`Path`): As in [`export_graph`].
        to (`str`): One of `INT8_EXPORTS`.
        checks (`Checks`): What the forms are calibrated and measured with.
        max_loss (`float`, *optional*, defaults to `0.5`): The largest loss, in the points of [`Checks`].
        method (`str`, *optional*): The only method to try.
        instructions (`str`, *optional*): One of `INSTRUCTIONS`; defaults to [`processor_instructions`]. AVX2 adds
            products of 8 bits in 16 bits, which overflow, so its weights get 7 bits in ONNX.

    Returns:
        `tuple[Path, dict[str, Any]]`: The path of the graph, and what it loses.

    Raises:
        ImportError: If the extras of the runtimes are not installed.
        ModelError: As [`export_graph`], or if each form loses too much. Nothing is written then.
    """
    instructions = instructions or processor_instructions()
    bits = 7 if instructions == "avx2" else 8
    tried = []
    for backend in INT8_EXPORTS[to]:
        graph = GRAPHS[backend]
        with TemporaryDirectory() as work:
            folder = Path(work, backend)
            plain = export_graph(simcse, folder, backend)
            rows = feeds(simcse, checks.calibration)
            path = folder / graph.int8[instructions]
            for name in graph.methods:
                if method not in (None, name):
                    continue
                with silent():
                    graph.quantize(plain, path, name, rows, bits)
                loss = checks.measure(simcse, SimCSE(folder, backend=backend))
                loss = {"backend": backend, "method": name, "file": graph.int8[instructions], **loss}
                if loss["loss"] <= max_loss:
                    shutil.copytree(folder, directory)
                    return directory / graph.int8[instructions], loss
                tried.append(_describe(loss))
                for file in (path, Path(weights_of(str(path)))):
                    file.unlink(missing_ok=True)
    raise ModelError(
        f"nothing was written, because int8 loses more than max_loss {max_loss:g}: {'; '.join(tried)}. Allow more, or "
        "calibrate with texts like yours."
    )


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
