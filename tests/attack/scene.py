"""A small region with a model, and people who move exactly as the adversary of an attack assumes."""

from __future__ import annotations

import numpy as np

from dphmm.attack import Moves, Track
from dphmm.model import MarkovModel
from dphmm.space import Grid

STEP = 600.0


def grid(cells: int = 2, cell_km: float = 0.25) -> Grid:
    """So many cells on each side, about 45 degrees north."""
    half = cells * cell_km / 2 - 0.002
    south, west = 45.0 - half / 111.13, -30.0 - half / 78.85
    found = Grid.over((south, west, 90.0 - south, -60.0 - west), cell_km)
    assert (found.columns, found.rows) == (cells, cells)
    return found


def moves(cells: int = 2, parts: int = 1, seed: int = 0, stay: float = 0.6, redrawn: float = 0.2) -> Moves:
    """Random moves between the cells of a grid, as of nobody."""
    rng = np.random.default_rng(seed)
    size = cells * cells
    matrix = stay * np.eye(size) + (1 - stay) * rng.dirichlet(np.full(size, 0.7), size)
    return Moves(MarkovModel(matrix, rng.dirichlet(np.ones(size)), grid(cells), STEP), parts, redrawn)


def track(of: Moves, points: np.ndarray, slots: np.ndarray, begins: np.ndarray | None = None) -> Track:
    """A track through points of the plane."""
    latitude, longitude = of.grid.projection.to_latlon(points).T
    starts = np.zeros(len(slots), dtype=bool) if begins is None else begins.copy()
    starts[0] = True
    states = of.grid.locate(latitude, longitude)
    assert (states >= 0).all()
    hours = (slots * STEP / 3600 - 2) % 24
    return Track("ann", slots, latitude, longitude, points, states, starts, hours < 6, STEP)


def walk(of: Moves, steps: int, rng: np.random.Generator) -> Track:
    """Somebody who moves as the adversary assumes: by the model, and to a part and a point of it drawn anew."""
    matrix, side = of.matrix(1), of.mesh.cell_km
    state, points = int(rng.choice(of.grid.size, p=of.initial)), []
    for t in range(steps):
        before = state
        state = state if t == 0 else int(rng.choice(of.grid.size, p=matrix[state]))
        if t == 0 or state != before or rng.random() < of.redrawn:
            part = of.mesh.points[state * of.parts**2 + rng.integers(of.parts**2)]
            place = part + side * (rng.random(2) - 0.5)
        points.append(place)
    return track(of, np.array(points), 1000 + np.arange(steps))
