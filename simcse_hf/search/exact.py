"""Exact search by matrix products in PyTorch, one chunk of the index at a time."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..ops.finite import check_finite
from .interface import VectorIndex

_FILE = "vectors.npy"
# 64 queries times 16,384 embeddings are 4 MB of scores, which stay in the processor's cache.
_CHUNK = 2**14
_QUERIES = 64
_GRID = 2.0**25


class ExactIndex(VectorIndex):
    """Compare each query with every embedding, in float32.

    A loaded index is mapped from its file, so it can be larger than the memory.

    Args:
        dim (`int`): Embedding size.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`): Where the embeddings are kept and compared.
    """

    def __init__(self, dim: int, device: str | torch.device = "cpu") -> None:
        self.dim = dim
        self.device = torch.device(device)
        self._parts: list[torch.Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, vectors: np.ndarray) -> None:
        """Append a copy of the embeddings."""
        self._parts.append(torch.tensor(vectors, dtype=torch.float32, device=self.device))
        # Many small additions: a part is joined with its neighbour of the same size, as in a binary counter, so that
        # each embedding is copied about log2(n) times.
        while len(self._parts) > 1 and len(self._parts[-2]) <= min(len(self._parts[-1]), _CHUNK):
            self._parts[-2:] = [torch.cat(self._parts[-2:])]

    @torch.inference_mode()
    def search(self, queries: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the true neighbours; equal scores come in the order of the index."""
        batches = torch.as_tensor(queries, dtype=torch.float32, device=self.device).split(_QUERIES)
        scores, positions = zip(*(self._search_batch(batch, top_k) for batch in batches), strict=True)
        return torch.cat(scores).numpy(), torch.cat(positions).numpy()

    def _search_batch(self, queries: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
        # How a matrix product rounds depends on the processor and on the place of a row in the matrix, so equal
        # embeddings may get float32 scores that differ in the last bits. The products therefore only select the
        # candidates of a chunk: all embeddings within the rounding error of the top_k-th score, however many there
        # are. Their exact scores rank them.
        tolerance = 2.0**-23 * (self.dim + 8)  # bounds the error of a float32 inner product of unit vectors
        rows = torch.empty(0, dtype=torch.long)
        positions, scores = rows, torch.empty(0)
        bound: torch.Tensor | None = None
        for start, chunk in self._chunks():
            products = queries @ chunk.T
            if bound is None:
                least = products.topk(min(top_k, len(chunk))).values[:, -1]
            else:
                least = bound
            new_rows, columns = (products >= (least - tolerance)[:, None]).nonzero(as_tuple=True)
            new_scores = _exact_scores(queries, chunk, new_rows, columns)
            # The new candidates follow in the index, so two stable sorts leave equal scores in its order.
            rows = torch.cat([rows, new_rows.cpu()])
            positions = torch.cat([positions, columns.cpu() + start])
            scores = torch.cat([scores, new_scores])
            order = scores.argsort(descending=True, stable=True)
            order = order[rows[order].argsort(stable=True)]
            counts = rows.bincount(minlength=len(queries))
            rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[rows[order]]
            order = order[rank < top_k]
            rows, positions, scores = rows[order], positions[order], scores[order]
            if len(rows) == len(queries) * top_k:
                bound = scores.view(len(queries), top_k)[:, -1].to(self.device)
        return scores.view(len(queries), -1), positions.view(len(queries), -1)

    def _chunks(self) -> Iterator[tuple[int, torch.Tensor]]:
        start = 0
        for part in self._parts:
            for chunk in part.split(_CHUNK):
                yield start, chunk
                start += len(chunk)

    def save(self, folder: Path) -> None:
        """Write the embeddings as one npy file."""
        write_vectors(folder / _FILE, (part.cpu().numpy() for part in self._parts), len(self), self.dim)

    @classmethod
    def load(cls, folder: Path, options: dict[str, Any]) -> "ExactIndex":
        """Map the embeddings from their file."""
        vectors = read_vectors(folder / _FILE)
        index = cls(vectors.shape[1], **options)
        index._parts = [torch.from_numpy(vectors).to(index.device)]
        return index


def _exact_scores(
    queries: torch.Tensor, chunk: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    """Return the inner products of pairs, the same for equal pairs on every processor.

    The values are rounded to multiples of 2^-25 first. Their products are multiples of 2^-50, and a sum of such
    products below 8 fits into the 53 bits of a float64, so no addition rounds and the order of the sum is irrelevant.
    """
    parts = [torch.empty(0)]
    for some_rows, some_columns in zip(rows.split(_CHUNK), columns.split(_CHUNK), strict=True):
        left, right = ((x.cpu().double() * _GRID).round() / _GRID for x in (queries[some_rows], chunk[some_columns]))
        parts.append((left * right).sum(dim=1).float())
    return torch.cat(parts)


def write_vectors(path: Path, parts: Iterable[np.ndarray], count: int, dim: int) -> None:
    """Write `count` embeddings to an npy file part by part; concatenating them first would double the memory."""
    with open(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (count, dim)})
        for part in parts:
            np.ascontiguousarray(part, dtype="<f4").tofile(stream)


def read_vectors(path: Path) -> np.ndarray:
    """Map an npy file of embeddings into memory; changes to the array never reach the file.

    Args:
        path (`Path`): The file.

    Returns:
        `np.ndarray`: Embeddings of shape `(count, dim)`.

    Raises:
        ValueError: If the file is missing or damaged, or holds anything but finite float32 embeddings.
    """
    try:
        vectors = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}); build the index again.") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(
            f"{path}: holds {vectors.dtype} values of shape {vectors.shape}, not float32 embeddings; "
            "build the index again."
        )
    for start in range(0, len(vectors), _CHUNK):
        check_finite(vectors[start : start + _CHUNK], f"{path}: row {{}}", first=start)
    return vectors
