"""Figures of an evaluation: every setting with its interval, the DPHMM paper's 10 to 13, a map of some sequences.

Kinds of noise beside each other are drawn as bars of their errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.noise_comparison import NoiseRow
from dphmm.evaluation.report import over_time, smooth_curve, sweep_of, total
from dphmm.evaluation.run import StepTable
from dphmm.plots import figures, maps
from dphmm.plots.figures import Axes
from dphmm.space.states import StateSpace

_DPLS = "DPLS (complete, δ-location set)"


def _style(config: EvaluationConfig, policy: str) -> dict[str, Any]:
    """The colour and the label of a policy: those of the paper have theirs in every evaluation."""
    own = {"utility": figures.BLUE, "transition": figures.RED, "complete": figures.GREEN}
    others = [other for other in config.policies if other not in own]
    colour = own[policy] if policy in own else f"C{others.index(policy) % 8 + 1}"
    return {"color": colour, "label": _DPLS if policy == "complete" else policy}


AXES = {
    "runtime_s": ("processor time of a step (ms)", 1e3),
    "protection": ("degree of protection", 1.0),
    "rms_error_km": ("error (km, Equation 3)", 1.0),
    "possible": ("possible states", 1.0),
    "estimate_error_km": ("error of the posterior mean (km)", 1.0),
    "adversary_error_km": ("adversary's expected error (km)", 1.0),
}
"""Metric → the axis that it is drawn on and the factor that brings it there."""


@checked
def evaluation_figures(table: StepTable, config: EvaluationConfig, space: StateSpace) -> dict[str, Any]:
    """The figures that an evaluation allows for: file name without extension → a matplotlib figure.

    Parameters
    ----------
    table
        A row for each step.
    config
        What was compared.
    space
        The states.

    Returns
    -------
    dict
        File name without extension → a matplotlib figure.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    both = ("protection", "rms_error_km")
    every = ("rms_error_km", "estimate_error_km", "adversary_error_km", "protection")
    settings, axes = figures.new_panels(14.0, 1.6 + 0.28 * len(config.settings()), columns=len(every), sharey=True)
    for ax, metric in zip(axes, every, strict=True):
        draw_settings(ax, table, config, metric)
        ax.tick_params(axis="y", labelleft=ax is axes[0])
    found = {
        "settings": settings,
        "figure-10-runtime": _panels(("runtime_s",), table, config, draw_over_time),
        "figure-11-over-time": _panels(both, table, config, draw_over_time),
        "possible-and-estimate": _panels(("possible", "estimate_error_km"), table, config, draw_over_time),
    }
    if len(config.epsilons) > 1:
        found["figure-12-epsilon"] = _panels(both, table, config, draw_sweep, swept="epsilon")
    if len(config.radii_km) > 1 and "utility" in config.policies:
        found["figure-13-radius"] = _panels(both, table, config, draw_sweep, swept="radius_km")
    figure, ax = figures.new_figure()
    draw_sequences(ax, table, config, space)
    found["map"] = figure
    return found


def _panels(metrics: tuple[str, ...], table: StepTable, config: EvaluationConfig, draw: Any, **what: str) -> Any:
    """One panel per metric, side by side, with one legend."""
    figure, axes = figures.new_panels(5.2 * len(metrics) + 0.4, 3.9, columns=len(metrics))
    for ax, metric in zip(axes, metrics, strict=True):
        draw(ax, table, config, metric, **what)
    figures.legend_below(axes[0], columns=3, size=10)
    return figure


def draw_settings(ax: Axes, table: StepTable, config: EvaluationConfig, metric: str) -> None:
    """A metric under every setting: a dot at the mean over everything, with its 95 % interval.

    Parameters
    ----------
    ax
        Where to draw.
    table
        A row for each step.
    config
        What was compared.
    metric
        A key of `AXES`.
    """
    settings = config.settings()
    label, factor = AXES[metric]
    for place, setting in enumerate(settings):
        found = total(table, setting, metric)
        reach = factor * np.maximum([[found.mean - found.low], [found.high - found.mean]], 0.0)
        colour = _style(config, setting.policy)["color"]
        ax.errorbar([factor * found.mean], [place], xerr=reach, marker="o", ms=4, capsize=2, lw=1.2, color=colour)
    ax.set_yticks(range(len(settings)), [_called(one, settings) for one in settings], fontsize=8)
    ax.set_ylim(len(settings) - 0.5, -0.5)
    ax.set_xlim(left=0)
    _finish(ax, label, "")


def _called(setting: Setting, settings: Sequence[Setting]) -> str:
    """A setting by what differs among all of them."""
    said = [setting.policy]
    for name, words in (("radius_km", "r = {:g} km"), ("epsilon", "ε = {:g}"), ("mechanism", "{}"), ("repair", "{}")):
        value = getattr(setting, name)
        if value and len({getattr(one, name) for one in settings if one.policy == setting.policy}) > 1:
            said.append(words.format(value))
    for value, words in ((setting.target_error_km, "target {:g} km"), (setting.day_epsilon, "ε {:g} a day")):
        said += [words.format(value)] if value else []
    return ", ".join(said)


def draw_over_time(ax: Axes, table: StepTable, config: EvaluationConfig, metric: str) -> None:
    """A metric by time step (Figures 10 and 11): mean over sequences with its 95 % interval.

    All but runtimes are smoothed over 5 steps, near the ends over the steps that there are. The paper smooths them too
    and does not say how. Equal curves show as a thin line within a thick one.

    Parameters
    ----------
    ax
        Where to draw.
    table
        A row for each step.
    config
        What was compared.
    metric
        A key of `AXES`.
    """
    label, factor = AXES[metric]
    highest, ends = 0.0, []
    width = 1 if metric == "runtime_s" else 5
    for number, policy in enumerate(config.policies):
        mean, low, high = (factor * smooth_curve(part, width) for part in over_time(table, config.base(policy), metric))
        steps = np.arange(1, len(mean) + 1)
        style = _style(config, policy)
        ax.plot(steps, mean, lw=max(2.6 - 0.7 * number, 1.2), **style)
        ax.fill_between(steps, low, high, color=style["color"], alpha=0.18, lw=0)
        highest = max(highest, float(mean.max() / max(mean.min(), 1e-12)))
        ends += [float(low.min()), float(high.max())]
    if highest > 30 or metric == "runtime_s":
        _use_log_scale(ax, ends)
    else:
        ax.set_ylim(bottom=0)
    _finish(ax, "time step", label)


def _use_log_scale(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis around positive values, labelled in plain numbers."""
    positive = [value for value in values if value > 0]
    if not positive:
        return
    low, high = min(positive) / 1.15, max(positive) * 1.15
    # Fewer labels the more powers of ten there are, so that they do not overlap.
    marks = [1, 2, 3, 5, 7] if high / low < 10 else [1, 2, 5] if high / low < 300 else [1]
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    figures.tick_powers(ax.yaxis, (low, high), marks, lambda value: f"{value:,g}")


_SWEPT = {"epsilon": "epsilon", "radius_km": "radius of the utility policy (km)"}
"""A setting that is swept → the axis that it is drawn on."""


def draw_sweep(ax: Axes, table: StepTable, config: EvaluationConfig, metric: str, swept: str) -> None:
    """A metric by epsilon (Figure 12) or by radius (Figure 13): means over everything with 95 % intervals.

    Policies without a radius are level lines in a band, their interval.

    Parameters
    ----------
    ax
        Where to draw.
    table
        A row for each step.
    config
        What was compared.
    metric
        A key of `AXES`.
    swept
        ``"epsilon"`` or ``"radius_km"``.
    """
    label, factor = AXES[metric]
    ends: list[float] = []
    for policy in config.policies:
        style = _style(config, policy)
        if swept == "radius_km" and policy != "utility":
            level = np.array(total(table, config.base(policy), metric)) * factor
            ax.axhline(level[0], lw=1.2, ls="--", **style)
            ax.axhspan(level[1], level[2], color=style["color"], alpha=0.12, lw=0)
            ends += level.tolist()
            continue
        sweep = sweep_of(config, policy, swept)
        found = [total(table, setting, metric) for setting in sweep]
        mean, low, high = factor * np.array([(one.mean, one.low, one.high) for one in found]).T
        x = [float(getattr(setting, swept)) for setting in sweep]
        ax.errorbar(x, mean, np.maximum((mean - low, high - mean), 0.0), lw=1.4, capsize=3, marker="o", **style)
        ax.set_xticks(x, [f"{value:g}" for value in x])
        ends += [*low.tolist(), *high.tolist()]
    _use_log_scale(ax, ends)
    _finish(ax, _SWEPT[swept], label)


def draw_sequences(ax: Axes, table: StepTable, config: EvaluationConfig, space: StateSpace, count: int = 3) -> None:
    """True places, releases and posterior means of the first sequences under the first policy. Private.

    Parameters
    ----------
    ax
        Where to draw.
    table
        A row for each step.
    config
        What was compared.
    space
        The states.
    count
        How many sequences at most.
    """
    rows = table.where(config.base(config.policies[0]))
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
    under = _style(config, config.policies[0])["label"]
    title = f"{len(sequences)} sequences under {under}: true places are on this map"
    ax.set_title(title + (f"\n{outside} releases lie outside the picture" if outside else ""), fontsize=10)
    figures.label_map(ax)
    figures.legend_below(ax)


def _finish(ax: Axes, x: str, y: str) -> None:
    figures.label_curves(ax, x, y)
    figures.open_frame(ax)


_BARS = (("released", "as released", "#bbbbbb"), ("estimate", "posterior mean", figures.BLUE))
_MARK = ("hindsight", "adversary, in hindsight", figures.RED)


def noise_figure(rows: Sequence[NoiseRow], title: str = "") -> Any:
    """A matplotlib figure of rows of one policy: a panel at equal budgets, and one at equal promises.

    Parameters
    ----------
    rows
        Kinds of noise, as `dphmm.evaluation.noise_comparison` compares them.
    title
        Above every panel.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each comparison that has rows.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    drawn = {equal: [row for row in rows if row.equal == equal and row.releases] for equal in ("edge", "any two")}
    panels = [equal for equal, some in drawn.items() if some]
    figure, axes = figures.new_panels(5.5 * max(1, len(panels)), 4.5, columns=max(1, len(panels)))
    for ax, equal in zip(axes, panels, strict=False):
        draw_noises(ax, drawn[equal])
        said = "equal budget on every edge" if equal == "edge" else "equal promise for any two states"
        ax.set_title(f"{title}\n{said}" if title else said, fontsize=9)
    return figure


def draw_noises(ax: Axes, rows: Sequence[NoiseRow]) -> None:
    """Draw errors of some kinds of noise, from above down: bars for people who read them, marks for the adversary.

    Parameters
    ----------
    ax
        Where to draw.
    rows
        Kinds of noise.
    """
    places = np.arange(len(rows))
    for number, (name, label, colour) in enumerate(_BARS):
        values = [getattr(row, name) for row in rows]
        ax.barh(places + (number - 0.5) * 0.36, values, 0.34, color=colour, label=label)
    name, label, colour = _MARK
    ax.plot([getattr(row, name) for row in rows], places, "d", color=colour, label=label)
    ax.set_yticks(places, [f"{row.noise}\nε = {row.epsilon:.3g}" for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("error, root mean square (km)")
    ax.legend(fontsize=7)
