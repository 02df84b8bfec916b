"""Figures of audits: graphs, noise bodies, levels, bounds, beliefs and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.blowfish import SecretsAudit
from dphmm.audit.empirical_epsilon import PairAudit
from dphmm.audit.policy import BodyAudit, ConstraintAudit, EntryAudit
from dphmm.audit.realized_leakage import EventAudit
from dphmm.audit.sequence import SequenceAudit
from dphmm.geometry.sensitivity_hull import Disc
from dphmm.jobs.audit.identity import LINKAGE_LENGTHS, IdentityAudit
from dphmm.jobs.audit.membership import MembershipAudit
from dphmm.plots import canvas
from dphmm.plots.canvas import (
    BLUE,
    EDGE_COLOUR,
    ESTIMATE_COLOUR,
    EXPOSED_COLOUR,
    GREEN,
    GREY,
    HULL_COLOUR,
    ORANGE,
    RED,
    RELEASE_COLOUR,
    TRUE_COLOUR,
    Axes,
    draw_steps,
    label_map,
    set_limits,
)
from dphmm.plots.maps import MAX_CELLS, MAX_EDGES, draw_body, draw_cells, draw_edges
from dphmm.policy.graph import PolicyLike, as_policy
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.validation import Probability, check_arguments

_GREY_COLOUR = "#bbbbbb"
_LIGHT_COLOUR = "#dfe6ea"
# Number of largest components with a line in the legend.
_MAX_LEGEND_COMPONENTS = 5
_PROTECTED_COLOUR = "#b7d3e6"
# Margin of a map around the states, as a share of their span; a noise body may be wider.
_MAP_MARGIN = 0.35
_SHARE_LIMITS = (-0.03, 1.03)
# Number of edges from which on their lines become narrower.
_MAX_WIDE_EDGES = 300
_MIN_EDGE_WIDTH = 0.25
# Maximum number of states with a name in a figure.
_MAX_NAMED_STATES = 40


def draw_exposure(
    ax: Axes,
    points: FloatArray,
    graph: PolicyLike,
    audit: ConstraintAudit,
    body: BodyAudit,
    names: Sequence[str],
    space: StateSpace | None = None,
) -> None:
    """Plot the constrained graph, the exposed states, a noise body and the repair's edges.

    Parameters
    ----------
    points
        ``(N, 2)`` measurements.
    graph
        The policy.
    audit, body
        The audit, and the mechanism to plot.
    names
        Names of the states, shown if few are possible.
    space
        The states on a map. Cells of a grid are plotted as cells, and the axes are labelled.
    """
    possible = np.flatnonzero(audit.constraint)
    grid = space if isinstance(space, Grid) and space.size <= MAX_CELLS else None
    if grid is None and len(possible) < len(points):
        ax.plot(*points[~audit.constraint].T, ".", color=_GREY_COLOUR, ms=3, zorder=0, label="impossible states")
    if len(possible) <= MAX_EDGES:
        edges = as_policy(graph, len(points), names, "graph").restrict(audit.constraint).edge_array()
        # Thousands of edges of full width would be one area.
        width = min(1.0, max(_MIN_EDGE_WIDTH, (_MAX_WIDE_EDGES / max(len(edges), 1)) ** 0.5))
        draw_edges(ax, points, edges, EDGE_COLOUR, width, "policy edges")
    for repair in audit.repairs:
        if repair.mechanism == body.mechanism and repair.method == "exact":
            added = np.array(repair.protection.added)
            draw_edges(ax, points, added, ORANGE, 2.0, "added by the exact repair")
    exposed = np.array(body.exposed, dtype=np.int64)
    if grid is not None:
        _draw_cells(ax, grid, np.flatnonzero(~audit.constraint), _LIGHT_COLOUR, "impossible states")
        _draw_cells(ax, grid, np.setdiff1d(possible, exposed), _PROTECTED_COLOUR, "possible states, not exposed")
        _draw_cells(ax, grid, exposed, EXPOSED_COLOUR, "exposed states")
        label_map(ax)
    else:
        ax.plot(*points[possible].T, "o", color=ESTIMATE_COLOUR, ms=4, zorder=3, label="possible states")
        if len(exposed):
            ax.plot(*points[exposed].T, "X", color=EXPOSED_COLOUR, ms=9, zorder=4, label="exposed states")
    # The state nearest to the middle, so that most of the noise body lies within the axes.
    middle = points[possible].mean(axis=0)
    centre = body.exposed[0] if body.exposed else possible[np.linalg.norm(points[possible] - middle, axis=1).argmin()]
    label = f"noise body around {'an exposed' if body.exposed else 'a'} state"
    draw_body(ax, _build_body_outline(body), HULL_COLOUR, label, points[centre], zorder=2.5)  # above edges
    if len(possible) <= _MAX_NAMED_STATES:
        for state in possible.tolist():
            ax.annotate(names[state], points[state], xytext=(4, 4), textcoords="offset points", fontsize=9, zorder=5)
    span = max(float(np.ptp(points, axis=0).max()), 1e-9)
    set_limits(ax, points, _MAP_MARGIN * span)
    _title_map(ax, f"{body.mechanism}: {len(body.exposed)} of {len(possible)} possible states exposed")


def _draw_cells(ax: Axes, grid: Grid, states: IntArray, colour: str, label: str) -> None:
    if len(states):
        style = {"edgecolors": "white", "linewidths": 0.3, "alpha": 0.75, "zorder": 0.5}
        draw_cells(ax, grid, states, facecolors=colour, label=label, **style)


def draw_components(ax: Axes, points: FloatArray, audit: ConstraintAudit) -> None:
    """Plot the components of possible states, the unprotected states and the exposed ones.

    Parameters
    ----------
    points
        ``(N, 2)`` measurements.
    audit
        The audit. Exposed states are those of its first mechanism.
    """
    import matplotlib as mpl

    assert audit.labels is not None, "an audit contains its components"
    size = _compute_marker_size(int(audit.constraint.sum()))
    ax.plot(*points[~audit.constraint].T, ".", color=_GREY_COLOUR, ms=size / 3, zorder=0)
    unprotected, exposed = (np.array(states, dtype=np.int64) for states in (audit.unprotected, audit.bodies[0].exposed))
    if len(unprotected):
        label = f"unprotected, {len(unprotected):,}"
        ax.plot(*points[unprotected].T, "s", color=_LIGHT_COLOUR, ms=size, mew=0, zorder=1, label=label)
    sizes = np.bincount(audit.labels[audit.labels >= 0])
    palette = mpl.colormaps["tab10"]
    for rank, component in enumerate(np.argsort(-sizes, kind="stable").tolist()):
        if sizes[component] < 2:
            break
        states = np.flatnonzero(audit.labels == component)
        component_label = f"component {rank + 1}, {len(states):,} states" if rank < _MAX_LEGEND_COMPONENTS else None
        ax.plot(*points[states].T, "s", color=palette(rank % 10), ms=size, mew=0, zorder=2, label=component_label)
    if len(exposed):
        label = f"exposed, {len(exposed):,}"
        ax.plot(*points[exposed].T, "X", color=EXPOSED_COLOUR, ms=max(size, 5), zorder=4, label=label)
    num_components = int((sizes > 1).sum())
    groups = f"{num_components:,} component{'s' if num_components != 1 else ''} of several states"
    _title_map(ax, f"{groups}, {len(unprotected):,} unprotected, {len(exposed):,} exposed")


def draw_entries(ax: Axes, points: FloatArray, audit: EntryAudit) -> None:
    """Plot the unprotected states from which zones are entered, by the disclosure on entry.

    Parameters
    ----------
    points
        ``(N, 2)`` measurements.
    audit
        The audit.
    """
    size = _compute_marker_size(len(points))
    ax.plot(*points[audit.unprotected].T, "s", color=_LIGHT_COLOUR, ms=size, mew=0, zorder=0, label="unprotected")
    ax.plot(
        *points[~audit.unprotected].T, "s", color=HULL_COLOUR, ms=size, mew=0, alpha=0.45, zorder=1, label="protected"
    )
    places = np.array([entry.state for entry in audit.entries], dtype=np.int64)
    level = np.array([entry.posterior_quantile_90 for entry in audit.entries])
    order = np.argsort(level, kind="stable")
    look: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "inferno_r", "marker": "s", "s": max(12.0, size**2)}
    edge: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.4, "zorder": 3}
    x, y = points[places[order]].T
    entries = ax.scatter(x, y, c=level[order], label="entries", **look, **edge)
    ax.figure.colorbar(entries, ax=ax, shrink=0.7, label="posterior of the true state, 90 % quantile")
    around = points[np.concatenate([places, np.flatnonzero(~audit.unprotected)])]
    set_limits(ax, around, 0.15 * float(np.ptp(around, axis=0).max()) + 1e-9)
    _title_map(ax, "Disclosure by the last unprotected release")


def _compute_marker_size(count: int) -> float:
    """Return the size of square markers for `count` places, such that neighbours nearly touch."""
    return float(np.clip(260.0 / np.sqrt(max(count, 1)), 1.2, 12.0))


def draw_hulls(ax: Axes, audit: ConstraintAudit, unit: str = "") -> None:
    """Plot the noise bodies of all audited mechanisms around the origin.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit under one constraint set.
    unit
        The unit of the measurements. Defaults to none.
    """
    area_unit = f" {unit}²" if unit else ""
    for body, colour in reversed(list(zip(audit.bodies, (HULL_COLOUR, ESTIMATE_COLOUR, RELEASE_COLOUR), strict=False))):
        draw_body(ax, _build_body_outline(body), colour, f"{body.mechanism}, area {body.body.volume:.4g}{area_unit}")
    ax.plot([0], [0], "+", color=TRUE_COLOUR, ms=6)
    _title_map(ax, "Noise bodies before the repair")


def draw_secrets(ax: Axes, audit: SecretsAudit) -> None:
    """Plot the contributions of secrets and the noise bodies, for one or two answers.

    A secret outside a body is exposed under its mechanism.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit, with contributions of one or two columns.
    """
    points = np.asarray(audit.policy.contributions).astype(np.float64)
    for level, colour in reversed(list(zip(audit.levels, (HULL_COLOUR, ESTIMATE_COLOUR), strict=False))):
        corners = audit.hull.vertices
        if level.sensitivity is not None:
            corners = level.sensitivity * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])[:, : points.shape[1]]
        draw_body(ax, _pad_to_plane(corners), colour, level.mechanism)
    places, where = np.unique(_pad_to_plane(points), axis=0, return_inverse=True)
    ax.plot(*places.T, "o", color=TRUE_COLOUR, ms=5, zorder=3)
    for number, place in enumerate(places):
        text = ", ".join(np.array(audit.policy.names)[np.flatnonzero(where.ravel() == number)][:6].tolist())
        ax.annotate(text, place, xytext=(5, 5), textcoords="offset points", fontsize=9, zorder=4)
    _title_map(ax, "Contributions of the secrets and noise bodies")


def draw_levels(ax: Axes, audit: SecretsAudit, limit: int = 60) -> None:
    """Plot the unbounded-DP level of the worst secrets, in multiples of epsilon.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit.
    limit
        Maximum number of secrets.
    """
    worst = np.argsort(-np.max([level.factors for level in audit.levels], axis=0), kind="stable")[:limit]
    shown = np.sort(worst)
    width = 0.8 / len(audit.levels)
    tallest = max((f for level in audit.levels for f in level.factors[shown] if np.isfinite(f)), default=1.0)
    top = max(1.2, 1.2 * tallest)
    for k, (level, colour) in enumerate(zip(audit.levels, (HULL_COLOUR, ESTIMATE_COLOUR), strict=False)):
        heights = np.where(np.isfinite(level.factors[shown]), level.factors[shown], top)
        ax.bar(np.arange(len(shown)) + k * width, heights, width, color=colour, label=level.mechanism)
        for place in np.flatnonzero(~np.isfinite(level.factors[shown])):
            ax.text(place + k * width, top, "∞", ha="center", va="top", color="white")
    ax.axhline(1.0, color=EXPOSED_COLOUR, lw=1.0, ls="--", label="guarantee")
    ax.set_xticks(np.arange(len(shown)) + 0.4 - width / 2, [audit.policy.names[i] for i in shown], fontsize=8)
    ax.tick_params(axis="x", rotation=0 if len(shown) <= 12 else 90)
    ax.set_ylim(0, top)
    ax.set_ylabel("level of presence (× epsilon)")
    ax.set_title("Level of each secret", fontsize=10)


def draw_bounds(ax: Axes, pairs: Sequence[PairAudit], names: Sequence[str], limit: int = 40) -> None:
    """Plot the lower confidence bounds and claims of pairs, the closest to a claim first.

    Parameters
    ----------
    ax
        The axes.
    pairs
        The audited pairs.
    names
        ``(N,)`` names of the states.
    limit
        Maximum number of pairs.
    """
    order = sorted(pairs, key=lambda pair: pair.claimed - pair.lower)[:limit]
    places = np.arange(len(order))
    colours = [EXPOSED_COLOUR if pair.is_violated else ESTIMATE_COLOUR for pair in order]
    ax.barh(places, [pair.lower for pair in order], color=colours, height=0.6, label="lower bound")
    ax.vlines([pair.claimed for pair in order], places - 0.4, places + 0.4, color=TRUE_COLOUR, lw=2.0, label="claimed")
    ax.set_yticks(places, [f"{names[pair.first]} – {names[pair.second]}" for pair in order], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("log likelihood ratio of releases")
    ax.set_title(f"{len(order)} of {len(pairs)} pairs, closest to the claim first", fontsize=10)


def draw_entropy(ax: Axes, audit: SequenceAudit) -> None:
    """Plot the entropy of the prior, filtered and smoothed beliefs at each timestep.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit of a user's releases.
    """
    _draw_metric(ax, audit, "entropy", "entropy (bits)", "Uncertainty of the adversary")


def draw_expected_error(ax: Axes, audit: SequenceAudit) -> None:
    """Plot the adversary's expected error and, with the truth, the true error.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit of a user's releases.
    """
    _draw_metric(ax, audit, "error", "expected error (km)", "Expected error of the adversary")
    if audit.accuracies is not None:
        error = audit.accuracies[2].estimate_error
        label = "true error of the posterior mean, all releases (private)"
        ax.plot(np.arange(1, len(error) + 1), error, ".", color=TRUE_COLOUR, ms=4, label=label)


def draw_belief_map(ax: Axes, points: FloatArray, audit: SequenceAudit, released: FloatArray) -> None:
    """Plot the smoothed belief summed over timesteps, the releases and the most probable path.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(N, 2)`` the states.
    audit
        The audit of a user's releases.
    released
        ``(T, 2)`` the releases. Rows of withheld timesteps are not plotted.
    """
    shown = audit.expected_counts > 1e-3 * audit.expected_counts.max()
    dots = ax.scatter(
        points[shown, 0], points[shown, 1], c=audit.expected_counts[shown], s=18, cmap="YlGnBu", marker="s", zorder=1
    )
    ax.figure.colorbar(dots, ax=ax, label="expected number of timesteps", shrink=0.8)
    ax.plot(
        *released[~audit.is_withheld].T, "o", color=RELEASE_COLOUR, ms=3, alpha=0.5, mew=0, zorder=2, label="released"
    )
    if audit.most_probable_path is not None:
        ax.plot(
            *points[audit.most_probable_path.states].T,
            ".-",  # a path within one state is a dot
            color=TRUE_COLOUR,
            lw=1.0,
            ms=4,
            zorder=3,
            label="most probable path",
        )
    set_limits(ax, points[shown], 0.3 * max(float(np.ptp(points[shown], axis=0).max()), 1e-9))
    _title_map(ax, "Inference from all releases")


def _draw_metric(ax: Axes, audit: SequenceAudit, what: str, label: str, title: str) -> None:
    steps = np.arange(1, len(audit.steps) + 1)
    draw_steps(ax, steps, getattr(audit.prior_metrics, what), _GREY_COLOUR, "without releases", lw=1.4)
    draw_steps(ax, steps, getattr(audit.filtered_metrics, what), RELEASE_COLOUR, "past releases", lw=1.4)
    draw_steps(ax, steps, getattr(audit.smoothed_metrics, what), ESTIMATE_COLOUR, "all releases", lw=1.4)
    ax.set(xlabel="timestep", ylabel=label)
    ax.set_title(title, fontsize=10)
    ax.set_ylim(bottom=0)


def _title_map(ax: Axes, title: str) -> None:
    ax.set_aspect("equal")
    ax.set_title(title, fontsize=10)


def _pad_to_plane(rows: FloatArray) -> FloatArray:
    """Pad rows ``(n, 1)`` or ``(n, 2)`` to points of the plane."""
    return np.pad(rows, ((0, 0), (0, 2 - rows.shape[1])))


def _build_body_outline(audit: BodyAudit) -> FloatArray:
    """Return the corners ``(k, 2)`` of a mechanism's noise body."""
    if not isinstance(audit.body, Disc):
        return audit.body.vertices
    angles = np.linspace(0, 2 * np.pi, 120)
    return audit.body.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def draw_linkage(ax: Axes, audit: IdentityAudit) -> None:
    """Plot the linkage accuracy by number of timesteps, with intervals and chance level.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit.
    """
    shown = [linkage for n in (*LINKAGE_LENGTHS, None) if (linkage := audit.compute_linkage(n)) is not None]
    labels = [*(f"{linkage.num_timesteps:,}" for linkage in shown[:-1]), "all"]
    at = np.arange(len(shown))
    right = np.array([linkage.top_1_accuracy for linkage in shown])
    lower = [linkage.top_1_accuracy - linkage.min_top_1_accuracy for linkage in shown]
    upper = [linkage.max_top_1_accuracy - linkage.top_1_accuracy for linkage in shown]
    ax.errorbar(
        at, right, yerr=np.array([lower, upper]), fmt="o-", color=ESTIMATE_COLOUR, capsize=3, label="correct (99 %)"
    )
    ax.plot(at, [linkage.top_k_accuracy for linkage in shown], "s--", color=ORANGE, label=f"correct in top {audit.k}")
    ax.plot(
        at, [linkage.mean_max_posterior for linkage in shown], "^:", color=RELEASE_COLOUR, label="mean max posterior"
    )
    ax.axhline(1 / len(audit.candidates), color=EDGE_COLOUR, lw=1, label="by chance")
    ax.set_xticks(at, labels)
    ax.set(xlabel="timesteps", ylabel="share of users", ylim=_SHARE_LIMITS)


def draw_calibration(ax: Axes, audit: IdentityAudit) -> None:
    """Plot the accuracy of the most probable candidate by its posterior probability.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit.
    """
    bins = audit.compute_calibration()
    x = [bin_["mean_posterior"] for bin_ in bins]
    y = [bin_["accuracy"] for bin_ in bins]
    ax.plot([0, 1], [0, 1], color=EDGE_COLOUR, lw=1, label="calibrated")
    ax.plot(x, y, "o-", color=ESTIMATE_COLOUR, label="accuracy")
    for bin_ in bins:
        point = (bin_["mean_posterior"], bin_["accuracy"])
        ax.annotate(str(bin_["count"]), point, xytext=(5, -10), textcoords="offset points")
    ax.set(xlabel="posterior of the most probable candidate", ylabel="accuracy", xlim=(0, 1.03), ylim=_SHARE_LIMITS)


def draw_uniqueness(ax: Axes, audit: IdentityAudit) -> None:
    """Plot the uniqueness of users by number of known locations and times.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit, with true locations.
    """
    at = np.arange(len(audit.uniqueness))
    by_places, by_releases, by_times = (
        [getattr(uniqueness, name) for uniqueness in audit.uniqueness]
        for name in ("by_places", "by_releases", "by_times")
    )
    ax.plot(at, by_places, "s--", color=TRUE_COLOUR, label="by true locations")
    ax.plot(at, by_releases, "o-", color=ESTIMATE_COLOUR, label="by releases")
    ax.plot(at, by_times, "^:", color=EDGE_COLOUR, label="by times")
    ax.set_xticks(at, [str(uniqueness.num_known_points) for uniqueness in audit.uniqueness])
    ax.set(xlabel="known locations and times", ylabel="share of unique users", ylim=_SHARE_LIMITS)


def draw_membership(ax: Axes, audit: MembershipAudit) -> None:
    """Plot the ROC curve of membership inference, chance level and the guaranteed bound.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit.
    """
    others, members = audit.compute_roc_curve()
    ax.plot([0, 1], [0, 1], color=EDGE_COLOUR, lw=1, label="by chance")
    if audit.epsilon is not None:
        at = np.linspace(0, 1, 201)
        bound = [audit.max_detection_rate(alpha) for alpha in at]
        ax.plot(at, bound, "--", color=ORANGE, label=f"guaranteed bound, e^{audit.epsilon:g}")
    ax.step(others, members, where="post", color=ESTIMATE_COLOUR, label=f"attack (AUC {audit.area_under_curve:.2f})")
    ax.set(xlabel="false positive rate", ylabel="detection rate", xlim=_SHARE_LIMITS, ylim=_SHARE_LIMITS)


# Maximum number of timesteps that are plotted as single dots.
_MAX_DOTS = 40


# The x axis ends when the probability stays within the first of its final value, unless this cuts off less than a share
# of one minus the second.
_MIN_CHANGE = 0.005


_SETTLED_SHARE = 0.7


@check_arguments
def draw_event_probability(
    ax: Axes,
    audit: EventAudit,
    max_posterior: Probability | None = None,
    min_posterior: Probability | None = None,
    times: Sequence[Any] | None = None,
) -> None:
    """Plot the probability of an event after every timestep, and the largest changes.

    Thousands of timesteps are plotted as bands, see `draw_steps`.

    Parameters
    ----------
    ax
        The axes.
    audit
        The audit.
    max_posterior, min_posterior
        Thresholds above and below which the event counts as learned. None, or 0 for the minimum, plots no line.
    times
        ``(T,)`` times of the timesteps as `datetime64`. Defaults to their numbers.
    """
    steps = audit.times.astype(np.float64)
    x: Any = steps if times is None else np.asarray(times)
    is_short = len(steps) <= _MAX_DOTS
    ends = [audit.event.first - audit.lead_steps - 0.5, audit.event.last - audit.lead_steps + 0.5]
    start, end = np.interp(ends, steps, np.arange(len(steps)))
    left, right = (_interpolate(x, at) for at in (start, end))
    ax.axvspan(left, right, color=ORANGE, alpha=0.15, linewidth=0, label="window of the event")
    ax.axhline(audit.prior_probability, color=GREY, linestyle="--", linewidth=1, label="before any release")
    draw_steps(ax, x, audit.smoothed_occurred, GREEN, "occurred, given all", drawstyle="steps-post", linewidth=1)
    dots: dict[str, Any] = {"marker": "o" if is_short else "", "markersize": 4}
    draw_steps(ax, x, audit.probability, BLUE, "given past releases", drawstyle="steps-post", linewidth=1.5, **dots)
    largest = audit.largest_changes()
    largest = largest[np.abs(audit.release_log_odds[largest]) > 0]
    up = audit.release_log_odds[largest] > 0
    for which, marker, label in ((up, "^", "largest increase"), (~up, "v", "largest decrease")):
        at = largest[which]
        if len(at):
            ax.plot(x[at], audit.probability[at], marker, color=BLUE, mec="white", ms=9, label=label)
    for line in (max_posterior, min_posterior):
        if line:
            ax.axhline(line, color=RED, linewidth=1, label="threshold" if line == max_posterior else None)
    ax.set_ylim(-0.03, 1.03)
    settled = np.flatnonzero(np.abs(audit.probability - audit.probability[-1]) > _MIN_CHANGE)
    rest = max(int(np.ceil(end)), int(settled.max(initial=0)) + 1, 1)
    if rest < _SETTLED_SHARE * len(x):
        margin = (x[rest] - x[0]) / 20
        ax.set_xlim(x[0] - margin, x[rest] + margin)
    canvas.label_curves(ax, "step" if times is None else "time (UTC)", "probability of the event")
    if times is not None:
        canvas.show_dates(ax.xaxis)


def _interpolate(x: Any, at: float) -> Any:
    """Interpolate between two entries at a fractional index."""
    low = int(at)
    high = min(low + 1, len(x) - 1)
    return x[low] + (x[high] - x[low]) * (at - low)
