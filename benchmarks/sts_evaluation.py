"""Time all STS tasks SentEval's way and ours, side by side with one model, and compare the figures.

    python -m benchmarks sts_evaluation --output benchmarks/results/sts_evaluation.json

SentEval's way: each subset in SentEval's order, 128 pairs at a time; the first and the second sentences are padded to
the longest of their batch and encoded as often as they occur, for all splits of STS-B and SICK-R. Ours: the same pairs
through `SentenceEmbeddings`, which encodes each distinct text once in length-sorted batches. Both are measured in
wall-clock and in processor time; on a machine shared with others the latter is steadier.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from simcse_hf import SimCSE
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.sts import STS_SUBSETS, ScoredPairs, predict_similarities, score_parts, score_subsets

from .harness import Report, add_data_option, add_model_option, machine, markdown, model_or_default, sts_sets

BATCH_SIZE = 128


def senteval_order(task: str, pairs: ScoredPairs) -> ScoredPairs:
    """Order pairs as SentEval does: by length for STS12 to STS16, unchanged for other tasks."""
    rows = list(zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True))
    if task in STS_SUBSETS:
        rows.sort(key=lambda row: (len(row[0].split()), len(row[1].split()), row[2]))
    return ScoredPairs(pairs.name, *(list(column) for column in zip(*rows, strict=True)))


@torch.inference_mode()
def encode_batch(model: SimCSE, texts: list[str]) -> np.ndarray:
    """Embed one padded batch, as SentEval's `batcher` does."""
    batch = model.tokenizer(texts, padding=True, truncation=True, max_length=model.max_length, return_tensors="pt")
    batch = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    return model.model(**batch).sentence_embeddings.float().cpu().numpy()


def predict_senteval(model: SimCSE, pairs: ScoredPairs) -> np.ndarray:
    """Compute the cosine of each pair as SentEval does, batch by batch."""
    cosines = []
    for start in range(0, len(pairs), BATCH_SIZE):
        first = encode_batch(model, pairs.sentences1[start : start + BATCH_SIZE])
        second = encode_batch(model, pairs.sentences2[start : start + BATCH_SIZE])
        cosines += [np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v)) for u, v in zip(first, second, strict=True)]
    return np.array(cosines)


def figures(data: dict[str, dict[str, ScoredPairs]], predict: Callable[[ScoredPairs], np.ndarray]) -> dict[str, float]:
    """Compute every figure of every task."""
    results = {}
    for task, parts in data.items():
        scored = {
            part: {"predicted": predict(pairs), "gold": np.asarray(pairs.scores)} for part, pairs in parts.items()
        }
        if task in STS_SUBSETS:
            for aggregation, scores in score_subsets(task, scored)["aggregate"].items():
                results |= {f"{task} {aggregation} {metric}": value for metric, value in scores.items()}
        else:
            for split, scores in score_parts(task, scored).items():
                results |= {f"{task} {split} {metric}": scores[metric] for metric in ("spearman", "pearson")}
    return results


def timed(function: Callable[[], dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Call `function`; return its result and the seconds it took."""
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    return result, {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    add_model_option(parser)
    parser.add_argument("--pooler_type", help="default: mean pooling for MiniLM, the checkpoint's pooler otherwise")
    parser.add_argument("--device")


def run(options: argparse.Namespace, report: Report) -> None:
    data = {
        task: {part: senteval_order(task, pairs) for part, pairs in parts.items()}
        for task, parts in sts_sets(options.data).items()
    }
    sides = [
        side for parts in data.values() for pairs in parts.values() for side in (pairs.sentences1, pairs.sentences2)
    ]
    texts = [text for side in sides for text in side]
    pooler_type = options.pooler_type or (None if options.model else "avg")
    model = SimCSE(model_or_default(options.model), pooler_type=pooler_type, device=options.device)
    encode_batch(model, texts[:BATCH_SIZE])  # warms up allocators and kernels for both

    def ours() -> dict[str, float]:
        vectors = SentenceEmbeddings(model, texts)
        return figures(data, lambda pairs: predict_similarities(vectors, pairs))

    our_figures, our_seconds = timed(ours)
    model.model.unpadded = False  # SentEval's way computes the padding of its batches
    senteval_figures, senteval_seconds = timed(lambda: figures(data, lambda pairs: predict_senteval(model, pairs)))
    report.save(
        machine=machine(),
        model=options.model.name if options.model else "all-MiniLM-L6-v2",
        pooler=model.pooler_type,
        tasks=list(data),
        texts=len(texts),
        distinct_texts=len(set(texts)),
        seconds={"senteval": senteval_seconds, "ours": our_seconds},
        ratio={clock: senteval_seconds[clock] / our_seconds[clock] for clock in our_seconds},
        largest_difference=max(abs(our_figures[name] - senteval_figures[name]) for name in senteval_figures),
        figures={"senteval": senteval_figures, "ours": our_figures},
    )


def table(results: dict) -> str:
    rows = [
        [name, *(f"{seconds[clock]:.1f}" for clock in ("wall", "processor"))]
        for name, seconds in results["seconds"].items()
    ]
    rows.append(["ratio", *(f"{results['ratio'][clock]:.2f} x" for clock in ("wall", "processor"))])
    difference = f"The largest difference of any figure (x 100) is {results['largest_difference']:.4f}."
    return markdown(["", "wall-clock, s", "processor, s"], rows) + "\n\n" + difference
