"""Draw the figures of the papers: curves with intervals, and hulls and policy graphs in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from dphmm.evaluation.figures import PaperFigure, Panel, Series, Shape
from dphmm.plots import figures
from dphmm.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Axes

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56b4e9", GREY, "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")

_MAX_MARKED_POINTS = 25
"""Curves of more points have no markers, which would merge into a thick line."""

_PANELS_PER_ROW = 3


def draw_figure(figure: PaperFigure) -> Any:
    """Draw a figure of a paper with one legend below all panels.

    Parameters
    ----------
    figure : PaperFigure
        The figure.

    Returns
    -------
    matplotlib.figure.Figure
        The drawing.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    # Four panels form a square: a last row of one panel would leave most of the picture empty.
    columns = 2 if len(figure.panels) == 4 else min(len(figure.panels), _PANELS_PER_ROW)
    rows = -(-len(figure.panels) // columns)
    drawing, axes = figures.new_panels(4.6 * columns + 0.4, 3.9 * rows + 0.5, rows=rows, columns=columns)
    styles = _assign_styles(figure)
    for ax, panel in zip(axes, figure.panels, strict=False):
        draw_panel(ax, panel, styles)
    for ax in axes[len(figure.panels) :]:
        ax.set_visible(False)
    _draw_legend(drawing, axes, columns)
    return drawing


def _assign_styles(figure: PaperFigure) -> dict[str, tuple[str, str]]:
    """Return label → colour and marker; equal labels look equal in all panels."""
    items = [item.label for panel in figure.panels for item in (*panel.series, *panel.shapes)]
    labels = list(dict.fromkeys(label for label in items if label))
    # Labels beyond the number of colours repeat a colour with another marker.
    return {
        label: (_COLOURS[i % len(_COLOURS)], _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)])
        for i, label in enumerate(labels)
    }


def draw_panel(ax: Axes, panel: Panel, styles: dict[str, tuple[str, str]]) -> None:
    """Draw one panel.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw.
    panel : Panel
        What to draw.
    styles : dict
        Label → colour and marker.
    """
    for series in panel.series:
        _draw_series(ax, series, *styles[series.label])
    for shape in panel.shapes:
        _draw_shape(ax, shape, *styles.get(shape.label, (GREY, "o")))
    ax.set_xscale(panel.x_scale)
    ax.set_yscale(panel.y_scale)
    ax.set_title(panel.title, fontsize=10)
    figures.label_curves(ax, panel.x_label, panel.y_label)
    if panel.shapes:
        ax.set_aspect("equal")
        ax.margins(0.12)


def _draw_series(ax: Axes, series: Series, colour: str, marker: str) -> None:
    style = {"color": colour, "ls": "--" if series.dashed else "-", "lw": 1.5, "label": series.label}
    if len(series.x) <= _MAX_MARKED_POINTS and not series.dashed:
        style |= {"marker": marker, "ms": 4}
    ax.plot(series.x, series.y, **style)
    if series.low is not None and series.high is not None:
        ax.fill_between(series.x, series.low, series.high, color=colour, alpha=0.2, lw=0)


def _draw_shape(ax: Axes, shape: Shape, colour: str, marker: str) -> None:
    points = np.asarray(shape.points, dtype=np.float64)
    dashes = "--" if shape.dashed else "-"
    if shape.kind == "polygon":
        ring = np.concatenate([points, points[:1]])
        ax.plot(*ring.T, color=colour, ls=dashes, lw=1.5, label=shape.label or None)
        if not shape.dashed:
            ax.fill(*points.T, color=colour, alpha=0.1, lw=0)
    elif shape.kind == "edges":
        for number, pair in enumerate(points.reshape(-1, 2, 2)):
            label = shape.label if number == 0 and shape.label else None
            ax.plot(*pair.T, color=colour, ls=dashes, lw=1.5, label=label)
    else:
        ax.plot(*points.T, ls="", marker=marker, ms=6, color=colour, label=shape.label or None, zorder=3)
    for point, name in zip(points, shape.names, strict=False):
        ax.annotate(name, point, xytext=(5, 5), textcoords="offset points", fontsize=9)


def _draw_legend(drawing: Any, axes: list[Axes], columns: int) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if handles:
        # One legend for all panels, outside of them: it hides no curve and no title.
        widest = max(map(len, handles))
        per_row = max(1, int(columns * 4.6 / (0.6 + 0.075 * widest)))
        drawing.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=min(per_row, len(handles)),
            frameon=False, fontsize=9,
        )  # fmt: skip
