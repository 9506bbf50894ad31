"""Mining hard negatives: the time of the whole command against the time of encoding alone.

    OMP_NUM_THREADS=1 python -m benchmarks mining --model ENCODER --pooler avg --output benchmarks/results/mining.json

The pairs are neighbouring sentences of Wikipedia, so nearly every anchor and positive is distinct and is encoded.
Encoding and searching are timed within one call of `mine_hard_negatives`, in wall-clock and in processor time.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from simcse_hf import SimCSE
from simcse_hf.search.exact import ExactIndex
from simcse_hf.search.faiss_index import FaissIndex
from simcse_hf.search.mining import MiningOptions, mine_hard_negatives

from .harness import Report, add_data_option, add_model_option, machine, markdown, model_or_default, training_texts


class TimedEncoder:
    """A model that adds up the time of its calls and keeps its embeddings."""

    def __init__(self, model: SimCSE) -> None:
        self.model = model
        self.clock = self.processor = 0.0
        self.embeddings: list[np.ndarray] = []

    def encode_query(self, texts: list[str], **options: Any) -> np.ndarray:
        clock, processor = time.perf_counter(), time.process_time()
        self.embeddings.append(self.model.encode_query(texts, **options))
        self.clock += time.perf_counter() - clock
        self.processor += time.process_time() - processor
        return self.embeddings[-1]

    encode_document = encode_query


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_data_option(parser)
    parser.add_argument("--pooler", help="pooler of the encoder; default: what it names")
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--backends", nargs="+", default=["exact", "Flat"])


def neighbouring_pairs(data: Path | None, count: int) -> Dataset:
    """Pair each odd sentence with the next one."""
    texts = training_texts(data, 2 * count)
    sentences = list(dict.fromkeys(texts.get("longer Wikipedia sentences", next(iter(texts.values())))["sent0"]))
    count = min(count, len(sentences) // 2)
    return Dataset.from_dict({"sent0": sentences[: 2 * count : 2], "sent1": sentences[1 : 2 * count : 2]})


def run(options: argparse.Namespace, report: Report) -> None:
    model = TimedEncoder(SimCSE(model_or_default(options.model), pooler_type=options.pooler, device="cpu"))
    pairs = neighbouring_pairs(options.data, options.pairs)
    model.model.encode(pairs["sent0"][:64])  # warms up
    mining = MiningOptions(relative_margin=0.05)
    clock, processor = time.perf_counter(), time.process_time()
    _, result = mine_hard_negatives(pairs, model, options=mining, show_progress_bar=True)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    report.save(
        machine=machine(),
        model=Path(model.model.name_or_path).name,
        dim=model.model.dim,
        ranks=mining.last_rank,
        **{
            name: value for name, value in asdict(result).items() if name in ("pairs", "anchors", "candidates", "rows")
        },
        seconds={"mining": clock, "encoding": model.clock},
        processor_seconds={"mining": processor, "encoding": model.processor},
        ratio={"clock": clock / model.clock, "processor": processor / model.processor},
    )
    # The search alone, with each backend, for a part of the anchors.
    anchors, candidates = model.embeddings[0], np.concatenate(model.embeddings)[-result.candidates :]
    searches = {}
    truth = None
    for backend in options.backends:
        index = ExactIndex(model.model.dim) if backend == "exact" else FaissIndex(model.model.dim, backend)
        index.add(candidates)
        processor = time.process_time()
        found = index.search(anchors[:8192], mining.last_rank + 1)[1]
        seconds = (time.process_time() - processor) / len(anchors[:8192]) * result.anchors
        truth = found if truth is None else truth
        recall = np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in zip(found, truth, strict=True)])
        searches[backend] = {"processor_seconds": seconds, "recall": float(recall)}
        report.save(search=searches)


def table(results: dict[str, Any]) -> str:
    ratio, seconds, processor = results["ratio"], results["seconds"], results["processor_seconds"]
    rows = [
        ["encoding", f"{seconds['encoding']:.0f} s", f"{processor['encoding']:.0f} s", "1"],
        ["mining", f"{seconds['mining']:.0f} s", f"{processor['mining']:.0f} s", f"{ratio['processor']:.3f}"],
    ]
    for backend, search in results.get("search", {}).items():
        rows.append([f"search, {backend}", "", f"{search['processor_seconds']:.0f} s", ""])
    title = f"{results['pairs']} pairs, {results['model']} ({results['dim']} dimensions)"
    return f"{title}\n\n" + markdown(["step", "wall clock", "processor", "ratio to encoding"], rows)
