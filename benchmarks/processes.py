"""One against two CPU processes of one thread each: training steps and encoded sentences per second.

    python -m benchmarks processes --output benchmarks/results/processes.json

The processes take turns, so that other load on the machine affects both counts. Training has the same total batch.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoTokenizer

from simcse_hf import AutoModelForCL
from simcse_hf.inference.batches import encode_token_ids

from .harness import Report, add_data_option, add_model_option, machine, markdown, model_or_default, training_texts

MAX_LENGTH, VIEWS = 32, 2


def _measure_in_group(model_name: str, token_ids: list[list[int]], batch: int, rank: int, processes: int) -> dict:
    torch.manual_seed(0)
    contrastive = AutoModelForCL.from_pretrained(model_name)
    contrastive.prepare_objective()
    contrastive.train()
    model = DistributedDataParallel(contrastive)
    optimizer = torch.optim.AdamW(contrastive.parameters(), lr=1e-5)
    local = [ids[:MAX_LENGTH] for ids in token_ids[rank * batch // processes : (rank + 1) * batch // processes]]
    length = max(map(len, local))
    ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in local])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in local])
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
    result = {"training_steps_per_second": train(3)}
    encode_token_ids(contrastive, token_ids[:100], 0)
    dist.barrier()
    started = time.perf_counter()
    encode_token_ids(contrastive, token_ids, 0)
    dist.barrier()
    return result | {"encoded_sentences_per_second": len(token_ids) / (time.perf_counter() - started)}


def _measure_worker(rank: int, model_name: str, token_ids: list[list[int]], batch: int, repeats: int, folder: str):
    torch.set_num_threads(1)
    for repeat in range(repeats):
        for processes in (1, 2):  # in turn, so that another program's load falls on both
            if rank >= processes:
                continue
            method = f"file://{folder}/{repeat}-{processes}"
            dist.init_process_group("gloo", init_method=method, rank=rank, world_size=processes)
            result = _measure_in_group(model_name, token_ids, batch, rank, processes)
            dist.destroy_process_group()
            if rank == 0:
                Path(folder, f"result-{repeat}-{processes}.json").write_text(json.dumps(result))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--batch", type=int, default=64, help="rows in the batch of all processes together")
    parser.add_argument("--sentences", type=int, default=2000, help="sentences to encode")
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace, report: Report) -> None:
    model = str(model_or_default(options.model))
    texts = list(training_texts(options.data, options.sentences).values())[-3]["sent0"][:]  # the longer sentences
    token_ids = AutoTokenizer.from_pretrained(model)(texts, truncation=True, max_length=128)["input_ids"]
    rounds = range(options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure_worker, args=(model, token_ids, options.batch, options.rounds, folder), nprocs=2)
        runs = {
            str(processes): [json.loads(Path(folder, f"result-{r}-{processes}.json").read_text()) for r in rounds]
            for processes in (1, 2)
        }
    medians = {
        processes: {name: statistics.median(run[name] for run in results) for name in results[0]}
        for processes, results in runs.items()
    }
    report.save(
        machine=machine() | {"threads": 1},
        encoder=options.model.name if options.model else "all-MiniLM-L6-v2",
        batch_of_all_processes=options.batch,
        sentences_encoded=len(token_ids),
        runs=runs,
        medians=medians,
        speedup={name: medians["2"][name] / medians["1"][name] for name in medians["1"]},
    )


def table(results: dict) -> str:
    medians = results["medians"]
    rows = [
        [name, *(f"{medians[processes][name]:.3g}" for processes in ("1", "2")), f"{speedup:.2f} x"]
        for name, speedup in results["speedup"].items()
    ]
    return markdown(["", "one process", "two processes", "speed-up"], rows)
