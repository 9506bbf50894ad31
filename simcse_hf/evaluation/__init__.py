"""Evaluate sentence embeddings on STS, transfer tasks, geometry and MTEB, and compare models, by a stated protocol.

A model needs only a method `encode(list[str])` that returns an array of shape `(n, dim)`.
"""

from typing import Any

from .geometry import alignment, isotropy, singular_spectrum, uniformity
from .metrics import cosine_similarity_pairs, pearson, spearman
from .pairs import ScoredPairs, read_scored_pairs
from .run import Evaluation, Protocol, evaluate_sts, evaluate_tasks, evaluate_transfer

__all__ = [
    "Evaluation",
    "Protocol",
    "ScoredPairs",
    "SimilarityCorrelation",  # noqa: F822 (__getattr__ imports it)
    "alignment",
    "cosine_similarity_pairs",
    "evaluate_sts",
    "evaluate_tasks",
    "evaluate_transfer",
    "isotropy",
    "pearson",
    "read_scored_pairs",
    "singular_spectrum",
    "spearman",
    "uniformity",
]


def __getattr__(name: str) -> Any:
    """Import `SimilarityCorrelation` when it is used, because the package `evaluate` takes a second to import."""
    if name == "SimilarityCorrelation":
        from .metric_module import SimilarityCorrelation

        return SimilarityCorrelation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
