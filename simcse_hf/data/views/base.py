"""What a view is: a text, or its token ids, changed at random so that it should mean the same."""

import random
from abc import ABC, abstractmethod


class TextView(ABC):
    """A view of a text, made before it is tokenised."""

    @abstractmethod
    def __call__(self, text: str, rng: random.Random) -> str:
        """Change a text.

        Args:
            text (`str`): The text.
            rng (`random.Random`): The only source of randomness.

        Returns:
            `str`: The changed text, which is never empty if `text` holds a word.
        """


class TokenView(ABC):
    """A view of the token ids of a text, without its special tokens."""

    @abstractmethod
    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Change token ids.

        Args:
            ids (`list[int]`): The token ids.
            rng (`random.Random`): The only source of randomness.

        Returns:
            `list[int]`: The changed ids, which are never empty if `ids` is not.
        """

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length


class Unchanged(TextView):
    """Leave the text as it is, because the view is made elsewhere: by dropout, a masked-LM, or pairs of a file."""

    def __call__(self, text: str, rng: random.Random) -> str:
        """Change a text; see [`TextView`]."""
        return text


def check_rate(rate: float) -> float:
    """Check that a rate is a fraction.

    Args:
        rate (`float`): The rate.

    Returns:
        `float`: The rate.

    Raises:
        ValueError: If it is outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"view_rate must be at least 0 and below 1, got {rate}.")
    return rate


def draw_count(rate: float, total: int, rng: random.Random) -> int:
    """Draw how many of `total` items a rate means, so that the mean is exactly `rate * total`.

    The fraction is the chance of one item more. Rounded down, 10% of a sentence of nine words would always be none.

    Args:
        rate (`float`): The rate.
        total (`int`): The number of items.
        rng (`random.Random`): The source of randomness.

    Returns:
        `int`: `rate * total`, rounded down or up.
    """
    exact = rate * total
    return int(exact) + (rng.random() < exact - int(exact))
