"""Heat maps of searches: the figure of every combination of settings that was run."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ops.files import read_json_object
from .drawing import CannotDraw, Picture, figure_text, is_number, new_figure, settle, shorten, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

#: Cells of a heat map are labelled in black on light cells and in white on dark ones.
_DARK = 0.5
_MAX_ROWS = 60
_MAX_LABEL = 80
_NAMES = {"per_device_train_batch_size": "batch", "max_steps": "steps"}


@dataclass
class Grid:
    """The runs of a search.

    Args:
        name (`str`): Name of the search.
        figure (`str`): What was measured.
        runs (`list[tuple[dict, list[float]]]`): The settings of each run, and its figure for each seed.
    """

    name: str
    figure: str
    runs: list[tuple[dict[str, Any], list[float]]]


def read_grid(path: str | Path) -> Grid:
    """Read the results of a search.

    Args:
        path (`str` or `Path`): The output folder of `simcse-hf reproduce`, whose folder `runs` has a JSON file for
            each run with its `settings`; or a JSON file with `runs`: by name, the `settings` of a run, and its results
            by seed in `seeds`, as `python -m benchmarks evidence` writes it. A result has a figure `dev`, or a
            `curve` of evaluations with `dev`. Of a curve, the evaluation at `best_step` counts, or else the last one.

    Returns:
        `Grid`: The runs that have a figure.

    Raises:
        FileNotFoundError: If there is no such file or folder, or the folder holds no run.
        ValueError: If a file is not of this form. The message says what is missing.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: name the result file of a search")
    runs = read_json_object(path).get("runs")
    if not isinstance(runs, dict) or not all(isinstance(run, dict) and "settings" in run for run in runs.values()):
        raise ValueError(f'{path}: not the result file of a search: "runs" with "settings" is missing')
    found = []
    for run in runs.values():
        figures = [figure for result in run.get("seeds", {}).values() if is_number(figure := _dev(result))]
        if figures:
            found.append((flatten(run["settings"]), figures))
    return Grid(path.stem, "dev figure", found)


def _read_folder(path: Path) -> Grid:
    """Read the runs of `simcse-hf reproduce`; those that differ in their seed only are one run."""
    files = sorted((path / "runs").glob("*.json"))
    if not files:
        raise FileNotFoundError(f"{path} holds no runs (runs/*.json): name the output folder of simcse-hf reproduce")
    found: dict[str, tuple[dict[str, Any], list[float]]] = {}
    for file in files:
        run = read_json_object(file)
        if not isinstance(run.get("settings"), dict):
            raise ValueError(f'{file}: not a run of simcse-hf reproduce: "settings" is missing')
        settings = flatten({"recipe": run.get("recipe")} | run["settings"])
        settings.pop("seed", None)
        if is_number(figure := _dev(run)):
            found.setdefault(json.dumps(settings, sort_keys=True), (settings, []))[1].append(figure)
    return Grid(path.resolve().name, "dev figure", list(found.values()))


def draw_grid(grid: Grid) -> Picture:
    """Draw the mean figure of each combination of settings.

    The numeric setting with the most values makes the columns; all other settings that vary make the rows.

    Args:
        grid (`Grid`): The search.

    Returns:
        `Picture`: The picture. A row is a run, with its settings, the mean figure and the number of seeds.

    Raises:
        CannotDraw: If fewer than two settings vary, because a heat map has two sides, or there are too many rows.
    """
    varied = varied_settings([settings for settings, _ in grid.runs])
    if len(varied) < 2:
        raise CannotDraw(f"{grid.name} varies {' and '.join(varied) or 'nothing'}, and a heat map needs two settings")
    across = max(varied, key=lambda name: (all(map(is_number, varied[name])), len(varied[name])))
    down = [name for name in varied if name != across]
    means: dict[tuple[Any, ...], dict[Any, float]] = {}
    rows = []
    for settings, figures in sorted(grid.runs, key=lambda run: [_order(run[0].get(name)) for name in down]):
        means.setdefault(tuple(settings.get(name) for name in down), {})[settings.get(across)] = statistics.mean(
            figures
        )
        rows.append((*(settings.get(name) for name in varied), statistics.fmean(figures), len(figures)))
    if len(means) > _MAX_ROWS:
        raise CannotDraw(f"{grid.name} has {len(means)} rows of settings, more than the {_MAX_ROWS} that can be read")
    cells = [[line.get(value) for value in varied[across]] for line in means.values()]
    seeds = sorted({len(figures) for _, figures in grid.runs})
    with style():
        labels = [" · ".join(map(_setting, down, key)) for key in means]
        width = min(_MAX_LABEL, max(map(len, labels)))
        figure = new_figure(1.8 + 0.065 * width + 0.8 * len(varied[across]), 1.4 + 0.27 * len(cells))
        axes = figure.subplots()
        mesh = heat_map(axes, cells, labels, [_text(value) for value in varied[across]])
        axes.set_xlabel(_NAMES.get(across, across.replace("_", " ")))
        count = " to ".join(map(str, {seeds[0], seeds[-1]})) if seeds else "0"
        figure.colorbar(mesh, ax=axes, label=f"{grid.figure}, mean of {count} seed{'s' if seeds != [1] else ''}")
        settle(figure)
    return Picture(
        f"grid_{grid.name}",
        f"Search: {grid.name}",
        f"Each cell is the {grid.figure} of the runs with these settings, and the framed cell is the best one. Look "
        "for a region of good cells and not for one good cell: a single run that stands out is often luck.",
        (*varied, "mean", "seeds"),
        rows,
        figure,
    )


def heat_map(
    axes: "Axes",
    cells: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    signed: bool = False,
    **colours: Any,
) -> "QuadMesh":
    """Draw a table of figures with colours, the figures written in the cells, and a frame around the highest.

    Args:
        axes (`matplotlib.axes.Axes`): Where to draw.
        cells (`Sequence[Sequence[float]]`): Figures by row and column; `None` or NaN leaves a cell empty.
        rows (`Sequence[str]`): Labels of the rows.
        columns (`Sequence[str]`): Labels of the columns.
        signed (`bool`, *optional*, defaults to `False`): Whether the figures are changes, written with their sign.
        **colours (`Any`): `cmap`, `vmin` and `vmax` of `Axes.pcolormesh`.

    Returns:
        `matplotlib.collections.QuadMesh`: The cells, for a colour bar.
    """
    values: Any = [[value if is_number(value) else float("nan") for value in line] for line in cells]
    mesh = axes.pcolormesh(values, edgecolors="none", **({"cmap": "cividis"} | colours))
    found: list[Any] = [(v, i, j) for i, line in enumerate(values) for j, v in enumerate(line) if is_number(v)]
    for value, i, j in found:
        red, green, blue, _ = mesh.to_rgba(value)
        light = 0.299 * red + 0.587 * green + 0.114 * blue
        axes.text(
            j + 0.5,
            i + 0.5,
            figure_text(value, 1, signed=signed),
            ha="center",
            va="center",
            fontsize=8,
            color="white" if light < _DARK else "black",
        )
    if found:
        _, i, j = max(found)
        axes.add_patch(_frame(j, i))
    axes.set_xticks([j + 0.5 for j in range(len(columns))], columns, fontsize=8)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [shorten(row, _MAX_LABEL) for row in rows], fontsize=8)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.invert_yaxis()
    return mesh


def flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """Name the settings of nested groups by their last word, such as `learning_rate` of `arguments`.

    Args:
        settings (`dict`): Settings, some of which are dictionaries. Two groups must not name the same setting.

    Returns:
        `dict[str, Any]`: All settings that are numbers, words or switches.
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value) if isinstance(value, dict) else {name: value}
    return {name: value for name, value in flat.items() if isinstance(value, (str, int, float, bool))}


def varied_settings(runs: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each setting that differs between runs, without those that another one determines.

    Args:
        runs (`Iterable[dict]`): The settings of each run.

    Returns:
        `dict[str, list]`: The values of each setting in order. Of two settings that always change together, such as
        `pooler` and `pooler_type`, only the first is listed.
    """
    runs = list(runs)
    names = list(dict.fromkeys(name for run in runs for name in run))
    columns = {name: [run.get(name) for run in runs] for name in names}
    varied: dict[str, list[Any]] = {}
    for name, values in columns.items():
        distinct = set(values)
        together = any(len(set(zip(columns[other], values, strict=True))) == len(varied[other]) for other in varied)
        if len(distinct) > 1 and not together:
            varied[name] = sorted(distinct, key=_order)
    return varied


def _dev(result: dict[str, Any]) -> Any:
    curve = result.get("curve") or [{}]
    best = [point for point in curve if "best_step" in result and point.get("step") == result["best_step"]]
    return result.get("dev", (best or curve)[-1].get("dev"))


def _order(value: Any) -> tuple[bool, Any]:
    return (False, float(value)) if is_number(value) else (True, str(value))


def _text(value: Any) -> str:
    return f"{value:g}" if is_number(value) else "–" if value is None else str(value)


def _setting(name: str, value: Any) -> str:
    """Write a setting in a label; a word such as `[CLS]` speaks for itself."""
    return value if isinstance(value, str) else f"{_NAMES.get(name, name.replace('_', ' '))} {_text(value)}"


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.03, row + 0.05), 0.94, 0.9, fill=False, edgecolor="black", linewidth=2)
