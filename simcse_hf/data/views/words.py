"""Views of words: crop and deletion (SimCSE, arXiv:2104.08821, Table 1)."""

import random
import re
from abc import abstractmethod

from .base import TextView, check_rate, draw_count

# Scripts that put no white space between words: Thai, Lao, Myanmar, Khmer, kana and Chinese characters.
_LETTER = (
    "[\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u1000-\u102a\u1780-\u17b3"
    "\u3041-\u3096\u309d-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
_VOWEL_BEFORE = "[\u0e40-\u0e44\u0ec0-\u0ec4]"
_MARK = "[\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3\u3099\u309a]"
_UNSPACED = re.compile(_LETTER)
# A character with the vowel before it, its marks and the punctuation after it; or a run of other characters.
_WORD = re.compile(rf"\s*(?:{_VOWEL_BEFORE}?{_LETTER}{_MARK}*[^\w\s]*|(?:(?!{_LETTER})\S)+)")


def is_unspaced(text: str) -> bool:
    """Say whether a text holds characters of a script that puts no white space between words."""
    return _UNSPACED.search(text) is not None


def split_words(text: str) -> list[str]:
    """Split a text into words, each with a space before it if the text has white space there.

    Chinese, Japanese, Thai, Lao, Khmer and Burmese put no white space between words; there, each character stands for
    a word. So `"I love 北京."` gives `["I", " love", " 北", "京."]`.

    Args:
        text (`str`): The text.

    Returns:
        `list[str]`: The words. [`join_words`] makes a text of them.
    """
    if not is_unspaced(text):
        return [f" {word}" for word in text.split()]
    return [" " * word[0].isspace() + word.lstrip() for word in _WORD.findall(text)]


def join_words(words: list[str]) -> str:
    """Make a text of words that [`split_words`] gave."""
    return "".join(words).strip()


class _KeepWords(TextView):
    """Keep all but a fraction of the words, and at least one.

    Args:
        rate (`float`, *optional*, defaults to `0.1`): The fraction that is left out.
    """

    def __init__(self, rate: float = 0.1):
        self.rate = check_rate(rate)

    def __call__(self, text: str, rng: random.Random) -> str:
        """Change a text; see [`TextView`]."""
        words = split_words(text)
        if len(words) < 2:
            return text
        num_kept = max(1, len(words) - draw_count(self.rate, len(words), rng))
        return join_words(self._keep(words, num_kept, rng))

    @abstractmethod
    def _keep(self, words: list[str], num_kept: int, rng: random.Random) -> list[str]:
        """Choose `num_kept` of the words, in their order."""


class Crop(_KeepWords):
    """Keep a contiguous span of the words at a random place ("Crop k%: keep 100-k% of the length").

    Args:
        rate (`float`, *optional*, defaults to `0.1`): The fraction of the words that is cut off, on average over texts
            (see [`~data.views.base.draw_count`]). At least one word stays.

    Raises:
        ValueError: If the rate is outside [0, 1).
    """

    def _keep(self, words: list[str], num_kept: int, rng: random.Random) -> list[str]:
        start = rng.randint(0, len(words) - num_kept)
        return words[start : start + num_kept]


class DeleteWords(_KeepWords):
    """Delete random words ("word deletion k%: delete k% words").

    Args:
        rate (`float`, *optional*, defaults to `0.1`): The fraction of the words that is deleted, on average over texts
            (see [`~data.views.base.draw_count`]). At least one word stays.

    Raises:
        ValueError: If the rate is outside [0, 1).
    """

    def _keep(self, words: list[str], num_kept: int, rng: random.Random) -> list[str]:
        return [words[index] for index in sorted(rng.sample(range(len(words)), num_kept))]


class DeleteOneWord(TextView):
    """Delete one random word. A text of a single word stays as it is."""

    def __call__(self, text: str, rng: random.Random) -> str:
        """Change a text; see [`TextView`]."""
        words = split_words(text)
        if len(words) < 2:
            return text
        del words[rng.randrange(len(words))]
        return join_words(words)
