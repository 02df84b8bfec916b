"""HTML report of an evaluation: means with intervals, and a check of the paper's claims.

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
from dphmm.evaluation.split import make_space
from dphmm.html_report import Cell, Picture, Section, html_page

# Metric that is a root mean square → column of its squares. The paper defines Error (Equation 3) in this way.
ROOTS = {"rms_error_km": "squared_error_km2"}

NUM_RESAMPLES = 2000
_QUANTILES = (0.025, 0.975)  # ends of a 95 % interval
_SEED = 20170710  # fixed: reports of one table are equal


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
    """Compute the mean over the first axis with its 95 % percentile bootstrap interval.

    Parameters
    ----------
    values
        ``(n, ...)``: one row per sequence. Whole rows are resampled, as if sequences were independent; the steps of one
        sequence are not.

    Returns
    -------
    mean, low, high
        Shape ``(...)`` each. With one row the interval equals the mean and is uninformative. With few rows it is too
        narrow, as percentile intervals are. All three are infinite if a value is.

    Raises
    ------
    InvalidInputError
        If there are no rows.
    """
    rows = np.asarray(values, dtype=np.float64)
    # An observed infinite value has positive probability, so the true mean is infinite.
    infinite = np.isinf(rows).any(axis=0)
    low, high = np.quantile(_resample_means(np.where(infinite, 0.0, rows)), _QUANTILES, axis=0)
    return rows.mean(axis=0), np.where(infinite, np.inf, low), np.where(infinite, np.inf, high)


def _resample_means(rows: FloatArray) -> FloatArray:
    """Return the means of bootstrap samples of rows, ``(NUM_RESAMPLES, ...)``.

    Inputs with equal numbers of rows have equal samples. The quotient of two results is therefore that of paired
    samples.
    """
    if not len(rows):
        raise InvalidInputError("values must have at least one row, got none")
    counts = np.random.default_rng(_SEED).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), NUM_RESAMPLES)
    return np.asarray(np.tensordot(counts / len(rows), rows, axes=1))


def compute_overall_mean(table: StepTable, setting: Setting, metric: str) -> Interval:
    """Compute the mean of a metric over all steps of a setting. It is infinite if a value is.

    For a metric of `ROOTS`, the result is the root of the mean.
    """
    interval = np.array(bootstrap(table.select_rows(setting).to_matrix(ROOTS.get(metric, metric)).mean(axis=1)))
    return Interval(*(np.sqrt(interval) if metric in ROOTS else interval).tolist())


def compute_mean_over_time(
    table: StepTable, setting: Setting, metric: str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute a metric's mean and interval at each timestep. Shape ``(length,)`` each."""
    interval = np.array(bootstrap(table.select_rows(setting).to_matrix(ROOTS.get(metric, metric))))
    mean, low, high = np.sqrt(interval) if metric in ROOTS else interval
    return mean, low, high


def smooth_curve(values: FloatArray, width: int = 5) -> FloatArray:
    """Return a centred running mean. Near the ends it is taken over the values that exist.

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


def compute_ratio(table: StepTable, first: Setting, second: Setting, metric: str) -> Interval:
    """Divide the means of a metric under two settings, with the interval of paired samples.

    For a metric of `ROOTS`, the result is the quotient of the roots of the means. NaN if a denominator is 0.
    """
    sides = [
        table.select_rows(setting).to_matrix(ROOTS.get(metric, metric)).mean(axis=1) for setting in (first, second)
    ]
    quotient = _divide_means(*sides)
    return Interval(*np.sqrt(quotient).tolist()) if metric in ROOTS else quotient


def _divide_means(above: FloatArray, below: FloatArray) -> Interval:
    """Divide the means of two columns ``(n,)``, with the interval of paired bootstrap samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.quantile(_resample_means(above) / _resample_means(below), _QUANTILES)
        return Interval(float(above.mean() / below.mean()), float(low), float(high))


# ---- the claims of the paper -----------------------------------------------------------------------------------------

HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNDECIDED: Verdict = "not decided"

# The paper states most claims in words. The numbers are this package's interpretation of these words.
# A level is stable if the means of the last two quarters of the steps differ by less than this share.
#
# A level proportional to time differs by 0.29.
STABLE_TOLERANCE = 0.15
# Two means are equal if they differ by at most this share of the larger.
EQUAL_TOLERANCE = 0.05
# An error is little higher if it is at most this multiple of the other.
MAX_SLIGHT_ERROR_RATIO = 1.25
# A step takes a little longer if it takes at most this multiple of the other's time.
MAX_SLIGHT_TIME_RATIO = 2.0
# A mean agrees with the paper's, which is read off a curve and rounded, within this share of it.
AGREEMENT_TOLERANCE = 0.2

# Preset → number of states that protect the true one under transition, as printed in Section 8.2.
PRINTED_PROTECTION: Mapping[str, float] = {"geolife": 100.0, "gowalla": 70.0}

CLAIM_COLUMNS = tuple(field.name for field in fields(Claim))


def check_claims(table: StepTable, config: EvaluationConfig) -> tuple[Claim, ...]:
    """Check every claim of Section 8 for which the evaluation has the required settings."""
    claims: list[Claim] = []
    if {"utility", "transition", "complete"} <= set(config.policies):
        claims += _judge_runtime_claims(table, config) + _judge_policy_claims(table, config)
    if len(config.epsilons) > 1:
        claims += _judge_epsilon_claims(table, config)
    if len(config.radii_km) > 1 and "utility" in config.policies:
        claims += _judge_radius_claims(table, config)
    return tuple(claims)


def _judge_runtime_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    utility, transition, dpls = (config.get_default_setting(policy) for policy in ("utility", "transition", "complete"))
    claims = []
    for setting in (utility, transition):
        statement = (
            f"{setting.policy.capitalize()} takes a little longer than DPLS (up to {MAX_SLIGHT_TIME_RATIO:g} times)."
        )
        claims.append(
            _judge_larger(
                table, "10", statement, "a little longer", setting, dpls, "runtime_s", max_factor=MAX_SLIGHT_TIME_RATIO
            )
        )
    statement = "DPLS has a smaller constraint set than transition."
    claims.append(
        _judge_larger(table, "10", statement, "a tighter constraint", transition, dpls, "num_possible_states")
    )
    for metric, name in (("runtime_s", "runtime"), ("area_km2", "hull's area")):
        for setting in (utility, transition):
            statement = (
                f"Under {setting.policy} the {name} converges (last two quarters within {100 * STABLE_TOLERANCE:g} %)."
            )
            claims.append(_judge_stability(table, setting, metric, statement))
    return claims


def _judge_policy_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    utility, transition, dpls = (config.get_default_setting(policy) for policy in ("utility", "transition", "complete"))
    dop = "protection"
    error = "rms_error_km"
    ordered = (
        ("Transition has a larger DoP than DPLS.", "the strongest", transition, dpls, dop),
        ("Transition has a larger DoP than utility.", "the strongest", transition, utility, dop),
        ("Utility has a larger DoP than DPLS.", "even larger", utility, dpls, dop),
        ("Utility has a smaller error than DPLS.", "the lowest", dpls, utility, error),
        ("Utility has a smaller error than transition.", "the lowest", transition, utility, error),
        ("Transition has a larger error than DPLS.", "rises with DoP", transition, dpls, error),
    )
    claims = [_judge_larger(table, "11", *comparison) for comparison in ordered]
    if config.preset is not None:
        claims.insert(2, _judge_printed_protection(table, transition, PRINTED_PROTECTION[config.preset]))
    return claims


def _judge_larger(
    table: StepTable,
    figure: str,
    statement: str,
    paper: str,
    larger: Setting,
    smaller: Setting,
    metric: str,
    max_factor: float = np.inf,
) -> Claim:
    """Check that a metric is larger under one setting than under another, by at most a factor."""
    factor = compute_ratio(table, larger, smaller, metric)
    measured = f"{_label_setting(larger)} / {_label_setting(smaller)} {_format_interval(factor)}"
    return Claim(figure, statement, paper, measured, _judge_interval(factor, 1.0, max_factor))


def _judge_interval(interval: Interval, low: float, high: float) -> Verdict:
    """Decide whether an interval lies within ``(low, high]``, outside it, or across an end.

    With NaN the result is `UNDECIDED`, as every comparison is false.
    """
    if low < interval.low and interval.high <= high:
        return HOLDS
    return FAILS if interval.high <= low or high < interval.low else UNDECIDED


def _combine_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the verdicts of several comparisons that all have to support a claim."""
    distinct = set(verdicts)
    return FAILS if FAILS in distinct else UNDECIDED if UNDECIDED in distinct else HOLDS


def _judge_stability(table: StepTable, setting: Setting, metric: str, statement: str) -> Claim:
    values = table.select_rows(setting).to_matrix(metric)
    quarter = max(values.shape[1] // 4, 1)
    third, last = (part.mean(axis=1) for part in (values[:, -2 * quarter : -quarter], values[:, -quarter:]))
    factor = _divide_means(last, third)
    measured = f"last / third quarter {_format_interval(factor)}"
    return Claim(
        "10",
        statement,
        "a stable level",
        measured,
        _judge_interval(factor, 1 - STABLE_TOLERANCE, 1 / (1 - STABLE_TOLERANCE)),
    )


def _judge_printed_protection(table: StepTable, setting: Setting, printed: float) -> Claim:
    mean = compute_overall_mean(table, setting, "protection")
    tolerance = 100 * AGREEMENT_TOLERANCE
    words = f"Transition protects the true state among {printed:g} possible states (within {tolerance:g} %)."
    verdict = _judge_interval(mean, (1 - AGREEMENT_TOLERANCE) * printed, (1 + AGREEMENT_TOLERANCE) * printed)
    return Claim("11", words, f"{printed:g} states", f"{_format_interval(mean)} states", verdict)


def _judge_epsilon_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    claims = []
    for policy in config.policies:
        sweep = select_sweep(config, policy, "epsilon")
        under = f"Under {_label_setting(sweep[0])}"
        ratios = [compute_ratio(table, sweep[0], setting, "protection") for setting in sweep[1:]]
        verdict = _combine_verdicts(
            _judge_interval(interval, 1 - EQUAL_TOLERANCE, 1 / (1 - EQUAL_TOLERANCE)) for interval in ratios
        )
        measured = f"first / this {_format_sweep_intervals(sweep[1:], ratios, 'epsilon')}"
        statement = f"{under}, DoP does not depend on ε (within {100 * EQUAL_TOLERANCE:g} %)."
        claims.append(Claim("12", statement, "the same", measured, verdict))
        ratios = [compute_ratio(table, smaller, larger, "rms_error_km") for smaller, larger in pairwise(sweep)]
        measured = f"this / next {_format_sweep_intervals(sweep[:-1], ratios, 'epsilon')}"
        verdict = _combine_verdicts(_judge_interval(interval, 1.0, np.inf) for interval in ratios)
        claims.append(Claim("12", f"{under}, the error falls as ε grows.", "smaller", measured, verdict))
    if {"transition", "complete"} <= set(config.policies):
        claims += _judge_transition_claims(table, config)
    return claims


def _judge_transition_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    """Compare transition with the paper's other policies at every epsilon."""
    transition = select_sweep(config, "transition", "epsilon")
    measured = []
    verdicts = []
    for policy in ("utility", "complete"):
        if policy in config.policies:
            other = select_sweep(config, policy, "epsilon")
            ratios = [compute_ratio(table, *pair, "protection") for pair in zip(transition, other, strict=True)]
            measured.append(f"{_label_setting(transition[0])} / {_label_setting(other[0])} {_format_intervals(ratios)}")
            verdicts += [_judge_interval(interval, 1.0, np.inf) for interval in ratios]
    statement = "Transition has the largest DoP at every ε."
    ratio_text = f"{'; '.join(measured)} at {_format_free_values(transition, 'epsilon')}"
    largest = Claim("12", statement, "the largest", ratio_text, _combine_verdicts(verdicts))
    dpls = select_sweep(config, "complete", "epsilon")
    ratios = [compute_ratio(table, *pair, "rms_error_km") for pair in zip(transition, dpls, strict=True)]
    statement = f"Transition costs little error against DPLS (up to {MAX_SLIGHT_ERROR_RATIO} times)."
    verdict = _combine_verdicts(_judge_interval(interval, 0.0, MAX_SLIGHT_ERROR_RATIO) for interval in ratios)
    ratio_text = f"transition / DPLS {_format_sweep_intervals(transition, ratios, 'epsilon')}"
    return [largest, Claim("12", statement, "little sacrifice", ratio_text, verdict)]


def _judge_radius_claims(table: StepTable, config: EvaluationConfig) -> list[Claim]:
    sweep = select_sweep(config, "utility", "radius_km")
    claims = []
    for metric, name in (("protection", "DoP"), ("rms_error_km", "the error")):
        ratios = [compute_ratio(table, larger, smaller, metric) for smaller, larger in pairwise(sweep)]
        measured = f"this / previous {_format_sweep_intervals(sweep[1:], ratios, 'radius_km')}"
        verdict = _combine_verdicts(_judge_interval(interval, 1.0, np.inf) for interval in ratios)
        claims.append(Claim("13", f"Under utility, {name} grows with r.", "grows", measured, verdict))
    if "complete" in config.policies:
        ratios = [
            compute_ratio(table, config.get_default_setting("complete"), setting, "rms_error_km") for setting in sweep
        ]
        verdicts = [_judge_interval(interval, 1.0, np.inf) for interval in ratios]
        verdict = UNDECIDED
        if 2 * verdicts.count(HOLDS) > len(sweep):
            verdict = HOLDS
        elif 2 * verdicts.count(FAILS) >= len(sweep):
            verdict = FAILS
        statement = "Utility has a smaller error than DPLS for most r."
        measured = f"DPLS / utility {_format_sweep_intervals(sweep, ratios, 'radius_km')}"
        claims.append(Claim("13", statement, "in most results", measured, verdict))
    return claims


def _format_sweep_intervals(sweep: Sequence[Setting], intervals: Sequence[Interval], free: str) -> str:
    """State an interval for each setting of a sweep."""
    return f"at {_format_free_values(sweep, free)}: {_format_intervals(intervals)}"


def _format_free_values(sweep: Sequence[Setting], free: str) -> str:
    values = ", ".join(f"{getattr(setting, free):g}" for setting in sweep)
    return f"r = {values} km" if free == "radius_km" else f"ε = {values}"


def _format_intervals(intervals: Sequence[Interval]) -> str:
    return ", ".join(map(_format_interval, intervals))


def select_sweep(config: EvaluationConfig, policy: str, free: str) -> list[Setting]:
    """Return a policy's settings that differ from its first at most in one parameter.

    Settings are sorted by the parameter if it is numeric.
    """
    settings = [setting for setting in config.settings() if setting.policy == policy]
    sweep = [setting for setting in settings if replace(setting, **{free: getattr(settings[0], free)}) == settings[0]]
    return (
        sorted(sweep, key=lambda setting: float(getattr(setting, free))) if free in ("epsilon", "radius_km") else sweep
    )


def _label_setting(setting: Setting) -> str:
    return "DPLS" if setting.policy == "complete" else setting.policy


def _format_interval(value: Interval) -> str:
    mean, low, high = map(format_significant, value)
    return mean if low == mean == high else f"{mean} ({low} to {high})"


def format_significant(value: float, digits: int = 3) -> str:
    """Format a number with at least `digits` significant digits and without an exponent.

    Examples
    --------
    >>> [format_significant(value) for value in (1373.2, 99.99, 19.04, 0.0312, 2.0)]
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
    ("error_km", "error of the sampled releases, km", 1.0),
    ("estimate_error_km", "error of the posterior mean, km", 1.0),
    ("adversary_error_km", "adversary's expected error, km", 1.0),
    ("num_possible_states", "possible states", 1.0),
    ("used_surrogate", "surrogates, %", 100.0),
    ("num_added_edges", "added edges", 1.0),
    ("area_km2", "area of the hull, km²", 1.0),
    ("constrained_dp_factor", "constrained DP factor", 1.0),
    ("withheld", "withheld, %", 100.0),
    ("spent_epsilon", "ε spent per timestep", 1.0),
)

_CAPTIONS = {
    "settings": (
        "Means over sequences and time under every setting, with 95 % intervals. Errors of withheld timesteps are "
        "those of the prediction; a marker is hollow if no timestep was released."
    ),
    "figure-10-runtime": "Processor time of a step (Figure 10), after a warm-up. Each sequence has a new engine.",
    "figure-11-over-time": "Degree of protection of the true state, and error of the release (Figure 11, Equation 3).",
    "possible-and-estimate": "Size of the constraint set, and error of the posterior mean, which spends no ε.",
    "figure-12-epsilon": "Means over sequences and time by ε (Figure 12).",
    "figure-13-radius": "Means by radius of the utility policy (Figure 13). Dashed: policies without a radius.",
    "map": "True states, releases and estimates of a few sequences. Private.",
}


def build_report_html(evaluation: Evaluation, pictures: Mapping[str, bytes], command: str) -> str:
    """Return the report as one HTML page.

    Parameters
    ----------
    evaluation
        A finished evaluation.
    pictures
        Name → PNG, embedded in the page.
    command
        The command that created the report.

    Returns
    -------
    str
        HTML that loads no external resources.
    """
    table = evaluation.table()
    claims = check_claims(table, evaluation.config)
    common, header, rows = _tabulate_settings(table, evaluation)
    figures = [Picture(png, _CAPTIONS[name], True) for name, png in pictures.items()]
    sections = [
        Section(
            "Data and split",
            [_describe_data(evaluation), _describe_states(evaluation.config), _describe_split(evaluation)],
        ),
        Section(
            "Settings",
            [f"Means over sequences and time; the figures show their intervals. {common}", _ABBREVIATIONS],
            header,
            rows,
        ),
        Section("Figures", [_INTERVALS], pictures=figures),
        Section(
            "Claims of the DPHMM paper",
            [_summarize_claims(claims, evaluation.clock), _VERDICTS],
            ("figure of the paper", "claim", "published", "measured", "verdict"),
            [(*list(asdict(claim).values())[:4], Cell(claim.verdict, mark=_MARKS[claim.verdict])) for claim in claims],
        ),
        Section("Provenance", verbatim=_describe_provenance(evaluation, command)),
    ]
    warning = (
        "The map and the table of steps in this folder show true locations. The other figures are computed from true "
        "locations without noise. Do not publish them."
    )
    return html_page(_format_title(evaluation), warning, True, sections)


def _describe_split(evaluation: Evaluation) -> str:
    config = evaluation.config
    split = evaluation.split
    dropped = "; ".join(f"{number} {reason}" for reason, number in split.dropped.items())
    start = "is known to the adversary" if config.start == "known" else "has the initial distribution of the model"
    models = f"under the model {config.model}, the training users of which are not verified"
    if split.learned_from:
        smallest, largest = (pick(map(len, split.learned_from)) for pick in (min, max))
        number = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        models = (
            f"each under one of {len(split.learned_from)} models, trained on the {number} users outside the evaluated "
            "user's fold"
        )
    return (
        f"{len(split.users)} sequences of {config.length} timesteps, one per user ({evaluation.clock}), {models}. The "
        f"location before the first release {start}. Users that were not evaluated: {dropped or 'none'}. "
        "PRIVATE-split.json contains the names."
    )


def _describe_states(config: EvaluationConfig) -> str:
    """State the number of states, and every key that differs from the preset."""
    space = make_space(config)
    cells = f" of {space.cell_km:g} km" if space.cell_km else ""
    words = f"{space.size:,} states{cells}."
    if config.preset is None:
        return words
    changed = [
        f"{key} is {_format_value(now)} instead of {_format_value(was)}" for key, (was, now) in config.changes.items()
    ]
    if not changed:
        return f"{words} All settings are those of the preset {config.preset!r}."
    return f"{words} The settings are those of the preset {config.preset!r}, but {'; '.join(changed)}."


def _format_value(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, default=str)


_VERDICTS = (
    f"A claim {HOLDS} if the 95 % interval of the compared quantity lies within the claimed range, and {FAILS} if it "
    "lies outside. Intervals are computed from paired bootstrap samples of sequences. Numbers in the claims are this "
    "package's interpretation of the paper's words."
)
_MARKS: Mapping[str, Literal["", "good", "bad"]] = {HOLDS: "good", FAILS: "bad", UNDECIDED: ""}


def _summarize_claims(claims: Sequence[Claim], clock: str) -> str:
    # The number of possible states depends on the timestep, so it is stated with the counts.
    verdicts = [claim.verdict for claim in claims]
    if not claims:
        return "No claim can be checked with these settings."
    held, failed, undecided = (verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNDECIDED))
    return (
        f"Of {len(claims)} claims, {held} hold, {failed} do not hold, and {undecided} are not decided at this sample "
        f"size, with {clock}. The paper does not state its timestep."
    )


def list_setting_rows(table: StepTable, config: EvaluationConfig) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return a header and a row per setting: parameters and means with 95 % intervals."""
    names = tuple(name for metric, _, _ in _TABLE_METRICS for name in (metric, f"{metric}_low", f"{metric}_high"))
    rows = [
        (
            *asdict(setting).values(),
            *(value for metric, _, _ in _TABLE_METRICS for value in compute_overall_mean(table, setting, metric)),
        )
        for setting in config.settings()
    ]
    return (*asdict(config.settings()[0]), *names), rows


_INTERVALS = (
    "Bars and bands are 95 % bootstrap intervals over sequences. They are too narrow for few sequences. They do not "
    "include the variation between splits into folds: all sequences of a fold share one model and its hulls."
)
_ABBREVIATIONS = (
    "DoP: degree of protection of the true state, or of the released one if the true state is not in the constraint "
    "set. Error (Equation 3): root mean square distance between a release and the centre of the true cell. Errors of "
    "withheld timesteps are those of the prediction. DPLS: the complete policy on a δ-location set."
)


def _format_title(evaluation: Evaluation) -> str:
    """Return the name of the evaluation. By default it includes the names of the data."""
    config = evaluation.config
    if config.name != type(config).model_fields["name"].default:
        return config.name
    return f"{config.name} of {', '.join(Path(path).name for path in config.data)}"


def _describe_data(evaluation: Evaluation) -> str:
    """State the input files and the policies."""
    paths = [Path(path).name for path in evaluation.checkpoint.record["data_sha256"]]
    names = ", ".join(paths[:6]) + (f" and {len(paths) - 6:,} more" if len(paths) > 6 else "")
    config = evaluation.config
    return f"{len(paths):,} file{'s' if len(paths) != 1 else ''} ({names}), under {', '.join(config.policies)}."


def _tabulate_settings(
    table: StepTable, evaluation: Evaluation
) -> tuple[str, tuple[str, ...], list[tuple[str | Cell, ...]]]:
    """Return a sentence on common values, a header, and a row of values per setting."""
    settings = evaluation.config.settings()
    stated = [_describe_setting(setting) for setting in settings]
    varies = [name for name in stated[0] if len({values[name] for values in stated}) > 1 or name == "policy"]
    fixed = [f"{name} {stated[0][name]}" for name in stated[0] if name not in varies and stated[0][name]]
    means = {
        label: [f"{factor * compute_overall_mean(table, setting, metric).mean:.3g}" for setting in settings]
        for metric, label, factor in _TABLE_METRICS
    }
    differ = {label: values for label, values in means.items() if len(set(values)) > 1}
    fixed += [f"{label} {values[0]}" for label, values in means.items() if label not in differ and len(settings) > 1]
    common = f"Common to all settings: {'; '.join(fixed)}." if fixed else ""
    columns = differ if len(settings) > 1 else means
    rows: list[tuple[str | Cell, ...]] = [
        (*(values[name] for name in varies), *(values[number] for values in columns.values()))
        for number, values in enumerate(stated)
    ]
    return common, (*varies, *columns), rows


def _describe_setting(setting: Setting) -> dict[str, str]:
    """Return the parameters of a setting: name → value, empty if not applicable."""
    schedule = ((setting.target_error_km, "target {:g} km"), (setting.window_epsilon, "ε {:g} per 24 h"))
    return {
        "policy": setting.policy,
        "r, km": f"{setting.radius_km:g}" if setting.radius_km else "",
        "δ": f"{setting.delta:g}" if setting.delta else "",
        "ε": f"{setting.epsilon:g}",
        "mechanism": setting.mechanism,
        "repair": setting.repair,
        "repair_objective": setting.repair_objective if setting.repair == "exact" else "",
        "noise_scope": setting.noise_scope,
        "schedule": " ".join(words.format(value) for value, words in schedule if value),
    }


def _describe_provenance(evaluation: Evaluation, command: str) -> str:
    record = evaluation.checkpoint.record
    versions = [f"Python {platform.python_version()}", f"dphmm {dphmm.__version__}", *map(_format_version, _LIBRARIES)]
    lines = [f"$ {command}", "", ", ".join(versions), f"run by version: {record['version']}", ""]
    lines += [f"sha256 {digest}  {Path(path).name}" for path, digest in record["data_sha256"].items()]
    lines += [f"sha256 {record['configuration_sha256']}  (configuration)", ""]
    lines += [f"{key} = {value!r}" for key, value in record["configuration"].items()]
    return "\n".join(lines)


def _format_version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
