"""Draw a picture of the results of a part of the evidence.

    python -m benchmarks.evidence.plots benchmarks/results/evidence_grid.json --output docs/evidence_grid.png
    python -m benchmarks.evidence.plots benchmarks/results/evidence_starts.json --output docs/evidence_starts.png
    python -m benchmarks.evidence.plots benchmarks/results/evidence_domains.json --output docs/evidence_domains.png

For `grid` it is a heat map of the dev scores of every run; for `starts`, the dev scores, alignment and uniformity by
step, each run with all its seeds; for `domains`, the gain of every method with its interval.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from simcse_hf.publishing.plots import STYLE, legend_below, new_figure, series_style

from .domains import DOMAINS, METRICS
from .grid import BATCHES, LEARNING_RATES, POOLERS, STEPS, TEMPERATURES

#: Steps that are named on the axis, which would be too narrow for all of them.
NAMED_STEPS = (0, 10, 25, 60, 200, 500)


def draw_grid(results: dict) -> Figure:
    """Draw the change of the dev score for every run of the grid, after 10 and 25 steps."""
    steps = (10, STEPS)
    columns = [(rate, step) for rate in LEARNING_RATES for step in steps]
    figure = new_figure(10, 6.2)
    axes = figure.subplots(len(POOLERS), 1)
    for axis, pooler in zip(axes, POOLERS, strict=True):
        rows = [(batch, temperature) for batch in BATCHES for temperature in TEMPERATURES]
        cells: list[list[float | None]] = [[None] * len(columns) for _ in rows]
        for run in results["runs"].values():
            settings = run["settings"]
            if settings["pooler"] != pooler or settings["stage"] != "grid" or not run["seeds"]:
                continue
            arguments = settings["arguments"]
            curve = next(iter(run["seeds"].values()))["curve"]
            row = rows.index((arguments["per_device_train_batch_size"], settings["settings"]["temperature"]))
            for point in curve:
                if point["step"] in steps:
                    column = columns.index((arguments["learning_rate"], point["step"]))
                    cells[row][column] = point["dev"] - curve[0]["dev"]
        labels = [f"batch {batch}, τ {temperature:g}" for batch, temperature in rows]
        heads = [f"{rate:g}\n{step} steps" for rate, step in columns]
        mesh = axis.imshow(np.array(cells, dtype=float), cmap="RdBu", vmin=-8, vmax=8, aspect="auto")
        axis.grid(visible=False)
        axis.set_xticks(range(len(heads)), heads)
        axis.set_yticks(range(len(labels)), labels)
        for row, column in np.ndindex(len(labels), len(heads)):
            value = cells[row][column]
            if value is not None:
                color = "white" if abs(value) > 5 else "black"
                axis.text(column, row, f"{value:+.1f}", ha="center", va="center", fontsize=8, color=color)
        axis.set_title(f"{pooler}: start {curve[0]['dev']:.1f}")
    figure.colorbar(mesh, ax=axes, label="change of STS-B dev, Spearman × 100")
    figure.supxlabel("learning rate and steps (one seed)")
    return figure


def draw_starts(results: dict) -> Figure:
    """Draw dev score, alignment and uniformity by step: the mean of the seeds, and a band over all of them."""
    panels = {"dev": "STS-B dev, Spearman × 100", "alignment": "alignment", "uniformity": "uniformity"}
    figure = new_figure(12, 4.6)
    axes = figure.subplots(1, 3)
    trained = [
        (name, run) for name, run in results["runs"].items() if any("curve" in r for r in run["seeds"].values())
    ]
    for number, (name, run) in enumerate(trained):
        curves = [{point["step"]: point for point in r["curve"]} for r in run["seeds"].values() if "curve" in r]
        look, label_of_run = series_style(number), f"{name} ({len(curves)})"
        for axis, (key, label) in zip(axes, panels.items(), strict=True):
            by_step = {step: [curve[step][key] for curve in curves] for step in curves[0]}
            steps, values = list(by_step), list(by_step.values())
            axis.plot(steps, list(map(statistics.mean, values)), label=label_of_run, **look)
            low, high = list(map(min, values)), list(map(max, values))
            axis.fill_between(steps, low, high, color=look["color"], alpha=0.2)
            axis.set_ylabel(label)
            axis.set_xlabel("optimizer step (in brackets: the number of seeds)")
    for axis in axes:  # most happens in the first steps
        axis.set_xscale("symlog", linthresh=10)
        axis.set_xticks(NAMED_STEPS, [str(step) for step in NAMED_STEPS])
    legend_below(figure, axes[0])
    return figure


def draw_domains(results: dict) -> Figure:
    """Draw the gain of every method over its start, with its 95% interval, for each task."""
    panels = [(domain, kind) for domain, kinds in DOMAINS.items() for kind in kinds]
    gains: dict[str, dict[tuple[str, str], dict[str, list[float]]]] = {}  # by start, panel and method
    for run_name, run in results["runs"].items():
        method = run_name.rpartition(": ")[2]
        for kind, gain in run.get("gain", {}).items():
            if method != "start":
                of_start = gains.setdefault(run["settings"]["start"], {})
                of_start.setdefault((run["settings"]["domain"], kind), {})[method] = gain
    methods = list(
        dict.fromkeys(method for of_start in gains.values() for each in of_start.values() for method in each)
    )
    figure = new_figure(12, 4.6)
    axes = figure.subplots(1, len(panels), sharey=True)
    for number, (start, of_start) in enumerate(gains.items()):
        color, shift = series_style(number)["color"], 0.16 * (2 * number - len(gains) + 1)
        for axis, panel in zip(axes, panels, strict=True):
            values = of_start.get(panel, {})
            rows = [methods.index(method) + shift for method in values]
            middle = [gain for gain, _, _ in values.values()]
            reach = [
                [gain - low for gain, low, _ in values.values()],
                [high - gain for gain, _, high in values.values()],
            ]
            axis.errorbar(middle, rows, xerr=reach, fmt="o", color=color, label=start)
    for axis, (domain, kind) in zip(axes, panels, strict=True):
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(f"{domain}: {kind}")
        axis.set_xlabel(f"gain in {METRICS[kind].replace('_', ' ')}, points")
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].invert_yaxis()
    legend_below(figure, axes[0])
    return figure


DRAWINGS: dict[str, Callable[[dict], Figure]] = {"grid": draw_grid, "starts": draw_starts, "domains": draw_domains}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the JSON file of a part")
    parser.add_argument("--output", type=Path, required=True, help="PNG file to write")
    options = parser.parse_args()
    results = json.loads(options.results.read_text(encoding="utf-8"))
    with matplotlib.rc_context(STYLE):
        DRAWINGS[results["part"]](results).savefig(options.output, dpi=110)


if __name__ == "__main__":
    main()
