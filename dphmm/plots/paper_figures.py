"""Draw the figures of the papers: curves with intervals, and hulls and policy graphs in the plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dphmm.evaluation.figures import Panel, PaperFigure, Series, Shape
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
    rows = -(-len(figure.panels) // _PANELS_PER_ROW)
    columns = -(-len(figure.panels) // rows)  # equal rows: four panels are two by two
    styles = _assign_styles(figure)
    width = max(4.6 * columns, 6.5)
    # One legend for all panels, outside of them: it hides no curve and no title.
    labels_per_row = max(1, int(width / (0.6 + 0.075 * max(map(len, styles), default=0))))
    legend_height = 0.2 * -(-len(styles) // labels_per_row)
    drawing, axes = figures.new_panels(width + 0.4, 3.8 * rows + 0.3 + legend_height, rows=rows, columns=columns)
    for ax, panel in zip(axes, figure.panels, strict=False):
        draw_panel(ax, panel, styles)
    for ax in axes[len(figure.panels) :]:
        ax.set_visible(False)
    _draw_legend(drawing, axes, labels_per_row)
    return drawing


def _assign_styles(figure: PaperFigure) -> dict[str, tuple[str, str]]:
    """Return label → colour and marker; equal labels look equal in all panels."""
    curves = [series.label for panel in figure.panels for series in panel.series]
    shapes = [shape.label for panel in figure.panels for shape in panel.shapes if shape.label]
    labels = list(dict.fromkeys(curves + shapes))
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
    if panel.x_scale == "log":
        _label_powers(ax.xaxis, ax.get_xlim())
    if panel.y_scale == "log":
        _label_powers(ax.yaxis, ax.get_ylim())
    ax.set_title(panel.title, fontsize=10)
    figures.label_curves(ax, panel.x_label, panel.y_label)
    if panel.shapes:
        ax.set_aspect("equal")
        ax.margins(0.12)


def _draw_series(ax: Axes, series: Series, colour: str, marker: str) -> None:
    style: dict[str, Any] = {"color": colour, "ls": "--" if series.dashed else "-", "lw": 3 if series.bold else 1.5}
    if series.points:
        style |= {"ls": "", "marker": marker, "ms": 6, "zorder": 3}
    elif len(series.x) <= _MAX_MARKED_POINTS and not series.dashed:
        style |= {"marker": marker, "ms": 4}
    ax.plot(series.x, series.y, label=series.label, **style)
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


def _draw_legend(drawing: Any, axes: list[Axes], labels_per_row: int) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if handles:
        drawing.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=min(labels_per_row, len(handles)),
            frameon=False, fontsize=9,
        )  # fmt: skip


def _label_powers(axis: Any, ends: tuple[float, float]) -> None:
    """Label a logarithmic axis so that neighbouring labels do not touch: fewer multiples on a longer axis."""
    decades = math.log10(ends[1] / ends[0])
    marks = (1,) if decades > 2.5 else (1, 3) if decades > 1.5 else (1, 2, 5)
    figures.tick_powers(axis, ends, marks, lambda value: f"{value:g}")
