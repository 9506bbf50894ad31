"""Encode with one backend of one library; `python -m benchmarks encode_backends` starts it, also elsewhere.

Its arguments are the library, the backend, the precision, the folder of the model (to which sentence-transformers may
write; texts to calibrate int8 are in `calibration/`) and the number of threads. Each line of standard input is a JSON
object: `texts` (a JSON file), `batch` (texts, or tokens for this package), and `output`, where the embeddings go if it
is given. It prints the seconds.
"""

import json
import os
import sys
import time
from pathlib import Path

library, backend, precision, model, threads = sys.argv[1:]
os.environ["OMP_NUM_THREADS"] = threads
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402  # the libraries read the variables when they are imported
import torch  # noqa: E402

torch.set_num_threads(int(threads))
DTYPE = torch.bfloat16 if precision == "bfloat16" else torch.float32


def load_ours():
    from simcse_hf import SimCSE

    encoder = SimCSE(model, device="cpu", backend=backend.removesuffix(" compiled"), dtype=DTYPE)
    if backend == "torch compiled":
        compile_layers(encoder.model.base_model)
    return lambda texts, batch: encoder.encode(texts, token_budget=batch).float().numpy()


def compile_layers(encoder):
    """Compile BERT's layers but their attention, which computes blocks of sentences and is no graph."""
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = 64  # the modules of all layers share their code
    torch._inductor.config.freezing = True  # it packs the weights and fuses GELU with the product before it
    for layer in encoder.encoder.layer:
        for module in (layer.attention.output, layer.intermediate, layer.output):
            module.compile(dynamic=True)


def load_theirs():
    import sentence_transformers
    from sentence_transformers import SentenceTransformer

    # The original tokenizer's class has a name that transformers 4 does not know.
    path = Path(model, "tokenizer_config.json")
    path.write_text(path.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
    kwargs = {"dtype": DTYPE} if backend == "torch" else {}
    if backend == "onnx":
        kwargs["session_options"] = options()
    if backend == "openvino":
        kwargs["ov_config"] = {"INFERENCE_NUM_THREADS": int(threads)}
        kwargs["ov_config"]["INFERENCE_PRECISION_HINT"] = "bf16" if precision == "bfloat16" else "f32"
    encoder = SentenceTransformer(model, device="cpu", backend=backend, model_kwargs=kwargs)
    if precision.startswith("int8"):
        if backend == "onnx":
            sentence_transformers.export_dynamic_quantized_onnx_model(encoder, "avx512_vnni", model)
            file = "onnx/model_qint8_avx512_vnni.onnx"
        else:
            names = ("dataset_name", "dataset_config_name", "column_name", "dataset_split")
            data = dict(zip(names, (f"{model}/calibration", "default", "text", "train"), strict=True))
            sentence_transformers.export_static_quantized_openvino_model(encoder, None, model, **data)
            file = "openvino/openvino_model_qint8_quantized.xml"
        encoder = SentenceTransformer(model, device="cpu", backend=backend, model_kwargs=kwargs | {"file_name": file})
    return lambda texts, batch: encoder.encode(texts, batch_size=batch, normalize_embeddings=True)


def options():
    import onnxruntime

    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = int(threads)
    return found


def main() -> None:
    encode = load_ours() if library == "simcse_hf" else load_theirs()
    for line in sys.stdin:
        work = json.loads(line)
        texts = json.loads(Path(work["texts"]).read_text())
        start = time.perf_counter()
        embeddings = encode(texts, work["batch"])
        seconds = time.perf_counter() - start
        if work["output"]:
            np.save(work["output"], embeddings)
        print("seconds", seconds, flush=True)


if __name__ == "__main__":
    main()
