"""Search with faiss: exact, in an inverted file, or in an HNSW graph."""

from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .interface import Selection, VectorIndex

KINDS = ("flat", "ivf", "hnsw")
_FILE = "index.faiss"
#: A walk over a graph may reach none of a few embeddings that a filter selects, so as many as these are all compared.
_FEW = 20_000
_TRAINING_VECTORS = 256  # for each cell; faiss's k-means uses no more


def import_faiss() -> Any:
    """Import faiss, or say which extra brings it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("this index needs faiss: run pip install 'simcse-hf[faiss]'") from error
    return faiss


def check_number(name: str, value: object) -> None:
    """Raise a `ValueError` that names an option whose value is not a number that faiss takes: 32 bits, above 0."""
    if not isinstance(value, Integral) or not 1 <= int(value) < 2**31:
        raise ValueError(f"{name} must be at least 1, and an integer of 32 bits, got {value!r:.80}")


def id_selector(among: Selection, count: int) -> Any:
    """Return faiss's filter for some of `count` embeddings: one bit for each."""
    bits = np.zeros(count, dtype=bool)
    bits[among.positions] = True
    return import_faiss().IDSelectorBitmap(np.packbits(bits, bitorder="little"))


def _compare(
    vectors: np.ndarray, queries: np.ndarray, top_k: int, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    scores, rows = import_faiss().knn(queries, vectors, top_k, metric=import_faiss().METRIC_INNER_PRODUCT)
    return scores, positions[rows]


class FaissIndex(VectorIndex):
    """Search by inner product with faiss.

    Args:
        dim (`int`): Embedding size.
        kind (`str`, *optional*, defaults to `"flat"`): `"flat"` compares every embedding, `"ivf"` those in the
            `probes` cells nearest to the query, and `"hnsw"` walks a graph of near neighbours (Malkov and Yashunin,
            2016).
        cells (`int`, *optional*): Number of cells of an inverted file. The default is 4 sqrt(n), fewer where a cell
            would have less than the 39 embeddings that faiss's k-means needs. The cells are computed when the index
            is first searched or saved, from a sample of the embeddings that it holds then; later ones are assigned
            to these cells.
        probes (`int`, *optional*): Number of cells that a query looks into. The default is a tenth of them.
        neighbors (`int`, *optional*, defaults to `32`): Edges of an embedding in the graph.
        ef_construction (`int`, *optional*, defaults to `80`): Candidates while the graph is built: more give a better
            graph and take longer.
        ef_search (`int`, *optional*, defaults to `128`): Candidates of a search: more find more of the true
            neighbours and take longer.

    Raises:
        ValueError: If `kind` is unknown, or a number is not an integer above 0 of 32 bits.
        ImportError: If faiss is not installed.
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
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        check_number("neighbors", neighbors)
        check_number("ef_construction", ef_construction)
        check_number("ef_search", ef_search)
        for name, number in (("cells", cells), ("probes", probes)):
            if number is not None:
                check_number(name, number)
        self.dim, self.kind = dim, kind
        self.cells, self.probes = cells, probes
        self.neighbors, self.ef_construction, self.ef_search = neighbors, ef_construction, ef_search
        self._pending: list[np.ndarray] = []  # embeddings of an inverted file whose cells are not computed yet
        faiss = import_faiss()
        self._index: Any = None
        if kind == "flat":
            self._index = faiss.IndexFlatIP(dim)
        elif kind == "hnsw":
            self._index = faiss.IndexHNSWFlat(dim, neighbors, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = ef_construction

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that create an index like this one."""
        if self.kind == "ivf":
            return {"kind": "ivf", "cells": self.cells, "probes": self.probes}
        if self.kind == "hnsw":
            names = ("kind", "neighbors", "ef_construction", "ef_search")
            return {name: getattr(self, name) for name in names}
        return {"kind": "flat"}

    def __len__(self) -> int:
        return self._index.ntotal if self._index is not None else sum(map(len, self._pending))

    def add(self, vectors: np.ndarray, rows: pa.RecordBatch | None = None) -> None:
        """Append embeddings; an inverted file collects them until its cells are computed."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if self._index is None:
            self._pending.append(vectors.copy())
        else:
            self._index.add(vectors)

    def _compute_cells(self) -> None:
        if self._index is not None:
            return
        faiss = import_faiss()
        count = len(self)
        cells = max(1, min(self.cells or min(round(4 * count**0.5), count // 39), count))
        sample = np.random.default_rng(0).permutation(count)[: cells * _TRAINING_VECTORS]
        ends = np.cumsum([0, *map(len, self._pending)])
        parts = np.searchsorted(ends, sample, side="right") - 1
        training = np.stack([self._pending[part][row - ends[part]] for part, row in zip(parts, sample, strict=True)])
        # faiss's default metric here is the L2 distance, so the inner product has to be named.
        self._index = faiss.IndexIVFFlat(faiss.IndexFlatIP(self.dim), self.dim, cells, faiss.METRIC_INNER_PRODUCT)
        self._index.cp.spherical = True
        self._index.cp.min_points_per_centroid = 1  # otherwise faiss prints a warning about few embeddings
        self._index.train(training)
        for vectors in self._pending:
            self._index.add(vectors)
        self._pending = []

    def search(self, queries: np.ndarray, top_k: int, among: Selection | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest embeddings; `"ivf"` and `"hnsw"` may miss some."""
        self._compute_cells()
        faiss, queries = import_faiss(), np.ascontiguousarray(queries, dtype=np.float32)
        if self.kind == "hnsw" and among is not None and len(among.positions) <= _FEW:
            return _compare(self._index.reconstruct_batch(among.positions), queries, top_k, among.positions)
        selector = None if among is None else id_selector(among, len(self))
        if self.kind == "ivf":
            probes = min(self.probes or max(1, self._index.nlist // 10), self._index.nlist)
            settings = faiss.SearchParametersIVF(sel=selector, nprobe=probes)
        elif self.kind == "hnsw":
            settings = faiss.SearchParametersHNSW(sel=selector, efSearch=max(self.ef_search, top_k))
        else:
            settings = faiss.SearchParameters(sel=selector)
        return self._index.search(queries, top_k, params=settings)

    def save(self, folder: Path) -> None:
        """Write faiss's own file."""
        self._compute_cells()
        import_faiss().write_index(self._index, str(folder / _FILE))

    @classmethod
    def load(cls, folder: Path, options: dict[str, Any]) -> "FaissIndex":
        """Read faiss's own file."""
        faiss, path = import_faiss(), folder / _FILE
        try:
            stored = faiss.read_index(str(path))
        except RuntimeError as error:
            raise ValueError(f"{path}: missing or damaged; build the index again. {error}") from error
        index = cls(stored.d, **options)
        classes = {"flat": faiss.IndexFlat, "ivf": faiss.IndexIVFFlat, "hnsw": faiss.IndexHNSWFlat}
        if not isinstance(stored, classes[index.kind]) or stored.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(
                f"{path}: holds another kind of index ({type(stored).__name__}) than {index.kind!r} with inner "
                "products; build the index again."
            )
        index._index = stored
        return index
