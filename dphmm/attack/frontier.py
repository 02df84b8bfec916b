"""The frontier: how near a reader comes at once, for how far off adversaries stay in hindsight; what to take from it.

Somebody in hindsight knows all that the reader at once knows, and more, so that no way of blurring puts them farther
off than the reader, but as far as models are wrong. Better is nearer at once with the adversary as far off as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.attack.measures import ChannelResult
from dphmm.release.engine import ReleaseSettings

KNOWING = {"hindsight_m": "an adversary in hindsight", "habits_m": "an adversary who knows their habits"}
"""The adversaries that error at once is held against, the one who knows less first: measures and words."""


def protection(results: Sequence[ChannelResult]) -> str:
    """Whose error counts as protection, of `KNOWING`: the one who knows habits, where anyone's are known."""
    return "habits_m" if any(isfinite(one.figure("habits_m").mean) for one in results) else "hindsight_m"


def frontier_lines(results: Sequence[ChannelResult], measure: str) -> dict[str, FloatArray]:
    """Family, or the name of a channel by itself → errors at once and of an adversary, ``(k, 2)`` m, nearest first."""
    found: dict[str, list[list[float]]] = {}
    for one in results:
        found.setdefault(one.family or one.name, []).append([one.figure(k).mean for k in ("at_once_m", measure)])
    return {name: np.array(sorted(points)) for name, points in found.items()}


def usual(results: Sequence[ChannelResult]) -> ChannelResult | None:
    """The channel that is what ``dphmm release`` does unless told otherwise; None where it was not tried."""
    return next((one for one in results if one.settings == ReleaseSettings.for_a_day()), None)


def advice(
    results: Sequence[ChannelResult], default: ChannelResult | None = None, called: str = "the default"
) -> list[str]:
    """Which of this package's settings to take, what else is nearer and protects as much, and homes that are found.

    Of the settings that protect at least as much as one of them (see `protection`) that one is taken which is nearest
    at once: as the usual one (see `usual`), unless another is given and what it is called. Sentences; none where the
    usual setting was not tried.
    """
    default, measure = default or usual(results), protection(results)
    if default is None:
        return []
    tried = [(one.figure("at_once_m").mean, one.figure(measure).mean, one) for one in results]
    near, far, _ = next(row for row in tried if row[2] is default)
    ours = [row for row in tried if row[2].settings is not None]
    at_once, later, best = min((row for row in ours if row[1] >= far), key=lambda row: (row[0], row[2] is not default))
    if best is default:
        none = f"of the {len(ours)} settings of dphmm that were tried none is nearer at once and protects as much"
        said = (
            f"Keep {called}, {best.name}: a reader is {near:,.0f} m off at once and {KNOWING[measure]} {far:,.0f} "
            f"m; {none if len(ours) > 1 else 'no other setting of dphmm was tried'}."
        )
    else:
        said = (
            f"Take {best.name}: a reader is {at_once:,.0f} m off at once instead of {near:,.0f} m with {called}, "
            f"{default.name}, and {KNOWING[measure]} {later:,.0f} m instead of {far:,.0f} m."
        )
    better = [
        f"{one.name} ({first:,.0f} and {last:,.0f} m)"
        for first, last, one in tried
        if one.settings is None and first <= at_once and last >= later
    ]
    if better:
        said += f" Nearer at once and no less protected from this adversary, without a promise: {', '.join(better)}."
    homes, people = default.homes
    if not people:
        return [said]
    fewer = [f"{one.name} ({one.homes[0]})" for first, _, one in tried if first <= near and one.homes[0] < homes]
    others = f"fewer with {', '.join(fewer)}" if fewer else "no channel gives away fewer"
    return [said, f"With {called} {homes} of {people} homes are found; of what is as near at once, {others}."]
