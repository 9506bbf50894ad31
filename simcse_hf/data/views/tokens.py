"""Views of token ids: shuffled (Barlow Twins and VICReg for text) and repeated (ESimCSE)."""

import random

from .base import TokenView, check_rate, draw_count


class Shuffle(TokenView):
    """Select a fraction of the tokens and permute them at random.

    This is "Shuffling" in section 3 of the study of Barlow Twins and VICReg for sentence embeddings, which tries rates
    from 0.05 to 0.5 (its Table 1). All permutations are equally likely, also the one that changes nothing.

    Args:
        rate (`float`, *optional*, defaults to `0.3`): The fraction of the tokens that is permuted, on average over
            texts (see [`~data.views.base.draw_count`]).

    Raises:
        ValueError: If the rate is outside [0, 1).
    """

    def __init__(self, rate: float = 0.3):
        self.rate = check_rate(rate)

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Change token ids; see [`TokenView`]."""
        sources = rng.sample(range(len(ids)), draw_count(self.rate, len(ids), rng))
        shuffled = list(ids)
        for target, source in zip(sorted(sources), sources, strict=True):  # a sample is in random order
            shuffled[target] = ids[source]
        return shuffled


class RepeatTokens(TokenView):
    """Repeat some tokens: "word repetition" of ESimCSE (arXiv:2109.04380).

    Of N tokens, a number drawn from 0 to max(2, int(rate * N)), both included, is repeated. The paper repeats subword
    tokens, and so does this view, although its name says words.

    A text is first cut to `max_seq_length` and then repeated beyond it, as in the authors' code. Cutting afterwards
    would take the end of a long sentence, and would leave its view at exactly the anchor's length, which is the cue
    that the method removes.

    Args:
        rate (`float`, *optional*, defaults to `0.32`): The largest fraction of the tokens that is repeated. Defaults
            to the best of the paper.

    Raises:
        ValueError: If the rate is outside [0, 1).
    """

    def __init__(self, rate: float = 0.32):
        self.rate = check_rate(rate)

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Change token ids; see [`TokenView`]."""
        number = rng.randint(0, self._most_repeated(len(ids)))
        repeated = set(rng.sample(range(len(ids)), min(number, len(ids))))
        return [token for index, token in enumerate(ids) for token in [token] * (1 + (index in repeated))]

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length + min(length, self._most_repeated(length))

    def _most_repeated(self, length: int) -> int:
        return max(2, int(self.rate * length))
