"""The backends of an index by name, and the options of each."""

from typing import Any

from .disk_index import DiskIndex
from .exact import ExactIndex
from .faiss_index import FaissIndex
from .interface import VectorIndex
from .pgvector_index import PgvectorIndex
from .qdrant_index import QdrantIndex

#: The options of each backend.
BACKENDS = {
    "exact": ("device",),
    "flat": (),
    "ivf": ("cells", "probes"),
    "hnsw": ("neighbors", "ef_construction", "ef_search"),
    "ivf_disk": ("codes", "cells", "probes", "training"),
    "qdrant": ("url", "collection", "precision"),
    "pgvector": ("url", "collection", "precision", "neighbors", "ef_construction", "ef_search", "resume"),
}
CLASSES: dict[str, type[VectorIndex]] = {
    "exact": ExactIndex,
    **dict.fromkeys(("flat", "ivf", "hnsw"), FaissIndex),
    "ivf_disk": DiskIndex,
    "qdrant": QdrantIndex,
    "pgvector": PgvectorIndex,
}


def check_options(backend: str, options: dict[str, Any]) -> None:
    """Check the name of a backend and the names of its options.

    Args:
        backend (`str`): One of `BACKENDS`.
        options (`dict[str, Any]`): Its options.

    Raises:
        ValueError: If the backend is unknown or has no such option.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if unknown := options.keys() - set(BACKENDS[backend]):
        known = ", ".join(BACKENDS[backend]) or "none"
        raise ValueError(f"backend {backend!r} has no option {', '.join(sorted(unknown))}; its options: {known}")


def create(backend: str, dim: int, options: dict[str, Any]) -> VectorIndex:
    """Create an empty index, or with the option `resume` open one that an interrupted build has left.

    Args:
        backend (`str`): One of `BACKENDS`.
        dim (`int`): Embedding size.
        options (`dict[str, Any]`): Options of the backend that `check_options` accepts.

    Returns:
        `VectorIndex`: The index.
    """
    arguments = dict(options)
    if CLASSES[backend] is FaissIndex:
        arguments["kind"] = backend
    kind: Any = CLASSES[backend]
    index: VectorIndex = kind(dim, **arguments)
    return index
