"""Draw the figures of the papers: curves with intervals, and hulls and policy graphs in the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.evaluation.figures import Panel, PaperFigure, Series, Shape
from dphmm.plots import figures
from dphmm.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Axes

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56b4e9", GREY, "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")

_MAX_MARKED_POINTS = 25
"""Curves of more points have no markers, which would merge into a thick line."""

_PANELS_PER_ROW = 3
_PANEL_INCHES = 4.6

_MAX_SCATTERED_SIZE = 25
"""Point sets of more points are drawn small and translucent, so that dense regions remain visible."""


@checked
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
    views = [_find_view(panel, figure.panels) for panel in figure.panels]
    # Maps have the height that their contents need; curves have a fixed one.
    tallest = max(3.3 if view is None else min(4.2, 3.6 * view[3] / view[2]) for view in views)
    styles = _assign_styles(figure)
    # A single panel is wider, so that its legend needs fewer rows.
    width = max(_PANEL_INCHES * columns, 6.6)
    labels_per_row = max(1, int(width / (0.6 + 0.075 * max(map(len, styles), default=0))))
    height = (tallest + 0.75) * rows + 0.3 + 0.2 * -(-len(styles) // labels_per_row)
    drawing, axes = figures.new_panels(width + 0.4, height, rows=rows, columns=columns)
    for ax, panel, view in zip(axes, figure.panels, views, strict=False):
        draw_panel(ax, panel, styles)
        if view is not None:
            left, bottom, across, up = view
            ax.set(aspect="equal", xlim=(left, left + across), ylim=(bottom, bottom + up))
    for ax in axes[len(figure.panels) :]:
        ax.set_visible(False)
    _draw_legend(drawing, axes, labels_per_row)
    return drawing


def _find_view(panel: Panel, panels: Sequence[Panel]) -> tuple[float, float, float, float] | None:
    """Return left, bottom, width and height of a map; maps of the same plane share them and can be compared."""
    same = [one.shapes for one in panels if (one.x_label, one.y_label) == (panel.x_label, panel.y_label)]
    points = [np.asarray(shape.points, dtype=np.float64) for shapes in same for shape in shapes]
    if not points:
        return None
    low, high = np.concatenate(points).min(axis=0), np.concatenate(points).max(axis=0)
    size = np.maximum(high - low, 1e-9)
    margin = 0.08 * size.max()
    return float(low[0] - margin), float(low[1] - margin), float(size[0] + 2 * margin), float(size[1] + 2 * margin)


def _assign_styles(figure: PaperFigure) -> dict[str, tuple[str, str]]:
    """Return label → colour and marker; equal labels look equal in all panels."""
    curves = [series.label for panel in figure.panels for series in panel.series]
    labels = list(dict.fromkeys(curves + [shape.label for panel in figure.panels for shape in panel.shapes]))
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


def _draw_series(ax: Axes, series: Series, colour: str, marker: str) -> None:
    style: dict[str, Any] = {"color": colour, "ls": "--" if series.dashed else "-", "lw": 3 if series.bold else 1.5}
    if series.points:
        style |= {"ls": "", "marker": marker, "ms": 11 if series.bold else 6, "zorder": 3}
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
        many = len(points) > _MAX_SCATTERED_SIZE
        size, opacity = (3, 0.5) if many else (6, 1.0)
        style: dict[str, Any] = {"marker": marker, "ms": size, "alpha": opacity, "mew": 0, "zorder": 2 if many else 3}
        ax.plot(*points.T, ls="", color=colour, label=shape.label or None, **style)
    for point, name in zip(points, shape.names, strict=False):
        ax.annotate(name, point, xytext=(5, 5), textcoords="offset points", fontsize=9)


def _draw_legend(drawing: Any, axes: list[Axes], labels_per_row: int) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            # The first panel's line: a later one may have so many points that it has no markers.
            handles.setdefault(label, handle)
    if handles:
        # One legend for all panels, outside of them: it hides no curve and no title.
        drawing.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=min(labels_per_row, len(handles)),
            frameon=False, fontsize=9,
        )  # fmt: skip


def _label_powers(axis: Any, ends: tuple[float, float]) -> None:
    """Label a logarithmic axis so that neighbouring labels do not touch: fewer multiples on a longer axis."""
    decades = math.log10(ends[1] / ends[0])
    marks = (1,) if decades > 2.5 else (1, 3) if decades > 1.5 else (1, 2, 5)
    figures.tick_powers(axis, ends, marks, lambda value: f"{value:g}")
