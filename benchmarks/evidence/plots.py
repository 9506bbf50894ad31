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
from matplotlib.figure import Figure

from simcse_hf.publishing.plots import COLOURS, MARKERS, STYLE, new_figure, series_style

from .domains import CONTROL, PRETRAINED

#: Steps that are named on the axis, which would be too narrow for all of them.
NAMED_STEPS = (0, 10, 25, 60, 200, 500)


def draw_starts(results: dict) -> Figure:
    """Draw dev score, alignment and uniformity by step: the mean of the seeds, and a band over all of them.

    The upper row compares ways to train from one start, and the lower row one way to train from several starts.
    """
    panels = {"dev": "STS-B dev, Spearman × 100", "alignment": "alignment", "uniformity": "uniformity"}
    trained = {}
    for name, run in results["runs"].items():
        curves = [{point["step"]: point for point in r["curve"]} for r in run["seeds"].values() if "curve" in r]
        if curves:
            trained[f"{name} ({len(curves)} seeds)"] = curves
    ways = [name for name in trained if "500 steps" in name or name.startswith("supervised")]
    starts = [name for name in trained if "SimCSE, 60 steps" in name and name not in ways]
    figure = new_figure(12, 7.4)
    for part, names in zip(figure.subfigures(2), (ways, starts), strict=True):
        axes = part.subplots(1, 3)
        for number, name in enumerate(names):
            look = series_style(number)
            for axis, (key, label) in zip(axes, panels.items(), strict=True):
                by_step = {step: [curve[step][key] for curve in trained[name]] for step in trained[name][0]}
                steps, values = list(by_step), list(by_step.values())
                axis.plot(steps, [*map(statistics.mean, values)], label=name.replace(": SimCSE, 60 steps", ""), **look)
                axis.fill_between(steps, [*map(min, values)], [*map(max, values)], color=look["color"], alpha=0.2)
                axis.set(xlabel="optimizer step", ylabel=label)
        for axis in axes:  # most happens in the first steps
            axis.set_xscale("symlog", linthresh=10)
            axis.set_xticks(NAMED_STEPS, [str(step) for step in NAMED_STEPS])
        part.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    return figure


def draw_domains(results: dict) -> Figure:
    """Draw what each arm changes against its start and against labels alone, with 95% intervals, for each domain."""
    bars: dict[str, list[tuple[str, list[float], int]]] = {}
    for name, run in results["runs"].items():
        panel, _, arm = name.partition(": ")
        for other, figures in run.get("differences", {}).items():
            is_control = other.endswith(CONTROL)
            if is_control or other.endswith(PRETRAINED):
                label = f"{arm} over {'labels alone' if is_control else other.partition(': ')[2]}"
                bars.setdefault(panel, []).append((label, figures, int(is_control)))
    figure = new_figure(10, 0.9 + 0.27 * sum(map(len, bars.values())))
    axes = figure.subplots(len(bars), 1, squeeze=False, gridspec_kw={"height_ratios": list(map(len, bars.values()))})
    for axis, (panel, rows) in zip(axes[:, 0], bars.items(), strict=True):
        for row, (_, (middle, low, high), kind) in enumerate(rows):
            reach = [[middle - low], [high - middle]]
            axis.errorbar([middle], [row], xerr=reach, fmt=MARKERS[kind], color=COLOURS[kind])
        axis.set_yticks(range(len(rows)), [label for label, *_ in rows])
        axis.invert_yaxis()
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(panel)
    figure.supxlabel("difference of the task's score, points (bars: 95% intervals over rows and seeds)")
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
