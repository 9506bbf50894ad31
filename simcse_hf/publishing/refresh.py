"""Write a card again when something that it describes has changed."""

from pathlib import Path

from transformers.utils import logging

from ..evaluation.report import Evaluation
from .card import CARD, is_written_by_hand, write_card

logger = logging.get_logger(__name__)


def refresh_card(evaluation: Evaluation) -> None:
    """Write the card of a model again after `evaluate` has saved a threshold, if this package wrote the card.

    Args:
        evaluation (`Evaluation`): The evaluation, which says where the threshold was saved.
    """
    if evaluation.threshold_file is None:
        return
    card = Path(evaluation.threshold_file).with_name(CARD)
    if not card.exists():
        return
    if is_written_by_hand(card):
        logger.warning(f"the threshold is not written into {card}, which this package did not write")
    else:
        write_card(card.parent)
