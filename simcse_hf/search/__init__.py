"""Search: an index of sentences and their embeddings, exact or with faiss, and hard negatives."""

from ..indexes.description import describe
from ..indexes.sentences import Match, SentenceIndex

__all__ = ["Match", "SentenceIndex", "describe"]
