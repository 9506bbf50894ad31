"""What a user is promised of the views of words and token ids."""

import random
import statistics
from collections import Counter

import pytest

from simcse_hf.data.views import DATASET_VIEWS, DOCUMENT_VIEWS, MASKED_LM_VIEWS, VIEWS, make_view, masked_lm_rate
from simcse_hf.data.views.synonyms import EDA, FUNCTION_WORDS, SynonymReplacement

WORDS = [f"w{i}" for i in range(20)]
TEXT = " ".join(WORDS)
LEXICON = {"cat": ("feline", "kitty cat"), "big": ("large",), "sat": ("was seated",), "the": ("le",)}
WITHOUT_WORDNET = ("crop", "delete_words", "delete_one_word", "crop+mlm")


def synonyms(word):
    return LEXICON.get(word.lower(), ())


def samples(view, given, number=400, seed=0):
    rng = random.Random(seed)
    return [view(given, rng) for _ in range(number)]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.95])
def test_crop_keeps_a_contiguous_span_at_any_place(rate):
    found = [text.split() for text in samples(make_view("crop", rate), TEXT)]
    for words in found:
        start = WORDS.index(words[0])
        assert words == WORDS[start : start + len(words)]
    assert {len(words) for words in found} == {round(20 * (1 - rate))}
    assert {words[0] for words in found} == set(WORDS[: round(20 * rate) + 1])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.95])
def test_delete_words_leaves_out_that_share_and_keeps_the_order(rate):
    found = [text.split() for text in samples(make_view("delete_words", rate), TEXT)]
    for words in found:
        assert [word for word in WORDS if word in words] == words
    assert {len(words) for words in found} == {round(20 * (1 - rate))}
    if rate:
        assert set().union(*(set(WORDS) - set(words) for words in found)) == set(WORDS)


@pytest.mark.parametrize("name", ["crop", "delete_words"])
@pytest.mark.parametrize("words", [3, 5, 9, 14])
def test_a_short_text_loses_the_rate_on_average(name, words):
    lost = [words - len(text.split()) for text in samples(make_view(name, 0.1), " ".join(WORDS[:words]), 4000)]
    assert statistics.mean(lost) == pytest.approx(0.1 * words, abs=0.04)
    assert max(lost) - min(lost) == 1


def test_delete_one_word_leaves_out_any_one():
    found = [text.split() for text in samples(make_view("delete_one_word"), TEXT)]
    assert {len(words) for words in found} == {19}
    assert len({tuple(words) for words in found}) == 20


@pytest.mark.parametrize("name", WITHOUT_WORDNET)
@pytest.mark.parametrize("text", ["word", " odd  spacing ", "a b", "你好世界"])
def test_no_view_of_words_is_ever_empty(name, text):
    rate = 0.95 if name in ("crop", "delete_words") else None
    assert all(found.strip() for found in samples(make_view(name, rate), text, 50))


@pytest.mark.parametrize("view", [SynonymReplacement(synonyms), EDA(0.9, synonyms), EDA(0.1, synonyms)])
@pytest.mark.parametrize("text", ["word", "the", "cat", "a b", "...", "The cat sat."])
def test_no_view_with_synonyms_is_ever_empty(view, text):
    assert all(found.strip() for found in samples(view, text, 100))


def test_synonym_replacement_changes_one_word_and_keeps_punctuation_and_capital():
    found = Counter(samples(SynonymReplacement(synonyms), "A Big, dog; (cat)!"))
    assert set(found) == {"A Large, dog; (cat)!", "A Big, dog; (feline)!", "A Big, dog; (kitty cat)!"}
    assert found["A Large, dog; (cat)!"] == pytest.approx(200, abs=40)  # each word that has any is as likely
    assert samples(SynonymReplacement(synonyms), "no  such word", 3) == ["no  such word"] * 3


@pytest.mark.parametrize("rate, number", [(0.1, 1), (0.5, 3)])
def test_eda_makes_each_of_its_operations_that_often(rate, number):
    view = EDA(rate, synonyms)
    words = "the big cat sat on mats".split()
    rng = random.Random(0)
    content = ["big", "cat", "sat"]
    candidates = {synonym for word in content for synonym in LEXICON[word]}
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
def test_shuffle_permutes_that_share_and_no_other(rate):
    ids = list(range(100, 120))
    found = samples(make_view("shuffle", rate), ids, 2000)
    assert all(sorted(view) == ids for view in found)
    moved = [sum(a != b for a, b in zip(view, ids, strict=True)) for view in found]
    assert max(moved) <= round(20 * rate)
    # A random permutation has one fixed point on average, whatever its size.
    assert statistics.mean(moved) == pytest.approx(max(20 * rate - 1, 0), abs=0.15)


def test_shuffle_draws_every_permutation_alike():
    view = make_view("shuffle", 1 - 1e-9)
    found = Counter(tuple(ids) for ids in samples(view, [1, 2, 3], 6000))
    assert len(found) == 6 and all(count == pytest.approx(1000, abs=150) for count in found.values())


@pytest.mark.parametrize("size, most", [(1, 1), (3, 2), (20, 6), (50, 16)])
def test_repeat_words_repeats_up_to_the_papers_number_of_tokens(size, most):
    ids = list(range(100, 100 + size))
    found = samples(make_view("repeat_words"), ids, 3000)
    assert {len(view) - size for view in found} == set(range(most + 1))
    for view in found:
        assert sorted(set(view)) == ids and view == sorted(view) and max(Counter(view).values()) <= 2
    if size == 20:
        assert statistics.mean(len(view) - size for view in found) == pytest.approx(most / 2, abs=0.15)


@pytest.mark.parametrize("name", ["shuffle", "repeat_words"])
def test_no_ids_stay_no_ids(name):
    assert make_view(name)([], random.Random(0)) == []


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("synonyms", "eda")])
def test_a_view_is_decided_by_the_random_state_alone(name):
    given = list(range(9)) if name in ("shuffle", "repeat_words") else TEXT
    assert samples(make_view(name), given, 20) == samples(make_view(name), given, 20)
    if name not in ("identity", "fixed_mask", "mlm", *DOCUMENT_VIEWS):
        assert samples(make_view(name), given, 20) != samples(make_view(name), given, 20, seed=1)
        assert name in DATASET_VIEWS


def test_views_made_elsewhere_leave_the_text():
    for name in ("identity", "fixed_mask", "mlm", *DOCUMENT_VIEWS):
        assert make_view(name)(" as  it is ", random.Random(0)) == " as  it is "


def test_rates_of_the_masked_lm():
    assert MASKED_LM_VIEWS == ("mlm", "crop+mlm")
    assert masked_lm_rate("mlm") == masked_lm_rate("crop+mlm") == 0.15
    assert masked_lm_rate("mlm", 0.3) == masked_lm_rate("crop+mlm", 0.3) == 0.3
    assert masked_lm_rate("crop") is None and masked_lm_rate("crop", 0.3) is None
    cropped = samples(make_view("crop+mlm", 0.3), TEXT, 20)
    assert {len(text.split()) for text in cropped} == {18}  # the rate is not that of the crop


@pytest.mark.parametrize("rate", [-0.1, 1.0, 15, float("nan")])
@pytest.mark.parametrize("name", ["crop", "delete_words", "shuffle", "eda", "repeat_words", "mlm", "crop+mlm"])
def test_a_rate_outside_0_to_1_is_refused(name, rate):
    with pytest.raises(ValueError, match="view_rate must be at least 0 and below 1"):
        make_view(name, rate)


@pytest.mark.parametrize("name", ["identity", "fixed_mask", "delete_one_word", "synonyms", "next_sentence"])
def test_a_rate_for_a_view_without_one_is_refused(name):
    with pytest.raises(ValueError, match=f"view {name} takes no view_rate.*crop"):
        make_view(name, 0.1)


def test_an_unknown_view_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="one of identity, .*next_three_sentences, got 'croop'"):
        make_view("croop")
