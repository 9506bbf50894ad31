"""Views of words and token ids change as much as their rate says, at random, and never leave an empty text."""

import random
import statistics
from collections import Counter

import pytest

from simcse_hf.data.views import VIEW_CLASSES, make_view, view_rate
from simcse_hf.data.views.synonyms import EDA, FUNCTION_WORDS, SynonymReplacement
from simcse_hf.data.views.words import split_words

WORDS = [f"w{i}" for i in range(20)]
TEXT = " ".join(WORDS)
LEXICON = {"cat": ("feline", "kitty cat"), "big": ("large",), "sat": ("was seated",), "the": ("le",)}


def synonyms(word):
    return LEXICON.get(word.lower(), ())


def samples(view, text_or_ids, number=400, seed=0):
    rng = random.Random(seed)
    return [view(text_or_ids, rng) for _ in range(number)]


@pytest.mark.parametrize("name", ["crop", "delete_words"])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.95])
def test_the_rate_of_the_words_is_lost_and_the_others_keep_their_order(name, rate):
    views = [text.split() for text in samples(make_view(name, rate), TEXT)]
    assert {len(words) for words in views} == {round(20 * (1 - rate))}
    for words in views:
        start = WORDS.index(words[0])
        span = WORDS[start : start + len(words)] if name == "crop" else [word for word in WORDS if word in words]
        assert words == span
    if name == "crop":
        assert {words[0] for words in views} == set(WORDS[: round(20 * rate) + 1])
    elif rate:
        assert set().union(*(set(WORDS) - set(words) for words in views)) == set(WORDS)


@pytest.mark.parametrize("name", ["crop", "delete_words"])
@pytest.mark.parametrize("words", [3, 5, 9, 14])
def test_a_short_text_loses_the_rate_on_average(name, words):
    lost = [words - len(text.split()) for text in samples(make_view(name, 0.1), " ".join(WORDS[:words]), 4000)]
    assert statistics.mean(lost) == pytest.approx(0.1 * words, abs=0.04)
    assert max(lost) - min(lost) == 1


NEVER_EMPTY = [make_view("crop", 0.95), make_view("delete_words", 0.95), make_view("delete_one_word")]
NEVER_EMPTY += [make_view("crop+mlm"), SynonymReplacement(synonyms=synonyms), EDA(0.9, synonyms), EDA(0.1, synonyms)]


@pytest.mark.parametrize("view", NEVER_EMPTY)
@pytest.mark.parametrize("text", ["word", " odd  spacing ", "a b", "你好世界", "the", "cat", "...", "The cat sat."])
def test_a_view_of_words_is_never_empty(view, text):
    assert all(views.strip() for views in samples(view, text, 100))


def test_synonym_replacement_changes_one_word_and_keeps_punctuation_and_capital():
    views = Counter(samples(SynonymReplacement(synonyms=synonyms), "A Big, dog; (cat)!"))
    assert set(views) == {"A Large, dog; (cat)!", "A Big, dog; (feline)!", "A Big, dog; (kitty cat)!"}
    assert views["A Large, dog; (cat)!"] == pytest.approx(200, abs=40)  # each word that has any is as likely
    assert samples(SynonymReplacement(synonyms=synonyms), "no  such word", 3) == ["no  such word"] * 3


@pytest.mark.parametrize("rate, number", [(0.1, 1), (0.5, 3)])
def test_eda_applies_each_operation_as_often_as_its_rate_says(rate, number):
    view = EDA(rate, synonyms)
    words = "the big cat sat on mats".split()
    rng = random.Random(0)
    candidates = {synonym for word in ("big", "cat", "sat") for synonym in LEXICON[word]}
    for _ in range(100):
        replaced = view.replace(words, number, rng)
        changed = [i for i in range(6) if replaced[i] != words[i]]
        assert len(changed) == number
        assert all(replaced[i] in LEXICON[words[i]] and words[i] not in FUNCTION_WORDS for i in changed)
        longer = view.insert(words, number, rng)
        extra = Counter(longer) - Counter(words)
        assert sum(extra.values()) == number and set(extra) <= candidates
        assert [word for word in longer if word in words] == words
        assert sorted(view.swap(words, number, rng)) == sorted(words)
    assert sum(a != b for a, b in zip(view.swap(words, 1, rng), words, strict=True)) == 2
    lost = [6 - len(view.delete(words, number, rng)) for _ in range(4000)]
    assert statistics.mean(lost) == pytest.approx(6 * rate, abs=0.1)
    operations = Counter(len(text.split()) - 6 > 0 for text in samples(view, " ".join(words), 2000))
    assert operations[True] > 300  # insertions are a quarter, and multi-word synonyms are longer too


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 0.5, 0.95])
def test_shuffle_permutes_the_fraction_that_the_rate_says(rate):
    ids = list(range(100, 120))
    views = samples(make_view("shuffle", rate), ids, 2000)
    assert all(sorted(view) == ids for view in views)
    moved = [sum(a != b for a, b in zip(view, ids, strict=True)) for view in views]
    assert max(moved) <= round(20 * rate)
    # A random permutation has one fixed point on average, whatever its size.
    assert statistics.mean(moved) == pytest.approx(max(20 * rate - 1, 0), abs=0.15)


@pytest.mark.parametrize("size, most", [(1, 1), (3, 2), (20, 6), (50, 16)])
def test_repeat_words_repeats_at_most_the_number_of_tokens_of_the_paper(size, most):
    ids = list(range(100, 100 + size))
    views = samples(make_view("repeat_words"), ids, 3000)
    assert {len(view) - size for view in views} == set(range(most + 1))
    for view in views:
        assert sorted(set(view)) == ids and view == sorted(view) and max(Counter(view).values()) <= 2
    if size == 20:
        assert statistics.mean(len(view) - size for view in views) == pytest.approx(most / 2, abs=0.15)


def test_the_rate_of_a_view_with_masked_lm_is_that_of_the_masked_lm():
    assert [name for name, view in VIEW_CLASSES.items() if view.needs_masked_lm] == ["mlm", "crop+mlm"]
    assert view_rate("mlm") == view_rate("crop+mlm") == 0.15
    assert view_rate("mlm", 0.3) == view_rate("crop+mlm", 0.3) == 0.3
    cropped = samples(make_view("crop+mlm", 0.3), TEXT, 20)
    assert {len(text.split()) for text in cropped} == {18}  # the rate is not that of the crop


UNSPACED = {
    "Chinese": ("我爱北京天安门。", ["我", "爱", "北", "京", "天", "安", "门。"]),
    "Japanese": ("東京へ行きました、ね", ["東", "京", "へ", "行", "き", "ま", "し", "た、", "ね"]),
    "Thai": ("เด็กกินข้าว", ["เด็", "ก", "กิ", "น", "ข้", "า", "ว"]),
    "mixed": ("I love 北京, no?", ["I", " love", " 北", "京,", " no?"]),
}


@pytest.mark.parametrize(("text", "words"), UNSPACED.values(), ids=UNSPACED)
def test_characters_stand_for_words_in_scripts_without_spaces(text, words):
    assert split_words(text) == words and "".join(words).strip() == text
