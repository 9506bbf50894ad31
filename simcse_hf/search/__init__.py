"""Search: an index of sentences and their embeddings, exact or with faiss, and hard negatives."""

from .sentences import Match, SentenceIndex, describe

__all__ = ["Match", "SentenceIndex", "describe"]
