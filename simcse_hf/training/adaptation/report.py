"""Write the one-page report of an adaptation: verdict, table, plot of the search and nearest neighbours."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...publishing.analysis.drawing import COLOURS, INK, MARKERS, inline_svg, new_figure, style, svg_text
from ...publishing.page import render_page
from .trial import TIE_MARGIN

REPORT = "report.html"
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
    path = output / REPORT
    values = {"result": result, "meanings": _MEANINGS, "plot": _plot(result), "tie_margin": TIE_MARGIN}
    path.write_text(render_page(Path(__file__).with_name(REPORT), **values), encoding="utf-8")
    return path


def _plot(result: dict[str, Any]) -> Markup | None:
    """Draw the dev figure of every trial as an `<svg>` element; return `None` without matplotlib."""
    try:
        with style():
            figure = _draw(result)
    except ImportError:
        return None
    return Markup(inline_svg(svg_text(figure), "Dev figures of all trials", "trials"))


def _draw(result: dict[str, Any]) -> Any:
    trials = [trial for trial in result["plan"] if trial["dev"]]
    values = [trial["dev"][result["task"]] for trial in trials]
    figure = new_figure(8, 1.2 + 0.26 * len(trials))
    axes = figure.subplots()
    for number, (name, meaning) in enumerate(_MEANINGS.items()):
        rows = [row for row, trial in enumerate(trials) if trial["round"] == name]
        if rows:
            found = [values[row] for row in rows]
            axes.scatter(found, rows, color=COLOURS[number], marker=MARKERS[number], label=meaning, zorder=3)
    axes.axvline(values[0], color=INK, linewidth=1, linestyle="--", zorder=1)
    steps = [f", {sum(trial['steps'])} steps" if trial["steps"] else "" for trial in trials]
    labels = [f"{trial['name']}{count} ({trial['variant']})" for trial, count in zip(trials, steps, strict=True)]
    axes.set_yticks(range(len(trials)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"dev {result['task']} ({result['metric']} × 100); dashed: the start model")
    figure.legend(loc="outside upper right", ncols=3, fontsize=8)
    return figure
