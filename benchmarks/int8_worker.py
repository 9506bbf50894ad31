"""Encode with a backend of sentence-transformers; `python -m benchmarks int8` starts it, also in another environment.

Each line of standard input is a JSON object: `backend`, `model` (a folder that it may write to, with
texts to calibrate int8 in `calibration/`), `texts` (a JSON file), `batch_size`, and `output`, where the embeddings go
if it is given. It prints the seconds.
"""

import json
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer


@cache
def load(backend: str, model: str) -> SentenceTransformer:
    kind, _, int8 = backend.partition("-")
    encoder = SentenceTransformer(model, device="cpu", backend=kind)
    if not int8:
        return encoder
    if kind == "onnx":
        sentence_transformers.export_dynamic_quantized_onnx_model(encoder, "avx512_vnni", model)
        file = "onnx/model_qint8_avx512_vnni.onnx"
    else:
        names = ("dataset_name", "dataset_config_name", "column_name", "dataset_split")
        data = dict(zip(names, (f"{model}/calibration", "default", "text", "train"), strict=True))
        sentence_transformers.export_static_quantized_openvino_model(encoder, None, model, **data)
        file = "openvino/openvino_model_qint8_quantized.xml"
    return SentenceTransformer(model, device="cpu", backend=kind, model_kwargs={"file_name": file})


def main(threads: str) -> None:
    torch.set_num_threads(int(threads))
    for line in sys.stdin:
        work = json.loads(line)
        encoder = load(work["backend"], work["model"])
        texts = json.loads(Path(work["texts"]).read_text())
        start = time.perf_counter()
        embeddings = encoder.encode(texts, batch_size=work["batch_size"])
        seconds = time.perf_counter() - start
        if work["output"]:
            np.save(work["output"], embeddings)
        print("seconds", seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
