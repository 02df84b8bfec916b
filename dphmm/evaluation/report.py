"""The report of an evaluation: means with their intervals, the paper's claims checked against them, one HTML page.

The claims are those that the DPHMM paper's evaluation (Section 8) makes in words.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dphmm
from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError
from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.run import Evaluation, StepTable
from dphmm.reports import Cell, Picture, Section, html_page

ROOTS = {"rms_error_km": "squared_error_km2"}
"""A root mean square → the column that the mean is taken of: Error as Equation 3 of the paper has it."""

RESAMPLES, _LEVEL = 2000, 0.95
_SEED = 20170710  # fixed, so that a report of the same table says the same


class Interval(NamedTuple):
    """A mean over sequences with its bootstrap percentile interval.

    Parameters
    ----------
    mean, low, high
        The mean and the ends of its interval of nominal level 95 %.
    """

    mean: float
    low: float
    high: float


def bootstrap(values: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean over the first axis and the 95 % percentile bootstrap interval for it, whole rows being drawn again.

    Parameters
    ----------
    values
        ``(n, ...)``: one row per sequence. The sequences are taken as independent; the steps within one are not.

    Returns
    -------
    mean, low, high
        Shape ``(...)`` each. With one sequence the interval is the mean: it says nothing then. With few sequences it is
        too narrow, as percentile intervals are.

    Raises
    ------
    InvalidInputError
        Without any row.
    """
    rows = np.asarray(values, dtype=np.float64)
    if not len(rows):
        raise InvalidInputError("there is no sequence to take a mean of; give at least one")
    drawn = np.random.default_rng(_SEED).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), RESAMPLES)
    means = np.tensordot(drawn / len(rows), rows, axes=1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return rows.mean(axis=0), np.asarray(low), np.asarray(high)


def total(table: StepTable, setting: Setting, metric: str) -> Interval:
    """The mean of a metric over everything under a setting; an infinite value stays infinite in it.

    Of one of `ROOTS` the root of the mean.
    """
    found = np.array(bootstrap(table.where(setting).matrix(ROOTS.get(metric, metric)).mean(axis=1)))
    return Interval(*(np.sqrt(found) if metric in ROOTS else found).tolist())


def over_time(table: StepTable, setting: Setting, metric: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The mean of a metric over sequences at each time step under a setting, with its interval; ``(length,)`` each."""
    found = np.array(bootstrap(table.where(setting).matrix(ROOTS.get(metric, metric))))
    mean, low, high = np.sqrt(found) if metric in ROOTS else found
    return mean, low, high


def difference(table: StepTable, first: Setting, second: Setting, metric: str) -> Interval:
    """Mean of a metric under one setting minus that under another, sequence by sequence; of `ROOTS`, of the squares."""
    means = [table.where(one).matrix(ROOTS.get(metric, metric)).mean(axis=1) for one in (first, second)]
    return Interval(*map(float, bootstrap(means[0] - means[1])))


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


_LIBRARIES = ("numpy", "scipy", "shapely", "pyarrow", "matplotlib")

_TABLE_METRICS: tuple[tuple[str, str, float], ...] = (
    ("runtime_s", "time of a step, ms", 1e3),
    ("protection", "DoP", 1.0),
    ("rms_error_km", "error (Equation 3), km", 1.0),
    ("error_km", "distance of the draws, km", 1.0),
    ("estimate_error_km", "error of the posterior mean, km", 1.0),
    ("adversary_error_km", "adversary's expected error, km", 1.0),
    ("possible", "possible states", 1.0),
    ("stood_in", "stand-ins, %", 100.0),
    ("edges_added", "edges added", 1.0),
    ("area_km2", "hull's area, km²", 1.0),
    ("constrained_factor", "constrained factor", 1.0),
    ("withheld", "withheld, %", 100.0),
    ("spent_epsilon", "ε spent a moment", 1.0),
)

_CAPTIONS = {
    "settings": "Every setting: means over sequences and time, with their intervals.",
    "figure-10-runtime": "Processor time of a step (the paper's Figure 10).",
    "figure-11-over-time": "Degree of protection of the true state, and error of the release (Figure 11, Equation 3).",
    "possible-and-estimate": "Size of the constraint set, and error of the posterior mean, which costs nothing.",
    "figure-12-epsilon": "Epsilon (Figure 12): means over sequences and time.",
    "figure-13-radius": "The radius of the utility policy (Figure 13); dashed: the policies that have none.",
    "map": "Some sequences. Private: it shows true places.",
}


def report_html(evaluation: Evaluation, pictures: Mapping[str, bytes], command: str) -> str:
    """The report as one page.

    Parameters
    ----------
    evaluation
        A finished one.
    pictures
        Name → PNG, which go into the page.
    command
        The command that made it.

    Returns
    -------
    str
        HTML that loads nothing from elsewhere.
    """
    table = evaluation.table()
    same, header, rows = _settings(table, evaluation)
    drawn = [Picture(png, _CAPTIONS[name], True) for name, png in pictures.items()]
    sections = [
        Section("Whose data", [_data_words(evaluation), _split_words(evaluation)]),
        Section(
            "What each setting does on them",
            [f"Means over sequences and time; the figures have their intervals. {same}", _ABBREVIATIONS],
            header,
            rows,
        ),
        Section("Figures", [_INTERVALS], pictures=drawn),
        Section(
            "What the DPHMM paper claims, on these data",
            ["By the means of these data. Within noise: the interval of the difference holds zero."],
            ("figure of the paper", "claim", "of what", "measured", "verdict"),
            _claims(table, evaluation),
        ),
        Section("How this was made", verbatim=_origin(evaluation, command)),
    ]
    warning = (
        "The map and the table of steps beside this report show true places, and the other figures are computed from "
        "them without any noise: keep them to yourself."
    )
    return html_page(_title(evaluation), warning, True, sections)


def _split_words(evaluation: Evaluation) -> str:
    config, split = evaluation.config, evaluation.split
    dropped = "; ".join(f"{number} {reason}" for reason, number in split.dropped.items())
    start = "is known" if config.start == "known" else "is as probable as in the model"
    learned = f"under the model {config.model}, of unknown training people"
    if split.learned_from:
        fewest, most = (pick(map(len, split.learned_from)) for pick in (min, max))
        number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        learned = (
            f"each under one of {len(split.learned_from)} models, learned from the {number} users outside of the "
            "evaluated one's fold"
        )
    return (
        f"{len(split.users)} sequences of {config.length} time steps, one per user ({evaluation.clock}), {learned}; "
        f"the place before the first release {start}. Users that could not be evaluated: {dropped or 'none'}. Who is "
        "what stands in PRIVATE-split.json."
    )


_INTERVALS = (
    "Bars and bands are 95 % bootstrap intervals, whole sequences being drawn again; of few sequences they are too "
    "narrow."
)
_ABBREVIATIONS = (
    "DoP is the degree of protection of the true place; error (Equation 3) the root mean square distance of a release "
    "from the true place; DPLS the complete policy over a δ-location set."
)


def _title(evaluation: Evaluation) -> str:
    """What the evaluation is called, or whose data it is about."""
    config = evaluation.config
    if config.name != type(config).model_fields["name"].default:
        return config.name
    return f"{config.name} of {', '.join(Path(path).name for path in config.data)}"


def _data_words(evaluation: Evaluation) -> str:
    """Which files, and over which region."""
    paths = [Path(path).name for path in evaluation.checkpoint.facts["data_sha256"]]
    some = ", ".join(paths[:6]) + (f" and {len(paths) - 6:,} more" if len(paths) > 6 else "")
    config = evaluation.config
    return f"{len(paths):,} file{'s' if len(paths) != 1 else ''} ({some}), under {', '.join(config.policies)}."


def _claims(table: StepTable, evaluation: Evaluation) -> list[tuple[str | Cell, ...]]:
    """A row for each figure; what it is a figure of, and the verdict, stand at the first of a claim."""
    rows: list[tuple[str | Cell, ...]] = []
    for claim in check_claims(table, evaluation.config, evaluation.clock):
        verdict = Cell(claim.verdict, mark="good" if claim.verdict.startswith("holds") else "bad")
        for number, part in enumerate(claim.parts):
            rows.append(("", "", *part, "") if number else (claim.where, claim.words, *part, verdict))
    return rows


def _settings(table: StepTable, evaluation: Evaluation) -> tuple[str, tuple[str, ...], list[tuple[str | Cell, ...]]]:
    """What all settings have in common, in a sentence; a header; and a row for each, of what differs and the means."""
    settings = evaluation.config.settings()
    stated = [_stated(setting) for setting in settings]
    varies = [name for name in stated[0] if len({one[name] for one in stated}) > 1 or name == "policy"]
    fixed = [f"{name} {stated[0][name]}" for name in stated[0] if name not in varies and stated[0][name]]
    means = {
        label: [f"{factor * total(table, setting, metric).mean:.3g}" for setting in settings]
        for metric, label, factor in _TABLE_METRICS
    }
    differ = {label: values for label, values in means.items() if len(set(values)) > 1}
    fixed += [f"{label} {values[0]}" for label, values in means.items() if label not in differ and len(settings) > 1]
    same = f"The same in all: {'; '.join(fixed)}." if fixed else ""
    columns = differ if len(settings) > 1 else means
    rows: list[tuple[str | Cell, ...]] = [
        (*(one[name] for name in varies), *(values[number] for values in columns.values()))
        for number, one in enumerate(stated)
    ]
    return same, (*varies, *columns), rows


def _stated(setting: Setting) -> dict[str, str]:
    """What a setting is called by: name → value, empty where it has none."""
    schedule = ((setting.target_error_km, "target {:g} km"), (setting.day_epsilon, "{:g} a day"))
    return {
        "policy": setting.policy,
        "r, km": f"{setting.radius_km:g}" if setting.radius_km else "",
        "δ": f"{setting.delta:g}" if setting.delta else "",
        "ε": f"{setting.epsilon:g}",
        "mechanism": setting.mechanism,
        "repair": setting.repair,
        "objective": setting.objective if setting.repair == "exact" else "",
        "calibration": setting.calibration,
        "schedule": " ".join(words.format(value) for value, words in schedule if value),
    }


def _origin(evaluation: Evaluation, command: str) -> str:
    facts = evaluation.checkpoint.facts
    versions = [f"Python {platform.python_version()}", f"dphmm {dphmm.__version__}", *map(_version, _LIBRARIES)]
    lines = [f"$ {command}", "", ", ".join(versions), f"version of the run: {facts['version']}", ""]
    lines += [f"sha256 {digest}  {Path(path).name}" for path, digest in facts["data_sha256"].items()]
    lines += [f"sha256 {facts['configuration_sha256']}  (configuration)", ""]
    lines += [f"{key} = {value!r}" for key, value in facts["configuration"].items()]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
