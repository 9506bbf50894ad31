"""Choose the cosine from which two texts count as similar, and measure it on pairs that had no part in the choice."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from transformers.utils import logging

from ..ops.errors import refuse
from .bootstrap import interval, resampled_scores
from .groups import divide_groups

logger = logging.get_logger(__name__)

CONFIDENCE, SEED = 0.95, 0
#: A threshold must be reached by at least so many pairs of the half that chooses it.
LEAST_PAIRS = 10


def choose_threshold(scores: dict[str, ndarray], precision: float | None, source: str) -> dict[str, Any]:
    """Choose a threshold on one half of labelled pairs, and measure its precision and recall on the other half.

    Pairs that share a text are in the same half, and are drawn together for the intervals. The chosen threshold lies
    in the middle between two neighbouring cosines of the first half.

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
    similarity, gold, groups = (scores[name] for name in ("similarity", "gold", "group"))
    first = divide_groups(groups, 0.5, SEED, source, "Give pairs with more different texts.")
    for half in (gold[first], gold[~first]):
        one_label = f"{source}: one half of the {len(gold)} pairs has pairs of a single label. Give more pairs."
        refuse({one_label: len(np.unique(half)) < 2})
    cosine = _best_cosine(similarity[first], gold[first], precision, source)
    positive, similar = gold[~first] == 1, similarity[~first] >= cosine
    common = {"gold": gold[~first], "group": np.unique(groups[~first], return_inverse=True)[1]}
    parts = [{source: {"value": each.astype(float)} | common} for each in (positive & similar, similar, positive)]
    refuse({f"{source}: no pair of the half that measures reaches the chosen cosine {cosine:.4f}.": not similar.any()})
    hits, *totals = resampled_scores(parts, random=np.random.default_rng(SEED))
    measured = {}
    for name, drawn, among in zip(("precision", "recall"), totals, (similar, positive), strict=True):
        drawn = np.divide(hits, drawn, out=np.full_like(hits, np.nan), where=drawn > 0)
        share = (positive & similar).sum() / among.sum()
        if name == "precision" and share < (precision or 0):
            logger.warning(
                f"{source}: the threshold chosen for a precision of {precision} has {share:.3f} on the half that "
                "measures. Give more pairs, or ask for a higher precision to have a margin."
            )
        measured[name] = [round(100 * float(x), 2) for x in (share, *interval(drawn, CONFIDENCE))]
    return {
        "cosine": cosine,
        "goal": "f1" if precision is None else f"precision={precision:g}",
        "source": Path(source).name,
        "chosen_on": int(first.sum()),
        "measured_on": int((~first).sum()),
        "confidence": CONFIDENCE,
        **measured,
    }


def _best_cosine(similarity: ndarray, gold: ndarray, precision: float | None, source: str) -> float:
    """Return the threshold with the highest F1 or, at a precision, the highest recall; see [`choose_threshold`]."""
    order = np.argsort(-similarity, kind="stable")
    ranked, found = similarity[order], gold[order].cumsum()
    precisions, recalls = found / np.arange(1, len(found) + 1), found / found[-1]
    value = recalls if precision is not None else 2 * found / (np.arange(1, len(found) + 1) + found[-1])
    last_of_equals = np.append(np.diff(ranked) != 0, True)
    allowed = last_of_equals & (precisions >= (precision or 0))
    highest = precisions[last_of_equals].max()
    out_of_reach = (
        f"{source}: no threshold reaches a precision of {precision} on the half that chooses; the highest is "
        f"{highest:.3f}. Ask for less, or use a model that tells these pairs apart."
    )
    refuse({out_of_reach: not allowed.any()})
    best = int(np.where(allowed, value, -1).argmax())
    few = (
        f"{source}: only {best + 1} pairs of the half that chooses reach the best cosine {ranked[best]:.4f}, and a "
        f"choice needs at least {LEAST_PAIRS}. Give more pairs, or ask for a lower precision."
    )
    refuse({few: best + 1 < LEAST_PAIRS})
    return float(ranked[best : best + 2].mean())


def describe_threshold(threshold: dict[str, Any]) -> str:
    """Return a threshold and its precision and recall as a sentence."""
    precision, recall = (
        "{} {:.1f} [{:.1f}, {:.1f}]".format(name, *threshold[name]) for name in ("precision", "recall")
    )
    return (
        f"a cosine of at least {threshold['cosine']:.4f}, chosen for {threshold['goal']} on {threshold['chosen_on']} "
        f"pairs of {threshold['source']}; on the other {threshold['measured_on']} pairs {precision} and {recall} "
        f"(x 100, {threshold['confidence']:.0%} intervals)"
    )
