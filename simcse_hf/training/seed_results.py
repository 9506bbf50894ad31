"""Summarise the runs of several seeds in one `results.json`, and publish the model of the best run."""

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ..evaluation.compare import describe_difference
from ..ops.files import read_json_object, write_atomically
from ..publishing.secrets import hide_secrets
from .callbacks import DEV_SCORES, dev_change
from .checkpoints import STAGING
from .output_dir import RESULTS

logger = logging.get_logger(__name__)

#: Files and folders of a run that do not belong to its model.
_NOT_PUBLISHED = ("checkpoint-*", "runs", STAGING, DEV_SCORES, "README.md", ".eval_results", RESULTS, "evaluation*")
#: The evaluations of a run whose mean over the seeds is reported. "saved" is that of the saved weights.
_EVALUATIONS = ("initial", "saved", "best", "final")
_NOT_METRICS = ("step", "runtime", "samples_per_second", "steps_per_second")


def seed_folder(directory: Path, seed: int) -> Path:
    """Return the folder of a seed's run."""
    return directory / f"seed-{seed}"


def publish_best(directory: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Copy the model of the best run into `directory`, and write `results.json` over all seeds.

    The best run has the highest dev metric with the weights that it saved. Without a dev set, the first seed is
    published. A call that finds everything in place changes nothing.

    Args:
        directory (`Path`): The folder that holds the folders of the runs.
        seeds (`Sequence[int]`): The seeds, whose runs are finished.

    Returns:
        `dict[str, Any]`: The content of `results.json`: that of the published run, with `seeds` (see
        [`summarise`]).

    Raises:
        ValueError: If the results of a run cannot be read.
    """
    runs = {seed: _read(seed_folder(directory, seed) / RESULTS) for seed in seeds}
    summary = summarise(runs)
    published = summary["published"]
    results = {
        **runs[published],
        "model": str(directory.resolve()),
        "command": hide_secrets(sys.argv),
        "train_seconds": sum(run["train_seconds"] or 0 for run in runs.values()),
        "change": dev_change([(seed_folder(directory, seed), run) for seed, run in runs.items()]),
        "seeds": summary,
    }
    path = directory / RESULTS
    earlier = _read(path) if path.exists() else {}
    if earlier.get("seeds") != summary:
        path.unlink(missing_ok=True)  # It is written last: until then the model is incomplete.
        ignored = shutil.ignore_patterns(*_NOT_PUBLISHED)
        shutil.copytree(seed_folder(directory, published), directory, ignore=ignored, dirs_exist_ok=True)
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(format_summary(summary, results["change"], directory))
    return results


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path, advice="Delete it and repeat the command.")


def summarise(runs: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Summarise the results of several seeds.

    Args:
        runs (`dict[int, dict]`): For each seed the content of its `results.json`.

    Returns:
        `dict[str, Any]`: `runs` (for each seed, in the order given: `seed`, `train_seconds`, and its evaluations
        `initial`, `saved`, `best` and `final`), `mean` and `sd` (of each metric in these evaluations; `sd` is the
        sample standard deviation, and `None` for one seed), `published` (the seed whose model is published) and
        `chosen_by` (the dev metric, or `None` without a dev set).
    """
    metric = next(iter(runs.values()))["dev_metric"]
    listed = [
        {"seed": seed, "train_seconds": run["train_seconds"], **{when: run[when] for when in _EVALUATIONS}}
        for seed, run in runs.items()
    ]
    mean: dict[str, dict[str, float]] = {}
    sd: dict[str, dict[str, float | None]] = {}
    for when in _EVALUATIONS if metric is not None else ():
        names = [n for n in listed[0][when] if n not in _NOT_METRICS and all(n in run[when] for run in listed)]
        values = {name: [run[when][name] for run in listed] for name in names}
        mean[when] = {name: statistics.fmean(x) for name, x in values.items()}
        sd[when] = {name: statistics.stdev(x) if len(x) > 1 else None for name, x in values.items()}
    best = listed[0] if metric is None else max(listed, key=lambda run: run["saved"][metric])
    return {"runs": listed, "mean": mean, "sd": sd, "published": best["seed"], "chosen_by": metric}


def format_summary(summary: dict[str, Any], change: dict[str, Any] | None, directory: Path) -> str:
    """Format what [`summarise`] and [`dev_change`] returned as text."""
    metric, seeds = summary["chosen_by"], [run["seed"] for run in summary["runs"]]
    lines = []
    if metric is not None:
        lines.append(f"\n{metric} on the dev set x 100, mean ± standard deviation over {len(seeds)} seeds")
        for when, label in (("initial", "before training"), ("saved", "saved weights"), ("final", "last step")):
            sd = summary["sd"][when][metric]
            spread = "" if sd is None else f" ± {sd:.2f}"
            each = ", ".join(f"{run['seed']}: {run[when][metric]:.2f}" for run in summary["runs"])
            lines.append(f"  {label:<17} {summary['mean'][when][metric]:6.2f}{spread}   ({each})")
        if change is not None:
            described = describe_difference(change["difference"], change["low"], change["high"], change["confidence"])
            lines.append(f"  {'change':<17} {described}")
        lines.append(f"Seed {summary['published']} is the best one on the dev set.")
    else:
        lines.append(f"Without a dev set nothing says which seed is best, so that of seed {seeds[0]} is published.")
    lines.append(f"The model of seed {summary['published']} is saved in {directory}, with {RESULTS} over all seeds.")
    return "\n".join(lines)
