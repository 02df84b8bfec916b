"""Pictures of audits: graphs with exposed states, hulls, levels of secrets, empirical bounds, beliefs over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.blowfish import SecretsAudit
from dphmm.audit.empirical import PairAudit
from dphmm.audit.policy_audit import BodyAudit, ConstraintAudit, EntryAudit
from dphmm.audit.sequence import SequenceAudit
from dphmm.geometry.hull import Disc
from dphmm.jobs.identity import LENGTHS, IdentityAudit, MembershipAudit
from dphmm.plots.curves import draw_steps
from dphmm.plots.figures import EDGE, ESTIMATE, EXPOSED, HULL, ORANGE, RELEASED, TRUE, Axes, label_map, show_around
from dphmm.plots.maps import MOST_CELLS, MOST_EDGES, draw_body, draw_cells, draw_edges
from dphmm.policy.graph import PolicyLike, as_policy
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

_FAINT = "#bbbbbb"
_OPEN = "#dfe6ea"
_LEGEND = 5
"""The largest components, this many, have a line in the legend."""
_HIDDEN = "#b7d3e6"
_AROUND = 0.35
"""How far a map reaches beyond the states, in their span; a noise body may be wider."""
_SHARES = (-0.03, 1.03)
_NAMED = 40
"""States are named in a picture of at most this many."""


def draw_exposure(
    ax: Axes,
    points: FloatArray,
    graph: PolicyLike,
    audit: ConstraintAudit,
    body: BodyAudit,
    names: Sequence[str],
    space: StateSpace | None = None,
) -> None:
    """The constrained graph, the exposed states with the noise body about one of them, and the repair's edges.

    Parameters
    ----------
    points
        ``(N, 2)`` measurements.
    graph
        The policy.
    audit, body
        What was found, and under which mechanism.
    names
        What states are called; shown where few are possible.
    space
        Where the states are on a map: cells of a grid are drawn as cells, and the axes are named.
    """
    possible = np.flatnonzero(audit.constraint)
    grid = space if isinstance(space, Grid) and space.size <= MOST_CELLS else None
    if grid is None:
        ax.plot(*points[~audit.constraint].T, ".", color=_FAINT, ms=3, zorder=0, label="impossible states")
    if len(possible) <= MOST_EDGES:
        draw_edges(
            ax,
            points,
            as_policy(graph, len(points), names, "graph").restrict(audit.constraint).edge_array(),
            EDGE,
            1.0,
            "policy edges",
        )
    for repair in audit.repairs:
        if repair.mechanism == body.mechanism and repair.method == "exact":
            added = np.array(repair.protection.added)
            draw_edges(ax, points, added, ORANGE, 2.0, "added by the exact repair")
    exposed = np.array(body.exposed, dtype=np.int64)
    if grid is not None:
        _draw_cells(ax, grid, np.flatnonzero(~audit.constraint), _OPEN, "impossible states")
        _draw_cells(ax, grid, np.setdiff1d(possible, exposed), _HIDDEN, "possible states, not exposed")
        _draw_cells(ax, grid, exposed, EXPOSED, "exposed states")
        label_map(ax)
    else:
        ax.plot(*points[possible].T, "o", color=ESTIMATE, ms=4, zorder=3, label="possible states")
        if len(exposed):
            ax.plot(*points[exposed].T, "X", color=EXPOSED, ms=9, zorder=4, label="exposed states")
    centre = body.exposed[0] if body.exposed else int(possible[0])
    about = f"noise body about {'an exposed' if body.exposed else 'a'} state"
    draw_body(ax, _outline(body), HULL, about, points[centre])
    if len(possible) <= _NAMED:
        for state in possible.tolist():
            ax.annotate(names[state], points[state], xytext=(4, 4), textcoords="offset points", fontsize=9, zorder=5)
    span = max(float(np.ptp(points, axis=0).max()), 1e-9)
    show_around(ax, points, _AROUND * span)
    _title_map(ax, f"{body.mechanism}: {len(body.exposed)} of {len(possible)} possible states exposed")


def _draw_cells(ax: Axes, grid: Grid, states: IntArray, colour: str, label: str) -> None:
    if len(states):
        style = {"edgecolors": "white", "linewidths": 0.3, "alpha": 0.75, "zorder": 0.5}
        draw_cells(ax, grid, states, facecolors=colour, label=label, **style)


def draw_components(ax: Axes, points: FloatArray, audit: ConstraintAudit) -> None:
    """The possible states by what is hidden together: components in colours, open states faint, exposed ones crossed.

    Parameters
    ----------
    points
        ``(N, 2)`` measurements.
    audit
        What was found, under the first of its mechanisms.
    """
    import matplotlib as mpl

    assert audit.labels is not None, "an audit knows its components"
    size = _marker(int(audit.constraint.sum()))
    ax.plot(*points[~audit.constraint].T, ".", color=_FAINT, ms=size / 3, zorder=0)
    open_, exposed = (np.array(some, dtype=np.int64) for some in (audit.open, audit.bodies[0].exposed))
    if len(open_):
        ax.plot(*points[open_].T, "s", color=_OPEN, ms=size, mew=0, zorder=1, label=f"open, {len(open_):,}")
    sizes = np.bincount(audit.labels[audit.labels >= 0])
    palette = mpl.colormaps["tab10"]
    for rank, component in enumerate(np.argsort(-sizes, kind="stable").tolist()):
        if sizes[component] < 2:
            break
        states = np.flatnonzero(audit.labels == component)
        said = f"hidden together, {len(states):,}" if rank < _LEGEND else None
        ax.plot(*points[states].T, "s", color=palette(rank % 10), ms=size, mew=0, zorder=2, label=said)
    if len(exposed):
        said = f"exposed: alone and not open, {len(exposed):,}"
        ax.plot(*points[exposed].T, "X", color=EXPOSED, ms=max(size, 5), zorder=4, label=said)
    together = int((sizes > 1).sum())
    _title_map(ax, f"hidden together: {together:,}, {len(open_):,} open, {len(exposed):,} exposed")


def draw_entries(ax: Axes, points: FloatArray, audit: EntryAudit) -> None:
    """The open places from which zones are entered, by what the first release from the zone then tells.

    Parameters
    ----------
    points
        ``(N, 2)`` measurements.
    audit
        What was found.
    """
    size = _marker(len(points))
    ax.plot(*points[audit.open].T, "s", color=_OPEN, ms=size, mew=0, zorder=0, label="open")
    ax.plot(*points[~audit.open].T, "s", color=HULL, ms=size, mew=0, alpha=0.45, zorder=1, label="hidden")
    places = np.array([entry.place for entry in audit.entries], dtype=np.int64)
    level = np.array([entry.after for entry in audit.entries])
    order = np.argsort(level, kind="stable")
    look: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "inferno_r", "marker": "s", "s": max(12.0, size**2)}
    edge: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.4, "zorder": 3}
    x, y = points[places[order]].T
    drawn = ax.scatter(x, y, c=level[order], label="ways in", **look, **edge)
    ax.figure.colorbar(drawn, ax=ax, shrink=0.7, label="true place, nine in ten at most")
    around = points[np.concatenate([places, np.flatnonzero(~audit.open)])]
    show_around(ax, around, 0.15 * float(np.ptp(around, axis=0).max()) + 1e-9)
    _title_map(ax, "Entering zones: what the last open release gives away")


def _marker(count: int) -> float:
    """How large the squares of `count` places are drawn, so that neighbours nearly touch."""
    return float(np.clip(260.0 / np.sqrt(max(count, 1)), 1.2, 12.0))


def draw_hulls(ax: Axes, audit: ConstraintAudit) -> None:
    """The noise bodies of all audited mechanisms about the origin.

    Parameters
    ----------
    ax
        Where to draw.
    audit
        What was found under a constraint.
    """
    for body, colour in reversed(list(zip(audit.bodies, (HULL, ESTIMATE, RELEASED), strict=False))):
        draw_body(ax, _outline(body), colour, f"{body.mechanism}, area {body.body.volume:.4g}")
    ax.plot([0], [0], "+", color=TRUE, ms=6)
    _title_map(ax, "Noise bodies before the repair")


def draw_secrets(ax: Axes, audit: SecretsAudit) -> None:
    """What each secret contributes, with the noise bodies: a secret outside a body is exposed under that mechanism.

    For one or two answers.

    Parameters
    ----------
    ax
        Where to draw.
    audit
        What was found; the contributions have one or two columns.
    """
    points = np.asarray(audit.policy.contributions).astype(np.float64)
    for level, colour in reversed(list(zip(audit.levels, (HULL, ESTIMATE), strict=False))):
        corners = audit.hull.vertices
        if level.sensitivity is not None:
            corners = level.sensitivity * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])[:, : points.shape[1]]
        draw_body(ax, _in_plane(corners), colour, level.mechanism)
    places, where = np.unique(_in_plane(points), axis=0, return_inverse=True)
    ax.plot(*places.T, "o", color=TRUE, ms=5, zorder=3)
    for number, place in enumerate(places):
        text = ", ".join(np.array(audit.policy.names)[np.flatnonzero(where.ravel() == number)][:6].tolist())
        ax.annotate(text, place, xytext=(5, 5), textcoords="offset points", fontsize=9, zorder=4)
    _title_map(ax, "Contributions of the secrets, and the noise bodies")


def draw_levels(ax: Axes, audit: SecretsAudit, limit: int = 60) -> None:
    """The unbounded-DP level of each secret, in multiples of epsilon; at most `limit` secrets, the worst first.

    Parameters
    ----------
    ax
        Where to draw.
    audit
        What was found.
    limit
        How many secrets at most.
    """
    worst = np.argsort(-np.max([level.factors for level in audit.levels], axis=0), kind="stable")[:limit]
    shown = np.sort(worst)
    width = 0.8 / len(audit.levels)
    tallest = max((f for level in audit.levels for f in level.factors[shown] if np.isfinite(f)), default=1.0)
    top = max(1.2, 1.2 * tallest)
    for k, (level, colour) in enumerate(zip(audit.levels, (HULL, ESTIMATE), strict=False)):
        heights = np.where(np.isfinite(level.factors[shown]), level.factors[shown], top)
        ax.bar(np.arange(len(shown)) + k * width, heights, width, color=colour, label=level.mechanism)
        for place in np.flatnonzero(~np.isfinite(level.factors[shown])):
            ax.text(place + k * width, top, "∞", ha="center", va="top", color="white")
    ax.axhline(1.0, color=EXPOSED, lw=1.0, ls="--", label="promised")
    ax.set_xticks(np.arange(len(shown)) + 0.4 - width / 2, [audit.policy.names[i] for i in shown], fontsize=8)
    ax.tick_params(axis="x", rotation=0 if len(shown) <= 12 else 90)
    ax.set_ylim(0, top)
    ax.set_ylabel("presence is hidden to within (× epsilon)")
    ax.set_title("Level of each secret", fontsize=10)


def draw_bounds(ax: Axes, pairs: Sequence[PairAudit], names: Sequence[str], limit: int = 40) -> None:
    """Lower confidence bounds of pairs against what is claimed for them; the nearest to it first.

    Parameters
    ----------
    ax
        Where to draw.
    pairs
        The pairs that were tried.
    names
        ``(N,)`` what states are called.
    limit
        How many pairs at most.
    """
    order = sorted(pairs, key=lambda pair: pair.claimed - pair.lower)[:limit]
    places = np.arange(len(order))
    colours = [EXPOSED if pair.violated else ESTIMATE for pair in order]
    ax.barh(places, [pair.lower for pair in order], color=colours, height=0.6, label="shown at least")
    ax.vlines([pair.claimed for pair in order], places - 0.4, places + 0.4, color=TRUE, lw=2.0, label="claimed")
    ax.set_yticks(places, [f"{names[pair.first]} – {names[pair.second]}" for pair in order], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("log ratio of the releases' distributions")
    ax.set_title(f"{len(order)} of {len(pairs)} pairs, nearest to the claim first", fontsize=10)


def draw_entropy(ax: Axes, audit: SequenceAudit) -> None:
    """The entropy of the adversary's belief at each release: without releases, at the time, in hindsight.

    Parameters
    ----------
    ax
        Where to draw.
    audit
        What was found of a person's releases.
    """
    _over_time(ax, audit, "entropy", "entropy (bits)", "How uncertain the adversary is of the state")


def draw_spread(ax: Axes, audit: SequenceAudit) -> None:
    """The error that the adversary expects of the best guess; with the truth, the error that it has.

    Parameters
    ----------
    ax
        Where to draw.
    audit
        What was found of a person's releases.
    """
    _over_time(ax, audit, "spread", "expected error (km)", "How far off the adversary expects to be")
    if audit.accuracies is not None:
        error = audit.accuracies[2].estimate_error
        ax.plot(np.arange(1, len(error) + 1), error, ".", color=TRUE, ms=4, label="true error in hindsight (private)")


def draw_belief_map(ax: Axes, points: FloatArray, audit: SequenceAudit, released: FloatArray) -> None:
    """Where the person is believed to have been, summed over all releases in hindsight, with releases and best path.

    Parameters
    ----------
    ax
        Where to draw.
    points
        ``(N, 2)`` the states.
    audit
        What was found of a person's releases.
    released
        ``(T, 2)`` the releases.
    """
    shown = audit.expected > 1e-3 * audit.expected.max()
    dots = ax.scatter(
        points[shown, 0], points[shown, 1], c=audit.expected[shown], s=18, cmap="YlGnBu", marker="s", zorder=1
    )
    ax.figure.colorbar(dots, ax=ax, label="expected releases from here", shrink=0.8)
    ax.plot(*released.T, "o", color=RELEASED, ms=3, alpha=0.5, mew=0, zorder=2, label="released")
    if audit.path is not None:
        ax.plot(*points[audit.path.states].T, "-", color=TRUE, lw=1.0, zorder=3, label="most probable path")
    show_around(ax, points[shown], 0.3 * max(float(np.ptp(points[shown], axis=0).max()), 1e-9))
    _title_map(ax, "What all releases together say")


def _over_time(ax: Axes, audit: SequenceAudit, what: str, label: str, title: str) -> None:
    steps = np.arange(1, len(audit.steps) + 1)
    draw_steps(ax, steps, getattr(audit.uninformed, what), _FAINT, "without releases", lw=1.4)
    draw_steps(ax, steps, getattr(audit.online, what), RELEASED, "at each release", lw=1.4)
    draw_steps(ax, steps, getattr(audit.hindsight, what), ESTIMATE, "in hindsight", lw=1.4)
    ax.set(xlabel="release", ylabel=label)
    ax.set_title(title, fontsize=10)
    ax.set_ylim(bottom=0)


def _title_map(ax: Axes, title: str) -> None:
    ax.set_aspect("equal")
    ax.set_title(title, fontsize=10)


def _in_plane(rows: FloatArray) -> FloatArray:
    """Rows ``(n, 1)`` or ``(n, 2)`` as points of the plane."""
    return np.pad(rows, ((0, 0), (0, 2 - rows.shape[1])))


def _outline(audit: BodyAudit) -> FloatArray:
    """The corners ``(k, 2)`` of a mechanism's noise body."""
    if not isinstance(audit.body, Disc):
        return audit.body.vertices
    angles = np.linspace(0, 2 * np.pi, 120)
    return audit.body.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def draw_linked(ax: Axes, found: IdentityAudit) -> None:
    """The share of people who are linked right after more and more moments, with intervals, beside chance.

    Parameters
    ----------
    found
        What was found of people and candidates.
    """
    shown = [one for n in (*LENGTHS, None) if (one := found.found(n)) is not None]
    labels = [*(f"{one.moments:,}" for one in shown[:-1]), "all"]
    at, right = np.arange(len(shown)), np.array([one.first for one in shown])
    ends = np.array([[one.first - one.first_least, one.first_most - one.first] for one in shown]).T
    ax.errorbar(at, right, yerr=ends, fmt="o-", color=ESTIMATE, capsize=3, label="linked right (99 %)")
    ax.plot(at, [one.within for one in shown], "s--", color=ORANGE, label=f"among the {found.k} likeliest")
    ax.plot(at, [one.stated for one in shown], "^:", color=RELEASED, label="stated of the likeliest")
    ax.axhline(1 / len(found.candidates), color=EDGE, lw=1, label="by chance")
    ax.set_xticks(at, labels)
    ax.set(xlabel="released moments", ylabel="share of people", ylim=_SHARES)


def draw_calibration(ax: Axes, found: IdentityAudit) -> None:
    """How often the likeliest candidate is right, by how probable it is stated to be.

    Parameters
    ----------
    found
        What was found of people and candidates.
    """
    bins = found.calibration()
    ax.plot([0, 1], [0, 1], color=EDGE, lw=1, label="as stated")
    ax.plot([one["stated"] for one in bins], [one["right"] for one in bins], "o-", color=ESTIMATE, label="right")
    for one in bins:
        ax.annotate(str(one["count"]), (one["stated"], one["right"]), xytext=(5, -10), textcoords="offset points")
    ax.set(xlabel="stated probability of the likeliest", ylabel="share that is right", xlim=(0, 1.03), ylim=_SHARES)


def draw_unique(ax: Axes, found: IdentityAudit) -> None:
    """The share of people who are told from all others, by how many of their true places and times are known.

    Parameters
    ----------
    found
        What was found of people and candidates, with true places.
    """
    at = np.arange(len(found.unique))
    ax.plot(at, [one.by_places for one in found.unique], "s--", color=TRUE, label="by true places")
    ax.plot(at, [one.by_releases for one in found.unique], "o-", color=ESTIMATE, label="by releases")
    ax.plot(at, [one.by_times for one in found.unique], "^:", color=EDGE, label="by times alone")
    ax.set_xticks(at, [str(one.k) for one in found.unique])
    ax.set(xlabel="known places and times", ylabel="share told from all others", ylim=_SHARES)


def draw_membership(ax: Axes, found: MembershipAudit) -> None:
    """The share of members above each threshold over that of others, beside chance and what the promise allows.

    Parameters
    ----------
    found
        What was found of members and others.
    """
    others, members = found.curve()
    ax.plot([0, 1], [0, 1], color=EDGE, lw=1, label="by chance")
    if found.epsilon is not None:
        at = np.linspace(0, 1, 201)
        ax.plot(at, [found.bound(one) for one in at], "--", color=ORANGE, label=f"at most, by e^{found.epsilon:g}")
    ax.step(others, members, where="post", color=ESTIMATE, label=f"found (area {found.area:.2f})")
    ax.set(xlabel="share of others taken for members", ylabel="share of members found", xlim=_SHARES, ylim=_SHARES)
