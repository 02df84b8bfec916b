"""Figure 6 of the TPL paper: runtime of the loss function, compared with a linear solver.

The paper times three evaluations (Algorithms 1, 3 and 5), two precomputations (Algorithms 2 and 4) and CPLEX. This
package has one evaluation without a precomputation, `dphmm.leakage.loss`, and one precomputation,
`dphmm.leakage.LossFunction`. They take the places of Algorithm 1, and of Algorithms 2 to 5. The solver is HiGHS.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError
from dphmm.evaluation.figures.base import Claim, FigureOptions, Panel, PaperFigure, Series, Verdict, judge
from dphmm.jobs.progress import ProgressCallback
from dphmm.leakage import LossFunction, loss

# Values of the solver and of the package count as identical if they differ by less; HiGHS solves to about 1e-10.
_VALUE_TOLERANCE = 1e-9

# Minimum ratio that counts as several orders of magnitude: two orders.
_SOLVER_FACTOR = 100.0


@dataclass(frozen=True)
class RuntimeSettings:
    """Sizes and numbers of runs of Figure 6.

    Parameters
    ----------
    runs : int
        Random matrices behind each point. The solver runs once.
    matrices : int
        Random matrices for which values are compared with the solver.
    sizes, solver_sizes : tuple of int
        Numbers of states n; `solver_sizes` is a subset of `sizes`.
    compared_size : int
        Number of states of the compared matrices.
    size : int
        Number of states in panels (c) and (d).
    lengths : tuple of int
        Numbers of timestamps T.
    alphas : tuple of float
        Leakages α of panel (d): 10 and at least one on either side.
    limits : tuple of float
        Ends ``a_m`` up to which the loss function is built in panel (b), in addition to the complete one.
    """

    runs: int = 30
    matrices: int = 10
    sizes: tuple[int, ...] = (5, 10, 20, 30, 50, 100, 200, 400)
    solver_sizes: tuple[int, ...] = (5, 10, 20, 30, 50)
    compared_size: int = 30
    size: int = 100
    lengths: tuple[int, ...] = (1, 2, 5, 10, 30, 100, 300, 1000)
    alphas: tuple[float, ...] = (0.01, 0.1, 1.0, 3.0, 10.0, 15.0, 20.0, 30.0, 50.0)
    limits: tuple[float, ...] = (0.1, 1.0, 10.0)


def build_figure_6(options: FigureOptions) -> PaperFigure:
    """Return Figure 6 with the sizes of `RuntimeSettings`."""
    defaults = RuntimeSettings()
    settings = RuntimeSettings(options.num_runs(defaults.runs), options.num_runs(defaults.matrices))
    return compute_figure_6(settings, options.seed, options.progress)


def compute_figure_6(settings: RuntimeSettings, seed: int, progress: ProgressCallback) -> PaperFigure:
    """Time the evaluations and compare their values with those of the solver.

    Parameters
    ----------
    settings : RuntimeSettings
        Sizes and numbers of runs.
    seed : int
        Seed of the random matrices.
    progress : callable
        Shows the progress.

    Returns
    -------
    PaperFigure
        Times depend on the machine.
    """
    rng = np.random.default_rng(seed)
    _warm_up(max(settings.sizes), rng)
    differences = compare_with_solver(settings.compared_size, settings.matrices, rng, progress)
    by_size, by_limit = _time_sizes(settings, rng, progress)
    by_length = _time_lengths(settings, rng, progress)
    by_alpha = _time_alphas(settings, rng)
    panels = [
        _build_panel("(a) evaluation at α = 0.1", "n, states", by_size),
        _build_panel("(b) precomputation", "n, states", by_limit),
        _build_panel(f"(c) evaluation at T timestamps, n = {settings.size}", "T, timestamps", by_length),
        _build_panel(f"(d) evaluation at α, n = {settings.size}", "α", by_alpha),
    ]
    return PaperFigure(
        "figure_6",
        f"Processor time on this machine with matrices of uniform random rows: means of {settings.runs} "
        f"{'run' if settings.runs == 1 else 'runs'} with 95 % intervals (paper: 30), after a warm-up. `loss` takes the "
        "place of Algorithm 1, building `LossFunction` (up to α = a_m, or completely) that of Algorithms 2 and 4, and "
        "calling it that of Algorithms 3 and 5. The solver (HiGHS, one linear program per pair of rows) runs once, "
        f"for n up to {max(settings.solver_sizes)}.",
        panels,
        [
            judge_values(differences, settings.compared_size),
            *judge_runtimes(by_size, by_limit, by_length, by_alpha),
        ],
    )


def sample_matrix(size: int, rng: np.random.Generator) -> FloatArray:
    """Return a transition matrix with uniform entries, rows divided by their sums."""
    weights = rng.random((size, size))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def solve_pair(q: FloatArray, d: FloatArray, alpha: float) -> float:
    """Solve the linear-fractional program (19) to (21) of the TPL paper by a linear program.

    Maximise ``q·x / d·x`` subject to ``m ≤ x_j ≤ e^α m``. By the transformation of Charnes and Cooper ``d·x = 1``; the
    program is written in ``x − m``, which halves the number of constraints.

    Parameters
    ----------
    q, d : ndarray, shape (n,)
        Two rows of a transition matrix.
    alpha : float
        Leakage one timestamp away.

    Returns
    -------
    float
        The logarithm of the maximum.

    Raises
    ------
    InvalidInputError
        If HiGHS does not find an optimal solution.
    """
    n = len(q)
    # Row j states x_j − m ≤ (e^α − 1) m; x_j − m ≥ 0 and m ≥ 0 are the default bounds of the solver's variables.
    bounds = sp.hstack([sp.eye_array(n), sp.csr_array(np.full((n, 1), -math.expm1(alpha)))], format="csr")
    solution = linprog(
        -np.append(q, q.sum()),
        A_ub=bounds,
        b_ub=np.zeros(n),
        A_eq=[np.append(d, d.sum())],
        b_eq=[1.0],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solution.fun is None:
        raise InvalidInputError(f"alpha must be within the range of the solver, got {alpha:g}: {solution.message}")
    return math.log(-solution.fun)


def solve_loss(matrix: FloatArray, alpha: float) -> float:
    """Return L(α) by one linear program for each ordered pair of rows."""
    return max(solve_pair(q, d, alpha) for q, d in permutations(matrix, 2))


def compare_with_solver(size: int, matrices: int, rng: np.random.Generator, progress: ProgressCallback) -> FloatArray:
    """Compare both evaluations of the package with the solver on random matrices.

    Parameters
    ----------
    size : int
        Number of states.
    matrices : int
        Number of matrices; α is 0.1, 1 and 10 in turn.
    rng : Generator
        Source of the matrices.
    progress : callable
        Shows the progress.

    Returns
    -------
    ndarray, shape (matrices, 2)
        Absolute differences of `loss` and of `LossFunction` from the solver.
    """
    rows = []
    for number in progress(range(matrices), "comparing with the solver"):
        matrix = sample_matrix(size, rng)
        alpha = (0.1, 1.0, 10.0)[number % 3]
        expected = solve_loss(matrix, alpha)
        rows.append([abs(loss(matrix, alpha) - expected), abs(LossFunction(matrix)(alpha) - expected)])
    return np.array(rows)


# Label → x, shape (k,), and seconds, shape (runs, k).
Runtimes = Mapping[str, tuple[FloatArray, FloatArray]]


def _warm_up(size: int, rng: np.random.Generator) -> None:
    """Trigger compilations and imports before anything is timed."""
    # Loops are compiled once they have processed some million numbers: 20 matrices of 100 states exceed that.
    for _ in range(20):
        matrix = sample_matrix(min(size, 100), rng)
        loss(matrix, 1.0)
        LossFunction(matrix, 1.0)
    solve_loss(sample_matrix(3, rng), 1.0)


def _measure_seconds(action: Callable[..., object], *arguments: object) -> float:
    """Return the processor seconds of a call, summed over its threads."""
    # Not wall-clock time: other work of the machine must not decide a claim.
    started = time.process_time()
    action(*arguments)
    return time.process_time() - started


def _time_sizes(
    settings: RuntimeSettings, rng: np.random.Generator, progress: ProgressCallback
) -> tuple[Runtimes, Runtimes]:
    """Time panels (a) and (b): evaluations at α = 0.1 and precomputations by n."""
    alpha = 0.1
    # Every measurement has a fresh matrix or function: nothing can be cached between runs.
    limits = (*settings.limits, math.inf)
    shape = (settings.runs, len(settings.sizes))
    direct = np.zeros(shape)
    called = np.zeros(shape)
    built = {limit: np.zeros(shape) for limit in limits}
    solved = []
    for k, n in enumerate(progress(settings.sizes, "timing sizes")):
        for run in range(settings.runs):
            matrix = sample_matrix(n, rng)
            direct[run, k] = _measure_seconds(loss, matrix, alpha)
            for limit in limits:
                built[limit][run, k] = _measure_seconds(LossFunction, matrix, limit)
            function = LossFunction(matrix)
            called[run, k] = _measure_seconds(function, alpha)
        if n in settings.solver_sizes:
            solved.append(_measure_seconds(solve_loss, matrix, alpha))
    x = np.array(settings.sizes, dtype=np.float64)
    by_size = {
        "solver (HiGHS)": (np.array(settings.solver_sizes, dtype=np.float64), np.array([solved])),
        "loss": (x, direct),
        "LossFunction, called": (x, called),
    }
    names = {limit: "complete" if math.isinf(limit) else f"a_m = {limit:g}" for limit in limits}
    return by_size, {f"LossFunction, built, {names[limit]}": (x, seconds) for limit, seconds in built.items()}


def _time_lengths(settings: RuntimeSettings, rng: np.random.Generator, progress: ProgressCallback) -> Runtimes:
    """Time panel (c): BPL with ε = 0.1 at the T timestamps after the first."""
    epsilon = 0.1

    def accumulate(evaluate: Callable[[float], float], steps: int) -> float:
        leakage = epsilon
        for _ in range(steps):
            leakage = evaluate(leakage) + epsilon
        return leakage

    def precompute(matrix: FloatArray, steps: int) -> float:
        # Leakage is at most the sum of the budgets so far, so that the function can end there.
        return accumulate(LossFunction(matrix, (steps + 1) * epsilon), steps)

    shape = (settings.runs, len(settings.lengths))
    direct = np.zeros(shape)
    prepared = np.zeros(shape)
    for run in progress(range(settings.runs), "timing streams"):
        matrix = sample_matrix(settings.size, rng)
        for k, steps in enumerate(settings.lengths):
            direct[run, k] = _measure_seconds(accumulate, partial(loss, matrix), steps)
            prepared[run, k] = _measure_seconds(precompute, matrix, steps)
    x = np.array(settings.lengths, dtype=np.float64)
    return {"loss": (x, direct), "LossFunction, built and called": (x, prepared)}


def _time_alphas(settings: RuntimeSettings, rng: np.random.Generator) -> Runtimes:
    """Time panel (d): evaluations by α."""
    shape = (settings.runs, len(settings.alphas))
    direct = np.zeros(shape)
    called = np.zeros(shape)
    for run in range(settings.runs):
        matrix = sample_matrix(settings.size, rng)
        function = LossFunction(matrix)
        for k, alpha in enumerate(settings.alphas):
            direct[run, k] = _measure_seconds(loss, matrix, alpha)
            called[run, k] = _measure_seconds(function, alpha)
    x = np.array(settings.alphas, dtype=np.float64)
    return {"loss": (x, direct), "LossFunction, called": (x, called)}


def _build_panel(title: str, x_label: str, runtimes: Runtimes) -> Panel:
    series = [Series.from_runs(label, x, seconds) for label, (x, seconds) in runtimes.items()]
    return Panel(title, x_label, "processor seconds", series, x_scale="log", y_scale="log")


def judge_values(differences: FloatArray, size: int) -> Claim:
    """Judge the claim of Section 6.1 that all results are identical to the solver's.

    Parameters
    ----------
    differences : ndarray, shape (matrices, 2)
        As `compare_with_solver` returns them.
    size : int
        Number of states of the matrices.
    """
    worst = float(differences.max())
    return Claim(
        "Section 6.1",
        "The results are identical to those of the solver on random matrices.",
        "identical on 100 matrices, n = 30",
        f"largest difference {worst:.1e} on {len(differences)} matrices, n = {size}, α = 0.1, 1 or 10",
        judge(worst < _VALUE_TOLERANCE),
        f"Counted as identical: within {_VALUE_TOLERANCE:g}, the accuracy of the solver.",
    )


def judge_runtimes(by_size: Runtimes, by_limit: Runtimes, by_length: Runtimes, by_alpha: Runtimes) -> list[Claim]:
    """Judge the claims of Section 6.1 about runtimes."""
    return [
        _judge_solver(by_size),
        *(_judge_growth("Figure 6(a)", label, *by_size[label]) for label in by_size),
        *(_judge_growth("Figure 6(b)", label, *runtimes) for label, runtimes in by_limit.items()),
        _judge_limits(by_limit),
        *_judge_lengths(by_length),
        *_judge_alphas(by_alpha),
    ]


def _judge_solver(by_size: Runtimes) -> Claim:
    sizes, solved = by_size["solver (HiGHS)"]
    shared = np.isin(by_size["loss"][0], sizes)
    # Compared at the largest size that the solver is run for.
    means = {label: by_size[label][1].mean(axis=0)[shared] for label in ("loss", "LossFunction, called")}
    factors = {label: float(solved[0, -1] / mean[-1]) for label, mean in means.items()}
    return Claim(
        "Section 6.1, Figure 6(a)",
        "The evaluations outperform the solver by several orders of magnitude.",
        "not printed",
        f"n = {sizes[-1]:g}: {solved[0, -1]:.3g} s against {means['loss'][-1]:.2g} s (`loss`, factor "
        f"{factors['loss']:.3g}) and {means['LossFunction, called'][-1]:.2g} s (`LossFunction`, factor "
        f"{factors['LossFunction, called']:.3g})",
        judge(min(factors.values()) >= _SOLVER_FACTOR),
        f"Counted as several orders of magnitude: a factor of {_SOLVER_FACTOR:g}. The solver is HiGHS, not CPLEX.",
    )


def _judge_growth(figure: str, label: str, x: FloatArray, seconds: FloatArray) -> Claim:
    """Judge that runtime increases with n, from the smallest to the largest."""
    mean = seconds.mean(axis=0)
    return Claim(
        f"Section 6.1, {figure}",
        f"Runtime increases with n ({label}).",
        "not printed",
        f"{mean[0]:.2g} s at n = {x[0]:g}, {mean[-1]:.2g} s at n = {x[-1]:g}",
        _judge_larger(seconds[:, -1], seconds[:, 0]),
    )


def _judge_limits(by_limit: Runtimes) -> Claim:
    labels = list(by_limit)
    (x, smallest), (_, largest) = by_limit[labels[0]], by_limit[labels[-2]]
    return Claim(
        "Section 6.1, Figure 6(b)",
        "Building the function up to a larger a_m takes longer.",
        "not printed",
        f"n = {x[-1]:g}: "
        + ", ".join(f"{label.rsplit(', ', 1)[1]} {by_limit[label][1][:, -1].mean():.2g} s" for label in labels),
        _judge_larger(largest[:, -1], smallest[:, -1]),
    )


def _judge_lengths(by_length: Runtimes) -> list[Claim]:
    lengths, direct = by_length["loss"]
    _, prepared = by_length["LossFunction, built and called"]
    faster = prepared.mean(axis=0) < direct.mean(axis=0)
    first = f"T = {lengths[faster.argmax()]:g}" if faster.any() else "no T"
    share = float(np.median(prepared[:, -1]) / np.median(prepared[:, 0]))
    return [
        Claim(
            "Section 6.1, Figure 6(c)",
            "For short streams evaluation without a precomputation is fastest.",
            "T < 5",
            f"T = {lengths[0]:g}: {direct[:, 0].mean():.2g} s without, {prepared[:, 0].mean():.2g} s with one",
            _judge_larger(prepared[:, 0], direct[:, 0]),
        ),
        Claim(
            "Section 6.1, Figure 6(c)",
            "For long streams evaluation with the function L(α) built once is fastest.",
            "T > 300",
            f"faster from {first} on; T = {lengths[-1]:g}: {direct[:, -1].mean():.2g} s without, "
            f"{prepared[:, -1].mean():.2g} s with it",
            _judge_larger(direct[:, -1], prepared[:, -1]),
            "Algorithm 3, fastest for T from 5 to 300 in the paper, has no counterpart here.",
        ),
        Claim(
            "Section 6.1, Figure 6(c)",
            "Runtime with the function built once is almost constant in T.",
            "not printed",
            f"{share:.3g} times longer for T = {lengths[-1]:g} than for T = {lengths[0]:g}",
            judge(share < 2),
            "Counted as almost constant: less than twice. Building up to a_m = (T + 1)ε takes longer for a larger T, "
            "and calls take time."
            if share >= 2
            else "Counted as almost constant: less than twice.",
        ),
    ]


def _judge_alphas(by_alpha: Runtimes) -> list[Claim]:
    alphas, direct = by_alpha["loss"]
    _, called = by_alpha["LossFunction, called"]
    ten = int(np.flatnonzero(alphas == 10)[0])
    # Medians, not means: other work of the machine must not decide whether a runtime is stable.
    stable = np.median(direct[:, alphas > 10], axis=0)
    calls = np.median(called, axis=0)
    means = direct.mean(axis=0)
    spread = float(calls.max() / calls.min())
    return [
        Claim(
            "Section 6.1, Figure 6(d)",
            "Runtime without a precomputation increases with α.",
            "not printed",
            f"{means[0]:.2g} s at α = {alphas[0]:g}, {means[ten]:.2g} s at α = 10",
            _judge_larger(direct[:, ten], direct[:, 0]),
        ),
        Claim(
            "Section 6.1, Figure 6(d)",
            "For α > 10 this runtime is stable.",
            "α > 10",
            f"{stable.min():.2g} to {stable.max():.2g} s from α = {alphas[alphas > 10][0]:g} to {alphas[-1]:g}",
            judge(bool(stable.max() < 1.5 * stable.min())),
            "Counted as stable: within a factor of 1.5.",
        ),
        Claim(
            "Section 6.1, Figure 6(d)",
            "The runtime with a precomputation is relatively stable in α.",
            "not printed",
            f"slowest α {spread:.2g} times slower than the fastest",
            judge(spread < 2),
            "Counted as stable: within a factor of 2.",
        ),
    ]


def _judge_larger(slow: FloatArray, fast: FloatArray) -> Verdict:
    """Judge that `slow` has the larger mean. Undecided if the 95 % intervals overlap."""
    # A single run has no interval. The solver runs once; its times are compared across sizes, which differ far more.
    half_widths = 0.0
    for values in (slow, fast):
        series = Series.from_runs("", [0.0], values[:, None])
        half_widths += 0.0 if series.high is None else float(series.high[0] - series.y[0])
    gap = float(slow.mean() - fast.mean())
    return judge(None if abs(gap) <= half_widths else gap > 0)
