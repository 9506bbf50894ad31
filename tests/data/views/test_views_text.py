"""Views of words and token ids change as much as their rate says, at random, and never leave an empty text."""

import random
import statistics
from collections import Counter

import pytest

from simcse_hf.data.views import make_view, view_rate
from simcse_hf.data.views.synonyms import EDA, FUNCTION_WORDS, SynonymReplacement
from simcse_hf.data.views.words import split_words

WORDS = [f"w{i}" for i in range(20)]
TEXT = " ".join(WORDS)
LEXICON = {"cat": ("feline", "kitty cat"), "big": ("large",), "sat": ("was seated",), "the": ("le",)}


def synonyms(word):
    return LEXICON.get(word.lower(), ())


def samples(view, text_or_ids, number=400):
    """A number of views of the same text or token ids."""
    rng = random.Random(0)
    return [view(text_or_ids, rng) for _ in range(number)]


# --- crops and deleted words ---


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.95])
def test_a_crop_is_a_span_that_begins_anywhere_and_a_deletion_takes_any_word(rate):
    left = round(20 * (1 - rate))
    starts = set()
    for view in samples(make_view("crop", rate), TEXT):
        words = view.split()
        start = WORDS.index(words[0])
        assert words == WORDS[start : start + left]
        starts.add(start)
    assert starts == set(range(20 - left + 1))
    deleted = set()
    for view in samples(make_view("delete_words", rate), TEXT):
        words = view.split()
        assert len(words) == left and words == sorted(words, key=WORDS.index)
        deleted |= set(WORDS) - set(words)
    assert deleted == (set(WORDS) if rate else set())


@pytest.mark.parametrize("name", ["crop", "delete_words"])
@pytest.mark.parametrize("length", [3, 14])
def test_a_short_text_loses_the_rate_on_average(name, length):
    short = " ".join(WORDS[:length])
    lost = [length - len(view.split()) for view in samples(make_view(name, 0.1), short, 4000)]
    assert statistics.mean(lost) == pytest.approx(0.1 * length, abs=0.04)
    assert max(lost) - min(lost) == 1, "a fraction of a word is drawn"


@pytest.mark.parametrize(
    "view",
    [
        make_view("crop", 0.95),
        make_view("delete_words", 0.95),
        make_view("delete_one_word"),
        make_view("crop+mlm"),
        SynonymReplacement(synonyms=synonyms),
        EDA(0.9, synonyms),
        EDA(0.1, synonyms),
    ],
)
@pytest.mark.parametrize("text", ["word", " odd  spacing ", "你好世界", "cat", "...", "The cat sat."])
def test_a_view_of_words_is_never_empty(view, text):
    assert all(changed.strip() for changed in samples(view, text, 100))


# --- synonyms and EDA ---


def test_synonym_replacement_changes_one_word_and_keeps_punctuation_and_capital():
    view = SynonymReplacement(synonyms=synonyms)
    views = Counter(samples(view, "A Big, dog; (cat)!"))
    assert set(views) == {"A Large, dog; (cat)!", "A Big, dog; (feline)!", "A Big, dog; (kitty cat)!"}
    assert views["A Large, dog; (cat)!"] == pytest.approx(400 / 2, abs=40), "each of two words is as likely"
    assert samples(view, "no  such word", 1) == ["no  such word"]


EDA_WORDS = "the big cat sat on mats".split()


@pytest.mark.parametrize("rate, number", [(0.1, 1), (0.5, 3)])
def test_each_operation_of_eda_changes_as_many_words_as_its_rate_says(rate, number):
    view = EDA(rate, synonyms)
    rng = random.Random(0)
    candidates = {*LEXICON["big"], *LEXICON["cat"], *LEXICON["sat"]}
    for _ in range(100):
        replaced = view.replace(EDA_WORDS, number, rng)
        changes = [(old, new) for old, new in zip(EDA_WORDS, replaced, strict=True) if new != old]
        assert len(changes) == number
        assert all(new in LEXICON[old] and old not in FUNCTION_WORDS for old, new in changes)
        inserted = view.insert(EDA_WORDS, number, rng)
        assert [word for word in inserted if word in EDA_WORDS] == EDA_WORDS
        added = Counter(inserted) - Counter(EDA_WORDS)
        assert added.total() == number and set(added) <= candidates
        swapped = view.swap(EDA_WORDS, number, rng)
        assert sorted(swapped) == sorted(EDA_WORDS)
        assert number > 1 or sum(old != new for old, new in zip(EDA_WORDS, swapped, strict=True)) == 2
    lost = [6 - len(view.delete(EDA_WORDS, number, rng)) for _ in range(4000)]
    assert statistics.mean(lost) == pytest.approx(6 * rate, abs=0.1)
    # Insertions are a quarter of the operations, and synonyms of several words make a text longer, too.
    views = samples(view, " ".join(EDA_WORDS), 2000)
    assert sum(len(view.split()) > 6 for view in views) > 300


# --- token ids ---

TOKEN_IDS = list(range(100, 120))


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 0.95])
def test_shuffle_permutes_the_fraction_of_the_tokens_that_the_rate_says(rate):
    moved = []
    for view in samples(make_view("shuffle", rate), TOKEN_IDS, 2000):
        assert sorted(view) == TOKEN_IDS
        moved.append(sum(new != old for new, old in zip(view, TOKEN_IDS, strict=True)))
    assert max(moved) <= round(20 * rate)
    # A random permutation has one fixed point on average, whatever its size.
    assert statistics.mean(moved) == pytest.approx(max(20 * rate - 1, 0), abs=0.15)


@pytest.mark.parametrize("size, most", [(1, 1), (3, 2), (20, 6)])
def test_repeat_words_repeats_up_to_the_number_of_tokens_of_the_paper(size, most):
    repeated = []
    for view in samples(make_view("repeat_words"), list(range(size)), 3000):
        assert view == sorted(view) and set(view) == set(range(size))
        assert max(Counter(view).values()) <= 2
        repeated.append(len(view) - size)
    assert set(repeated) == set(range(most + 1))
    assert statistics.mean(repeated) == pytest.approx(most / 2, abs=0.15) or size == 1


def test_the_rate_of_a_view_with_a_masked_lm_is_not_that_of_its_crop():
    assert view_rate("mlm") == view_rate("crop+mlm") == 0.15
    assert view_rate("crop+mlm", 0.3) == 0.3
    cropped = samples(make_view("crop+mlm", 0.3), TEXT, 20)
    assert {len(view.split()) for view in cropped} == {18}


@pytest.mark.parametrize(
    "words", ["我|爱|北|京|天|安|门。", "東|京|へ|行|き|ま|し|た、|ね", "เด็|ก|กิ|น|ข้|า|ว", "I| love| 北|京,| no?"]
)
def test_characters_stand_for_words_in_scripts_without_spaces(words):
    assert split_words(words.replace("|", "")) == words.split("|")
