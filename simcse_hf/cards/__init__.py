"""Model cards: a template, and what a run and its evaluations measured."""

from .card import CARD, is_written_by_hand, name_repository, write_card
from .run import describe_run

__all__ = ["CARD", "describe_run", "is_written_by_hand", "name_repository", "write_card"]
