"""A meaning has many wordings, and each wording says nothing but its meaning."""

import random

import pytest

from simcse_hf.data.sample.grammar import FORMS, OPPOSITE, PARENT, VALUES, Meaning, realise, sample_meaning
from simcse_hf.data.sample.lexicon import ACTIONS, ATTRIBUTES, DOMAINS, TIMES

FULL = Meaning("doctor", "lose", "pill", attribute="young", place="hospital", time="at noon")


def content_words(concept: str) -> set[str]:
    return {form.lower() for form in FORMS[concept]}


def test_no_word_belongs_to_two_concepts():
    groups = [*ATTRIBUTES, *ACTIONS, *TIMES]
    for domain in DOMAINS:
        groups += [domain.agent_category, *domain.agents, domain.object_category, *domain.objects, *domain.places]
    forms = [form for group in groups for form in group.split("|")]
    assert len(forms) == len(set(forms))
    assert len(FORMS) == len(groups)
    assert all(len(synonyms) >= 2 for synonyms in FORMS.values())


def test_every_wording_shows_its_meaning():
    rng = random.Random(0)
    past = {"buy": "bought", "lose": "lost", "misplace": "misplaced", "drop": "dropped", "study": "studied"}
    for verb, form in past.items():
        concept = next(concept for concept, synonyms in FORMS.items() if verb in synonyms)
        sentences = [realise(Meaning("doctor", concept, "pill"), rng) for _ in range(60)]
        assert any(f" {form} " in sentence for sentence in sentences)
    for _ in range(200):
        sentence = f" {realise(FULL, rng).lower().removesuffix('.')} "
        for concept in ("doctor", "pill", "young", "hospital", "at noon"):
            assert sum(f" {form} " in sentence for form in content_words(concept)) == 1


def test_draws_all_synonyms_and_orders():
    rng = random.Random(0)
    sentences = {realise(FULL, rng) for _ in range(3000)}
    assert all(any(f" {form}" in sentence for sentence in sentences) for form in FORMS["doctor"])
    assert {sentence.split()[0] for sentence in sentences} == {"The", "At"}
    assert any("hospital at noon" in sentence for sentence in sentences)
    assert any("noon at the hospital" in sentence for sentence in sentences)


def test_a_sentence_is_capitalised_and_ends_in_a_full_stop():
    rng = random.Random(0)
    for _ in range(200):
        sentence = realise(sample_meaning(rng), rng)
        assert sentence[0].isupper() and sentence.endswith(".") and "  " not in sentence and "None" not in sentence


def test_draws_every_value_and_objects_fit_their_agents():
    rng = random.Random(0)
    meanings = [sample_meaning(rng) for _ in range(5000)]
    for slot, values in VALUES.items():
        assert set(values) <= {getattr(meaning, slot) for meaning in meanings}
    farmers = [meaning for meaning in meanings if meaning.agent == "farmer"]
    animals = [meaning for meaning in farmers if PARENT.get(meaning.object, meaning.object) == "animal"]
    assert len(animals) > 0.7 * len(farmers)


def test_opposites_are_mutual():
    assert set(OPPOSITE) == set(VALUES["action"]) | set(VALUES["attribute"])
    assert all(value != other and OPPOSITE[other] == value for value, other in OPPOSITE.items())
    assert OPPOSITE["buy"] == "sell"


@pytest.mark.parametrize(
    ("slot", "value"), [("agent", "hospital"), ("action", None), ("object", "physician"), ("time", "doctor")]
)
def test_refuses_a_concept_of_another_slot(slot, value):
    values = {"agent": "doctor", "action": "lose", "object": "pill"} | {slot: value}
    with pytest.raises(ValueError, match=f"{slot}={value!r}"):
        Meaning(**values)
