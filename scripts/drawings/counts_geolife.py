"""The estimators of count streams on GeoLife: days of people in Beijing, laid over each other; picture and table.

GEOLIFE is the data set's folder or archive. A member of the population is one day of one person (8 to 20 o'clock local
time, seen within the region at one step in six or more). Days of half of the people, chosen by the seed, teach the
transition matrix and the first distribution, with a pseudo-count for every move; the days of the others are counted.
"""

from __future__ import annotations

import argparse

import numpy as np
from matplotlib.axes import Axes

from dphmm import Grid, counts, read
from dphmm.jobs.counting import Days, Population, daily_population
from dphmm.space.grid import PRESETS
from scripts.drawings.sheet import STYLES, finish, line, panels, save, write

DATA = ("geolife",)
RUNS = 5
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cell", type=float, default=2.0, help="kilometres (default: 2)")
    parser.add_argument("--step", type=float, default=600.0, help="seconds (default: 600)")
    parser.add_argument("--pseudo", type=float, default=0.01, help="pseudo-count of every move (default: 0.01)")
    bounds = ("SOUTH", "WEST", "NORTH", "EAST")
    parser.add_argument("--bbox", type=float, nargs=4, metavar=bounds, help="default: Beijing within the third ring")


def draw(options: argparse.Namespace) -> None:
    grid = Grid.over(options.bbox or PRESETS["geolife"][0], options.cell)
    people = read(options.geolife, "geolife", skip_bad=True).trajectories
    days = daily_population(people, grid, options.step, Days((8, 20), 8, 1 / 6))
    public, private = halves(days, options.seed)
    matrix, first = learnt(public, options.pseudo)
    print(
        f"{grid.size} places, {len(days.times)} times; {len(public.members)} days teach, {len(private.members)} are "
        f"counted; a fix stands behind {private.seen.mean():.0%} of their states, the others are held"
    )
    errors: dict[str, list[float]] = {}
    for epsilon in EPSILONS:
        found = counts.compare(private.counts, epsilon, matrix, first, runs=options.runs, rng=options.seed)
        for name, values in found.items():
            errors.setdefault(name, []).append(float(values.mean()))
    rows = [(epsilon, name, values[at]) for at, epsilon in enumerate(EPSILONS) for name, values in errors.items()]
    write(options.folder / "counts_geolife.csv", ["epsilon", "estimate", "mean squared error"], rows)
    figure, (left, right) = panels()
    for name in STYLES:
        if name in errors:
            line(left, name, EPSILONS, errors[name])
            print(f"{name:>20}: " + " ".join(f"{value:9.3g}" for value in errors[name]))
    title = f"{len(private.members)} days of GeoLife, {grid.size} places, {len(days.times)} times"
    finish(left, "ε of each time", "mean squared error", title, xscale="log", yscale="log")
    one_place(right, private.counts, matrix, first, options.seed)
    save(figure, options.folder / "counts_geolife.png")


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


def one_place(ax: Axes, true: np.ndarray, matrix: np.ndarray, first: np.ndarray, seed: int) -> None:
    """The place whose count varies most, at epsilon 1: true, noisy and repaired."""
    place, users = int(true.var(axis=0).argmax()), int(true[0].sum())
    noisy = counts.release(true, 1.0, rng=seed)
    hours = 8 + np.arange(len(true)) * 12 / len(true)
    line(ax, "noisy", hours, noisy[:, place])
    for name in ("single", "coupled"):
        line(ax, name, hours, counts.estimate(name, noisy, matrix, users, 2.0, first)[:, place])
    ax.step(hours, true[:, place], where="mid", color="tab:green", linewidth=2, label="true")
    finish(ax, "local hour", "people-days in the place", "the place that varies most, ε = 1")
