"""What the DPHMM paper's evaluation says in words (Section 8), against what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.metrics import Interval, difference, over_time, total
from dphmm.evaluation.steps import StepTable

SETTLED = 0.15
"""A runtime counts as settled when the last two quarters of the steps differ by less than this share.

One that grows in proportion to time differs by 0.29.
"""

SAME = 0.05
"""Means count as the same when the largest and the smallest differ by at most this share of the largest."""

WITHIN_NOISE = "; within noise"

LITTLE = 1.25
"""An error counts as little higher when it is at most this many times the other."""


_FASTER = "A step of DPLS takes less time than one under {}."

_SHOWN = {"runtime_s": (1e3, " ms", 2), "protection": (1.0, " states", 1), "rms_error_km": (1.0, " km", 2)}
"""Metric → its factor, unit and digits in a text."""


@dataclass(frozen=True)
class Claim:
    """A claim with what was measured.

    Parameters
    ----------
    where
        The figure of the paper.
    words
        The claim, in this package's words.
    parts
        What was measured: of what, and the figure with its unit.
    verdict
        ``"holds"`` or ``"does not"``, by the means, and what a time step was: more can be possible after a long one.
        With `WITHIN_NOISE` after it where the 95 % bootstrap interval of the difference of two settings holds zero.
    """

    where: str
    words: str
    parts: tuple[tuple[str, str], ...]
    verdict: str


def check_claims(table: StepTable, config: EvaluationConfig, clock: str) -> tuple[Claim, ...]:
    """Every claim that the settings of an evaluation allow to look at; `clock` says what a time step is."""
    found: list[Claim] = []
    if {"utility", "transition", "complete"} <= set(config.policies):
        util, trans, dpls = (config.base(policy) for policy in ("utility", "transition", "complete"))
        found += [_less(table, dpls, one, "runtime_s", _FASTER.format(one.policy)) for one in (util, trans)]
        found += [_settles(table, setting) for setting in (util, trans)]
        found += [
            _less(table, dpls, trans, "protection", "Transition hides the true state among more states than DPLS."),
            _less(table, util, trans, "protection", "Transition hides it among more states than utility."),
            _less(table, util, dpls, "rms_error_km", "The error under utility is below that of DPLS."),
            _less(table, util, trans, "rms_error_km", "The error under utility is below that under transition."),
            _less(table, dpls, util, "protection", "Utility hides the true state among more states than DPLS."),
            _little(table, trans, dpls),
        ]
    if len(config.epsilons) > 1:
        found += _epsilon_claims(table, config)
    if len(config.radii_km) > 1 and "utility" in config.policies:
        found += _radius_claims(table, config)
    return tuple(replace(claim, verdict=_at(claim.verdict, clock)) for claim in found)


def _less(table: StepTable, low: Setting, high: Setting, metric: str, words: str) -> Claim:
    apart = difference(table, high, low, metric)
    parts = tuple((_name(one), _shown(total(table, one, metric), metric)) for one in (low, high))
    verdict = _verdict(apart.mean > 0) + (WITHIN_NOISE if apart.low <= 0 <= apart.high else "")
    return Claim("10" if metric == "runtime_s" else "11", words, parts, verdict)


def _verdict(holds: bool | np.bool_) -> str:
    return "holds" if holds else "does not"


def _at(verdict: str, clock: str) -> str:
    """A verdict with what a time step was."""
    words, noise, _ = verdict.partition(WITHIN_NOISE)
    return f"{words} ({clock}{noise})"


def _settles(table: StepTable, setting: Setting) -> Claim:
    times = over_time(table, setting, "runtime_s")[0] * 1e3
    quarter = max(len(times) // 4, 1)
    first, before, last = times[:quarter].mean(), times[-2 * quarter : -quarter].mean(), times[-quarter:].mean()
    quarters = {"first quarter of the steps": first, "third quarter": before, "last quarter": last}
    parts = tuple((name, f"{time:.2f} ms") for name, time in quarters.items())
    words = f"The runtime under {setting.policy} settles at a stable level."
    return Claim("10", words, parts, _verdict(abs(last - before) < SETTLED * max(last, before)))


def _little(table: StepTable, trans: Setting, dpls: Setting) -> Claim:
    ratio = total(table, trans, "rms_error_km").mean / total(table, dpls, "rms_error_km").mean
    words = f"Transition costs little in error against DPLS (at most {LITTLE} times)."
    return Claim("12", words, (("ratio of the errors", f"{ratio:.2f}"),), _verdict(ratio <= LITTLE))


def _epsilon_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    claims = []
    for policy in config.policies:
        sweep = sweep_of(config, policy, "epsilon")
        under = f"Under {_name(sweep[0])}"
        means, parts = _means(table, sweep, "protection", "epsilon")
        same = _verdict(np.ptp(means) <= SAME * means.max())
        claims.append(Claim("12", f"{under}, DoP does not depend on epsilon.", parts, same))
        means, parts = _means(table, sweep, "rms_error_km", "epsilon")
        falls = _verdict((np.diff(means) < 0).all())
        claims.append(Claim("12", f"{under}, the error falls as epsilon grows.", parts, falls))
    return claims


def _radius_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    sweep = sweep_of(config, "utility", "radius_km")
    claims = []
    for metric, name in (("protection", "DoP"), ("rms_error_km", "error")):
        means, parts = _means(table, sweep, metric, "radius_km")
        # Equal hulls give equal means: edges that a repair added may be longer than either radius.
        grows = _verdict((np.diff(means) >= 0).all() and means[-1] > means[0])
        claims.append(Claim("13", f"Under utility, {name} never falls as r grows, and ends higher.", parts, grows))
    if "complete" in config.policies:
        dpls = total(table, config.base("complete"), "rms_error_km")
        below = means < dpls.mean  # of the errors, which came last
        parts = (("values of r where it is", f"{below.sum()} of {len(below)}"), ("DPLS", _shown(dpls, "rms_error_km")))
        words = "The error under utility is below that of DPLS for most values of r."
        claims.append(Claim("13", words, parts, _verdict(2 * below.sum() > len(below))))
    return claims


def _means(
    table: StepTable, sweep: list[Setting], metric: str, free: str
) -> tuple[FloatArray, tuple[tuple[str, str], ...]]:
    """The means of a metric along a sweep, and what a report says of them."""
    found = [total(table, setting, metric) for setting in sweep]
    symbol = "r" if free == "radius_km" else free
    stated = tuple(
        (f"{symbol} = {getattr(one, free):g}", _shown(mean, metric)) for one, mean in zip(sweep, found, strict=True)
    )
    return np.array([mean.mean for mean in found]), stated


def sweep_of(config: EvaluationConfig, policy: str, free: str) -> list[Setting]:
    """The settings of a policy that differ from its base in one parameter at most, in its order where it has one."""
    own = [setting for setting in config.settings() if setting.policy == policy]
    found = [one for one in own if replace(one, **{free: getattr(own[0], free)}) == own[0]]
    return sorted(found, key=lambda one: float(getattr(one, free))) if free in ("epsilon", "radius_km") else found


def _name(setting: Setting) -> str:
    return "DPLS" if setting.policy == "complete" else setting.policy


def _shown(value: Interval, metric: str) -> str:
    factor, unit, digits = _SHOWN[metric]
    return f"{factor * value.mean:.{digits}f}{unit}"
