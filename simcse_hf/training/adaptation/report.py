"""Draw the dev scores of everything that an adaptation tried."""

from pathlib import Path
from typing import Any

from ...publishing.plots import COLOURS, MARKERS, new_figure

PICTURE = "trials.png"
_MEANINGS = {
    "start": "the start model",
    "untrained": "other pooler or whitening",
    "short": "short run",
    "long": "longer run",
    "seed": "further seed of the chosen run",
}


def draw_trials(result: dict[str, Any], output: Path) -> None:
    """Write `trials.png`, if matplotlib is installed.

    Args:
        result (`dict[str, Any]`): The content of `adaptation.json`.
        output (`Path`): The output directory.
    """
    trials = [trial for trial in result["plan"] if trial["dev"]]
    values = [trial["dev"][result["task"]] for trial in trials]
    try:
        figure = new_figure(8, 1.2 + 0.26 * len(trials))
    except ImportError:
        return
    axes = figure.subplots()
    for number, (name, meaning) in enumerate(_MEANINGS.items()):
        rows = [row for row, trial in enumerate(trials) if trial["round"] == name]
        if rows:
            found = [values[row] for row in rows]
            axes.scatter(found, rows, color=COLOURS[number], marker=MARKERS[number], label=meaning, zorder=3)
    axes.axvline(values[0], color="black", linewidth=1, linestyle="--", zorder=1)
    steps = [f", {sum(trial['steps'])} steps" if trial["steps"] else "" for trial in trials]
    labels = [f"{trial['name']}{count} ({trial['variant']})" for trial, count in zip(trials, steps, strict=True)]
    axes.set_yticks(range(len(trials)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"dev {result['task']} ({result['metric']} × 100); dashed: the start model")
    figure.legend(loc="outside upper right", ncols=3, fontsize=8)
    figure.savefig(output / PICTURE, dpi=120)
