"""Publishes a model: its card, the push to the hub, and exports to other formats."""

from .card import CARD, is_written_by_hand, name_repository, write_card

__all__ = ["CARD", "is_written_by_hand", "name_repository", "write_card"]
