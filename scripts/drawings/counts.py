"""Figures 3 to 6 of Cao et al. (DBSec 2023) with this package's estimators beside the paper's; pictures and a table.

Where the paper does not say: users start anywhere with equal probability; the error of a run is the mean over times and
places; the "maximum-likelihood" curve is the proportional member of that set (Lee et al. 2015).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dphmm import counts, leakage
from dphmm.counts.repair import RAW, nearest_integers
from dphmm.errors import BudgetError
from dphmm.model import reverse, stationary
from scripts.drawings.sheet import STYLES, finish, line, panels, save, write

DATA: tuple[str, ...] = ()
RUNS = 5
CYCLE = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
ALPHA, EPSILON = r"$\alpha$-DP$_T$", r"$\epsilon$-DP"
Rows = list[tuple[float, str, float]]


def draw(options: argparse.Namespace) -> None:
    worse, rows = 0, []
    for number, figure in ((3, single_user), (4, by_budget), (5, by_length), (6, by_correlation)):
        try:
            drawn, found = figure(options)
        except BudgetError as error:
            print(f"figure {number}: {error}")
            continue
        save(drawn, options.folder / f"counts_figure{number}.png")
        rows += [(number, *row) for row in found]
        for prior in ("", ", uniform"):
            single, coupled = (
                np.array([e for _, name, e in found if name == n + prior]) for n in ("single", "coupled")
            )
            ratios = single / coupled
            worse += int((ratios < 1).sum())
            print(f"figure {number}: single / coupled{prior} from {ratios.min():.3f} to {ratios.max():.3f}")
    write(options.folder / "counts.csv", ["figure", "x", "estimate", "mean squared error"], rows)
    print(f"settings where the coupled estimate is worse in mean: {worse}")


def smoothed(s: float) -> np.ndarray:
    """The paper's matrix after Equation 11."""
    return (CYCLE + s) / (CYCLE + s).sum(axis=1, keepdims=True)


def simulate(matrix: np.ndarray, users: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    edges = matrix.cumsum(axis=1)
    states = [rng.integers(3, size=users)]
    for _ in range(steps - 1):
        states.append(np.minimum((rng.random(users)[:, None] > edges[states[-1]]).sum(axis=1), 2))
    return counts.count_states(np.array(states).T, 3)


def estimates(noisy: np.ndarray, matrix: np.ndarray, users: int, scale: np.ndarray) -> dict[str, np.ndarray]:
    found = {RAW: noisy}
    for name in STYLES:
        if name != RAW:
            estimator, _, prior = name.partition(", ")
            found[name] = counts.estimate(estimator, noisy, matrix, users, scale, prior or "frequency")
    return found


def errors(kind: str, s: float, level: float, steps: int, options: argparse.Namespace) -> dict[str, float]:
    """Each estimator's error with 200 users."""
    matrix = smoothed(s)
    epsilons = np.full(steps, level)
    if kind == ALPHA:
        back = reverse(matrix, stationary(matrix))
        epsilons = np.asarray(leakage.exact_budgets(back, matrix, level, steps))
    found: dict[str, list[float]] = {}
    for run in range(options.runs):
        rng = np.random.default_rng([options.seed, run, steps])
        true = simulate(matrix, 200, steps, rng)
        noisy = counts.release(true, epsilons, rng=rng)
        for name, estimate in estimates(noisy, matrix, 200, 2 / epsilons).items():
            found.setdefault(name, []).append(float(np.mean((estimate - true) ** 2)))
    return {name: float(np.mean(values)) for name, values in found.items()}


def sweep(ax: Axes, values: Iterable[float], measure: Callable[[float], dict[str, float]], x: str, title: str) -> Rows:
    values = list(values)
    rows = [measure(value) for value in values]
    for name in STYLES:
        line(ax, name, values, [row[name] for row in rows])
    finish(ax, x, "mean squared error", title, legend=False, yscale="log")
    return [(value, name, error) for value, row in zip(values, rows, strict=True) for name, error in row.items()]


def single_user(options: argparse.Namespace) -> tuple[Figure, Rows]:
    """Figure 3: one user, epsilon = 1; errors over time, and how likely the released moves are."""
    steps, runs = 20, (2 if options.small else 20) * options.runs
    squares: dict[str, list[np.ndarray]] = {}
    chances: dict[str, np.ndarray] = {}
    for run in range(runs):
        rng = np.random.default_rng([options.seed, run])
        true = simulate(CYCLE, 1, steps, rng)
        noisy = counts.release(true, 1.0, rng=rng)
        for name, estimate in estimates(noisy, CYCLE, 1, np.full(steps, 2.0)).items():
            squares.setdefault(name, []).append(((estimate - true) ** 2).mean(axis=1))
            if run == 0 and name != RAW:
                place = nearest_integers(estimate, 1).argmax(axis=1)
                chances[name] = CYCLE[place[:-1], place[1:]]
    figure, (left, right) = panels()
    means = {name: np.mean(values, axis=0) for name, values in squares.items()}
    for name, mean in means.items():
        line(left, name, range(1, steps + 1), mean)
    for name, values in chances.items():
        line(right, name, range(2, steps + 1), np.maximum(values, 1e-10))
    finish(left, "time", "mean squared error", f"one user, mean of {runs} runs", yscale="log")
    finish(right, "time", "probability of the move", "one run; 1e-10: impossible", legend=False, yscale="log")
    return figure, [(1.0, name, float(mean.mean())) for name, mean in means.items()]


def by_budget(options: argparse.Namespace) -> tuple[Figure, Rows]:
    """Figure 4: T = 500; epsilon-DP at s = 0 and alpha-DP_T at s = 0.01."""
    figure, axes = panels(sharey=True)
    levels, rows = np.arange(0.2, 2.01, 1.8 if options.small else 0.2).round(1), Rows()
    steps = 8 if options.small else 500
    for ax, kind, s, label in ((axes[0], EPSILON, 0.0, r"$\epsilon$"), (axes[1], ALPHA, 0.01, r"$\alpha$")):
        measure = partial(lambda k, s, level: errors(k, s, level, steps, options), kind, s)
        rows += sweep(ax, levels, measure, label, f"{kind}, s = {s}")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, rows


def by_length(options: argparse.Namespace) -> tuple[Figure, Rows]:
    """Figure 5: s = 0.01, level 1, T from 100 to 200."""
    lengths = (6, 8) if options.small else range(100, 201, 20)
    return both_kinds(lengths, lambda kind, t: errors(kind, 0.01, 1.0, int(t), options), "times")


def by_correlation(options: argparse.Namespace) -> tuple[Figure, Rows]:
    """Figure 6: T = 500, level 1, s = 0.01, 0.1, 1."""
    steps, degrees = (8, (0.01, 1.0)) if options.small else (500, (0.01, 0.1, 1.0))
    figure, rows = both_kinds(degrees, lambda kind, s: errors(kind, s, 1.0, steps, options), "s (small: strong)")
    for ax in figure.axes:
        ax.set_xscale("log")
    return figure, rows


def both_kinds(
    values: Iterable[float], measure: Callable[[str, float], dict[str, float]], x: str
) -> tuple[Figure, Rows]:
    figure, axes = panels()
    rows = Rows()
    for ax, kind in zip(axes, (EPSILON, ALPHA), strict=True):
        rows += sweep(ax, values, partial(measure, kind), x, f"{kind} at level 1")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, rows
