"""Draw runs and evaluated models: alignment and uniformity, cosines by gold score, singular values, and curves."""

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "#3b7dd8 #d55e00 #2a9461 #b0569f #1a8f9c #a5742a #d43d51 #808080".split()
MARKERS = "o s ^ D v P X *".split()
LINES = "- -- -. :".split()
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.labelsize": 9,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "text.parse_math": False,
}
_LABELS = {"loss": "training loss", "eval_loss": "held-out loss"}


def draw_alignment_uniformity(paths: dict) -> "Figure":
    """Draw each run's way through alignment and uniformity (SimCSE, Fig. 2), and each model as a point."""
    figure = new_figure(7, 5)
    axes = figure.subplots()
    for number, (name, path) in enumerate(paths.items()):
        style = series_style(number)
        steps, alignment, uniformity = zip(*path, strict=True)
        if len(path) == 1:
            style["linestyle"] = "none"
        else:
            name = f"{name} ({steps[-1]} steps)"
            start = style | {"markersize": 11, "fillstyle": "none"}
            axes.plot(uniformity[0], alignment[0], **start)
        axes.plot(uniformity, alignment, label=name, **style)
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
    for number, (name, values) in enumerate(spectra.items()):
        ranks = range(1, len(values) + 1)
        axes.plot(ranks, values, label=name, markevery=0.12, **series_style(number))
    axes.set(xlabel="rank of the singular value", ylabel="singular value / largest", xlim=(0, None), ylim=(0, 1.04))
    legend_below(figure, axes)
    return figure


def draw_training_curves(curves: dict) -> "Figure":
    """Draw each logged metric by step in a panel of its own, one below the other, with one line for each run."""
    figure = new_figure(7, 0.9 + 2.2 * len(curves))
    panels = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    names = dict.fromkeys(chain(*curves.values()))
    for axes, (key, runs) in zip(panels, curves.items(), strict=True):
        for number, name in enumerate(names):
            values = runs.get(name, {})
            every = max(1, len(values) // 12)
            axes.plot(values.keys(), values.values(), label=name, markevery=every, **series_style(number))
        axes.set_ylabel(_LABELS.get(key) or key.removeprefix("eval_").replace("_", " "))
    panels[-1].set_xlabel("optimizer step")
    figure.align_ylabels(panels)
    legend_below(figure, panels[0])
    return figure


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
    """Put the legend of some axes below the figure, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels)) + 4  # with the line before it; 12 characters take an inch
    columns = max(1, int(figure.get_figwidth() * 12 / longest))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)
