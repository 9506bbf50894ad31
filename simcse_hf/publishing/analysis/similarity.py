"""Densities of cosine similarities by gold score: SimCSE, Fig. G.1, and the non-contrastive paper, Fig. 4."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .drawing import COLOURS, INK, CannotDraw, Picture, new_figure, settle, shorten, style

BANDS = 5
#: Points at which a density is computed.
POINTS = 201
_MOST_COLUMNS = 3
#: A band with fewer distinct cosines than this has no density estimate; only its mean is drawn.
_FEWEST = 3


def draw_cosine_densities(models: Mapping[str, Mapping[str, np.ndarray]], name: str) -> Picture:
    """Draw the distribution of cosine similarities in five bands of the gold score, one panel for each model.

    Densities are kernel estimates with Scott's bandwidth (`scipy.stats.gaussian_kde`). All hills are drawn with the
    same height, and all panels share the horizontal axis, so spreads can be compared.

    Args:
        models (`Mapping[str, Mapping]`): For each model, the arrays `predicted` (cosines) and `gold` of one set of
            scored pairs, of shape `(n,)`.
        name (`str`): Name of the set.

    Returns:
        `Picture`: The picture. A row is a point of a density; a band without a density has a row with its mean only.

    Raises:
        CannotDraw: If there are no scored pairs.
    """
    if not models:
        raise CannotDraw("no model has stored cosines of scored pairs (the file `.scores.npz` that evaluate writes)")
    gold = np.concatenate([scores["gold"] for scores in models.values()])
    edges = np.linspace(math.floor(gold.min()), math.ceil(gold.max()), BANDS + 1)
    rows: list[tuple[Any, ...]] = []
    with style():
        columns = min(len(models), _MOST_COLUMNS)
        lines = -(-len(models) // columns)
        figure = new_figure(max(5.5, 3.4 * columns), 0.7 + 3.1 * lines)
        panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (model, scores) in zip(panels, models.items(), strict=False):
            bands = cosines_by_band(scores["predicted"], scores["gold"], edges)
            for number, cosines in enumerate(bands):
                band = f"{edges[number]:g}-{edges[number + 1]:g}"
                rows += [(model, band, len(cosines), *row) for row in _draw_band(axes, number, cosines)]
            axes.set_title(shorten(model))
            axes.grid(axis="y", visible=False)
        for axes in panels[len(models) :]:
            axes.set_visible(False)
        for axes in panels[max(0, len(models) - columns) : len(models)]:  # the lowest one of each column
            axes.tick_params(labelbottom=True)
        panels[0].set_yticks(range(BANDS), [f"{low:g}–{high:g}" for low, high in zip(edges, edges[1:], strict=False)])
        panels[0].set_ylim(-0.15, BANDS + 0.1)
        figure.supxlabel("cosine similarity")
        figure.supylabel("gold score")
        settle(figure)
    return Picture(
        "cosine_densities",
        f"Cosine similarities by gold score ({name})",
        "Each hill shows how the cosine similarities of the pairs in one band of the gold score are distributed; the "
        "vertical tick is their mean and n their number (SimCSE, Fig. G.1). A good model moves the hills to the right "
        "from one band to the next, with little overlap between them.",
        ("model", "gold_score", "pairs", "mean_cosine", "cosine", "density"),
        rows,
        figure,
    )


def cosines_by_band(predicted: np.ndarray, gold: np.ndarray, edges: np.ndarray) -> list[np.ndarray]:
    """Split cosines by the band of their gold score. A score on an edge belongs to the band above it.

    Args:
        predicted (`numpy.ndarray`): Cosines of shape `(n,)`.
        gold (`numpy.ndarray`): Gold scores of shape `(n,)`, within the edges.
        edges (`numpy.ndarray`): The edges of the bands in ascending order, one more than there are bands. The highest
            score belongs to the last band.

    Returns:
        `list[numpy.ndarray]`: The finite cosines of each band.
    """
    band = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, len(edges) - 2)
    return [predicted[(band == number) & np.isfinite(predicted)] for number in range(len(edges) - 1)]


def _draw_band(axes: Any, number: int, cosines: np.ndarray) -> list[tuple[float | None, float | None, float | None]]:
    """Draw one hill with its base at `number`, 0.85 high; return rows of mean, cosine and density."""
    from scipy.stats import gaussian_kde

    axes.axhline(number, color=INK, linewidth=0.5)
    axes.annotate(
        f"n = {len(cosines)}", (0.01, number + 0.28), xycoords=("axes fraction", "data"), fontsize=7, va="center"
    )
    if not len(cosines):
        return [(None, None, None)]
    mean = float(cosines.mean())
    axes.plot([mean, mean], [number, number + 0.2], color=INK, linewidth=1.5, zorder=4)
    if len(np.unique(cosines.round(6))) < _FEWEST:
        return [(mean, None, None)]
    density = gaussian_kde(cosines)
    margin = 3 * float(np.sqrt(density.covariance[0, 0]))
    points = np.linspace(max(-1, cosines.min() - margin), min(1, cosines.max() + margin), POINTS)
    heights = density(points)
    axes.fill_between(
        points, number, number + 0.85 * heights / heights.max(), color=COLOURS[0], alpha=0.35, linewidth=0, zorder=2
    )
    axes.plot(points, number + 0.85 * heights / heights.max(), color=COLOURS[0], linewidth=1, zorder=3)
    return [(mean, float(x), float(y)) for x, y in zip(points, heights, strict=True)]
