"""Exact search by matrix products in PyTorch, a chunk of the index at a time."""

from pathlib import Path

import numpy as np
import torch

from .interface import VectorIndex
from .vector_file import read_vectors, write_vectors

_FILE = "vectors.npy"
_CHUNK = 2**14  # vectors and
_QUERIES = 64  # queries compared at a time: their scores, 4 MB, stay in the processor's cache


class ExactIndex(VectorIndex):
    """Every vector is compared, in float32. A loaded index stays on the disk and is mapped into memory.

    Args:
        dim: dimensions of a vector.
        device: where vectors are kept and compared.
    """

    def __init__(self, dim: int, device: str | torch.device = "cpu"):
        self.dim = dim
        self.device = torch.device(device)
        self._parts: list[torch.Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, vectors: np.ndarray) -> None:
        self._parts.append(torch.tensor(vectors, dtype=torch.float32, device=self.device))
        # Many small additions: parts are joined with others of their size, so that each vector moves log n times.
        while len(self._parts) > 1 and len(self._parts[-2]) <= min(len(self._parts[-1]), _CHUNK):
            self._parts[-2:] = [torch.cat(self._parts[-2:])]

    @torch.inference_mode()
    def search(self, queries: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        asked = torch.as_tensor(queries, dtype=torch.float32, device=self.device)
        found = [self._search(some, top_k) for some in asked.split(_QUERIES)]
        scores, positions = (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))
        return scores, positions

    def _search(self, queries: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.empty(len(queries), 0, device=self.device)
        positions = torch.empty(len(queries), 0, dtype=torch.long, device=self.device)
        start = 0
        for part in self._parts:
            for chunk in part.split(_CHUNK):
                best, where = (queries @ chunk.T).topk(min(top_k, len(chunk)), sorted=False)
                scores = torch.cat([scores, best], dim=1)
                positions = torch.cat([positions, where + start], dim=1)
                start += len(chunk)
        # Equal scores in the order of the index: sorted by position, then stably by score.
        positions, order = positions.sort(dim=1)
        scores, order = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
        return scores[:, :top_k], positions.gather(1, order)[:, :top_k]

    def save(self, folder: Path) -> None:
        write_vectors(folder / _FILE, (part.cpu().numpy() for part in self._parts), len(self), self.dim)

    @classmethod
    def load(cls, folder: Path, options: dict) -> "ExactIndex":
        vectors = read_vectors(folder / _FILE)
        index = cls(vectors.shape[1], **options)
        index._parts = [torch.from_numpy(vectors).to(index.device)]
        return index
