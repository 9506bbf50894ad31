"""Exact search: products of the queries with one block of embeddings after the other."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray

from ..runtime.errors import SettingError
from ..runtime.similarity import similarity_matrix

# The products of 64 queries with 16,384 embeddings are 4 MB, which stay in the processor's caches.
_QUERIES = 64
_BLOCK = 2**14


def unit_length(embeddings: ndarray) -> ndarray:
    """Scale embeddings of shape `(n, dim)` to length 1; a zero embedding stays zero."""
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(norms > 0, norms, 1)


def comparable(embeddings: ndarray, similarity: str) -> ndarray:
    """Scale embeddings to length 1 if they are compared by their cosine."""
    return unit_length(embeddings) if similarity == "cosine" else embeddings


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Turn the bits of float32 numbers (int32) into whole numbers of the same order, or back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


class ExactIndex:
    """Compare each query with every embedding.

    A loaded index is mapped from its file, so it can be larger than the memory.

    Args:
        dim (`int`): Embedding size.
        similarity (`str`, *optional*, defaults to `"cosine"`): As in [`similarity_matrix`].
    """

    FILE = "vectors.npy"
    backend = "exact"

    def __init__(self, dim: int, similarity: str = "cosine") -> None:
        self.dim = dim
        self.similarity = similarity
        self._blocks: list[torch.Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def set_parameters(self, parameters: str) -> None:
        """Raise a `ValueError`: only a faiss index has parameters."""
        raise SettingError(f"the backend 'exact' has no parameters, got {parameters!r}")

    def add(self, vectors: ndarray) -> None:
        """Append a copy of embeddings of shape `(n, dim)`; the first one gets the position `len(self)`."""
        added = torch.tensor(vectors, dtype=torch.float32)
        if self._blocks:  # the last block may have room
            added = torch.cat([self._blocks.pop(), added])
        self._blocks.extend(added.split(_BLOCK))

    @torch.inference_mode()
    def search(self, queries: ndarray, top_k: int, among: ndarray | None = None) -> tuple[ndarray, ndarray]:
        """Find the most similar embeddings.

        Equal scores come in the order of the index.

        Args:
            queries (`np.ndarray`): Embeddings (float32) of shape `(queries, dim)`.
            top_k (`int`): Number of embeddings to find, at most as many as there are.
            among (`np.ndarray`, *optional*): Whether to look at each embedding (bool), of shape `(len(self),)`.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Scores (float32, descending) and positions (int64), each of shape
            `(queries, top_k)`.
        """
        found = []
        for batch in torch.tensor(queries, dtype=torch.float32).split(_QUERIES):
            best = torch.empty(len(batch), 0, dtype=torch.int64)
            for number, block in enumerate(self._blocks):
                positions = torch.arange(len(block)) + number * _BLOCK
                if among is not None:
                    chosen = torch.from_numpy(among)[positions]
                    if not chosen.all():
                        positions = positions[chosen]
                        block = block[chosen]
                # One whole number orders by score first, and then by position: topk alone may take any of equal ones.
                scores = similarity_matrix(batch, block, self.similarity)
                bits = scores.view(torch.int32)
                keys = (_ordered(bits).long() << 32) - positions
                best = torch.cat([best, keys], dim=1)
                best = best.topk(min(top_k, best.shape[1])).values
            found.append(best)
        keys = torch.cat(found)
        positions = -keys % 2**32
        bits = ((keys + positions) >> 32).int()
        scores = _ordered(bits).view(torch.float32)
        return scores.numpy(), positions.numpy()

    def pairs(self, threshold: float) -> Iterator[tuple[float, int, int]]:
        """Find all pairs of embeddings that are at least as similar as a threshold, block by block.

        Args:
            threshold (`float`): The lowest score.

        Yields:
            `tuple[float, int, int]`: The score of a pair and its two positions, the lower one first.
        """
        vectors = torch.cat(self._blocks)
        for start in range(0, len(self), _QUERIES):
            scores = similarity_matrix(vectors[start : start + _QUERIES], vectors[start:], self.similarity)
            # Row i and column j of the block are positions start + i and start + j; a pair counts where j > i. The
            # cosine of equal embeddings may be a rounding error below 1.
            for first, second in (scores >= threshold - 1e-6).triu(1).nonzero().tolist():
                yield scores[first, second].item(), start + first, start + second

    def save(self, folder: Path) -> None:
        """Write the embeddings block by block into one npy file."""
        with open(folder / self.FILE, "wb") as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(self), self.dim)}
            np.lib.format.write_array_header_1_0(stream, header)
            for block in self._blocks:
                block.numpy().tofile(stream)

    def load(self, folder: Path) -> None:
        """Map the embeddings from what `save` wrote; changes to them never reach the file."""
        vectors = np.lib.format.open_memmap(folder / self.FILE, mode="c")  # unlike np.load, it opens no pickles
        self._blocks = list(torch.from_numpy(vectors).split(_BLOCK))
