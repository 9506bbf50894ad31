"""Make the sample in `simcse_hf/data/sample`: a generated corpus, and a tiny BERT that was pretrained on it.

    python tools/make_sample.py [FOLDER]

The package ships the files, so that examples and tests run without a download. The corpus has training sentences,
triplets, and pairs whose scores follow from what the sentences say. Equal seeds give equal bytes. The encoder sees the
training sentences only, and no pair, triplet or score.
"""

import argparse
import csv
import gzip
import hashlib
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)

SAMPLE = Path(__file__).parents[1] / "simcse_hf/data/sample"
SPLITS = ("train", "dev", "test")
SEED = 42
MAX_LENGTH = 32
Item = TypeVar("Item")


# --- lexicon ---------------------------------------------------------------------------------------------------------


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


# --- grammar ---------------------------------------------------------------------------------------------------------


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


# --- corpus ----------------------------------------------------------------------------------------------------------


def split_of(meaning: Meaning) -> str:
    """Return the only split that a meaning belongs to, whatever the seed: 80% train, 10% dev, 10% test by its hash."""
    key = "|".join(map(str, meaning.slots().values()))
    bucket = hashlib.sha256(key.encode()).digest()[0] / 256
    return "train" if bucket < 0.8 else "dev" if bucket < 0.9 else "test"


def slot_credit(first: str | None, second: str | None) -> float:
    """Score how far two values of a slot agree: 1 - (steps between them) / 3, but never below 0.

    A step leads from a value to its hypernym (doctor -> clinician) or from a value to an empty slot. So two values
    with the same hypernym are two steps apart, and values that share none get no credit.

    Args:
        first (`str`, *optional*): A value.
        second (`str`, *optional*): Another value of the slot.

    Returns:
        `float`: The credit, from 0 to 1.
    """
    if first == second:
        return 1.0
    if first is None or second is None or PARENT.get(first) == second or PARENT.get(second) == first:
        return 2 / 3
    return 1 / 3 if first in PARENT and PARENT[first] == PARENT.get(second) else 0.0


def score(first: Meaning, second: Meaning) -> float:
    """Score the similarity of two meanings: five times the mean credit of the slots that at least one of them fills.

    "The young doctor lost the pill" and "The medic misplaced the tablet at noon" agree in action and object (credit 1
    each) and up to one step in the agent (2/3), and each fills one slot alone (2/3): 5 * (1 + 1 + 3 * 2/3) / 5 = 4.

    Args:
        first (`Meaning`): A meaning.
        second (`Meaning`): Another meaning.

    Returns:
        `float`: From 0 (nothing shared) to 5 (the same).
    """
    pairs = zip(first.slots().values(), second.slots().values(), strict=True)
    credits = [slot_credit(left, right) for left, right in pairs if left is not None or right is not None]
    return 5 * sum(credits) / len(credits)


def sentences(n: int, seed: int, split: str = "train") -> list[str]:
    """Draw `n` distinct sentences of a split."""
    rng = random.Random(seed)

    def draw() -> str | None:
        meaning = sample_meaning(rng)
        return realise(meaning, rng) if split_of(meaning) == split else None

    return _distinct(draw, n, split)


def scored_pairs(n: int, seed: int, split: str = "dev") -> list[tuple[str, str, float]]:
    """Draw `n` distinct pairs of sentences of a split with their scores from 0 to 5.

    The second meaning takes over each slot of the first with a probability that is drawn for the pair, so that scores
    cover the whole range. Both are worded independently, so counting shared words does not give the score: its
    Spearman correlation is about 0.64, the floor for an encoder that knows the synonyms.

    Args:
        n (`int`): The number of pairs.
        seed (`int`): The seed.
        split (`str`, *optional*, defaults to `"dev"`): The split of both meanings.

    Returns:
        `list[tuple[str, str, float]]`: The pairs and their scores.
    """
    rng = random.Random(seed)

    def draw() -> tuple[str, str, float] | None:
        domain = rng.randrange(len(DOMAINS))
        first = sample_meaning(rng, domain)
        if split_of(first) != split:
            return None
        second = first
        if rng.random() >= 0.1:
            kept = rng.random()
            # Drawing again until the meaning is in the split keeps nine pairs in ten that would otherwise be lost.
            while second == first or split_of(second) != split:
                fresh = sample_meaning(rng, domain if rng.random() < 0.25 else None)
                second = _change(fresh, {slot: value for slot, value in first.slots().items() if rng.random() < kept})
        pair = realise(first, rng), realise(second, rng)
        return None if pair[0] == pair[1] else (*pair, round(score(first, second), 3))

    return _distinct(draw, n, split)


def triplets(n: int, seed: int, split: str = "train") -> list[tuple[str, str, str]]:
    """Draw `n` distinct triplets of a premise, an entailed and a contradictory sentence of a split."""
    rng = random.Random(seed)

    def draw() -> tuple[str, str, str] | None:
        premise = sample_meaning(rng)
        entailed = _weaken(premise, rng)
        contradictory = _contradict(premise, rng)
        if {split_of(meaning) for meaning in (premise, entailed, contradictory)} != {split}:
            return None
        triplet = realise(premise, rng), realise(entailed, rng), realise(contradictory, rng)
        return triplet if len(set(triplet)) == 3 else None

    return _distinct(draw, n, split)


def _change(meaning: Meaning, values: dict[str, Any]) -> Meaning:
    return replace(meaning, **values)


def _weaken(meaning: Meaning, rng: random.Random) -> Meaning:
    """Make up to two slots less specific: replace agent or object by its hypernym, or empty an optional slot."""
    steps: list[tuple[str, str | None]] = [
        (slot, PARENT[value]) for slot, value in meaning.slots().items() if value in PARENT
    ]
    steps += [(slot, None) for slot in ("attribute", "place", "time") if getattr(meaning, slot) is not None]
    return _change(meaning, dict(rng.sample(steps, min(len(steps), rng.choice((0, 1, 1, 2))))))


def _contradict(meaning: Meaning, rng: random.Random) -> Meaning:
    """Make one slot incompatible: the opposite, or another value with the same hypernym."""
    slot = rng.choice([slot for slot, value in meaning.slots().items() if value in VALUES[slot]])
    value = getattr(meaning, slot)
    if value in OPPOSITE:
        return _change(meaning, {slot: OPPOSITE[value]})
    siblings = [other for other in VALUES[slot] if other != value and PARENT.get(other) == PARENT.get(value)]
    return _change(meaning, {slot: rng.choice(siblings)})


def _distinct(draw: Callable[[], Item | None], n: int, split: str) -> list[Item]:
    """Call `draw` until it has given `n` distinct items. `None` does not count."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}.")
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}.")
    items: dict[Item, None] = {}
    for _ in range(1000 * n):
        item = draw()
        if item is not None:
            items[item] = None
            if len(items) == n:
                return list(items)
    raise ValueError(
        f"The sample grammar gave only {len(items)} distinct items of the {split} split; ask for fewer than {n}."
    )


def write_corpus(
    directory: Path, num_sentences: int = 20_000, num_triplets: int = 10_000, num_pairs: int = 1_000
) -> None:
    """Write the corpus. No meaning of one split occurs in another, and equal arguments give equal bytes.

    Args:
        directory (`Path`): The folder. Earlier files are overwritten.
        num_sentences (`int`, *optional*, defaults to `20000`): The number of training sentences.
        num_triplets (`int`, *optional*, defaults to `10000`): The number of training triplets.
        num_pairs (`int`, *optional*, defaults to `1000`): The number of scored pairs in each of dev and test.
    """
    _write(directory / "train_sentences.txt.gz", "\n".join(sentences(num_sentences, SEED)) + "\n")
    header = ("sent0", "sent1", "hard_neg")
    _write(directory / "train_triplets.csv.gz", _table(",", header, triplets(num_triplets, SEED)))
    for split in ("dev", "test"):
        header = ("sentence1", "sentence2", "score")
        _write(directory / f"{split}.tsv.gz", _table("\t", header, scored_pairs(num_pairs, SEED, split)))


def _table(delimiter: str, header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


# --- encoder ---------------------------------------------------------------------------------------------------------


def write_encoder(directory: Path, texts: Sequence[str], steps: int = 700) -> None:
    """Train a tokenizer and a `BertForMaskedLM` on texts, and save both.

    Args:
        directory (`Path`): The folder, for `AutoModel`, `AutoModelForMaskedLM` and `AutoTokenizer`.
        texts (`Sequence[str]`): The texts.
        steps (`int`, *optional*, defaults to `700`): Optimizer steps of masked language modelling.
    """
    set_seed(SEED)
    tokenizer = _make_tokenizer(texts)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=2 * MAX_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        # 0.02 suits a width of 768; narrower layers need larger weights for outputs of the same size.
        initializer_range=0.02 * (768 / 64) ** 0.5,
        # An encoder of this size does not overfit, and without dropout it learns more in a step.
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    rows = [{"input_ids": ids} for ids in tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]]
    with TemporaryDirectory() as scratch:
        args = TrainingArguments(
            output_dir=scratch,
            max_steps=steps,
            per_device_train_batch_size=64,
            learning_rate=2e-3,
            warmup_steps=0.1,
            train_sampling_strategy="group_by_length",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            seed=SEED,
        )
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
        trainer = Trainer(BertForMaskedLM(config), args, data_collator=collator, train_dataset=rows)
        trainer.train()
    # Contrastive training needs BERT's dropout rates.
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    trainer.model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _make_tokenizer(texts: Sequence[str]) -> BertTokenizer:
    """Make an uncased WordPiece tokenizer whose vocabulary is the words of the texts, and letters for other words."""
    # The trainer of the tokenizers library breaks ties differently from one run to the next.
    blank = BertTokenizer()
    backend = blank.backend_tokenizer
    normalized = backend.normalizer.normalize_str("\n".join(texts))
    # White space and punctuation end a word, so most words are split off once, not once for each text.
    chunks = dict.fromkeys(normalized.split())
    words = {word for chunk in chunks for word, _ in backend.pre_tokenizer.pre_tokenize_str(chunk)}
    special = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]
    letters = sorted(set("".join(words)))
    tokens = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words)])
    return BertTokenizer(vocab={token: row for row, token in enumerate(tokens)}, model_max_length=MAX_LENGTH)


def main() -> None:
    """Write the sample."""
    parser = argparse.ArgumentParser(description="Write the sample corpus, and the encoder that has learned from it.")
    parser.add_argument("folder", type=Path, nargs="?", default=SAMPLE, help="default: %(default)s")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder)
    write_encoder(
        folder / "encoder", gzip.decompress((folder / "train_sentences.txt.gz").read_bytes()).decode().splitlines()
    )


if __name__ == "__main__":
    main()
