"""The sample corpus: training sentences, triplets and graded pairs whose scores follow from what the sentences say."""

import csv
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from .grammar import OPPOSITE, PARENT, VALUES, Meaning, realise, sample_meaning
from .lexicon import DOMAINS

Split = Literal["train", "dev", "test"]
SPLITS = ("train", "dev", "test")
Item = TypeVar("Item")

CHANCE_OF_SAME_MEANING = 0.1
CHANCE_OF_SAME_DOMAIN = 0.25
MAX_DRAWS_PER_ITEM = 1000


@dataclass(frozen=True)
class SampleCorpus:
    """Where `write_sample_corpus` put its files.

    Attributes:
        train_sentences (`Path`): one sentence a line, for unsupervised training and masked language modelling.
        train_triplets (`Path`): csv with the header ``sent0,sent1,hard_neg``, for supervised training.
        dev (`Path`): tsv with the header ``sentence1 sentence2 score``, scores from 0 to 5.
        test (`Path`): the same, over other meanings.
    """

    train_sentences: Path
    train_triplets: Path
    dev: Path
    test: Path

    @classmethod
    def in_directory(cls, directory: Path) -> "SampleCorpus":
        return cls(
            train_sentences=directory / "train_sentences.txt",
            train_triplets=directory / "train_triplets.csv",
            dev=directory / "dev.tsv",
            test=directory / "test.tsv",
        )


def split_of(meaning: Meaning) -> Split:
    """The one split that a meaning belongs to, whatever the seed: 80 % train, 10 % dev, 10 % test by its digest."""
    key = "|".join(str(value) for value in meaning.slots().values())
    bucket = hashlib.sha256(key.encode()).digest()[0] / 256
    return "train" if bucket < 0.8 else "dev" if bucket < 0.9 else "test"


def slot_credit(first: str | None, second: str | None) -> float:
    """How far two values of one slot agree: 1 - (steps between them) / 3, never below 0.

    One step leads from a value to its hypernym (doctor -> health worker), and from a value to nothing said; so two
    kinds of one hypernym are two steps apart, and values that share none get no credit.
    """
    if first == second:
        return 1.0
    if first is None or second is None or PARENT.get(first) == second or PARENT.get(second) == first:
        return 2 / 3
    if first in PARENT and PARENT[first] == PARENT.get(second):
        return 1 / 3
    return 0.0


def score(first: Meaning, second: Meaning) -> float:
    """The similarity of two meanings, from 0 (nothing shared) to 5 (the same).

    Five times the mean of `slot_credit` over the slots that at least one of the two fills. The wording plays no part.
    So "The young doctor lost the pill" and "The medic misplaced the tablet at noon" agree in action and object
    (credit 1 each), in the agent up to one step (2/3), and fill attribute and time on one side only (2/3 each):
    5 * (1 + 1 + 2/3 + 2/3 + 2/3) / 5 = 4.
    """
    pairs = zip(first.slots().values(), second.slots().values(), strict=True)
    credits = [slot_credit(left, right) for left, right in pairs if left is not None or right is not None]
    return 5 * sum(credits) / len(credits)


def sentences(n: int, seed: int, split: Split = "train") -> list[str]:
    """Draws `n` distinct sentences.

    Args:
        n (`int`): how many.
        seed (`int`): the same seed gives the same list.
        split (`str`): whose meanings to draw from.

    Raises:
        ValueError: if `n` or `split` is out of range, or the grammar has too few sentences.
    """
    rng = random.Random(seed)

    def draw() -> str | None:
        meaning = sample_meaning(rng)
        return realise(meaning, rng) if split_of(meaning) == split else None

    return _distinct(draw, n, split)


def scored_pairs(n: int, seed: int, split: Split = "dev") -> list[tuple[str, str, float]]:
    """Draws `n` distinct pairs `(sentence1, sentence2, score)`, the score from 0 to 5 as `score` defines it.

    The second meaning is drawn anew and takes over each slot of the first with a chance that is itself drawn for the
    pair, so that the scores spread over the whole range. The two are put into words independently: synonyms and order
    differ, so that counting shared words does not give the score (the Jaccard overlap of the words has a Spearman
    correlation of about 0.64 with it, the floor for an encoder that knows the synonyms).

    Args:
        n (`int`): how many.
        seed (`int`): the same seed gives the same list.
        split (`str`): whose meanings to draw from; both meanings of a pair belong to it.

    Raises:
        ValueError: if `n` or `split` is out of range, or the grammar has too few pairs.
    """
    rng = random.Random(seed)

    def draw() -> tuple[str, str, float] | None:
        domain = rng.randrange(len(DOMAINS))
        first = sample_meaning(rng, domain)
        if split_of(first) != split:
            return None
        second = first
        if rng.random() >= CHANCE_OF_SAME_MEANING:
            kept = rng.random()
            # Redrawn until it lies in the split: else nine pairs in ten would be lost, all but those of one meaning.
            while second == first or split_of(second) != split:
                fresh = sample_meaning(rng, domain if rng.random() < 0.25 else None)
                second = replace(
                    fresh, **{slot: value for slot, value in first.slots().items() if rng.random() < kept}
                )
        pair = realise(first, rng), realise(second, rng)
        return None if pair[0] == pair[1] else (*pair, round(score(first, second), 3))

    return _distinct(draw, n, split)


def triplets(n: int, seed: int, split: Split = "train") -> list[tuple[str, str, str]]:
    """Draws `n` distinct triplets `(premise, entailed, contradictory)`, all three worded independently.

    The entailed sentence says the same or less: up to two optional slots are left out, or the agent or the object is
    replaced by its hypernym, or only the wording changes. The contradictory one is the premise with one slot made
    incompatible: the opposite action or attribute, or another agent or object of the same hypernym, place or time.

    Args:
        n (`int`): how many.
        seed (`int`): the same seed gives the same list.
        split (`str`): whose meanings to draw from; all three meanings belong to it.

    Raises:
        ValueError: if `n` or `split` is out of range, or the grammar has too few triplets.
    """
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


def _weaken(meaning: Meaning, rng: random.Random) -> Meaning:
    """A meaning that `meaning` entails: the same, or with one or two slots less specific."""
    steps: list[dict[str, str | None]] = [
        {slot: PARENT[value]} for slot, value in meaning.slots().items() if value in PARENT
    ]
    steps += [{slot: None} for slot in ("attribute", "place", "time") if getattr(meaning, slot) is not None]
    changes: dict[str, str | None] = {}
    for step in rng.sample(steps, min(len(steps), rng.choice((0, 1, 1, 2)))):
        changes |= step
    return replace(meaning, **changes)


def _contradict(meaning: Meaning, rng: random.Random) -> Meaning:
    """`meaning` with one filled slot made incompatible; a hypernym is no such slot, for it excludes little."""
    slots = [slot for slot, value in meaning.slots().items() if value in VALUES[slot]]
    slot = rng.choice(slots)
    value = getattr(meaning, slot)
    if value in OPPOSITE:
        return replace(meaning, **{slot: OPPOSITE[value]})
    siblings = [other for other in VALUES[slot] if other != value and PARENT.get(other) == PARENT.get(value)]
    return replace(meaning, **{slot: rng.choice(siblings)})


def _distinct(draw: Callable[[], Item | None], n: int, split: str) -> list[Item]:
    """Calls `draw` until it has given `n` distinct items; None is a draw that does not count."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}.")
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}.")
    items: dict[Item, None] = {}
    for _ in range(MAX_DRAWS_PER_ITEM * n):
        item = draw()
        if item is not None:
            items[item] = None
            if len(items) == n:
                return list(items)
    raise ValueError(
        f"The sample grammar gave only {len(items)} distinct items of the {split} split; ask for fewer than {n}."
    )


def write_sample_corpus(
    directory: str | Path,
    seed: int = 42,
    num_sentences: int = 20_000,
    num_triplets: int = 10_000,
    num_pairs: int = 1_000,
) -> SampleCorpus:
    """Writes the sample corpus: no meaning of one split occurs in another.

    Args:
        directory (`str` or `Path`): made when absent; files of an earlier call are overwritten.
        seed (`int`): the same arguments give the same bytes.
        num_sentences (`int`): training sentences.
        num_triplets (`int`): training triplets.
        num_pairs (`int`): scored pairs in dev, and as many in test.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    corpus = SampleCorpus.in_directory(directory)
    lines = sentences(num_sentences, seed, "train")
    corpus.train_sentences.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_table(corpus.train_triplets, ",", ("sent0", "sent1", "hard_neg"), triplets(num_triplets, seed, "train"))
    for path, split in ((corpus.dev, "dev"), (corpus.test, "test")):
        _write_table(path, "\t", ("sentence1", "sentence2", "score"), scored_pairs(num_pairs, seed, split))
    return corpus


def _write_table(path: Path, delimiter: str, header: tuple[str, ...], rows: list[tuple]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
