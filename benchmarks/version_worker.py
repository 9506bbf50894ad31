"""Time training steps and encoding with the package of one checkout; `python -m benchmarks versions` starts it.

It reads works from standard input, one JSON list `[kind, texts, bf16]` in a line, and prints the seconds of each. It
uses only what every version of the package has, and the contestants of the checkout that it runs in.
"""

import inspect
import json
import statistics
import sys
import time
from functools import cache
from pathlib import Path

import torch
from datasets import load_from_disk

from benchmarks.contestants import Ours, encode_ours
from simcse_hf import SimCSE

STEPS = 3


def main(model: str, folder: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    for line in sys.stdin:
        kind, texts, bf16 = json.loads(line)
        time_work = {"train": time_step, "encode": time_encoding}[kind]
        print("seconds", time_work(model, Path(folder, texts), bf16), flush=True)


def time_step(model: str, texts: Path, bf16: bool) -> float:
    """Return the median time of a training step."""
    return statistics.median(make_trainer(model, texts, bf16).time_steps(STEPS))


def time_encoding(model: str, texts: Path, bf16: bool) -> float:
    """Return the time of encoding all texts once."""
    encoder, sentences = load_encoder(model), read_texts(texts)
    start = time.perf_counter()
    encode_ours(encoder, sentences, torch.bfloat16 if bf16 else torch.float32)
    return time.perf_counter() - start


@cache
def make_trainer(model: str, texts: Path, bf16: bool) -> Ours:
    return Ours(model, load_from_disk(str(texts)), bf16)


@cache
def load_encoder(model: str) -> SimCSE:
    has_pooler_type = "pooler_type" in inspect.signature(SimCSE.__init__).parameters  # since 0.2.0
    return SimCSE(model, device="cpu", **{"pooler_type" if has_pooler_type else "pooler": "avg"})


@cache
def read_texts(texts: Path) -> list[str]:
    return load_from_disk(str(texts))["text"][:]


if __name__ == "__main__":
    main(*sys.argv[1:])
