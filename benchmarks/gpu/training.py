"""Training steps of the GPU benchmark: each contestant on each work, one trainer at a time."""

import argparse
import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from ..contestants import Contestant, Ours, Peer, Plain
from ..synthetic import encoder_config, training_rows
from .graphs import GraphTrainer
from .profiling import Stopwatch

LENGTH = 32
WARM_UP = 12  # steps


@dataclass
class Work:
    """Training of an encoder: the batch size, and the rows and epochs of the paper's run (Table A.1)."""

    encoder: str
    corpus: str
    batch: int
    rows: int
    epochs: int


WORKS = {
    "BERT-base, sentences, batch 64": Work("bert-base", "paper", 64, 1_000_000, 1),
    "BERT-base, sentences, batch 512": Work("bert-base", "paper", 512, 1_000_000, 1),
    "BERT-base, triplets, batch 512": Work("bert-base", "nli", 512, 275_601, 3),
    "RoBERTa-large, sentences, batch 512": Work("roberta-large", "paper", 512, 1_000_000, 1),
}


def _flash_peer(model: Path, rows: Dataset, bf16: bool, batch: int, length: int) -> Peer:
    return Peer(model, rows, bf16, batch, length, attn_implementation="flash_attention_2")


def _compiled(model: Path, rows: Dataset, bf16: bool, batch: int, length: int) -> Ours:
    arguments = {"torch_compile": True, "torch_compile_mode": "reduce-overhead"}
    if not torch.cuda.is_available():  # where nothing is measured
        arguments = {"torch_compile": True, "torch_compile_backend": "eager"}
    return Ours(model, rows, bf16, batch, length, **arguments)


CONTESTANTS: dict[str, Callable[..., Contestant]] = {
    "plain": Ours,
    "graphs": lambda *arguments: Ours(*arguments, trainer=GraphTrainer),
    "compiled": _compiled,
    "sentence-transformers": Peer,
    "sentence-transformers, flash-attn": _flash_peer,
    "padded": lambda *arguments: Ours(*arguments, unpadded=False),
    "transformers": Plain,
}


def measure_training(name: str, model: Path, options: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    """Measure one contestant after the other; yield a row for each, also for those that fail or are left out."""
    work = WORKS[name]
    batch = 8 if options.tiny else work.batch
    steps = options.steps
    count = batch * min(WARM_UP + steps, 200)
    rows = training_rows(work.corpus, count, encoder_config(work.encoder, options.tiny).vocab_size - 5)
    for kind in options.contestants:
        row: dict[str, Any] = {"work": name, "contestant": kind}
        if "flash-attn" in kind and importlib.util.find_spec("flash_attn") is None:
            yield row | {"left_out": True, "reason": "flash-attn is not installed"}
            continue
        if time.monotonic() > deadline:
            yield row | {"left_out": True, "reason": "no time"}
            continue
        try:
            row |= measure_contestant(CONTESTANTS[kind], work, model, rows, batch, steps, options.tiny)
        except Exception as error:  # a failure, also for want of memory, must not lose the rates of the others
            row["failed"] = repr(error)[:500]
        clean_up()
        yield row


def measure_contestant(
    make: Callable[..., Contestant], work: Work, model: Path, rows: Dataset, batch: int, steps: int, tiny: bool
) -> dict[str, Any]:
    """Measure a contestant: its rate, kernels, memory and loss."""
    on_gpu = torch.cuda.is_available()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    contestant = make(model, rows, True, batch, LENGTH)
    trainer = contestant.trainer
    trainer.model.to(trainer.args.device)
    loss = contestant.loss_without_dropout()
    watch = Stopwatch(2 if tiny else WARM_UP, steps)
    trainer.args.max_steps = watch.steps
    trainer.add_callback(watch)
    trainer.train()
    sentences = batch * max(2, len(rows.column_names))
    seconds = watch.seconds / steps
    return {
        "sentences_per_second": round(sentences / seconds, 1),
        "ms_a_step": round(1000 * seconds, 3),
        "kernels_a_step": watch.kernels,
        "busy_share": watch.busy_share,
        "peak_memory_mib": (torch.cuda.max_memory_allocated() - before) // 2**20 if on_gpu else None,
        "warm_up_seconds": round(watch.warm_up_seconds, 1),
        "projected_seconds": round(-(-work.rows // work.batch) * work.epochs * seconds, 1),
        "loss": loss,
        "steps": steps,
        **({} if watch.problem is None else {"profiler_failed": watch.problem}),
    }


def clean_up() -> None:
    """Free the memory that a contestant held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
