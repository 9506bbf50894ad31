"""What ONNX Runtime's forms of int8 lose on a processor: their cosines to float32.

    python -m benchmarks int8_loss --graphs graphs --output benchmarks/results/int8_loss.json
    qemu-x86_64 -cpu Haswell .venv/bin/python -m benchmarks int8_loss --graphs graphs --processor "AVX2, emulated" ...

The first call writes the graphs; a later one computes them again, on another processor or on one that QEMU emulates.
Emulation says nothing about the speed, but its results are those of the real processor. On processors with AVX2
alone, sums of two products of 8 bits overflow, which weights of 7 bits prevent.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from simcse_hf import SimCSE
from simcse_hf.encoding.graphs import EMBEDDING, GRAPHS, feeds, silent
from simcse_hf.evaluation.scoring import read_tasks
from simcse_hf.publishing.export import export_graph

from .harness import Report, add_data_option, add_model_option, markdown, model_or_default

TEXTS = 120
BITS = {"avx2": 7, "vnni": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_data_option(parser)
    parser.add_argument("--graphs", type=Path, required=True, help="folder of the graphs; it is made")
    parser.add_argument("--processor", default=platform.machine(), help="what the results are called")


def run(options: argparse.Namespace, report: Report) -> None:
    if not options.graphs.exists():
        write_graphs(options)
    inputs = json.loads((options.graphs / "feeds.json").read_text())
    expected = embeddings(options.graphs / GRAPHS["onnx"].file, inputs)
    rows = {}
    for instructions, bits in BITS.items():
        for method in GRAPHS["onnx"].methods:
            cosines = (expected * embeddings(options.graphs / f"{instructions}-{method}.onnx", inputs)).sum(1)
            rows[f"{method}, {bits} bits"] = {"mean_cosine": float(cosines.mean()), "lowest": float(cosines.min())}
            print(method, bits, rows[f"{method}, {bits} bits"], flush=True)
    processors = report.results.get("processors", {})
    report.save(texts=len(inputs), processors=processors | {options.processor: rows})


def write_graphs(options: argparse.Namespace) -> None:
    texts = sorted(set(read_tasks(["STSBenchmark"], str(options.data / "senteval/downstream")).texts()))
    simcse = SimCSE(str(model_or_default(options.model)), device="cpu")
    calibration = feeds(simcse, texts[1::7][:300])
    plain = export_graph(simcse, options.graphs, "onnx")
    for instructions, bits in BITS.items():
        for method in GRAPHS["onnx"].methods:
            path = options.graphs / f"{instructions}-{method}.onnx"
            with silent():
                GRAPHS["onnx"].quantize(plain, path, method, calibration, bits)
    rows = feeds(simcse, texts[:: len(texts) // TEXTS][:TEXTS])
    (options.graphs / "feeds.json").write_text(json.dumps([row["input_ids"].tolist() for row in rows]))


def embeddings(path: Path, feeds: list[Any]) -> np.ndarray:
    """Compute the normalized embeddings of texts, one at a time."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows = []
    for feed in feeds:
        ids = np.array(feed)
        rows.append(session.run([EMBEDDING], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0])
    vectors = np.stack(rows)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def table(results: dict[str, Any]) -> str:
    processors = results["processors"]
    rows = []
    for form in next(iter(processors.values())):
        rows.append([form, *(f"{measured[form]['mean_cosine']:.4f}" for measured in processors.values())])
    return markdown(["ONNX int8", *processors], rows)
