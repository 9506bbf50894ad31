"""Model cards: a template, and what a run and its evaluations measured."""

from .card import CARD, is_written_by_hand, name_repository, write_card

__all__ = ["CARD", "is_written_by_hand", "name_repository", "write_card"]
