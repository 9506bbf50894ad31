"""Pictures of the geometry of models: alignment and uniformity (SimCSE, Fig. 3), singular values (Fig. F.1)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .drawing import (
    INK,
    CannotDraw,
    Picture,
    figure_text,
    is_number,
    label_points,
    legend_below,
    new_figure,
    series_name,
    series_style,
    settle,
    shorten,
    style,
)


def draw_alignment_uniformity(models: Mapping[str, Mapping[str, Any]], averages: Mapping[str, Any]) -> Picture:
    """Draw models by alignment and uniformity, each with its average STS figure.

    Args:
        models (`Mapping[str, Mapping]`): `geometry` of the results of each model: `alignment` and `uniformity`.
        averages (`Mapping[str, float]`): Average STS figure x 100 of a model, if it has one.

    Returns:
        `Picture`: The picture, with one row for each model.

    Raises:
        CannotDraw: If no model has both figures.
    """
    points = [
        (name, geometry["alignment"], geometry["uniformity"], averages.get(name))
        for name, geometry in models.items()
        if is_number(geometry.get("alignment")) and is_number(geometry.get("uniformity"))
    ]
    if not points:
        raise CannotDraw("no model has alignment and uniformity, which are measured on STS-B")
    shown = [value for *_, value in points if is_number(value)]
    with style():
        figure = new_figure(7, 4.8)
        axes = figure.subplots()
        scale: dict[str, Any] = {"vmin": min(shown), "vmax": max(max(shown), min(shown) + 1)} if shown else {}
        marks = None
        for number, (_, alignment, uniformity, average) in enumerate(points):
            look: dict[str, Any] = {"marker": series_style(number)["marker"], "s": 80, "edgecolors": INK, "zorder": 3}
            if is_number(average):
                marks = axes.scatter([uniformity], [alignment], c=[average], cmap="viridis", **scale, **look)
            else:
                axes.scatter([uniformity], [alignment], facecolors="none", **look)
        axes.margins(0.22)
        axes.set_xlabel("uniformity (lower is better)")
        axes.set_ylabel("alignment (lower is better)")
        if marks is not None and len(shown) > 1:
            figure.colorbar(marks, ax=axes, label="average STS figure × 100")
        settle(figure)
        labels = [
            shorten(name) + (f" ({figure_text(value, 1)})" if is_number(value) else "") for name, *_, value in points
        ]
        label_points(axes, [(uniformity, alignment) for _, alignment, uniformity, _ in points], labels)
    return Picture(
        "alignment_uniformity",
        "Alignment and uniformity of the models",
        "Alignment is the mean squared distance between the two sentences of a similar pair, and uniformity says how "
        "evenly all sentences spread over the unit sphere; lower is better for both, so the best corner is at the "
        "bottom left. The number in brackets is the average STS figure (SimCSE, Fig. 3).",
        ("model", "alignment", "uniformity", "average_sts"),
        points,
        figure,
    )


def draw_singular_values(models: Mapping[str, Mapping[str, Any]]) -> Picture:
    """Draw the singular values of each model's embedding matrix, divided by the largest.

    Args:
        models (`Mapping[str, Mapping]`): `geometry` of the results of each model, with `singular_spectrum`.

    Returns:
        `Picture`: The picture, with one row for each singular value.

    Raises:
        CannotDraw: If no model has a spectrum.
    """
    spectra = {name: each["singular_spectrum"] for name, each in models.items() if each.get("singular_spectrum")}
    if not spectra:
        raise CannotDraw("no model has singular values, which are measured on STS-B")
    with style():
        figure = new_figure(7, 4.6)
        axes = figure.subplots()
        for number, (name, values) in enumerate(spectra.items()):
            rank = figure_text(effective_rank(values), 0)
            axes.plot(
                range(1, len(values) + 1),
                values,
                label=f"{series_name(number, name)} (effective rank {rank} of {len(values)})",
                # Markers stand at different places, so that lines on top of one another can be told apart.
                markevery=(number * len(values) // (8 * len(spectra)), max(1, len(values) // 8)),
                linewidth=1.3,
                **series_style(number),
            )
        axes.set_ylim(0, 1.04)
        axes.set_xlim(left=0)
        axes.set_xlabel("rank of the singular value")
        axes.set_ylabel("singular value / largest")
        legend_below(figure, axes)
        settle(figure)
    return Picture(
        "singular_values",
        "Normalised singular values",
        "The singular values of the matrix of all STS-B sentences, whose rows are scaled to unit length, divided by "
        "the largest one (SimCSE, Fig. F.1). A curve that falls late and slowly uses many directions of the space; "
        "one that drops at once is anisotropic.",
        ("model", "rank", "singular_value"),
        [(name, rank, value) for name, values in spectra.items() for rank, value in enumerate(values, start=1)],
        figure,
    )


def effective_rank(spectrum: list[float]) -> float:
    """Compute the effective rank from singular values of any scale, as [`simcse_hf.evaluation.geometry`] does."""
    shares = np.asarray(spectrum, dtype=np.float64)
    shares = shares[shares > 0] / shares.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
