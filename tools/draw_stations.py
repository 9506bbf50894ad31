"""Draw the ten stations of docs/architecture.md from its table: `python tools/draw_stations.py`."""

import re
import textwrap
from pathlib import Path

import matplotlib

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
ROW = re.compile(r"^\| (.*) \| `(\S+\.py)` \| `(\S+)` \|", re.MULTILINE)
COLUMNS = 5


def read_stations() -> list[tuple[str, list[str]]]:
    """Return the name of each station and the files that its calls are in, once each."""
    stations: list[tuple[str, list[str]]] = []
    for name, file, _ in ROW.findall(PAGE.read_text(encoding="utf-8")):
        if name:
            stations.append((name, []))
        files = stations[-1][1]
        if file not in files:
            files.append(file)
    return stations


def main() -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 3.6))
    axes.set_xlim(-0.5, COLUMNS - 0.5)
    axes.set_ylim(-1.55, 0.55)
    axes.axis("off")
    places = []
    for position, (name, files) in enumerate(read_stations()):
        row, column = divmod(position, COLUMNS)
        if row == 1:  # the second row goes back, below the first
            column = COLUMNS - 1 - column
        place = (column, -row * 1.05)
        places.append(place)
        lines = "\n".join(line for file in files for line in textwrap.wrap(file, 26))
        box = {"boxstyle": "round,pad=0.5", "facecolor": "#eef2fb", "edgecolor": "#4464ad"}
        axes.text(*place, f"{name}\n{lines}", ha="center", va="center", fontsize=8.5, bbox=box, zorder=2)
    for (x, y), (next_x, next_y) in zip(places, places[1:], strict=False):
        shrink = 58 if next_y == y else 34  # the arrow begins and ends beside the boxes
        arrow = {"arrowstyle": "->", "color": "#555555", "shrinkA": shrink, "shrinkB": shrink}
        axes.annotate("", (next_x, next_y), (x, y), arrowprops=arrow, zorder=1)
    figure.savefig(PAGE.with_suffix(".png"), dpi=110, facecolor="white", bbox_inches="tight")


if __name__ == "__main__":
    main()
