"""Synonym replacement, and Easy Data Augmentation, which has it as one of four operations."""

import random
import re
from collections.abc import Callable, Sequence

from .base import TextView, check_rate
from .wordnet import WordNetSynonyms

Synonyms = Callable[[str], Sequence[str]]

_PUNCTUATION = re.compile(r"^(\W*)(.*?)(\W*)$", re.DOTALL)
#: Words without content of their own, which EDA neither replaces nor inserts synonyms of.
FUNCTION_WORDS = frozenset(
    "a an the this that these those some any each every no not nor and or but if so as than then too very "
    "i me my mine we us our ours you your yours he him his she her hers it its they them their theirs "
    "who whom whose which what when where why how there here am is are was were be been being do does did doing done "
    "have has had having will would shall should can could may might must of in on at by for with from to into onto "
    "about over under up down out off between through during before after above below against again "
    "only own same such just once both few more most other all".split()
)


class SynonymReplacement(TextView):
    """Replaces one word, drawn among those that have a synonym, by one of its synonyms.

    SimCSE, arXiv:2104.08821, Table 1, "synonym replacement", which replaces one word by means of nlpaug. nlpaug tags
    parts of speech first; here a word's synonyms are those of all its senses. Punctuation around the word stays, and
    so does its capital. A text without any synonym stays as it is.

    Args:
        synonyms: a word -> its synonyms; by default WordNet's.

    Raises:
        ValueError: WordNet is not there (see [`WordNetSynonyms`]).
    """

    def __init__(self, synonyms: Synonyms | None = None):
        self.synonyms = synonyms or WordNetSynonyms()

    def __call__(self, text: str, rng: random.Random) -> str:
        words = text.split()
        found = replace_words(words, 1, self.synonyms, rng)
        return " ".join(found) if found != words else text


class EDA(TextView):
    """Easy Data Augmentation (Wei and Zou 2019, arXiv:1901.11196): one of four operations, drawn for every text.

    With n = max(1, int(rate * words)): synonym replacement of n words; random insertion, n times, of a synonym of some
    word of the text at some place; random swap of two words, n times; random deletion of every word with probability
    `rate`, of which one word always stays. The first two pass over function words. A single rate is that of all four,
    as in the study of Barlow Twins and VICReg for sentence embeddings (section 3), which tries 0.1 and 0.2.

    Args:
        rate: alpha in the paper, whose advice is 0.1.
        synonyms: a word -> its synonyms; by default WordNet's.

    Raises:
        ValueError: a rate outside [0, 1); WordNet is not there (see [`WordNetSynonyms`]).
    """

    def __init__(self, rate: float = 0.1, synonyms: Synonyms | None = None):
        self.rate = check_rate(rate)
        self.synonyms = synonyms or WordNetSynonyms()

    def __call__(self, text: str, rng: random.Random) -> str:
        words = text.split()
        if not words:
            return text
        number = max(1, int(self.rate * len(words)))
        operation = rng.choice((self.replace, self.insert, self.swap, self.delete))
        return " ".join(operation(words, number, rng))

    def replace(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        return replace_words(words, number, self._of_content, rng)

    def insert(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        longer = list(words)
        for _ in range(number):
            place = _first_with_synonyms(words, self._of_content, rng)
            if place is not None:
                synonym = rng.choice(self._of_content(bare(words[place])))
                longer.insert(rng.randint(0, len(longer)), synonym)
        return longer

    def swap(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        swapped = list(words)
        for _ in range(number if len(words) > 1 else 0):
            one, other = rng.sample(range(len(words)), 2)
            swapped[one], swapped[other] = swapped[other], swapped[one]
        return swapped

    def delete(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        return [word for word in words if rng.random() >= self.rate] or [rng.choice(words)]

    def _of_content(self, word: str) -> Sequence[str]:
        return () if word.lower() in FUNCTION_WORDS else self.synonyms(word)


def bare(word: str) -> str:
    """A word without the punctuation around it."""
    return _PUNCTUATION.match(word)[2]


def replace_words(words: list[str], number: int, synonyms: Synonyms, rng: random.Random) -> list[str]:
    """The words, with `number` of those that have synonyms (or all of these) replaced."""
    replaced = list(words)
    for place in rng.sample(range(len(words)), len(words)):
        before, core, after = _PUNCTUATION.match(words[place]).groups()
        candidates = synonyms(core) if core else ()
        if candidates and number:
            synonym = rng.choice(candidates)
            if core[0].isupper():
                synonym = synonym[0].upper() + synonym[1:]
            replaced[place] = before + synonym + after
            number -= 1
        if not number:
            break
    return replaced


def _first_with_synonyms(words: list[str], synonyms: Synonyms, rng: random.Random) -> int | None:
    order = rng.sample(range(len(words)), len(words))
    return next((place for place in order if bare(words[place]) and synonyms(bare(words[place]))), None)
