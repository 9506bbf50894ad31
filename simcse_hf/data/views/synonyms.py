"""Synonym replacement, and Easy Data Augmentation, of which it is one of four operations."""

import random
import re
from collections.abc import Callable, Sequence

from transformers.utils import logging

from .base import TextView, check_rate
from .wordnet import WordNetSynonyms
from .words import is_unspaced

logger = logging.get_logger(__name__)

Synonyms = Callable[[str], Sequence[str]]

_PUNCTUATION = re.compile(r"^(\W*)(.*?)(\W*)$", re.DOTALL)
#: Function words, which EDA does not replace and of which it inserts no synonyms.
FUNCTION_WORDS = frozenset(
    "a an the this that these those some any each every no not nor and or but if so as than then too very "
    "i me my mine we us our ours you your yours he him his she her hers it its they them their theirs "
    "who whom whose which what when where why how there here am is are was were be been being do does did doing done "
    "have has had having will would shall should can could may might must of in on at by for with from to into onto "
    "about over under up down out off between through during before after above below against again "
    "only own same such just once both few more most other all".split()
)


class SynonymReplacement(TextView):
    """Replace one word, drawn among those that have a synonym, by one of its synonyms.

    This is "synonym replacement" in Table 1 of SimCSE (arXiv:2104.08821), which uses nlpaug. nlpaug tags parts of
    speech first and skips determiners; here a word's synonyms are those of all its senses. Punctuation around the word
    and its capital stay. A text without synonyms stays as it is.

    Args:
        synonyms (`Callable`, *optional*): A function from a word to its synonyms. Defaults to WordNet, which is
            English.

    Raises:
        ValueError: If there is no WordNet, see [`WordNetSynonyms`].
    """

    def __init__(self, synonyms: Synonyms | None = None):
        self.synonyms = synonyms or WordNetSynonyms()

    def __call__(self, text: str, rng: random.Random) -> str:
        """Change a text; see [`TextView`]."""
        _warn_of_unspaced(text)
        words = text.split()
        replaced = replace_words(words, 1, self.synonyms, rng)
        return " ".join(replaced) if replaced != words else text


class EDA(TextView):
    """Change a text by Easy Data Augmentation (Wei and Zou 2019, arXiv:1901.11196): one of four random operations.

    With n = max(1, int(rate * words)), the operations are: replace n words by synonyms; insert n synonyms of words of
    the text at random places; swap two words, n times; delete each word with probability `rate`, but never all. The
    first two skip function words. One rate serves all four operations, as in section 3 of the study of Barlow Twins
    and VICReg for sentence embeddings, which tries 0.1 and 0.2. Words are separated by white space.

    Args:
        rate (`float`, *optional*, defaults to `0.1`): alpha in the paper, which recommends 0.1.
        synonyms (`Callable`, *optional*): A function from a word to its synonyms. Defaults to WordNet, which is
            English.

    Raises:
        ValueError: If the rate is outside [0, 1), or there is no WordNet, see [`WordNetSynonyms`].
    """

    def __init__(self, rate: float = 0.1, synonyms: Synonyms | None = None):
        self.rate = check_rate(rate)
        self.synonyms = synonyms or WordNetSynonyms()

    def __call__(self, text: str, rng: random.Random) -> str:
        """Change a text; see [`TextView`]."""
        _warn_of_unspaced(text)
        words = text.split()
        if not words:
            return text
        number = max(1, int(self.rate * len(words)))
        operation = rng.choice((self.replace, self.insert, self.swap, self.delete))
        return " ".join(operation(words, number, rng))

    def replace(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Replace `number` content words by synonyms."""
        return replace_words(words, number, self._of_content, rng)

    def insert(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Insert `number` synonyms of content words at random places."""
        longer = list(words)
        for _ in range(number):
            index = _first_with_synonyms(words, self._of_content, rng)
            if index is not None:
                synonym = rng.choice(self._of_content(bare(words[index])))
                longer.insert(rng.randint(0, len(longer)), synonym)
        return longer

    def swap(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Swap two random words, `number` times."""
        swapped = list(words)
        for _ in range(number if len(words) > 1 else 0):
            i, j = rng.sample(range(len(words)), 2)
            swapped[i], swapped[j] = swapped[j], swapped[i]
        return swapped

    def delete(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Delete each word with probability `rate`, but keep at least one."""
        return [word for word in words if rng.random() >= self.rate] or [rng.choice(words)]

    def _of_content(self, word: str) -> Sequence[str]:
        return () if word.lower() in FUNCTION_WORDS else self.synonyms(word)


def _warn_of_unspaced(text: str) -> None:
    if is_unspaced(text):
        logger.warning_once(
            "the views synonyms and eda separate words at white space and know English words only, so they leave "
            "Chinese, Japanese, Thai and similar text nearly unchanged. Use crop, delete_words or shuffle instead."
        )


def _split_punctuation(word: str) -> tuple[str, str, str]:
    match = _PUNCTUATION.match(word)
    assert match is not None  # the pattern matches any text
    return match[1], match[2], match[3]


def bare(word: str) -> str:
    """Return a word without the punctuation around it."""
    return _split_punctuation(word)[1]


def replace_words(words: list[str], number: int, synonyms: Synonyms, rng: random.Random) -> list[str]:
    """Replace random words by synonyms.

    Args:
        words (`list[str]`): The words.
        number (`int`): How many of the words that have synonyms are replaced, at most.
        synonyms (`Callable`): A function from a word to its synonyms.
        rng (`random.Random`): The source of randomness.

    Returns:
        `list[str]`: The words with synonyms.
    """
    replaced = list(words)
    for index in rng.sample(range(len(words)), len(words)):
        before, core, after = _split_punctuation(words[index])
        candidates = synonyms(core) if core else ()
        if candidates and number:
            synonym = rng.choice(candidates)
            if core[0].isupper():
                synonym = synonym[0].upper() + synonym[1:]
            replaced[index] = before + synonym + after
            number -= 1
        if not number:
            break
    return replaced


def _first_with_synonyms(words: list[str], synonyms: Synonyms, rng: random.Random) -> int | None:
    order = rng.sample(range(len(words)), len(words))
    return next((index for index in order if bare(words[index]) and synonyms(bare(words[index]))), None)
