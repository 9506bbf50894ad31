"""Search: an index of sentences and their embeddings, with PyTorch, faiss or Qdrant as the backend."""

from .interface import VectorIndex
from .sentences import BACKENDS, SentenceIndex, describe

__all__ = ["BACKENDS", "SentenceIndex", "VectorIndex", "describe"]
