"""Views of words between white space: crop, deletion (SimCSE, arXiv:2104.08821, Table 1)."""

import random
from abc import abstractmethod

from .base import TextView, check_rate, share


class _KeepsAShare(TextView):
    """What [`Crop`] and [`DeleteWords`] have in common: all but a share of the words stays, and at least one."""

    def __init__(self, rate: float = 0.1):
        self.rate = check_rate(rate)

    def __call__(self, text: str, rng: random.Random) -> str:
        words = text.split()
        if len(words) < 2:
            return text
        kept = max(1, len(words) - share(self.rate, len(words), rng))
        return " ".join(self._choose(words, kept, rng))

    @abstractmethod
    def _choose(self, words: list[str], kept: int, rng: random.Random) -> list[str]:
        """So many of the words, in their order."""


class Crop(_KeepsAShare):
    """Keeps a contiguous span of the words, at a random place ("Crop k%: keep 100-k% of the length").

    Args:
        rate: k, the share of the words that is cut off, on average over texts (see `share`); one word always stays.

    Raises:
        ValueError: a rate outside [0, 1).
    """

    def _choose(self, words: list[str], kept: int, rng: random.Random) -> list[str]:
        start = rng.randint(0, len(words) - kept)
        return words[start : start + kept]


class DeleteWords(_KeepsAShare):
    """Leaves out words, whichever they are ("word deletion k%: delete k% words").

    Args:
        rate: k, the share of the words that is left out, on average over texts (see `share`); one word always stays.

    Raises:
        ValueError: a rate outside [0, 1).
    """

    def _choose(self, words: list[str], kept: int, rng: random.Random) -> list[str]:
        return [words[place] for place in sorted(rng.sample(range(len(words)), kept))]


class DeleteOneWord(TextView):
    """Leaves out one word; a text of a single word stays as it is."""

    def __call__(self, text: str, rng: random.Random) -> str:
        words = text.split()
        if len(words) < 2:
            return text
        del words[rng.randrange(len(words))]
        return " ".join(words)
