"""Views of a text or of its token ids: cropped, with words deleted, shuffled, or with tokens repeated.

A view changes a text at random so that it should mean the same.
"""

import random
import re
from collections.abc import Sequence

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


def check_rate(rate: float) -> float:
    """Return a rate, or raise a `ValueError` if it is no fraction from 0 to below 1."""
    if not 0 <= rate < 1:
        raise ValueError(f"view_rate must be at least 0 and below 1, got {rate}.")
    return rate


class _View:
    #: How cards and the reference describe the positive of a sentence, and the paper (in `publishing/papers.bib`) that
    #: introduced the view for sentence embeddings.
    words = "a view of it"
    paper = "simcse"
    #: Whether `ViewDataset` draws it from single sentences.
    is_drawn = True

    def __init__(self, rate: float | None = None):
        self.rate = rate if rate is None else check_rate(rate)


class TextView(_View):
    """A view of a text, made before it is tokenized.

    This class itself leaves the text as it is: for views that are made elsewhere, by dropout, a masked-LM, or pairs of
    a file.

    Args:
        rate (`float`, *optional*): How much is changed, for a view that takes a rate.
    """

    def __call__(self, text: str, rng: random.Random) -> str:
        """Return a changed text, which is never empty if `text` holds a word. Randomness comes from `rng` only."""
        return text


class Identity(TextView):
    """The sentence itself: dropout makes its views differ."""

    words = "the same sentence under another dropout mask"
    is_drawn = False


class FixedMask(TextView):
    """The sentence itself, with one dropout mask for both views (SimCSE, Figure 2)."""

    words = "the same sentence under the same dropout mask"
    is_drawn = False


class NextSentence(TextView):
    """A neighbouring sentence, which the rows of documents hold."""

    words = "the next sentence of its document"
    is_drawn = False


class NextThreeSentences(TextView):
    """One of the three sentences after it, which the rows of documents hold."""

    words = "one of the next three sentences of its document"
    is_drawn = False


class ReplacedTokens(TextView):
    """The sentence itself, in which [`MaskedLMView`] replaces tokens on the device."""

    words = "the sentence with some tokens replaced by a masked language model"


class TokenView(_View):
    """A view of the token ids of a text, without its special tokens.

    Args:
        rate (`float`, *optional*): How much is changed, for a view that takes a rate.
    """

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Return changed ids, which are never empty if `ids` is not. Randomness comes from `rng` only."""
        return ids

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length


def draw_count(rate: float, total: int, rng: random.Random) -> int:
    """Draw how many of `total` items a rate means, so that the mean is exactly `rate * total`."""
    # Always rounded down, 10% of a sentence of nine words would be none.
    exact = rate * total
    whole = int(exact)
    return whole + (rng.random() < exact - whole)


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
        `list[str]`: The words, which are the text again when they are joined.
    """
    if not is_unspaced(text):
        return [f" {word}" for word in text.split()]
    return [f" {word.lstrip()}" if word[0].isspace() else word for word in _WORD.findall(text)]


class Crop(TextView):
    """Keep a contiguous span of the words at a random place (SimCSE, Table 1: "crop k%: keep 100-k% of the length").

    Args:
        rate (`float`): The fraction of the words that is cut off, on average over texts (see [`draw_count`]). At least
            one word stays.
    """

    words = "a contiguous part of it"
    rate: float

    def __call__(self, text: str, rng: random.Random) -> str:
        """Return a part of the text; a single word stays as it is."""
        words = split_words(text)
        if len(words) < 2:
            return text
        return "".join(words[index] for index in self.kept(len(words), rng)).strip()

    def kept(self, total: int, rng: random.Random) -> Sequence[int]:
        """Draw the places of the words that stay, of `total` words."""
        number = max(1, total - draw_count(self.rate, total, rng))
        start = rng.randint(0, total - number)
        return range(start, start + number)


class CropAndReplacedTokens(Crop):
    """[`Crop`], after which [`MaskedLMView`] replaces tokens on the device."""

    words = "a contiguous part of it with some tokens replaced by a masked language model"


class DeleteWords(Crop):
    """Delete random words (SimCSE, Table 1: "word deletion k%: delete k% words"); the rate is that of [`Crop`]."""

    words = "the sentence without some of its words"

    def kept(self, total: int, rng: random.Random) -> Sequence[int]:
        """Draw the places of the words that stay, of `total` words."""
        number = max(1, total - draw_count(self.rate, total, rng))
        return sorted(rng.sample(range(total), number))


class DeleteOneWord(Crop):
    """Delete one random word. A text of a single word stays as it is."""

    words = "the sentence without one of its words"

    def kept(self, total: int, rng: random.Random) -> Sequence[int]:
        """Draw the places of the words that stay, of `total` words."""
        place = rng.randrange(total)
        return [*range(place), *range(place + 1, total)]


class Shuffle(TokenView):
    """Select a fraction of the tokens and permute them at random.

    This is "Shuffling" in section 3 of the study of Barlow Twins and VICReg for sentence embeddings, which tries rates
    from 0.05 to 0.5 (its Table 1). All permutations are equally likely, also the one that changes nothing.

    Args:
        rate (`float`): The fraction of the tokens that is permuted, on average over texts (see [`draw_count`]).
    """

    words = "the sentence with some of its tokens permuted"
    paper = "non_contrastive"
    rate: float

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Return the changed ids."""
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
        rate (`float`): The largest fraction of the tokens that is repeated.
    """

    words = "the sentence with some of its tokens repeated"
    paper = "esimcse"
    rate: float

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Return the changed ids."""
        number = rng.randint(0, max(2, int(self.rate * len(ids))))
        repeated = rng.sample(range(len(ids)), min(number, len(ids)))
        return [ids[index] for index in sorted([*range(len(ids)), *repeated])]

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length + min(length, max(2, int(self.rate * length)))
