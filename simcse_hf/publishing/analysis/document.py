"""Put an analysis together: the pictures, and one JSON document with every number of the report."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...evaluation.compare import compare_evaluations, figure_intervals
from ...evaluation.report import is_transfer
from ...evaluation.run import PAPER_PROTOCOL, Protocol
from ..card_results import SHORT_NAMES
from .curves import draw_training_curves, draw_trajectory
from .drawing import CannotDraw, Picture
from .geometry import draw_alignment_uniformity, draw_singular_values, effective_rank
from .grids import Grid, draw_grid
from .models import STSB, MeasuredModel
from .runs import Run
from .similarity import draw_cosine_densities


@dataclass
class Analysis:
    """The pictures of an analysis, and the numbers of its report.

    Args:
        document (`dict`): `models` (by name: `description`, `results`, `intervals`, `geometry`, `neighbours`),
            `comparison` (of [`compare_evaluations`], or `None`), `runs`, `pictures` and `omitted` (what is not shown,
            and why). Numbers that are not finite are `None`.
        pictures (`list[Picture]`): The pictures.
    """

    document: dict[str, Any]
    pictures: list[Picture]


def analyse(
    models: Mapping[str, MeasuredModel],
    runs: Sequence[Run] = (),
    grids: Sequence[Grid] = (),
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
    confidence: float = 0.95,
    omitted: Mapping[str, str] | None = None,
) -> Analysis:
    """Compare models, and draw whatever the models, runs and searches have the numbers for.

    Args:
        models (`Mapping[str, MeasuredModel]`): The models by name, the baseline first.
        runs (`Sequence[Run]`, *optional*): Training runs.
        grids (`Sequence[Grid]`, *optional*): Searches.
        protocol (`Protocol`, *optional*): How the models were scored.
        resamples (`int`, *optional*, defaults to `1000`): Resamples of the bootstrap.
        confidence (`float`, *optional*, defaults to `0.95`): Level of the intervals.
        omitted (`Mapping[str, str]`, *optional*): What is already known to be missing, and why.

    Returns:
        `Analysis`: The pictures and the document.
    """
    missing = dict(omitted or {})
    comparison = None
    if len(models) > 1:
        try:
            evaluations = {name: model.evaluation for name, model in models.items()}
            comparison = compare_evaluations(evaluations, protocol, resamples, confidence)
            _add_verdicts(comparison)
        except ValueError as error:
            missing["differences"] = str(error).rstrip(".")
    described = {}
    for name, model in models.items():
        results = model.evaluation.results
        missing |= {task: str(each["missing"]) for task, each in results.items() if _is_missing(each)}
        described[name] = {
            "description": model.description,
            "results": {key: value for key, value in results.items() if key != "geometry"},
            "intervals": figure_intervals(model.evaluation, protocol, resamples, confidence),
            "geometry": _geometry(results["geometry"]) if "geometry" in results else None,
            "neighbours": model.neighbours,
        }
    pictures = _draw(models, runs, grids, missing)
    document = {
        "models": described,
        "comparison": comparison,
        "confidence": confidence,
        "resamples": resamples,
        "runs": {run.name: run.summary() for run in runs},
        "searches": [grid.name for grid in grids],
        "pictures": [{"name": p.name, "title": p.title, "reading": p.reading} for p in pictures],
        "omitted": missing,
    }
    return Analysis(finite(document), pictures)


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by `None`, which JSON can write, inside lists and dictionaries."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(
    models: Mapping[str, MeasuredModel], runs: Sequence[Run], grids: Sequence[Grid], missing: dict[str, str]
) -> list[Picture]:
    geometry = {
        name: m.evaluation.results["geometry"] for name, m in models.items() if "geometry" in m.evaluation.results
    }
    wanted: dict[str, Callable[[], Picture]] = {}
    if models:
        averages = {name: _average_sts(model) for name, model in models.items()}
        wanted["alignment and uniformity of the models"] = lambda: draw_alignment_uniformity(geometry, averages)
        wanted["singular values"] = lambda: draw_singular_values(geometry)
        wanted["cosine similarities by gold score"] = lambda: draw_cosine_densities(*_cosines(models))
    if runs:
        wanted["training curves"] = lambda: draw_training_curves(runs)
        wanted["alignment and uniformity during training"] = lambda: draw_trajectory(runs)
    for grid in grids:
        wanted[f"search {grid.name}"] = partial(draw_grid, grid)
    pictures = []
    for what, draw in wanted.items():
        try:
            pictures.append(draw())
        except CannotDraw as reason:
            missing[what] = str(reason)
    return pictures


def _is_missing(result: dict[str, Any]) -> bool:
    """Return whether a task was not found; the entries of averages list the tasks without a figure."""
    return isinstance(result.get("missing"), str)


def _geometry(geometry: dict[str, Any]) -> dict[str, Any]:
    """Return the geometry for a table: without the spectrum, whose numbers are in the CSV of its picture."""
    spectrum = geometry.get("singular_spectrum") or []
    kept = {key: value for key, value in geometry.items() if key != "singular_spectrum"}
    return kept | {"effective_rank": effective_rank(spectrum) if spectrum else None, "dimensions": len(spectrum)}


def _average_sts(model: MeasuredModel) -> float | None:
    average = model.evaluation.results.get("average")
    if not average or not average["tasks"] or any(map(is_transfer, average["tasks"])):
        return None
    return average["value"]


def _cosines(models: Mapping[str, MeasuredModel]) -> tuple[dict[str, dict[str, np.ndarray]], str]:
    """Select one set of scored pairs, STS-B if a model has its cosines, and return the scores of each model on it."""
    sets: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name, model in models.items():
        for task, parts in model.evaluation.scores.items():
            if "regressor" in model.evaluation.results.get(task, {}):
                continue  # the stored scores are those of the regressor, and not cosines
            if all("predicted" in arrays for arrays in parts.values()):
                arrays = {key: np.concatenate([part[key] for part in parts.values()]) for key in ("predicted", "gold")}
                sets.setdefault(task, {})[name] = arrays
    task = STSB if STSB in sets else max(sets, key=lambda each: len(sets[each]), default="")
    return sets.get(task, {}), SHORT_NAMES.get(task, task)


def _add_verdicts(comparison: dict[str, Any]) -> None:
    """Say of each difference whether its interval lies above 0, below 0 or contains it."""
    for differences in comparison["differences"].values():
        for found in differences.values():
            if found["low"] is None:
                found["verdict"] = "not tested"
            else:
                found["verdict"] = "better" if found["low"] > 0 else "worse" if found["high"] < 0 else "within noise"
