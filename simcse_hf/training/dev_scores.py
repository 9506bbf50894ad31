"""Scores of the dev sets on disk, and the change that training made to them, with its interval."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import TrainerState
from transformers.utils import logging

from ..evaluation.bootstrap import independent_draws, interval, mean_over_drawn_seeds, resampled_scores
from ..evaluation.report import Scores, load_scores, save_scores
from .dev_sets import PLAIN_POOLERS, DevSetCallback, start_metric

logger = logging.get_logger(__name__)

#: Folder of `output_dir` with the scores of each evaluation that is still needed.
DEV_SCORES = "_dev_scores"
_CONFIDENCE = 0.95
_RESAMPLES = 1000


def keep_dev_scores(dev_sets: Sequence[DevSetCallback], state: TrainerState, output_dir: str) -> None:
    """Write what an evaluation scored, and delete what is neither the first, the best nor the last evaluation.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets, which were evaluated just now.
        state (`TrainerState`): The step, and the step of the best checkpoint so far.
        output_dir (`str`): The output directory of the run.
    """
    scores: Scores = {}
    for dev_set in dev_sets:
        scores |= dev_set.scores
    if not scores:
        return
    folder = Path(output_dir, DEV_SCORES)
    folder.mkdir(parents=True, exist_ok=True)
    save_scores(_scores_path(output_dir, state.global_step), scores)
    steps = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.npz"))
    best = (state.best_model_checkpoint or "").rpartition("checkpoint-")[2]
    for step in steps[1:]:
        if step not in (state.global_step, state.best_global_step) and str(step) != best:
            _scores_path(output_dir, step).unlink()


def _scores_path(output_dir: str | Path, step: int) -> Path:
    return Path(output_dir, DEV_SCORES, f"step-{step}.npz")


def dev_change(runs: Sequence[tuple[Path, dict]]) -> dict | None:
    """Compare the saved weights of a run, or of its repetitions with other seeds, with the start on the dev set.

    The interval is a percentile bootstrap over the examples of the dev set, on which both are scored, and with several
    seeds over the seeds as well. The dev set chose the checkpoint and the seed, so the gain is somewhat optimistic.

    Args:
        runs (`Sequence[tuple[Path, dict]]`): For each seed, the output directory and the content of `results.json`.

    Returns:
        `dict[str, Any]`: `metric`, `difference` (saved minus initial, mean over the seeds), `low`, `high`,
        `confidence`, `resamples` and `seeds` (their number); `None` without the scores of both evaluations.
    """
    metric = runs[0][1]["dev_metric"]
    if metric is None:
        return None
    systems = []
    differences = []
    for folder, results in runs:
        for when, name in (("start", results["start"]["metric"]), ("saved", metric)):
            path = _scores_path(folder, results[when]["step"])
            scores = load_scores(path) if path.is_file() else {}
            if name not in scores:
                return None
            systems.append(scores[name])
        differences.append(results["saved"][metric] - results["start"][metric])
    return {"metric": metric, "seeds": len(runs), **_change(systems, float(np.mean(differences)))}


def _change(systems: list, difference: float) -> dict:
    """Return the change from every first of two systems to the second, with its interval."""
    resampled = resampled_scores(systems, "all", "spearman", _RESAMPLES, np.random.default_rng(0))
    drawn = mean_over_drawn_seeds(resampled[1::2] - resampled[::2], np.random.default_rng(1), _CONFIDENCE)
    low, high = interval(drawn, _CONFIDENCE, independent_draws(systems))
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
