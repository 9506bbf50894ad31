"""Exact search: products of the queries with one block of embeddings after the other."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

# The products of 64 queries with 16,384 embeddings are 4 MB, which stay in the processor's caches.
_QUERIES, _BLOCK = 64, 2**14


def unit_length(embeddings: np.ndarray) -> np.ndarray:
    """Scale embeddings of shape `(n, dim)` to length 1; a zero embedding stays zero."""
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(norms > 0, norms, 1)


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Turn the bits of float32 numbers (int32) into whole numbers of the same order, or back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


class ExactIndex:
    """Compare each query with every embedding.

    A loaded index is mapped from its file, so it can be larger than the memory.

    Args:
        dim (`int`): Embedding size.
    """

    FILE = "vectors.npy"

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._parts: list[torch.Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def set_parameters(self, parameters: str) -> None:
        """Raise a `ValueError`: only a faiss index has parameters."""
        raise ValueError(f"the backend 'exact' has no parameters, got {parameters!r}")

    def add(self, vectors: np.ndarray) -> None:
        """Append a copy of unit embeddings of shape `(n, dim)`; the first one gets the position `len(self)`."""
        part = torch.tensor(vectors, dtype=torch.float32)
        if self._parts and len(self._parts[-1]) < _BLOCK:  # so that many small additions become few blocks
            part = torch.cat([self._parts.pop(), part])
        self._parts.append(part)

    @torch.inference_mode()
    def search(
        self, queries: np.ndarray, top_k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the embeddings with the largest inner products.

        Equal scores come in the order of the index.

        Args:
            queries (`np.ndarray`): Unit embeddings (float32) of shape `(queries, dim)`.
            top_k (`int`): Number of embeddings to find, at most as many as there are.
            among (`np.ndarray`, *optional*): Whether to look at each embedding (bool), of shape `(len(self),)`.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Scores (float32, descending) and positions (int64), each of shape
            `(queries, top_k)`.
        """
        chosen = None if among is None else torch.from_numpy(among)
        found = []
        for batch in torch.tensor(queries, dtype=torch.float32).split(_QUERIES):
            best = torch.empty(len(batch), 0, dtype=torch.int64)
            for positions, block in self._blocks(chosen):
                # One whole number orders by score first, and then by position: topk alone may take any of equal ones.
                keys = (_ordered((batch @ block.T).view(torch.int32)).long() << 32) - positions
                best = torch.cat([best, keys.topk(min(top_k, len(positions))).values], 1)
                best = best.topk(min(top_k, best.shape[1])).values
            found.append(best)
        keys = torch.cat(found)
        positions = -keys % 2**32
        scores = _ordered(((keys + positions) >> 32).int()).view(torch.float32)
        return scores.numpy(), positions.numpy()

    def _blocks(self, chosen: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        start = 0
        for part in self._parts:
            for block in part.split(_BLOCK):
                positions = torch.arange(start, start + len(block))
                start += len(block)
                if chosen is not None:
                    positions, block = positions[chosen[positions]], block[chosen[positions]]
                if len(positions):
                    yield positions, block

    def save(self, folder: Path) -> None:
        """Write the embeddings part by part into one npy file."""
        with open(folder / self.FILE, "wb") as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(self), self.dim)}
            np.lib.format.write_array_header_1_0(stream, header)
            for part in self._parts:
                part.numpy().tofile(stream)

    @classmethod
    def load(cls, folder: Path) -> "ExactIndex":
        """Map the embeddings from what `save` wrote; changes to them never reach the file."""
        vectors = np.lib.format.open_memmap(folder / cls.FILE, mode="c")  # unlike np.load, it opens no pickles
        index = cls(vectors.shape[1])
        index._parts = [torch.from_numpy(vectors)]
        return index
