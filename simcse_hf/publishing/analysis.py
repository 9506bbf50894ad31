"""Read training runs and evaluated models, and write the numbers and the pictures of `simcse-hf analyze`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers.trainer_utils import get_last_checkpoint

from ..evaluation.bootstrap import join_parts
from ..evaluation.report import read_results
from ..ops.errors import require_extra
from ..ops.files import read_json_object, write_atomically, write_json
from . import plots

STSB = "STSBenchmark"
_STATE = "trainer_state.json"
#: Endings of dev metrics that describe the geometry of the embeddings or the evaluation itself.
_NOT_QUALITY = ("_alignment", "_uniformity", "_mean_cosine", "_effective_rank", "_loss", "_runtime", "_per_second")
BANDS = 5
DENSITY_POINTS = 201
#: Fewer distinct cosines than this have no density estimate.
_FEWEST = 3


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
    scores: dict = {}
    paths: dict = {}
    spectra: dict = {}
    curves: dict = {}
    for name, source in sources.items():
        if Path(source).is_dir():
            log = read_log(source)
            for key, values in log.items():
                curves.setdefault(key, {})[name] = values
            uniformity = log.get("uniformity", {})
            if uniformity:
                paths[name] = [(step, log["alignment"][step], value) for step, value in uniformity.items()]
            continue
        results, scores[name] = read_results(source)
        geometry = results["results"].get("geometry")
        if geometry:
            paths[name] = [(0, geometry["alignment"], geometry["uniformity"])]
            if "singular_spectrum" in geometry:
                spectra[name] = geometry["singular_spectrum"]
    pictures = [
        (
            "alignment_uniformity",
            paths,
            plots.draw_alignment_uniformity,
            "no run logged alignment and uniformity (train with --dev_file and --eval_steps), and no model was "
            "evaluated with --geometry",
        ),
        (
            "cosine_densities",
            cosine_densities(scores),
            plots.draw_cosine_densities,
            "no result file has the cosines of scored pairs beside it (.scores.npz)",
        ),
        ("singular_values", spectra, plots.draw_singular_values, "no model was evaluated with --geometry"),
        ("training_curves", curves, plots.draw_training_curves, "no run logged a loss or dev scores"),
    ]
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    document: dict = {}
    omitted = {}
    with matplotlib.rc_context(plots.STYLE):
        for name, numbers, draw, reason in pictures:
            if not numbers:
                omitted[name] = reason
                continue
            document[name] = numbers
            with write_atomically(folder / f"{name}.png") as temporary:
                draw(numbers).savefig(temporary, dpi=120, format="png")
    document["omitted"] = omitted
    write_json(folder / "analysis.json", document)
    return document


def read_log(folder: str | Path) -> dict[str, dict[int, float]]:
    """Read the log of a training run, or of the last checkpoint if the run was interrupted.

    Args:
        folder (`str` or `Path`): The output directory of the run.

    Returns:
        `dict[str, dict[int, float]]`: The finite values by step of each of these metrics that was logged: `loss`,
        `eval_loss`, the dev metric under its name in the log, such as `eval_stsb_spearman`, and `alignment` and
        `uniformity` on the first dev set that has both.

    Raises:
        ValueError: If the folder holds no log, or a file is damaged.
    """
    # 1. The log, of the run or of its last checkpoint.
    folder = Path(folder)
    path = folder / _STATE
    if not path.is_file():
        path = Path(get_last_checkpoint(str(folder)) or folder, _STATE)
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no training run ({_STATE} is missing). To draw a model, evaluate it first: simcse-hf "
            "evaluate --model MODEL --data_dir FOLDER --geometry --output MODEL.json"
        )
    history = read_json_object(path).get("log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise ValueError(f"{path}: log_history is not a list of objects; the file is damaged")

    # 2. Its metrics by step.
    series: dict[str, dict[int, float]] = {}
    for entry in history:
        for name, value in entry.items():
            if "step" in entry and isinstance(value, (int, float)) and math.isfinite(value):
                series.setdefault(name, {})[entry["step"]] = float(value)

    # 3. The metric of the dev set, and its geometry.
    results = folder / "results.json"
    metric = read_json_object(results).get("dev_metric") if results.is_file() else None
    evaluated = [name for name in series if name.startswith("eval_")]
    scores = [name for name in evaluated if not name.endswith(_NOT_QUALITY)]
    dev_metric = f"eval_{metric}" if metric else next(iter(scores), "")
    log = {name: series[name] for name in ("loss", "eval_loss", dev_metric) if name in series}
    for name in sorted(evaluated):
        uniformity = series.get(name.replace("_alignment", "_uniformity"))
        if name.endswith("_alignment") and uniformity:
            log["alignment"] = series[name]
            log["uniformity"] = {step: uniformity[step] for step in uniformity if step in series[name]}
            break
    return log


def cosine_densities(scores: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Estimate the densities of cosine similarities in five bands of the gold score (SimCSE, Fig. G.1).

    Args:
        scores (`Mapping`): For each model, the arrays `predicted` and `gold` of each part of each task.

    Returns:
        `dict[str, list[dict]]`: For each model its bands: `gold`, `pairs`, `mean`, and `cosine` and `density`, which
        are kernel estimates with Scott's bandwidth. The set is STS-B if a model has it, and otherwise the set that
        most models have.
    """
    sets: dict[str, dict] = {}
    for name, tasks in scores.items():
        for task, parts in tasks.items():
            if parts and all("predicted" in arrays for arrays in parts.values()):
                sets.setdefault(task, {})[name] = join_parts(parts.values())
    if not sets:
        return {}
    chosen = sets.get(STSB) or max(sets.values(), key=len)
    every = np.concatenate([whole["gold"] for whole in chosen.values()])
    edges = np.linspace(math.floor(every.min()), math.ceil(every.max()), BANDS + 1)
    densities = {}
    for name, whole in chosen.items():
        # A score on an edge belongs to the band above it, and the highest score to the last band.
        band_of = np.digitize(whole["gold"], edges[1:-1])
        bands = []
        for number in range(BANDS):
            cosines = whole["predicted"][band_of == number]
            cosines = cosines[np.isfinite(cosines)]
            band = {"gold": edges[number : number + 2].tolist(), "pairs": len(cosines)}
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
    lowest, highest = np.clip([cosines.min() - margin, cosines.max() + margin], -1, 1)
    points = np.linspace(lowest, highest, DENSITY_POINTS)
    return {
        "mean": mean,
        "cosine": points.tolist(),
        "density": density(points).tolist(),
    }
