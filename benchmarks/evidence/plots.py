"""Draw a picture of the results of a part of the evidence.

    python -m benchmarks.evidence.plots benchmarks/results/evidence_starts.json --output docs/evidence_starts.png
    python -m benchmarks.evidence.plots benchmarks/results/evidence_domains.json --output docs/evidence_domains.png

For `starts` it is the dev scores, alignment and uniformity by step, each run with all its seeds; for `domains`, what
every arm changes with its interval.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from simcse_hf.apps.plots import COLOURS, MARKERS, STYLE, new_figure, series_style

from .domains import CONTROL, FEWER, FEWER_STEPS, PRETRAINED

#: Steps that are named on the axis, which would be too narrow for all of them.
NAMED_STEPS = (0, 10, 25, 60, 200, 500)
PANELS = {"dev": "STS-B dev, Spearman × 100", "alignment": "alignment", "uniformity": "uniformity"}
FROM_STARTS = "SimCSE, 60 steps"
DOMAINS = {"banking77": "Banking77", "twitter_url": "Twitter URL"}
ARMS = {
    CONTROL: "labels alone",
    "mlm-labels": "masked-LM, then labels",
    "tsdae-labels": "TSDAE, then labels",
    "simcse-labels": "SimCSE, then labels",
    FEWER: f"labels alone, {FEWER_STEPS} steps",
}


def draw_starts(results: dict) -> Figure:
    """Draw dev score, alignment and uniformity by step: the mean of the seeds, and a band over all of them.

    The upper row compares ways to train from one start, and the lower row one way to train from several starts.
    """
    ways, starts = {}, {}
    for name, run in results["runs"].items():
        curves = [{point["step"]: point for point in r["curve"]} for r in run["seeds"].values() if "curve" in r]
        seeds = f"({len(curves)} seeds)"
        if curves and name.endswith(FROM_STARTS) and not name.startswith("supervised"):
            starts[f"{name.removesuffix(FROM_STARTS).rstrip(': ') or PRETRAINED} {seeds}"] = curves
        elif curves and ("500 steps" in name or name.startswith("supervised")):
            ways[f"{name} {seeds}"] = curves
    figure = new_figure(12, 7)
    rows = figure.subplots(2, 3, sharex="row")
    rows[0, 0].set_title(f"Ways to train from {PRETRAINED}", loc="left")
    rows[1, 0].set_title(f"{FROM_STARTS}, from several starts", loc="left")
    for axes, runs in zip(rows, (ways, starts), strict=True):
        _draw_curves(axes, runs)
    return figure


def _draw_curves(axes: np.ndarray, runs: dict[str, list[dict]]) -> None:
    for number, (name, curves) in enumerate(runs.items()):
        look = series_style(number)
        for axis, key in zip(axes, PANELS, strict=True):
            by_step = {step: [curve[step][key] for curve in curves] for step in curves[0]}
            steps, values = list(by_step), list(by_step.values())
            axis.plot(steps, [*map(statistics.mean, values)], label=name, **look)
            axis.fill_between(steps, [*map(min, values)], [*map(max, values)], color=look["color"], alpha=0.2)
    last = max(step for curves in runs.values() for step in curves[0])
    named = [step for step in NAMED_STEPS if step <= last]
    for axis, label in zip(axes, PANELS.values(), strict=True):
        axis.set(xlabel="optimizer step", ylabel=label)
        axis.set_xscale("symlog", linthresh=10)  # most happens in the first steps
        axis.set_xticks(named, [str(step) for step in named])
    axes[1].legend(loc="lower right", handlelength=2.6, fontsize=8)


def draw_domains(results: dict) -> Figure:
    """Draw what each arm changes against its start and against labels alone, with 95% intervals, for each domain."""
    panels: dict[str, dict[str, dict]] = {}
    for name, run in results["runs"].items():
        panel, _, arm = name.partition(": ")
        if "differences" in run:
            domain, _, labels = panel.partition(", ")
            title = f"{DOMAINS[domain]}, labels: {labels}"
            panels.setdefault(title, {})[ARMS[arm]] = run["differences"]
    figure = new_figure(9, 0.9 + 0.36 * sum(map(len, panels.values())))
    heights = list(map(len, panels.values()))
    axes = figure.subplots(len(panels), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    others = {f": {PRETRAINED}": f"over the start, {PRETRAINED}", f": {CONTROL}": "over labels alone, 400 steps"}
    for axis, (title, arms) in zip(axes, panels.items(), strict=True):
        for kind, (ending, label) in enumerate(others.items()):
            for row, differences in enumerate(arms.values()):
                for other, (middle, low, high) in differences.items():
                    if other.endswith(ending):
                        look = {"fmt": MARKERS[kind], "color": COLOURS[kind], "label": label, "markersize": 5}
                        axis.errorbar(
                            [middle], [row + 0.3 * kind - 0.15], xerr=[[middle - low], [high - middle]], **look
                        )
        axis.set_yticks(range(len(arms)), list(arms))
        axis.set_ylim(len(arms) - 0.5, -0.5)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(title, loc="left")
    axes[-1].set_xlabel("difference of the task's score, points (bars: 95% intervals over rows and seeds)")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=2)
    return figure


DRAWINGS: dict[str, Callable[[dict], Figure]] = {"starts": draw_starts, "domains": draw_domains}


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
