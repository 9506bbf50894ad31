"""Encoding a file with several workers: `accelerate launch -m simcse_hf encode` beside `examples/encode_ray.py`.

    python -m benchmarks encode_workers --output benchmarks/results/encode_workers.json

Every worker has one thread. What is measured is the time that more texts add to a run, so that starting the processes,
the cluster and the model does not count.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .harness import (
    Report,
    add_data_option,
    add_model_option,
    machine,
    markdown,
    model_or_default,
    seconds_of,
    take_turns,
    training_texts,
)

BLOCK = 2048  # the number of texts that a worker encodes at a time
# The tasks of Ray that read and write need processors beside the workers: it may count more than there are.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_ADDRESS": "local",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 8}',
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_data_option(parser)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--blocks", type=int, default=4, help=f"blocks of {BLOCK:,} texts in the measured time")
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace, report: Report) -> None:
    model = model_or_default(options.model)
    few = max(options.workers)  # every worker has a block
    many = few + options.blocks
    *sentences, _, _ = training_texts(options.data, many * BLOCK).values()
    texts = list(itertools.islice(itertools.cycle(sentences[-1]["sent0"]), many * BLOCK))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{blocks}.parquet") for blocks in (few, many)]
        for file, blocks in zip(files, (few, many), strict=True):
            pq.write_table(pa.table({"text": texts[: blocks * BLOCK]}), file, row_group_size=BLOCK)
        contestants = {
            f"{program} {workers}": partial(added_seconds, [*make_command(workers), "--model", str(model)], files)
            for workers in options.workers
            for program, make_command in (("accelerate", accelerate_command), ("ray", ray_command))
        }
        seconds = take_turns(contestants, options.rounds)
    rows = [
        {"program": program, "workers": int(workers), "texts_per_second": options.blocks * BLOCK / seconds[name]}
        for name in contestants
        for program, workers in [name.split()]
    ]
    report.save(
        model=str(options.model or "all-MiniLM-L6-v2"),
        rounds=options.rounds,
        cores=os.cpu_count(),
        machine=machine(),
        rows=rows,
    )


def added_seconds(command: list[str], files: list[Path]) -> float:
    """Encode few texts and many, and return by how many seconds the second run is longer."""
    few, many = (seconds_of(partial(encode, command, file)) for file in files)
    return many - few


def encode(command: list[str], file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [*command, "--input", str(file), "--output", f"{folder}/out"]
        finished = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stderr[-3000:]}")


def accelerate_command(workers: int) -> list[str]:
    command = ["-m", "simcse_hf", "encode", "--quiet", "--shard_size", str(BLOCK)]
    if workers > 1:  # on CPUs, Accelerate starts several processes with this configuration only
        config = str(Path(__file__).parents[1] / "examples" / "accelerate_configs" / "two_cpu_processes.yaml")
        launch = ["-m", "accelerate.commands.launch", "--config_file", config, "--num_processes", str(workers)]
        command = [*launch, *command]
    return [sys.executable, *command]


def ray_command(workers: int) -> list[str]:
    program = str(Path(__file__).parents[1] / "examples" / "encode_ray.py")
    return [sys.executable, program, "--workers", str(workers), "--batch_size", str(BLOCK)]


def table(results: dict) -> str:
    return markdown(
        ["program", "workers", "texts/s", "texts/s and worker"],
        [
            [row["program"], row["workers"], f"{rate:.0f}", f"{rate / row['workers']:.0f}"]
            for row in results["rows"]
            for rate in [row["texts_per_second"]]
        ],
    )
