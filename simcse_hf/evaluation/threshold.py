"""Choose the cosine from which two texts count as similar, and measure it on pairs that had no part in the choice."""

from pathlib import Path

import numpy as np
from transformers.utils import logging

from .bootstrap import (
    ROUNDING,
    divide_groups,
    groups_to_draw,
    interval,
    last_of_equals,
    proportion_interval,
    resampled_scores,
)

logger = logging.get_logger(__name__)

CONFIDENCE = 0.95
SEED = 0
#: The fewest pairs of the half that chooses a threshold which must reach it.
LEAST_PAIRS = 10


def choose_threshold(
    scores: dict,
    precision: float | None,
    source: str,
) -> dict:
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
        `dict[str, Any]`: `cosine`, `goal`, `source`, `chosen_on` and `measured_on` (numbers of pairs), `confidence`,
        and `precision` and `recall`, each with the two ends of its interval, times 100.

    Raises:
        ValueError: If the pairs cannot be divided, a half lacks pairs of a label, no threshold reaches the precision,
            or fewer than 10 pairs of the first half reach the threshold.
    """
    similarity = scores["similarity"]
    gold = scores["gold"]
    groups = scores["group"]
    first = divide_groups(groups, 0.5, SEED, source, "Give pairs with more different texts.")
    for half in (gold[first], gold[~first]):
        if len(np.unique(half)) < 2:
            raise ValueError(
                f"{source}: one half of the {len(gold)} pairs has pairs of a single label. Give more pairs."
            )

    # 1. The best cosine of the first half: by F1 or, at a precision, by recall
    order = np.argsort(-similarity[first], kind="stable")
    ranked = similarity[first][order]
    hits = gold[first][order].cumsum()
    retrieved = np.arange(1, len(hits) + 1)
    possible = last_of_equals(ranked)
    value = 2 * hits / (retrieved + hits[-1])
    if precision is not None:
        value = hits / hits[-1]
        precisions = hits / retrieved
        highest = precisions[possible].max()
        possible &= precisions >= precision
        if not possible.any():
            raise ValueError(
                f"{source}: no threshold reaches a precision of {precision} on the half that chooses; the highest is "
                f"{highest:.3f}. Ask for less, or use a model that tells these pairs apart."
            )
    best = int(np.where(possible, value, -1).argmax())
    if best + 1 < LEAST_PAIRS:
        raise ValueError(
            f"{source}: only {best + 1} pairs of the half that chooses reach the best cosine {ranked[best]:.4f}, and "
            f"a choice needs at least {LEAST_PAIRS}. Give more pairs, or ask for a lower precision."
        )
    cosine = float(ranked[best : best + 2].mean())

    # 2. Its precision and recall on the second half
    positive = gold[~first] == 1
    similar = similarity[~first] >= cosine
    if not similar.any():
        raise ValueError(f"{source}: no pair of the half that measures reaches the chosen cosine {cosine:.4f}.")
    _, numbers = np.unique(groups[~first], return_inverse=True)
    found = positive & similar
    counted = []
    for each in (found, similar, positive):
        part = {"value": each.astype(float), "group": numbers}
        counted.append({source: part})
    of_found, *totals = resampled_scores(counted)
    drawn_groups = groups_to_draw({"group": numbers}, source)
    measured = {}
    for name, among, total in zip(("precision", "recall"), (similar, positive), totals, strict=True):
        with np.errstate(invalid="ignore"):  # a resample without such a pair has no share
            drawn = of_found / total
        share = found.sum() / among.sum()
        low, high = interval(drawn, CONFIDENCE)
        if high - low < ROUNDING:  # all groups have the same share, so every resample has it as well
            low, high = proportion_interval(share, len(np.unique(drawn_groups[among])), CONFIDENCE)
        measured[name] = [round(100 * float(value), 2) for value in (share, low, high)]
    share = found.sum() / similar.sum()
    if precision is not None and share < precision:
        logger.warning(
            f"{source}: the threshold chosen for a precision of {precision} has {share:.3f} on the half that "
            "measures. Give more pairs, or ask for a higher precision to have a margin."
        )
    return {
        "cosine": cosine,
        "goal": "f1" if precision is None else f"precision={precision:g}",
        "source": Path(source).name,
        "chosen_on": int(first.sum()),
        "measured_on": int((~first).sum()),
        "confidence": CONFIDENCE,
        **measured,
    }


def describe_threshold(threshold: dict) -> str:
    """Return a threshold and its precision and recall as a sentence."""
    precision, recall = (
        "{} {:.1f} [{:.1f}, {:.1f}]".format(name, *threshold[name]) for name in ("precision", "recall")
    )
    return (
        f"a cosine of at least {threshold['cosine']:.4f}, chosen for {threshold['goal']} on {threshold['chosen_on']} "
        f"pairs of {threshold['source']}; on the other {threshold['measured_on']} pairs {precision} and {recall} "
        f"(x 100, {threshold['confidence']:.0%} intervals)"
    )
