"""Encoding of the GPU benchmark: from a file of texts to a file of vectors."""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from simcse_hf import SimCSE
from simcse_hf.encoding.files import encode

from ..contestants import encode_peer
from ..synthetic import LENGTHS, encoder_config, texts
from .training import clean_up

#: The shape of the encoder of each work.
ENCODERS = {
    "MiniLM, file to vectors": "minilm",
    "BERT-base, file to vectors": "bert-base",
    "RoBERTa-large, file to vectors": "roberta-large",
}
SIZES = {"ours": (8192, 65_536), "sentence-transformers": (128, 1024)}  # tokens, and texts, of a batch
SAMPLE = 0.1  # of the texts, with which the size is chosen


def measure_encoding(name: str, model: Path, options: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    """Measure one contestant after the other, each at the faster of two batch sizes; yield a row for each."""
    encoder = ENCODERS[name]
    count = 200 if options.tiny else options.sentences // (4 if encoder == "roberta-large" else 1)
    words = encoder_config(encoder, options.tiny).vocab_size - 5
    sentences = texts(LENGTHS["wikipedia"]["sentence"], count, words, seed=7)
    source, sample = model.with_suffix(".txt"), model.with_suffix(".sample.txt")
    source.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    sample.write_text("\n".join(sentences[: max(50, int(count * SAMPLE))]) + "\n", encoding="utf-8")
    tokens = sum(len(sentence.split()) + 2 for sentence in sentences)
    for kind, make in {"ours": _ours, "sentence-transformers": _peer}.items():
        row: dict[str, Any] = {"work": name, "contestant": kind}
        if time.monotonic() > deadline:
            yield row | {"left_out": True, "reason": "no time"}
            continue
        try:
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            encode = make(model, options.device)
            encode(sample, SIZES[kind][0])  # allocates
            by_size = {size: _seconds(encode, sample, size) for size in SIZES[kind]}
            best = min(by_size, key=lambda size: by_size[size])
            seconds = _seconds(encode, source, best)
            row |= {
                "sentences_per_second": round(count / seconds, 1),
                "tokens_per_second": round(tokens / seconds, 1),
                "batch": best,
                "texts": count,
                "peak_memory_mib": torch.cuda.max_memory_allocated() // 2**20 if torch.cuda.is_available() else None,
            }
        except Exception as error:  # a failure must not lose the rates of the others
            row["failed"] = repr(error)[:500]
        clean_up()
        yield row


def profile_encoding(model: Path, device: str, count: int, words: int) -> dict[str, Any]:
    """Measure a file to vectors and tokenizing alone, and where the host spends its time."""
    source = model.with_suffix(".txt")
    sentences = texts(LENGTHS["wikipedia"]["sentence"], count, words, seed=7)
    source.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    run = _ours(model, device)
    size = SIZES["ours"][-1]
    run(source, size)  # allocates
    seconds = _seconds(run, source, size)
    start = time.perf_counter()
    AutoTokenizer.from_pretrained(model)(sentences)
    tokenizing = time.perf_counter() - start
    profiler = cProfile.Profile()
    profiler.runcall(run, source, size)
    largest = sorted(pstats.Stats(profiler).stats.items(), key=lambda item: -item[1][2])[:15]  # type: ignore[attr-defined]
    own = [[f"{Path(file).name}:{line} {name}", round(found[2], 3)] for (file, line, name), found in largest]
    return {
        "sentences_per_second": count / seconds,
        "seconds": seconds,
        "tokenizing alone, seconds": tokenizing,
        "own seconds of functions": own,
    }


def _seconds(encode: Callable[[Path, int], None], source: Path, size: int) -> float:
    start = time.perf_counter()
    encode(source, size)
    return time.perf_counter() - start


def _ours(model: Path, device: str) -> Callable[[Path, int], None]:
    encoder = SimCSE(model, pooler_type="avg", device=device, dtype=torch.bfloat16)
    runs = iter(range(100))

    def run(source: Path, size: int) -> None:
        output = source.with_name(f"{source.name}.vectors{next(runs)}")
        encode(encoder, source, output, token_budget=size, show_progress_bar=False)

    return run


def _peer(model: Path, device: str) -> Callable[[Path, int], None]:
    AutoTokenizer.from_pretrained(model)  # both contestants find the files in the page cache
    peer = encode_peer(model, torch.bfloat16)

    def encode(source: Path, size: int) -> None:
        sentences = source.read_text(encoding="utf-8").splitlines()
        np.save(source.with_suffix(".npy"), peer(sentences, size).float().numpy())

    return encode
