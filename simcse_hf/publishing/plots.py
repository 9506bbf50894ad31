"""Draw training runs and evaluated models: alignment and uniformity, cosines by gold score, spectra, and curves."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluation.report import read_results
from ..ops.errors import require_extra
from ..ops.files import read_json_object, write_atomically, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#3b7dd8", "#d55e00", "#2a9461", "#b0569f", "#1a8f9c", "#a5742a", "#d43d51", "#808080")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
STSB = "STSBenchmark"
BANDS = 5
DENSITY_POINTS = 201
#: Fewer distinct cosines than this have no density estimate.
_FEWEST = 3
_STATE, _RESULTS = "trainer_state.json", "results.json"
#: Endings of dev metrics that describe the geometry of the embeddings or the evaluation itself.
_NOT_QUALITY = ("_alignment", "_uniformity", "_mean_cosine", "_effective_rank", "_loss", "_runtime", "_per_second")
STYLE = {"font.size": 9, "axes.grid": True, "grid.alpha": 0.2, "legend.frameon": False, "text.parse_math": False}


@dataclass(frozen=True)
class Run:
    """The log of a training run.

    Args:
        history (`list[dict]`): `log_history` of the Trainer: entries with their `step`.
        dev_metric (`str`, *optional*): Name of the dev metric in the log, such as `"eval_stsb_spearman"`.
    """

    history: list[dict[str, Any]]
    dev_metric: str | None

    def series(self, key: str | None) -> dict[int, float]:
        """Return the finite values of a logged metric by step."""
        logged = {entry["step"]: entry[key] for entry in self.history if key in entry and "step" in entry}
        return {step: float(x) for step, x in sorted(logged.items()) if isinstance(x, (int, float)) and np.isfinite(x)}

    def geometry(self) -> list[tuple[int, float, float]]:
        """Return step, alignment and uniformity of each evaluation on the first dev set that has both."""
        names = sorted({m[1] for e in self.history for key in e if (m := re.fullmatch(r"eval_(.+)_alignment", key))})
        for name in names:
            alignment, uniformity = (self.series(f"eval_{name}_{kind}") for kind in ("alignment", "uniformity"))
            if path := [(step, alignment[step], uniformity[step]) for step in alignment if step in uniformity]:
                return path
        return []


def read_run(folder: str | Path) -> Run:
    """Read the log of a training run, or of the last checkpoint if the run was interrupted.

    Args:
        folder (`str` or `Path`): The output directory of the run.

    Returns:
        `Run`: The log.

    Raises:
        ValueError: If the folder holds no log, or a file is damaged.
    """
    path = Path(folder)
    checkpoints = [each for each in path.glob(f"checkpoint-*/{_STATE}") if each.parent.name[11:].isdigit()]
    checkpoints.sort(key=lambda state: int(state.parent.name[11:]), reverse=True)
    states = [state for state in (path / _STATE, *checkpoints) if state.is_file()]
    if not states:
        raise ValueError(
            f"{path} holds no training run ({_STATE} is missing). To draw a model, evaluate it first: simcse-hf "
            "evaluate --model MODEL --data_dir FOLDER --geometry --output MODEL.json"
        )
    history = read_json_object(states[0]).get("log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise ValueError(f"{states[0]}: log_history is not a list of objects; the file is damaged")
    results = read_json_object(path / _RESULTS) if (path / _RESULTS).is_file() else {}
    logged = [name for entry in history for name in entry if name.startswith("eval_")]
    metric = f"eval_{results['dev_metric']}" if results.get("dev_metric") else None
    return Run(history, metric or next((name for name in logged if not name.endswith(_NOT_QUALITY)), None))


def analyze(sources: Mapping[str, str | Path], output: str | Path) -> dict[str, Any]:
    """Draw training runs and evaluated models, and write the numbers of the pictures as one JSON file.

    Args:
        sources (`Mapping[str, str | Path]`): Names and paths: output directories of training runs, and result files
            (`.json`) of `simcse-hf evaluate`, with their `.scores.npz` beside them.
        output (`str` or `Path`): The folder, made if needed, which gets `analysis.json` and those of
            `alignment_uniformity.png`, `cosine_densities.png`, `singular_values.png` and `training_curves.png` that
            the sources have numbers for.

    Returns:
        `dict[str, Any]`: The content of `analysis.json`: the numbers by picture, and `omitted`, which says why a
        picture is missing.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If a source is neither a run nor a result file.
    """
    matplotlib = require_extra("matplotlib", "plot", "`simcse-hf analyze`")
    runs, results, scores, models = {}, {}, {}, []
    for name, source in sources.items():
        if Path(source).is_dir():
            runs[name] = read_run(source)
        else:
            read, arrays = read_results(str(source))
            models.append(read.get("model", ""))
            results[name], scores[name] = read["results"], arrays
    geometry = {name: each["geometry"] for name, each in results.items() if "geometry" in each}
    paths = {name: path for name, run in runs.items() if (path := run.geometry())}
    paths |= {name: [(0, each["alignment"], each["uniformity"])] for name, each in geometry.items()}
    numbers: dict[str, Any] = {
        "alignment_uniformity": paths,
        "cosine_densities": cosine_densities(scores),
        "singular_values": {name: x for name, each in geometry.items() if (x := each.get("singular_spectrum"))},
        "training_curves": training_curves(runs),
    }
    draw: dict[str, Callable[[Any], Figure]] = {
        "alignment_uniformity": draw_alignment_uniformity,
        "cosine_densities": draw_cosine_densities,
        "singular_values": draw_singular_values,
        "training_curves": draw_training_curves,
    }
    omitted = {name: _NEEDS[name] for name, found in numbers.items() if not found}
    if len(paths) == 1 and len(next(iter(paths.values()))) == 1:
        numbers["alignment_uniformity"], omitted["alignment_uniformity"] = {}, _alone(models)
    document: dict[str, Any] = {name: found for name, found in numbers.items() if found} | {"omitted": omitted}
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, found in numbers.items():
            if found:
                with write_atomically(folder / f"{name}.png") as temporary:
                    draw[name](found).savefig(temporary, dpi=120, facecolor="white", format="png")
    write_json(folder / "analysis.json", document)
    return document


def _alone(models: Sequence[str]) -> str:
    """Say what one point needs beside it: the model that the training began with, which its results.json names."""
    record = Path(*models, _RESULTS)
    start = read_json_object(record).get("base_model") if record.is_file() else None
    return (
        f"one model is one point. Evaluate {start or 'another model, such as the one it was trained from,'} with "
        "--geometry, too, and name both result files"
    )


_NEEDS = {
    "alignment_uniformity": "no run logged alignment and uniformity (train with --dev_file and --eval_steps), and no "
    "model was evaluated with --geometry",
    "cosine_densities": "no result file has the cosines of scored pairs beside it (.scores.npz)",
    "singular_values": "no model was evaluated with --geometry",
    "training_curves": "no run logged a loss or dev scores",
}


def cosine_densities(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Estimate the densities of cosine similarities in five bands of the gold score (SimCSE, Fig. G.1).

    Args:
        scores (`Mapping`): For each model, the arrays `predicted` and `gold` of each part of each task.

    Returns:
        `dict[str, list[dict]]`: For each model its bands: `gold`, `pairs`, `mean`, and `cosine` and `density`, which
        are kernel estimates with Scott's bandwidth. The set is STS-B if a model has it, and otherwise the set that
        most models have.
    """
    from scipy.stats import gaussian_kde

    sets: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name, tasks in scores.items():
        for task, parts in tasks.items():
            if parts and all("predicted" in arrays for arrays in parts.values()):
                predicted, gold = (np.concatenate([x[key] for x in parts.values()]) for key in ("predicted", "gold"))
                sets.setdefault(task, {})[name] = predicted, gold
    chosen = sets.get(STSB) or max(sets.values(), key=len, default={})
    if not chosen:
        return {}
    every = np.concatenate([gold for _, gold in chosen.values()])
    edges = np.linspace(math.floor(every.min()), math.ceil(every.max()), BANDS + 1)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, (predicted, gold) in chosen.items():
        # A score on an edge belongs to the band above it, and the highest score to the last band.
        band_of = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, BANDS - 1)
        found[name] = []
        for number in range(BANDS):
            cosines = predicted[(band_of == number) & np.isfinite(predicted)]
            band = {"gold": [edges[number], edges[number + 1]], "pairs": len(cosines)}
            if len(cosines):
                band["mean"] = float(cosines.mean())
            if len(np.unique(cosines.round(6))) >= _FEWEST:
                density = gaussian_kde(cosines)
                margin = 3 * float(np.sqrt(density.covariance[0, 0]))
                x = np.linspace(max(-1, cosines.min() - margin), min(1, cosines.max() + margin), DENSITY_POINTS)
                band |= {"cosine": x.tolist(), "density": density(x).tolist()}
            found[name].append(band)
    return found


def training_curves(runs: Mapping[str, Run]) -> dict[str, dict[str, dict[int, float]]]:
    """Collect the loss, the dev score, alignment and uniformity of runs: metric, name of the run, value by step."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for name, run in runs.items():
        path = run.geometry()
        series = {key: run.series(key) for key in ("loss", "eval_loss", run.dev_metric) if key}
        series |= {kind: {point[0]: point[i] for point in path} for i, kind in ((1, "alignment"), (2, "uniformity"))}
        for key, values in series.items():
            if values:
                curves.setdefault(key, {})[name] = values
    return curves


def draw_alignment_uniformity(paths: Mapping[str, Sequence[tuple[int, float, float]]]) -> "Figure":
    """Draw each run's way through alignment and uniformity (SimCSE, Fig. 2), and each model as a point."""
    figure = new_figure(7, 5)
    axes = figure.subplots()
    for number, (name, path) in enumerate(paths.items()):
        steps, y, x = zip(*path, strict=True)
        look = series_style(number) | ({} if len(path) > 1 else {"linestyle": "none"})
        label = f"{name} ({steps[-1]} steps)" if len(path) > 1 else name
        axes.plot(x, y, label=label, **look)
        axes.annotate(f" {number + 1}", (x[-1], y[-1]), fontsize=9, weight="bold", color=look["color"])
        if len(path) > 1:
            axes.plot(x[0], y[0], marker=look["marker"], markersize=11, markerfacecolor="none", color=look["color"])
    axes.margins(0.12)
    axes.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
    legend_below(figure, axes)
    return figure


def draw_cosine_densities(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Draw the densities of cosines by gold score, one panel for each model; all panels share one axis."""
    columns = min(len(models), 3)
    lines = -(-len(models) // columns)
    figure = new_figure(max(5.5, 3.4 * columns), 0.7 + 3.1 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in panels[len(models) :]:
        axes.set_visible(False)
    for axes, (name, bands) in zip(panels, models.items(), strict=False):
        for number, band in enumerate(bands):
            axes.annotate(
                f"n = {band['pairs']}", (0.01, number + 0.28), xycoords=("axes fraction", "data"), fontsize=7
            )
            if "mean" in band:
                axes.plot([band["mean"]] * 2, [number, number + 0.2], color="black", linewidth=1.5, zorder=4)
            if "density" in band:
                heights = number + 0.85 * np.array(band["density"]) / max(band["density"])
                axes.fill_between(band["cosine"], number, heights, color=COLOURS[0], alpha=0.4)
        axes.set_title(name, fontsize=9)
    panels[0].set_yticks(range(BANDS), [f"{band['gold'][0]:g}–{band['gold'][1]:g}" for band in bands])
    panels[0].set_ylim(-0.15, BANDS + 0.1)
    figure.supxlabel("cosine similarity")
    figure.supylabel("gold score")
    return figure


def draw_singular_values(spectra: Mapping[str, Sequence[float]]) -> "Figure":
    """Draw the singular values of each model's embedding matrix, divided by the largest (SimCSE, Fig. F.1)."""
    figure = new_figure(7, 4.6)
    axes = figure.subplots()
    for number, (name, values) in enumerate(spectra.items()):
        every = max(1, len(values) // 8)
        axes.plot(range(1, len(values) + 1), values, label=name, markevery=every, **series_style(number))
    axes.set(xlabel="rank of the singular value", ylabel="singular value / largest", xlim=(0, None), ylim=(0, 1.04))
    legend_below(figure, axes)
    return figure


def draw_training_curves(curves: Mapping[str, Mapping[str, Mapping[int, float]]]) -> "Figure":
    """Draw each logged metric by step in a panel of its own, with one line for each run."""
    columns = min(2, len(curves))
    lines = -(-len(curves) // columns)
    figure = new_figure(4.8 * columns, 0.6 + 2.7 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    names = list(dict.fromkeys(name for runs in curves.values() for name in runs))
    for axes, (key, runs) in zip(panels, curves.items(), strict=False):
        for name, values in runs.items():
            every = max(1, len(values) // 12)
            axes.plot(list(values), list(values.values()), markevery=every, **series_style(names.index(name)))
        axes.set(xlabel="optimizer step", ylabel=_LABELS.get(key) or key.removeprefix("eval_").replace("_", " "))
    for number, name in enumerate(names):
        panels[0].plot([], [], label=name, **series_style(number))
    legend_below(figure, panels[0])
    return figure


_LABELS = {"loss": "training loss", "eval_loss": "held-out loss"}


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches, apart from pyplot, which would keep it in memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def series_style(number: int) -> dict[str, Any]:
    """Return colour, marker and line style of a series, so that series can be told apart without colour."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
        "markersize": 5,
        "linewidth": 1.3,
    }


def legend_below(figure: "Figure", axes: Any) -> None:
    """Put the numbered legend of some axes below the figure, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [f"{number} {name}" for number, name in enumerate(labels, start=1)]
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 12 / (max(map(len, labels)) + 6))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)
