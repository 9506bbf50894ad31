"""Groups of rows that share texts: found once, kept together by a split, and drawn together by the bootstrap."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy import ndarray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from transformers.utils import logging

logger = logging.get_logger(__name__)

#: Fewest groups that the bootstrap draws, counted by their effective number.
LEAST_GROUPS = 20
# A part may be this much smaller than asked for before a split is refused.
_SMALLEST_OF_SHARE = 0.5


def distinct(texts: Sequence[str]) -> tuple:
    """Return the distinct texts in order of appearance, and for each text its position among them."""
    rows: dict = {}
    positions = [rows.setdefault(text, len(rows)) for text in texts]
    return list(rows), np.array(positions, dtype=np.int64)


def connected_groups(memberships: Sequence) -> ndarray:
    """Find the groups of units that share texts, directly or through other units.

    Args:
        memberships (`Sequence[Sequence[str]]`): The texts of each unit. With `[["a", "b"], ["c"], ["b"]]`, the first
            and the last unit form a group.

    Returns:
        `numpy.ndarray`: The group of each unit, of shape `(n,)`.
    """
    n = len(memberships)
    texts, positions = distinct(list(chain(*memberships)))
    units = np.repeat(np.arange(n), list(map(len, memberships)))
    ends = np.stack([units, n + positions]).astype(np.int32)  # SciPy 1.11 accepts no others here
    size = n + len(texts)
    links = np.ones(len(units), dtype=np.int8)
    graph = coo_array((links, tuple(ends)), shape=(size, size))
    _, groups = connected_components(graph, directed=False)
    return groups[:n]


def divide_groups(
    groups: ndarray, share: float, seed: int, where: str, advice: str = "Give two separate files instead."
) -> ndarray:
    """Divide units so that no group is in both parts: large groups first, each to the part that lacks more units.

    Args:
        groups (`numpy.ndarray`): The group of each unit, of shape `(n,)`.
        share (`float`): Share of the units in the first part.
        seed (`int`): Seed of the order of groups of equal size.
        where (`str`): The task's file, for messages.
        advice (`str`, *optional*): What the error says to do.

    Returns:
        `numpy.ndarray`: Whether each unit belongs to the first part, of shape `(n,)`.

    Raises:
        ValueError: If a group is so large that a part would have less than half of its share.
    """
    numbers, sizes = np.unique(groups, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    wanted = np.array([share, 1 - share]) * len(groups)
    lacking = wanted.copy()
    chosen = []
    for position in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        part = int(np.argmax(lacking))
        lacking[part] -= sizes[position]
        if part == 0:
            chosen.append(numbers[position])
    if (wanted - lacking < _SMALLEST_OF_SHARE * wanted).any():
        raise ValueError(
            f"{where}: {sizes.max()} of {len(groups)} units are linked by shared texts, so the task cannot be split "
            f"into parts of {share:.0%} and {1 - share:.0%} that share no text. {advice}"
        )
    return np.isin(groups, chosen)


def groups_to_draw(named: dict, where: str) -> ndarray:
    """Return what the bootstrap draws as a whole: groups of rows that share texts, or single rows.

    Rows that share a text are alike in what a model makes of it, so an interval that draws them one by one is too
    narrow. Groups are drawn if there are enough of them, or at least half as many as rows. Groups of n rows in all, of
    which group i has n_i, vary as n² / Σ n_i² groups of equal size do (Kish 1965, section 8.2), so one that holds most
    rows counts for little.

    Args:
        named (`dict[str, numpy.ndarray]`): The array `gold` and, unless the scores were stored by an older version,
            `group`, both of shape `(n,)`.
        where (`str`): Name of the subset or split, for messages.

    Returns:
        `numpy.ndarray`: The number of the group of each row, of shape `(n,)`.
    """
    n = len(named["gold"])
    groups = named.get("group")
    if groups is None:
        logger.warning_once(
            f"{where}: these stored scores do not say which rows share texts, so the intervals draw single rows and "
            "may be too narrow. Evaluate again to draw such rows together."
        )
        return np.arange(n)
    sizes = np.bincount(groups)
    least = min(LEAST_GROUPS, n / 2)  # few rows make few groups, which are drawn all the same
    if n**2 < least * (sizes**2).sum():
        logger.warning_once(
            f"{where}: most rows share texts with each other (the largest group has {sizes.max()} of {n} rows), so "
            "the intervals resample single rows and may be too narrow. Use pairs with more different texts."
        )
        return np.arange(n)
    return groups
