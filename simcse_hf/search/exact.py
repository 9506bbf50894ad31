"""Exact search by matrix products in PyTorch, one chunk of the index at a time."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F

from ..ops.files import ARRAY_DAMAGE
from ..ops.finite import check_finite
from ..ops.processor import multiplies_bfloat16
from .interface import Selection, VectorIndex

_FILE = "vectors.npy"
# Scores that are computed together: 64 queries times 16,384 embeddings are 4 MB in float32, and 1,024 queries times
# 4,096 embeddings are 8 MB in bfloat16. Both stay in the processor's caches.
_CHUNK = 2**14
_QUERIES = 64
_MANY_QUERIES = 1024
#: Scores of neighbouring embeddings that are first judged by their largest.
_GROUP = 64
_GRID = 2.0**25
#: Most candidates of a query in a chunk, as a multiple of top_k, before bfloat16 gives way to float32.
_MOST_CANDIDATES = 2


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

    def add(self, vectors: np.ndarray, rows: pa.RecordBatch | None = None) -> None:
        """Append a copy of the embeddings."""
        self._parts.append(torch.tensor(vectors, dtype=torch.float32, device=self.device))
        # Many small additions: a part is joined with its neighbour of the same size, as in a binary counter, so that
        # each embedding is copied about log2(n) times.
        while len(self._parts) > 1 and len(self._parts[-2]) <= min(len(self._parts[-1]), _CHUNK):
            self._parts[-2:] = [torch.cat(self._parts[-2:])]

    @torch.inference_mode()
    def search(self, queries: np.ndarray, top_k: int, among: Selection | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the true neighbours; equal scores come in the order of the index."""
        chosen = None if among is None else torch.from_numpy(among.positions)
        batches = torch.as_tensor(queries, dtype=torch.float32, device=self.device).split(
            _MANY_QUERIES if len(queries) >= _MANY_QUERIES else _QUERIES
        )
        scores, positions = zip(*(self._search_batch(batch, top_k, chosen) for batch in batches), strict=True)
        return torch.cat(scores).numpy(), torch.cat(positions).numpy()

    def _search_batch(
        self, queries: torch.Tensor, top_k: int, chosen: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Find candidates by inexact products, and rank them by their exact scores.

        A matrix product in float32 or bfloat16 is off by at most some `error`. So the candidates are all embeddings
        whose product plus the error reaches a lower bound of the top_k-th score. Products are judged in groups of
        neighbouring embeddings: the top_k largest of the groups' maxima are scores of top_k embeddings, so the least
        of them, minus the error, is such a bound, and a group whose maximum misses the bound holds no candidate.

        Args:
            queries (`torch.Tensor`): Unit embeddings of shape `(queries, dim)`.
            top_k (`int`): How many neighbours to find.
            chosen (`torch.Tensor`, *optional*): Ascending positions to look at; the default is all.

        Returns:
            `tuple[torch.Tensor, torch.Tensor]`: Scores and positions of shape `(queries, top_k)`.
        """
        best = torch.full((len(queries), top_k), -torch.inf, device=self.device)  # lower bounds of top_k scores
        rows, positions, upper = [], [], []
        count = len(self) if chosen is None else len(chosen)
        group = _GROUP if count >= 4 * _GROUP * top_k else 1
        precisions = self._precisions(len(queries))
        for numbers, chunk in self._chunks(_CHUNK * _QUERIES // max(len(queries), _QUERIES), chosen):
            for dtype, error in tuple(precisions):
                products = queries.to(dtype) @ chunk.to(dtype).T
                groups = F.pad(products, (0, -len(chunk) % group), value=-torch.inf).unflatten(1, (-1, group))
                maxima = groups.amax(2).float()
                bounds = torch.cat([best, maxima - error], 1).topk(top_k).values
                least = bounds[:, -1] - error
                near_rows, near = (maxima >= least[:, None]).nonzero(as_tuple=True)
                products = groups[near_rows, near].float()
                found, offsets = ((products >= least[near_rows, None]) & (products > -torch.inf)).nonzero(
                    as_tuple=True
                )
                if len(found) <= _MOST_CANDIDATES * top_k * len(queries):
                    break
                if len(precisions) > 1:  # the embeddings are so alike that the next chunks would fail, too
                    precisions.pop(0)
            best = bounds
            rows.append(near_rows[found])
            positions.append(numbers[near[found] * group + offsets])
            upper.append(products[found, offsets] + error)
        is_near = torch.cat(upper) >= best[torch.cat(rows), -1]
        return self._ranked(queries, torch.cat(rows)[is_near], torch.cat(positions)[is_near], top_k)

    def _precisions(self, num_queries: int) -> list[tuple[torch.dtype, float]]:
        """Return the types to multiply unit vectors in, fastest first, each with a bound of the product's error."""
        # Float32: dim roundings by 2^-24, doubled. Bfloat16: each factor and the result are rounded by 2^-9.
        float32 = 2.0**-23 * (self.dim + 8)
        precisions = [(torch.float32, float32)]
        if num_queries >= _MANY_QUERIES and self.device.type == "cpu" and multiplies_bfloat16():
            precisions.insert(0, (torch.bfloat16, 2.0**-9 * 3.1 + float32))
        return precisions

    def _ranked(
        self, queries: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, top_k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score candidates exactly, and return the best of each query."""
        scores = self._exact_scores(queries, rows, positions)
        rows, positions = rows.cpu(), positions.cpu()
        # The candidates of a query are in the order of the index, so two stable sorts leave equal scores in it.
        order = scores.argsort(descending=True, stable=True)
        order = order[rows[order].argsort(stable=True)]
        counts = rows.bincount(minlength=len(queries))
        rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[rows[order]]
        order = order[rank < top_k]
        return scores[order].view(len(queries), -1), positions[order].view(len(queries), -1)

    def _exact_scores(self, queries: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the inner products of pairs, the same for equal pairs on every processor.

        The values are rounded to multiples of 2^-25 first. Their products are multiples of 2^-50, and a sum of such
        products below 8 fits into the 53 bits of a float64, so no addition rounds and the order of the sum is
        irrelevant.
        """
        left = (queries.cpu().double() * _GRID).round_()
        parts = [torch.empty(0)]
        for some_rows, some in zip(rows.cpu().split(_CHUNK), positions.split(_CHUNK), strict=True):
            right = (self._at(some).cpu().double() * _GRID).round_()
            parts.append((torch.linalg.vecdot(left[some_rows], right) / _GRID**2).float())
        return torch.cat(parts)

    def _at(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the embeddings at some positions."""
        if len(self._parts) == 1:
            return self._parts[0][positions]
        vectors = torch.empty(len(positions), self.dim, device=self.device)
        start = 0
        for part in self._parts:
            inside = (positions >= start) & (positions < start + len(part))
            vectors[inside] = part[positions[inside] - start]
            start += len(part)
        return vectors

    def _chunks(self, size: int, chosen: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the positions and the embeddings of one chunk after the other."""
        if chosen is not None:
            for numbers in chosen.split(size):
                yield numbers.to(self.device), self._at(numbers)
            return
        start = 0
        for part in self._parts:
            for chunk in part.split(size):
                yield torch.arange(start, start + len(chunk), device=self.device), chunk
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
        vectors = np.lib.format.open_memmap(path, mode="c")  # unlike np.load, it opens no archives and no pickles
    except ARRAY_DAMAGE as error:
        raise ValueError(f"{path}: missing or damaged ({error}); build the index again.") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(
            f"{path}: holds {vectors.dtype} values of shape {vectors.shape}, not float32 embeddings; "
            "build the index again."
        )
    for start in range(0, len(vectors), _CHUNK):
        check_finite(vectors[start : start + _CHUNK], f"{path}: row {{}}", first=start)
    return vectors
