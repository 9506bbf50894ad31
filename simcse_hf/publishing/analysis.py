"""Compute the numbers of the pictures of `simcse-hf analyze`, and write both."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.bootstrap import join_parts
from ..evaluation.report import read_results
from ..ops.errors import require_extra
from ..ops.files import write_atomically, write_json
from . import plots
from .run_log import Run, read_log

STSB = "STSBenchmark"
BANDS = 5
DENSITY_POINTS = 201
#: Fewer distinct cosines than this have no density estimate.
_FEWEST = 3
_DRAW = {
    "alignment_uniformity": plots.draw_alignment_uniformity,
    "cosine_densities": plots.draw_cosine_densities,
    "singular_values": plots.draw_singular_values,
    "training_curves": plots.draw_training_curves,
}
_NEEDS = {
    "alignment_uniformity": "no run logged alignment and uniformity (train with --dev_file and --eval_steps), and no "
    "model was evaluated with --geometry",
    "cosine_densities": "no result file has the cosines of scored pairs beside it (.scores.npz)",
    "singular_values": "no model was evaluated with --geometry",
    "training_curves": "no run logged a loss or dev scores",
}


def analyze(sources: Mapping[str, str | Path], output: str | Path) -> dict:
    """Draw training runs and evaluated models, and write the numbers of the pictures as one JSON file.

    Args:
        sources (`Mapping[str, str | Path]`): Names and paths: output directories of training runs, and result files
            (`.json`) of `simcse-hf evaluate`, with their `.scores.npz` beside them.
        output (`str` or `Path`): The folder, made if needed, which gets `analysis.json` and those of
            `alignment_uniformity.png`, `cosine_densities.png`, `singular_values.png` and `training_curves.png` that
            the sources have numbers for.

    Returns:
        `dict`: The content of `analysis.json`: the numbers by picture, and `omitted`, which says why a
        picture is missing.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If a source is neither a run nor a result file.
    """
    matplotlib = require_extra("matplotlib", "plot", "`simcse-hf analyze`")
    runs: dict = {}
    scores: dict = {}
    paths: dict = {}
    spectra: dict = {}
    for name, source in sources.items():
        if Path(source).is_dir():
            runs[name] = read_log(source)
            path = runs[name].geometry()
            if path:
                paths[name] = path
            continue
        results, scores[name] = read_results(source)
        geometry = results["results"].get("geometry")
        if geometry:
            paths[name] = [(0, geometry["alignment"], geometry["uniformity"])]
            if "singular_spectrum" in geometry:
                spectra[name] = geometry["singular_spectrum"]
    numbers = {
        "alignment_uniformity": paths,
        "cosine_densities": cosine_densities(scores),
        "singular_values": spectra,
        "training_curves": training_curves(runs),
    }
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    document: dict = {}
    omitted = {}
    with matplotlib.rc_context(plots.STYLE):
        for name, found in numbers.items():
            if not found:
                omitted[name] = _NEEDS[name]
                continue
            document[name] = found
            with write_atomically(folder / f"{name}.png") as temporary:
                _DRAW[name](found).savefig(temporary, dpi=120, facecolor="white", format="png")
    document["omitted"] = omitted
    write_json(folder / "analysis.json", document)
    return document


def cosine_densities(scores: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Estimate the densities of cosine similarities in five bands of the gold score (SimCSE, Fig. G.1).

    Args:
        scores (`Mapping`): For each model, the arrays `predicted` and `gold` of each part of each task.

    Returns:
        `dict[str, list[dict]]`: For each model its bands: `gold`, `pairs`, `mean`, and `cosine` and `density`, which
        are kernel estimates with Scott's bandwidth. The set is STS-B if a model has it, and otherwise the set that
        most models have.
    """
    sets: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name, tasks in scores.items():
        for task, parts in tasks.items():
            if parts and all("predicted" in arrays for arrays in parts.values()):
                whole = join_parts(parts.values())
                models = sets.setdefault(task, {})
                models[name] = (whole["predicted"], whole["gold"])
    if not sets:
        return {}
    chosen = sets.get(STSB) or max(sets.values(), key=len)
    every = np.concatenate([gold for _, gold in chosen.values()])
    lowest = math.floor(every.min())
    highest = math.ceil(every.max())
    edges = np.linspace(lowest, highest, BANDS + 1)
    densities = {}
    for name, (predicted, gold) in chosen.items():
        # A score on an edge belongs to the band above it, and the highest score to the last band.
        band_of = np.digitize(gold, edges[1:-1])
        bands = []
        for number in range(BANDS):
            inside = (band_of == number) & np.isfinite(predicted)
            cosines = predicted[inside]
            ends = edges[number : number + 2]
            band = {"gold": ends.tolist(), "pairs": len(cosines)}
            bands.append(band | _density(cosines))
        densities[name] = bands
    return densities


def _density(cosines: np.ndarray) -> dict:
    """Return the mean of some cosines, and if they are enough their density at points around them."""
    from scipy.stats import gaussian_kde

    if not len(cosines):
        return {}
    mean = float(cosines.mean())
    if len(np.unique(cosines.round(6))) < _FEWEST:
        return {"mean": mean}
    density = gaussian_kde(cosines)
    margin = 3 * math.sqrt(density.covariance.item())
    lowest = max(-1, cosines.min() - margin)
    highest = min(1, cosines.max() + margin)
    points = np.linspace(lowest, highest, DENSITY_POINTS)
    return {
        "mean": mean,
        "cosine": points.tolist(),
        "density": density(points).tolist(),
    }


def training_curves(runs: Mapping[str, Run]) -> dict:
    """Collect the loss, the dev score, alignment and uniformity of runs: metric, name of the run, value by step."""
    curves: dict = {}
    for name, run in runs.items():
        path = run.geometry()
        series = {}
        for key in ("loss", "eval_loss", run.dev_metric):
            if key:
                series[key] = run.series(key)
        series["alignment"] = {step: alignment for step, alignment, _ in path}
        series["uniformity"] = {step: uniformity for step, _, uniformity in path}
        for key, values in series.items():
            if values:
                curves.setdefault(key, {})[name] = values
    return curves
