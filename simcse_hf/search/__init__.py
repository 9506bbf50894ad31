"""Search: indexes of sentences that are built and searched, near-duplicates, and hard negatives that are mined."""

from ..indexes.description import describe
from ..indexes.sentences import Match, SentenceIndex
from .commands import search

__all__ = ["Match", "SentenceIndex", "describe", "search"]
