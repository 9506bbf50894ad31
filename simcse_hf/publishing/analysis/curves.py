"""Pictures of training runs: curves of the loss and the dev figures, and the path of Fig. 2 of SimCSE."""

from collections.abc import Sequence
from typing import Any

from .drawing import (
    CannotDraw,
    Picture,
    is_number,
    label_points,
    legend_below,
    new_figure,
    series_name,
    series_style,
    settle,
    style,
)
from .runs import Run

_WORDS = {"alignment": "alignment (lower is better)", "uniformity": "uniformity (lower is better)"}


def draw_training_curves(runs: Sequence[Run]) -> Picture:
    """Draw the training loss, the dev figure, alignment and uniformity of runs by step, as far as they were logged.

    Args:
        runs (`Sequence[Run]`): The runs. Dev sets with different metrics get a panel each.

    Returns:
        `Picture`: The picture. A row is a logged figure.

    Raises:
        CannotDraw: If no run logged any of these figures.
    """
    keys = ["loss", "eval_loss", *(run.dev_metric for run in runs if run.dev_metric)]
    for name in _WORDS:
        keys += [f"eval_{run.geometry_set}_{name}" for run in runs if run.geometry_set]
    keys = [key for key in dict.fromkeys(keys) if any(_points(run, key) for run in runs)]
    if not keys:
        raise CannotDraw(f"{_names(runs)} logged neither a loss nor dev figures: the run ended before logging_steps")
    rows = [(run.name, key, *point) for run in runs for key in keys for point in run.series(key)]
    with style():
        columns = min(2, len(keys))
        lines = -(-len(keys) // columns)
        figure = new_figure(4.8 * columns if columns > 1 else 6.5, 0.6 + 2.7 * lines)
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, key in zip(panels, keys, strict=False):
            for number, run in enumerate(runs):
                points = _points(run, key)
                if points:
                    every = max(1, len(points) // 12)
                    axes.plot(*zip(*points, strict=True), markevery=every, linewidth=1.2, **series_style(number))
            axes.set_ylabel(axis_label(key))
            axes.set_xlabel("optimizer step")
            axes.set_xlim(left=0 if any(run.steps for run in runs) else None)
        for axes in panels[len(keys) :]:
            axes.set_visible(False)
        for number, run in enumerate(runs):
            panels[0].plot([], [], label=series_name(number, run.name), **series_style(number))
        legend_below(figure, panels[0])
        settle(figure)
    return Picture(
        "training_curves",
        "Training curves",
        "The loss and the figures on the dev set by optimizer step. A dev figure that falls while the loss still "
        "falls says that training should have ended earlier or with a lower learning rate.",
        ("run", "figure", "step", "value"),
        rows,
        figure,
    )


def draw_trajectory(runs: Sequence[Run]) -> Picture:
    """Draw the way of each run through alignment and uniformity of the dev set (SimCSE, Fig. 2).

    Args:
        runs (`Sequence[Run]`): The runs.

    Returns:
        `Picture`: The picture. A row is an evaluation.

    Raises:
        CannotDraw: If no run logged alignment and uniformity at two or more evaluations.
    """
    paths = [(number, run, path) for number, run in enumerate(runs) if len(path := _path(run)) > 1]
    if not paths:
        raise CannotDraw(
            f"{_names(runs)} logged alignment and uniformity at fewer than two evaluations: train with --dev_file, "
            "and with --eval_steps below the number of steps"
        )
    with style():
        figure = new_figure(7, 5)
        axes = figure.subplots()
        for number, run, path in paths:
            x, y = [point[2] for point in path], [point[1] for point in path]
            look = series_style(number)
            axes.plot(x, y, linewidth=1.2, label=f"{series_name(number, run.name)} ({path[-1][0]} steps)", **look)
            axes.plot(x[0], y[0], marker=look["marker"], markersize=11, markerfacecolor="none", color=look["color"])
            for start in range(len(path) - 1):
                middle = ((x[start] + x[start + 1]) / 2, (y[start] + y[start + 1]) / 2)
                if (x[start], y[start]) != (x[start + 1], y[start + 1]):
                    arrow = {"arrowstyle": "-|>", "color": look["color"], "linewidth": 0.8}
                    axes.annotate("", middle, (x[start], y[start]), arrowprops=arrow)
        axes.margins(0.12)
        axes.set_xlabel("uniformity of the dev set (lower is better)")
        axes.set_ylabel("alignment of the dev set (lower is better)")
        legend_below(figure, axes)
        settle(figure)
        ends = [(path[-1][2], path[-1][1]) for *_, path in paths]
        label_points(axes, ends, [str(number + 1) for number, *_ in paths])
    return Picture(
        "trajectory",
        "Alignment and uniformity during training",
        "Each point is an evaluation during training; the large hollow mark is the first one, the arrows show the "
        "direction and the number is that of the run (SimCSE, Fig. 2). Good training goes to the left, to better "
        "uniformity, without rising much, which would be worse alignment.",
        ("run", "step", "alignment", "uniformity"),
        [(run.name, *point) for _, run, path in paths for point in path],
        figure,
    )


def axis_label(key: str) -> str:
    """Say what a logged figure is, with its unit.

    Args:
        key (`str`): Its name in the log, such as `"eval_stsb_spearman"`.

    Returns:
        `str`: The label of an axis, such as `"dev stsb: Spearman × 100"`.
    """
    if key in ("loss", "eval_loss"):
        return "training loss" if key == "loss" else "held-out loss"
    name, _, metric = key.removeprefix("eval_").rpartition("_")
    if metric in _WORDS:
        return f"dev {name}: {_WORDS[metric]}"
    words = {"spearman": "Spearman", "pearson": "Pearson"}.get(metric, metric.replace("_", " "))
    return f"dev {name}: {words} × 100"


def _points(run: Run, key: str) -> list[tuple[int, float]]:
    return [point for point in run.series(key) if is_number(point[1])]


def _path(run: Run) -> list[tuple[int, float, float]]:
    """Return (step, alignment, uniformity) of each evaluation that has both."""
    name = run.geometry_set
    alignment = dict(_points(run, f"eval_{name}_alignment"))
    uniformity: dict[int, Any] = dict(_points(run, f"eval_{name}_uniformity"))
    return [(step, alignment[step], uniformity[step]) for step in alignment if step in uniformity]


def _names(runs: Sequence[Run]) -> str:
    return " and ".join(run.name for run in runs)
