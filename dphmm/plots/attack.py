"""What ways of blurring give away, beside each other: a picture of errors and of the frontier, and a report's page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from math import isfinite
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.attack.measures import KNOWING, ChannelResult, frontier_lines, protection, usual
from dphmm.attack.noise_channel import in_words
from dphmm.jobs.attacks import LEAST_DAYS, Attacked
from dphmm.jobs.calibrations import Calibrated
from dphmm.plots import figures
from dphmm.plots.curves import trade_off
from dphmm.plots.figures import Axes
from dphmm.reports import Cell, Picture, Section

_MARKS = (
    ("released_error_m", "the released place", "s", figures.GREY),
    ("at_once_m", "adversary, at once", "o", figures.ORANGE),
    ("hindsight_m", "adversary, in hindsight", "D", figures.RED),
    ("habits_m", "adversary who knows habits", "v", figures.PURPLE),
)
_LEAST_M = 10.0


@checked
def attack_figure(found: Attacked) -> Any:
    """A matplotlib figure: how far off releases and adversaries are, how many homes are found, and the frontier.

    Parameters
    ----------
    found
        What an attack found, as `dphmm.jobs.attack` returns it.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels with a row for each channel; below them error at once against that of each adversary.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    height, measures = 1.6 + 0.34 * len(found.results), ["hindsight_m", "habits_m"][: 1 + bool(found.habits_known)]
    figure, _ = figures.new_panels(7.2, height + 4.9, rows=0)
    above, below = figure.subfigures(2, 1, height_ratios=(height, 4.9))
    left, right = above.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    draw_errors(left, found.results)
    draw_homes(right, found.results)
    figures.legend_below(left, columns=2)
    panels = below.subplots(1, len(measures), sharex=True, sharey=True, squeeze=False)[0]
    default = usual(found.results)
    for ax, measure in zip(panels, measures, strict=True):
        at = None if default is None else (default.figure("at_once_m").mean, default.figure(measure).mean)
        draw_frontier(ax, frontier_lines(found.results, measure), KNOWING[measure], at)
    figures.legend_below(panels[0], 3, size=7)
    return figure


@checked
def calibration_figure(found: Calibrated) -> Any:
    """A matplotlib figure: errors by epsilon, and a reader's error at once against the adversary's in hindsight.

    Parameters
    ----------
    found
        A calibration with a row of at least two budgets and simulated people, as `dphmm.jobs.calibrate` returns it.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels; the star is the budget that was found.

    Raises
    ------
    InvalidInputError
        When there is no such row.
    MissingDependencyError
        Without matplotlib.
    """
    figure, panels = figures.new_panels(11.0 if found.tried else 7.0, 4.8, columns=2 if found.tried else 1)
    trade_off(panels[0], found)
    if found.chosen is not None:
        measure = protection(found.tried)
        at = found.chosen.figure("at_once_m").mean, found.chosen.figure(measure).mean
        draw_frontier(panels[1], frontier_lines(found.tried, measure), KNOWING[measure], at, "the budget found")
        panels[1].set_title(found.tried_on, fontsize=9)
        figures.legend_below(panels[1], 3)
    return figure


_OURS = (figures.BLUE, "#56b4e9", "#003f6b")
_OTHERS, _SHAPES = (figures.ORANGE, figures.RED, figures.GREEN, figures.PURPLE, "#000000"), "sD^vpPX<>dh8"


def draw_frontier(
    ax: Axes,
    lines: Mapping[str, FloatArray],
    whose: str,
    marked: tuple[float, float] | None = None,
    label: str = "the default of dphmm release",
) -> None:
    """Error at once against an adversary's, a line for each family, on logarithmic axes; below 10 m as 10 m.

    Parameters
    ----------
    ax
        Where to draw.
    lines
        Family → ``(k, 2)`` metres, as `dphmm.attack.measures.frontier_lines` gives them; blue where it is dphmm's.
    whose
        The adversary, for the axis.
    marked, label
        Where the setting lies that stands out, and what it is.
    """
    ours = [name for name in lines if name.startswith("dphmm")]
    rest = sorted((name for name in lines if name not in ours), key=lambda name: len(lines[name]) < 2)  # lines first
    styles = {name: (colour, "o", 2.2) for name, colour in zip(ours, cycle(_OURS), strict=False)}
    for name, colour, shape in zip(rest, cycle(_OTHERS), cycle(_SHAPES), strict=False):
        styles[name] = (colour if len(lines[name]) > 1 else figures.GREY, shape, 1.2)
    for name, (colour, marker, width) in styles.items():
        near, far = np.maximum(lines[name], _LEAST_M).T
        ax.plot(near, far, marker=marker, color=colour, lw=width, ms=5, label=name, zorder=2 + width)
    if marked is not None:
        ax.plot(*np.maximum(marked, _LEAST_M), "*", color=figures.BLUE, mec="white", ms=15, label=label, zorder=6)
    drawn = np.maximum(np.concatenate(list(lines.values())), _LEAST_M)
    ends = 0.8 * float(np.nanmin(drawn)), 1.3 * float(np.nanmax(drawn))
    ax.plot(ends, ends, color=figures.GREY, ls="--", lw=1, label="as far off as at once", zorder=1)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    marks = (1, 3) if ends[1] > 30 * ends[0] else (1, 2, 5)
    for axis in (ax.xaxis, ax.yaxis):
        figures.tick_powers(axis, ends, marks, lambda metres: in_words(metres / 1000))
    ax.set_aspect("equal")
    figures.label_curves(ax, "a reader at once is off by", f"{whose} is off by")
    for text in (ax.xaxis.label, ax.yaxis.label):
        text.set_fontsize(8)
    ax.tick_params(labelsize=8)
    figures.open_frame(ax)


def draw_errors(ax: Axes, results: tuple[ChannelResult, ...]) -> None:
    """Mean distances from the true places, a row for each channel, on a logarithmic axis; below 10 m as 10 m.

    Parameters
    ----------
    ax
        Where to draw.
    results
        What was found of each channel.
    """
    rows = np.arange(len(results))
    for name, label, marker, colour in _MARKS:
        values = np.array([result.figure(name).mean for result in results])
        ax.plot(np.maximum(values, _LEAST_M), rows, marker, color=colour, ms=5, label=label, zorder=3)
    pairs = np.array([[result.figure(name).mean for name, *_ in _MARKS[1:]] for result in results])
    ends = np.maximum([np.nanmin(pairs, axis=1), np.nanmax(pairs, axis=1)], _LEAST_M)
    ax.hlines(rows, *ends, color=figures.RED, lw=1.2, alpha=0.5, zorder=2)
    ax.set_yticks(rows, [result.name for result in results], fontsize=8)
    ax.set_xscale("log")
    drawn = np.concatenate([line.get_xdata() for line in ax.lines])
    end = 1.6 * float(np.nanmax(drawn))
    ax.set_xlim(0.7 * _LEAST_M, end)
    decades = [_LEAST_M * 10.0**power for power in range(8) if _LEAST_M * 10.0**power <= end]
    ax.set_xticks(decades, ["≤10 m", *(in_words(decade / 1000) for decade in decades[1:])])
    ax.set_xlabel("mean distance from the truth", fontsize=8)
    _tidy(ax, len(results))


def draw_homes(ax: Axes, results: tuple[ChannelResult, ...]) -> None:
    """The share of homes found, a bar for each channel, with how many of how many.

    Parameters
    ----------
    ax
        Where to draw.
    results
        What was found of each channel.
    """
    for row, result in enumerate(results):
        homes, people = result.homes
        share = homes / people if people else 0.0
        ax.barh(row, share, 0.6, color=figures.BLUE, alpha=0.8, zorder=2)
        ax.text(share + 0.04, row, f"{homes}/{people}", va="center", fontsize=7)
    ax.set_xlim(0, 1.35)
    ax.set_xticks([0, 0.5, 1], ["0", "½", "all"])
    ax.set_xlabel(f"homes found\nwithin {results[0].home_within_m:,.0f} m", fontsize=8)
    _tidy(ax, len(results))


def _tidy(ax: Axes, count: int) -> None:
    ax.tick_params(labelsize=8)
    ax.grid(axis="x", color="#dddddd", lw=0.6)
    ax.set_axisbelow(True)
    ax.set_ylim(count - 0.5, -0.5)
    figures.open_frame(ax)


@checked
def attack_verdict(found: Attacked) -> tuple[str, bool]:
    """What was found in a sentence, and whether it is bad news.

    Parameters
    ----------
    found
        What an attack found, as `dphmm.jobs.attack` returns it.

    Returns
    -------
    sentence : str
        How many channels let the adversary find at least half of the homes.
    alarming : bool
        Whether there is one.
    """
    open_ones = [one for one in found.results if one.homes[1] and 2 * one.homes[0] >= one.homes[1]]
    said = (
        f"Of {found.people} {found.about}, {len(open_ones)} of {len(found.results)} channels let the adversary find at "
        f"least half of the homes within {1000 * found.home_within_km:,.0f} m."
    )
    return said, bool(open_ones)


@checked
def attack_sections(found: Attacked) -> list[Section]:
    """The parts of a report: the picture, the table, the channels and where they come from, and what was done.

    Parameters
    ----------
    found
        What an attack found, as `dphmm.jobs.attack` returns it.

    Returns
    -------
    list of Section
        For `dphmm.reports.html_page`.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    within = f"{1000 * found.home_within_km:,.0f} m"
    caption = (
        "Mean distances from the true places: of what was released, and of the adversary's estimate at once and in "
        f"hindsight. Right: homes found within {within}. Below: the better, the farther up and to the left."
    )
    header = ["channel", "released, off by (m)", "at once (m)", "in hindsight (m)", "knows habits (m)"]
    header += [f"homes within {within}", "sure", "right", "way, times the true one", "left out"]
    rows = [_row(result) for result in found.results]
    done = [
        f"{found.fixes:,} times of {found.people} {found.about}, every {found.step_seconds:,.0f} s; cells of "
        f"{1000 * found.cell_km:,.0f} m, of which the adversary tells apart squares of {1000 * found.part_km:,.0f} m. "
        f"Whether the model was learned from them: {found.learned_from_them}.",
        f"Of {found.habits_known} of them, with {LEAST_DAYS} days or more, the later half of the days was blurred, and "
        "the adversary who knows habits learned them from the earlier half; others are left out of that column.",
        "In small print: the 99 % interval of a mean over people like these (Student's; none for one person).",
        "'Sure' is the mean probability that the adversary gives the likeliest cell in hindsight, 'right' how often it "
        "is the true one: an adversary who is surer than right is misled by the model. Where releases lie nearer than "
        "the adversary's estimates, just reading the releases does better.",
        "The adversary knows the channel, the model and the times of releases, no map of streets and no other person's "
        "releases; another may do better.",
    ]
    sources = [(result.name, result.source) for result in found.results]
    return [
        Section(
            "What is given away",
            found.advice,
            pictures=[Picture(figures.png(attack_figure(found)), caption, wide=True)],
        ),
        Section("In numbers", header=header, rows=rows),
        Section("The channels", header=("channel", "where it comes from"), rows=sources),
        Section("How it was done", [*found.warnings(), *done]),
    ]


def _row(result: ChannelResult) -> list[str | Cell]:
    homes, people = result.homes
    return [
        result.name,
        *(_figure(result, name, ",.0f") for name in ("released_error_m", "at_once_m", "hindsight_m", "habits_m")),
        Cell(f"{homes} of {people}", mark="bad" if people and 2 * homes >= people else ""),
        *(_figure(result, name, ".2f") for name in ("certainty", "right", "length_ratio", "withheld")),
    ]


def _figure(result: ChannelResult, name: str, form: str) -> Cell:
    figure = result.figure(name)
    if not isfinite(figure.mean):
        return Cell("-")
    return Cell(f"{figure.mean:{form}}", f"± {figure.margin:{form}}" if isfinite(figure.margin) else "")
