"""Scores of the dev sets on disk, and the change that training made to them, with its interval."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import TrainerState

from ..evaluation.bootstrap import independent_draws, interval, mean_over_drawn_seeds, resampled_scores
from ..evaluation.report import Scores, load_scores, save_scores
from .dev_sets import DevSetCallback

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
    for folder, results in runs:
        for when in ("initial", "saved"):
            path = _scores_path(folder, results[when]["step"])
            scores = load_scores(path) if path.is_file() else {}
            if metric not in scores:
                return None
            systems.append(scores[metric])
    resampled = resampled_scores(systems, "all", "spearman", _RESAMPLES, np.random.default_rng(0))
    drawn = mean_over_drawn_seeds(resampled[1::2] - resampled[::2], np.random.default_rng(1), _CONFIDENCE)
    low, high = interval(drawn, _CONFIDENCE, independent_draws(systems))
    return {
        "metric": metric,
        "difference": float(np.mean([results["saved"][metric] - results["initial"][metric] for _, results in runs])),
        "low": low,
        "high": high,
        "confidence": _CONFIDENCE,
        "resamples": _RESAMPLES,
        "seeds": len(runs),
    }
