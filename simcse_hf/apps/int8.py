"""Exports a model to int8: makes the forms of the runtimes, measures what each loses and gains, keeps the fastest."""

import os
import platform
import random
import shutil
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypedDict

import numpy as np
import torch

from ..data.table import stream_texts
from ..encoding.exported import INT8_GRAPHS, openvino_core, weights_of
from ..encoding.simcse import SimCSE
from ..evaluation.embeddings import SentenceEmbeddings
from ..evaluation.scoring import read_tasks, score_tasks
from ..evaluation.tasks import roles_of
from ..evaluation.tasks.sts import STS_TASKS
from ..publishing.export import EXPORTS, silent
from ..runtime.errors import require_extra
from ..runtime.files import StrPath

#: The runtimes among which an export chooses.
INT8_EXPORTS = {"int8": ("openvino", "onnx"), "onnx-int8": ("onnx",), "openvino-int8": ("openvino",)}
#: The forms of each runtime. `static` quantises activations by ranges that are measured beforehand, `dynamic` by those
#: of each batch. `mixed` is dynamic, but in the first half of the layers the second product of the feed-forward layer,
#: whose inputs spread most, stays in float32: it loses about a third less, at about 0.8 times the speed.
METHODS = {"onnx": ("static", "dynamic", "mixed"), "openvino": ("static", "dynamic")}
#: The lowest ratio to the speed of float32 at which an export pays.
LEAST_SPEED = 1.2
_TEXTS = 1000
_CALIBRATION = 300
_TURNS = 5


class Form(TypedDict, total=False):
    """What a form of int8 loses and gains against float32.

    Args:
        backend (`str`): The runtime.
        method (`str`): One of `METHODS`.
        file (`str`): The graph.
        forms (`list[Form]`): All forms that were measured, of the one that was chosen.
        texts (`int`): The texts that were encoded.
        mean_cosine (`float`): The mean cosine to the embeddings in float32.
        lowest_cosine (`float`): The lowest one.
        loss (`float`): Points of the STS average with `data_dir`, else 100 * (1 - mean cosine).
        sts_tasks (`list[str]`): The STS sets of the average.
        sts_before (`float`): The average in float32.
        sts_after (`float`): The average in int8.
        speed (`float`): Sentences per second as a multiple of those in float32, the median of turns.
        float32_sentences_per_second (`float`): Those in float32.
        int8_sentences_per_second (`float`): Those in int8.
    """

    backend: str
    method: str
    file: str
    forms: list["Form"]
    texts: int
    mean_cosine: float
    lowest_cosine: float
    loss: float
    sts_tasks: list[str]
    sts_before: float
    sts_after: float
    speed: float
    float32_sentences_per_second: float
    int8_sentences_per_second: float


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
            self.data = read_tasks(STS_TASKS, data_dir)
        if file is not None:
            texts = _read(file, _TEXTS + _CALIBRATION)
        else:
            distinct = sorted(set(roles_of(self.data)[None]))
            texts = random.Random(0).choices(distinct, k=_TEXTS + _CALIBRATION)
        self.texts = texts[:_TEXTS]
        if calibrate is not None:
            self.calibration = _read(calibrate, _CALIBRATION)
        else:
            self.calibration = (texts[_TEXTS:] or texts)[:_CALIBRATION]

    def measure(self, simcse: SimCSE, exported: SimCSE) -> Form:
        """Measure the loss and the speed of an export.

        Args:
            simcse (`SimCSE`): The model, on the CPU in float32.
            exported (`SimCSE`): Its export, loaded with its backend.

        Returns:
            [`Form`]: `loss` and `speed`, and what they were computed from.
        """
        # 1. What is lost.
        cosines = (simcse.encode(self.texts) * exported.encode(self.texts)).sum(dim=1)
        mean = cosines.mean().item()
        result: Form = {
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

        # 2. What is gained.
        seconds = np.array([(_seconds(simcse, self.texts), _seconds(exported, self.texts)) for _ in range(_TURNS)])
        plain, int8 = (len(self.texts) / np.median(seconds, axis=0)).tolist()
        return result | {
            "speed": float(np.median(seconds[:, 0] / seconds[:, 1])),
            "float32_sentences_per_second": plain,
            "int8_sentences_per_second": int8,
        }

    def _score(self, model: SimCSE) -> Any:
        embeddings = SentenceEmbeddings(model, roles_of(self.data))
        return score_tasks(self.data, embeddings).results["average"]


def _read(file: StrPath, count: int) -> list[str]:
    texts = [text for _, text in islice(stream_texts(file), count)]
    if not texts:
        raise ValueError(f"{file} has no texts to measure the export with: name a file of texts.")
    return texts


def _seconds(model: SimCSE, texts: list[str]) -> float:
    start = time.perf_counter()
    model.encode(texts)
    return time.perf_counter() - start


def export_int8(
    simcse: SimCSE,
    directory: str | os.PathLike,
    to: str,
    checks: Checks,
    *,
    max_loss: float = 0.5,
    allow_slow: bool = False,
    instructions: str | None = None,
) -> tuple[Path, Form]:
    """Write a graph in int8 beside that in float32, which `SimCSE(directory, backend=...)` loads.

    Weights have a scale for each output channel. All forms of `METHODS` are made and measured; the fastest one that
    does not lose too much is written.

    Args:
        simcse (`SimCSE`): As in [`export_onnx`].
        directory (`str` or `os.PathLike`): As in [`export_onnx`].
        to (`str`): One of `INT8_EXPORTS`.
        checks (`Checks`): What the forms are calibrated and measured with.
        max_loss (`float`, *optional*, defaults to `0.5`): The largest loss, in the points of [`Checks`].
        allow_slow (`bool`, *optional*, defaults to `False`): Also write int8 that is not `LEAST_SPEED` times as fast.
        instructions (`str`, *optional*): One of `INSTRUCTIONS`; defaults to [`processor_instructions`]. AVX2 adds
            products of 8 bits in 16 bits, which overflow, so its weights get 7 bits in ONNX.

    Returns:
        `tuple[Path, Form]`: The path of the graph, and what was measured, with all `forms`.

    Raises:
        ImportError: If the extras of the runtimes are not installed.
        ValueError: As [`export_onnx`], or if each form loses too much or is too slow. Nothing is written then.
    """
    instructions = instructions or processor_instructions()
    forms = []
    with TemporaryDirectory() as work:
        for backend in INT8_EXPORTS[to]:
            plain = EXPORTS[backend](simcse, Path(work, backend))
            for method in METHODS[backend]:
                folder = Path(work, f"{backend}-{method}")
                simcse.save_settings(folder)
                name = INT8_GRAPHS[backend][instructions]
                (folder / name).parent.mkdir()
                quantize = _quantize_onnx if backend == "onnx" else _quantize_openvino
                with silent():
                    quantize(simcse, plain, folder / name, method, checks.calibration, instructions)
                measured = checks.measure(simcse, SimCSE(folder, backend=backend))
                forms.append({"backend": backend, "method": method, "file": name} | measured)
        forms.sort(key=lambda form: -form["speed"])
        accurate = [form for form in forms if form["loss"] <= max_loss]
        listed = "; ".join(describe_form(form) for form in forms)
        if not accurate:
            raise ValueError(
                f"nothing was written, because int8 loses more than max_loss {max_loss:g}: {listed}. Allow more, or "
                "calibrate with texts like yours."
            )
        best = accurate[0]
        if best["speed"] < LEAST_SPEED and not allow_slow:
            raise ValueError(
                f"nothing was written, because int8 does not pay on this processor: {listed}, and {LEAST_SPEED} times "
                "is the least. To write it nevertheless, set allow_slow."
            )
        for name in (best["backend"], f"{best['backend']}-{best['method']}"):
            shutil.copytree(Path(work, name), directory, dirs_exist_ok=True)
    return Path(directory, best["file"]), best | {"forms": forms}


def describe_form(measured: Form) -> str:
    """Say in a line what a form of int8 loses and gains."""
    lost = "mean cosine to float32 {mean_cosine:.4f}, lowest {lowest_cosine:.4f}"
    if "sts_before" in measured:
        lost = "STS average of {sts} sets {sts_before:.2f} before, {sts_after:.2f} after; " + lost
    gained = "{speed:.2f} times the speed of float32 ({int8_sentences_per_second:.0f} sentences per second)"
    line = "{backend}, {method}: " + f"{lost}; {gained}"
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


def _feeds(simcse: SimCSE, texts: list[str]) -> list[dict[str, np.ndarray]]:
    """Return the inputs of the graph for each text."""
    rows = simcse.tokenize(texts, simcse.resolve_prompt(), long_texts="cut")
    return [{"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), np.int64)} for row in rows]


def _quantize_onnx(
    simcse: SimCSE,
    plain: Path,
    path: Path,
    method: str,
    calibration: list[str],
    instructions: str,
) -> None:
    quantization = require_extra("onnxruntime.quantization", "onnx", "the export to ONNX in int8")
    options = {
        "per_channel": True,
        "reduce_range": instructions == "avx2",
        "weight_type": quantization.QuantType.QInt8,
        "use_external_data_format": Path(weights_of(str(plain))).exists(),
    }
    if method != "static":
        kept = _first_wide_products(plain) if method == "mixed" else []
        quantization.quantize_dynamic(plain, path, nodes_to_exclude=kept, **options)
        return

    feeds = iter(_feeds(simcse, calibration))
    quantization.quantize_static(
        plain,
        path,
        SimpleNamespace(get_next=lambda: next(feeds, None)),
        op_types_to_quantize=["MatMul", "Gemm"],
        extra_options={"MatMulConstBOnly": True},
        **options,
    )


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


def _quantize_openvino(
    simcse: SimCSE,
    plain: Path,
    path: Path,
    method: str,
    calibration: list[str],
    instructions: str,
) -> None:
    openvino = require_extra("openvino", "openvino", "the export to OpenVINO")
    nncf = require_extra("nncf", "openvino", "the export to OpenVINO in int8")
    model = openvino_core(openvino).read_model(plain)
    if method == "dynamic":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    else:
        data = nncf.Dataset(_feeds(simcse, calibration))
        model = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(calibration))
    openvino.save_model(model, path, compress_to_fp16=False)
