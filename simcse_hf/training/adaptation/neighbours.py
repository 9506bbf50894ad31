"""Show what an adaptation changed: the nearest neighbours of a few texts before and after."""

from collections.abc import Sequence
from typing import Any

from ...inference.simcse import SimCSE
from ...publishing.analysis.neighbours import nearest

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
    queries = range(min(QUERIES, len(pool)))
    return [[pool[j] for j in row] for row in nearest(model.encode(pool), queries, NEIGHBOURS)[1].tolist()]
