"""Equal seeds give equal text, scores follow from the meanings, and no meaning is in two splits."""

import csv
import random
import re
from dataclasses import fields

import pytest
from scipy.stats import spearmanr

from simcse_hf.data.sample.corpus import (
    score,
    scored_pairs,
    sentences,
    slot_credit,
    split_of,
    triplets,
    write_sample_corpus,
)
from simcse_hf.data.sample.grammar import FORMS, PARENT, VALUES, Meaning, sample_meaning


def past_tense_stems(verb: str) -> tuple[str, ...]:
    irregular = {"buy": "bought", "sell": "sold", "break": "broke", "find": "found", "lose": "lost", "hide": "hid"}
    irregular["study"] = "studied"
    return irregular.get(verb), verb + "ed", verb + "d", verb + verb[-1] + "ed"


def parse(sentence: str) -> Meaning:
    """Read the meaning back from the words, independently of the code that generated them."""
    text = f" {sentence.lower().removesuffix('.')} "
    slots = {}
    for slot, values in VALUES.items():
        for concept in (*values, *{PARENT[value] for value in values if value in PARENT}):
            forms = FORMS[concept]
            if slot == "action":
                forms = [form for verb in forms for form in past_tense_stems(verb) if form]
            if any(f" {form.lower()} " in text for form in forms):
                assert slot not in slots, (sentence, slot)
                slots[slot] = concept
    return Meaning(**slots)


def word_overlap(first: str, second: str) -> float:
    left, right = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return len(left & right) / len(left | right)


@pytest.mark.parametrize("make", [sentences, scored_pairs, triplets])
def test_equal_seeds_give_equal_items_and_all_are_distinct(make):
    items = make(300, seed=1)
    assert items == make(300, seed=1)
    assert items != make(300, seed=2)
    assert len(set(items)) == 300


@pytest.mark.slow
def test_the_grammar_has_over_a_hundred_thousand_sentences():
    assert len(set(sentences(101_000, seed=0))) == 101_000


@pytest.mark.parametrize(
    ("first", "second", "credit"),
    [
        ("doctor", "doctor", 1),
        ("doctor", "clinician", 2 / 3),
        ("clinician", "doctor", 2 / 3),
        ("doctor", None, 2 / 3),
        (None, "young", 2 / 3),
        ("doctor", "nurse", 1 / 3),
        ("doctor", "teacher", 0),
        ("clinician", "educator", 0),
        ("young", "old", 0),
        ("at noon", "at dusk", 0),
    ],
)
def test_credit_falls_by_a_third_for_each_step_between_two_values(first, second, credit):
    assert slot_credit(first, second) == pytest.approx(credit)


def test_score_is_the_mean_credit_of_the_filled_slots_times_five():
    meaning = Meaning("doctor", "lose", "pill", attribute="young")
    assert score(meaning, meaning) == 5
    assert score(meaning, Meaning("clinician", "lose", "pill", time="at noon")) == pytest.approx(4)
    assert score(meaning, Meaning("nurse", "find", "bandage", attribute="old")) == pytest.approx(5 * (2 / 3) / 4)
    assert score(meaning, Meaning("teacher", "find", "book", attribute="old")) == 0
    rng = random.Random(0)
    for _ in range(200):
        first, second = sample_meaning(rng), sample_meaning(rng)
        assert score(first, second) == score(second, first)
        assert 0 <= score(first, second) <= 5 * (first == second) + 5 * (first != second)


def test_scores_can_be_computed_from_the_words():
    for first, second, written in scored_pairs(300, seed=3):
        assert written == pytest.approx(score(parse(first), parse(second)), abs=1e-3)


def test_scores_cover_the_range_and_are_not_given_by_word_overlap():
    pairs = scored_pairs(1000, seed=42)
    scores = [score for *_, score in pairs]
    assert all(sum(low <= score <= low + 1 for score in scores) >= 50 for low in range(5))
    floor = spearmanr([word_overlap(first, second) for first, second, _ in pairs], scores).statistic
    assert 0.55 < floor < 0.75


def test_entailed_sentences_say_no_more_and_contradictory_ones_differ_in_one_slot():
    for texts in triplets(300, seed=4):
        premise, entailed, contradictory = (parse(text).slots() for text in texts)
        for slot, value in entailed.items():
            assert value in (premise[slot], PARENT.get(premise[slot]), None)
        (changed,) = [slot for slot in premise if premise[slot] != contradictory[slot]]
        assert None not in (premise[changed], contradictory[changed])
        assert PARENT.get(premise[changed]) != contradictory[changed]


def test_no_meaning_is_in_two_splits(tmp_path):
    corpus = write_sample_corpus(tmp_path, num_sentences=2000, num_triplets=500, num_pairs=300)
    texts = {"train": corpus.train_sentences.read_text(encoding="utf-8").splitlines(), "dev": [], "test": []}
    for path, delimiter, split in (
        (corpus.train_triplets, ",", "train"),
        (corpus.dev, "\t", "dev"),
        (corpus.test, "\t", "test"),
    ):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter=delimiter))[1:]
        texts[split] += [text for row in rows for text in (row if split == "train" else row[:2])]
    meanings = {split: {parse(text) for text in lines} for split, lines in texts.items()}
    assert not (meanings["train"] & meanings["dev"] | meanings["train"] & meanings["test"])
    assert not meanings["dev"] & meanings["test"]
    assert all(split_of(meaning) == split for split, members in meanings.items() for meaning in members)


def test_files_have_their_headers_and_the_same_bytes_again(tmp_path):
    sizes = {"num_sentences": 50, "num_triplets": 40, "num_pairs": 30}
    first, again = (write_sample_corpus(tmp_path / name, seed=5, **sizes) for name in ("a", "b"))
    for field in fields(first):
        assert getattr(first, field.name).read_bytes() == getattr(again, field.name).read_bytes()
    assert len(first.train_sentences.read_text(encoding="utf-8").splitlines()) == 50
    lines = first.train_triplets.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "sent0,sent1,hard_neg" and len(lines) == 41
    for path in (first.dev, first.test):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == "sentence1\tsentence2\tscore" and len(lines) == 31


def test_refuses_an_unknown_split_and_no_items():
    with pytest.raises(ValueError, match="n must be at least 1, not 0"):
        sentences(0, seed=1)
    with pytest.raises(ValueError, match="train, dev, test, not 'validation'"):
        scored_pairs(1, seed=1, split="validation")
