"""Views of a text or of its token ids: cropped, with words deleted, shuffled, or with tokens repeated.

A view changes a text at random so that it should mean the same.
"""

import random
import re
from collections.abc import Sequence

from ...runtime.errors import check_values

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
_PIECE = re.compile(rf"\s*(?:{_VOWEL_BEFORE}?{_LETTER}{_MARK}*[^\w\s]*|(?:(?!{_LETTER})\S)+)")


class View:
    """How the positive of a sentence is made.

    A subclass with a `name` can be chosen by it.

    Args:
        rate (`float`, *optional*): How much is changed, for a view that takes a rate.

    Attributes:
        name (`str`): The name, empty for a view of the caller's own.
        usual_rate (`float`, *optional*): The rate that is used if none is chosen; `None` if the view takes no rate.
        words (`str`): What the positive is, for cards and the reference.
        paper (`str`, *optional*): The paper that introduced the view for sentence embeddings, by its key in the card.
        is_drawn (`bool`): Whether [`ViewDataset`] draws a new view whenever a row is read.
        needs_masked_lm (`bool`): Whether [`MaskedLMView`] replaces tokens on the device, at the view's rate.
        window (`int`): How many of the following sentences of a document the positive is drawn from; 0 for a view of
            the sentence itself.
    """

    name = ""
    usual_rate: float | None = None
    words = "a view of it"
    paper: str | None = None
    is_drawn = True
    needs_masked_lm = False
    window = 0
    rate: float | None = None

    def __init__(self, rate: float | None = None):
        check_values("a number of 0 or more and below 1", view_rate=rate)
        self.rate = rate

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            VIEW_CLASSES[cls.name] = cls


#: The class of each view by its name.
VIEW_CLASSES: dict[str, type[View]] = {}


class TextView(View):
    """A view of a text, made before it is tokenized. This class itself leaves the text as it is.

    Args:
        rate (`float`, *optional*): How much is changed, for a view that takes a rate.

    Examples:
        >>> import random
        >>> from simcse_hf.data.views import TextView
        >>> class WithoutLast(TextView):
        ...     name = "without_last"
        ...     words = "the sentence without its last word"
        ...
        ...     def __call__(self, text, rng):
        ...         words = text.split()
        ...         return " ".join(words[:-1] or words)
        >>> WithoutLast()("The chef cooked the soup.", random.Random(0))
        'The chef cooked the'
    """

    def __call__(self, text: str, rng: random.Random) -> str:
        """Return a changed text, which is never empty if `text` holds a word. Randomness comes from `rng` only."""
        return text


class TokenView(View):
    """A view of the token ids of a text, without its special tokens.

    Args:
        rate (`float`, *optional*): How much is changed, for a view that takes a rate.

    Examples:
        >>> import random
        >>> from simcse_hf.data.views import make_view
        >>> make_view("repeat_words", rate=0.5)([11, 12, 13, 14], random.Random(0))
        [11, 12, 13, 14, 14]
    """

    def __call__(self, ids: list[int], rng: random.Random) -> list[int]:
        """Return changed ids, which are never empty if `ids` is not. Randomness comes from `rng` only."""
        return ids

    def max_length(self, length: int) -> int:
        """Return the largest number of ids that this view makes of `length` ids."""
        return length


class SameText(TextView):
    """The sentence itself: dropout makes the views of a pass differ (SimCSE, section 3)."""

    name = "identity"
    words = "the same sentence under another dropout mask"
    paper = "simcse"
    is_drawn = False


class FixedMask(SameText):
    """The sentence itself under one dropout mask (SimCSE, Table 3: "fixed 0.1")."""

    name = "fixed_mask"
    words = "the same sentence under the same dropout mask"


class NextSentence(SameText):
    """The next sentence of the document (SimCSE, Table 2); see [`~data.documents.next_sentence_pairs`]."""

    name = "next_sentence"
    words = "the next sentence of its document"
    window = 1


class NextThreeSentences(SameText):
    """One of the next three sentences of the document (SimCSE, Table 2)."""

    name = "next_three_sentences"
    words = "one of the next three sentences of its document"
    window = 3


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
    return [f" {word.lstrip()}" if word[0].isspace() else word for word in _PIECE.findall(text)]


class Crop(TextView):
    """Keep a contiguous span of the words at a random place (SimCSE, Table 1: "crop k%: keep 100-k% of the length").

    Args:
        rate (`float`): The fraction of the words that is cut off, on average over texts (see [`draw_count`]). At least
            one word stays.

    Examples:
        >>> import random
        >>> from simcse_hf.data.views.words import Crop
        >>> Crop(0.5)("The old mariner found the steed.", random.Random(0))
        'found the steed.'
    """

    name = "crop"
    usual_rate: float | None = 0.1  # the best of SimCSE's 0.1, 0.2 and 0.3
    words = "a contiguous part of it"
    paper = "simcse"
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


class DeleteWords(Crop):
    """Delete random words (SimCSE, Table 1: "word deletion k%: delete k% words"); the rate is that of [`Crop`]."""

    name = "delete_words"
    words = "the sentence without some of its words"

    def kept(self, total: int, rng: random.Random) -> Sequence[int]:
        """Draw the places of the words that stay, of `total` words."""
        number = max(1, total - draw_count(self.rate, total, rng))
        return sorted(rng.sample(range(total), number))


class DeleteOneWord(Crop):
    """Delete one random word. A text of a single word stays as it is."""

    name = "delete_one_word"
    usual_rate = None
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

    name = "shuffle"
    usual_rate = 0.3
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

    name = "repeat_words"
    usual_rate = 0.32
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
