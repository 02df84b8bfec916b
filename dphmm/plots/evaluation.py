"""Figures of the papers and of evaluations: curves, shapes, errors and maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.figures import Panel, PaperFigure, Series, Shape
from dphmm.evaluation.noise_comparison import NoiseRow
from dphmm.evaluation.panels import (
    METRICS,
    Curves,
    build_curves_by_epsilon,
    build_curves_by_radius,
    build_curves_over_time,
    label_policy,
    make_panels,
)
from dphmm.evaluation.report import compute_overall_mean
from dphmm.evaluation.run import StepTable
from dphmm.plots import canvas, maps
from dphmm.plots.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Axes
from dphmm.space.states import StateSpace
from dphmm.validation import check_arguments

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56b4e9", GREY, "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")

# Longer curves have no markers, which would merge into a thick line.
_MAX_MARKED_POINTS = 25

_PANELS_PER_ROW = 3
_PANEL_INCHES = 4.6

# Larger point sets are drawn small and translucent, which keeps dense regions visible.
_MAX_SCATTERED_SIZE = 25


@check_arguments
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
    drawing, axes = canvas.create_panels(width + 0.4, height, rows=rows, columns=columns)
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
    """Return left, bottom, width and height of a map. Maps with equal axis labels share them."""
    same = [other.shapes for other in panels if (other.x_label, other.y_label) == (panel.x_label, panel.y_label)]
    points = [np.asarray(shape.points, dtype=np.float64) for shapes in same for shape in shapes]
    if not points:
        return None
    low = np.concatenate(points).min(axis=0)
    high = np.concatenate(points).max(axis=0)
    size = np.maximum(high - low, 1e-9)
    margin = 0.08 * size.max()
    return float(low[0] - margin), float(low[1] - margin), float(size[0] + 2 * margin), float(size[1] + 2 * margin)


def _assign_styles(figure: PaperFigure) -> dict[str, tuple[str, str]]:
    """Return label → colour and marker. Equal labels look equal in all panels."""
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
        Panel to draw.
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
    canvas.label_curves(ax, panel.x_label, panel.y_label)


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
    """Label a logarithmic axis without overlaps: a longer axis has fewer multiples."""
    decades = math.log10(ends[1] / ends[0])
    marks = (1,) if decades > 2.5 else (1, 3) if decades > 1.5 else (1, 2, 5)
    canvas.set_power_ticks(axis, ends, marks, lambda value: f"{value:,g}")


@check_arguments
def draw_evaluation_figures(table: StepTable, config: EvaluationConfig, space: StateSpace) -> dict[str, Any]:
    """Draw the figures of an evaluation.

    Parameters
    ----------
    table
        One row for each step.
    config
        Configuration of the evaluation.
    space
        The states.

    Returns
    -------
    dict
        File name without extension → a matplotlib figure.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    both = ("protection", "rms_error_km")
    compared = ("rms_error_km", "estimate_error_km", "adversary_error_km", "protection")
    settings, axes = canvas.create_panels(14.0, 1.6 + 0.28 * len(config.settings()), columns=len(compared), sharey=True)
    settings.get_layout_engine().set(w_pad=0.15)  # inches: the last number of an axis is next to the first of another
    for ax, metric in zip(axes, compared, strict=True):
        draw_settings(ax, table, config, metric)
        ax.tick_params(axis="y", labelleft=ax is axes[0])

    def draw(metrics: tuple[str, ...], curves: Curves, x_label: str) -> Any:
        return draw_figure(PaperFigure("", "", make_panels(table, config, metrics, curves, x_label)))

    figures = {
        "settings": settings,
        "figure-10-runtime": draw(("runtime_s",), build_curves_over_time, "timestep"),
        "figure-11-over-time": draw(both, build_curves_over_time, "timestep"),
        "possible-and-estimate": draw(("num_possible_states", "estimate_error_km"), build_curves_over_time, "timestep"),
    }
    if len(config.epsilons) > 1:
        figures["figure-12-epsilon"] = draw(both, build_curves_by_epsilon, "ε")
    if len(config.radii_km) > 1 and "utility" in config.policies:
        figures["figure-13-radius"] = draw(both, build_curves_by_radius, "radius of the utility policy (km)")
    figures["map"], ax = canvas.create_figure()
    draw_sequences(ax, table, config, space)
    return figures


def draw_settings(ax: Axes, table: StepTable, config: EvaluationConfig, metric: str) -> None:
    """Draw the mean of a metric under every setting, with its 95 % interval.

    Errors of withheld timesteps are those of the prediction. The marker is hollow if no timestep was released.

    Parameters
    ----------
    ax
        Axes to draw on.
    table
        One row for each step.
    config
        Configuration of the evaluation.
    metric
        A key of `METRICS`.
    """
    settings = config.settings()
    label, factor = METRICS[metric]
    labels = list[str]()
    for row, setting in enumerate(settings):
        interval = compute_overall_mean(table, setting, metric)
        reach = factor * np.maximum([[interval.mean - interval.low], [interval.high - interval.mean]], 0.0)
        colour = _COLOURS[config.policies.index(setting.policy) % len(_COLOURS)]
        withheld = float(table.select_rows(setting)["withheld"].mean())
        style: dict[str, Any] = {"marker": "o", "ms": 4, "mfc": "white" if withheld == 1 else colour, "color": colour}
        ax.errorbar([factor * interval.mean], [row], xerr=reach, capsize=2, lw=1.2, **style)
        labels.append(_label_setting(setting, settings) + (f" ({100 * withheld:.3g} % withheld)" if withheld else ""))
    ax.set_yticks(range(len(settings)), labels, fontsize=8)
    ax.set_ylim(len(settings) - 0.5, -0.5)
    ax.set_xlim(left=0)
    _finish_axes(ax, label, "")


def _label_setting(setting: Setting, settings: Sequence[Setting]) -> str:
    """Return the policy with the parameters in which its settings differ."""
    parts = [setting.policy]
    for name, words in (("radius_km", "r = {:g} km"), ("epsilon", "ε = {:g}"), ("mechanism", "{}"), ("repair", "{}")):
        value = getattr(setting, name)
        if value and len({getattr(other, name) for other in settings if other.policy == setting.policy}) > 1:
            parts.append(words.format(value))
    for value, words in ((setting.target_error_km, "target {:g} km"), (setting.window_epsilon, "ε {:g} per 24 h")):
        parts += [words.format(value)] if value else []
    return ", ".join(parts)


def draw_sequences(ax: Axes, table: StepTable, config: EvaluationConfig, space: StateSpace, count: int = 3) -> None:
    """Draw true locations, releases and estimates of the first sequences. Private.

    The sequences are those under the first policy.

    Parameters
    ----------
    ax
        Axes to draw on.
    table
        One row for each step.
    config
        Configuration of the evaluation.
    space
        The states.
    count
        Maximum number of sequences.
    """
    rows = table.select_rows(config.get_default_setting(config.policies[0]))
    maps.draw_space(ax, space)
    sequences = np.unique(rows["sequence"])[:count]
    points = {
        kind: np.column_stack([rows[f"{kind}_x_km"], rows[f"{kind}_y_km"]]) for kind in ("true", "released", "estimate")
    }
    for sequence in sequences.tolist():
        chosen = rows["sequence"] == sequence
        maps.draw_releases(ax, points["released"][chosen])
        maps.draw_estimates(ax, points["estimate"][chosen])
        maps.draw_track(ax, points["true"][chosen])
    released = points["released"][np.isin(rows["sequence"], sequences)]
    outside = maps.fit_view(ax, maps.extent(space), released, reach=0.25)
    policy = label_policy(config.policies[0])
    title = f"{len(sequences)} sequences under {policy} with true locations (private)"
    ax.set_title(title + (f"\n{outside} releases are outside the picture" if outside else ""), fontsize=10)
    canvas.label_map(ax)
    canvas.place_legend_below(ax)


def _finish_axes(ax: Axes, x: str, y: str) -> None:
    canvas.label_curves(ax, x, y)
    canvas.open_frame(ax)


_BARS = (("released", "release", "#bbbbbb"), ("estimate", "posterior mean", canvas.BLUE))
_MARK = ("smoothed", "adversary (all releases)", canvas.RED)


def draw_noise_figure(rows: Sequence[NoiseRow], title: str = "") -> Any:
    """Draw the errors of noises at equal budgets and at equal guarantees, one panel each.

    Parameters
    ----------
    rows
        Rows of one policy from `dphmm.evaluation.compare_noise`.
    title
        Title of every panel.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each comparison that has rows.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    rows_by_panel = {
        equal: [row for row in rows if row.equal == equal and row.releases] for equal in ("edge", "any two")
    }
    panels = [equal for equal, panel_rows in rows_by_panel.items() if panel_rows]
    figure, axes = canvas.create_panels(5.5 * max(1, len(panels)), 4.5, columns=max(1, len(panels)))
    for ax, equal in zip(axes, panels, strict=False):
        draw_noises(ax, rows_by_panel[equal])
        subtitle = "equal budget on every edge" if equal == "edge" else "equal guarantee for any two states"
        ax.set_title(f"{title}\n{subtitle}" if title else subtitle, fontsize=9)
    return figure


def draw_noises(ax: Axes, rows: Sequence[NoiseRow]) -> None:
    """Draw errors of noises: bars for recipients, marks for the adversary.

    Parameters
    ----------
    ax
        Axes to draw on.
    rows
        Errors of the noises.
    """
    positions = np.arange(len(rows))
    for number, (name, label, colour) in enumerate(_BARS):
        values = [getattr(row, name) for row in rows]
        ax.barh(positions + (number - 0.5) * 0.36, values, 0.34, color=colour, label=label)
    name, label, colour = _MARK
    ax.plot([getattr(row, name) for row in rows], positions, "d", color=colour, label=label)
    ax.set_yticks(positions, [f"{row.noise}\nε = {row.epsilon:.3g}" for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("root mean square error (km)")
    canvas.place_legend_below(ax)
