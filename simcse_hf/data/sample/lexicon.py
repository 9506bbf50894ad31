"""The words of the sample corpus: concepts, the synonyms that express each, and which concepts go together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """A field of life: who acts in it, on what, and where. Synonyms of one concept are separated by ``|``.

    Attributes:
        agent_category (`str`): the hypernym of every agent of the domain.
        agents (`tuple[str, ...]`): three kinds of people.
        object_category (`str`): the hypernym of every object of the domain.
        objects (`tuple[str, ...]`): four kinds of things.
        places (`tuple[str, ...]`): two places.
    """

    agent_category: str
    agents: tuple[str, ...]
    object_category: str
    objects: tuple[str, ...]
    places: tuple[str, ...]


DOMAINS = (
    Domain(
        "clinician|medic",
        ("doctor|physician", "nurse|caregiver", "pharmacist|chemist|druggist"),
        "medicament|remedy",
        ("bandage|dressing", "pill|tablet", "ointment|balm|salve", "syringe|needle"),
        ("hospital|infirmary|clinic", "pharmacy|drugstore"),
    ),
    Domain(
        "educator|scholar",
        ("teacher|instructor|schoolmaster", "professor|lecturer|academic", "librarian|archivist"),
        "document|text",
        ("book|volume|tome", "newspaper|gazette", "letter|message", "map|chart|atlas"),
        ("classroom|schoolroom", "library|bookroom"),
    ),
    Domain(
        "countryman|peasant",
        ("farmer|grower", "shepherd|herdsman", "gardener|groundskeeper"),
        "animal|beast|creature",
        ("horse|pony|steed", "pig|hog|swine", "dog|hound", "hen|chicken"),
        ("barn|stable", "meadow|pasture|field"),
    ),
    Domain(
        "caterer|restaurateur",
        ("cook|chef", "baker|confectioner", "waiter|server|steward"),
        "dish|meal",
        ("cake|gateau", "soup|broth|stew", "sandwich|roll|bun", "pie|tart"),
        ("restaurant|diner|eatery", "kitchen|cookhouse"),
    ),
    Domain(
        "performer|entertainer|artist",
        ("singer|vocalist", "drummer|percussionist", "dancer|ballerina"),
        "instrument|soundmaker",
        ("guitar|lute", "piano|keyboard", "violin|fiddle", "trumpet|bugle|horn"),
        ("theatre|playhouse", "auditorium|amphitheatre"),
    ),
    Domain(
        "seaman|seafarer",
        ("sailor|mariner|deckhand", "captain|skipper", "fisherman|angler"),
        "vessel|craft",
        ("ferry|steamer", "raft|float", "canoe|kayak", "yacht|sloop"),
        ("harbour|port|dock", "beach|shore|seaside"),
    ),
)

# Neighbours at indices 2i and 2i + 1 are opposites.
ATTRIBUTES = (
    "young|youthful",
    "old|elderly|aged",
    "happy|cheerful|glad",
    "sad|unhappy|gloomy",
    "brave|fearless|bold",
    "timid|fearful|shy",
    "calm|relaxed|serene",
    "nervous|anxious|worried",
    "tired|weary|exhausted",
    "lively|energetic",
    "kind|gentle|friendly",
    "rude|nasty|impolite",
)

# Neighbours at indices 2i and 2i + 1 are opposites.
ACTIONS = (
    "buy|purchase|acquire",
    "sell|vend",
    "lift|raise|hoist",
    "lower|drop",
    "clean|wash|scrub",
    "soil|stain|smear",
    "repair|fix|mend",
    "break|smash|wreck",
    "find|discover|locate",
    "lose|misplace",
    "praise|admire|applaud",
    "criticise|fault|condemn",
    "show|display|exhibit",
    "hide|conceal",
    "watch|observe|study",
    "ignore|neglect|disregard",
)

# Past tense of the verbs that do not take -ed.
IRREGULAR = {
    "buy": "bought",
    "sell": "sold",
    "break": "broke",
    "find": "found",
    "lose": "lost",
    "hide": "hid",
    "study": "studied",
}
# Verbs whose last consonant doubles before -ed.
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
