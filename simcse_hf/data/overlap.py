"""How many words the two texts of a pair share."""

import re
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"\w+")


def word_f1(first: str, second: str) -> float:
    """Compute the F1 between the bags of words of two texts (lexical overlap in Gao et al. 2021, section 4).

    Words are runs of letters, digits and underscores, in lower case; the paper does not say how it finds words. For
    example, "a dog and a cat" and "a dog" share two of the seven words, so the F1 is 2 * 2 / 7.

    Args:
        first (`str`): A text.
        second (`str`): Another text.

    Returns:
        `float`: Twice the number of shared words, each as often as it occurs in both, over the number of all words; 0
        if neither text has a word.
    """
    bags = [Counter(_WORD.findall(text.lower())) for text in (first, second)]
    words = bags[0].total() + bags[1].total()
    return 2 * (bags[0] & bags[1]).total() / words if words else 0.0


def mean_word_f1(pairs: Iterable[tuple[str, str]]) -> float:
    """Average [`word_f1`] over pairs.

    Args:
        pairs (`Iterable[tuple[str, str]]`): At least one pair of texts.

    Returns:
        `float`: The mean, from 0 to 1.
    """
    values = [word_f1(first, second) for first, second in pairs]
    return sum(values) / len(values)
