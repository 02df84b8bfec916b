"""Figures and report sections of attacks on obfuscation methods."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from math import isfinite
from textwrap import fill
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.attack.noise_channel import format_length
from dphmm.attack.outcomes import ChannelResult
from dphmm.attack.recommendation import ADVERSARY_PHRASES, build_frontier_lines, find_default_result
from dphmm.html_report import Cell, Picture, Section
from dphmm.jobs.attack.tracks import MIN_HABIT_DAYS, AttackResult
from dphmm.plots import canvas
from dphmm.plots.canvas import Axes
from dphmm.validation import check_arguments

_ERROR_MARKERS = (
    ("released_error_m", "release", "s", canvas.GREY),
    ("filtered_error_m", "adversary, past releases", "o", canvas.ORANGE),
    ("smoothed_error_m", "adversary, all releases", "D", canvas.RED),
    ("informed_error_m", "informed adversary, all releases", "v", canvas.PURPLE),
)
_MIN_ERROR_M = 10.0


@check_arguments
def draw_attack_figure(result: AttackResult) -> Any:
    """Plot the errors of releases and adversaries, the homes found, and the frontier.

    Parameters
    ----------
    result
        The result of `dphmm.jobs.attack`.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels with a row for each channel. Below them, the filtered error against the error of each adversary.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    height = 1.6 + 0.34 * len(result.results)
    measures = ["smoothed_error_m", "informed_error_m"][: 1 + bool(result.num_users_with_habits)]
    figure, _ = canvas.create_panels(7.2, height + 4.9, rows=0)
    above, below = figure.subfigures(2, 1, height_ratios=(height, 4.9))
    left, right = above.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    draw_errors(left, result.results)
    draw_homes(right, result.results)
    canvas.place_legend_below(left, columns=2)
    panels = below.subplots(1, len(measures), sharex=True, sharey=True, squeeze=False)[0]
    default = find_default_result(result.results)
    for ax, measure in zip(panels, measures, strict=True):
        at = (
            None
            if default is None
            else (default.estimate_mean("filtered_error_m").mean, default.estimate_mean(measure).mean)
        )
        draw_frontier(ax, build_frontier_lines(result.results, measure), ADVERSARY_PHRASES[measure], at)
    canvas.place_legend_below(panels[0], 3, size=7)
    return figure


_RELEASE_COLOURS = (canvas.BLUE, "#56b4e9", "#003f6b")
_CHANNEL_COLOURS = (canvas.ORANGE, canvas.RED, canvas.GREEN, canvas.PURPLE, "#000000")
# The second half is hollow, so that a picture distinguishes twenty families.
_CHANNEL_MARKERS = tuple((shape, is_hollow) for is_hollow in (False, True) for shape in "sD^vPX<>dp")
# Maximum number of characters in a line of an axis label: a panel is little longer.
_LABEL_WIDTH = 32


def draw_frontier(
    ax: Axes,
    lines: Mapping[str, FloatArray],
    adversary: str,
    marked: tuple[float, float] | None = None,
    label: str = "the default of dphmm release",
) -> None:
    """Plot the filtered error against an adversary's error, a line for each family.

    Axes are logarithmic. Errors below 10 m are plotted at 10 m.

    Parameters
    ----------
    ax
        The axes.
    lines
        Family → ``(k, 2)`` metres, from `dphmm.attack.outcomes.build_frontier_lines`. Those of dphmm are blue.
    adversary
        The adversary, for the axis label.
    marked, label
        Position and label of the highlighted setting.
    """
    ours = [name for name in lines if name.startswith("dphmm")]
    # families before single channels
    rest = sorted((name for name in lines if name not in ours), key=lambda name: len(lines[name]) < 2)
    styles = {name: (colour, "o", False, 2.2) for name, colour in zip(ours, cycle(_RELEASE_COLOURS), strict=False)}
    for name, colour, (shape, is_hollow) in zip(rest, cycle(_CHANNEL_COLOURS), cycle(_CHANNEL_MARKERS), strict=False):
        styles[name] = (colour if len(lines[name]) > 1 else canvas.GREY, shape, is_hollow, 1.2)
    for name, (colour, marker, is_hollow, width) in styles.items():
        near, far = np.maximum(lines[name], _MIN_ERROR_M).T
        face = "white" if is_hollow else colour
        ax.plot(near, far, marker=marker, color=colour, mfc=face, lw=width, ms=5, label=name, zorder=2 + width)
    if marked is not None:
        ax.plot(*np.maximum(marked, _MIN_ERROR_M), "*", color=canvas.BLUE, mec="white", ms=15, label=label, zorder=6)
    plotted = np.maximum(np.concatenate(list(lines.values())), _MIN_ERROR_M)
    ends = 0.8 * float(np.nanmin(plotted)), 1.3 * float(np.nanmax(plotted))
    ax.plot(ends, ends, color=canvas.GREY, ls="--", lw=1, label="equal errors", zorder=1)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    marks = (1, 3) if ends[1] > 30 * ends[0] else (1, 2, 5)
    for axis in (ax.xaxis, ax.yaxis):
        canvas.set_power_ticks(axis, ends, marks, lambda metres: format_length(metres / 1000))
    ax.set_aspect("equal")
    error = fill(f"error of {adversary}", _LABEL_WIDTH)
    canvas.label_curves(ax, "error of recipients (past releases)", f"{error}\n(all releases)")
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set_fontsize(8)
    ax.tick_params(labelsize=8)
    canvas.open_frame(ax)


def draw_errors(ax: Axes, results: tuple[ChannelResult, ...]) -> None:
    """Plot the mean errors, a row for each channel, on a logarithmic axis. Below 10 m as 10 m.

    Parameters
    ----------
    ax
        The axes.
    results
        The result of each channel.
    """
    rows = np.arange(len(results))
    for name, label, marker, colour in _ERROR_MARKERS:
        values = np.array([result.estimate_mean(name).mean for result in results])
        ax.plot(np.maximum(values, _MIN_ERROR_M), rows, marker, color=colour, ms=5, label=label, zorder=3)
    pairs = np.array([[result.estimate_mean(name).mean for name, *_ in _ERROR_MARKERS[1:]] for result in results])
    ends = np.maximum([np.nanmin(pairs, axis=1), np.nanmax(pairs, axis=1)], _MIN_ERROR_M)
    ax.hlines(rows, *ends, color=canvas.RED, lw=1.2, alpha=0.5, zorder=2)
    ax.set_yticks(rows, [result.name for result in results], fontsize=8)
    ax.set_xscale("log")
    plotted = np.concatenate([line.get_xdata() for line in ax.lines])
    end = 1.6 * float(np.nanmax(plotted))
    ax.set_xlim(0.7 * _MIN_ERROR_M, end)
    decades = [_MIN_ERROR_M * 10.0**power for power in range(8) if _MIN_ERROR_M * 10.0**power <= end]
    ax.set_xticks(decades, ["≤10 m", *(format_length(decade / 1000) for decade in decades[1:])])
    ax.set_xlabel("mean error", fontsize=8)
    _style_axes(ax, len(results))


def draw_homes(ax: Axes, results: tuple[ChannelResult, ...]) -> None:
    """Plot the share of homes found, a bar for each channel.

    Parameters
    ----------
    ax
        The axes.
    results
        The result of each channel.
    """
    for row, result in enumerate(results):
        num_found, num_homes = result.homes
        share = num_found / num_homes if num_homes else 0.0
        ax.barh(row, share, 0.6, color=canvas.BLUE, alpha=0.8, zorder=2)
        ax.text(share + 0.04, row, f"{num_found}/{num_homes}", va="center", fontsize=7)
    ax.set_xlim(0, 1.35)
    ax.set_xticks([0, 0.5, 1], ["0", "½", "all"])
    ax.set_xlabel(f"homes found\nwithin {results[0].home_within_m:,.0f} m", fontsize=8)
    _style_axes(ax, len(results))


def _style_axes(ax: Axes, count: int) -> None:
    ax.tick_params(labelsize=8)
    ax.grid(axis="x", color="#dddddd", lw=0.6)
    ax.set_axisbelow(True)
    ax.set_ylim(count - 0.5, -0.5)
    canvas.open_frame(ax)


@check_arguments
def summarize_attack(result: AttackResult) -> tuple[str, bool]:
    """Summarize an attack in a sentence.

    Parameters
    ----------
    result
        The result of `dphmm.jobs.attack`.

    Returns
    -------
    sentence : str
        The number of channels that reveal at least half of the homes.
    alarming : bool
        Whether there are any.
    """
    revealing = [channel for channel in result.results if channel.homes[1] and 2 * channel.homes[0] >= channel.homes[1]]
    text = (
        f"{len(revealing)} of {len(result.results)} channels reveal at least half of the homes within "
        f"{1000 * result.home_within_km:,.0f} m ({result.num_users} {result.population})."
    )
    return text, bool(revealing)


@check_arguments
def build_attack_sections(result: AttackResult) -> list[Section]:
    """Build the sections of the report: figures, table, channels and method.

    Parameters
    ----------
    result
        The result of `dphmm.jobs.attack`.

    Returns
    -------
    list of Section
        For `dphmm.html_report.html_page`.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    within = f"{1000 * result.home_within_km:,.0f} m"
    caption = (
        "Mean errors of the releases and of the adversary, given past releases and given all releases. Right: homes "
        f"found within {within}. Below: channels are better the farther up and to the left they lie."
    )
    header = ["channel", "release error (m)", "adversary, past (m)", "adversary, all (m)", "informed, all (m)"]
    header += [f"homes within {within}", "max posterior", "accuracy", "path length ratio", "withheld"]
    rows = [_build_row(result) for result in result.results]
    method = [
        f"{result.num_fixes:,} times of {result.num_users} {result.population}, every {result.step_seconds:,.0f} s. "
        f"The cells have {1000 * result.cell_km:,.0f} m, the adversary's resolution is "
        f"{1000 * result.adversary_resolution_km:,.0f} m. Model trained on these users: {result.trained_on_users}.",
        f"For {result.num_users_with_habits} of the users, with {MIN_HABIT_DAYS} days or more, the later half of the "
        "days was obfuscated, and the informed adversary learned the habits from the earlier half. Other users are "
        "omitted from this column.",
        "In small print: the 99 % interval of a mean over similar users (Student's; none for one user).",
        "'Max posterior' is the mean probability of the most probable cell given all releases, 'accuracy' the share of "
        "times at which this cell is correct. If the first is larger, the model misleads the adversary. If the release "
        "error is smaller than the adversary's errors, the releases themselves are the better estimate.",
        "The adversary knows the channel, the model and the times of releases, but no map of streets and no releases "
        "of other users. Another adversary may have smaller errors.",
    ]
    sources = [(result.name, result.source) for result in result.results]
    return [
        Section(
            "Result",
            result.advice,
            pictures=[Picture(canvas.render_png(draw_attack_figure(result)), caption, wide=True)],
        ),
        Section("Metrics", header=header, rows=rows),
        Section("Channels", header=("channel", "source"), rows=sources),
        Section("Method", [*result.list_warnings(), *method]),
    ]


def _build_row(result: ChannelResult) -> list[str | Cell]:
    num_found, num_homes = result.homes
    return [
        result.name,
        *(
            _format_mean(result, name, ",.0f")
            for name in ("released_error_m", "filtered_error_m", "smoothed_error_m", "informed_error_m")
        ),
        Cell(f"{num_found} of {num_homes}", mark="bad" if num_homes and 2 * num_found >= num_homes else ""),
        *(
            _format_mean(result, name, ".2f")
            for name in ("max_posterior", "top_1_accuracy", "length_ratio", "withheld_share")
        ),
    ]


def _format_mean(result: ChannelResult, name: str, form: str) -> Cell:
    figure = result.estimate_mean(name)
    if not isfinite(figure.mean):
        return Cell("-")
    return Cell(f"{figure.mean:{form}}", f"± {figure.margin:{form}}" if isfinite(figure.margin) else "")
