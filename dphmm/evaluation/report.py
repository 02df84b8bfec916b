"""The report of an evaluation: means with their intervals, the paper's claims checked against them, one HTML page.

The claims are those that the DPHMM paper's evaluation (Section 8) makes in words.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.ndimage import convolve1d

import dphmm
from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError
from dphmm.evaluation.config import EvaluationConfig, Setting
from dphmm.evaluation.figures.base import Claim, Verdict
from dphmm.evaluation.run import Evaluation, StepTable
from dphmm.evaluation.split import space_of
from dphmm.reports import Cell, Picture, Section, html_page

ROOTS = {"rms_error_km": "squared_error_km2"}
"""A root mean square → the column that the mean is taken of: Error as Equation 3 of the paper has it."""

RESAMPLES = 2000
_ENDS = (0.025, 0.975)  # of an interval of level 95 %
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
    low, high = np.quantile(_resampled_means(rows), _ENDS, axis=0)
    return rows.mean(axis=0), np.asarray(low), np.asarray(high)


def _resampled_means(rows: FloatArray) -> FloatArray:
    """Return the means of bootstrap samples of rows, ``(RESAMPLES, ...)``; samples of equally many rows are the same.

    So quotients of two results are those of paired samples.
    """
    if not len(rows):
        raise InvalidInputError("there is no sequence to take a mean of; give at least one")
    drawn = np.random.default_rng(_SEED).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), RESAMPLES)
    return np.asarray(np.tensordot(drawn / len(rows), rows, axes=1))


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


def smooth_curve(values: FloatArray, width: int = 5) -> FloatArray:
    """Return a centred running mean; near the ends it is taken over the values that exist.

    Parameters
    ----------
    values : ndarray, shape (T,)
        The curve.
    width : int, default 5
        Number of values, odd.

    Returns
    -------
    ndarray, shape (T,)
        The means.

    Examples
    --------
    >>> smooth_curve(np.array([0.0, 3.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.5]
    """
    sums, counts = (convolve1d(part, np.ones(width), mode="constant") for part in (values, np.ones(len(values))))
    return np.asarray(sums / counts)


def ratio(table: StepTable, first: Setting, second: Setting, metric: str) -> Interval:
    """Divide the mean of a metric under one setting by that under another, on the same bootstrap samples of sequences.

    For a metric of `ROOTS` this is the quotient of the roots of the means. NaN if a denominator is 0.
    """
    sides = [table.where(setting).matrix(ROOTS.get(metric, metric)).mean(axis=1) for setting in (first, second)]
    quotient = _quotient(*sides)
    return Interval(*np.sqrt(quotient).tolist()) if metric in ROOTS else quotient


def _quotient(above: FloatArray, below: FloatArray) -> Interval:
    """Divide the means of two columns ``(n,)``; the interval is that of paired bootstrap samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.quantile(_resampled_means(above) / _resampled_means(below), _ENDS)
        return Interval(float(above.mean() / below.mean()), float(low), float(high))


# ---- the claims of the paper -----------------------------------------------------------------------------------------

HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNDECIDED: Verdict = "not decided"

# The paper gives most claims in words. Where a word needs a number, these are this package's reading of it.
SETTLED = 0.15
"""A level counts as stable when the last two quarters of the steps differ by less than this share.

One that grows in proportion to time differs by 0.29.
"""
SAME = 0.05
"""Means count as the same when two of them differ by at most this share of the larger."""
LITTLE_ERROR = 1.25
"""An error counts as little higher when it is at most this many times the other."""
LITTLE_LONGER = 2.0
"""A step counts as a little longer when it takes at most this many times as long."""
AGREES = 0.2
"""A mean agrees with one of the paper's, which are read off a curve and rounded, within this share of it."""

PRINTED_PROTECTION: Mapping[str, float] = {"geolife": 100.0, "gowalla": 70.0}
"""Preset → the states that protect the true one under transition, the only figures that Section 8.2 prints."""

_UNITS = {
    "runtime_s": (1e3, "ms"),
    "protection": (1.0, "states"),
    "rms_error_km": (1.0, "km"),
    "possible": (1.0, "states"),
    "area_km2": (1.0, "km²"),
}
"""Metric → the factor and the unit that it is stated in."""


CLAIM_COLUMNS = tuple(field.name for field in fields(Claim))


def check_claims(table: StepTable, config: EvaluationConfig) -> tuple[Claim, ...]:
    """Compare every claim of Section 8 that the settings of an evaluation allow to check with what was found."""
    claims: list[Claim] = []
    if {"utility", "transition", "complete"} <= set(config.policies):
        claims += _runtime_claims(table, config) + _policy_claims(table, config)
    if len(config.epsilons) > 1:
        claims += _epsilon_claims(table, config)
    if len(config.radii_km) > 1 and "utility" in config.policies:
        claims += _radius_claims(table, config)
    return tuple(claims)


def _runtime_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    utility, transition, dpls = (config.base(policy) for policy in ("utility", "transition", "complete"))
    claims = []
    for setting in (utility, transition):
        statement = (
            f"A step under {setting.policy} takes a little longer than one of DPLS (up to {LITTLE_LONGER:g} times)."
        )
        claims.append(
            _larger(table, "10", statement, "a little longer", setting, dpls, "runtime_s", at_most=LITTLE_LONGER)
        )
    statement = "The constraint set of DPLS is smaller than that under transition."
    claims.append(_larger(table, "10", statement, "a tighter constraint", transition, dpls, "possible"))
    for metric, name in (("runtime_s", "runtime of a step"), ("area_km2", "area of the sensitivity hull")):
        for setting in (utility, transition):
            claims.append(_settles(table, setting, metric, f"Under {setting.policy} the {name} converges."))
    return claims


def _policy_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    utility, transition, dpls = (config.base(policy) for policy in ("utility", "transition", "complete"))
    dop, error = "protection", "rms_error_km"
    ordered = (
        ("DoP under transition is above that of DPLS.", "the strongest", transition, dpls, dop),
        ("DoP under transition is above that under utility.", "the strongest", transition, utility, dop),
        ("DoP under utility is above that of DPLS.", "even larger", utility, dpls, dop),
        ("The error under utility is below that of DPLS.", "the lowest", dpls, utility, error),
        ("The error under utility is below that under transition.", "the lowest", transition, utility, error),
        ("The error under transition is above that of DPLS.", "rises with DoP", transition, dpls, error),
    )
    claims = [_larger(table, "11", *comparison) for comparison in ordered]
    if config.preset is not None:
        claims.insert(2, _printed_protection(table, transition, PRINTED_PROTECTION[config.preset]))
    return claims


def _larger(
    table: StepTable,
    figure: str,
    statement: str,
    paper: str,
    larger: Setting,
    smaller: Setting,
    metric: str,
    at_most: float = np.inf,
) -> Claim:
    """Check that a metric is larger under one setting than under another, by a factor of at most `at_most`."""
    factor = ratio(table, larger, smaller, metric)
    means = "; ".join(
        f"{_name(setting)} {_shown(total(table, setting, metric), metric)}" for setting in (larger, smaller)
    )
    measured = f"{means}; ratio {_stated_interval(factor)}"
    return Claim(figure, statement, paper, measured, _verdict(factor, 1.0, at_most))


def _verdict(interval: Interval, low: float, high: float) -> Verdict:
    """Decide whether an interval lies within ``(low, high]``, outside of it, or across an end.

    NaN decides nothing, as every comparison with it is false.
    """
    if low < interval.low and interval.high <= high:
        return HOLDS
    return FAILS if interval.high <= low or high < interval.low else UNDECIDED


def _all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the verdicts of several comparisons that all have to support a claim."""
    distinct = set(verdicts)
    return FAILS if FAILS in distinct else UNDECIDED if UNDECIDED in distinct else HOLDS


def _settles(table: StepTable, setting: Setting, metric: str, statement: str) -> Claim:
    values = table.where(setting).matrix(metric)
    quarter = max(values.shape[1] // 4, 1)
    third, last = (part.mean(axis=1) for part in (values[:, -2 * quarter : -quarter], values[:, -quarter:]))
    factor = _quotient(last, third)
    means = [_shown(Interval(*map(float, bootstrap(part))), metric) for part in (third, last)]
    measured = f"third quarter of the steps {means[0]}; last {means[1]}; ratio {_stated_interval(factor)}"
    return Claim("10", statement, "a stable level", measured, _verdict(factor, 1 - SETTLED, 1 / (1 - SETTLED)))


def _printed_protection(table: StepTable, setting: Setting, printed: float) -> Claim:
    mean = total(table, setting, "protection")
    words = f"Transition protects the true state among {printed:g} possible states (within {100 * AGREES:g} %)."
    verdict = _verdict(mean, (1 - AGREES) * printed, (1 + AGREES) * printed)
    return Claim("11", words, f"{printed:g} states", _shown(mean, "protection"), verdict)


def _epsilon_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    claims = []
    for policy in config.policies:
        sweep = sweep_of(config, policy, "epsilon")
        under = f"Under {_name(sweep[0])}"
        ratios = [ratio(table, sweep[0], setting, "protection") for setting in sweep[1:]]
        verdict = _all_of(_verdict(interval, 1 - SAME, 1 / (1 - SAME)) for interval in ratios)
        measured = _along(table, sweep, "protection", "epsilon", "ratio to the first", ratios)
        statement = f"{under}, DoP does not depend on ε (within {100 * SAME:g} %)."
        claims.append(Claim("12", statement, "the same", measured, verdict))
        ratios = [ratio(table, smaller, larger, "rms_error_km") for smaller, larger in pairwise(sweep)]
        measured = _along(table, sweep, "rms_error_km", "epsilon", "ratio to the next", ratios)
        verdict = _all_of(_verdict(interval, 1.0, np.inf) for interval in ratios)
        claims.append(Claim("12", f"{under}, the error falls as ε grows.", "smaller", measured, verdict))
    if {"transition", "complete"} <= set(config.policies):
        claims += _transition_claims(table, config)
    return claims


def _transition_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    """Compare transition with the paper's other policies at every epsilon."""
    transition = sweep_of(config, "transition", "epsilon")
    measured, verdicts = [], []
    for policy in ("utility", "complete"):
        if policy in config.policies:
            other = sweep_of(config, policy, "epsilon")
            ratios = [ratio(table, *pair, "protection") for pair in zip(transition, other, strict=True)]
            measured.append(f"ratio to {_name(other[0])} {_at_each(transition, ratios, 'epsilon')}")
            verdicts += [_verdict(interval, 1.0, np.inf) for interval in ratios]
    statement = "Transition has the largest DoP at every ε."
    largest = Claim("12", statement, "the largest", "; ".join(measured), _all_of(verdicts))
    dpls = sweep_of(config, "complete", "epsilon")
    ratios = [ratio(table, *pair, "rms_error_km") for pair in zip(transition, dpls, strict=True)]
    statement = f"Transition costs little error against DPLS at every ε (up to {LITTLE_ERROR} times)."
    verdict = _all_of(_verdict(interval, 0.0, LITTLE_ERROR) for interval in ratios)
    ratio_text = f"ratio to DPLS {_at_each(transition, ratios, 'epsilon')}"
    return [largest, Claim("12", statement, "little sacrifice", ratio_text, verdict)]


def _radius_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    sweep = sweep_of(config, "utility", "radius_km")
    claims = []
    for metric, name in (("protection", "DoP"), ("rms_error_km", "the error")):
        ratios = [ratio(table, larger, smaller, metric) for smaller, larger in pairwise(sweep)]
        measured = _along(table, sweep, metric, "radius_km", "ratio to the one before", ratios)
        verdict = _all_of(_verdict(interval, 1.0, np.inf) for interval in ratios)
        claims.append(Claim("13", f"Under utility, {name} grows with r.", "grows", measured, verdict))
    if "complete" in config.policies:
        ratios = [ratio(table, config.base("complete"), setting, "rms_error_km") for setting in sweep]
        verdicts = [_verdict(interval, 1.0, np.inf) for interval in ratios]
        verdict = UNDECIDED
        if 2 * verdicts.count(HOLDS) > len(sweep):
            verdict = HOLDS
        elif 2 * verdicts.count(FAILS) >= len(sweep):
            verdict = FAILS
        statement = "The error under utility is below that of DPLS for most values of r."
        measured = f"DPLS divided by utility {_at_each(sweep, ratios, 'radius_km')}"
        claims.append(Claim("13", statement, "in most results", measured, verdict))
    return claims


def _along(
    table: StepTable, sweep: Sequence[Setting], metric: str, free: str, compared: str, ratios: Sequence[Interval]
) -> str:
    """State the means of a metric along a sweep, and ratios of some of them."""
    means = "; ".join(f"{_symbol(setting, free)}: {_shown(total(table, setting, metric), metric)}" for setting in sweep)
    return f"{means}; {compared}: {', '.join(map(_stated_interval, ratios))}"


def _at_each(sweep: Sequence[Setting], intervals: Sequence[Interval], free: str) -> str:
    """State an interval for each setting of a sweep."""
    pairs = zip(sweep, intervals, strict=True)
    return ", ".join(f"{_stated_interval(interval)} at {_symbol(setting, free)}" for setting, interval in pairs)


def _symbol(setting: Setting, free: str) -> str:
    return f"r = {setting.radius_km:g} km" if free == "radius_km" else f"ε = {setting.epsilon:g}"


def sweep_of(config: EvaluationConfig, policy: str, free: str) -> list[Setting]:
    """The settings of a policy that differ from its base in one parameter at most, in its order where it has one."""
    own = [setting for setting in config.settings() if setting.policy == policy]
    found = [one for one in own if replace(one, **{free: getattr(own[0], free)}) == own[0]]
    return sorted(found, key=lambda one: float(getattr(one, free))) if free in ("epsilon", "radius_km") else found


def _name(setting: Setting) -> str:
    return "DPLS" if setting.policy == "complete" else setting.policy


def _shown(value: Interval, metric: str) -> str:
    factor, unit = _UNITS[metric]
    return f"{_stated_interval(Interval(*(factor * end for end in value)))} {unit}"


def _stated_interval(value: Interval) -> str:
    mean, low, high = map(significant, value)
    return mean if low == mean == high else f"{mean} ({low} to {high})"


def significant(value: float, digits: int = 3) -> str:
    """Format a number with at least some significant digits, without an exponent.

    Examples
    --------
    >>> [significant(value) for value in (1373.2, 99.99, 19.04, 0.0312, 2.0)]
    ['1,373', '100', '19.0', '0.0312', '2.00']
    """
    if not np.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")  # 99.99 has as many decimals as 100
    return f"{value:,.{max(digits - 1 - int(np.floor(np.log10(abs(rounded)))), 0)}f}"


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
    "figure-10-runtime": "Processor time of a step (Figure 10), after a warm-up. Each sequence has a new engine.",
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
    claims = check_claims(table, evaluation.config)
    same, header, rows = _settings(table, evaluation)
    drawn = [Picture(png, _CAPTIONS[name], True) for name, png in pictures.items()]
    sections = [
        Section("Whose data", [_data_words(evaluation), _states_words(evaluation.config), _split_words(evaluation)]),
        Section(
            "What each setting does on them",
            [f"Means over sequences and time; the figures have their intervals. {same}", _ABBREVIATIONS],
            header,
            rows,
        ),
        Section("Figures", [_INTERVALS], pictures=drawn),
        Section(
            "What the DPHMM paper claims, on these data",
            [_counted(claims, evaluation.clock), _VERDICTS],
            ("figure of the paper", "claim", "the paper's value", "measured", "verdict"),
            [(*list(asdict(claim).values())[:4], Cell(claim.verdict, mark=_MARKS[claim.verdict])) for claim in claims],
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


def _states_words(config: EvaluationConfig) -> str:
    """State the number of states, and every key that differs from the preset."""
    space = space_of(config)
    cells = f" of {space.cell_km:g} km" if space.cell_km else ""
    words = f"{space.size:,} states{cells}."
    if config.preset is None:
        return words
    changed = [f"{key} is {_plain(now)} instead of {_plain(was)}" for key, (was, now) in config.changes.items()]
    if not changed:
        return f"{words} All settings are those of the preset {config.preset!r}."
    return f"{words} The settings are those of the preset {config.preset!r}, but {'; '.join(changed)}."


def _plain(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, default=str)


_VERDICTS = (
    f"A claim {HOLDS} if the whole 95 % interval of what is compared lies where the claim says, {FAILS} if none of it "
    "does. Intervals are of paired bootstrap samples of sequences. Numbers in the claims are this package's reading of "
    "the paper's words."
)
_MARKS: Mapping[str, Literal["", "good", "bad"]] = {HOLDS: "good", FAILS: "bad", UNDECIDED: ""}


def _counted(claims: Sequence[Claim], clock: str) -> str:
    """Count the verdicts, and state the time step: after a longer one more states are possible."""
    verdicts = [claim.verdict for claim in claims]
    if not claims:
        return "The settings compared here allow to check none of them."
    held, failed, open_ = (verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNDECIDED))
    return (
        f"Of {len(claims)} claims {held} hold, {failed} do not, and {open_} are not decided at this sample size, with "
        f"{clock}; the paper does not state its time step."
    )


def setting_rows(table: StepTable, config: EvaluationConfig) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return a header, and for every setting its parameters and each metric's mean with its 95 % interval."""
    names = tuple(name for metric, _, _ in _TABLE_METRICS for name in (metric, f"{metric}_low", f"{metric}_high"))
    rows = [
        (
            *asdict(setting).values(),
            *(value for metric, _, _ in _TABLE_METRICS for value in total(table, setting, metric)),
        )
        for setting in config.settings()
    ]
    return (*asdict(config.settings()[0]), *names), rows


_INTERVALS = (
    "Bars and bands are 95 % bootstrap intervals over sequences. They are too narrow for few sequences, and they do "
    "not contain how much another split into folds would change: all sequences of a fold share one model and its hulls."
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
