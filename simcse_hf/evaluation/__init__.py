"""Evaluation of sentence vectors: STS, transfer tasks, geometry, MTEB, and comparison, with the protocol explicit.

Needs nothing of a model but `encode(list[str]) -> (n, dim)`.
"""

from .geometry import alignment, isotropy, singular_spectrum, uniformity
from .metrics import SimilarityCorrelation, cosine_similarity_pairs, pearson, spearman
from .pairs import ScoredPairs, read_scored_pairs
from .run import Evaluation, Protocol, evaluate_sts, evaluate_tasks, evaluate_transfer

__all__ = [
    "Evaluation",
    "Protocol",
    "ScoredPairs",
    "SimilarityCorrelation",
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
