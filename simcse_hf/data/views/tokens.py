"""Views of token ids: shuffled (Barlow Twins and VICReg for text) and repeated (ESimCSE)."""

import random

from .base import TokenView, check_rate, share


class Shuffle(TokenView):
    """Selects a fraction of the tokens and applies a random permutation to them.

    As in the study of Barlow Twins and VICReg for sentence embeddings, section 3 ("Shuffling"), which tries rates from
    0.05 to 0.5 (its Table 1). Any permutation is as likely as any other, the one that changes nothing too.

    Args:
        rate: the share of the tokens that is permuted, on average over texts (see `share`).

    Raises:
        ValueError: a rate outside [0, 1).
    """

    def __init__(self, rate: float = 0.3):
        self.rate = check_rate(rate)

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        places = rng.sample(range(len(ids)), share(self.rate, len(ids), rng))
        shuffled = list(ids)
        for place, source in zip(sorted(places), places, strict=True):  # a sample comes in random order
            shuffled[place] = ids[source]
        return shuffled


class RepeatTokens(TokenView):
    """Word repetition (ESimCSE, arXiv:2109.04380): some tokens come twice.

    With N tokens, their number is drawn from 0 to max(2, int(rate * N)), both included, and that many places are drawn
    without return. The paper repeats subword tokens, and so does this view, in spite of the name it goes by.

    A text is first cut to `max_seq_length` and then repeated beyond it, as in the authors' code. Cutting afterwards
    would take the end of a long sentence, and would leave its view at exactly the anchor's length, which is the cue
    that the method removes.

    Args:
        rate: the most that is repeated, as a share of the tokens; the paper's best is 0.32.

    Raises:
        ValueError: a rate outside [0, 1).
    """

    def __init__(self, rate: float = 0.32):
        self.rate = check_rate(rate)

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        number = rng.randint(0, self._most_repeated(len(ids)))
        twice = set(rng.sample(range(len(ids)), min(number, len(ids))))
        return [token for place, token in enumerate(ids) for token in [token] * (1 + (place in twice))]

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length + min(length, self._most_repeated(length))

    def _most_repeated(self, length: int) -> int:
        return max(2, int(self.rate * length))
