"""Figures 3 to 9, Table 2 and the examples of the paper on temporal privacy leakage.

Source: Y. Cao, M. Yoshikawa, Y. Xiao, L. Xiong, "Quantifying Differential Privacy in Continuous Data Release under
Temporal Correlations", IEEE TKDE 31(7), 2019 ("the TPL paper"). Figure 6 is in
`dphmm.evaluation.figures.leakage_runtime`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.evaluation.figures.base import (
    Claim,
    FigureBuilder,
    FigureOptions,
    Panel,
    PaperFigure,
    Series,
    judge,
)
from dphmm.evaluation.figures.leakage_runtime import build_figure_6
from dphmm.leakage import (
    Leakage,
    LossFunction,
    backward_leakage,
    compute_leakage,
    constant_budget,
    exact_budgets,
    smooth,
    supremum,
)
from dphmm.mechanisms.norm_noise import sample_laplace
from dphmm.random import as_random_source

# The strongest correlation: the state never changes.
IDENTITY = np.eye(2)

# The matrix of Examples 2 and 3.
EXAMPLE_2 = np.array([[0.8, 0.2], [0.0, 1.0]])

EXAMPLE_4 = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]])
BACKWARD = np.array([[0.8, 0.2], [0.2, 0.8]])
# With `BACKWARD`, the matrices of Figure 8.
FORWARD = np.array([[0.8, 0.2], [0.1, 0.9]])

# Sensitivity of the counts of Example 1, which adds Lap(2/ε): a user who moves changes two counts.
COUNT_SENSITIVITY = 2.0

# Numbers that differ by less count as equal: computed values carry rounding errors of about 1e-13.
_TOLERANCE = 1e-9


# ---- Figure 3 and Examples 1 to 3 ----


def build_figure_3(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute Figure 3: leakage of a 0.1-DP mechanism at each of ten timestamps."""
    epsilons = [0.1] * 10
    leakages = {
        "strongest correlation": compute_leakage(IDENTITY, IDENTITY, epsilons),
        "P = (.8 .2; 0 1)": compute_leakage(EXAMPLE_2, EXAMPLE_2, epsilons),
        "no correlation": compute_leakage(None, None, epsilons),
    }
    times = np.arange(1.0, 11)
    panels = [
        Panel(
            title,
            "timestamp",
            "privacy leakage",
            [Series(label, times, getattr(leakage, part)) for label, leakage in leakages.items()],
        )
        for title, part in (("(a) BPL", "backward"), ("(b) FPL", "forward"), ("(c) TPL", "temporal"))
    ]
    return PaperFigure(
        "figure_3",
        "Backward, forward and temporal privacy leakage of a 0.1-DP mechanism at each of ten timestamps.",
        panels,
        [*judge_examples(*leakages.values()), _judge_example_1(), _judge_sides(), _judge_later_release()],
    )


def judge_examples(strongest: Leakage, moderate: Leakage, independent: Leakage) -> list[Claim]:
    """Judge Examples 2 and 3 and Section 3.3, with the adversaries of Figure 3."""
    epsilons = strongest.epsilons
    sums = np.cumsum(epsilons)
    between = bool(
        (moderate.backward[1:] > independent.backward[1:]).all()
        and (moderate.backward[1:] < strongest.backward[1:]).all()
    )
    first = float(moderate.forward[0])
    last = float(moderate.forward[-1])
    total = float(sums[-1])
    level = moderate.temporal
    return [
        Claim(
            "Example 2, Figure 3(a)",
            "Under the strongest correlation BPL grows by ε at each timestamp.",
            "linear growth, T · 0.1",
            _format_numbers(strongest.backward),
            judge(np.allclose(strongest.backward, sums, rtol=0, atol=_TOLERANCE)),
        ),
        Claim(
            "Example 2, Figure 3(a)",
            "Without knowledge of a correlation BPL is the budget of the timestamp.",
            "0.1 at each timestamp",
            _format_numbers(independent.backward),
            judge(np.allclose(independent.backward, epsilons, rtol=0, atol=_TOLERANCE)),
        ),
        Claim(
            "Example 2, Figure 3(a)",
            "BPL under P = (.8 .2; 0 1) lies between both extremes.",
            "not printed",
            _format_numbers(moderate.backward),
            judge(between),
        ),
        Claim(
            "Example 3, Figure 3(b)",
            "FPL is lowest at timestamp 1 and highest at timestamp 10.",
            "lowest at 1, highest at 10",
            f"{first:.4f} at timestamp 1, {last:.4f} at timestamp 10",
            judge(first < last),
            "Releases after timestamp 1 add to its FPL; none follows timestamp 10." if first > last else "",
        ),
        Claim(
            "Section 3.3, Figure 3(c)",
            "Under the strongest correlation TPL at each timestamp is T · ε, as for user-level privacy.",
            f"T · 0.1 = {total:g}",
            _format_numbers(strongest.temporal),
            judge(np.allclose(strongest.temporal, total, rtol=0, atol=_TOLERANCE)),
        ),
        Claim(
            "Section 3.3, Figure 3(c)",
            "Under the moderate correlation TPL lies between ε and T · ε.",
            f"between 0.1 and {total:g}",
            f"{level.min():.4f} to {level.max():.4f}",
            judge(bool((level > epsilons).all() and (level < total).all())),
        ),
    ]


def _judge_example_1() -> Claim:
    """Judge that a certain move from loc4 to loc5 turns ε-DP into 2ε-DP."""
    # Only two facts of the example matter: loc4 leads to loc5 with certainty, and another location never does.
    forward_matrix = np.full((5, 5), 0.2)
    forward_matrix[3] = [0, 0, 0, 0, 1]
    forward_matrix[0] = [0.25, 0.25, 0.25, 0.25, 0]
    leakage = float(compute_leakage(None, forward_matrix, [1.0, 1.0]).temporal[0])
    return Claim(
        "Example 1",
        "If loc4 is always followed by loc5, noise Lap(2/ε) at both timestamps only achieves 2ε-DP.",
        "2ε",
        f"{leakage:g}ε",
        judge(abs(leakage - 2) < _TOLERANCE),
    )


def _judge_sides() -> Claim:
    """Judge that each correlation affects one side of the leakage only."""
    epsilons = [0.1] * 10
    difference = max(
        float(np.abs(compute_leakage(EXAMPLE_2, None, epsilons).forward - 0.1).max()),
        float(np.abs(compute_leakage(None, EXAMPLE_2, epsilons).backward - 0.1).max()),
    )
    return Claim(
        "Section 3.2",
        "A backward correlation does not affect FPL, nor a forward one BPL.",
        "not printed",
        f"largest change {_format_difference(difference)}",
        judge(difference < _TOLERANCE),
    )


def _judge_later_release() -> Claim:
    """Judge that an eleventh release changes FPL at all ten timestamps."""
    before, after = (compute_leakage(IDENTITY, IDENTITY, [0.1] * steps).forward[:10] for steps in (10, 11))
    changed = int(np.count_nonzero(np.abs(after - before) > _TOLERANCE))
    return Claim(
        "Example 3, Figure 3(b)",
        "An eleventh release changes FPL at timestamps 1 to 10.",
        "all ten",
        f"{changed} of 10",
        judge(changed == 10),
    )


# ---- Table 2 ----


def build_table_2(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute Table 2: leakage about windows, by Theorem 3 and by enumeration."""
    steps = 8
    epsilon = 0.1
    widths = np.arange(1.0, steps + 1)
    chains = {
        "independent data": np.full((2, 2), 0.5),
        "P = (.8 .2; .2 .8)": BACKWARD,
        "strongest correlation": IDENTITY,
    }
    series = []
    enumerated = {}
    for label, matrix in chains.items():
        leakage = compute_leakage(matrix, matrix, [epsilon] * steps)
        series.append(Series(label, widths, np.array([leakage.largest_window(int(width))[0] for width in widths])))
        enumerated[label] = enumerate_windows(matrix, epsilon, steps)
    independent, moderate, strongest = enumerated.values()
    series += [
        Series(f"enumerated: {label}", widths, values.max(axis=1, initial=0.0, where=~np.isnan(values)), points=True)
        for label, values in enumerated.items()
    ]
    return PaperFigure(
        "table_2",
        f"The largest leakage about w consecutive of T = {steps} timestamps of a {epsilon:g}-DP mechanism: curves by "
        "Theorem 3, points by enumeration of all outputs of randomised response on two states.",
        [Panel("Table 2", "w, timestamps protected together", "privacy leakage", series)],
        judge_table_2(independent, moderate, strongest, epsilon),
    )


def enumerate_windows(matrix: FloatArray, epsilon: float, steps: int) -> FloatArray:
    """Compute the leakage about every window by enumerating all paths and outputs.

    The mechanism is randomised response: it returns the state with probability ``e^ε / (1 + e^ε)``, else the other.

    Parameters
    ----------
    matrix : ndarray, shape (2, 2)
        A doubly stochastic transition matrix; the initial distribution is uniform, so that the chain is stationary.
    epsilon : float
        Budget of each timestamp.
    steps : int
        Number of timestamps T. Time and memory grow as ``4**T``.

    Returns
    -------
    ndarray, shape (T, T)
        Leakage about ``w`` timestamps from ``t`` on at ``[w - 1, t]``; NaN if the window passes the end.
    """
    paths = np.array(list(product((0, 1), repeat=steps)))
    mass = 0.5 * np.prod(matrix[paths[:, :-1], paths[:, 1:]], axis=1)
    # Likelihood of each output under each path; outputs are the same tuples as paths.
    agreements = (paths[:, None, :] == paths[None, :, :]).sum(axis=2)
    likelihood = np.exp(epsilon * agreements) / (1 + math.exp(epsilon)) ** steps
    result = np.full((steps, steps), np.nan)
    for width in range(1, steps + 1):
        weights = 2 ** np.arange(width)
        for start in range(steps - width + 1):
            window = paths[:, start : start + width] @ weights
            # Windows that the chain cannot produce, such as a change under the identity matrix, are not compared.
            masses = np.bincount(window, mass, minlength=2**width)
            joint = np.zeros((2**width, len(paths)))
            np.add.at(joint, window, mass[:, None] * likelihood)
            conditional = joint[masses > 0] / masses[masses > 0, None]
            result[width - 1, start] = np.log(conditional.max(axis=0) / conditional.min(axis=0)).max()
    return result


def judge_table_2(
    independent: FloatArray, moderate: FloatArray, strongest: FloatArray, epsilon: float = 0.1
) -> list[Claim]:
    """Judge the entries of Table 2 by enumerated leakage. See `enumerate_windows`."""
    steps = len(independent)
    total = steps * epsilon
    widths = np.arange(1, steps + 1)
    by_width = np.nanmax(independent, axis=1)
    events = np.concatenate([moderate[0], strongest[0]])
    users = [float(values[-1, 0]) for values in (independent, moderate, strongest)]
    leakage = compute_leakage(BACKWARD, BACKWARD, [epsilon] * steps)
    excess = max(
        float(moderate[width - 1, start] - leakage.window(start, start + width))
        for width in range(1, steps + 1)
        for start in range(steps - width + 1)
    )
    return [
        Claim(
            "Table 2",
            "On independent data w timestamps leak wε.",
            "ε, wε, Tε",
            _format_numbers(by_width),
            judge(np.allclose(by_width, widths * epsilon, rtol=0, atol=_TOLERANCE)),
        ),
        Claim(
            "Table 2",
            "On correlated data a single timestamp leaks α with ε ≤ α ≤ Tε.",
            f"{epsilon:g} to {total:g}",
            f"{events.min():.4f} to {events.max():.4f}",
            judge(bool(events.min() >= epsilon - _TOLERANCE and events.max() <= total + _TOLERANCE)),
        ),
        Claim(
            "Table 2, Theorem 3",
            "On correlated data w timestamps leak at most the value of Theorem 3.",
            "not printed",
            f"enumeration exceeds it by {_format_difference(excess)}",
            judge(excess < _TOLERANCE),
        ),
        Claim(
            "Table 2, Corollary 1",
            "All T timestamps together leak Tε, whatever the correlation.",
            f"Tε = {total:g}",
            _format_numbers(np.array(users)),
            judge(np.allclose(users, total, rtol=0, atol=_TOLERANCE)),
        ),
    ]


# ---- Figure 4 and Example 4 ----


@dataclass(frozen=True, eq=False)
class PairCurve:
    """The loss of one ordered pair of rows as the piecewise function of Theorem 9.

    Parameters
    ----------
    q, d : ndarray, shape (k,)
        Mass of the two rows on the optimal set of each piece, from the piece at α = 0 on; both decrease.
    transitions : ndarray, shape (k - 1,)
        The α at which the next piece begins, increasing.
    """

    q: FloatArray
    d: FloatArray
    transitions: FloatArray

    def __call__(self, alpha: npt.ArrayLike) -> FloatArray:
        """Return the loss at each α."""
        piece = np.searchsorted(self.transitions, alpha, side="right")
        e = np.expm1(alpha)
        return np.asarray(np.log1p(self.q[piece] * e) - np.log1p(self.d[piece] * e), dtype=np.float64)


def build_pair_curve(q: FloatArray, d: FloatArray) -> PairCurve:
    """Compute the piecewise loss of an ordered pair of rows.

    Algorithm 2 of the TPL paper for one pair, with the ``+ 1`` inside the logarithm of line 11 that the proof of
    Theorem 9 has.

    Parameters
    ----------
    q, d : ndarray, shape (n,)
        Two rows of a transition matrix.

    Returns
    -------
    PairCurve
        Equal rows have one piece with ``q = d = 0``.
    """
    larger = q > d
    if not larger.any():
        return PairCurve(np.zeros(1), np.zeros(1), np.zeros(0))
    q = q[larger]
    d = d[larger]
    with np.errstate(divide="ignore"):
        ratio = q / d
    order = np.argsort(-ratio, kind="stable")
    q = q[order]
    d = d[order]
    ratio = ratio[order]
    q_sums = np.cumsum(q)
    d_sums = np.cumsum(d)
    # State r leaves the optimal set {1, …, r} where the loss of the set reaches log(q_r / d_r).
    below = q_sums * d - d_sums * q
    with np.errstate(divide="ignore"):
        ends = np.where(below > 0, np.log1p((q - d) / np.where(below > 0, below, 1.0)), np.inf)
    # States with equal ratios leave together: only the largest of their sets is a piece.
    kept = np.append(ratio[1:] < ratio[:-1], True)
    pieces = np.flatnonzero(kept)[::-1]
    return PairCurve(q_sums[pieces], d_sums[pieces], ends[pieces[:-1]])


def build_pair_curves(matrix: FloatArray) -> dict[tuple[int, int], PairCurve]:
    """Return the curve of every ordered pair of rows. Keys count rows from 0."""
    return {(i, k): build_pair_curve(matrix[i], matrix[k]) for i, k in permutations(range(len(matrix)), 2)}


def build_figure_4(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute Figure 4: the loss function of a 3 × 3 matrix and its pairs of rows."""
    limit = 6.0
    alphas = np.linspace(0, limit, 241)
    function = LossFunction(EXAMPLE_4)
    curves = build_pair_curves(EXAMPLE_4)
    series = [Series("L(α)", alphas, function(alphas), bold=True)]
    series += [Series(f"rows {i + 1} and {k + 1}", alphas, curve(alphas)) for (i, k), curve in curves.items()]
    transitions = _list_transition_points(curves)
    series.append(Series("transition points of all pairs", transitions[:, 0], transitions[:, 1], points=True))
    meeting = function.starts[(function.starts > 0) & (function.starts <= limit)]
    series.append(Series("intersection of two pairs", meeting, function(meeting), points=True))
    return PaperFigure(
        "figure_4",
        "Temporal privacy loss function of the 3 × 3 matrix of Example 4: the curve of every ordered pair of rows, "
        "their upper envelope L(α) and the transition points of all pairs.",
        [Panel("Example 4", "α", "privacy loss", series)],
        [*judge_figure_4(function, curves), *_judge_algorithm_2()],
    )


def _list_transition_points(curves: Mapping[tuple[int, int], PairCurve]) -> FloatArray:
    """Return the transition points (α, loss) of all pairs by increasing α, shape (k, 2)."""
    points = sorted((alpha, float(curve(alpha))) for curve in curves.values() for alpha in curve.transitions.tolist())
    return np.array(points).reshape(-1, 2)


def judge_figure_4(function: LossFunction, curves: Mapping[tuple[int, int], PairCurve]) -> list[Claim]:
    """Judge Example 4, Theorem 9 and Remark 1 by a loss function and its pairs' curves."""
    alphas = np.linspace(0, 12, 1201)
    envelope = np.max([curve(alphas) for curve in curves.values()], axis=0)
    losses = function(alphas)
    gap = float(np.abs(losses - envelope).max())
    transitions = _list_transition_points(curves)[:, 0]
    crossings = function.starts[function.starts > 0]
    distance = float(np.abs(crossings[:, None] - transitions).min(initial=np.inf))
    pairs = [
        sum(abs(float(curve(alpha)) - float(function(alpha))) < _TOLERANCE for curve in curves.values())
        for alpha in crossings.tolist()
    ]
    falling = all((np.diff(curve.q) < 0).all() and (np.diff(curve.d) < 0).all() for curve in curves.values())
    return [
        Claim(
            "Example 4, Corollary 3",
            "L(α) is the largest curve of any pair of rows.",
            "not printed",
            f"largest difference {_format_difference(gap)} for α up to {alphas[-1]:g}",
            judge(gap < _TOLERANCE),
        ),
        Claim(
            "Section 4.4, Figure 4",
            "Two pairs intersect on L(α) between two consecutive transition points.",
            "not printed",
            f"intersection of {_format_list(pairs)} pairs at α = {_format_numbers(crossings)}; transition points at "
            "α = "
            f"{_format_numbers(transitions)}",
            judge(min(pairs, default=0) >= 2 and distance > _TOLERANCE),
            "Rows 2 and 1 have a transition point at the α of the intersection, log(13/3), with a smaller loss."
            if distance <= _TOLERANCE
            else "",
        ),
        Claim(
            "Theorem 9",
            "The masses q and d of a pair decrease at each transition point.",
            "not printed",
            f"{len(transitions)} transition points of {len(curves)} pairs",
            judge(falling),
        ),
        Claim(
            "Remark 1",
            "0 ≤ L(α) ≤ α.",
            "not printed",
            f"L(α) − α between {(losses - alphas).min():.3f} and {(losses - alphas).max():.3f}",
            judge(bool((losses >= 0).all() and (losses <= alphas + _TOLERANCE).all())),
        ),
    ]


def _judge_algorithm_2() -> list[Claim]:
    """Judge the example after Algorithm 2 by Theorem 9, and by line 11 as printed."""
    curve = build_pair_curve(np.array([0.2, 0.3, 0.5]), np.array([0.1, 0.0, 0.9]))
    (transition,) = curve.transitions.tolist()
    # The argument of the logarithm of line 11 for the second state, of which the first has q = .3 and d = 0.
    printed = math.log((0.2 - 0.1) / ((0.3 + 0.2) * 0.1 - (0.0 + 0.1) * 0.2))
    return [
        Claim(
            "Section 4.3, after Algorithm 2",
            "For q = (.2 .3 .5), d = (.1 0 .9) the transition point of Theorem 9 is 1.47.",
            "1.47",
            f"{transition:.4f}",
            judge(abs(transition - 1.47) <= 0.005),
        ),
        Claim(
            "Algorithm 2, line 11",
            "Line 11 as printed gives the transition point of its example, 1.47.",
            "1.47",
            f"{printed:.4f}",
            judge(abs(printed - 1.47) <= 0.005),
            "The line lacks the + 1 inside the logarithm that the proof of Theorem 9 has.",
        ),
    ]


# ---- Figure 5 and Example 5 ----


def build_figure_5(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute Figure 5: backward leakage over time and its supremum."""
    settings = {
        "(a) P = (1 0; 0 1), ε = 0.23": (IDENTITY, 0.23),
        "(b) P = (.8 .2; 0 1), ε = 0.23": (EXAMPLE_2, 0.23),
        "(c) P = (.8 .2; 0 1), ε = 0.15": (EXAMPLE_2, 0.15),
        "(d) P = (.8 .2; .1 .9), ε = 0.23": (FORWARD, 0.23),
    }
    times = np.arange(1.0, 101)
    panels = []
    for title, (matrix, epsilon) in settings.items():
        curves = [Series("BPL", times, backward_leakage(matrix, np.full(len(times), epsilon)))]
        limit = supremum(matrix, epsilon)
        if math.isfinite(limit):
            curves.append(Series("supremum", times[[0, -1]], np.full(2, limit), dashed=True))
        panels.append(Panel(title, "timestamp", "backward privacy leakage", curves))
    claims = [
        judge_supremum(
            title, backward_leakage(matrix, np.full(2000, epsilon)), supremum(matrix, epsilon), title[1] in "cd"
        )
        for title, (matrix, epsilon) in settings.items()
    ]
    first = [
        judge_first_timestamp(title, epsilon, supremum(matrix, epsilon))
        for title, (matrix, epsilon) in settings.items()
        if title[1] in "cd"
    ]
    return PaperFigure(
        "figure_5",
        "Backward privacy leakage over 100 timestamps under a constant budget, and its supremum if there is one.",
        panels,
        [*claims, *first, _judge_theorem_11()],
    )


def judge_supremum(title: str, leakage: FloatArray, limit: float, exists: bool) -> Claim:
    """Judge whether leakage approaches its supremum, or has none, in a panel of Figure 5.

    Parameters
    ----------
    title : str
        Title of the panel.
    leakage : ndarray, shape (T,)
        Backward leakage, computed step by step.
    limit : float
        The supremum by Theorem 11.
    exists : bool
        Whether the paper states that the supremum exists.
    """
    panel, setting = title.split(" ", 1)
    last = float(leakage[-1])
    steps = len(leakage)
    if exists:
        return Claim(
            f"Example 5, Figure 5{panel}",
            f"{setting}: BPL approaches the supremum of Theorem 11.",
            "exists",
            f"supremum {limit:.6f}, BPL {last:.6f} at timestamp {steps}",
            judge(abs(last - limit) < 1e-6),
        )
    # Growth that neither shrinks nor ends: the last step adds at least half of the average step.
    unbounded = math.isinf(limit) and float(leakage[-1] - leakage[-2]) > 0.5 * last / steps
    return Claim(
        f"Example 5, Figure 5{panel}",
        f"{setting}: the supremum does not exist.",
        "does not exist",
        f"Theorem 11 gives {limit:g}, BPL is {last:.4g} at timestamp {steps}",
        judge(unbounded),
    )


def judge_first_timestamp(title: str, epsilon: float, limit: float) -> Claim:
    """Judge that BPL at the first timestamp, which is ε, is much less than the supremum."""
    panel, setting = title.split(" ", 1)
    return Claim(
        f"Section 5, Figure 5{panel}",
        f"{setting}: BPL starts much below the supremum.",
        "not printed",
        f"{epsilon:g} against {limit:.4f}, {epsilon / limit:.0%}",
        judge(epsilon < 0.5 * limit),
        "Counted as much: below half.",
    )


def _judge_theorem_11() -> Claim:
    """Judge the claim of Theorem 11 about its boundary case ε = log(1/q) with d = 0."""
    # q is a power of two, so that q·e^ε is 1 without rounding: L(α) + ε − α = log(1 + (1 − q)·e^(−α)/q) > 0 for all α.
    matrix = np.array([[0.5, 0.5], [0.0, 1.0]])
    epsilon = math.log(2)
    alphas = np.array([1.0, 10.0, 30.0])
    slack = LossFunction(matrix)(alphas) + epsilon - alphas
    limit = supremum(matrix, epsilon)
    return Claim(
        "Theorem 11",
        "With d = 0 and q ≠ 1 the supremum is finite for ε = log(1/q).",
        "log((1 − q)e^ε / (1 − qe^ε))",
        f"{limit:g} for q = 0.5; L(α) + ε exceeds α by {slack[0]:.2g}, {slack[1]:.2g} and {slack[2]:.2g} "
        "at α = 1, 10 and 30",
        judge(math.isfinite(limit)),
        "The denominator is 0: the proof needs ε < log(1/q).",
    )


# ---- Figure 7 ----

# Number of states n, amount of smoothing s and budget ε.
Setting = tuple[int, float, float]

# The paper's range of s.
_AMOUNTS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_DRAWN_AMOUNTS = (0.005, 0.05, 1.0)
# The smoothing of Figure 9(a). The paper's statements about s = 0.005 and ε = 0.1 fit it better than 0.005.
_FITTING_AMOUNT = 0.001
_DRAWN_STEPS = {1.0: 15, 0.1: 150}
# Length of the curves that claims compare, more than five times the time at which the slowest is at 99 %.
_NUM_STEPS = 200
# Shares of the supremum at which growth may be called no longer noticeable; the paper does not state one.
_SHARES = (0.9, 0.95, 0.99)


def build_figure_7(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute Figure 7: backward leakage under degrees of correlation."""
    return measure_degrees((50, 200))


def measure_degrees(sizes: tuple[int, int]) -> PaperFigure:
    """Return Figure 7 for matrices of the given sizes.

    Parameters
    ----------
    sizes : tuple of int
        Two numbers of states, the smaller first.
    """
    functions = {(n, s): LossFunction(smooth(np.eye(n), s)) for n in sizes for s in _AMOUNTS}
    curves: dict[Setting, FloatArray] = {}
    limits: dict[Setting, float] = {}
    panels = []
    for title, (epsilon, steps) in zip(("(a)", "(b)"), _DRAWN_STEPS.items(), strict=True):
        for (n, s), function in functions.items():
            curves[n, s, epsilon] = backward_leakage(function, np.full(_NUM_STEPS, epsilon))
            limits[n, s, epsilon] = function.supremum(epsilon).value
        times = np.arange(1.0, steps + 1)
        series = [
            Series(f"s = {s:g}, n = {n}", times, curves[n, s, epsilon][:steps])
            for n, s in functions
            if s in _DRAWN_AMOUNTS
        ]
        panels.append(Panel(f"{title} ε = {epsilon:g}", "timestamp", "backward privacy leakage", series))
    return PaperFigure(
        "figure_7",
        f"Backward privacy leakage under identity matrices of {sizes[0]} and {sizes[1]} states, smoothed by s "
        "(Equation 28): a smaller s is a stronger correlation.",
        panels,
        judge_figure_7(curves, limits),
    )


def judge_figure_7(curves: Mapping[Setting, FloatArray], limits: Mapping[Setting, float]) -> list[Claim]:
    """Judge the claims of Section 6.2.

    Parameters
    ----------
    curves : mapping
        Setting → backward leakage, shape (T,).
    limits : mapping
        Setting → supremum.
    """
    n, larger_n = sorted({setting[0] for setting in curves})
    amounts = sorted({setting[1] for setting in curves})
    strongest = amounts[0]
    fast, slow = ((n, strongest, epsilon) for epsilon in _DRAWN_STEPS)
    durations = {setting: _find_durations(curve, limits[setting]) for setting, curve in curves.items()}
    rises = {setting: np.diff(curve) for setting, curve in curves.items()}
    # Concave and increasing: each step adds at most as much as the step before it.
    slowing = all((np.diff(rise) <= _TOLERANCE).all() and rise[0] > rise[-1] >= -_TOLERANCE for rise in rises.values())
    weaker = [(a, b) for a in curves for b in curves if a[0] == b[0] and a[1] < b[1] and a[2] == b[2]]
    by_size = [(a, b) for a in curves for b in curves if a[0] < b[0] and a[1:] == b[1:]]
    ratio = limits[slow] / limits[fast]
    shares = ", ".join(f"{share:.0%}" for share in _SHARES)
    times = [durations[n, s, fast[2]][-1] for s in amounts]
    return [
        Claim(
            "Section 6.2, Figure 7",
            "Leakage first increases sharply and then remains stable.",
            "not printed",
            "the first step is the largest and the last the smallest in "
            f"{sum(bool(rise[0] == rise.max() and rise[-1] <= rise.min() + _TOLERANCE) for rise in rises.values())} "
            f"of {len(rises)} curves",
            judge(slowing),
        ),
        Claim(
            "Section 6.2, Figure 7",
            "A stronger correlation (smaller s) makes the increase steeper.",
            "not printed",
            f"larger first step in {sum(bool(rises[a][0] > rises[b][0]) for a, b in weaker)} of {len(weaker)} "
            "comparisons",
            judge(all(rises[a][0] > rises[b][0] for a, b in weaker)),
        ),
        Claim(
            "Section 6.2, Figure 7",
            "A stronger correlation (smaller s) makes the increase longer.",
            "not printed",
            f"not shorter in {sum(durations[a][-1] >= durations[b][-1] for a, b in weaker)} of {len(weaker)} "
            f"comparisons; {_format_list(times)} timestamps to {_SHARES[-1]:.0%} of the supremum at s = "
            f"{', '.join(f'{s:g}' for s in amounts)} (n = {n}, ε = {fast[2]:g})",
            judge(all(durations[a][-1] >= durations[b][-1] for a, b in weaker)),
        ),
        _judge_duration("(a)", fast, durations[fast], 8.0, "almost 8"),
        _judge_duration("(b)", slow, durations[slow], 80.0, "approximately 80"),
        Claim(
            "Section 6.2, Figure 7",
            f"The increase takes longer with ε = 0.1 than with ε = 1 (s = {strongest:g}, n = {n}).",
            "80 against 8 timestamps",
            f"{_format_list(durations[slow])} against {_format_list(durations[fast])} timestamps to {shares} of the "
            "supremum",
            judge(all(a > b for a, b in zip(durations[slow], durations[fast], strict=True))),
        ),
        Claim(
            "Section 6.2, Figure 7",
            "Under a strong correlation long-term leakage with ε = 0.1 is not substantially lower than with ε = 1.",
            "not printed",
            f"suprema {limits[slow]:.3f} and {limits[fast]:.3f} for s = {strongest:g}, n = {n}: ratio {ratio:.2f}",
            judge(ratio > 0.5),
            f"Counted as substantially lower: at most half. With s = {_FITTING_AMOUNT:g} the suprema are "
            f"{_compute_smoothed_durations(n, slow[2])[1]:.3f} and {_compute_smoothed_durations(n, fast[2])[1]:.3f}."
            if ratio <= 0.5
            else "",
        ),
        Claim(
            "Section 6.2, Figure 7",
            "Under equal s leakage is smaller for a larger n.",
            "not printed",
            f"{larger_n} states leak less than {n} at every timestamp after the first in "
            f"{sum(bool((curves[b][1:] < curves[a][1:]).all()) for a, b in by_size)} of {len(by_size)} settings",
            judge(all((curves[b][1:] < curves[a][1:]).all() for a, b in by_size)),
        ),
    ]


def _judge_duration(panel: str, setting: Setting, durations: Sequence[int], value: float, published: str) -> Claim:
    n, s, epsilon = setting
    shares = ", ".join(f"{share:.0%}" for share in _SHARES)
    holds = min(durations) <= value <= max(durations)
    return Claim(
        f"Section 6.2, Figure 7{panel}",
        f"With s = {s:g} and ε = {epsilon:g} the noticeable increase continues for {published} timestamps.",
        f"{value:g}",
        f"{_format_list(durations)} timestamps to {shares} of the supremum, n = {n}",
        judge(holds),
        ""
        if holds
        else "No share of the supremum from 90 % to 99 % is reached at that time. With "
        f"s = {_FITTING_AMOUNT:g} it takes {_format_list(_compute_smoothed_durations(n, epsilon)[0])} timestamps.",
    )


def _find_durations(curve: FloatArray, limit: float) -> list[int]:
    """Return the timestamps from 1 at which leakage reaches `_SHARES` of a limit, else T."""
    return [min(int(np.searchsorted(curve, share * limit)) + 1, len(curve)) for share in _SHARES]


def _compute_smoothed_durations(n: int, epsilon: float) -> tuple[list[int], float]:
    """Return durations and supremum for n states smoothed by `_FITTING_AMOUNT`."""
    function = LossFunction(smooth(np.eye(n), _FITTING_AMOUNT))
    limit = function.supremum(epsilon).value
    return _find_durations(backward_leakage(function, np.full(1000, epsilon)), limit), limit


# ---- Figure 8 ----


def build_figure_8(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - every builder has this signature
    """Compute Figure 8: budgets of Algorithms 7 and 8 for 1-DP_T and their leakage."""
    steps = 30
    alpha = 1.0
    budgets = {
        "(a) Algorithm 7": np.full(steps, constant_budget(BACKWARD, FORWARD, alpha)),
        "(b) Algorithm 8": exact_budgets(BACKWARD, FORWARD, alpha, steps),
    }
    leakages = {title: compute_leakage(BACKWARD, FORWARD, values) for title, values in budgets.items()}
    constant, exact = leakages.values()
    times = np.arange(1.0, steps + 1)
    panels = [
        Panel(
            title,
            "timestamp",
            "budget and leakage",
            [
                Series("budget ε", times, leakage.epsilons),
                Series("BPL", times, leakage.backward),
                Series("FPL", times, leakage.forward),
                Series("TPL", times, leakage.temporal),
            ],
        )
        for title, leakage in leakages.items()
    ]
    return PaperFigure(
        "figure_8",
        f"Budgets of Algorithms 7 and 8 for 1-DP_T over {steps} timestamps, with P^B = (.8 .2; .2 .8) and "
        "P^F = (.8 .2; .1 .9), and the leakage that they cause.",
        panels,
        judge_figure_8(constant, exact, alpha),
    )


def judge_figure_8(constant: Leakage, exact: Leakage, alpha: float) -> list[Claim]:
    """Judge the claims of Sections 5 and 6.3 about the budgets of Algorithms 7 and 8."""
    error = float(np.abs(exact.temporal - alpha).max())
    # The ends have one-sided leakage only, and are where a constant budget leaves most of α unused.
    first, last = constant.temporal[[0, -1]].tolist()
    noise = [float(np.mean(COUNT_SENSITIVITY / leakage.epsilons)) for leakage in (constant, exact)]
    middle = exact.epsilons[1:-1]
    return [
        Claim(
            "Section 6.3, Figure 8(b)",
            "Algorithm 8 achieves the desired level α = 1 exactly at every timestamp.",
            "1",
            f"largest difference {_format_difference(error)}; ε_1 = {exact.epsilons[0]:.6f}, ε_t = "
            f"{exact.epsilons[1]:.6f}, "
            f"ε_T = {exact.epsilons[-1]:.6f}",
            judge(error < _TOLERANCE),
        ),
        Claim(
            "Section 5, Figure 8(b)",
            "Algorithm 8 spends more at timestamps 1 and T than in between, where budgets are constant.",
            "not printed",
            f"{exact.epsilons[0]:.4f} and {exact.epsilons[-1]:.4f} against {middle.min():.4f} to {middle.max():.4f}",
            judge(bool(exact.epsilons[[0, -1]].min() > middle.max()) and float(np.ptp(middle)) < _TOLERANCE),
        ),
        Claim(
            "Section 5, Figure 8(a)",
            "Under Algorithm 7 leakage never exceeds α, and stays below it at the ends of the stream.",
            "at most 1",
            f"ε_t = {constant.epsilons[0]:.6f}; TPL {first:.4f} at timestamp 1 and {last:.4f} at timestamp "
            f"{len(constant.temporal)}, at most {constant.worst:.6f}",
            judge(constant.worst <= alpha + _TOLERANCE and max(first, last) < alpha - _TOLERANCE),
        ),
        Claim(
            "Section 6.3, Figure 8",
            "Algorithm 8 has better data utility than Algorithm 7.",
            "not printed",
            f"mean absolute Laplace noise {noise[1]:.3f} against {noise[0]:.3f} at sensitivity {COUNT_SENSITIVITY:g}",
            judge(noise[1] < noise[0]),
        ),
    ]


# ---- Figure 9 ----

_NOISE_ALPHA = 2.0
_NOISE_RUNS = 1000
_LENGTHS = (2, 3, 5, 10, 20, 30, 50)
_DEGREES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def build_figure_9(options: FigureOptions) -> PaperFigure:
    """Compute Figure 9: noise of Algorithms 7 and 8 by length and by correlation."""
    return measure_noise(50, options.num_runs(_NOISE_RUNS), options.seed)


def measure_noise(size: int, runs: int, seed: int) -> PaperFigure:
    """Return Figure 9 for smoothed identity matrices.

    Parameters
    ----------
    size : int
        Number of states n.
    runs : int
        Streams of noise drawn for each point.
    seed : int
        Seed of the noise.
    """
    rng = np.random.default_rng(seed)
    by_length: dict[tuple[float, str], FloatArray] = {
        (steps, name): budgets
        for steps in _LENGTHS
        for name, budgets in compute_noise_budgets(size, 0.001, steps).items()
    }
    by_degree = {
        (degree, name): budgets
        for degree in _DEGREES
        for name, budgets in compute_noise_budgets(size, degree, 10).items()
    }
    panels = [
        _build_noise_panel(f"(a) s = 0.001, n = {size}", "T, timestamps", by_length, runs, rng),
        _build_noise_panel(f"(b) T = 10, n = {size}", "s, smoothing of both matrices", by_degree, runs, rng),
    ]
    return PaperFigure(
        "figure_9",
        f"Mean absolute Laplace noise of Algorithms 7 and 8 with 2-DP_T: means of {runs} "
        f"{'run' if runs == 1 else 'runs'} with 95 % intervals, and expected values (dashed). The scale is "
        f"{COUNT_SENSITIVITY:g}/ε as for the counts of Example 1; the paper states neither n, nor T of (b), nor the "
        "number of runs.",
        panels,
        judge_figure_9(
            {key: compute_expected_noise(budgets) for key, budgets in by_length.items()},
            {key: compute_expected_noise(budgets) for key, budgets in by_degree.items()},
            compute_expected_noise(np.array([_NOISE_ALPHA])),
        ),
    )


def compute_noise_budgets(size: int, amount: float, steps: int) -> dict[str, FloatArray]:
    """Return the budgets of Algorithms 7 and 8 for 2-DP_T, shape (T,) each."""
    function = LossFunction(smooth(np.eye(size), amount))
    return {
        "Algorithm 7": np.full(steps, constant_budget(function, function, _NOISE_ALPHA)),
        "Algorithm 8": exact_budgets(function, function, _NOISE_ALPHA, steps),
    }


def compute_expected_noise(budgets: FloatArray) -> float:
    """Return the mean over time of ``E|Lap(b)| = b`` with ``b = 2/ε_t``."""
    return float(np.mean(COUNT_SENSITIVITY / budgets))


def sample_mean_noise(budgets: FloatArray, runs: int, rng: np.random.Generator) -> FloatArray:
    """Return the mean over time of sampled absolute Laplace noise, shape (runs,)."""
    noise = sample_laplace((runs, len(budgets)), as_random_source(rng)) * (COUNT_SENSITIVITY / budgets)
    return np.asarray(np.abs(noise).mean(axis=1))


def _build_noise_panel(
    title: str, x_label: str, budgets: Mapping[tuple[float, str], FloatArray], runs: int, rng: np.random.Generator
) -> Panel:
    x = np.array(list(dict.fromkeys(key[0] for key in budgets)), dtype=np.float64)
    names = list(dict.fromkeys(key[1] for key in budgets))
    samples = {key: sample_mean_noise(values, runs, rng) for key, values in budgets.items()}
    series = [Series.from_runs(name, x, np.array([samples[value, name] for value in x.tolist()]).T) for name in names]
    series += [
        Series(
            f"{name}, expected",
            x,
            np.array([compute_expected_noise(budgets[value, name]) for value in x.tolist()]),
            dashed=True,
        )
        for name in names
    ]
    free = compute_expected_noise(np.array([_NOISE_ALPHA]))
    series.append(Series("no correlation, ε = 2", x[[0, -1]], np.full(2, free), dashed=True))
    return Panel(title, x_label, "mean |noise|", series, x_scale="log", y_scale="log")


def judge_figure_9(
    by_length: Mapping[tuple[float, str], float], by_degree: Mapping[tuple[float, str], float], free: float
) -> list[Claim]:
    """Judge the claims of Section 6.3 about Figure 9.

    Parameters
    ----------
    by_length, by_degree : mapping
        (T or s, name of the algorithm) → expected absolute noise.
    free : float
        Expected absolute noise without a correlation.
    """
    lengths, degrees = (sorted({key[0] for key in values}) for values in (by_length, by_degree))
    gain = [by_length[steps, "Algorithm 7"] / by_length[steps, "Algorithm 8"] for steps in lengths]
    decay = [by_degree[degree, "Algorithm 8"] / free for degree in degrees]
    return [
        Claim(
            "Section 6.3, Figure 9(a)",
            "If T is short, Algorithm 8 has less noise than Algorithm 7.",
            "not printed",
            f"expected noise at T = {lengths[0]:g}: {by_length[lengths[0], 'Algorithm 8']:.3g} against "
            f"{by_length[lengths[0], 'Algorithm 7']:.3g}, {gain[0]:.3g} times less; T = {lengths[-1]:g}: "
            f"{gain[-1]:.3g} times less",
            judge(gain[0] > 1 and all(a >= b for a, b in pairwise(gain))),
        ),
        Claim(
            "Section 6.3, Figure 9(b)",
            f"Data utility decays significantly under the strong correlation s = {degrees[0]:g}.",
            "not printed",
            f"expected noise of Algorithm 8 is {decay[0]:.3g} times that without correlation at s = {degrees[0]:g}, "
            f"{decay[-1]:.3g} times at s = {degrees[-1]:g}",
            judge(decay[0] > 2 and all(a >= b for a, b in pairwise(decay))),
            "Counted as significant: more than twice the noise.",
        ),
    ]


# ---- Shared ----


def _format_numbers(values: FloatArray) -> str:
    return " ".join(f"{value:.4g}" for value in values.tolist())


def _format_difference(value: float) -> str:
    """State a difference. Digits of rounding errors depend on the machine."""
    return f"{value:.1e}" if value >= _TOLERANCE else f"at most {_TOLERANCE:g} (rounding)"


def _format_list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


# The figures in the paper's order.
FIGURES: tuple[FigureBuilder, ...] = (
    FigureBuilder("figure_3", "BPL, FPL and TPL of a 0.1-DP mechanism", build_figure_3),
    FigureBuilder("table_2", "Leakage about one, several and all timestamps", build_table_2),
    FigureBuilder("figure_4", "The loss function of a 3 × 3 matrix", build_figure_4),
    FigureBuilder("figure_5", "BPL over time and its supremum", build_figure_5),
    FigureBuilder("figure_6", "Runtime of the evaluation", build_figure_6),
    FigureBuilder("figure_7", "BPL under degrees of correlation", build_figure_7),
    FigureBuilder("figure_8", "Budgets of Algorithms 7 and 8", build_figure_8),
    FigureBuilder("figure_9", "Noise of Algorithms 7 and 8", build_figure_9),
)
