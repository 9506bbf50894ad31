"""Evaluate sentence embeddings on STS, transfer tasks, geometry and MTEB, and compare models, by a stated protocol.

A model needs only a method `encode(list[str])` that returns an array of shape `(n, dim)`.
"""

from pathlib import Path

from ..data.scored_pairs import ScoredPairs, read_scored_pairs
from .compare import Comparison, compare
from .metrics import alignment, cosine_similarity_pairs, isotropy, pearson, singular_spectrum, spearman, uniformity
from .protocol import Protocol
from .report import Evaluation
from .scoring import evaluate

__all__ = [
    "METRIC_MODULE",
    "Comparison",
    "Evaluation",
    "Protocol",
    "ScoredPairs",
    "alignment",
    "compare",
    "cosine_similarity_pairs",
    "evaluate",
    "isotropy",
    "pearson",
    "read_scored_pairs",
    "singular_spectrum",
    "spearman",
    "uniformity",
]

#: File of the STS metric, for `evaluate.load`.
METRIC_MODULE = str(Path(__file__).with_name("metric_module.py"))
