"""What a view is: a text, or its token ids, changed at random into another that should mean the same."""

import random
from abc import ABC, abstractmethod


class TextView(ABC):
    """A view of the text itself, made before it is tokenised."""

    @abstractmethod
    def __call__(self, text: str, rng: random.Random) -> str:
        """Another text; never an empty one where `text` holds a word. All that is random in it comes from `rng`."""


class TokenView(ABC):
    """A view of the token ids of a text, made without its special tokens."""

    @abstractmethod
    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Other ids; none only where `ids` holds none. All that is random in it comes from `rng`."""

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length


class Unchanged(TextView):
    """The text as it is: for views that are made elsewhere (dropout, a masked-LM on the device, pairs of a file)."""

    def __call__(self, text: str, rng: random.Random) -> str:
        return text


def check_rate(rate: float) -> float:
    """The rate itself.

    Raises:
        ValueError: it is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"view_rate must be at least 0 and below 1, got {rate}")
    return rate


def share(rate: float, total: int, rng: random.Random) -> int:
    """How many of `total` things a rate means: `rate * total` on average, its fraction being the chance of one more.

    Rounded down, 10 % of a sentence of nine words would always be no word at all.
    """
    exact = rate * total
    return int(exact) + (rng.random() < exact - int(exact))
