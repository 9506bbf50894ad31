"""Read training runs and evaluated models, and draw them: the numbers and the pictures of `simcse-hf analyze`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.trainer_utils import get_last_checkpoint

from ..evaluation.metrics import find_metric
from ..evaluation.report import Evaluation
from ..runtime.errors import DataError, SettingError, as_list, require_extra
from ..runtime.files import StrPath, read_json, write_json
from ..runtime.outputs import Result, output_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STSB = "STSBenchmark"
_STATE = "trainer_state.json"
_SCORES = ("predicted", "gold")
BANDS = 5
DENSITY_POINTS = 201
#: Fewer distinct cosines than this have no density estimate.
_FEWEST = 3
COLOURS = "#3b7dd8 #d55e00 #2a9461 #b0569f #1a8f9c #a5742a #d43d51 #808080".split()
#: A row of a picture of intervals: its label, the differences of single seeds, and the difference with the two ends of
#: its interval, where it is known.
IntervalRow = tuple[str, Sequence[float], float | None, Sequence[float]]
MARKERS = "o s ^ D v P X *".split()
LINES = "- -- -. :".split()
#: Series can be told apart without colour.
STYLE = {
    "axes.prop_cycle": f"cycler(color={COLOURS}, marker={MARKERS}, linestyle={2 * LINES})",
    "lines.markersize": 5,
    "lines.linewidth": 1.3,
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.labelsize": 9,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "text.parse_math": False,
}
_LABELS = {"loss": "training loss", "eval_loss": "held-out loss"}


@dataclass(frozen=True)
class Analysis(Result):
    """The pictures that `analyze` drew.

    Args:
        output (`str`): The folder.
        numbers (`dict`): The numbers of each picture by its name.
        omitted (`dict[str, str]`): Why a picture is missing, by its name.
    """

    output: str
    numbers: dict[str, dict]
    omitted: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `analysis.json`: the numbers by picture, and `omitted`."""
        return self.numbers | {"omitted": self.omitted}

    def __str__(self) -> str:
        lines = [f"{self.output}/{name}.png" for name in self.numbers]
        lines += [f"{name} is not drawn: {reason}" for name, reason in self.omitted.items()]
        return "\n".join(lines)


def analyze(
    sources: Sequence[StrPath], output: StrPath, *, names: Sequence[str] | None = None, overwrite: bool = False
) -> Analysis:
    """Draw pictures of training runs and evaluated models.

    The pictures are PNG files, and analysis.json holds their numbers. Needs the extra `plot`.

    Args:
        sources (`Sequence[str | os.PathLike]`): Output folder of a training run, or result file (.json) of
            `simcse-hf evaluate --geometry`.
        output (`str` or `os.PathLike`): Folder for analysis.json and the pictures.
        names (`Sequence[str]`, *optional*): Names of the sources. The default is from their paths.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.

    Returns:
        `Analysis`: The numbers of the pictures.

    Raises:
        ImportError: If matplotlib is not installed.
        SettingError: If a source is neither a run nor a result file, or the sources do not have different names.

    Examples:
        >>> from simcse_hf import analyze
        >>> analysis = analyze(["outputs/my-model"], "outputs/pictures")
        >>> print(analysis)
        outputs/pictures/alignment_uniformity.png
        outputs/pictures/training_curves.png
        cosine_densities is not drawn: no result file has the cosines of scored pairs beside it (.scores.npz)
        singular_values is not drawn: no model was evaluated with --geometry
    """
    # 1. The sources by name.
    files = [Path(source) for source in as_list(sources)]
    if names is None:
        names = [path.parent.name if path.stem in ("", "results") else path.stem for path in files]
    if len(set(names)) != len(files):
        raise SettingError(f"names must give {len(files)} different names, one for each source")
    matplotlib = require_extra("matplotlib", "plot", "`simcse-hf analyze`")
    with output_folder(output, overwrite, "analysis.json", files) as folder:
        # 2. Their numbers.
        scores: dict = {}
        paths: dict = {}
        spectra: dict = {}
        curves: dict = {}
        for name, source in zip(names, files, strict=True):
            if source.is_dir():
                log = read_log(source)
                for key, values in log.items():
                    curves.setdefault(key, {})[name] = values
                uniformity = log.get("uniformity", {})
                if uniformity:
                    paths[name] = [(step, log["alignment"][step], value) for step, value in uniformity.items()]
                continue
            evaluation = Evaluation.read(source)
            scores[name] = evaluation.scores
            geometry = evaluation.results.get("geometry")
            if geometry:
                paths[name] = [(0, geometry["alignment"], geometry["uniformity"])]
                if "singular_spectrum" in geometry:
                    spectra[name] = geometry["singular_spectrum"]

        # 3. The numbers of each picture, the function that draws them, and why there may be none.
        not_evaluated = "no model was evaluated with --geometry"
        pictures: dict[str, tuple[dict, Callable[[Any], Any], str]] = {
            "alignment_uniformity": (
                paths,
                draw_alignment_uniformity,
                "no run logged alignment and uniformity (train with --dev_file and --eval_steps), and "
                f"{not_evaluated}",
            ),
            "cosine_densities": (
                cosine_densities(scores),
                draw_cosine_densities,
                "no result file has the cosines of scored pairs beside it (.scores.npz)",
            ),
            "singular_values": (spectra, draw_singular_values, not_evaluated),
            "training_curves": (curves, draw_training_curves, "no run logged a loss or dev scores"),
        }
        numbers = {}
        omitted = {}
        folder.mkdir()
        with matplotlib.rc_context(STYLE):
            for name, (found, draw, reason) in pictures.items():
                if not found:
                    omitted[name] = reason
                    continue
                numbers[name] = found
                draw(found).savefig(folder / f"{name}.png", dpi=120, format="png")
        analysis = Analysis(str(output), numbers, omitted)
        write_json(folder / "analysis.json", analysis.to_dict())
    return analysis


def read_log(folder: str | Path) -> dict[str, dict[int, float]]:
    """Read the log of a training run, or of the last checkpoint if the run was interrupted.

    Args:
        folder (`str` or `Path`): The output directory of the run.

    Returns:
        `dict[str, dict[int, float]]`: The finite values by step of each of these metrics that was logged: `loss`,
        `eval_loss`, the dev metric under its name in the log, such as `eval_stsb_spearman`, and `alignment` and
        `uniformity` on the first dev set that has both.

    Raises:
        DataError: If the folder holds no log, or a file is damaged.
    """
    # 1. The log, of the run or of its last checkpoint.
    folder = Path(folder)
    path = folder / _STATE
    if not path.is_file():
        path = Path(get_last_checkpoint(str(folder)) or folder, _STATE)
    if not path.is_file():
        raise DataError(
            f"{folder} holds no training run ({_STATE} is missing). To draw a model, evaluate it first: simcse-hf "
            "evaluate --model MODEL --data_dir FOLDER --geometry --output MODEL.json"
        )
    history = read_json(path).get("log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise DataError(f"{path}: log_history is not a list of objects; the file is damaged")

    # 2. Its metrics by step.
    series: dict[str, dict[int, float]] = {}
    for entry in history:
        for name, value in entry.items():
            if "step" in entry and isinstance(value, (int, float)) and math.isfinite(value):
                series.setdefault(name, {})[entry["step"]] = float(value)

    # 3. The metric of the dev set, and its geometry.
    results = folder / "results.json"
    metric = read_json(results).get("dev_metric") if results.is_file() else None
    scores = [name for name in series if name.startswith("eval_") and find_metric(name).is_quality]
    dev_metric = f"eval_{metric}" if metric else next(iter(scores), "")
    log = {name: series[name] for name in ("loss", "eval_loss", dev_metric) if name in series}
    for name in sorted(series):
        uniformity = series.get(name.replace("_alignment", "_uniformity"), {})
        if name.startswith("eval_") and name.endswith("_alignment") and uniformity:
            log["alignment"] = series[name]
            log["uniformity"] = {step: value for step, value in uniformity.items() if step in series[name]}
            break
    return log


def cosine_densities(scores: Mapping[str, dict]) -> dict[str, list[dict]]:
    """Estimate the densities of cosine similarities in five bands of the gold score (SimCSE, Fig. G.1).

    Args:
        scores (`Mapping`): For each model, the arrays `predicted` and `gold` of each part of each task.

    Returns:
        `dict[str, list[dict]]`: For each model its bands: `gold`, `pairs`, `mean`, and `cosine` and `density`, which
        are kernel estimates with Scott's bandwidth. The set is STS-B if a model has it, and otherwise the set that
        most models have.
    """
    from scipy.stats import gaussian_kde

    sets: dict[str, dict] = {}
    for name, tasks in scores.items():
        for task, parts in tasks.items():
            if parts and all("predicted" in arrays for arrays in parts.values()):
                whole = {each: np.concatenate([arrays[each] for arrays in parts.values()]) for each in _SCORES}
                sets.setdefault(task, {})[name] = whole
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
            if len(cosines):
                band["mean"] = float(cosines.mean())
            if len(np.unique(cosines.round(6))) >= _FEWEST:
                density = gaussian_kde(cosines)
                margin = 3 * math.sqrt(density.covariance.item())
                lowest, highest = np.clip([cosines.min() - margin, cosines.max() + margin], -1, 1)
                points = np.linspace(lowest, highest, DENSITY_POINTS)
                band |= {"cosine": points.tolist(), "density": density(points).tolist()}
            bands.append(band)
        densities[name] = bands
    return densities


# Pictures -----------------------------------------------------------------------------------------------------------


def draw_alignment_uniformity(paths: dict) -> "Figure":
    """Draw each run's way through alignment and uniformity (SimCSE, Fig. 2), and each model as a point."""
    figure = new_figure(7, 5)
    axes = figure.subplots()
    for name, path in paths.items():
        steps, alignment, uniformity = zip(*path, strict=True)
        (line,) = axes.plot(uniformity, alignment, label=name)
        if len(path) == 1:
            line.set_linestyle("none")
        else:
            line.set_label(f"{name} ({steps[-1]} steps)")
            start = {"color": line.get_color(), "marker": line.get_marker(), "linestyle": "none"}
            axes.plot(uniformity[0], alignment[0], markersize=11, fillstyle="none", **start)
    axes.margins(0.12)
    axes.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
    legend_below(figure, axes)
    return figure


def draw_cosine_densities(models: dict) -> "Figure":
    """Draw the densities of cosines by gold score, one panel for each model, side by side on one axis."""
    figure = new_figure(max(5.5, 3.4 * len(models)), 3.6)
    panels = figure.subplots(1, len(models), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, bands) in zip(panels, models.items(), strict=True):
        axes.set_title(name)
        for number, band in enumerate(bands):
            place = (0.01, number + 0.28)
            axes.annotate(f"n = {band['pairs']}", place, xycoords=axes.get_yaxis_transform(), fontsize=7)
            if "mean" in band:
                axes.vlines(band["mean"], number, number + 0.2, color="black", linewidth=1.5, zorder=4)
            if "density" in band:
                density = np.array(band["density"])
                heights = number + 0.85 * density / density.max()
                axes.fill_between(band["cosine"], number, heights, color=COLOURS[0], alpha=0.4)
    golds = ["{:g}–{:g}".format(*band["gold"]) for band in bands]
    panels[0].set_yticks(range(len(bands)), golds)
    panels[0].set_ylim(-0.15, len(bands) + 0.1)
    figure.supxlabel("cosine similarity")
    figure.supylabel("gold score")
    return figure


def draw_singular_values(spectra: dict) -> "Figure":
    """Draw the singular values of each model's embedding matrix, divided by the largest (SimCSE, Fig. F.1)."""
    figure = new_figure(7, 4.6)
    axes = figure.subplots()
    for name, values in spectra.items():
        ranks = range(1, len(values) + 1)
        axes.plot(ranks, values, label=name, markevery=0.12)
    axes.set(xlabel="rank of the singular value", ylabel="singular value / largest", xlim=(0, None), ylim=(0, 1.04))
    legend_below(figure, axes)
    return figure


def draw_training_curves(curves: dict) -> "Figure":
    """Draw each logged metric by step in a panel of its own, one below the other, with one line for each run."""
    figure = new_figure(7, 0.9 + 2.2 * len(curves))
    panels = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    names = dict.fromkeys(chain(*curves.values()))
    for axes, (key, runs) in zip(panels, curves.items(), strict=True):
        for name in names:
            values = runs.get(name, {})
            every = max(1, len(values) // 12)
            axes.plot(values.keys(), values.values(), label=name, markevery=every)
        axes.set_ylabel(_LABELS.get(key) or key.removeprefix("eval_").replace("_", " "))
    panels[-1].set_xlabel("optimizer step")
    figure.align_ylabels(panels)
    legend_below(figure, panels[0])
    return figure


def draw_intervals(target: Any, rows: Sequence[IntervalRow], caption: str) -> bool:
    """Draw differences with their intervals below each other.

    Args:
        target (`str`, `os.PathLike` or `IO[bytes]`): Where the picture is written, as PNG.
        rows (`Sequence[IntervalRow]`): The rows.
        caption (`str`): What stands below.

    Returns:
        `bool`: Whether there is a picture: there are rows, and matplotlib is installed.
    """
    if not rows:
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    with matplotlib.rc_context(STYLE):
        figure = new_figure(8, 1.2 + 0.3 * len(rows))
        axes = figure.subplots()
        for row, (_, points, difference, ends) in enumerate(rows):
            axes.plot(points, [row] * len(points), "o", color=COLOURS[0], markersize=4, linestyle="")
            if difference is not None and ends:
                axes.plot(ends, [row, row], "-", color=COLOURS[1], marker="", linewidth=1.5)
                axes.plot(difference, row, "D", color=COLOURS[1], markersize=5)
        axes.axvline(0, color="black", linewidth=1, linestyle="--", zorder=1)
        axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top
        figure.supxlabel(caption)
        figure.savefig(target, dpi=120, format="png")
    return True


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches, apart from pyplot, which would keep it in memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def legend_below(figure: "Figure", axes: Any) -> None:
    """Put the legend of some axes below the figure, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels)) + 4  # with the line before it; 12 characters take an inch
    columns = max(1, int(figure.get_figwidth() * 12 / longest))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)
