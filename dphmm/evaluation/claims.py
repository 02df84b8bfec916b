"""What the DPHMM paper's evaluation says in words (Section 8), against what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.metrics import Interval, difference, over_time, total
from dphmm.evaluation.steps import StepTable

SETTLED = 0.15
"""A runtime counts as settled when the last two quarters of the steps differ by less than this share.

One that grows in proportion to time differs by 0.29.
"""

SAME = 0.05
"""Means count as the same when the largest and the smallest differ by at most this share of the largest."""

WITHIN_NOISE = "(within noise)"

LITTLE = 1.25
"""An error counts as little higher when it is at most this many times the other."""


@dataclass(frozen=True)
class Claim:
    """A claim with what was measured.

    Parameters
    ----------
    where
        The figure of the paper.
    words
        The claim, in this package's words.
    measured
        The figures, with their intervals.
    verdict
        ``"holds"`` or ``"does not"``, by the means; with `WITHIN_NOISE` after it where the 95 % bootstrap interval of
        the difference of two settings holds zero.
    """

    where: str
    words: str
    measured: str
    verdict: str


def check_claims(table: StepTable, config: EvaluationConfig) -> tuple[Claim, ...]:
    """Every claim that the settings of an evaluation allow to look at."""
    found: list[Claim] = []
    if {"utility", "transition", "complete"} <= set(config.policies):
        util, trans, dpls = (config.base(policy) for policy in ("utility", "transition", "complete"))
        for graph, setting in (("utility", util), ("transition", trans)):
            found.append(
                _less(
                    table, dpls, setting, "runtime_s", "10", f"A step of DPLS takes less time than one under {graph}."
                )
            )
        found += [_settles(table, setting) for setting in (util, trans)]
        found += [
            _less(
                table, dpls, trans, "protection", "11", "Transition hides the true state among more states than DPLS."
            ),
            _less(table, util, trans, "protection", "11", "Transition hides it among more states than utility."),
            _less(table, util, dpls, "error_km", "11", "The error under utility is below that of DPLS."),
            _less(table, util, trans, "error_km", "11", "The error under utility is below that under transition."),
            _less(table, dpls, util, "protection", "11", "Utility hides the true state among more states than DPLS."),
            _little(table, trans, dpls),
        ]
    if len(config.epsilons) > 1:
        found += _epsilon_claims(table, config)
    if len(config.radii_km) > 1 and "utility" in config.policies:
        found += _radius_claims(table, config)
    return tuple(found)


def _less(table: StepTable, low: Setting, high: Setting, metric: str, where: str, words: str) -> Claim:
    first, second = total(table, low, metric), total(table, high, metric)
    apart = difference(table, high, low, metric)
    measured = f"{_name(low)} {_shown(first, metric)}; {_name(high)} {_shown(second, metric)}"
    return Claim(where, words, measured, _verdict(apart))


def _verdict(apart: Interval) -> str:
    verdict = "holds" if apart.mean > 0 else "does not"
    return f"{verdict} {WITHIN_NOISE}" if apart.low <= 0 <= apart.high else verdict


def _settles(table: StepTable, setting: Setting) -> Claim:
    times = over_time(table, setting, "runtime_s")[0] * 1e3
    quarter = max(len(times) // 4, 1)
    first, before, last = times[:quarter].mean(), times[-2 * quarter : -quarter].mean(), times[-quarter:].mean()
    measured = f"first quarter of the steps {first:.2f} ms, third {before:.2f} ms, last {last:.2f} ms"
    words = f"The runtime under {setting.policy} settles at a stable level."
    return Claim("10", words, measured, "holds" if abs(last - before) < SETTLED * max(last, before) else "does not")


def _little(table: StepTable, trans: Setting, dpls: Setting) -> Claim:
    first, second = total(table, trans, "error_km"), total(table, dpls, "error_km")
    ratio = first.mean / second.mean
    words = f"Transition costs little in error against DPLS (at most {LITTLE} times)."
    return Claim("12", words, f"{ratio:.2f} times", "holds" if ratio <= LITTLE else "does not")


def _epsilon_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    claims = []
    for policy in config.policies:
        sweep = sweep_of(config, policy, "epsilon")
        name = _name(sweep[0])
        claims.append(_same(table, sweep, "protection", f"Under {name}, DoP does not depend on epsilon."))
        words = f"Under {name}, the error falls as epsilon grows."
        claims.append(_monotone(table, sweep, "error_km", -1, "12", "epsilon", words))
    return claims


def _radius_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    sweep = sweep_of(config, "utility", "radius_km")
    claims = [
        _monotone(table, sweep, "protection", 1, "13", "r", "Under utility, DoP grows with r."),
        _monotone(table, sweep, "error_km", 1, "13", "r", "Under utility, error grows with r."),
    ]
    if "complete" in config.policies:
        dpls = total(table, config.base("complete"), "error_km")
        below = [total(table, s, "error_km").mean < dpls.mean for s in sweep]
        measured = f"below at {sum(below)} of {len(below)} values of r; DPLS {_shown(dpls, 'error_km')}"
        words = "The error under utility is below that of DPLS for most values of r."
        claims.append(Claim("13", words, measured, "holds" if 2 * sum(below) > len(below) else "does not"))
    return claims


def _along(config: EvaluationConfig, setting: Setting, policy: str, free: str) -> bool:
    """Whether a setting differs from the policy's base in one thing at most."""
    base = config.base(setting.policy)
    names = ("radius_km", "epsilon", "mechanism", "repair", "delta")
    same = all(name == free or getattr(setting, name) == getattr(base, name) for name in names)
    return setting.policy == policy and same


def sweep_of(config: EvaluationConfig, policy: str, free: str) -> list[Setting]:
    """The settings of a policy along one parameter, in its order."""
    found = [setting for setting in config.settings() if _along(config, setting, policy, free)]
    return sorted(found, key=lambda one: float(getattr(one, free))) if free in ("epsilon", "radius_km") else found


def _monotone(
    table: StepTable, sweep: list[Setting], metric: str, sign: int, where: str, symbol: str, words: str
) -> Claim:
    means = [total(table, setting, metric) for setting in sweep]
    free = "epsilon" if symbol == "epsilon" else "radius_km"
    measured = "; ".join(
        f"{symbol} = {getattr(setting, free):g}: {_shown(mean, metric)}"
        for setting, mean in zip(sweep, means, strict=True)
    )
    holds = bool((sign * np.diff([mean.mean for mean in means]) > 0).all())
    return Claim(where, words, measured, "holds" if holds else "does not")


def _same(table: StepTable, sweep: list[Setting], metric: str, words: str) -> Claim:
    means = [total(table, setting, metric) for setting in sweep]
    measured = "; ".join(
        f"epsilon = {setting.epsilon:g}: {_shown(mean, metric)}" for setting, mean in zip(sweep, means, strict=True)
    )
    highest, lowest = max(mean.mean for mean in means), min(mean.mean for mean in means)
    holds = highest - lowest <= SAME * highest
    return Claim("12", words, measured, "holds" if holds else "does not")


def _name(setting: Setting) -> str:
    return "DPLS" if setting.policy == "complete" else setting.policy


def _shown(value: Interval, metric: str) -> str:
    factor, unit, digits = {"runtime_s": (1e3, " ms", 2), "protection": (1.0, " states", 1)}.get(
        metric, (1.0, " km", 2)
    )
    mean, low, high = (factor * part for part in (value.mean, value.low, value.high))
    return f"{mean:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"
