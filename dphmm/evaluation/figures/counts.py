"""Figures 3 to 6 of Cao et al. (DBSec 2023), and the estimators on GeoLife.

The paper writes "ε" for two quantities. Section 3 and the guarantee of the Laplace mechanism concern one release, so ε
belongs to each time. The authors' code divides ε by the number of times T first, so that ε is the budget of the whole
stream, and it divides the budgets that keep temporal leakage at α by T as well. The printed results agree with the
code. Every figure is computed in both readings.

Where the paper does not state it: users start in any place with equal probability, the error of a run is the mean
squared error over times and places, and the maximum-likelihood estimate (MLE), which is not unique, is the member in
proportion to the positive parts of the noisy counts. Figure 3 rounds it to integers and breaks ties at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dphmm import counts, leakage
from dphmm.arrays import FloatArray, IntArray
from dphmm.counts.map_estimate import build_first_distribution, compute_occupancy, solve_integer_map, solve_real_map
from dphmm.counts.noisy_stream import SENSITIVITY, as_transition
from dphmm.counts.post_processing import RAW, round_to_integers
from dphmm.errors import InvalidInputError
from dphmm.evaluation.figures.base import Claim, FigureBuilder, FigureOptions, Panel, PaperFigure, Series, Verdict
from dphmm.jobs.counts import DayAlignment, Population, build_daily_population
from dphmm.mechanisms.norm_noise import sample_laplace
from dphmm.model import compute_stationary_distribution, reverse
from dphmm.random import as_random_source
from dphmm.readers import read
from dphmm.space.grid import PRESETS, Grid

# The paper's transition matrix (Section 6.1).
_CYCLE = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])

_USERS = 200
_STEPS = 500
_LEVELS = tuple(np.arange(0.2, 2.01, 0.2).round(1).tolist())
_LENGTHS = tuple(range(100, 201, 10))
_DEGREES = (0.01, 0.1, 1.0)

_PAPER_RUNS = 50

# Runs of the smoother: one run of 500 times takes a second, as long as 50 runs of the paper's estimators.
_SMOOTHER_RUNS = 5

# Ratio of errors from which the paper's "increase significantly" counts as true.
_SIGNIFICANT_GROWTH = 1.1

# Times averaged into one point of Figure 3; single times, and tens of them, scatter too much to compare curves.
_WINDOW = 50

# Probability below which the paper calls a move impossible (Section 6.1).
_MAX_IMPOSSIBLE_PROBABILITY = 1e-10

TOTAL = "ε in total: ε/T at each time"
EACH = "ε at each time"
LEAKAGE = "leakage at most α at each time"
DIVIDED = "budgets for leakage α, divided by T"

NOISY = "noisy"
MLE = "maximum likelihood (MLE)"
NEAREST = "least squares"
MAP_FREQUENCY = "MAP, frequency prior"
MAP_UNIFORM = "MAP, uniform prior"
MAP_CODE = "MAP as in the authors' code"
SMOOTHER = "smoother (this package)"

# Key of the mean distance, in users, of the MAP estimate from the expected counts ``n P^t``; not an error.
_PRIOR_DISTANCE = "distance"

_CURVES = (NOISY, MLE, MAP_FREQUENCY, MAP_UNIFORM, MAP_CODE, SMOOTHER)

# Estimator → ``(runs,)`` mean squared errors.
Errors = Mapping[str, FloatArray]


def build_smoothed_matrix(degree: float) -> FloatArray:
    """Return the paper's transition matrix with Laplacian smoothing (Equation 11).

    Parameters
    ----------
    degree : float
        The paper's s, not negative. Zero leaves the matrix unchanged; a larger s is a weaker correlation.

    Returns
    -------
    ndarray, shape (3, 3)
        A row-stochastic matrix.
    """
    shifted = _CYCLE + degree
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def compute_budgets(reading: str, level: float, matrix: FloatArray, steps: int) -> FloatArray:
    """Return the budget of each time that a level of privacy stands for.

    Parameters
    ----------
    reading : str
        `TOTAL`, `EACH`, `LEAKAGE` or `DIVIDED`.
    level : float
        ε or α, positive.
    matrix : ndarray, shape (m, m)
        Transition matrix. Budgets of ε-DP do not depend on it.
    steps : int
        Number of times T.

    Returns
    -------
    ndarray, shape (T,)
        Budgets.

    Raises
    ------
    InvalidInputError
        If the reading is unknown.
    CorrelationTooStrongError
        If no budgets keep the leakage at α.
    """
    if reading == TOTAL:
        return np.full(steps, level / steps)
    if reading == EACH:
        return np.full(steps, level)
    if reading not in (LEAKAGE, DIVIDED):
        raise InvalidInputError(
            f"reading must be one of {TOTAL!r}, {EACH!r}, {LEAKAGE!r}, {DIVIDED!r}, got {reading!r}"
        )
    # The chain is taken to be stationary, as the paper does where it derives one budget from one matrix.
    backward = reverse(matrix, compute_stationary_distribution(matrix))
    if reading == LEAKAGE:
        return np.asarray(leakage.exact_budgets(backward, matrix, level, steps))
    return np.full(steps, leakage.constant_budget(backward, matrix, level) / steps)


def simulate_counts(matrix: FloatArray, users: int, steps: int, runs: int, rng: np.random.Generator) -> IntArray:
    """Return counts of independent users with uniform initial places and given transitions.

    Parameters
    ----------
    matrix : ndarray, shape (m, m)
        Transition matrix.
    users, steps, runs : int
        Number of users, times and independent populations.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray, shape (runs, steps, m)
        Counts; each row sums to `users`.
    """
    size = len(matrix)
    true = np.empty((runs, steps, size), dtype=np.int64)
    true[:, 0] = rng.multinomial(users, np.full(size, 1.0 / size), size=runs)
    for step in range(1, steps):
        # The users of one place move independently, so the places they go to are a multinomial vector.
        true[:, step] = rng.multinomial(true[:, step - 1], matrix).sum(axis=1)
    return true


def add_noise(true: IntArray, scales: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return counts with the Laplace noise of the paper, real-valued.

    Parameters
    ----------
    true : ndarray, shape (runs, T, m)
        Counts.
    scales : ndarray, shape (T,)
        Scale of the noise at each time.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray, shape (runs, T, m)
        Noisy counts.
    """
    return np.asarray(true + scales[:, None] * sample_laplace(true.shape, as_random_source(rng)))


def estimate_map_counts(
    noisy: FloatArray, matrix: FloatArray, users: int, scales: FloatArray, uniform: bool = False, integer: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return the MAP estimates of many streams with ``P^t`` of Equation 7.

    Parameters
    ----------
    noisy : ndarray, shape (runs, T, m)
        Noisy counts.
    matrix : ndarray, shape (m, m)
        Transition matrix.
    users : int
        Number of users.
    scales : ndarray, shape (T,)
        Scale of the noise.
    uniform : bool, default False
        Whether the first distribution is uniform rather than the frequencies of the first noisy counts.
    integer : bool, default False
        Whether to return the integer optimum.

    Returns
    -------
    counts : ndarray, shape (runs, T, m)
        Estimates.
    expected : ndarray, shape (runs, T, m)
        Expected counts ``n P^t``.
    """
    transition = as_transition(matrix, len(matrix))
    starts = [build_first_distribution(stream, "uniform" if uniform else "frequency") for stream in noisy]
    occupancies = [compute_occupancy(start, transition, len(scales)) for start in starts]
    log_p = np.concatenate([occupied.log_probabilities for occupied in occupancies])
    rows = noisy.reshape(log_p.shape)
    row_scales = np.tile(scales, len(noisy))
    # No term of the objective couples two times, so the rows of all streams are solved in one call.
    if integer:
        estimates = solve_integer_map(rows, log_p, users, row_scales).astype(np.float64)
    else:
        estimates = solve_real_map(rows, log_p, users, row_scales)[0]
    expected = users * np.array([occupied.probabilities for occupied in occupancies])
    return estimates.reshape(noisy.shape), expected


def estimate_map_from_previous(noisy: FloatArray, matrix: FloatArray, users: int, scales: FloatArray) -> IntArray:
    """Return the integer MAP estimate with ``P^t`` from the previous estimate.

    ``P^t`` is the previous estimate times the transition matrix, as in the authors' code, in place of Equation 7. The
    estimate of one time then excludes the places that its own predecessor cannot reach, which Equation 7 does not.

    Parameters
    ----------
    noisy : ndarray, shape (runs, T, m)
        Noisy counts.
    matrix : ndarray, shape (m, m)
        Transition matrix.
    users : int
        Number of users.
    scales : ndarray, shape (T,)
        Scale of the noise.

    Returns
    -------
    ndarray, shape (runs, T, m)
        Estimates.
    """
    estimates = np.empty(noisy.shape, dtype=np.int64)
    probabilities = np.array([build_first_distribution(stream, "frequency") for stream in noisy])
    for step, scale in enumerate(scales):
        with np.errstate(divide="ignore"):
            log_p = np.log(probabilities)
        estimates[:, step] = solve_integer_map(noisy[:, step], log_p, users, np.full(len(noisy), scale))
        probabilities = estimates[:, step] / users @ matrix
    return estimates


def measure_errors(
    matrix: FloatArray,
    budgets: FloatArray,
    runs: int,
    rng: np.random.Generator,
    users: int = _USERS,
    smoother_runs: int = _SMOOTHER_RUNS,
) -> dict[str, FloatArray]:
    """Return the errors of all estimators on simulated streams.

    Parameters
    ----------
    matrix : ndarray, shape (m, m)
        Transition matrix.
    budgets : ndarray, shape (T,)
        Budget of each time.
    runs : int
        Number of streams.
    rng : numpy.random.Generator
        Source of the streams and of the noise.
    users : int
        Number of users.
    smoother_runs : int
        Number of streams, from the first on, that the smoother estimates. It is omitted if zero.

    Returns
    -------
    dict
        Estimator → mean squared error of each stream, over times and places.
    """
    scales = SENSITIVITY / budgets
    true = simulate_counts(matrix, users, len(budgets), runs, rng)
    noisy = add_noise(true, scales, rng)
    rows = noisy.reshape(-1, noisy.shape[2])
    frequency, expected = estimate_map_counts(noisy, matrix, users, scales)
    estimates = {
        NOISY: noisy,
        MLE: counts.maximum_likelihood(rows, users).reshape(noisy.shape),
        NEAREST: counts.least_squares(rows, users).reshape(noisy.shape),
        MAP_FREQUENCY: frequency,
        MAP_UNIFORM: estimate_map_counts(noisy, matrix, users, scales, uniform=True)[0],
        MAP_CODE: estimate_map_from_previous(noisy, matrix, users, scales),
    }
    if smoother_runs:
        smooth = [counts.estimate("coupled", stream, matrix, users, scales) for stream in noisy[:smoother_runs]]
        estimates[SMOOTHER] = np.array(smooth)
    errors = {
        name: np.asarray(((estimate - true[: len(estimate)]) ** 2).mean(axis=(1, 2)))
        for name, estimate in estimates.items()
    }
    return errors | {_PRIOR_DISTANCE: np.abs(frequency - expected).mean(axis=(1, 2))}


class Interval(NamedTuple):
    """An estimate with its 95 % interval. The ends are NaN for a single run."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_format_number(self.value)} ({_format_number(self.low)} to {_format_number(self.high)})"


def _format_number(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def compute_mean_interval(values: FloatArray) -> Interval:
    """Return the mean of independent runs with Student's 95 % interval.

    Parameters
    ----------
    values : ndarray, shape (runs,)
        One value per run.

    Returns
    -------
    Interval
        The mean and the ends of its interval.
    """
    mean = float(values.mean())
    margin = _compute_t_quantile(len(values)) * _compute_standard_error(values)
    return Interval(mean, mean - margin, mean + margin)


def compute_ratio_interval(numerator: FloatArray, denominator: FloatArray, paired: bool = True) -> Interval:
    """Return the ratio of two means with its 95 % interval (delta method on the logarithm).

    Parameters
    ----------
    numerator, denominator : ndarray, shape (runs,)
        One positive value per run. Paired values are cut to the shorter of the two.
    paired : bool, default True
        Whether both come from the same runs.

    Returns
    -------
    Interval
        The ratio and the ends of its interval.
    """
    if paired:
        size = min(len(numerator), len(denominator))
        numerator = numerator[:size]
        denominator = denominator[:size]
    ratio = float(numerator.mean() / denominator.mean())
    if paired:
        error = _compute_standard_error(numerator - ratio * denominator) / float(numerator.mean())
    else:
        error = math.hypot(
            *(_compute_standard_error(values) / float(values.mean()) for values in (numerator, denominator))
        )
    # The margin is that of the logarithm, which keeps the ends of the interval positive.
    margin = math.exp(_compute_t_quantile(min(len(numerator), len(denominator))) * error)
    return Interval(ratio, ratio / margin, ratio * margin)


def _compute_standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _compute_t_quantile(runs: int) -> float:
    return float(stdtrit(runs - 1, 0.975)) if runs > 1 else float("nan")


def decide(intervals: Iterable[Interval], minimum: float, maximum: float = np.inf) -> Verdict:
    """Decide from their intervals whether values lie within bounds.

    Parameters
    ----------
    intervals : iterable of Interval
        Values.
    minimum, maximum : float
        Bounds.

    Returns
    -------
    {"holds", "does not hold", "not decided"}
        ``"holds"`` if all intervals lie within the bounds, ``"does not hold"`` if one lies outside.
    """
    bounded = list(intervals)
    if all(interval.low >= minimum and interval.high <= maximum for interval in bounded):
        return "holds"
    # Ends are NaN after a single run; no comparison with them is true, so nothing is decided.
    if any(interval.high < minimum or interval.low > maximum for interval in bounded):
        return "does not hold"
    return "not decided"


def _format_range(intervals: Sequence[Interval]) -> str:
    """Return one interval, or the range of several values with that of their ends."""
    if len(intervals) == 1:
        return str(intervals[0])
    values = [interval.value for interval in intervals]
    ends = Interval(min(values), min(each.low for each in intervals), max(each.high for each in intervals))
    return (
        f"{_format_number(min(values))} to {_format_number(max(values))} ({_format_number(ends.low)} to "
        f"{_format_number(ends.high)})"
    )


def _format_map_ratios(baseline: str, ratios: Mapping[str, Sequence[Interval]]) -> str:
    """State the error of a baseline divided by that of MAP with each prior."""
    return f"{baseline} / MAP: " + "; ".join(
        f"{name.removeprefix('MAP, ').removesuffix(' prior')} {_format_range(intervals)}"
        for name, intervals in ratios.items()
    )


@dataclass(frozen=True)
class Sweep:
    """The errors of all estimators over a range of settings, in one reading of the budget.

    Parameters
    ----------
    reading : str
        `TOTAL`, `EACH`, `LEAKAGE` or `DIVIDED`.
    values : tuple of float
        The settings.
    errors : tuple of mappings
        `measure_errors` for each setting.
    """

    reading: str
    values: tuple[float, ...]
    errors: tuple[Errors, ...]

    def build_panel(self, title: str, x_label: str, log_x: bool = False, curves: Sequence[str] = _CURVES) -> Panel:
        """Return the curves of estimators."""
        series = [self._build_series(name) for name in curves if name in self.errors[0]]
        return Panel(title, x_label, "mean squared error", series, (), "log" if log_x else "linear", "log")

    def _build_series(self, name: str) -> Series:
        means = [compute_mean_interval(errors[name]) for errors in self.errors]
        # A logarithmic axis has no place for an end below zero, which few runs may give.
        lows = [max(mean.low, mean.value / 100) for mean in means]
        value = [mean.value for mean in means]
        high = [mean.high for mean in means]
        return Series(name, np.array(self.values), np.array(value), np.array(lows), np.array(high))

    def compute_ratios(self, numerator: str, denominator: str) -> list[Interval]:
        """Return the error of one estimator over that of another, for each setting."""
        return [compute_ratio_interval(errors[numerator], errors[denominator]) for errors in self.errors]

    def compute_change(self, name: str, paired: bool) -> Interval:
        """Return the error at the last setting over that at the first."""
        return compute_ratio_interval(self.errors[-1][name], self.errors[0][name], paired)


def _measure_sweep(
    options: FigureOptions,
    figure: int,
    reading: str,
    values: Sequence[float],
    measure: Callable[[float, np.random.Generator], Errors],
) -> Sweep:
    """Measure errors over settings. Settings with equal T and matrix have equal streams."""
    bar = options.progress(values, f"Figure {figure}, {reading}")
    errors = tuple(measure(value, np.random.default_rng([options.seed, figure])) for value in bar)
    return Sweep(reading, tuple(map(float, values)), errors)


def _judge_hundredfold_reduction(figure: str, sweep: Sweep, levels: str, statement: str) -> Claim:
    """Return the claim of a nearly hundredfold reduction at all settings of a sweep."""
    ratios = {name: sweep.compute_ratios(MLE, name) for name in (MAP_FREQUENCY, MAP_UNIFORM)}
    nearest = sweep.compute_ratios(NEAREST, MAP_FREQUENCY)
    return Claim(
        figure,
        f"{statement} ({sweep.reading}, {levels}).",
        "nearly 100 times",
        f"{_format_map_ratios('MLE', ratios)}; least squares / frequency {_format_range(nearest)}",
        decide([ratio for values in ratios.values() for ratio in values], 50, 200),
        "50 to 200 times counts as nearly 100. The MLE is not unique: least squares is its nearest member.",
    )


def _judge_improvement(
    figure: str,
    sweep: Sweep,
    baseline: str,
    what: str,
    settings: str,
    estimators: Sequence[str] = (MAP_FREQUENCY, MAP_UNIFORM),
) -> Claim:
    """Return the claim that MAP has a smaller error than a baseline at all settings."""
    ratios = {name: sweep.compute_ratios(baseline, name) for name in estimators}
    verdict = decide([ratio for values in ratios.values() for ratio in values], 1.0)
    worst = [
        index
        for index, pair in enumerate(zip(*ratios.values(), strict=True))
        if any(ratio.high < 1.0 for ratio in pair)
    ]
    measured = _format_map_ratios("MLE" if baseline == MLE else baseline, ratios)
    stated = [f"{sweep.values[index]:g}" for index in worst]
    if len(worst) > 2 and worst[-1] - worst[0] == len(worst) - 1:
        stated = [f"{stated[0]} to {stated[-1]}"]
    reason = f"MAP has the larger error at {', '.join(stated)}." if worst else ""
    return Claim(figure, f"{what} ({sweep.reading}, {settings}).", "not printed", measured, verdict, reason)


def _judge_decrease(figure: str, sweep: Sweep, letter: str) -> Claim:
    """Return the claim that errors fall as the budget grows."""
    names = (MLE, MAP_FREQUENCY, MAP_UNIFORM)
    changes = [sweep.compute_change(name, paired=True) for name in names]
    # In per cent: a ratio rounded to three digits would hide whether it is below one.
    percents = [[_format_number(100 * (end - 1)) for end in change] for change in changes]
    measured = "; ".join(
        f"{label} {value} % ({low} to {high})"
        for label, (value, low, high) in zip(("MLE", "frequency", "uniform"), percents, strict=True)
    )
    return Claim(
        figure,
        f"The error falls as {letter} grows ({sweep.reading}, from {letter} = {sweep.values[0]:g} to "
        f"{sweep.values[-1]:g}).",
        "not printed",
        measured,
        decide(changes, 0.0, 1.0),
    )


def build_figure_3(options: FigureOptions, steps: int = _STEPS) -> PaperFigure:
    """Compute Figure 3: one user, ε = 1, errors over time and moves that are impossible.

    Parameters
    ----------
    options : FigureOptions
        Runs, seed and progress.
    steps : int
        Number of times, a multiple of 50.

    Returns
    -------
    PaperFigure
        Panels of errors and of impossible moves, in both readings of ε.

    Raises
    ------
    InvalidInputError
        If the number of times is not a positive multiple of 50.
    """
    if steps < 1 or steps % _WINDOW:
        raise InvalidInputError(f"steps must be a positive multiple of {_WINDOW}, got {steps}")
    runs = options.num_runs(_PAPER_RUNS)
    errors = []
    moves = []
    claims = list[Claim]()
    for reading in options.progress((TOTAL, EACH), "Figure 3"):
        rng = np.random.default_rng([options.seed, 3])
        scales = SENSITIVITY / compute_budgets(reading, 1.0, _CYCLE, steps)
        true = simulate_counts(_CYCLE, 1, steps, runs, rng)
        estimates = _compute_integer_estimates(add_noise(true, scales, rng), scales, rng)
        squares = {name: ((counts - true) ** 2).mean(axis=2) for name, counts in estimates.items()}
        impossible = {name: _find_impossible_moves(counts) for name, counts in estimates.items()}
        errors.append(_build_time_panel(f"(a) {reading}", "mean squared error", squares))
        moves.append(_build_time_panel(f"(b) {reading}", "share of impossible moves", impossible))
        claims += _judge_figure_3(reading, squares, impossible)
    caption = (
        f"One user, ε = 1, s = 0, T = {steps}, mean of {runs} runs, {_WINDOW} times per point. Estimates are integers. "
        "(a) Mean squared error. (b) Share of moves between successive estimates with probability below "
        f"{_MAX_IMPOSSIBLE_PROBABILITY:g}. Bands are 95 % intervals."
    )
    return PaperFigure("figure_3", caption, [*errors, *moves], claims)


def _compute_integer_estimates(noisy: FloatArray, scales: FloatArray, rng: np.random.Generator) -> dict[str, IntArray]:
    """Return where each estimator places a single user, as counts."""
    rows = counts.maximum_likelihood(noisy.reshape(-1, noisy.shape[2]), 1)
    # Without a positive noisy count all places are equally likely. Rounding would choose the first of them, so the
    # places are rounded in random order.
    order = rng.permuted(np.broadcast_to(np.arange(rows.shape[1]), rows.shape), axis=1)
    likeliest = np.empty(rows.shape, dtype=np.int64)
    np.put_along_axis(likeliest, order, round_to_integers(np.take_along_axis(rows, order, axis=1), 1), axis=1)
    return {
        MLE: likeliest.reshape(noisy.shape),
        MAP_FREQUENCY: estimate_map_counts(noisy, _CYCLE, 1, scales, integer=True)[0].astype(np.int64),
        MAP_UNIFORM: estimate_map_counts(noisy, _CYCLE, 1, scales, uniform=True, integer=True)[0].astype(np.int64),
        MAP_CODE: estimate_map_from_previous(noisy, _CYCLE, 1, scales),
    }


def _find_impossible_moves(estimates: IntArray) -> FloatArray:
    """Return a ``(runs, T)`` mask of a user's impossible moves. NaN at the first time."""
    places = estimates.argmax(axis=2)
    impossible = np.full(places.shape, np.nan)
    impossible[:, 1:] = _CYCLE[places[:, :-1], places[:, 1:]] < _MAX_IMPOSSIBLE_PROBABILITY
    return impossible


def _build_time_panel(title: str, y_label: str, values: Mapping[str, FloatArray]) -> Panel:
    """Return curves over time, each point the mean of a window of times."""
    series = []
    for name, array in values.items():
        windows = np.nanmean(array.reshape(len(array), -1, _WINDOW), axis=2)
        intervals = [compute_mean_interval(window) for window in windows.T]
        middles = np.arange(windows.shape[1]) * _WINDOW + (_WINDOW + 1) / 2
        series.append(Series(name, middles, *np.array(intervals).T))
    return Panel(title, "time", y_label, series)


def _judge_figure_3(reading: str, squares: Errors, impossible: Errors) -> list[Claim]:
    shares = {name: compute_mean_interval(np.nanmean(array, axis=1)) for name, array in impossible.items()}
    better = [
        compute_ratio_interval(squares[MLE].mean(axis=1), squares[name].mean(axis=1))
        for name in (MAP_FREQUENCY, MAP_UNIFORM)
    ]
    claims = [
        Claim(
            "Figure 3(a)",
            f"MAP is closer to the true counts than the MLE ({reading}).",
            "not printed",
            _format_map_ratios("MLE", {MAP_FREQUENCY: better[:1], MAP_UNIFORM: better[1:]}),
            decide(better, 1.0),
        ),
        Claim(
            "Figure 3(b)",
            f"Many moves of the MLE have a probability below 1e-10 ({reading}).",
            "many",
            f"share {shares[MLE]}",
            decide([shares[MLE]], 0.1),
            "One move in ten or more counts as many.",
        ),
    ]
    for name, reason in (
        (MAP_FREQUENCY, "P^t of Equation 7 does not depend on the previous estimate."),
        (MAP_UNIFORM, "P^t of Equation 7 does not depend on the previous estimate."),
        (MAP_CODE, "P^t is the previous estimate times the matrix, which excludes impossible moves."),
    ):
        share = shares[name]
        verdict: Verdict = "holds" if share.value == 0 else "does not hold"
        claims.append(
            Claim(
                "Figure 3(b)",
                f"MAP preserves the correlations, with no impossible moves ({name.removeprefix('MAP, ')}, {reading}).",
                "none",
                f"share {share}",
                verdict,
                reason,
            )
        )
    return claims


def build_figure_4(
    options: FigureOptions,
    levels: Sequence[float] = _LEVELS,
    steps: int = _STEPS,
    smoother_runs: int = _SMOOTHER_RUNS,
) -> PaperFigure:
    """Compute Figure 4: errors over ε (s = 0) and over α (s = 0.01).

    Parameters
    ----------
    options : FigureOptions
        Runs, seed and progress.
    levels : sequence of float
        Values of ε and α.
    steps : int
        Number of times.
    smoother_runs : int
        Runs of the smoother.

    Returns
    -------
    PaperFigure
        Panels in both readings of each budget.
    """
    runs = options.num_runs(_PAPER_RUNS)
    panels = list[Panel]()
    claims = list[Claim]()
    for part, letter, degree, readings in (("a", "ε", 0.0, (TOTAL, EACH)), ("b", "α", 0.01, (LEAKAGE, DIVIDED))):
        matrix = build_smoothed_matrix(degree)
        name = f"Figure 4({part})"
        for reading in readings:

            def measure(
                level: float, rng: np.random.Generator, matrix: FloatArray = matrix, reading: str = reading
            ) -> Errors:
                budgets = compute_budgets(reading, level, matrix, steps)
                return measure_errors(matrix, budgets, runs, rng, smoother_runs=min(runs, smoother_runs))

            sweep = _measure_sweep(options, 4, reading, levels, measure)
            panels.append(sweep.build_panel(f"({part}) {reading}, s = {degree:g}", letter))
            settings = f"{letter} = {levels[0]:g} to {levels[-1]:g}"
            claims += [
                _judge_hundredfold_reduction(
                    name, sweep, settings, "The error of MAP is nearly 100 times below that of the MLE"
                ),
                _judge_hundredfold_reduction(
                    "Abstract",
                    Sweep(reading, sweep.values[:1], sweep.errors[:1]),
                    f"{letter} = {levels[0]:g}",
                    "Nearly 100 times smaller error under a strict privacy budget",
                ),
                _judge_decrease(name, sweep, letter),
                _judge_improvement(name, sweep, NOISY, "MAP improves on the noisy counts", settings),
                _judge_improvement(name, sweep, MLE, "MAP is below the MLE under any budget", settings),
                _judge_prior_dominance(sweep, letter),
            ]
    return PaperFigure("figure_4", _format_caption(f"T = {steps}", runs, smoother_runs), panels, claims)


def _judge_prior_dominance(sweep: Sweep, letter: str) -> Claim:
    """Return the claim that correlations dominate under strict budgets, counts under lax ones."""
    first, last = (compute_mean_interval(errors[_PRIOR_DISTANCE]) for errors in (sweep.errors[0], sweep.errors[-1]))
    return Claim(
        "Section 6.1",
        f"Correlations dominate MAP under a strict budget, noisy counts under a lax one ({sweep.reading}, {letter} = "
        f"{sweep.values[0]:g}, {sweep.values[-1]:g}).",
        "not printed",
        f"mean distance from n P^t in users per place: {first}, {last}",
        decide([sweep.compute_change(_PRIOR_DISTANCE, paired=True)], 1.0),
    )


def build_figure_5(
    options: FigureOptions,
    lengths: Sequence[int] = _LENGTHS,
    smoother_runs: int = _SMOOTHER_RUNS,
) -> PaperFigure:
    """Compute Figure 5: errors over the number of times T, at ε = α = 1 and s = 0.01.

    Parameters
    ----------
    options : FigureOptions
        Runs, seed and progress.
    lengths : sequence of int
        Values of T.
    smoother_runs : int
        Runs of the smoother.

    Returns
    -------
    PaperFigure
        Panels in both readings of each budget.
    """
    runs = options.num_runs(_PAPER_RUNS)
    matrix = build_smoothed_matrix(0.01)
    panels = list[Panel]()
    claims = list[Claim]()
    for reading in (TOTAL, EACH, LEAKAGE, DIVIDED):

        def measure(length: float, rng: np.random.Generator, reading: str = reading) -> Errors:
            budgets = compute_budgets(reading, 1.0, matrix, int(length))
            return measure_errors(matrix, budgets, runs, rng, smoother_runs=min(runs, smoother_runs))

        sweep = _measure_sweep(options, 5, reading, lengths, measure)
        panels.append(sweep.build_panel(f"{reading}", "number of times T"))
        settings = f"T = {lengths[0]} to {lengths[-1]}"
        # Streams of different lengths share no runs.
        changes = {name: sweep.compute_change(name, paired=False) for name in (NOISY, MLE, MAP_FREQUENCY, MAP_UNIFORM)}
        claims += [
            Claim(
                "Figure 5",
                f"Errors grow with T ({reading}, from T = {lengths[0]} to {lengths[-1]}).",
                "increase significantly",
                "last T / first T: "
                + "; ".join(
                    f"{label} {change}"
                    for label, change in zip((NOISY, "MLE", "frequency", "uniform"), changes.values(), strict=True)
                ),
                decide([changes[NOISY]], _SIGNIFICANT_GROWTH),
                "Decided for the noisy counts, with a tenth or more as significant."
                + (" Budgets of each time do not depend on T." if reading in (EACH, LEAKAGE) else ""),
            ),
            _judge_improvement("Figure 5", sweep, MLE, "MAP is below the MLE", settings),
        ]
    caption = _format_caption("s = 0.01, ε = α = 1", runs, smoother_runs)
    return PaperFigure("figure_5", caption, panels, claims)


def build_figure_6(
    options: FigureOptions,
    degrees: Sequence[float] = _DEGREES,
    steps: int = _STEPS,
    smoother_runs: int = _SMOOTHER_RUNS,
) -> PaperFigure:
    """Compute Figure 6: errors over the degree of correlation, at ε = α = 1.

    Parameters
    ----------
    options : FigureOptions
        Runs, seed and progress.
    degrees : sequence of float
        Values of s in increasing order, that is from strong to weak correlation.
    steps : int
        Number of times.
    smoother_runs : int
        Runs of the smoother.

    Returns
    -------
    PaperFigure
        Panels in both readings of each budget.
    """
    runs = options.num_runs(_PAPER_RUNS)
    panels = list[Panel]()
    claims = list[Claim]()
    for reading in (TOTAL, EACH, LEAKAGE, DIVIDED):

        def measure(degree: float, rng: np.random.Generator, reading: str = reading) -> Errors:
            matrix = build_smoothed_matrix(degree)
            budgets = compute_budgets(reading, 1.0, matrix, steps)
            return measure_errors(matrix, budgets, runs, rng, smoother_runs=min(runs, smoother_runs))

        sweep = _measure_sweep(options, 6, reading, degrees, measure)
        panels.append(sweep.build_panel(f"{reading}", "s (small: strong correlation)", log_x=True))
        settings = "s = " + ", ".join(f"{degree:g}" for degree in degrees)
        claims.append(_judge_improvement("Figure 6", sweep, MLE, "MAP is below the MLE", settings))
    claims += _judge_without_correlations(options, runs, steps)
    caption = _format_caption(f"T = {steps}, ε = α = 1", runs, smoother_runs)
    return PaperFigure("figure_6", caption, panels, claims)


def _judge_without_correlations(options: FigureOptions, runs: int, steps: int) -> list[Claim]:
    """Return the claim that MAP becomes the MLE if all transitions are equally probable."""
    matrix = np.full(_CYCLE.shape, 1 / len(_CYCLE))
    claims = []
    # Without correlations the leakage is ε, so that the two readings of α equal those of ε.
    for reading in (TOTAL, EACH):
        budgets = compute_budgets(reading, 1.0, matrix, steps)
        errors = measure_errors(matrix, budgets, runs, np.random.default_rng([options.seed, 6]), smoother_runs=0)
        ratios = {name: [compute_ratio_interval(errors[MLE], errors[name])] for name in (MAP_FREQUENCY, MAP_UNIFORM)}
        claims.append(
            Claim(
                "Section 5.3",
                f"Without correlations MAP becomes the MLE ({reading}, uniform matrix).",
                "equal",
                _format_map_ratios("MLE", ratios),
                decide([ratio for (ratio,) in ratios.values()], 0.9, 1.1),
                "A ratio of 0.9 to 1.1 counts as equal. Equation 8 with a uniform P^t still pulls counts to n / m.",
            )
        )
    return claims


def _format_caption(setting: str, runs: int, smoother_runs: int) -> str:
    smoothed = f" ({min(runs, smoother_runs)} for the smoother)" if smoother_runs else ""
    return (
        f"Mean squared error over times and places with {_USERS} users, 3 places, {setting}. Mean of {runs} "
        f"runs{smoothed}, bands are 95 % intervals."
    )


_GEOLIFE_RUNS = 5
_GEOLIFE_LEVELS = (0.1, 0.2, 0.5, 1.0, 2.0)
# Local hours from 8 to 20 in Beijing; a day counts if its user is seen at one time in six or more.
_DAYS = DayAlignment((8, 20), 8, 1 / 6)

_STEP_SECONDS = 600.0
# Added to every move: without it, a move that no public day contains would count as impossible.
_PSEUDO_COUNT = 0.01

MAP_LEARNED = "MAP, learned prior"
FILTER = "filter (this package)"

# Name in `dphmm.counts.compare` → label.
_GEOLIFE_CURVES = {
    RAW: NOISY,
    "maximum-likelihood": MLE,
    "least-squares": NEAREST,
    "single": MAP_LEARNED,
    "online": FILTER,
    "coupled": SMOOTHER,
}


def build_geolife_figure(
    options: FigureOptions,
    box: tuple[float, float, float, float] = PRESETS["geolife"][0],
    cell_km: float = 2.0,
    levels: Sequence[float] = _GEOLIFE_LEVELS,
) -> PaperFigure:
    """Compare the estimators on GeoLife, which the paper announces and does not show.

    A member of the population is one day of one user. The transition matrix and the first distribution are trained on
    the days of half of the users, and the days of the other half are counted.

    Parameters
    ----------
    options : FigureOptions
        Runs, seed, progress and the data set.
    box : tuple of float
        South, west, north and east in degrees.
    cell_km : float
        Side of a place in kilometres.
    levels : sequence of float
        Values of ε.

    Returns
    -------
    PaperFigure
        Errors in both readings of ε, and the place with the largest variance of its count.

    Raises
    ------
    InvalidInputError
        If the options name no data set.
    CountError
        If no day lies in the box.
    """
    if options.geolife is None:
        raise InvalidInputError("geolife must be the folder or archive of the data set, got None")
    runs = options.num_runs(_GEOLIFE_RUNS)
    grid = Grid.over(box, cell_km)
    users = read(options.geolife, "geolife", skip_bad=True).trajectories
    public, private = _split_days(build_daily_population(users, grid, _STEP_SECONDS, _DAYS), options.seed)
    matrix, first = _learn_chain(public)
    true = private.counts
    panels = list[Panel]()
    claims = list[Claim]()
    for reading in (TOTAL, EACH):
        errors = []
        for level in options.progress(levels, f"GeoLife, {reading}"):
            budgets = compute_budgets(reading, level, matrix, len(true))
            measured = counts.compare(true, budgets, matrix, first, runs=runs, rng=options.seed)
            errors.append({_GEOLIFE_CURVES[name]: values for name, values in measured.items()})
        sweep = Sweep(reading, tuple(map(float, levels)), tuple(errors))
        panels.append(sweep.build_panel(reading, "ε", log_x=True, curves=tuple(_GEOLIFE_CURVES.values())))
        settings = f"GeoLife, ε = {levels[0]:g} to {levels[-1]:g}"
        claims.append(_judge_improvement("Section 6", sweep, MLE, "MAP is below the MLE", settings, (MAP_LEARNED,)))
    panels.append(_build_busiest_place_panel(true, matrix, first, options.seed))
    caption = (
        f"{len(private.members)} days of GeoLife users in {grid.size} places at {len(true)} times. "
        f"{len(public.members)} days of other users teach the matrix. A recorded position supports "
        f"{private.seen.mean():.0%} of the states, the others repeat the last one. Mean of {runs} runs, bands are 95 % "
        "intervals. The last panel shows one run at ε = 1 at each time."
    )
    return PaperFigure("geolife", caption, panels, claims)


def _split_days(days: Population, seed: int) -> tuple[Population, Population]:
    """Return the days of half of the users and those of the other half."""
    owners = np.array([name.split(" ")[0] for name in days.members])
    users = np.random.default_rng(seed).permutation(np.unique(owners))
    is_public = np.isin(owners, users[: len(users) // 2])
    return days.select_members(is_public), days.select_members(~is_public)


def _learn_chain(days: Population) -> tuple[FloatArray, FloatArray]:
    """Return the transition matrix and the first distribution of a population."""
    moves = np.full((days.size, days.size), _PSEUDO_COUNT)
    np.add.at(moves, (days.states[:, :-1].ravel(), days.states[:, 1:].ravel()), 1.0)
    first = np.bincount(days.states[:, 0], minlength=days.size) + _PSEUDO_COUNT
    return moves / moves.sum(axis=1, keepdims=True), first / first.sum()


def _build_busiest_place_panel(true: IntArray, matrix: FloatArray, first: FloatArray, seed: int) -> Panel:
    """Return the true, noisy and estimated counts of the place with the largest variance."""
    place = int(true.var(axis=0).argmax())
    users = int(true[0].sum())
    noisy = counts.release(true, 1.0, rng=seed)
    estimates: dict[str, FloatArray] = {"true": true.astype(np.float64), NOISY: noisy.astype(np.float64)}
    for name in ("single", "coupled"):
        repaired = counts.estimate(name, noisy, matrix, users, SENSITIVITY, first)
        estimates[_GEOLIFE_CURVES[name]] = np.asarray(repaired, dtype=np.float64)
    opening, closing = _DAYS.hours
    hours = opening + np.arange(len(true)) * (closing - opening) / len(true)
    series = [Series(name, hours, values[:, place], dashed=name == "true") for name, values in estimates.items()]
    return Panel("one place, ε = 1 at each time", "local hour", "members in the place", series)


# The figures of the paper, and the comparison on real data that it announces.
FIGURES: tuple[FigureBuilder, ...] = (
    FigureBuilder("figure_3", "One user: errors over time, and impossible moves", build_figure_3),
    FigureBuilder("figure_4", "Errors over ε and over α", build_figure_4),
    FigureBuilder("figure_5", "Errors over the number of times", build_figure_5),
    FigureBuilder("figure_6", "Errors over the degree of correlation", build_figure_6),
    FigureBuilder(
        "geolife", "The estimators on days of GeoLife users (beyond the paper)", build_geolife_figure, ("geolife",)
    ),
)
