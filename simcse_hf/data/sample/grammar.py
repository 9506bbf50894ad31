"""A small English grammar: a meaning is a choice of concepts, and a sentence is one of its many wordings."""

import random
from dataclasses import dataclass
from functools import cache

from .lexicon import ACTIONS, ATTRIBUTES, DOMAINS, DOUBLING, IRREGULAR, TIMES


def _names(concepts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(concept.split("|")[0] for concept in concepts)


_CATEGORIES = [
    (category, members)
    for domain in DOMAINS
    for category, members in ((domain.agent_category, domain.agents), (domain.object_category, domain.objects))
]
_CONCEPTS = [
    *(concept for category, members in _CATEGORIES for concept in (category, *members)),
    *(place for domain in DOMAINS for place in domain.places), *ATTRIBUTES, *ACTIONS, *TIMES,
]  # fmt: skip
#: Concept -> its synonyms.
FORMS = {concept.split("|")[0]: tuple(concept.split("|")) for concept in _CONCEPTS}
#: Agent or object -> its hypernym, the category of its domain.
PARENT = {member: _names((category,))[0] for category, members in _CATEGORIES for member in _names(members)}
#: Slot -> its specific values. An agent or an object may also be the hypernym of one.
VALUES = {
    "agent": tuple(name for domain in DOMAINS for name in _names(domain.agents)),
    "action": _names(ACTIONS),
    "object": tuple(name for domain in DOMAINS for name in _names(domain.objects)),
    "attribute": _names(ATTRIBUTES),
    "place": tuple(name for domain in DOMAINS for name in _names(domain.places)),
    "time": _names(TIMES),
}
# What a slot may hold: its values and their hypernyms, and nothing in the optional slots.
_ALLOWED: dict[str, set[str | None]] = {
    slot: {*values, *(PARENT[value] for value in values if value in PARENT)} for slot, values in VALUES.items()
}
for _slot in ("attribute", "place", "time"):
    _ALLOWED[_slot].add(None)
#: Action or attribute -> its opposite, which is its neighbour in the lexicon.
OPPOSITE = {
    value: values[index ^ 1]
    for values in (VALUES["action"], VALUES["attribute"])
    for index, value in enumerate(values)
}


@dataclass(frozen=True)
class Meaning:
    """What a sentence says. Each slot holds a concept; `attribute`, `place` and `time` may be empty.

    Raises:
        ValueError: If a slot holds a concept that the lexicon does not have for that slot.
    """

    agent: str
    action: str
    object: str
    attribute: str | None = None
    place: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        for slot, value in self.slots().items():
            if value not in _ALLOWED[slot]:
                raise ValueError(f"Meaning: {slot}={value!r} is not a concept of that slot; see VALUES[{slot!r}].")

    def slots(self) -> dict[str, str | None]:
        """Return the slots and their concepts, in the order of the fields."""
        return dict(vars(self))


@cache
def _favourites(slot: str, start: int, stride: int) -> tuple[str, ...]:
    # The strides visit every value and keep opposites apart.
    return tuple(VALUES[slot][(start + stride * k) % len(VALUES[slot])] for k in range(3))


def sample_meaning(rng: random.Random, domain: int | None = None) -> Meaning:
    """Draw a plausible meaning: an agent with an object of its trade, in one of its places.

    Every concept has habits: favourite objects, actions, attributes, places and times. So the synonyms of a concept
    keep the same company and different concepts keep different company, which masked language modelling can learn. One
    value in ten ignores the habits.

    Args:
        rng (`random.Random`): The source of randomness.
        domain (`int`, *optional*): Index into `DOMAINS`. Defaults to a random one.

    Returns:
        `Meaning`: The meaning.
    """

    def choose(favourites: tuple[str, ...], usual: tuple[str, ...], slot: str) -> str:
        if rng.random() < 0.1:
            return rng.choice(VALUES[slot])
        return rng.choice(favourites if rng.random() < 0.75 else usual)

    domain = rng.randrange(len(DOMAINS)) if domain is None else domain
    objects, places = VALUES["object"][4 * domain :][:4], VALUES["place"][2 * domain :][:2]
    agent = rng.choice(VALUES["agent"][3 * domain :][:3])
    agent_index = VALUES["agent"].index(agent)
    thing = choose(objects[agent_index % 3 :][:2], objects, "object")
    object_index = VALUES["object"].index(thing)
    action = choose(_favourites("action", 5 * object_index, 9), VALUES["action"], "action")
    attribute = choose(_favourites("attribute", 3 * agent_index, 5), VALUES["attribute"], "attribute")
    place = choose((places[object_index % 2],), places, "place")
    time = choose(_favourites("time", 3 * VALUES["place"].index(place), 1), VALUES["time"], "time")
    return Meaning(
        agent=PARENT[agent] if rng.random() < 0.04 else agent,
        action=action,
        object=PARENT[thing] if rng.random() < 0.04 else thing,
        attribute=attribute if rng.random() < 0.92 else None,
        place=place if rng.random() < 0.92 else None,
        time=time if rng.random() < 0.92 else None,
    )


def _past_tense(verb: str) -> str:
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    stem = verb[:-1] if verb.endswith("e") else verb + verb[-1] if verb in DOUBLING else verb
    return stem + "ed"


def realise(meaning: Meaning, rng: random.Random) -> str:
    """Put a meaning into words with random synonyms and a random order of place and time.

    All sentences are in the past tense and the active voice. Otherwise the similarities of a tiny encoder would
    reflect tense and voice before anything else.

    Args:
        meaning (`Meaning`): What to say.
        rng (`random.Random`): The source of randomness, which does not depend on the meaning.

    Returns:
        `str`: One sentence, capitalised, with a full stop.
    """

    def word(concept: str) -> str:
        return rng.choice(FORMS[concept])

    agent = word(meaning.agent)
    if meaning.attribute is not None:
        agent = f"{word(meaning.attribute)} {agent}"
    clause = f"the {agent} {_past_tense(word(meaning.action))} the {word(meaning.object)}"
    adjuncts = []
    if meaning.place is not None:
        adjuncts.append(f"at the {word(meaning.place)}")
    if meaning.time is not None:
        adjuncts.append(word(meaning.time))
    rng.shuffle(adjuncts)
    if adjuncts and rng.random() < 0.3:
        clause = f"{adjuncts.pop()} {clause}"
    sentence = " ".join([clause, *adjuncts])
    return sentence[0].upper() + sentence[1:] + "."
