"""The sample corpus: training sentences, triplets, and pairs whose scores follow from what the sentences say."""

import csv
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from .grammar import OPPOSITE, PARENT, VALUES, Meaning, realise, sample_meaning
from .lexicon import DOMAINS

SPLITS = ("train", "dev", "test")
Item = TypeVar("Item")


@dataclass(frozen=True)
class SampleCorpus:
    """The files of the sample corpus.

    Args:
        train_sentences (`Path`): One sentence on each line, for unsupervised training and masked language modelling.
        train_triplets (`Path`): A csv file with the header `sent0,sent1,hard_neg`, for supervised training.
        dev (`Path`): A tsv file with the header `sentence1 sentence2 score` and scores from 0 to 5.
        test (`Path`): The same, with other meanings.
    """

    train_sentences: Path
    train_triplets: Path
    dev: Path
    test: Path

    @classmethod
    def in_directory(cls, directory: Path) -> "SampleCorpus":
        """Return the files of a corpus in a directory."""
        return cls(
            *(directory / name for name in ("train_sentences.txt", "train_triplets.csv", "dev.tsv", "test.tsv"))
        )


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


def write_sample_corpus(
    directory: str | Path,
    seed: int = 42,
    num_sentences: int = 20_000,
    num_triplets: int = 10_000,
    num_pairs: int = 1_000,
) -> SampleCorpus:
    """Write the sample corpus. No meaning of one split occurs in another, and equal arguments give equal bytes.

    Args:
        directory (`str | Path`): The directory, which is made if it is missing. Earlier files are overwritten.
        seed (`int`, *optional*, defaults to `42`): The seed.
        num_sentences (`int`, *optional*, defaults to `20000`): The number of training sentences.
        num_triplets (`int`, *optional*, defaults to `10000`): The number of training triplets.
        num_pairs (`int`, *optional*, defaults to `1000`): The number of scored pairs in each of dev and test.

    Returns:
        `SampleCorpus`: The files.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    corpus = SampleCorpus.in_directory(directory)
    corpus.train_sentences.write_text("\n".join(sentences(num_sentences, seed)) + "\n", encoding="utf-8")
    _write_table(corpus.train_triplets, ",", ("sent0", "sent1", "hard_neg"), triplets(num_triplets, seed))
    for path, split in ((corpus.dev, "dev"), (corpus.test, "test")):
        _write_table(path, "\t", ("sentence1", "sentence2", "score"), scored_pairs(num_pairs, seed, split))
    return corpus


def _write_table(path: Path, delimiter: str, header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
