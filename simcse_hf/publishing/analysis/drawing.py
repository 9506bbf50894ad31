"""One style for all pictures, and the files of a picture: PNG, SVG, and its numbers as CSV."""

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Text, axes and grid lines. In a page, `Picture.inline` replaces it by the colour of the page's own text.
INK = "#20242a"
#: Colours with a contrast of at least 3 to 1 with a white page and with a dark one (`DARK_PAGE` in the test).
COLOURS = ("#3b7dd8", "#d55e00", "#2a9461", "#b0569f", "#1a8f9c", "#a5742a", "#d43d51", "#808080")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", (0, (1, 1.5)))
#: Longer names are shortened in the middle in pictures; tables show them whole.
MAX_NAME = 34
_DPI = 120
#: Points that are closer than so many pixels share a label.
_SAME_PLACE = 6
_MARKER = 7  # half the width of a marker, in pixels
_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text, which can be searched and is small
    "svg.hashsalt": "simcse_hf",  # equal pictures give equal files
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in the name of a model is a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
}


class CannotDraw(Exception):
    """There is nothing to draw. The message says why, for the reader of the report."""


@dataclass(frozen=True)
class Picture:
    """A picture with the numbers it shows.

    Args:
        name (`str`): Name of its files, without the ending.
        title (`str`): What it shows, in a few words.
        reading (`str`): How to read it, in two sentences.
        columns (`tuple[str, ...]`): Names of the columns of its numbers.
        rows (`list[tuple]`): The numbers.
        figure (`matplotlib.figure.Figure`): The picture.
    """

    name: str
    title: str
    reading: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    figure: "Figure"

    @cached_property
    def _svg(self) -> str:
        return svg_text(self.figure)

    def save(self, folder: Path) -> None:
        """Write `{name}.png`, `{name}.svg` and `{name}.csv` into an existing folder."""
        svg = self._svg.replace("<defs>", '<rect width="100%" height="100%" fill="white"/>\n <defs>', 1)
        (folder / f"{self.name}.svg").write_text(svg, encoding="utf-8")
        with style():
            self.figure.savefig(folder / f"{self.name}.png", dpi=_DPI, facecolor="white")
        with open(folder / f"{self.name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self.columns, *([_cell(value) for value in row] for row in self.rows)])

    def inline(self) -> str:
        """Return the picture as an `<svg>` element for a page, in the colour of the page's text."""
        return inline_svg(self._svg, self.title, self.name)


def svg_text(figure: "Figure") -> str:
    """Return a figure as an SVG document with a transparent background."""
    stream = io.StringIO()
    with style():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()


def inline_svg(svg: str, title: str, name: str) -> str:
    """Turn an SVG document into an element that can stand in a page beside others.

    Args:
        svg (`str`): What [`svg_text`] returned.
        title (`str`): A description for screen readers.
        name (`str`): A word that no other picture of the page has, for the ids inside the element.

    Returns:
        `str`: The `<svg>` element, whose text has the colour of the page's text.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


@contextmanager
def style() -> Iterator[None]:
    """Draw and save figures of this package's style inside the block; other figures of the process keep theirs.

    Yields:
        Nothing.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    check_installed()
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def check_installed() -> None:
    """Check that pictures can be drawn, before the work whose result they show.

    Raises:
        ImportError: If matplotlib or adjustText is not installed.
    """
    try:
        import adjustText  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"pictures need {error.name}: run pip install 'simcse-hf[plot]'") from error


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches, apart from pyplot, which would keep it in memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def settle(figure: "Figure") -> None:
    """Lay out a figure once and for all, when all that needs room is drawn; saving would do it twice for each file."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def series_name(number: int, name: str) -> str:
    """Return the entry of a series in a legend: its number, from 1, and its name."""
    return f"{number + 1} {shorten(name)}"  # matplotlib leaves out names that begin with an underscore


def series_style(number: int) -> dict[str, Any]:
    """Return colour, marker and line style of a series, so that it can be told apart without its colour.

    Args:
        number (`int`): Position of the series, from 0. The first 8 have different markers and colours.

    Returns:
        `dict[str, Any]`: Arguments of `Axes.plot`. From the ninth series on, markers are hollow.
    """
    colour = COLOURS[number % len(COLOURS)]
    return {
        "color": colour,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
        "markerfacecolor": colour if number < len(MARKERS) else "none",
    }


def shorten(name: str, length: int = MAX_NAME) -> str:
    """Replace the middle of a long name by an ellipsis."""
    name = " ".join(name.split())
    if len(name) <= length:
        return name
    return f"{name[: (length - 1) // 2]}…{name[-(length - 1 - (length - 1) // 2) :]}"


def legend_below(figure: "Figure", axes: "Axes") -> None:
    """Put the legend of some axes below the figure, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        longest = max(map(len, labels))
        columns = max(1, min(len(labels), int(figure.get_figwidth() * 12 / (longest + 6))))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.2)


def label_points(axes: "Axes", points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write a label beside each point, where it covers neither a point nor another label.

    Points at the same place share a label of several lines.

    Args:
        axes (`matplotlib.axes.Axes`): The axes, whose limits and layout ([`settle`]) are final.
        points (`Sequence[tuple[float, float]]`): Positions.
        labels (`Sequence[str]`): The labels.
    """
    from adjustText import adjust_text

    places: dict[tuple[int, ...], list[int]] = {}
    for number, pixel in enumerate(axes.transData.transform(points)):
        places.setdefault(tuple(round(x / _SAME_PLACE) for x in pixel), []).append(number)
    firsts = [points[numbers[0]] for numbers in places.values()]
    joined = ["\n".join(labels[number] for number in numbers) for numbers in places.values()]
    texts = [axes.text(x, y, label, fontsize=8) for (x, y), label in zip(firsts, joined, strict=True)]
    # A label avoids the centre and the corners of every marker. A number of iterations, and not a time, ends the
    # search, so that the picture does not depend on the machine.
    corners = _MARKER * np.array([(0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)])
    pixels = axes.transData.transform(points)[:, None] + corners
    x, y = axes.transData.inverted().transform(pixels.reshape(-1, 2)).T
    arrow = {"arrowstyle": "-", "color": INK}
    adjust_text(texts, x=x, y=y, ax=axes, iter_lim=500, min_arrow_len=8, arrowprops=arrow)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def figure_text(value: Any, digits: int = 2, *, signed: bool = False) -> str:
    """Format a figure, or `n/a` if it is missing or not finite."""
    return f"{value:{'+' if signed else ''}.{digits}f}" if is_number(value) else "n/a"


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
