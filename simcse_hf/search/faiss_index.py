"""Search with faiss: flat, inverted file, HNSW graph."""

from pathlib import Path

import numpy as np

from .interface import VectorIndex

KINDS = ("flat", "ivf", "hnsw")
_FILE = "index.faiss"
_TRAINING_VECTORS = 256  # of a cell, as faiss's own k-means takes at most


def _faiss():
    try:
        import faiss
    except ImportError as error:
        raise ImportError("this index needs faiss: pip install 'simcse-hf[faiss]'") from error
    return faiss


class FaissIndex(VectorIndex):
    """A faiss index by inner product.

    Args:
        dim: dimensions of a vector.
        kind: `"flat"` compares every vector; `"ivf"` those in the `probes` cells nearest to the query; `"hnsw"` walks
            a graph of near neighbours (Malkov and Yashunin, 2016).
        cells: of an inverted file; default: 4 sqrt(n), of which faiss's k-means needs some 39 vectors each. The cells
            are laid out when the index is first searched or saved, from a sample of all vectors that are in it by
            then; what is added later goes to these cells.
        probes: cells that a query looks into; default: a tenth of them.
        neighbors: edges of a vector in the graph.
        ef_construction: candidates kept when a vector is put into the graph: a better graph, built more slowly.
        ef_search: candidates kept in a search: more of the true neighbours, found more slowly.
    """

    def __init__(
        self,
        dim: int,
        kind: str = "flat",
        *,
        cells: int | None = None,
        probes: int | None = None,
        neighbors: int = 32,
        ef_construction: int = 80,
        ef_search: int = 128,
    ):
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        for name, value in (
            ("cells", cells),
            ("probes", probes),
            ("neighbors", neighbors),
            ("ef_construction", ef_construction),
            ("ef_search", ef_search),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.dim, self.kind = dim, kind
        self.cells, self.probes = cells, probes
        self.neighbors, self.ef_construction, self.ef_search = neighbors, ef_construction, ef_search
        self._pending: list[np.ndarray] = []  # of an inverted file without cells yet
        faiss = _faiss()
        self._index = None
        if kind == "flat":
            self._index = faiss.IndexFlatIP(dim)
        elif kind == "hnsw":
            self._index = faiss.IndexHNSWFlat(dim, neighbors, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = ef_construction

    def options(self) -> dict:
        if self.kind == "ivf":
            return {"kind": "ivf", "cells": self.cells, "probes": self.probes}
        if self.kind == "hnsw":
            names = ("kind", "neighbors", "ef_construction", "ef_search")
            return {name: getattr(self, name) for name in names}
        return {"kind": "flat"}

    def __len__(self) -> int:
        return self._index.ntotal if self._index is not None else sum(map(len, self._pending))

    def add(self, vectors: np.ndarray) -> None:
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if self._index is None:
            self._pending.append(vectors.copy())
        else:
            self._index.add(vectors)

    def _lay_out_cells(self) -> None:
        if self._index is not None:
            return
        faiss = _faiss()
        count = len(self)
        cells = max(1, min(self.cells or min(round(4 * count**0.5), count // 39), count))
        sample = np.random.default_rng(0).permutation(count)[: cells * _TRAINING_VECTORS]
        ends = np.cumsum([0, *map(len, self._pending)])
        parts = np.searchsorted(ends, sample, side="right") - 1
        training = np.stack([self._pending[part][row - ends[part]] for part, row in zip(parts, sample, strict=True)])
        # The metric has to be named: faiss's default here is the L2 distance, over which inner products make no sense.
        self._index = faiss.IndexIVFFlat(faiss.IndexFlatIP(self.dim), self.dim, cells, faiss.METRIC_INNER_PRODUCT)
        self._index.cp.spherical = True
        self._index.cp.min_points_per_centroid = 1  # else it prints a warning over few vectors
        self._index.train(training)
        for vectors in self._pending:
            self._index.add(vectors)
        self._pending = []

    def search(self, queries: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        self._lay_out_cells()
        if self.kind == "ivf":
            self._index.nprobe = min(self.probes or max(1, self._index.nlist // 10), self._index.nlist)
        elif self.kind == "hnsw":
            self._index.hnsw.efSearch = max(self.ef_search, top_k)
        return self._index.search(np.ascontiguousarray(queries, dtype=np.float32), top_k)

    def save(self, folder: Path) -> None:
        self._lay_out_cells()
        _faiss().write_index(self._index, str(folder / _FILE))

    @classmethod
    def load(cls, folder: Path, options: dict) -> "FaissIndex":
        path = folder / _FILE
        try:
            stored = _faiss().read_index(str(path))
        except RuntimeError as error:
            raise ValueError(f"{path}: missing or damaged; build the index again. {error}") from error
        index = cls(stored.d, **options)
        index._index = stored
        return index
