"""Write the one-page report of an adaptation: verdict, table, plot of the search and nearest neighbours."""

import base64
import io
from pathlib import Path
from typing import Any

import jinja2

from .trial import TIE_MARGIN

REPORT = "report.html"
_COLOURS = {"start": "#555555", "untrained": "#8a8a8a", "short": "#4c8bb5", "long": "#d1672b", "seed": "#6a9e4a"}
_MEANINGS = {
    "start": "the start model",
    "untrained": "other pooler or whitening",
    "short": "short run",
    "long": "longer run",
    "seed": "further seed of the chosen run",
}


def write_report(result: dict[str, Any], output: Path) -> Path:
    """Write `report.html`, which needs no other file.

    Args:
        result (`dict[str, Any]`): The content of `adaptation.json`.
        output (`Path`): The output directory.

    Returns:
        `Path`: The report.
    """
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["signed"] = lambda value: f"{value:+.2f}"
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    path = output / REPORT
    page = template.render(result=result, meanings=_MEANINGS, plot=_plot(result), tie_margin=TIE_MARGIN)
    path.write_text(page, encoding="utf-8")
    return path


def _plot(result: dict[str, Any]) -> str | None:
    """Draw the dev figure of every trial; return a PNG in base64, or `None` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    trials = [trial for trial in result["plan"] if trial["dev"]]
    values = [trial["dev"][result["task"]] for trial in trials]
    figure = Figure(figsize=(8, 1.2 + 0.26 * len(trials)), layout="constrained")
    axes = figure.subplots()
    for name, colour in _COLOURS.items():
        rows = [row for row, trial in enumerate(trials) if trial["round"] == name]
        if rows:
            axes.scatter([values[row] for row in rows], rows, color=colour, label=_MEANINGS[name], zorder=3)
    axes.axvline(values[0], color=_COLOURS["start"], linewidth=1, linestyle="--", zorder=1)
    steps = [f", {sum(trial['steps'])} steps" if trial["steps"] else "" for trial in trials]
    labels = [f"{trial['name']}{count} ({trial['variant']})" for trial, count in zip(trials, steps, strict=True)]
    axes.set_yticks(range(len(trials)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.4)
    axes.set_xlabel(f"dev {result['task']} ({result['metric']} x 100); dashed: the start model")
    figure.legend(loc="outside upper right", ncols=3, fontsize=8, frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return base64.b64encode(stream.getvalue()).decode()
