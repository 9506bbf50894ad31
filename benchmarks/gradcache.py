"""GradCache: memory and time of one large batch in chunks, against the same sentences in batches of one chunk.

    python -m benchmarks gradcache --output benchmarks/results/gradcache.json

Every step is the Trainer's own, with the same encoder, random token ids of full length, AdamW and one thread. Each
kind runs in a process of its own. Memory is the growth of the peak after a first step of two rows, which has already
allocated the gradients. It contains the embeddings of the large batch, their gradients and the token ids.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments

from .harness import Report, add_model_option, in_fresh_process, machine, markdown, megabytes, model_or_default
from .harness import reset_peak_memory as reset_peak

LENGTH = 32
KINDS = ("batches", "chunks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    parser.add_argument("--batch", type=int, default=4096, help="rows of the large batch, a multiple of --chunk")
    parser.add_argument("--chunk", type=int, default=64, help="rows in the encoder at a time")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each kind")


def run(options: argparse.Namespace, report: Report) -> None:
    if options.batch % options.chunk:
        raise SystemExit(f"--batch ({options.batch}) must be a multiple of --chunk ({options.chunk})")
    model = model_or_default(options.model)
    turns: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            turns[kind].append(in_fresh_process(measure, kind, model, options.batch, options.chunk))
            print(kind, turns[kind][-1], flush=True)
    medians = {
        kind: {name: statistics.median(turn[name] for turn in turns[kind]) for name in turns[kind][0]}
        for kind in KINDS
    }
    report.save(
        machine=machine() | {"threads": 1},
        model=options.model.name if options.model else "all-MiniLM-L6-v2",
        rows=options.batch,
        chunk=options.chunk,
        length=LENGTH,
        rounds=options.rounds,
        median=medians,
        ratio={name: medians["chunks"][name] / medians["batches"][name] for name in medians["batches"]},
        turns=turns,
    )


def measure(kind: str, model: Path, batch: int, chunk: int) -> dict[str, float]:
    """Measure the steps that process the sentences of the large batch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ids = torch.randint(1000, AutoConfig.from_pretrained(model).vocab_size, (batch, LENGTH)).tolist()
    rows = [{"input_ids": [row]} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        arguments = SimCSETrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch if kind == "chunks" else chunk,
            gradcache_chunk_size=chunk if kind == "chunks" else None,
            max_seq_length=LENGTH,
            use_cpu=True,
            report_to="none",
        )
        trainer = SimCSETrainer(
            AutoModelForCL.from_pretrained(model),
            arguments,
            Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model),
        )
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = 1

        def step(first: int, size: int) -> None:
            trainer.training_step(trainer.model, trainer.data_collator(rows[first : first + size]))
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=False)

        step(0, 2)
        before, start, cpu_start = reset_peak(), time.perf_counter(), time.process_time()
        for first in range(0, batch, arguments.per_device_train_batch_size):
            step(first, arguments.per_device_train_batch_size)
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "megabytes_above": megabytes("VmHWM") - before,
            "megabytes": megabytes("VmHWM"),
        }


def table(results: dict) -> str:
    names = results["ratio"]
    return markdown(
        ["", *KINDS, "ratio"],
        [
            [name, *(f"{results['median'][kind][name]:.1f}" for kind in KINDS), f"{names[name]:.2f} x"]
            for name in names
        ],
    )
