"""Search with faiss: a graph of neighbours, an inverted file, or any other index that faiss builds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from ..runtime.errors import SettingError, require_extra
from .exact import ExactIndex

#: Least embeddings of a cell, which faiss's k-means asks for.
_CELL = 39
#: A walk over a graph may reach none of a few embeddings that a filter selects, so as many as these are all compared.
#: An index that takes no filter is asked for as many more as a filter leaves out, at most these.
_FEW = 20_000
#: What faiss gives as a position where it finds fewer embeddings than were asked for.
NOT_FOUND = -1


@contextmanager
def _explained(message: str) -> Iterator[None]:
    """Raise faiss's errors as a `ValueError` that begins with a message."""
    try:
        yield
    except RuntimeError as error:
        raise SettingError(f"{message} ({str(error).rpartition('.cpp:')[2]})") from error


class FaissIndex:
    """Search by inner product with faiss.

    Args:
        dim (`int`): Embedding size.
        backend (`str`): A description for faiss's `index_factory`, such as `"IVF4096,SQ8"`; `"hnsw"` for `"HNSW32"`,
            a graph with 32 neighbours; or `"ivf"` for an inverted file of 4 sqrt(n) cells. What has to be trained is
            trained on the embeddings that the index holds when it is first searched or saved.

    Raises:
        ValueError: If faiss does not know the description.
        ImportError: If faiss is not installed.
    """

    FILE = "index.faiss"

    def __init__(self, dim: int, backend: str) -> None:
        self.dim = dim
        self.backend = backend
        self._parameters = ""
        self._index = self._create(0)
        self._waiting: list[ndarray] = []  # embeddings that come before the training
        self._mapped: Path | None = None

    @property
    def _faiss(self) -> Any:
        """The package, which an index that is sent to another process cannot hold."""
        return require_extra("faiss", "faiss", f"the backend {self.backend!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Read the lists that are still on the disk, which a later save of the index removes."""
        if self._mapped is not None:
            self._complete()
        return self.__dict__

    def _create(self, count: int) -> Any:
        """Return an empty index, whose number of cells may depend on the number of embeddings."""
        cells = max(1, min(round(4 * count**0.5), count // _CELL))
        description = {"hnsw": "HNSW32", "ivf": f"IVF{cells},Flat"}.get(self.backend, self.backend)
        with _explained(
            f"backend must be exact, hnsw, ivf or a description for faiss's index_factory, got {self.backend!r}"
        ):
            index = self._faiss.index_factory(self.dim, description, self._faiss.METRIC_INNER_PRODUCT)
        if isinstance(index, self._faiss.IndexIDMap):
            raise SettingError(f"the backend {self.backend!r} has numbers of its own for embeddings: leave out IDMap")
        if isinstance(index, self._faiss.IndexHNSW):
            index.hnsw.efConstruction = 80
            index.hnsw.efSearch = 128
        inverted = self._faiss.try_extract_index_ivf(index)  # also one behind a PCA
        if inverted is not None:
            inverted.nprobe = max(1, inverted.nlist // 10)
            inverted.cp.min_points_per_centroid = 1  # otherwise faiss warns of few embeddings on standard error
        return index

    def set_parameters(self, parameters: str) -> None:
        """Set parameters in faiss's words, such as `"efSearch=256"` or `"nprobe=20"`.

        By default a graph is built with `efConstruction=80` and searched with `efSearch=128`, and a tenth of the cells
        is probed.

        Args:
            parameters (`str`): The parameters, separated by commas.

        Raises:
            ValueError: If the index has no such parameter.
        """
        self._parameters = parameters
        with _explained(f"faiss's index {self.backend!r} takes no parameters {parameters!r}"):
            self._faiss.ParameterSpace().set_index_parameters(self._index, parameters)

    def __len__(self) -> int:
        return int(self._index.ntotal) + sum(map(len, self._waiting))

    def add(self, vectors: ndarray) -> None:
        """Append a copy of embeddings of shape `(n, dim)`; the first one gets the position `len(self)`."""
        self._waiting.append(np.array(vectors, dtype=np.float32, order="C"))
        if self._index.is_trained:
            self._complete()

    def _complete(self) -> None:
        """Read the lists that are still on the disk, or train the index, and add the embeddings that wait."""
        if self._mapped is not None:  # faiss neither extends nor copies lists on the disk
            with _explained(f"{self._mapped} is gone, because the index was saved anew: load it again"):
                self._index = self._faiss.read_index(str(self._mapped))
            self._mapped = None
        elif self._waiting and not self._index.is_trained:
            index = self._create(len(self))
            vectors = np.concatenate(self._waiting)
            with _explained(f"{len(vectors)} embeddings cannot train the backend {self.backend!r}"):
                index.train(vectors)
            self._index = index
        self.set_parameters(self._parameters)
        with _explained(f"the backend {self.backend!r} cannot add embeddings"):
            for vectors in self._waiting:
                self._index.add(vectors)
        self._waiting = []

    def search(self, queries: ndarray, top_k: int, among: ndarray | None = None) -> tuple[ndarray, ndarray]:
        """Find embeddings with large inner products; arguments as in [`ExactIndex.search`].

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Scores and positions, perhaps of more than `top_k`. A position is
            `NOT_FOUND` where fewer were found. An inverted file probes all of its cells before it finds too few.

        Raises:
            SettingError: If the index takes no filter, and `among` leaves out more than 20,000 embeddings.
        """
        if self._waiting:
            self._complete()
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        found = self._search(queries, top_k, among)
        inverted = self._faiss.try_extract_index_ivf(self._index)
        if inverted is not None and ((found[1] != NOT_FOUND).sum(axis=1) < top_k).any():
            probed = inverted.nprobe
            inverted.nprobe = inverted.nlist
            found = self._search(queries, top_k, among)
            inverted.nprobe = probed
        return found

    def _search(self, queries: ndarray, top_k: int, among: ndarray | None) -> tuple[ndarray, ndarray]:
        """Search once, in the cells that are probed now."""
        faiss = self._faiss
        index = self._index
        if among is None:
            return index.search(queries, top_k)
        positions = np.flatnonzero(among)
        if isinstance(index, faiss.IndexHNSW) and len(positions) <= _FEW:
            vectors = index.reconstruct_batch(positions)
            scores, rows = faiss.knn(queries, vectors, top_k, metric=faiss.METRIC_INNER_PRODUCT)
            return scores, positions[rows]
        selector = faiss.IDSelectorBitmap(np.packbits(among, bitorder="little"))
        if isinstance(index, faiss.IndexIVF):
            settings = faiss.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
        elif isinstance(index, faiss.IndexHNSW):
            settings = faiss.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
        elif isinstance(index, faiss.IndexFlat):
            settings = faiss.SearchParameters(sel=selector)
        else:
            left_out = len(among) - len(positions)
            if left_out > _FEW:
                raise SettingError(f"the backend {self.backend!r} takes no filter: use exact, hnsw or ivf")
            scores, rows = index.search(queries, top_k + left_out)
            return np.where(among[rows], scores, -np.inf), np.where(among[rows], rows, NOT_FOUND)
        return index.search(queries, top_k, params=settings)

    def save(self, folder: Path) -> None:
        """Write faiss's own file."""
        self._complete()
        self._faiss.write_index(self._index, str(folder / self.FILE))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, and leave the lists of an inverted file on the disk."""
        self._mapped = folder / self.FILE
        self._index = self._faiss.read_index(str(self._mapped), self._faiss.IO_FLAG_MMAP)


def new_index(dim: int, backend: str, similarity: str) -> ExactIndex | FaissIndex:
    """Make an empty index.

    Args:
        dim (`int`): Embedding size.
        backend (`str`): `"exact"`, or what [`FaissIndex`] takes.
        similarity (`str`): As in [`similarity_matrix`].

    Returns:
        `ExactIndex` or `FaissIndex`: The index.

    Raises:
        SettingError: If faiss does not know the backend, or is to rank by a distance.
    """
    if backend == "exact":
        return ExactIndex(dim, similarity)
    if similarity not in ("cosine", "dot"):
        raise SettingError(f"the backend {backend!r} cannot rank by the model's {similarity} similarity: use 'exact'")
    return FaissIndex(dim, backend)
