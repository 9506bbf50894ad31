"""Nearest neighbours of a few sentences by each model (SimCSE, Table 8)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

QUERIES, NEIGHBOURS = 5, 3
#: Sentences among which neighbours are searched; more would take longer and show little more.
POOL = 20_000


def nearest(embeddings: torch.Tensor, queries: Sequence[int], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the rows with the highest cosine to some of the rows, which are not their own neighbours.

    Args:
        embeddings (`torch.Tensor`): Embeddings of shape `(n, dim)`. They are normalised here.
        queries (`Sequence[int]`): The rows whose neighbours are searched.
        count (`int`): Number of neighbours of each, at most `n - 1`.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Cosines and rows, of shape `(len(queries), count)`, the nearest first.
    """
    embeddings = F.normalize(embeddings.float(), dim=1)
    cosines = embeddings[list(queries)] @ embeddings.T
    cosines[torch.arange(len(queries)), list(queries)] = -2
    found = cosines.topk(min(count, len(embeddings) - 1))
    return found.values, found.indices


def select_queries(texts: Sequence[str], count: int = QUERIES) -> list[int]:
    """Select rows at equal distances, so that texts from every part of a file are shown.

    Args:
        texts (`Sequence[str]`): The texts.
        count (`int`, *optional*, defaults to `5`): How many to select.

    Returns:
        `list[int]`: Rows in ascending order; all of them if there are not more.
    """
    number = min(count, len(texts))
    return [(2 * i + 1) * len(texts) // (2 * number) for i in range(number)]


def find_neighbours(embed: Callable[[list[str]], np.ndarray], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Find the neighbours of a few texts among all of them.

    Args:
        embed (`Callable[[list[str]], np.ndarray]`): Returns the embeddings of texts, of shape `(n, dim)`.
        texts (`Sequence[str]`): Distinct texts. Only the first `POOL` are used.

    Returns:
        `list[dict]`: For each selected text its `query`, and `neighbours`, a list of `text` and `cosine`. Empty if
        there are fewer than two texts.
    """
    pool = list(texts[:POOL])
    if len(pool) < 2:
        return []
    queries = select_queries(pool)
    cosines, rows = nearest(torch.from_numpy(embed(pool)), queries, NEIGHBOURS)
    return [
        {
            "query": pool[query],
            "neighbours": [{"text": pool[row], "cosine": cosine} for cosine, row in zip(*found, strict=True)],
        }
        for query, *found in zip(queries, cosines.tolist(), rows.tolist(), strict=True)
    ]
