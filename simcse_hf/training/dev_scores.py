"""Scores of the dev sets on disk, and the change that training made to them, with its interval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerState
from transformers.utils import logging

from ..evaluation.bootstrap import (
    Scores,
    independent_draws,
    interval,
    load_scores,
    mean_over_drawn_seeds,
    optimism_of_choice,
    resampled_scores,
    save_scores,
)
from .dev_sets import PLAIN_POOLERS, DevSetCallback, start_metric

logger = logging.get_logger(__name__)

#: Folder of `output_dir` with the scores of each evaluation.
DEV_SCORES = "_dev_scores"
_CONFIDENCE = 0.95
_RESAMPLES = 1000


def keep_dev_scores(dev_sets: Sequence[DevSetCallback], state: TrainerState, output_dir: str) -> None:
    """Write what an evaluation scored.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets, which were evaluated just now.
        state (`TrainerState`): The step.
        output_dir (`str`): The output directory of the run.
    """
    scores: Scores = {}
    for dev_set in dev_sets:
        scores |= dev_set.scores
    if scores:
        path = _scores_path(output_dir, state.global_step)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_scores(path, scores)


def _scores_path(output_dir: str | Path, step: int) -> Path:
    return Path(output_dir, DEV_SCORES, f"step-{step}.npz")


def dev_change(runs: Sequence[tuple[Path, dict]]) -> dict | None:
    """Compare the saved weights of a run, or of its repetitions with other seeds, with the start on the dev set.

    The interval is a percentile bootstrap over the examples of the dev set, on which both are scored, and with several
    seeds over the seeds as well. Where the dev set chose the checkpoint, the interval is moved by the optimism of that
    choice (see [`optimism_of_choice`]), so the difference need not lie in its middle.

    Args:
        runs (`Sequence[tuple[Path, dict]]`): For each seed, the output directory and the content of `results.json`.

    Returns:
        `dict[str, Any]`: `metric`, `difference` (saved minus initial, mean over the seeds), `low`, `high`,
        `confidence`, `resamples`, `optimism` and `seeds` (their number); `None` without the scores of both
        evaluations.
    """
    metric = runs[0][1]["dev_metric"]
    if metric is None:
        return None
    systems = []
    differences = []
    optimism = []
    for folder, results in runs:
        start = _read_scores(folder, results["start"]["step"], results["start"]["metric"])
        saved = _read_scores(folder, results["saved"]["step"], metric)
        if start is None or saved is None:
            return None
        others = []
        for step in results.get("chosen_among", []):
            scores = _read_scores(folder, step, metric)
            if scores is not None and step != results["saved"]["step"]:
                others.append(scores)
        systems += [start, saved]
        optimism.append(optimism_of_choice(start, [saved, *others], 0) if others else 0.0)
        differences.append(results["saved"][metric] - results["start"][metric])
    change = _change(systems, float(np.mean(differences)), optimism)
    return {
        "metric": metric,
        "seeds": len(runs),
        "optimism": float(np.mean(optimism)),
        **change,
    }


def _read_scores(folder: Path, step: int, metric: str) -> Any:
    path = _scores_path(folder, step)
    return load_scores(path).get(metric) if path.is_file() else None


def _change(systems: list, difference: float, optimism: Sequence = (0.0,)) -> dict:
    """Return the change from every first of two systems to the second, with its interval."""
    resampled = resampled_scores(systems, resamples=_RESAMPLES)
    changes = resampled[1::2] - resampled[::2] - np.array(optimism)[:, None]
    drawn = mean_over_drawn_seeds(changes, np.random.default_rng(1), _CONFIDENCE)
    low, high = interval(drawn, _CONFIDENCE, independent_draws(systems[0]))
    return {
        "difference": difference,
        "low": low,
        "high": high,
        "confidence": _CONFIDENCE,
        "resamples": _RESAMPLES,
    }


def report_better_start(dev_set: DevSetCallback, metrics: dict[str, float]) -> None:
    """Say in the log if the start is significantly better with another pooler than with that of the run.

    Args:
        dev_set (`DevSetCallback`): The dev set, which [`DevSetCallback.evaluate_start`] has just evaluated.
        metrics (`dict[str, float]`): The metrics of the evaluation, with the prefix `eval_`.
    """
    own = metrics[f"eval_{dev_set.headline}"]
    for pooler in PLAIN_POOLERS:
        name = start_metric(pooler, dev_set.headline)
        if name not in dev_set.scores:
            continue
        other = metrics[f"eval_{name}"]
        change = _change([dev_set.scores[dev_set.headline], dev_set.scores[name]], other - own)
        if change["low"] > 0:
            logger.info(
                f"The start scores {other:.2f} with the pooler {pooler}, and {own:.2f} as this run pools it "
                f"({dev_set.headline}, difference {change['difference']:+.2f} [{change['low']:+.2f}, "
                f"{change['high']:+.2f}]): try --pooler_type {pooler}, which begins there."
            )
