"""The interface of every index of embeddings, whichever library searches it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Selection:
    """The sentences among which a search looks.

    Args:
        filters (`dict[str, str]`): The values that their kept columns hold, for a database that has these columns.
        positions (`np.ndarray`): Their positions (int64, ascending), for every other index.
    """

    filters: dict[str, str]
    positions: np.ndarray


class VectorIndex(ABC):
    """Embeddings by position, and a search for those with the largest inner product with a query.

    [`SentenceIndex`] makes the folder that an index is saved in; the index writes its own files there.

    Attributes:
        dim (`int`): Embedding size.
    """

    dim: int

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of embeddings."""

    @abstractmethod
    def add(self, vectors: np.ndarray, rows: pa.RecordBatch | None = None) -> None:
        """Append embeddings.

        Args:
            vectors (`np.ndarray`): Float32 embeddings of unit length, of shape `(n, dim)`. The first one gets the
                position `len(self)`.
            rows (`pa.RecordBatch`, *optional*): Their sentences and kept columns (see [`SentenceRows`]), which a
                database stores with them. The other indexes leave them to [`SentenceIndex`].
        """

    @abstractmethod
    def search(self, queries: np.ndarray, top_k: int, among: Selection | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest embeddings of each query.

        Args:
            queries (`np.ndarray`): Float32 embeddings of unit length, of shape `(queries, dim)`.
            top_k (`int`): How many to find, at most `len(self)`, and at most as many as `among` holds.
            among (`Selection`, *optional*): Look only among these embeddings.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Inner products (float32, in descending order) and positions (int64), both
            of shape `(queries, top_k)`. A position is -1 where an approximate index found fewer.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the index into an existing folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, options: dict[str, Any]) -> "VectorIndex":
        """Read what `save` wrote.

        Args:
            folder (`Path`): The folder.
            options (`dict[str, Any]`): What `options` returned when the index was saved.

        Returns:
            `VectorIndex`: The index.

        Raises:
            ValueError: If a file is missing or damaged.
        """

    def check_stored(self, first: int, rows: pa.RecordBatch) -> None:
        """Compare rows with those that an interrupted run has stored; only indexes that can resume store any.

        Args:
            first (`int`): The position of the first row.
            rows (`pa.RecordBatch`): The rows, all of which are below `len(self)`.

        Raises:
            ValueError: If a sentence or a kept column differs.
        """
        raise NotImplementedError

    def keep_first(self, count: int) -> None:  # noqa: B027, most indexes are saved together with their sentences
        """Ignore embeddings after the first `count`, which an interrupted addition has left on a server.

        Args:
            count (`int`): The number of sentences of the saved index.
        """

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments, apart from `dim`, that create an index like this one."""
        return {}

    def close(self) -> None:  # noqa: B027, most indices hold nothing outside of the process
        """Release what the index holds outside of this process's memory."""
