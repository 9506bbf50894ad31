"""Search: an index of sentences and their embeddings, with PyTorch, faiss, Qdrant or PostgreSQL as the backend."""

from .backends import BACKENDS
from .folder import describe, hold_folder
from .interface import VectorIndex
from .sentences import SentenceIndex

__all__ = ["BACKENDS", "SentenceIndex", "VectorIndex", "describe", "hold_folder"]
