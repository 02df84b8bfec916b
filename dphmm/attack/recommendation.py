"""Recommendations derived from attacks on several channels.

The frontier plots the adversary's filtered error, which any recipient can attain immediately, against its smoothed
error. The smoother uses all information of the filter and more. No channel can therefore make the smoothed error larger
than the filtered one, except for errors of the model. A better channel has a smaller filtered error at the same
smoothed error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.attack.outcomes import ChannelResult
from dphmm.calibrate.simulation import MeanEstimate
from dphmm.release.engine import ReleaseSettings

# Measures of protection → noun phrase of their adversary, the weaker adversary first.
ADVERSARY_PHRASES = {
    "smoothed_error_m": "an adversary",
    "informed_error_m": "an informed adversary who knows the user's habits",
}


def select_protection_measure(results: Sequence[ChannelResult]) -> str:
    """Return the key of `ADVERSARY_PHRASES` that measures protection.

    It is the error of the informed adversary if there is one.
    """
    has_habits = any(isfinite(result.estimate_mean("informed_error_m").mean) for result in results)
    return "informed_error_m" if has_habits else "smoothed_error_m"


def build_frontier_lines(results: Sequence[ChannelResult], measure: str) -> dict[str, FloatArray]:
    """Return the filtered error and a measure, ``(k, 2)`` metres, for each family of channels.

    Channels without a family have their own entry. Rows are in increasing order. The name of a family contains the
    values of its first and its last row.
    """
    members: dict[str, list[tuple[list[float], str]]] = {}
    for result in results:
        errors = [result.estimate_mean(k).mean for k in ("filtered_error_m", measure)]
        members.setdefault(result.family or result.name, []).append((errors, result.name))
    lines = {}
    for family, rows in members.items():
        rows.sort()
        lines[_name_family(family, [name for _, name in rows])] = np.array([errors for errors, _ in rows])
    return lines


def _name_family(family: str, names: Sequence[str]) -> str:
    """Return the name of a family with the values of its first and its last channel."""
    before, gap, after = family.partition("…")
    if not gap:
        return family
    first, last = (name.removeprefix(before).removesuffix(after) for name in (names[0], names[-1]))
    return names[0] if len(names) == 1 else f"{before}{first} … {last}{after}"


def find_default_result(results: Sequence[ChannelResult]) -> ChannelResult | None:
    """Return the result of the default settings of ``dphmm release``, or None."""
    return next((result for result in results if result.settings == ReleaseSettings.for_a_day()), None)


def recommend_channel(
    results: Sequence[ChannelResult], default: ChannelResult | None = None, called: str = "the default"
) -> list[str]:
    """Recommend settings of this package and list other channels that are at least as good.

    Among the settings with at least the protection of the reference (see `select_protection_measure`), the one with the
    smallest filtered error is recommended. The reference is `default`, named `called`, or the default settings of
    ``dphmm release``. It is kept unless another one is better by more than the 99 % interval of the users' differences.
    Further sentences compare the homes that are found. The result is empty without a reference.
    """
    default = default or find_default_result(results)
    measure = select_protection_measure(results)
    if default is None:
        return []
    rows = [
        (result.estimate_mean("filtered_error_m").mean, result.estimate_mean(measure).mean, result)
        for result in results
    ]
    filtered, protection, _ = next(row for row in rows if row[2] is default)
    ours = [row for row in rows if row[2].settings is not None]
    best_filtered, best_protection, best = min(
        (row for row in ours if row[1] >= protection), key=lambda row: (row[0], row[2] is not default)
    )
    # paired differences: both results are for the same users
    pairs = zip(default.outcomes, best.outcomes, strict=True)
    gain = MeanEstimate.from_values(
        np.array([outcome.filtered_error_m - other.filtered_error_m for outcome, other in pairs])
    )
    count = f"{len(best.outcomes)} users" if len(best.outcomes) > 1 else "one user"
    if gain.lower_bound > 0.0:
        sentence = (
            f"Use {best.name}. Compared with {called}, {default.name}, it reduces the error of recipients from "
            f"{filtered:,.0f} m to {best_filtered:,.0f} m (by {gain.mean:,.0f} ± {gain.margin:,.0f} m, {count}). The "
            f"error of {ADVERSARY_PHRASES[measure]}, given all releases, is {best_protection:,.0f} m instead of "
            f"{protection:,.0f} m."
        )
    else:
        others = f"None of the {len(ours)} tested settings of dphmm has a smaller error and protects as much."
        if len(ours) == 1:
            others = "No other setting of dphmm was tested."
        elif best is not default:
            others = f"The error with {best.name} was {gain.mean:,.0f} m smaller, which is not significant ({count})."
        best_filtered = filtered
        best_protection = protection
        sentence = (
            f"Keep {called}, {default.name}. The error of recipients is {filtered:,.0f} m. The error of "
            f"{ADVERSARY_PHRASES[measure]}, given all releases, is {protection:,.0f} m. {others}"
        )
    better = [
        f"{result.name} ({first:,.0f} and {last:,.0f} m)"
        for first, last, result in rows
        if result.settings is None and first <= best_filtered and last >= best_protection
    ]
    if better:
        sentence += (
            " Other channels have a smaller or equal error and protect as much from this adversary, without a "
            f"guarantee: {', '.join(better)}."
        )
    num_found, num_homes = default.homes
    if not num_homes:
        return [sentence]
    fewer = [
        f"{result.name} ({result.homes[0]})"
        for first, _, result in rows
        if first <= filtered and result.homes[0] < num_found
    ]
    others = (
        f"Channels with a smaller or equal error of recipients reveal fewer: {', '.join(fewer)}."
        if fewer
        else "No channel with a smaller or equal error of recipients reveals fewer."
    )
    return [sentence, f"With {called}, {num_found} of {num_homes} homes are found. {others}"]
