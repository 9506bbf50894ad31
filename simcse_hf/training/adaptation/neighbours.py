"""Show what an adaptation changed: the nearest neighbours of a few texts before and after."""

from collections.abc import Sequence
from typing import Any

from ...inference.simcse import SimCSE

QUERIES, POOL, NEIGHBOURS = 5, 2000, 3


def find_neighbours(before: SimCSE, after: SimCSE | None, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Find the texts of a corpus that are nearest to its first ones, by two models.

    Args:
        before (`SimCSE`): The start model.
        after (`SimCSE`, *optional*): The chosen model; `None` if that is the start model.
        texts (`Sequence[str]`): The corpus, in random order.

    Returns:
        `list[dict[str, Any]]`: For each query, `query` and the lists `before` and `after` of its nearest texts.
    """
    pool = list(texts[:POOL])
    lists = [_nearest(model, pool) if model is not None else None for model in (before, after)]
    return [
        {"query": pool[i], "before": (lists[0] or [])[i], "after": lists[1][i] if lists[1] is not None else None}
        for i in range(min(QUERIES, len(pool)))
    ]


def _nearest(model: SimCSE, pool: list[str]) -> list[list[str]]:
    embeddings = model.encode(pool)
    cosines = embeddings[:QUERIES] @ embeddings.T
    cosines.fill_diagonal_(-2)  # a text is not its own neighbour
    return [[pool[j] for j in row] for row in cosines.topk(min(NEIGHBOURS, len(pool) - 1)).indices.tolist()]
