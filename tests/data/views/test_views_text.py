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
LEXICON = {
    "cat": ("feline", "kitty cat"),
    "big": ("large",),
    "sat": ("was seated",),
    "the": ("le",),
}


def synonyms(word):
    return LEXICON.get(word.lower(), ())


def samples(view, text_or_ids, number=400, seed=0):
    """A number of views of the same text or token ids."""
    rng = random.Random(seed)
    return [view(text_or_ids, rng) for _ in range(number)]


# --- crops and deleted words ---

CROP_AND_DELETION = pytest.mark.parametrize("name", ["crop", "delete_words"])
RATES = pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.95])


def views_in_words(name, rate):
    return [view.split() for view in samples(make_view(name, rate), TEXT)]


@CROP_AND_DELETION
@RATES
def test_the_rate_of_the_words_is_lost(name, rate):
    lengths = {len(words) for words in views_in_words(name, rate)}
    assert lengths == {round(20 * (1 - rate))}


@RATES
def test_a_crop_is_a_span_of_the_text(rate):
    for words in views_in_words("crop", rate):
        start = WORDS.index(words[0])
        assert words == WORDS[start : start + len(words)]


@RATES
def test_deletion_keeps_the_order_of_the_other_words(rate):
    for words in views_in_words("delete_words", rate):
        assert words == sorted(words, key=WORDS.index)


@RATES
def test_a_crop_begins_at_any_word_that_leaves_enough(rate):
    first_words = {words[0] for words in views_in_words("crop", rate)}
    assert first_words == set(WORDS[: round(20 * rate) + 1])


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3, 0.95])
def test_deletion_may_take_any_word(rate):
    deleted = set()
    for words in views_in_words("delete_words", rate):
        deleted |= set(WORDS) - set(words)
    assert deleted == set(WORDS)


@CROP_AND_DELETION
@pytest.mark.parametrize("length", [3, 5, 9, 14])
def test_a_short_text_loses_the_rate_on_average(name, length):
    short = " ".join(WORDS[:length])
    lost = [length - len(view.split()) for view in samples(make_view(name, 0.1), short, 4000)]
    assert statistics.mean(lost) == pytest.approx(0.1 * length, abs=0.04)
    assert max(lost) - min(lost) == 1, "a fraction of a word is drawn"


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(make_view("crop", 0.95), id="crop"),
        pytest.param(make_view("delete_words", 0.95), id="delete_words"),
        pytest.param(make_view("delete_one_word"), id="delete_one_word"),
        pytest.param(make_view("crop+mlm"), id="crop+mlm"),
        pytest.param(SynonymReplacement(synonyms=synonyms), id="synonyms"),
        pytest.param(EDA(0.9, synonyms), id="eda, high rate"),
        pytest.param(EDA(0.1, synonyms), id="eda, low rate"),
    ],
)
@pytest.mark.parametrize(
    "text",
    ["word", " odd  spacing ", "a b", "你好世界", "the", "cat", "...", "The cat sat."],
)
def test_a_view_of_words_is_never_empty(view, text):
    assert all(changed.strip() for changed in samples(view, text, 100))


# --- synonyms ---


def test_synonym_replacement_changes_one_word_and_keeps_punctuation_and_capital():
    views = samples(SynonymReplacement(synonyms=synonyms), "A Big, dog; (cat)!")
    assert set(views) == {
        "A Large, dog; (cat)!",
        "A Big, dog; (feline)!",
        "A Big, dog; (kitty cat)!",
    }


def test_each_word_that_has_synonyms_is_as_likely_to_be_replaced():
    views = samples(SynonymReplacement(synonyms=synonyms), "A Big, dog; (cat)!", 400)
    assert views.count("A Large, dog; (cat)!") == pytest.approx(400 / 2, abs=40)


def test_a_text_without_synonyms_stays_as_it_is():
    views = samples(SynonymReplacement(synonyms=synonyms), "no  such word", 3)
    assert set(views) == {"no  such word"}


# --- EDA ---

EDA_WORDS = "the big cat sat on mats".split()
NUMBER_OF_CHANGES = pytest.mark.parametrize("rate, number", [(0.1, 1), (0.5, 3)])


def applied(operation, number):
    """What an operation of EDA makes of the words, 100 times."""
    rng = random.Random(0)
    return [operation(EDA_WORDS, number, rng) for _ in range(100)]


def changed_places(words):
    return [place for place in range(6) if words[place] != EDA_WORDS[place]]


@NUMBER_OF_CHANGES
def test_eda_replaces_as_many_words_as_its_rate_says(rate, number):
    for words in applied(EDA(rate, synonyms).replace, number):
        assert len(changed_places(words)) == number


@NUMBER_OF_CHANGES
def test_eda_replaces_words_by_their_synonyms(rate, number):
    for words in applied(EDA(rate, synonyms).replace, number):
        for place in changed_places(words):
            assert words[place] in LEXICON[EDA_WORDS[place]]


@NUMBER_OF_CHANGES
def test_eda_replaces_no_function_word(rate, number):
    for words in applied(EDA(rate, synonyms).replace, number):
        for place in changed_places(words):
            assert EDA_WORDS[place] not in FUNCTION_WORDS


@NUMBER_OF_CHANGES
def test_eda_inserts_as_many_synonyms_as_its_rate_says(rate, number):
    candidates = {*LEXICON["big"], *LEXICON["cat"], *LEXICON["sat"]}
    for words in applied(EDA(rate, synonyms).insert, number):
        inserted = Counter(words) - Counter(EDA_WORDS)
        assert inserted.total() == number
        assert set(inserted) <= candidates


@NUMBER_OF_CHANGES
def test_insertions_of_eda_keep_the_order_of_the_words(rate, number):
    for words in applied(EDA(rate, synonyms).insert, number):
        assert [word for word in words if word in EDA_WORDS] == EDA_WORDS


@NUMBER_OF_CHANGES
def test_swaps_of_eda_keep_all_words(rate, number):
    for words in applied(EDA(rate, synonyms).swap, number):
        assert sorted(words) == sorted(EDA_WORDS)


def test_a_swap_of_eda_moves_two_words():
    for words in applied(EDA(0.1, synonyms).swap, 1):
        assert len(changed_places(words)) == 2


@NUMBER_OF_CHANGES
def test_eda_deletes_the_rate_of_the_words_on_average(rate, number):
    view = EDA(rate, synonyms)
    rng = random.Random(0)
    lost = [6 - len(view.delete(EDA_WORDS, number, rng)) for _ in range(4000)]
    assert statistics.mean(lost) == pytest.approx(6 * rate, abs=0.1)


@NUMBER_OF_CHANGES
def test_a_view_of_eda_is_often_longer(rate, number):
    """Insertions are a quarter of the operations, and synonyms of several words make a text longer, too."""
    views = samples(EDA(rate, synonyms), " ".join(EDA_WORDS), 2000)
    longer = [view for view in views if len(view.split()) > 6]
    assert len(longer) > 300


# --- token ids ---


TOKEN_IDS = list(range(100, 120))


@pytest.fixture(scope="module", params=[0.0, 0.05, 0.3, 0.5, 0.95])
def shuffled(request):
    """A rate, and 2000 views of 20 token ids."""
    return request.param, samples(make_view("shuffle", request.param), TOKEN_IDS, 2000)


def moved_tokens(view):
    return sum(new != old for new, old in zip(view, TOKEN_IDS, strict=True))


def test_shuffle_keeps_all_tokens(shuffled):
    _, views = shuffled
    assert all(sorted(view) == TOKEN_IDS for view in views)


def test_shuffle_moves_at_most_the_fraction_that_the_rate_says(shuffled):
    rate, views = shuffled
    assert max(moved_tokens(view) for view in views) <= round(20 * rate)


def test_shuffle_permutes_the_fraction_that_the_rate_says(shuffled):
    rate, views = shuffled
    moved = statistics.mean(moved_tokens(view) for view in views)
    # A random permutation has one fixed point on average, whatever its size.
    assert moved == pytest.approx(max(20 * rate - 1, 0), abs=0.15)


@pytest.fixture(scope="module")
def with_repeated_words():
    """`with_repeated_words(size)` draws 3000 views of so many token ids, once for each size."""
    drawn = {}

    def views_of(size):
        if size not in drawn:
            drawn[size] = samples(make_view("repeat_words"), list(range(size)), 3000)
        return drawn[size]

    return views_of


SIZES = pytest.mark.parametrize("size, most", [(1, 1), (3, 2), (20, 6), (50, 16)])


@SIZES
def test_repeat_words_repeats_up_to_the_number_of_tokens_of_the_paper(size, most, with_repeated_words):
    repeated = {len(view) - size for view in with_repeated_words(size)}
    assert repeated == set(range(most + 1))


@SIZES
def test_repeat_words_keeps_every_token_and_the_order(size, most, with_repeated_words):
    for view in with_repeated_words(size):
        assert set(view) == set(range(size))
        assert view == sorted(view)


@SIZES
def test_repeat_words_repeats_no_token_more_than_once(size, most, with_repeated_words):
    for view in with_repeated_words(size):
        assert max(Counter(view).values()) <= 2


def test_each_number_of_repetitions_is_as_likely(with_repeated_words):
    repeated = [len(view) - 20 for view in with_repeated_words(20)]
    assert statistics.mean(repeated) == pytest.approx(6 / 2, abs=0.15)


# --- masked-LM views ---


def test_views_with_a_masked_lm_are_mlm_and_crop_with_mlm():
    names = [name for name, view in VIEW_CLASSES.items() if view.needs_masked_lm]
    assert names == ["mlm", "crop+mlm"]


@pytest.mark.parametrize("name", ["mlm", "crop+mlm"])
def test_the_usual_rate_of_a_view_with_masked_lm_is_that_of_bert(name):
    assert view_rate(name) == 0.15


@pytest.mark.parametrize("name", ["mlm", "crop+mlm"])
def test_the_rate_of_a_view_with_masked_lm_is_that_of_the_masked_lm(name):
    assert view_rate(name, 0.3) == 0.3


def test_the_rate_of_crop_with_mlm_is_not_that_of_the_crop():
    cropped = samples(make_view("crop+mlm", 0.3), TEXT, 20)
    assert {len(view.split()) for view in cropped} == {18}


# --- words ---

UNSPACED = {
    "Chinese": ("我爱北京天安门。", ["我", "爱", "北", "京", "天", "安", "门。"]),
    "Japanese": (
        "東京へ行きました、ね",
        ["東", "京", "へ", "行", "き", "ま", "し", "た、", "ね"],
    ),
    "Thai": ("เด็กกินข้าว", ["เด็", "ก", "กิ", "น", "ข้", "า", "ว"]),
    "mixed": ("I love 北京, no?", ["I", " love", " 北", "京,", " no?"]),
}


@pytest.mark.parametrize("script", UNSPACED)
def test_characters_stand_for_words_in_scripts_without_spaces(script):
    text, words = UNSPACED[script]
    assert split_words(text) == words


@pytest.mark.parametrize("script", UNSPACED)
def test_the_words_of_a_text_joined_are_the_text(script):
    text, _ = UNSPACED[script]
    assert "".join(split_words(text)).strip() == text
