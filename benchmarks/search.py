"""Search: exact search in PyTorch against numpy, and HNSW against exact search.

    simcse-hf encode --model MODEL --input sentences.txt --output vectors
    OMP_NUM_THREADS=2 python -m benchmarks search --vectors vectors --output benchmarks/results/search.json

Random unit vectors in hundreds of dimensions have no structure that a graph could follow: all are nearly orthogonal,
and the tenth neighbour is hardly closer than the thousandth. They are the hardest case. Clustered vectors and those of
sentences have much structure. Speed is in milliseconds per query, for one query at a time (what a user waits for) and
for all queries in one call (what a batch job takes), in wall-clock and in processor time.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from simcse_hf.inference.shards import read_manifest, read_shards
from simcse_hf.search.exact import ExactIndex
from simcse_hf.search.faiss_index import FaissIndex
from simcse_hf.search.interface import VectorIndex

from .harness import Report, machine, markdown

TOP_K = 10
PARTS = ("exact", "random", "clustered", "sentences")


def unit(vectors: np.ndarray) -> np.ndarray:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def random_vectors(count: int, dim: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32))


def clustered_vectors(count: int, dim: int, seed: int) -> np.ndarray:
    """Draw vectors around 1,000 random centres, with a cosine of about 0.7 to them."""
    centres = random_vectors(1000, dim, seed=0)
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((count, dim), dtype=np.float32) / np.float32(dim**0.5)
    return unit(centres[generator.integers(len(centres), size=count)] + noise)


def numpy_search(vectors: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the whole score matrix and sort it, for 20 queries at a time."""
    results = []
    for part in np.array_split(queries, -(-len(queries) // 20)):
        scores = part @ vectors.T
        best = np.argpartition(-scores, TOP_K, axis=1)[:, :TOP_K]
        best_scores = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-best_scores, axis=1)
        results.append((np.take_along_axis(best_scores, order, 1), np.take_along_axis(best, order, 1)))
    return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))


def milliseconds(function: Callable[[], object], queries: int) -> dict[str, float]:
    clock, processor = time.perf_counter(), time.process_time()
    function()
    taken = time.perf_counter() - clock, time.process_time() - processor
    return {"clock": 1000 * taken[0] / queries, "processor": 1000 * taken[1] / queries}


def speeds(index: VectorIndex, queries: np.ndarray, singles: int = 50) -> dict:
    index.search(queries[:2], TOP_K)  # warms up: an inverted file lays out its cells
    one_by_one = queries[:singles]
    return {
        "one": milliseconds(lambda: [index.search(query[None], TOP_K) for query in one_by_one], len(one_by_one)),
        "batch": milliseconds(lambda: index.search(queries, TOP_K), len(queries)),
    }


def measure_exact(vectors: np.ndarray, queries: np.ndarray) -> dict:
    index = ExactIndex(vectors.shape[1])
    index.add(vectors)
    scores, positions = index.search(queries, TOP_K)
    expected_scores, expected = numpy_search(vectors, queries)
    report = {
        "vectors": len(vectors),
        "queries": len(queries),
        "equal_positions": bool((positions == expected).all()),
        "largest_score_difference": float(np.abs(scores - expected_scores).max()),
        "milliseconds": speeds(index, queries),
        "numpy_milliseconds": {"batch": milliseconds(lambda: numpy_search(vectors, queries), len(queries))},
    }
    print("exact", json.dumps(report, indent=2), flush=True)
    return report


def measure_hnsw(name: str, vectors: np.ndarray, queries: np.ndarray, efs: list[int], graph: dict) -> dict:
    exact = ExactIndex(vectors.shape[1])
    exact.add(vectors)
    truth_scores, truth = exact.search(queries, TOP_K)
    exact_speed = speeds(exact, queries)
    del exact  # frees its copy of the vectors before the graph makes another
    index = FaissIndex(vectors.shape[1], "hnsw", **graph)
    clock, processor = time.perf_counter(), time.process_time()
    index.add(vectors)
    building = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
    rows = []
    print(f"{name}: {len(vectors)} vectors, built in {building}, exact {exact_speed}", flush=True)
    for ef in efs:
        index.ef_search = ef
        scores, positions = index.search(queries, TOP_K)
        speed = speeds(index, queries)
        row = {
            "ef_search": ef,
            "recall": float(np.mean([len(set(a) & set(b)) / TOP_K for a, b in zip(positions, truth, strict=True)])),
            # Equal sentences are interchangeable: every score as good as the true tenth counts.
            "recall_by_score": float((scores >= truth_scores[:, -1:] - 1e-6).mean()),
            "milliseconds": speed,
            "times_faster": {
                how: {clock: exact_speed[how][clock] / speed[how][clock] for clock in speed[how]} for how in speed
            },
        }
        rows.append(row)
        print(
            f"  ef {ef:5d}  recall {row['recall']:.3f} ({row['recall_by_score']:.3f} by score)  one query "
            f"{speed['one']['clock']:.2f} ms, {row['times_faster']['one']['clock']:.1f} x; in a batch "
            f"{speed['batch']['clock']:.3f} ms, {row['times_faster']['batch']['clock']:.1f} x",
            flush=True,
        )
    return {
        "data": name,
        "vectors": len(vectors),
        "queries": len(queries),
        "tenth_score": float(truth_scores[:, -1].mean()),
        "graph": graph,
        "seconds_to_build": building,
        "exact_milliseconds": exact_speed,
        "hnsw": rows,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all, `sentences` only with --vectors")
    parser.add_argument("--exact_count", type=int, default=1_000_000)
    parser.add_argument("--hnsw_count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--vectors", help="folder that `simcse-hf encode` wrote, for the part `sentences`")
    parser.add_argument("--neighbors", type=int, default=32)
    parser.add_argument("--ef_construction", type=int, default=80)
    parser.add_argument("--ef_search", type=int, nargs="+", default=[32, 64, 128, 256, 512])


def run(options: argparse.Namespace, report: Report) -> None:
    report.save(machine=machine())
    graph = {"neighbors": options.neighbors, "ef_construction": options.ef_construction}
    dim, num_queries = options.dim, options.queries
    for part in options.parts or [part for part in PARTS if part != "sentences" or options.vectors]:
        if part == "exact":
            vectors = random_vectors(options.exact_count, dim, seed=1)
            result = measure_exact(vectors, random_vectors(num_queries, dim, seed=2))
        elif part == "sentences":
            vectors = np.concatenate(list(read_shards(options.vectors)))
            manifest = read_manifest(options.vectors)
            model = manifest["model"]
            name = f"{Path(model['name_or_path']).name}, {model['dtype']}, {manifest['input']['file']}"
            # The queries are sentences that the index does not hold.
            indexed, queries = vectors[:-num_queries], vectors[-num_queries:]
            result = measure_hnsw(name, indexed, queries, options.ef_search, graph)
        else:
            make = {"random": random_vectors, "clustered": clustered_vectors}[part]
            vectors, queries = make(options.hnsw_count, dim, 1), make(num_queries, dim, 2)
            result = measure_hnsw(part, vectors, queries, options.ef_search, graph)
        report.save(**{part: result})


def table(results: dict) -> str:
    rows = []
    for part in (part for part in PARTS if part != "exact" and part in results):
        for row in results[part]["hnsw"]:
            faster = row["times_faster"]
            rows.append(
                [
                    results[part]["data"],
                    row["ef_search"],
                    f"{row['recall']:.3f}",
                    *(f"{faster[how]['clock']:.1f} x" for how in ("one", "batch")),
                ]
            )
    return markdown(["data", "ef", "recall@10", "one query, against exact", "all queries, against exact"], rows)
