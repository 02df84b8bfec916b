"""Budgets, correlation and errors of landmark privacy, as in the landmark paper.

Source: M. Katsomallos, K. Tzompanaki, D. Kotzinos, "Landmark Privacy: Configurable Differential Privacy Protection for
Time Series", CODASPY 2022 ("the landmark paper").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dphmm import landmarks
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError
from dphmm.evaluation.figures.base import Claim, FigureBuilder, FigureOptions, Panel, PaperFigure, Series, judge
from dphmm.jobs.progress import ProgressCallback
from dphmm.readers import read
from dphmm.space.projection import LocalProjection

# Timestamps of the paper's scenario.
TIMES = np.arange(1, 9)

# Landmarks of the paper's scenario: p1, p3, p5 and p8.
SCENARIO = np.array([1, 3, 5, 8])

# Landmarks of the neighbouring series.
NEIGHBOUR = np.array([1, 3, 5])

# A stationary chain of two states, which is its own reverse.
STATIONARY_CHAIN = np.array([[0.9998, 0.0002], [0.9881, 0.0119]])

# Numbers that differ by less count as equal.
_TOLERANCE = 1e-9


# ---- The scenario: budgets of the schemes ----


def build_scenario(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute the budgets of the schemes in the scenario of eight timestamps."""
    epsilon = 1.0
    budgets = {
        "Skip": landmarks.skip_scheme(TIMES, SCENARIO, epsilon).epsilons,
        "Uniform": landmarks.uniform_scheme(TIMES, SCENARIO, epsilon).epsilons,
        "event level": np.full(len(TIMES), epsilon),
        "user level": landmarks.uniform_scheme(TIMES, TIMES, epsilon).epsilons,
    }
    sums = {name: sum_budgets(values, SCENARIO) for name, values in budgets.items()}
    x = TIMES.astype(np.float64)
    level = Series("ε", x[[0, -1]], np.full(2, epsilon), dashed=True)
    panels = [
        Panel(
            "(a) budget of each timestamp",
            "timestamp",
            "budget",
            # Skip is drawn first and larger: it coincides with event level in (a) and with Uniform in (b).
            [Series(name, x, values, bold=name == "Skip", points=True) for name, values in budgets.items()],
        ),
        Panel(
            "(b) budget of the landmarks and t together",
            "timestamp t",
            "sum of budgets over L ∪ {t}",
            [Series(name, x, values, bold=name == "Skip", points=True) for name, values in sums.items()] + [level],
        ),
    ]
    neighbour = landmarks.uniform_scheme(TIMES, NEIGHBOUR, epsilon).epsilons
    return PaperFigure(
        "scenario",
        "Budgets in the paper's scenario of eight timestamps with the landmarks p1, p3, p5 and p8, for ε = 1.",
        panels,
        judge_budgets(budgets, neighbour, epsilon),
    )


def sum_budgets(epsilons: FloatArray, marked: IntArray) -> FloatArray:
    """Return the sum of the budgets of ``L ∪ {t}`` for each timestamp t, shape (8,)."""
    # A landmark t is in L already and is not counted twice.
    landmark = np.isin(TIMES, marked)
    return np.asarray(epsilons[landmark].sum() + np.where(landmark, 0.0, epsilons))


def judge_budgets(budgets: Mapping[str, FloatArray], neighbour: FloatArray, epsilon: float) -> list[Claim]:
    """Judge the claims about budgets in the scenario.

    Parameters
    ----------
    budgets : mapping
        Scheme → budgets, shape (8,).
    neighbour : ndarray, shape (8,)
        Budgets of Uniform for the neighbouring series with three landmarks.
    epsilon : float
        The budget of landmark privacy.
    """
    landmark = np.isin(TIMES, SCENARIO)
    largest = {name: float(sum_budgets(values, SCENARIO).max()) for name, values in budgets.items()}
    uniform = budgets["Uniform"]
    user = budgets["user level"]
    skip = budgets["Skip"]
    return [
        Claim(
            "Scenario",
            "Uniform spends ε/5 at each timestamp with four landmarks.",
            "not printed",
            _format_range(uniform),
            judge(np.allclose(uniform, epsilon / 5, rtol=0, atol=_TOLERANCE)),
        ),
        Claim(
            "Scenario",
            "Uniform spends ε/4 at each timestamp of the neighbouring series with three landmarks.",
            "not printed",
            _format_range(neighbour),
            judge(np.allclose(neighbour, epsilon / 4, rtol=0, atol=_TOLERANCE)),
        ),
        Claim(
            "Theorem on landmark privacy",
            "The budgets of Uniform and Skip over L ∪ {t} sum to at most ε for every t.",
            "at most ε",
            f"at most {largest['Uniform']:g} (Uniform) and {largest['Skip']:g} (Skip)",
            judge(max(largest["Uniform"], largest["Skip"]) <= epsilon + _TOLERANCE),
        ),
        Claim(
            "Scenario",
            "Skip spends the whole budget at each regular timestamp, as event-level privacy does.",
            "ε",
            f"{_format_range(skip[~landmark])} at regular timestamps, {_format_range(skip[landmark])} at landmarks",
            judge(
                bool((np.abs(skip[~landmark] - budgets["event level"][~landmark]) < _TOLERANCE).all())
                and not skip[landmark].any()
            ),
        ),
        Claim(
            "Section on the theorem",
            "User-level privacy achieves landmark privacy but adds more noise than Uniform.",
            "not printed",
            f"at most {largest['user level']:g} over L ∪ {{t}}; budget {_format_range(user)} against "
            f"{_format_range(uniform)}",
            judge(bool(largest["user level"] <= epsilon + _TOLERANCE and (user < uniform).all())),
        ),
    ]


# ---- Adaptive ----


def build_adaptive(options: FigureOptions) -> PaperFigure:
    """Compute the sampling rate and the budgets of Adaptive for two series."""
    return compute_adaptive_figure(60, 12, options.num_runs(100), options.seed)


def compute_adaptive_figure(steps: int, num_landmarks: int, runs: int, seed: int) -> PaperFigure:
    """Release a constant and a changing series with Adaptive.

    Parameters
    ----------
    steps : int
        Number of timestamps T.
    num_landmarks : int
        Number of landmarks, evenly spread over the timestamps.
    runs : int
        Number of releases of each series.
    seed : int
        Seed of the coins, the series and the noise.
    """
    epsilon = 1.0
    times = np.arange(1, steps + 1)
    marked = np.unique(np.linspace(1, steps, num_landmarks).round().astype(np.int64))
    rates = {}
    budgets = {}
    for name, spread in (("constant series", 0.0), ("changing series", 1000.0)):
        releases = [
            _release_adaptively(times, marked, epsilon, spread, np.random.default_rng([seed, run, int(spread)]))
            for run in range(runs)
        ]
        rates[name] = np.array([rate for rate, _ in releases])
        budgets[name] = np.array([spent for _, spent in releases])
    x = times.astype(np.float64)
    uniform = landmarks.uniform_scheme(times, marked, epsilon).epsilons
    panels = [
        Panel(
            "(a) sampling rate",
            "timestamp",
            "probability of a publication",
            [Series.from_runs(name, x, values) for name, values in rates.items()],
        ),
        Panel(
            "(b) budget of a publication",
            "timestamp",
            "budget",
            [
                *(Series.from_runs(name, x, _compute_published_mean(values)) for name, values in budgets.items()),
                Series("Uniform", x, uniform, dashed=True),
            ],
        ),
    ]
    return PaperFigure(
        "adaptive",
        f"Adaptive on {steps} timestamps with {len(marked)} landmarks: means of {runs} {_pluralize_runs(runs)} with "
        "95 % "
        "intervals. The changing series moves by up to 1000 times its sensitivity at each timestamp; (b) has the mean "
        "budget of the publications so far. The paper does not state a number of runs.",
        panels,
        judge_adaptive(rates["constant series"], rates["changing series"], budgets, np.isin(times, marked), epsilon),
    )


def _release_adaptively(
    times: IntArray, marked: IntArray, epsilon: float, spread: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return the sampling rates and the budgets of one release of a random series."""
    scheme = landmarks.Adaptive(times, marked, epsilon, 1.0, rng=rng)
    noise = landmarks.laplace_noise(1.0, rng)
    values = spread * rng.random(len(times))
    rates = [scheme.step(lambda budget, value=value: noise([value], budget)).rate for value in values]  # type: ignore[misc]  # the type of a lambda with a default is not inferred
    return np.array(rates), scheme.budget.epsilons


def _compute_published_mean(budgets: FloatArray) -> FloatArray:
    """Return the mean budget of the publications so far, by run."""
    return np.asarray(np.cumsum(budgets, axis=1) / np.cumsum(budgets > 0, axis=1))


def judge_adaptive(
    constant: FloatArray, changing: FloatArray, budgets: Mapping[str, FloatArray], landmark: BoolArray, epsilon: float
) -> list[Claim]:
    """Judge the claims about Adaptive.

    Parameters
    ----------
    constant, changing : ndarray, shape (runs, T)
        Sampling rates.
    budgets : mapping
        Series → budgets, shape (runs, T); 0 at an approximation.
    landmark : ndarray of bool, shape (T,)
        Landmarks.
    epsilon : float
        The budget of landmark privacy.
    """
    last = [Series.from_runs("", [0.0], rates[:, -1:]) for rates in (constant, changing)]
    half_widths = sum(0.0 if rate.high is None else float(rate.high[0] - rate.y[0]) for rate in last)
    slow, fast = (float(rate.y[0]) for rate in last)
    apart = None if abs(fast - slow) <= half_widths else fast > slow
    spent = np.concatenate(
        [values[:, landmark].sum(axis=1) + values[:, ~landmark].max(axis=1) for values in budgets.values()]
    )
    share = epsilon / (np.count_nonzero(landmark) + 1)
    gains = total = 0
    for values in budgets.values():
        for run in values:
            # A budget of 0 at a landmark is an approximation: its share must raise all budgets that follow.
            skipped = np.flatnonzero(landmark & (run == 0))
            if skipped.size and (later := run[skipped[0] + 1 :])[later > 0].size:
                total += 1
                gains += int((later[later > 0] > share).all())
    return [
        Claim(
            "Adaptive",
            "The sampling rate falls if the input changes less than the noise, and stays high if it changes more.",
            "not printed",
            f"rate at the end {slow:.3f} for a constant and {fast:.3f} for a changing series",
            judge(apart),
        ),
        Claim(
            "Adaptive",
            "The budget of an approximated landmark goes to the next timestamps.",
            "not printed",
            f"all later publications spend more than the uniform share {share:.4f} in {gains} of {total} releases with "
            "an approximated landmark",
            judge(gains == total if total else None),
        ),
        Claim(
            "Theorem on landmark privacy",
            "The budgets of Adaptive sum to at most ε over L ∪ {t}, for every t.",
            "at most ε",
            f"at most {spent.max():.6g} in {len(spent)} releases",
            judge(bool(spent.max() <= epsilon + _TOLERANCE)),
        ),
    ]


# ---- Correlation ----


def build_correlation(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute the leakage of landmarks under correlation."""
    epsilons = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
    released = [np.array([0.0, epsilon, 0.0]) for epsilon in epsilons.tolist()]
    two = np.array([1, 3])
    sums, bounds = (
        np.array([leak([1, 2, 3], two, budgets, STATIONARY_CHAIN, STATIONARY_CHAIN)[0] for budgets in released])
        for leak in (landmarks.paper_leakage, landmarks.leakage)
    )
    exact = np.array([enumerate_between(STATIONARY_CHAIN, epsilon) for epsilon in epsilons.tolist()])
    gaps = np.arange(1, 8)
    chain = np.array([[0.8, 0.2], [0.2, 0.8]])
    by_gap = {
        label: np.array([compute_leakage_at_gap(int(gap), matrix) for gap in gaps])
        for label, matrix in (("no correlation", None), ("P = (.8 .2; .2 .8)", chain))
    }
    panels = [
        Panel(
            "(a) two skipped landmarks, one release between",
            "budget ε of the release",
            "leakage of both landmarks",
            [
                Series("the paper's sum", epsilons, sums),
                Series("bound of this package", epsilons, bounds),
                Series("enumerated", epsilons, exact, points=True),
            ],
            x_scale="log",
            y_scale="log",
        ),
        Panel(
            "(b) four landmarks of 32 timestamps, Uniform",
            "timestamps from one landmark to the next",
            "largest leakage of L ∪ {t}",
            [Series(label, gaps.astype(np.float64), values) for label, values in by_gap.items()],
        ),
    ]
    at = int(np.flatnonzero(epsilons == 0.3)[0])
    return PaperFigure(
        "correlation",
        "Leakage of the landmarks under correlation. (a) The chain (.9998 .0002; .9881 .0119), landmarks 1 and 3 of "
        "three timestamps. (b) ε = 1, the bound of this package by the distance between landmarks.",
        panels,
        [
            judge_sum(float(sums[at]), float(bounds[at]), float(exact[at])),
            judge_positions(by_gap["no correlation"], by_gap["P = (.8 .2; .2 .8)"]),
        ],
    )


def enumerate_between(matrix: FloatArray, epsilon: float) -> float:
    """Compute the joint leakage of timestamps 1 and 3 from a release at timestamp 2.

    The release is randomised response on two states, which attains every likelihood ratio that its budget allows.

    Parameters
    ----------
    matrix : ndarray, shape (2, 2)
        Forward transition matrix.
    epsilon : float
        Budget of the release.

    Returns
    -------
    float
        The largest log ratio of the probabilities of an output given any two assignments of states to both ends.
    """
    agree = np.exp(epsilon) / (1 + np.exp(epsilon))
    likelihood = np.array([[agree, 1 - agree], [1 - agree, agree]])
    probabilities = []
    for a in range(2):
        for b in range(2):
            # The state between a and b, given both, is distributed as A(a, s) A(s, b).
            between = matrix[a] * matrix[:, b]
            probabilities.append(between @ likelihood / between.sum())
    logs = np.log(probabilities)
    return float((logs.max(axis=0) - logs.min(axis=0)).max())


def compute_leakage_at_gap(gap: int, matrix: FloatArray | None) -> float:
    """Return the largest leakage of L ∪ {t} for four landmarks, `gap` timestamps apart."""
    times = np.arange(1, 33)
    first = 16 - (3 * gap) // 2
    marked = first + gap * np.arange(4)
    budgets = landmarks.uniform_scheme(times, marked, 1.0).epsilons
    return float(landmarks.leakage(times, marked, budgets, matrix, matrix).max())


def judge_sum(paper_sum: float, bound: float, enumerated: float) -> Claim:
    """Judge that the paper's sum bounds the joint leakage of all landmarks."""
    holds = enumerated <= paper_sum + _TOLERANCE
    return Claim(
        "Section on temporal correlation",
        "The temporal loss of L ∪ {t} is the sum of the losses of its members, each from the releases up to its "
        "neighbours.",
        "not printed",
        f"the formula gives {paper_sum:.4f} for a release of 0.3; enumerated {enumerated:.7f}; bound of this package "
        f"{bound:.7f}",
        judge(holds),
        ""
        if holds
        else "The sum omits that both neighbours together determine the state between them; the joint loss is "
        f"{enumerated / paper_sum:.1f} times larger.",
    )


def judge_positions(independent: FloatArray, correlated: FloatArray) -> Claim:
    """Judge that positions of landmarks matter under correlation only.

    Parameters
    ----------
    independent, correlated : ndarray, shape (k,)
        Largest leakage by the distance between landmarks.
    """
    return Claim(
        "Section on temporal correlation",
        "Without correlation only the number of landmarks matters, under correlation also their positions.",
        "not printed",
        f"{_format_range(independent)} without, {_format_range(correlated)} with correlation",
        judge(bool(np.ptp(independent) < _TOLERANCE < np.ptp(correlated))),
    )


# ---- Errors on real data ----

# Distance in kilometres to which epsilon refers in GeoLife.
UNIT_KM = 0.2

_STEP_SECONDS = 300.0
_MAX_GAP_SECONDS = 3600.0
_MIN_LOCATIONS = 60
_MAX_LOCATIONS = 200
_ERROR_RUNS = 20
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

MakeNoise = Callable[[np.random.Generator], landmarks.Noise]


def build_errors(options: FigureOptions) -> PaperFigure:
    """Compute errors by the share of landmarks on Gowalla's and GeoLife's data."""
    if options.gowalla is None or options.geolife is None:
        raise InvalidInputError("gowalla and geolife must be paths of data sets, got None")
    counts = count_days(options.gowalla)
    tracks = read_tracks(options.geolife)
    return compute_errors_figure(counts, tracks, options.num_runs(_ERROR_RUNS), options.seed, options.progress)


def compute_errors_figure(
    counts: FloatArray,
    tracks: Sequence[FloatArray],
    runs: int,
    seed: int,
    progress: ProgressCallback,
    shares: Sequence[float] = _SHARES,
) -> PaperFigure:
    """Release series under all schemes and compare errors.

    Parameters
    ----------
    counts : ndarray, shape (T,)
        A series of counts of sensitivity 1.
    tracks : sequence of ndarray, shape (T_i, 2)
        Tracks of users, kilometres in a plane.
    runs : int
        Runs of the counts. Tracks have fewer: each run averages over all of them.
    seed : int
        Seed of landmarks, coins and noise.
    progress : callable
        Shows the progress.
    shares : sequence of float
        Shares of timestamps that are landmarks, in [0, 1].
    """
    track_runs = -(-runs // max(len(tracks) // 5, 1))
    count_errors = sweep_shares(
        [counts], 1.0, lambda rng: landmarks.lattice_noise(1, 1, rng), runs, seed, shares, progress
    )
    track_errors = sweep_shares(
        tracks, UNIT_KM, lambda rng: landmarks.planar_lattice(UNIT_KM, rng=rng), track_runs, seed, shares, progress
    )
    track_errors = {name: 1000 * values for name, values in track_errors.items()}
    percent = 100 * np.array(shares)
    settings = {
        f"(a) check-ins of {len(counts)} days": ("mean absolute error, check-ins", count_errors),
        f"(b) tracks of {len(tracks)} users": ("mean distance, metres", track_errors),
    }
    panels = [
        Panel(
            title,
            "landmarks, % of the timestamps",
            unit,
            [
                Series.from_runs(name, percent, values)
                if np.isfinite(values).all()
                else _build_finite_series(name, percent, values)
                for name, values in by_scheme.items()
            ],
            y_scale="log",
        )
        for title, (unit, by_scheme) in settings.items()
    ]
    return PaperFigure(
        "errors",
        "Error over all timestamps by the share of landmarks, chosen at random, for ε = 1 "
        f"(tracks: for {1000 * UNIT_KM:g} m) with exact noise: means of {runs} {_pluralize_runs(runs)} (a) and "
        f"{track_runs} {_pluralize_runs(track_runs)} (b) with 95 % intervals. The paper's text does not state a "
        "number of runs.",
        panels,
        [
            claim
            for title, (unit, by_scheme) in settings.items()
            for claim in judge_errors(f"Errors{title[:4].strip()}", by_scheme, shares, unit.rsplit(", ", 1)[1])
        ],
    )


def _build_finite_series(name: str, x: FloatArray, values: FloatArray) -> Series:
    """Return a series without the shares at which a scheme cannot release anything."""
    finite = np.isfinite(values).all(axis=0)
    return Series.from_runs(name, x[finite], values[:, finite])


def count_days(path: Path) -> FloatArray:
    """Count the check-ins of each day from the first to the last with any, shape (days,)."""
    users = read(path, "checkins", skip_bad=True).trajectories
    days = np.concatenate([user.times for user in users]).astype("datetime64[D]").astype(np.int64)
    return np.bincount(days - days.min()).astype(np.float64)


def read_tracks(path: Path) -> list[FloatArray]:
    """Return one track per user of GeoLife, shape (T, 2), in kilometres in a plane.

    Locations are five minutes apart. A track is the longest part without a gap of an hour. Users with fewer than 60
    locations are omitted; the first 200 locations are used.
    """
    tracks = []
    for user in read(path, "geolife", skip_bad=True).trajectories:
        longest = max(user.resample(_STEP_SECONDS).split(_MAX_GAP_SECONDS), key=len)
        if len(longest) >= _MIN_LOCATIONS:
            plane = LocalProjection(float(longest.latitude.mean()), float(longest.longitude.mean()))
            tracks.append(plane.to_plane(longest.latitude, longest.longitude)[:_MAX_LOCATIONS])
    return tracks


def sweep_shares(
    series: Sequence[FloatArray],
    sensitivity: float,
    make_noise: MakeNoise,
    runs: int,
    seed: int,
    shares: Sequence[float],
    progress: ProgressCallback,
) -> dict[str, FloatArray]:
    """Measure the error of every scheme at each share of landmarks.

    Parameters
    ----------
    series : sequence of ndarray
        True values, shape (T,) or (T, d).
    sensitivity : float
        Noise scale of a release with budget 1.
    make_noise : callable
        Generator → noise.
    runs : int
        Number of runs.
    seed : int
        Seed.
    shares : sequence of float
        Shares of timestamps that are landmarks.
    progress : callable
        Shows the progress.

    Returns
    -------
    dict
        Scheme → errors averaged over all series, shape (runs, number of shares). NaN if a scheme cannot release
        anything: Skip if all timestamps are landmarks.
    """
    result: dict[str, FloatArray] = {}
    for column, share in enumerate(progress(shares, "landmark shares")):
        for run in range(runs):
            rows = [
                measure_errors(
                    values, share, sensitivity, make_noise, np.random.default_rng([seed, column, run, number])
                )
                for number, values in enumerate(series)
            ]
            for name in rows[0]:
                by_run = result.setdefault(name, np.zeros((runs, len(shares))))
                by_run[run, column] = np.mean([row[name] for row in rows])
    return result


def measure_errors(
    values: FloatArray, share: float, sensitivity: float, make_noise: MakeNoise, rng: np.random.Generator
) -> dict[str, float]:
    """Return the mean error of every scheme for one random choice of landmarks, with ε = 1."""
    size = len(values)
    times = np.arange(size)
    marked = np.sort(rng.choice(size, round(share * size), replace=False))
    schemes: dict[str, landmarks.LandmarkBudget | landmarks.Adaptive] = {
        "Uniform": landmarks.uniform_scheme(times, marked, 1.0),
        "Adaptive": landmarks.Adaptive(times, marked, 1.0, sensitivity, rng=rng),
        "event level": landmarks.skip_scheme(times, [], 1.0),
        "user level": landmarks.uniform_scheme(times, times, 1.0),
    }
    # Skip reads nothing at landmarks: without a regular timestamp it has nothing to release.
    result = {"Skip": np.nan}
    if len(marked) < size:
        schemes = {"Skip": landmarks.skip_scheme(times, marked, 1.0), **schemes}
    for name, scheme in schemes.items():
        released = landmarks.release_series(values, scheme, make_noise(rng)).values
        result[name] = float(np.linalg.norm(released - values.reshape(released.shape), axis=1).mean())
    return result


def judge_errors(figure: str, by_scheme: Mapping[str, FloatArray], shares: Sequence[float], unit: str) -> list[Claim]:
    """Judge that Uniform and Adaptive provide better quality than user-level privacy.

    Parameters
    ----------
    figure : str
        Name of the panel.
    by_scheme : mapping
        Scheme → errors, shape (runs, number of shares).
    shares : sequence of float
        Shares of landmarks; the claim is about those below 1, where user-level privacy protects more.
    unit : str
        Unit of the errors.
    """
    return [
        _judge_quality(figure, name, by_scheme[name], by_scheme["user level"], shares, unit)
        for name in ("Uniform", "Adaptive")
    ]


def _judge_quality(
    figure: str, name: str, errors: FloatArray, user_level: FloatArray, shares: Sequence[float], unit: str
) -> Claim:
    below_one = np.flatnonzero(np.array(shares) < 1)
    scheme, other = (Series.from_runs("", np.array(shares), values) for values in (errors, user_level))
    gaps = other.y - scheme.y
    half_widths = sum(0.0 if series.high is None else series.high - series.y for series in (scheme, other))
    smaller = (gaps > half_widths)[below_one]
    larger = (gaps < -half_widths)[below_one]
    first, last = below_one[[0, -1]]
    return Claim(
        figure,
        f"{name} provides better quality than user-level privacy.",
        "not printed",
        f"smaller error at {np.count_nonzero(smaller)} of {len(below_one)} shares below 100 %: {scheme.y[first]:.3g} "
        f"against {other.y[first]:.3g} {unit} at {shares[first]:.0%}, {scheme.y[last]:.3g} against "
        f"{other.y[last]:.3g} at {shares[last]:.0%}",
        judge(True if smaller.all() else False if larger.any() else None),
    )


# ---- Shared ----


def _format_range(values: FloatArray) -> str:
    low = float(values.min())
    high = float(values.max())
    return f"{low:.4g}" if high - low < _TOLERANCE else f"{low:.4g} to {high:.4g}"


def _pluralize_runs(count: int) -> str:
    return "run" if count == 1 else "runs"


# The figures in the paper's order.
FIGURES: tuple[FigureBuilder, ...] = (
    FigureBuilder("scenario", "Budgets of the schemes in the paper's scenario", build_scenario),
    FigureBuilder("adaptive", "Sampling rate and budgets of Adaptive", build_adaptive),
    FigureBuilder("correlation", "Leakage of landmarks under correlation", build_correlation),
    FigureBuilder("errors", "Errors by the share of landmarks", build_errors, needs=("geolife", "gowalla")),
)
