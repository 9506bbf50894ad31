"""Divide the units of a task into two parts, so that units with a common text stay together."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

# A part may be this much smaller than asked for before a split is refused.
_SMALLEST_OF_SHARE = 0.5


def divide_by_label(labels: np.ndarray, share: float, seed: int, least: int) -> np.ndarray:
    """Divide rows at random within each label.

    Args:
        labels (`numpy.ndarray`): The label of each row, of shape `(n,)`.
        share (`float`): Share of the rows in the first part.
        seed (`int`): Seed of the draw.
        least (`int`): How many rows of a label a part needs. A label with too few rows goes to one part as a whole.

    Returns:
        `numpy.ndarray`: Whether each row belongs to the first part, of shape `(n,)`.
    """
    random = np.random.default_rng(seed)
    first = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        # A fractional row goes to the first part with the probability of the fraction, so that shares are met overall.
        count = int(share * len(rows) + random.random())
        if len(rows) < 2 * least:
            count = len(rows) if random.random() < share else 0
        else:
            count = min(max(count, least), len(rows) - least)
        first[rows[:count]] = True
    return first


def connected_groups(memberships: Sequence[Sequence[str]]) -> np.ndarray:
    """Find the groups of units that share texts, directly or through other units.

    Args:
        memberships (`Sequence[Sequence[str]]`): The texts of each unit. With `[["a", "b"], ["c"], ["b"]]`, the first
            and the last unit form a group.

    Returns:
        `numpy.ndarray`: The group of each unit, of shape `(n,)`.
    """
    number: dict[str, int] = {}
    units, texts = [], []
    for unit, members in enumerate(memberships):
        for text in members:
            units.append(unit)
            texts.append(len(memberships) + number.setdefault(text, len(number)))
    size = len(memberships) + len(number)
    ends = np.asarray(units, dtype=np.int32), np.asarray(texts, dtype=np.int32)  # SciPy 1.11 accepts no others here
    graph = coo_array((np.ones(len(units), dtype=np.int8), ends), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(memberships)]


def divide_groups(groups: np.ndarray, share: float, seed: int, where: str) -> np.ndarray:
    """Divide units so that no group is in both parts: large groups first, each to the part that lacks more units.

    Args:
        groups (`numpy.ndarray`): The group of each unit, of shape `(n,)`.
        share (`float`): Share of the units in the first part.
        seed (`int`): Seed of the order of groups of equal size.
        where (`str`): The task's file, for messages.

    Returns:
        `numpy.ndarray`: Whether each unit belongs to the first part, of shape `(n,)`.

    Raises:
        ValueError: If a group is so large that a part would have less than half of its share.
    """
    numbers, sizes = np.unique(groups, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    wanted = np.array([share, 1 - share]) * len(groups)
    lacking = wanted.copy()
    chosen = []
    for position in order:
        part = int(np.argmax(lacking))
        lacking[part] -= sizes[position]
        if part == 0:
            chosen.append(numbers[position])
    if (wanted - lacking < _SMALLEST_OF_SHARE * wanted).any():
        raise ValueError(
            f"{where}: {sizes.max()} of {len(groups)} units are linked by shared texts, so the task cannot be split "
            f"into parts of {share:.0%} and {1 - share:.0%} that share no text. Give two separate files instead."
        )
    return np.isin(groups, chosen)
