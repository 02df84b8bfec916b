"""Figures 3 to 6 of Cao et al. (DBSec 2023) with this package's estimators beside the paper's; pictures and a table.

Usage: python scripts/figure_counts.py OUT_FOLDER [--runs 5] [--seed 1]

Where the paper does not say: users start anywhere with equal probability; the error of a run is the mean over times and
places; the "MLE" curve is the proportional member of the maximum-likelihood set (Lee et al. 2015).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from dphmm import counts, leakage, markov
from dphmm.counts.baselines import nearest_integers
from dphmm.errors import BudgetError

CYCLE = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
ALPHA = r"$\alpha$-DP$_T$"
EPSILON = r"$\epsilon$-DP"
SINGLE_FREQUENCY, SINGLE_UNIFORM = "MAP, frequency", "MAP, uniform"
COUPLED, COUPLED_UNIFORM, ONLINE = "coupled", "coupled, uniform", "coupled, online"
STYLES = {
    "raw": ("0.6", ":", "x"),
    "MLE": ("tab:red", "-", "o"),
    "least squares": ("tab:orange", "--", "s"),
    SINGLE_FREQUENCY: ("tab:blue", "-", "^"),
    SINGLE_UNIFORM: ("tab:green", "--", "v"),
    ONLINE: ("tab:purple", "--", "D"),
    COUPLED_UNIFORM: ("0.3", ":", "."),
    COUPLED: ("black", "-", "*"),
}


def smoothed(s: float) -> np.ndarray:
    """The paper's matrix after Equation 11."""
    return (CYCLE + s) / (CYCLE + s).sum(axis=1, keepdims=True)


def simulate(matrix: np.ndarray, users: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    edges = matrix.cumsum(axis=1)
    states = [rng.integers(3, size=users)]
    for _ in range(steps - 1):
        states.append(np.minimum((rng.random(users)[:, None] > edges[states[-1]]).sum(axis=1), 2))
    return counts.count_states(np.array(states).T, 3)


def budgets(kind: str, matrix: np.ndarray, level: float, steps: int) -> np.ndarray:
    if kind == EPSILON:
        return np.full(steps, level)
    backward = markov.reverse(matrix, markov.stationary(matrix))
    return np.asarray(leakage.exact_budgets(backward, matrix, level, steps))


def estimates(noisy: np.ndarray, matrix: np.ndarray, users: int, scale: np.ndarray) -> dict[str, np.ndarray]:
    given = (noisy, matrix, users, scale)
    return {
        "raw": noisy,
        "MLE": counts.maximum_likelihood(noisy, users),
        "least squares": counts.least_squares(noisy, users),
        SINGLE_FREQUENCY: counts.post_process(*given, prior="frequency"),
        SINGLE_UNIFORM: counts.post_process(*given, prior="uniform"),
        ONLINE: counts.post_process(*given, coupled="online"),
        COUPLED: counts.post_process(*given, coupled=True),
        COUPLED_UNIFORM: counts.post_process(*given, prior="uniform", coupled=True),
    }


def errors(kind: str, s: float, level: float, steps: int, runs: int, seed: int, users: int = 200) -> dict[str, float]:
    matrix = smoothed(s)
    epsilons = budgets(kind, matrix, level, steps)
    found: dict[str, list[float]] = {}
    for run in range(runs):
        rng = np.random.default_rng([seed, run, steps])
        true = simulate(matrix, users, steps, rng)
        noisy = counts.release(true, epsilons, rng=rng)
        for name, estimate in estimates(noisy, matrix, users, 2 / epsilons).items():
            found.setdefault(name, []).append(float(np.mean((estimate - true) ** 2)))
    return {name: float(np.mean(values)) for name, values in found.items()}


def sweep(ax: plt.Axes, values: Iterable[float], measure: Callable[[float], dict[str, float]], label: str) -> list:
    values = list(values)
    rows = [measure(value) for value in values]
    for name, (colour, line, marker) in STYLES.items():
        ax.plot(values, [row[name] for row in rows], color=colour, linestyle=line, marker=marker, ms=4, label=name)
    ax.set_yscale("log")
    ax.set_xlabel(label)
    ax.set_ylabel("mean squared error")
    ax.grid(alpha=0.3)
    return [(value, name, error) for value, row in zip(values, rows, strict=True) for name, error in row.items()]


def single_user(runs: int, seed: int) -> tuple[plt.Figure, list]:
    """Figure 3: one user, epsilon = 1; errors over time, and how likely the released moves are."""
    steps, scale = 20, 2.0
    errors_by_name: dict[str, list[np.ndarray]] = {}
    chances: dict[str, np.ndarray] = {}
    for run in range(20 * runs):
        rng = np.random.default_rng([seed, run])
        true = simulate(CYCLE, 1, steps, rng)
        noisy = counts.release(true, 1.0, rng=rng)
        for name, estimate in estimates(noisy, CYCLE, 1, np.full(steps, scale)).items():
            errors_by_name.setdefault(name, []).append(((estimate - true) ** 2).mean(axis=1))
            if run == 0 and name != "raw":
                place = nearest_integers(estimate, 1).argmax(axis=1)
                chances[name] = CYCLE[place[:-1], place[1:]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    rows = []
    for name, values in errors_by_name.items():
        colour, line, marker = STYLES[name]
        mean = np.mean(values, axis=0)
        left.plot(range(1, steps + 1), mean, color=colour, linestyle=line, marker=marker, ms=4, label=name)
        rows.append((1.0, name, float(mean.mean())))
    for name, values in chances.items():
        colour, line, marker = STYLES[name]
        drawn = np.maximum(values, 1e-10)
        right.plot(range(2, steps + 1), drawn, color=colour, linestyle=line, marker=marker, ms=4, label=name)
    left.set(xlabel="time", ylabel="mean squared error", yscale="log", title=f"one user, mean of {20 * runs} runs")
    right.set(xlabel="time", ylabel="probability of the move", yscale="log", title="one run; 1e-10: impossible")
    left.legend(fontsize=7, loc="center", bbox_to_anchor=(0.5, 0.55), ncols=2)
    return figure, rows


def by_budget(runs: int, seed: int) -> tuple[plt.Figure, list]:
    """Figure 4: T = 500; epsilon-DP at s = 0 and alpha-DP_T at s = 0.01."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    levels, rows = np.arange(0.2, 2.01, 0.2).round(1), []
    for ax, kind, s, label in [(axes[0], EPSILON, 0.0, r"$\epsilon$"), (axes[1], ALPHA, 0.01, r"$\alpha$")]:
        rows += sweep(ax, levels, lambda level, k=kind, s=s: errors(k, s, level, 500, runs, seed), label)
        ax.set_title(f"{kind}, s = {s}")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, rows


def by_length(runs: int, seed: int) -> tuple[plt.Figure, list]:
    """Figure 5: s = 0.01, level 1, T from 100 to 200."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    rows = []
    for ax, kind in zip(axes, [EPSILON, ALPHA], strict=True):
        rows += sweep(ax, range(100, 201, 20), lambda t, k=kind: errors(k, 0.01, 1.0, int(t), runs, seed), "times")
        ax.set_title(f"{kind} at level 1, s = 0.01")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, rows


def by_correlation(runs: int, seed: int) -> tuple[plt.Figure, list]:
    """Figure 6: T = 500, level 1, s = 0.01, 0.1, 1."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    rows = []
    for ax, kind in zip(axes, [EPSILON, ALPHA], strict=True):
        rows += sweep(ax, [0.01, 0.1, 1.0], lambda s, k=kind: errors(k, s, 1.0, 500, runs, seed), "s (small: strong)")
        ax.set(title=f"{kind} at level 1", xscale="log")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure, rows


def column(rows: list, name: str) -> np.ndarray:
    return np.array([error for _, other, error in rows if other == name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    worse = 0
    with (options.folder / "counts.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["figure", "x", "estimate", "mean squared error"])
        for number, draw in [(3, single_user), (4, by_budget), (5, by_length), (6, by_correlation)]:
            try:
                figure, rows = draw(options.runs, options.seed)
            except BudgetError as error:
                print(f"figure {number}: {error}")
                continue
            figure.tight_layout()
            figure.savefig(options.folder / f"counts_figure{number}.png", dpi=120)
            table.writerows((number, *row) for row in rows)
            for single, coupled in [(SINGLE_FREQUENCY, COUPLED), (SINGLE_UNIFORM, COUPLED_UNIFORM)]:
                ratios = column(rows, single) / column(rows, coupled)
                worse += int((ratios < 1).sum())
                print(f"figure {number}: ({single}) / ({coupled}) from {ratios.min():.3f} to {ratios.max():.3f}")
    print(f"settings where the coupled estimate is worse in mean: {worse}")


if __name__ == "__main__":
    main()
