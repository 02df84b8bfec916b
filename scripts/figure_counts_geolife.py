"""The estimators of count streams on GeoLife: days of people in Beijing, laid over each other; picture and table.

Usage: python scripts/figure_counts_geolife.py GEOLIFE OUT_FOLDER [--runs 5] [--seed 1] [--cell 2.0] [--step 600]

GEOLIFE is the data set's folder or archive. A member of the population is one day of one person (8 to 20 o'clock local
time, seen within the third ring at one step in six or more). Days of half of the people, chosen by the seed, teach the
transition matrix and the first distribution, with a pseudo-count for every move; the days of the others are counted.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from dphmm import counts
from dphmm.counts.comparison import RAW
from dphmm.evaluation.population import Population, daily_population
from dphmm.readers import read
from dphmm.space.grid import PRESETS, Grid

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0)
STYLES = {
    RAW: ("0.6", ":", "x"),
    "maximum-likelihood": ("tab:red", "-", "o"),
    "least-squares": ("tab:orange", "--", "s"),
    "single": ("tab:blue", "-", "^"),
    "online": ("tab:purple", "--", "D"),
    "coupled": ("black", "-", "*"),
}


def learnt(days: Population, pseudo: float) -> tuple[np.ndarray, np.ndarray]:
    """Transition matrix and first distribution of a population, with a pseudo-count everywhere."""
    moves = np.full((days.size, days.size), pseudo)
    np.add.at(moves, (days.states[:, :-1].ravel(), days.states[:, 1:].ravel()), 1.0)
    first = np.bincount(days.states[:, 0], minlength=days.size) + pseudo
    return moves / moves.sum(axis=1, keepdims=True), first / first.sum()


def halves(days: Population, seed: int) -> tuple[Population, Population]:
    """Days of half of the people, and of the other half: nobody is in both."""
    owners = np.array([name.split(" ")[0] for name in days.members])
    people = np.random.default_rng(seed).permutation(np.unique(owners))
    public = np.isin(owners, people[: len(people) // 2])
    return days.part(public), days.part(~public)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("geolife", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cell", type=float, default=2.0, help="kilometres")
    parser.add_argument("--step", type=float, default=600.0, help="seconds")
    parser.add_argument("--pseudo", type=float, default=0.01, help="pseudo-count of every move")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    grid = Grid.over(PRESETS["geolife"][0], options.cell)
    people = read(options.geolife, "geolife", skip_bad=True).trajectories
    days = daily_population(people, grid, options.step, (8, 20), utc_offset=8, least_seen=1 / 6)
    public, private = halves(days, options.seed)
    matrix, first = learnt(public, options.pseudo)
    print(
        f"{grid.size} places, {len(days.times)} times; {len(public.members)} days teach, {len(private.members)} are "
        f"counted; a fix stands behind {private.seen.mean():.0%} of their states, the others are held"
    )
    rows = []
    for epsilon in EPSILONS:
        found = counts.compare(private.counts, epsilon, matrix, first, runs=options.runs, rng=options.seed)
        rows += [(epsilon, name, float(errors.mean())) for name, errors in found.items()]
        print(f"epsilon {epsilon:g}: " + ", ".join(f"{name} {errors.mean():.3g}" for name, errors in found.items()))
    with (options.folder / "counts_geolife.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["epsilon", "estimate", "mean squared error"])
        table.writerows(rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, (colour, line, marker) in STYLES.items():
        values = [error for _, other, error in rows if other == name]
        left.plot(EPSILONS, values, color=colour, linestyle=line, marker=marker, ms=5, label=name)
    left.set(xscale="log", yscale="log", xlabel="ε of each time", ylabel="mean squared error")
    left.set_title(f"{len(private.members)} days of GeoLife, {grid.size} places, {len(days.times)} times")
    left.grid(alpha=0.3)
    left.legend(fontsize=8)
    one_place(right, private.counts, matrix, first, options.seed)
    figure.savefig(options.folder / "counts_geolife.png", dpi=120)


def one_place(ax: plt.Axes, true: np.ndarray, matrix: np.ndarray, first: np.ndarray, seed: int) -> None:
    """The place whose count varies most, at epsilon 1: true, noisy and repaired."""
    place = int(true.var(axis=0).argmax())
    noisy = counts.release(true, 1.0, rng=seed)
    users = int(true[0].sum())
    hours = 8 + np.arange(len(true)) * 12 / len(true)
    ax.plot(hours, noisy[:, place], color="0.6", linestyle=":", marker="x", ms=4, label="noisy")
    for name in ("single", "coupled"):
        colour, line, _ = STYLES[name]
        repaired = counts.estimate(name, noisy, matrix, users, 2.0, first)
        ax.plot(hours, repaired[:, place], color=colour, linestyle=line, label=name)
    ax.step(hours, true[:, place], where="mid", color="tab:green", linewidth=2, label="true")
    ax.set(xlabel="local hour", ylabel="people-days in the place", title="the place that varies most, ε = 1")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)


if __name__ == "__main__":
    main()
