"""The words of the sample corpus. A concept is a list of synonyms, separated by `|` and named by the first."""

from typing import NamedTuple


class Domain(NamedTuple):
    """A field of life: who acts in it, on what, and where. A category is the hypernym of its agents or objects."""

    agent_category: str
    agents: tuple[str, ...]
    object_category: str
    objects: tuple[str, ...]
    places: tuple[str, ...]


#: Agent category: agents; object category: objects; places.
_DOMAINS = """
clinician|medic: doctor|physician nurse|caregiver pharmacist|chemist|druggist;
medicament|remedy: bandage|dressing pill|tablet ointment|balm|salve syringe|needle;
hospital|infirmary|clinic pharmacy|drugstore

educator|scholar: teacher|instructor|schoolmaster professor|lecturer|academic librarian|archivist;
document|text: book|volume|tome newspaper|gazette letter|message map|chart|atlas;
classroom|schoolroom library|bookroom

countryman|peasant: farmer|grower shepherd|herdsman gardener|groundskeeper;
animal|beast|creature: horse|pony|steed pig|hog|swine dog|hound hen|chicken;
barn|stable meadow|pasture|field

caterer|restaurateur: cook|chef baker|confectioner waiter|server|steward;
dish|meal: cake|gateau soup|broth|stew sandwich|roll|bun pie|tart;
restaurant|diner|eatery kitchen|cookhouse

performer|entertainer|artist: singer|vocalist drummer|percussionist dancer|ballerina;
instrument|soundmaker: guitar|lute piano|keyboard violin|fiddle trumpet|bugle|horn;
theatre|playhouse auditorium|amphitheatre

seaman|seafarer: sailor|mariner|deckhand captain|skipper fisherman|angler;
vessel|craft: ferry|steamer raft|float canoe|kayak yacht|sloop;
harbour|port|dock beach|shore|seaside
"""


def _read_domain(text: str) -> Domain:
    agents, objects, places = (part.split() for part in text.split(";"))
    agent_category, object_category = agents.pop(0).rstrip(":"), objects.pop(0).rstrip(":")
    return Domain(agent_category, tuple(agents), object_category, tuple(objects), tuple(places))


DOMAINS = tuple(_read_domain(text) for text in _DOMAINS.strip().split("\n\n"))

# Neighbours at indices 2i and 2i + 1 are opposites.
ATTRIBUTES = tuple(
    "young|youthful old|elderly|aged happy|cheerful|glad sad|unhappy|gloomy brave|fearless|bold timid|fearful|shy "
    "calm|relaxed|serene nervous|anxious|worried tired|weary|exhausted lively|energetic kind|gentle|friendly "
    "rude|nasty|impolite".split()
)

# Neighbours at indices 2i and 2i + 1 are opposites.
ACTIONS = tuple(
    "buy|purchase|acquire sell|vend lift|raise|hoist lower|drop clean|wash|scrub soil|stain|smear repair|fix|mend "
    "break|smash|wreck find|discover|locate lose|misplace praise|admire|applaud criticise|fault|condemn "
    "show|display|exhibit hide|conceal watch|observe|study ignore|neglect|disregard".split()
)

#: Past tense of the verbs that do not take -ed.
IRREGULAR = dict(
    verb.split("|") for verb in "buy|bought sell|sold break|broke find|found lose|lost hide|hid study|studied".split()
)
#: Verbs whose last consonant doubles before -ed.
DOUBLING = ("drop", "scrub")

TIMES = (
    "at dawn|at sunrise|at daybreak",
    "at noon|at midday|at lunchtime",
    "at dusk|at sunset|at nightfall",
    "on Sunday|on weekends",
    "in spring|in springtime",
    "in summer|in summertime",
    "in autumn|in fall",
    "in winter|in wintertime",
)
