"""Search in an inverted file of compressed embeddings whose lists stay on the disk, for up to billions of them."""

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .faiss_index import check_number, id_selector, import_faiss
from .interface import Selection, VectorIndex

_INDEX, _LISTS = "index.faiss", "lists.ivfdata"
_CODES = re.compile(r"sq8|pq([1-9]\d*)")
#: Embeddings of a block, which is in memory before it is written: 72 MB of codes at 64 bytes.
BLOCK = 2**20
#: From so many cells on, their centres are found by a graph; before, all are compared.
_GRAPH_CELLS = 2**15
#: Embeddings of a cell that k-means learns from: enough for a good centre, and faiss asks for 39 at least.
TRAINING_VECTORS = 64
_LEAST_TRAINING_VECTORS = 39
_PROBES = 64


def default_cells(count: int) -> int:
    """Return the number of cells for `count` embeddings: 4 sqrt(n), as for the backend `ivf`."""
    return max(1, min(round(4 * count**0.5), count // _LEAST_TRAINING_VECTORS))


@contextmanager
def _silent() -> Iterator[None]:
    """Discard what faiss's C++ code prints on standard output, where a command may be writing JSON."""
    libc = ctypes.CDLL(None)
    output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    libc.fflush(None)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(output, 1)
        os.close(output)
        os.close(nowhere)


class DiskIndex(VectorIndex):
    """Search the nearest cells of an inverted file with codes of a few bytes per embedding (Jégou et al., 2011).

    Only the centres of the cells are in memory. Embeddings are added to a block in memory; a full block is written to
    a temporary folder, and [`DiskIndex.save`] merges the blocks into one file of lists, which a search reads in place.

    Args:
        dim (`int`): Embedding size.
        codes (`str`, *optional*, defaults to `"sq8"`): `"sq8"` keeps a byte per dimension, and `"pq64"` 64 bytes per
            embedding (or any other number that divides `dim`).
        cells (`int`, *optional*): Number of cells. The default is 4 sqrt(n), where n counts the `training` embeddings.
        probes (`int`, *optional*, defaults to `64`): Number of cells that a query looks into.
        training (`np.ndarray`, *optional*): A sample of the embeddings, of shape `(n, dim)`, from which cells and
            codes are learnt. It should come from all of them (see [`inference.shards.sample_shards`]). The default is
            the first block, which is biased if the embeddings have an order.

    Raises:
        ValueError: If `codes` is unknown or does not fit `dim`, or a number is not an integer above 0 of 32 bits.
        ImportError: If faiss is not installed.
    """

    def __init__(
        self,
        dim: int,
        codes: str = "sq8",
        *,
        cells: int | None = None,
        probes: int | None = None,
        training: np.ndarray | None = None,
    ) -> None:
        import_faiss()
        parts = _CODES.fullmatch(codes)
        if parts is None or dim % int(parts[1] or 1):
            raise ValueError(
                f"codes must be sq8, or pq and the bytes of a code, which divide the {dim} dimensions; got {codes!r}"
            )
        for name, number in (("cells", cells), ("probes", probes)):
            if number is not None:
                check_number(name, number)
        self.dim, self.codes, self.cells, self.probes = dim, codes, cells, probes
        self._pending: list[np.ndarray] = []  # embeddings that came before the cells were learnt
        self._saved: Any = None  # the index that was loaded, from this path
        self._path: Path | None = None
        self._written: list[Any] = []  # the full blocks, mapped from their files
        self._block: Any = None
        self._folder: tempfile.TemporaryDirectory | None = None
        if training is not None:
            self._train(training)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that create an index like this one."""
        return {"codes": self.codes, "cells": self.cells, "probes": self.probes}

    def __len__(self) -> int:
        return sum(part.ntotal for part in self._parts()) + sum(map(len, self._pending))

    def _parts(self) -> list[Any]:
        parts = [self._saved, *self._written, self._block]
        return [part for part in parts if part is not None and part.ntotal]

    # --- building --------------------------------------------------------------------------------------------------

    def _train(self, sample: np.ndarray) -> None:
        faiss = import_faiss()
        cells = min(self.cells or default_cells(len(sample)), len(sample))
        quantizer = "_HNSW32" if cells >= _GRAPH_CELLS else ""
        description = f"IVF{cells}{quantizer},{self.codes.upper()}"
        self._block = faiss.index_factory(self.dim, description, faiss.METRIC_INNER_PRODUCT)
        clustering = self._block.cp
        clustering.spherical = True
        clustering.min_points_per_centroid = 1  # otherwise faiss prints a warning about few embeddings
        clustering.max_points_per_centroid = 4 * TRAINING_VECTORS
        self._block.train(np.ascontiguousarray(sample, dtype=np.float32))

    def add(self, vectors: np.ndarray, rows: pa.RecordBatch | None = None) -> None:
        """Append embeddings to the block in memory, and write it when it is full."""
        self._open_block()
        if self._block is None:
            self._pending.append(np.array(vectors, dtype=np.float32))
            if sum(map(len, self._pending)) >= BLOCK:
                self._use_pending()
            return
        for start in range(0, len(vectors), BLOCK):
            part = np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32)
            first = len(self)
            self._block.add_with_ids(part, np.arange(first, first + len(part)))
            if self._block.ntotal >= BLOCK:
                self._write_block()

    def _use_pending(self) -> None:
        """Learn the cells from the embeddings that were added so far, and add these."""
        if self._block is not None or not self._pending:
            return
        pending, self._pending = np.concatenate(self._pending), []
        self._train(pending)
        self.add(pending)

    def _write_block(self) -> None:
        faiss = import_faiss()
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="simcse-index-", ignore_cleanup_errors=True)
        path = str(Path(self._folder.name, f"block-{len(self._written):05d}.faiss"))
        faiss.write_index(self._block, path)
        self._block.reset()
        self._written.append(faiss.read_index(path, faiss.IO_FLAG_MMAP))

    def save(self, folder: Path) -> None:
        """Merge the lists of all blocks into one file, list by list, and write the centres beside it."""
        faiss = import_faiss()
        self._use_pending()
        self._open_block()
        merged = faiss.clone_index(self._block)
        merged.reset()
        lists = faiss.OnDiskInvertedLists(merged.nlist, merged.code_size, str(folder / _LISTS))
        sources = faiss.InvertedListsPtrVector()
        for part in self._parts():
            sources.push_back(part.invlists)
        with _silent():
            merged.ntotal = lists.merge_from_multiple(sources.data(), sources.size(), False)
        merged.replace_invlists(lists, True)
        lists.this.disown()
        lists.filename = _LISTS  # the file must not name a folder of this machine; `load` looks beside the index
        faiss.write_index(merged, str(folder / _INDEX))

    def _open_block(self) -> None:
        """Start a block of an index that was loaded: a copy of its centres with empty lists in memory."""
        if self._block is None and self._saved is not None:
            faiss = import_faiss()
            with _silent():
                self._block = faiss.read_index(str(self._path), faiss.IO_FLAG_ONDISK_SAME_DIR)
            lists = faiss.ArrayInvertedLists(self._block.nlist, self._block.code_size)
            self._block.replace_invlists(lists, True)
            lists.this.disown()
            self._block.ntotal = 0

    # --- searching -------------------------------------------------------------------------------------------------

    def search(self, queries: np.ndarray, top_k: int, among: Selection | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the best by their codes; scores are those of the compressed embeddings."""
        self._use_pending()
        faiss = import_faiss()
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        selector = None if among is None else id_selector(among, len(self))
        found = []
        for part in self._parts():
            settings = faiss.SearchParametersIVF(sel=selector, nprobe=min(self.probes or _PROBES, part.nlist))
            found.append(part.search(queries, top_k, params=settings))
        scores, positions = (np.concatenate(results, axis=1) for results in zip(*found, strict=True))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)

    @classmethod
    def load(cls, folder: Path, options: dict[str, Any]) -> "DiskIndex":
        """Read the centres and map the lists."""
        faiss, path = import_faiss(), folder / _INDEX
        try:
            with _silent():
                stored = faiss.read_index(str(path), faiss.IO_FLAG_ONDISK_SAME_DIR)
        except RuntimeError as error:
            raise ValueError(f"{path} or {_LISTS}: missing or damaged; build the index again. {error}") from error
        if not isinstance(stored, faiss.IndexIVF) or stored.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(
                f"{path}: holds another kind of index ({type(stored).__name__}) than an inverted file with inner "
                "products; build the index again."
            )
        index = cls(stored.d, **options)
        index._saved, index._path = stored, path
        return index

    def close(self) -> None:
        """Remove the temporary blocks."""
        self._saved, self._written, self._block = None, [], None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
