"""A model of what training and encoding cost on 1 to 512 GPUs. Nothing here is measured.

    python -m benchmarks scaling --output benchmarks/results/scaling.json

Every assumption is a constant below, with its source.
"""

import argparse
import math

from .harness import Report, markdown

# layers, width, feed-forward width, heads, parameters (config.json and the model cards on the hub)
SHAPES = {
    "MiniLM-L6": (6, 384, 1536, 12, 22.7e6),
    "BERT-base": (12, 768, 3072, 12, 109.5e6),
    "RoBERTa-large": (24, 1024, 4096, 16, 355.4e6),
}
MAX_LENGTH = 32  # tokens to which a training sentence is truncated (Gao et al. 2021, appendix A)
# The mean and the mean square of the lengths of 20,000 Wikipedia sentences with a WordPiece vocabulary of 16,384.
CUT_TOKENS, CUT_SQUARES = 25.6, 705.0  # truncated to 32
WHOLE_TOKENS, WHOLE_SQUARES = 31.2, 1244.0
TEXT_BYTES = 127  # a sentence with its line end, in UTF-8
VIEWS = 2  # encoder passes per sentence in unsupervised training
GATHERED = 1  # columns of candidates that every process gathers: the second view
SENTENCES = 1e9
GPUS = (1, 8, 64, 512)
GPUS_A_NODE = 8
LOCAL_BATCH, GLOBAL_BATCH = 128, 512

# Assumptions: nothing here was run on a GPU.
PEAK = 312e12  # FLOP/s, bfloat16, of an A100 (NVIDIA's data sheet)
TRAINING_SHARE = (
    0.35  # of the peak, in training; assumed (Narayanan et al. 2021, arXiv 2104.04473, reach 0.44 to 0.52)
)
ENCODING_SHARE = 0.40  # of the peak, in encoding; assumed
MEMORY = 80e9  # bytes of an A100-80GB
NODE_BANDWIDTH = 200e9  # bytes/s a GPU receives within a node; assumed, of 300e9 one way by NVLink
NETWORK_BANDWIDTH = 20e9  # bytes/s a GPU receives between nodes; assumed, of a 200 Gbit/s adapter a GPU
STEP_OVERHEAD = 10e-3  # s a step in which the GPU waits for Python, kernels and messages; assumed
STATE_BYTES = 16  # a parameter: weight, gradient, two Adam moments, float32 (autocast keeps the weights in float32)


def pass_flops(shape: str, tokens: float, squares: float) -> float:
    """Return the FLOPs of a sentence's forward pass: 2 per weight and token, 4 x dim per token pair and layer."""
    layers, dim, inner, _, _ = SHAPES[shape]
    return layers * (2 * tokens * (4 * dim * dim + 2 * dim * inner) + 4 * dim * squares)


def training_flops(shape: str, padded: bool) -> float:
    """Return the FLOPs of a sentence in unsupervised training: its views, forward and (twice that) backward."""
    tokens, squares = (MAX_LENGTH, MAX_LENGTH**2) if padded else (CUT_TOKENS, CUT_SQUARES)
    return 3 * VIEWS * pass_flops(shape, tokens, squares)


def activation_bytes(shape: str, local_batch: int) -> float:
    """Return the 16-bit activation bytes: 34 dim + 5 heads x tokens per token and layer (arXiv 2205.05198)."""
    layers, dim, _, heads, _ = SHAPES[shape]
    rows = local_batch * VIEWS
    return rows * layers * (34 * dim * CUT_TOKENS + 5 * heads * CUT_SQUARES)


def step(shape: str, gpus: int, local_batch: int) -> dict:
    """Model a training step whose communication starts after the computation, which is the worst case."""
    _, dim, _, _, parameters = SHAPES[shape]
    batch = gpus * local_batch
    bandwidth = NODE_BANDWIDTH if gpus <= GPUS_A_NODE else NETWORK_BANDWIDTH
    vectors = (gpus - 1) * local_batch * GATHERED * dim * 4
    gradients = 2 * (gpus - 1) / gpus * parameters * 4  # a ring all-reduce receives so much
    loss_flops = 3 * 2 * local_batch * batch * GATHERED * dim
    compute = (local_batch * training_flops(shape, padded=False) + loss_flops) / (PEAK * TRAINING_SHARE)
    messages = (2 * vectors + gradients) / bandwidth
    seconds = compute + messages + STEP_OVERHEAD
    rate = batch / seconds
    return {
        "shape": shape,
        "gpus": gpus,
        "local_batch": local_batch,
        "batch": batch,
        "vector_bytes_each_way": vectors,
        "gradient_bytes": gradients,
        "logit_bytes": local_batch * batch * GATHERED * 4,
        "compute_ms": 1e3 * compute,
        "messages_ms": 1e3 * messages,
        "step_ms": 1e3 * seconds,
        "busy_share": compute / seconds,
        "sentences_per_second": rate,
        "hours_for_a_billion": SENTENCES / rate / 3600,
        "gpu_hours_for_a_billion": SENTENCES / rate / 3600 * gpus,
    }


def training_table() -> list[dict]:
    """Tabulate FLOPs, memory, and the batch size at which the loss costs as much as the encoder."""
    rows = []
    for shape, (_, dim, _, _, parameters) in SHAPES.items():
        unpadded = training_flops(shape, padded=False)
        a_sentence = activation_bytes(shape, 1)
        rows.append(
            {
                "shape": shape,
                "gflops_padded": training_flops(shape, padded=True) / 1e9,
                "gflops_unpadded": unpadded / 1e9,
                "state_gb": STATE_BYTES * parameters / 1e9,
                "activation_mb_a_sentence": a_sentence / 1e6,
                # Half of the memory for activations: the rest is fragmentation, buffers and messages.
                "largest_local_batch": int(0.5 * (MEMORY - STATE_BYTES * parameters) / a_sentence),
                # 6 N dim FLOPs a sentence in the loss, N the batch of all processes.
                "batch_where_the_loss_equals_the_encoder": unpadded / (6 * dim * GATHERED),
            }
        )
    return rows


def encoding_table() -> list[dict]:
    """Tabulate GPU hours, embedding bytes and index bytes of a billion whole sentences."""
    rows = []
    for shape, (_, dim, _, _, _) in SHAPES.items():
        flops = pass_flops(shape, WHOLE_TOKENS, WHOLE_SQUARES)
        hours = SENTENCES * flops / (PEAK * ENCODING_SHARE) / 3600
        rows.append(
            {
                "shape": shape,
                "dim": dim,
                "gflops_a_sentence": flops / 1e9,
                "gpu_hours": hours,
                "hours_by_gpus": {str(gpus): hours / gpus for gpus in GPUS},
                "float32_tb": SENTENCES * dim * 4 / 1e12,
                "int8_tb": SENTENCES * dim / 1e12,
                "binary_tb": SENTENCES * dim / 8 / 1e12,
                "shards_of_50000": math.ceil(SENTENCES / 50_000),
                # IVF adds an id of 8 bytes; HNSW adds 2 x 32 neighbours of 4 bytes at the lowest level.
                "ivf_tb": SENTENCES * (dim * 4 + 8) / 1e12,
                "hnsw_tb": SENTENCES * (dim * 4 + 2 * 32 * 4) / 1e12,
            }
        )
    return rows


def tables() -> dict:
    return {
        "assumptions": {
            name: value
            for name, value in globals().items()
            if name.isupper() and isinstance(value, (int, float, tuple, dict))
        },
        "training": training_table(),
        "same_local_batch": [step(shape, gpus, LOCAL_BATCH) for shape in SHAPES for gpus in GPUS],
        "same_batch": [
            step("BERT-base", gpus, GLOBAL_BATCH // gpus) for gpus in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
        ],
        "encoding": encoding_table(),
        "corpus": {"tokens": SENTENCES * WHOLE_TOKENS, "text_tb": SENTENCES * TEXT_BYTES / 1e12},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no options: the model has none."""


def run(options: argparse.Namespace, report: Report) -> None:
    report.save(**tables())


def table(results: dict) -> str:
    titles = ("training", "same_local_batch", "same_batch", "encoding")
    return "\n\n".join(f"{title}\n\n{format_rows(results[title])}" for title in titles)


def format_rows(rows: list[dict]) -> str:
    cells = [[f"{x:.4g}" if isinstance(x, float) else x for x in row.values()] for row in rows]
    return markdown(rows[0], cells)
