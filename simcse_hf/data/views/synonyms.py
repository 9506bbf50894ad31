"""Views with synonyms: synonym replacement and Easy Data Augmentation, by default with the synonyms of WordNet."""

import os
import random
import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from transformers.utils import logging

from ...runtime.errors import SettingError, require_extra
from .words import TextView, is_unspaced

logger = logging.get_logger(__name__)

_DOWNLOAD = "python -m nltk.downloader wordnet"
_PUNCTUATION = re.compile(r"^(\W*)(.*?)(\W*)$", re.DOTALL)
#: Function words. EDA does not replace them, and inserts no synonyms of them.
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
        rate (`float`, *optional*): Not used.
        synonyms (`Callable`, *optional*): A function from a word to its synonyms. Defaults to WordNet, which is
            English.

    Raises:
        ValueError: If there is no WordNet, see [`wordnet_synonyms`].
    """

    name = "synonyms"
    words = "the sentence with a word replaced by a synonym"
    paper = "simcse"
    skipped: frozenset[str] = frozenset()  # words without synonyms

    def __init__(self, rate: float | None = None, synonyms: Callable[[str], Sequence[str]] | None = None):
        super().__init__(rate)
        self.synonyms = synonyms or wordnet_synonyms()

    def __call__(self, text: str, rng: random.Random) -> str:
        """Return the changed text."""
        if is_unspaced(text):
            logger.warning_once(
                "the views synonyms and eda separate words at white space and know English words only, so they leave "
                "Chinese, Japanese, Thai and similar text nearly unchanged. Use crop, delete_words or shuffle instead."
            )
        words = text.split()
        changed = self.change(words, rng)
        return " ".join(changed) if changed != words else text

    def change(self, words: list[str], rng: random.Random) -> list[str]:
        """Return the changed words."""
        return self.replace(words, 1, rng)

    def of(self, word: str) -> Sequence[str]:
        """Return the synonyms by which a word may be replaced."""
        return () if word == "" or word.lower() in self.skipped else self.synonyms(word)

    def replace(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Replace random words by synonyms, at most `number` of those that have any."""
        replaced = list(words)
        for index in rng.sample(range(len(words)), len(words)):
            if number == 0:
                break
            before, core, after = _PUNCTUATION.findall(words[index])[0]  # the pattern matches any text
            candidates = self.of(core)
            if candidates:
                synonym = rng.choice(candidates)
                if core[0].isupper():
                    synonym = synonym[0].upper() + synonym[1:]
                replaced[index] = before + synonym + after
                number -= 1
        return replaced


class EDA(SynonymReplacement):
    """Change a text by Easy Data Augmentation (Wei and Zou 2019, arXiv:1901.11196): one of four random operations.

    With n = max(1, int(rate * words)), the operations are: replace n words by synonyms; insert n synonyms of words of
    the text at random places; swap two words, n times; delete each word with probability `rate`, but never all. The
    first two skip function words. One rate serves all four operations, as in section 3 of the study of Barlow Twins
    and VICReg for sentence embeddings, which tries 0.1 and 0.2. Words are separated by white space.

    Args:
        rate (`float`): alpha in the paper, which recommends 0.1.
        synonyms (`Callable`, *optional*): See [`SynonymReplacement`].
    """

    name = "eda"
    usual_rate = 0.1
    words = "the sentence after synonym replacement, insertion, swap or deletion of words"
    paper = "eda"
    skipped = FUNCTION_WORDS
    rate: float

    def change(self, words: list[str], rng: random.Random) -> list[str]:
        """Return the changed words."""
        if not words:
            return words
        number = max(1, int(self.rate * len(words)))
        operation = rng.choice((self.replace, self.insert, self.swap, self.delete))
        return operation(words, number, rng)

    def insert(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Insert `number` synonyms of content words at random places."""
        longer = list(words)
        for _ in range(number):
            for word in rng.sample(words, len(words)):
                found = self.of(_PUNCTUATION.findall(word)[0][1])
                if found:
                    synonym = rng.choice(found)
                    longer.insert(rng.randint(0, len(longer)), synonym)
                    break
        return longer

    def swap(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Swap two random words, `number` times."""
        swapped = list(words)
        for _ in range(number if len(words) > 1 else 0):
            first, second = rng.sample(range(len(words)), 2)
            swapped[first], swapped[second] = swapped[second], swapped[first]
        return swapped

    def delete(self, words: list[str], number: int, rng: random.Random) -> list[str]:
        """Delete each word with probability `rate`, but keep at least one."""
        kept = [word for word in words if rng.random() >= self.rate]
        return kept or [rng.choice(words)]


def wordnet_synonyms() -> Callable[[str], tuple[str, ...]]:
    """Return what looks up the synonyms of English words in WordNet: the other words of all their synsets.

    A word is looked up in lower case and, if it is inflected, by its base form. Synonyms are of any part of speech,
    base forms, and in a fixed order. WordNet is read from where nltk looks for it: a folder of `nltk.data.path`, such
    as the one in the environment variable NLTK_DATA. Nothing is downloaded.

    Raises:
        ImportError: If nltk is not installed.
        SettingError: If nltk finds no WordNet, or an incomplete one.
    """
    nltk = require_extra("nltk", "augment", "a view of synonyms")
    try:
        root = nltk.data.find("corpora/wordnet/")  # or the same in corpora/wordnet.zip
    except LookupError:
        raise SettingError(
            f"the views synonyms and eda need WordNet, and nltk finds none. Get it with `{_DOWNLOAD}`, or set "
            f"NLTK_DATA to a folder with corpora/wordnet in it (searched: {', '.join(nltk.data.path)})."
        ) from None
    _wordnet(root)
    return partial(_synonyms, root)


@cache
def _wordnet(root: object) -> Any:
    from nltk.corpus.reader import WordNetCorpusReader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader warns that it has English only
        try:
            return WordNetCorpusReader(root, omw_reader=None)
        except (OSError, LookupError) as error:
            raise SettingError(f"{root}: not a complete WordNet: {error}. Get it with `{_DOWNLOAD}`.") from error


# The reader seeks in open files, and a forked process shares their positions with its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_wordnet.cache_clear)


@cache
def _synonyms(root: object, word: str) -> tuple[str, ...]:
    synonyms = set()
    word = word.lower()
    for synset in _wordnet(root).synsets(word):
        for name in synset.lemma_names():
            synonym = re.sub(r"\((a|p|ip)\)$", "", name).replace("_", " ")
            if synonym.lower() != word:
                synonyms.add(synonym)
    return tuple(sorted(synonyms))
