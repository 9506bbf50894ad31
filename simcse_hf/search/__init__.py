"""Search: an index of sentences and their embeddings, with PyTorch, faiss or Qdrant as the backend."""

from .folder import describe, hold_folder
from .interface import VectorIndex
from .sentences import BACKENDS, SentenceIndex

__all__ = ["BACKENDS", "SentenceIndex", "VectorIndex", "describe", "hold_folder"]
