"""Views: a text or its token ids, changed at random. Each family of views has a file."""

from .base import TextView, TokenView
from .masked_lm import MaskedLMView
from .names import DATASET_VIEWS, DOCUMENT_VIEWS, MASKED_LM_VIEWS, VIEWS, make_view, masked_lm_rate

__all__ = [
    "DATASET_VIEWS",
    "DOCUMENT_VIEWS",
    "MASKED_LM_VIEWS",
    "VIEWS",
    "MaskedLMView",
    "TextView",
    "TokenView",
    "make_view",
    "masked_lm_rate",
]
