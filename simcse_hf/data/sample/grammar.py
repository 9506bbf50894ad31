"""A small English grammar: a meaning is a choice of slot values, a sentence one of its many wordings."""

import random
from dataclasses import dataclass, fields

from .lexicon import ACTIONS, ATTRIBUTES, DOMAINS, DOUBLING, IRREGULAR, TIMES

CHANCE_OF_OPTIONAL_SLOT = 0.92
CHANCE_OF_HYPERNYM = 0.04
CHANCE_OF_FOREIGN_VALUE = 0.1
CHANCE_OF_FAVOURITE = 0.75
CHANCE_OF_FRONTING = 0.3


def _concept(forms: str) -> str:
    return forms.split("|")[0]


FORMS: dict[str, tuple[str, ...]] = {}
"""Concept (named by its first synonym) -> its synonyms."""
PARENT: dict[str, str] = {}
"""Agent or object concept -> its hypernym, the category of its domain."""

for _domain in DOMAINS:
    for _kinds, _category in (
        (_domain.agents, _domain.agent_category),
        (_domain.objects, _domain.object_category),
        (_domain.places, None),
    ):
        for _kind in _kinds:
            FORMS[_concept(_kind)] = tuple(_kind.split("|"))
            if _category is not None:
                FORMS[_concept(_category)] = tuple(_category.split("|"))
                PARENT[_concept(_kind)] = _concept(_category)
for _forms in (*ATTRIBUTES, *ACTIONS, *TIMES):
    FORMS[_concept(_forms)] = tuple(_forms.split("|"))

AGENTS = tuple(_concept(forms) for domain in DOMAINS for forms in domain.agents)
OBJECTS = tuple(_concept(forms) for domain in DOMAINS for forms in domain.objects)
PLACES = tuple(_concept(forms) for domain in DOMAINS for forms in domain.places)
VALUES: dict[str, tuple[str, ...]] = {
    "agent": AGENTS,
    "action": tuple(map(_concept, ACTIONS)),
    "object": OBJECTS,
    "attribute": tuple(map(_concept, ATTRIBUTES)),
    "place": PLACES,
    "time": tuple(map(_concept, TIMES)),
}
"""Slot -> its specific values; an agent or an object may also be the hypernym in `PARENT` of a specific value."""
OPTIONAL_SLOTS = ("attribute", "place", "time")
OPPOSITE = {
    value: values[index ^ 1]
    for values in (VALUES["action"], VALUES["attribute"])
    for index, value in enumerate(values)
}


@dataclass(frozen=True)
class Meaning:
    """What a sentence says. Each slot holds a concept, named by its first synonym in the lexicon.

    Attributes:
        agent (`str`): who acts; a kind of person, or the hypernym of several.
        action (`str`): what is done.
        object (`str`): what it is done to; a kind of thing, or the hypernym of several.
        attribute (`str`, *optional*): what the agent is like.
        place (`str`, *optional*): where it is done.
        time (`str`, *optional*): when it is done.

    Raises:
        ValueError: if a slot holds a concept that the lexicon does not have for that slot.
    """

    agent: str
    action: str
    object: str
    attribute: str | None = None
    place: str | None = None
    time: str | None = None

    def __post_init__(self):
        for slot, value in self.slots().items():
            if value is None and slot in OPTIONAL_SLOTS:
                continue
            if value is None or (value not in VALUES[slot] and value not in map(PARENT.get, VALUES[slot])):
                raise ValueError(f"Meaning: {slot}={value!r} is not a concept of that slot; see VALUES[{slot!r}].")

    def slots(self) -> dict[str, str | None]:
        """Slot name -> concept, in the order of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def sample_meaning(rng: random.Random, domain: int | None = None) -> Meaning:
    """Draws a plausible meaning: an agent with the objects of its trade, in one of its places.

    Every value has its own habits (favourite objects, actions, attributes, places, times), so that in running text the
    synonyms of one concept keep the same company and different concepts keep different company: what masked language
    modelling can learn from. One value in ten ignores the habits.

    Args:
        rng (`random.Random`): the source of chance.
        domain (`int`, *optional*): index into `DOMAINS`; drawn when not given.
    """

    def choose(favourites: tuple[str, ...], usual: tuple[str, ...], slot: str) -> str:
        if rng.random() < CHANCE_OF_FOREIGN_VALUE:
            return rng.choice(VALUES[slot])
        return rng.choice(favourites if rng.random() < CHANCE_OF_FAVOURITE else usual)

    domain = rng.randrange(len(DOMAINS)) if domain is None else domain
    agents, objects, places = AGENTS[3 * domain :][:3], OBJECTS[4 * domain :][:4], PLACES[2 * domain :][:2]
    agent = rng.choice(agents)
    who = AGENTS.index(agent)
    thing = choose(objects[who % 3 :][:2], objects, "object")
    what = OBJECTS.index(thing)
    actions, attributes, times = VALUES["action"], VALUES["attribute"], VALUES["time"]
    # The strides visit every value and keep opposites apart.
    action = choose(tuple(actions[(5 * what + 9 * k) % len(actions)] for k in range(3)), actions, "action")
    attribute = choose(
        tuple(attributes[(3 * who + 5 * k) % len(attributes)] for k in range(3)), attributes, "attribute"
    )
    place = choose((places[what % 2],), places, "place")
    where = PLACES.index(place)
    time = choose(tuple(times[(3 * where + k) % len(times)] for k in range(3)), times, "time")

    def present() -> bool:
        return rng.random() < CHANCE_OF_OPTIONAL_SLOT

    return Meaning(
        agent=PARENT[agent] if rng.random() < CHANCE_OF_HYPERNYM else agent,
        action=action,
        object=PARENT[thing] if rng.random() < CHANCE_OF_HYPERNYM else thing,
        attribute=attribute if present() else None,
        place=place if present() else None,
        time=time if present() else None,
    )


def _past_tense(verb: str) -> str:
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    stem = verb[:-1] if verb.endswith("e") else verb + verb[-1] if verb in DOUBLING else verb
    return stem + "ed"


def realise(meaning: Meaning, rng: random.Random) -> str:
    """Puts a meaning into words: draws a synonym for each slot, the order of place and time, what comes first.

    Every sentence is in the past tense and the active voice. Tense and voice change the commonest words: the
    similarities of a tiny encoder would be about them before anything else.

    Args:
        meaning (`Meaning`): what to say.
        rng (`random.Random`): draws the wording, which does not depend on the meaning.

    Returns:
        `str`: one sentence, capitalised, with a full stop.
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
    if adjuncts and rng.random() < CHANCE_OF_FRONTING:
        clause = f"{adjuncts.pop()} {clause}"
    sentence = " ".join([clause, *adjuncts])
    return sentence[0].upper() + sentence[1:] + "."
