"""What every index of vectors does, whichever library does it."""

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np


class VectorIndex(ABC):
    """Vectors by position, and the nearest of them to a query by inner product.

    The folder it is saved in is [`~index.sentences.SentenceIndex`]'s; an index writes files of its own there.

    Attributes:
        dim: dimensions of a vector.
    """

    dim: int

    @abstractmethod
    def __len__(self) -> int:
        """The number of vectors."""

    @abstractmethod
    def add(self, vectors: np.ndarray) -> None:
        """Appends (n, dim) float32 vectors of unit length; the first gets the position `len(self)`."""

    @abstractmethod
    def search(self, queries: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best vectors for each query.

        Args:
            queries: (q, dim) float32.
            top_k: how many, at most `len(self)`.

        Returns:
            Inner products, (q, top_k) float32 in descending order, and positions, (q, top_k) int64; -1 where an
            approximate index found fewer.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the index into an existing folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, options: dict) -> "VectorIndex":
        """Reads what `save` wrote.

        Args:
            folder: where.
            options: what `options` returned when it was saved.

        Raises:
            ValueError: a file is missing or damaged.
        """

    def options(self) -> dict:
        """The keyword arguments, apart from `dim`, that make an index like this one; kept in the folder's JSON."""
        return {}

    def close(self) -> None:  # noqa: B027, most have nothing to give back
        """Gives back what the index holds outside of this process's memory."""
