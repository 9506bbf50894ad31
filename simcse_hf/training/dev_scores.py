"""Keep the scores behind the dev figures of a run, and test what training changed on the dev set."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerState

from ..evaluation.bootstrap import interval, mean_over_drawn_seeds, resampled_scores
from ..evaluation.report import load_scores, save_scores
from ..ops.files import write_atomically
from .callbacks import DevSetCallback

#: The folder of `output_dir` that holds a file for each evaluation that is still needed.
DEV_SCORES = "_dev_scores"
_CONFIDENCE, _RESAMPLES = 0.95, 1000


def keep_dev_scores(dev_sets: Sequence[DevSetCallback], state: TrainerState, output_dir: str) -> None:
    """Write what an evaluation scored, and delete what is neither the first, the best nor the last evaluation.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets, which were evaluated just now.
        state (`TrainerState`): The step, and the step of the best checkpoint so far.
        output_dir (`str`): The output directory of the run.
    """
    scores = {metric: parts for dev_set in dev_sets for metric, parts in dev_set.scores.items()}
    if not scores:
        return
    folder = Path(output_dir, DEV_SCORES)
    folder.mkdir(parents=True, exist_ok=True)
    with write_atomically(_path(folder, state.global_step)) as path:
        save_scores(path, scores)
    steps = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.npz"))
    for step in steps[1:]:
        if step not in (state.global_step, state.best_global_step):
            _path(folder, step).unlink()


def dev_change(runs: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any] | None:
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
    paths = [
        _path(folder / DEV_SCORES, results[when]["step"])
        for folder, results in runs
        if metric is not None
        for when in ("initial", "saved")
    ]
    if not paths or not all(path.is_file() for path in paths):
        return None
    scores = [load_scores(path) for path in paths]
    if not all(metric in each for each in scores):
        return None
    systems = [each[metric] for each in scores]
    figures = resampled_scores(systems, "all", "spearman", _RESAMPLES, np.random.default_rng(0))
    by_seed = figures[1::2] - figures[::2]
    drawn = mean_over_drawn_seeds(by_seed, np.random.default_rng(1))
    low, high = interval(drawn, _CONFIDENCE)
    return {
        "metric": metric,
        "difference": float(np.mean([results["saved"][metric] - results["initial"][metric] for _, results in runs])),
        "low": low,
        "high": high,
        "confidence": _CONFIDENCE,
        "resamples": _RESAMPLES,
        "seeds": len(runs),
    }


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step}.npz"
