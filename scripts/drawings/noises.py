"""Noise mechanisms on a city of 6 by 6 cells of 250 m with a private corner of 1 km.

The policy connects neighbouring cells, and all cells of the corner. Users move by the public model.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple, fields

import numpy as np

from dphmm import MarkovModel, PolicyGraph, ReleaseSettings
from dphmm.evaluation.noise_comparison import NoiseRow, compare_noise
from dphmm.plots.evaluation import draw_noise_figure
from dphmm.space import Grid
from scripts.drawings.sheet import save, write

DATA: tuple[str, ...] = ()
RUNS = 6
CELL_KM = 0.25
STEPS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epsilon", type=float, default=1.0)


def draw(options: argparse.Namespace) -> None:
    side, home = (3, 2) if options.small else (6, 4)
    space = Grid.over((45.0, -30.0, 45.0 + (side - 0.5) * 0.00225, -30.0 + (side - 0.5) * 0.00317), cell_km=CELL_KM)
    points = space.measurements().points
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    moves = np.where(apart <= 2 * CELL_KM + 1e-6, np.exp(-apart / CELL_KM), 0) + 3 * np.eye(space.size)
    moves /= moves.sum(axis=1, keepdims=True)
    model = MarkovModel(moves, np.full(space.size, 1 / space.size), space, 300)
    corner = np.flatnonzero((points - points.min(axis=0) < (home - 0.5) * CELL_KM).all(axis=1))
    policy = PolicyGraph.utility(points, CELL_KM) | PolicyGraph.from_groups(space.size, [corner])
    rng = np.random.default_rng(options.seed)
    paths = [walk(moves, 2 if options.small else STEPS, rng) for _ in range(options.runs)]
    rows = compare_noise(model, ReleaseSettings(epsilon=options.epsilon), paths, options.seed, policy)
    what = f"{space.size} cells of 250 m, {len(corner)} of them private; {rows[0].releases} releases"
    save(draw_noise_figure(rows, what), options.folder / "noises.png")
    write(options.folder / "noises.csv", [field.name for field in fields(NoiseRow)], map(astuple, rows))
    for row in rows:
        print(
            f"{row.equal:8} {row.noise:28} epsilon {row.epsilon:.3f} factor {row.factor:.2f} "
            f"released {row.released:.3f} estimate {row.estimate:.3f} smoothed {row.smoothed:.3f}"
        )


def walk(moves: np.ndarray, steps: int, rng: np.random.Generator) -> np.ndarray:
    path = [int(rng.integers(len(moves)))]
    while len(path) < steps:
        path.append(int(rng.choice(len(moves), p=moves[path[-1]])))
    return np.array(path)
