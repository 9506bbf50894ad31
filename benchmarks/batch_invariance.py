"""Batch-invariant encoding on a CPU: differing bits over random batchings, and its cost.

    python -m benchmarks batch_invariance --output benchmarks/results/batch_invariance.json

A batching is a random list of texts from a pool, in random order, with a random token budget. Each embedding is
compared bit by bit with that of the text alone. For comparison, the same is done for ordinary encoding. The cost is
the ratio of the times of both ways on the same sentences, which take turns in one process.
"""

import argparse
import random
import time

import torch
from transformers.utils import logging

from simcse_hf import SimCSE

from .harness import (
    Report,
    add_data_option,
    add_model_option,
    distinct_sentences,
    machine,
    markdown,
    model_or_default,
    seconds_of,
    sts_sets,
    take_turns,
)

POOL = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--small_model", help="encoder for the batchings; default: --model")
    parser.add_argument("--batchings", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600, help="stop the batchings after this time")
    parser.add_argument("--sentences", type=int, default=2000, help="sentences whose encoding is timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)


def run(options: argparse.Namespace, report: Report) -> None:
    logging.set_verbosity_error()
    options.model = model_or_default(options.model)
    texts = distinct_sentences(sts_sets(options.data))
    report.save(machine=machine(), seed=options.seed)
    small = SimCSE(options.small_model or options.model, device="cpu")
    for name, invariant, most in (("ordinary", False, 200), ("batch-invariant", True, options.batchings)):
        report.save(**{name: count_differences(small, texts, invariant, most, options)})
    model, sentences = (
        SimCSE(options.model, device="cpu"),
        random.Random(options.seed).sample(texts, options.sentences),
    )
    turns = {
        name: lambda invariant=invariant: seconds_of(lambda: model.encode(sentences, batch_invariant=invariant))
        for name, invariant in (("ordinary", False), ("batch-invariant", True))
    }
    model.encode(sentences[:200], batch_invariant=True)  # the probe of each layer is computed once
    times = take_turns(turns, options.rounds)
    report.save(
        sentences=len(sentences),
        rounds=options.rounds,
        seconds={name: round(value, 3) for name, value in times.items()},
        cost=round(times["batch-invariant"] / times["ordinary"] - 1, 4),
    )


def count_differences(
    model: SimCSE, texts: list[str], invariant: bool, most: int, options: argparse.Namespace
) -> dict:
    """Encode random batchings and count the embeddings and the values that differ from those of the text alone."""
    rng = random.Random(options.seed)
    pool = rng.sample(texts, POOL)
    alone = torch.stack([torch.as_tensor(model.encode(text, batch_invariant=invariant)) for text in pool])
    start, batchings, embeddings, differing, values = time.monotonic(), 0, 0, 0, 0
    while batchings < most and time.monotonic() - start < options.seconds:
        rows = rng.choices(range(POOL), k=rng.choice((2, 3, 5, 8, 13)))
        budget = rng.choice((64, 128, 512, 4096))
        encoded = model.encode([pool[row] for row in rows], batch_invariant=invariant, token_budget=budget)
        unequal = encoded != alone[rows]
        batchings, embeddings = batchings + 1, embeddings + len(rows)
        differing, values = differing + int(unequal.any(1).sum()), values + int(unequal.sum())
    return {
        "batchings": batchings,
        "embeddings": embeddings,
        "differing_embeddings": differing,
        "differing_values": values,
    }


def table(results: dict) -> str:
    names = ("ordinary", "batch-invariant")
    counts = ("batchings", "embeddings", "differing_embeddings", "differing_values")
    rows = [[name, *(results[name][count] for count in counts), results["seconds"][name]] for name in names]
    header = [
        "encoding",
        *(count.replace("_", " ") for count in counts),
        f"seconds for {results['sentences']} sentences",
    ]
    return f"{markdown(header, rows)}\n\nThe cost of batch-invariant encoding is {100 * results['cost']:.1f}%."
