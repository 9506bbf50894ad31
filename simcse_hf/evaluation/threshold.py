"""Choose the cosine from which two texts count as similar, and measure it on pairs that had no part in the choice."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy import ndarray
from transformers.utils import logging

from ..encoding.probes import probe_cosines
from ..encoding.simcse import SimCSE
from ..models.settings import THRESHOLD
from ..runtime.errors import DataError, SettingError
from ..runtime.files import read_json, write_json
from .bootstrap import (
    ROUNDING,
    Arrays,
    divide_groups,
    groups_to_draw,
    interval,
    proportion_interval,
    resampled_scores,
)
from .tasks import Task

logger = logging.get_logger(__name__)

CONFIDENCE = 0.95
#: The fewest pairs of the half that chooses a threshold which must reach it.
LEAST_PAIRS = 10


class Threshold(TypedDict):
    """The lowest cosine of two texts that count as similar.

    Args:
        cosine (`float`): The cosine.
        goal (`str`): What it was chosen for: `"f1"`, or `"precision=P"`.
        source (`str`): The file of the pairs.
        chosen_on (`int`): The number of pairs that it was chosen on.
        measured_on (`int`): The number of pairs that precision and recall were measured on.
        confidence (`float`): Confidence level of the intervals.
        precision (`list[float]`): The precision, times 100, with the two ends of its interval.
        recall (`list[float]`): The recall, likewise.
    """

    cosine: float
    goal: str
    source: str
    chosen_on: int
    measured_on: int
    confidence: float
    precision: list[float]
    recall: list[float]


def read_goal(goal: str | None, tasks: Mapping[str, Task]) -> float | None:
    """Read the goal for which a threshold is chosen.

    Args:
        goal (`str`, *optional*): `"f1"`, or `"precision=P"`; by default no threshold is chosen.
        tasks (`Mapping[str, Task]`): The tasks. One of them has to have the pairs on which it is chosen.

    Returns:
        `float`, *optional*: The least precision, between 0 and 1; `None` for `"f1"` and without a goal.

    Raises:
        SettingError: If the goal is another one, or there are no such pairs.
    """
    if goal is None:
        return None
    name, _, value = goal.partition("=")
    precision = None
    with suppress(ValueError):
        precision = float(value)
    if goal != "f1" and not (name == "precision" and precision is not None and 0 < precision <= 1):
        raise SettingError(f"threshold must be f1, or precision=P with P above 0 and at most 1, got {goal!r}")
    if [task.kind for task in tasks.values()].count("pairs") != 1:
        raise SettingError("threshold needs the labelled pairs of one file: add --task pairs=FILE")
    return precision


def choose_threshold(scores: Arrays, precision: float | None, source: str) -> Threshold:
    """Choose a threshold on one half of labelled pairs, and measure its precision and recall on the other half.

    Pairs that share a text are in the same half, and are drawn together for the intervals. Where all pairs or none
    count, the interval is a binomial's with as many draws as there are groups. The chosen threshold lies in the middle
    between two neighbouring cosines of the first half.

    Args:
        scores (`dict[str, numpy.ndarray]`): What a [`PairsTask`] scored: `similarity`, `gold` (0 or 1) and `group`.
        precision (`float`, *optional*): Take the threshold with the highest recall at a precision of at least this,
            between 0 and 1. By default, the one with the highest F1.
        source (`str`): The file of the pairs, for messages and for the record.

    Returns:
        [`Threshold`]: The threshold.

    Raises:
        DataError: If the pairs cannot be divided, a half lacks pairs of a label, or fewer than 10 pairs of the first
            half reach the threshold.
        SettingError: If no threshold reaches the precision.
    """
    similarity = scores["similarity"]
    gold = scores["gold"]
    groups = scores["group"]
    first = divide_groups(groups, 0.5, 0, source, "Give pairs with more different texts.")
    for half in (gold[first], gold[~first]):
        if len(np.unique(half)) < 2:
            raise DataError(f"{source}: one half of the {len(gold)} pairs has pairs of a single label. Give more.")

    # 1. Choose the cosine with the highest F1 or, at a precision, with the highest recall.
    order = np.argsort(-similarity[first], kind="stable")
    ranked = similarity[first][order]
    hits = gold[first][order].cumsum()
    retrieved = np.arange(1, len(hits) + 1)
    possible = np.append(np.diff(ranked) != 0, True)  # not between equal cosines
    value = 2 * hits / (retrieved + hits[-1])
    if precision is not None:
        value = hits / hits[-1]
        precisions = hits / retrieved
        highest = precisions[possible].max()
        possible &= precisions >= precision
        if not possible.any():
            raise SettingError(
                f"{source}: no threshold has a precision of {precision}; the highest is {highest:.3f}. Ask for less."
            )
    best = int(np.where(possible, value, -1).argmax())
    if best + 1 < LEAST_PAIRS:
        raise DataError(
            f"{source}: only {best + 1} pairs of the half that chooses reach the best cosine {ranked[best]:.4f}, and "
            f"{LEAST_PAIRS} must. Give more pairs, or ask for a lower precision."
        )
    cosine = float(ranked[best : best + 2].mean())

    # 2. Measure its precision and recall on the other half.
    similar = similarity[~first] >= cosine
    found, reached = _precision_and_recall(similar, gold[~first] == 1, groups[~first], source)
    if precision is not None and 100 * precision > found[0]:
        logger.warning(
            f"{source}: the threshold chosen for a precision of {precision} has {found[0] / 100:.3f} on the half that "
            "measures. Give more pairs, or ask for a higher precision to have a margin."
        )
    return {
        "cosine": cosine,
        "goal": "f1" if precision is None else f"precision={precision:g}",
        "source": Path(source).name,
        "chosen_on": int(first.sum()),
        "measured_on": int((~first).sum()),
        "confidence": CONFIDENCE,
        "precision": [round(value, 2) for value in found],
        "recall": [round(value, 2) for value in reached],
    }


def _precision_and_recall(similar: ndarray, positive: ndarray, groups: ndarray, source: str) -> list[list[float]]:
    """Return the precision and the recall of the pairs that reach a threshold, times 100, each with its interval.

    Args:
        similar (`numpy.ndarray`): Whether each pair reaches the threshold, of shape `(n,)`.
        positive (`numpy.ndarray`): Whether it has the label 1.
        groups (`numpy.ndarray`): The group of each pair.
        source (`str`): The file of the pairs, for messages.

    Returns:
        `list[list[float]]`: The share and the two ends of its interval, of the precision and of the recall.

    Raises:
        DataError: If no pair reaches the threshold.
    """
    if not similar.any():
        raise DataError(f"{source}: no pair of the half that measures reaches the chosen cosine.")
    _, numbers = np.unique(groups, return_inverse=True)
    found = positive & similar
    counted = []
    for each in (found, similar, positive):
        part = {"value": each.astype(float), "group": numbers}
        counted.append({source: part})
    of_found, *totals = resampled_scores(counted)
    drawn_groups = groups_to_draw(numbers, source)
    measured = []
    for among, total in zip((similar, positive), totals, strict=True):
        with np.errstate(invalid="ignore"):  # a resample without such a pair has no share
            drawn = of_found / total
        share = found.sum() / among.sum()
        low, high = interval(drawn, CONFIDENCE)
        if high - low < ROUNDING:  # all groups have the same share, so every resample has it as well
            low, high = proportion_interval(share, len(np.unique(drawn_groups[among])), CONFIDENCE)
        measured.append([100 * float(value) for value in (share, low, high)])
    return measured


def describe_threshold(threshold: Threshold) -> str:
    """Return a threshold and its precision and recall as a sentence."""
    precision = "precision {:.1f} [{:.1f}, {:.1f}]".format(*threshold["precision"])
    recall = "recall {:.1f} [{:.1f}, {:.1f}]".format(*threshold["recall"])
    return (
        f"a cosine of at least {threshold['cosine']:.4f}, chosen for {threshold['goal']} on {threshold['chosen_on']} "
        f"pairs of {threshold['source']}; on the other {threshold['measured_on']} pairs {precision} and {recall} "
        f"(x 100, {threshold['confidence']:.0%} intervals)"
    )


def save_threshold(model: SimCSE, threshold: Threshold) -> Path:
    """Keep a threshold in a model and in the config.json of its folder, with cosines that tell its embeddings.

    Args:
        model (`SimCSE`): The model with which it was measured.
        threshold (`Threshold`): The threshold.

    Returns:
        `Path`: The config.json.
    """
    saved = {**threshold, "probe": probe_cosines(model), "model": model.identity().for_pairs().to_dict()}
    path = Path(model.name_or_path).expanduser() / "config.json"
    write_json(path, read_json(path) | {THRESHOLD: saved})
    setattr(model.model.config, THRESHOLD, saved)
    return path
