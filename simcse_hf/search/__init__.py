"""Search: sentences, an index of their vectors, and who answers (PyTorch, faiss, Qdrant)."""

from .interface import VectorIndex
from .sentences import BACKENDS, SentenceIndex, describe

__all__ = ["BACKENDS", "SentenceIndex", "VectorIndex", "describe"]
