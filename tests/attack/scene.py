"""A small region with a model, and users who move exactly as the adversary assumes."""

from __future__ import annotations

import numpy as np

from dphmm.attack import MeshMovement, Track
from dphmm.model import MarkovModel
from dphmm.space import Grid

STEP = 600.0


def build_grid(cells: int = 2, cell_km: float = 0.25) -> Grid:
    """Return a grid with ``cells`` cells per side, about 45 degrees north."""
    half = cells * cell_km / 2 - 0.002
    south, west = 45.0 - half / 111.13, -30.0 - half / 78.85
    result = Grid.over((south, west, 90.0 - south, -60.0 - west), cell_km)
    assert (result.columns, result.rows) == (cells, cells)
    return result


def build_moves(cells: int = 2, parts: int = 1, seed: int = 0, stay: float = 0.6, redrawn: float = 0.2) -> MeshMovement:
    """Return random moves between the cells of a grid."""
    rng = np.random.default_rng(seed)
    size = cells * cells
    matrix = stay * np.eye(size) + (1 - stay) * rng.dirichlet(np.full(size, 0.7), size)
    return MeshMovement(MarkovModel(matrix, rng.dirichlet(np.ones(size)), build_grid(cells), STEP), parts, redrawn)


def build_track(chain: MeshMovement, points: np.ndarray, slots: np.ndarray, begins: np.ndarray | None = None) -> Track:
    """Return a track through points of the plane."""
    latitude, longitude = chain.grid.projection.to_latlon(points).T
    starts = np.zeros(len(slots), dtype=bool) if begins is None else begins.copy()
    starts[0] = True
    states = chain.grid.locate(latitude, longitude)
    assert (states >= 0).all()
    hours = (slots * STEP / 3600 - 2) % 24
    return Track("ann", slots, latitude, longitude, points, states, starts, hours < 6, STEP)


def walk(chain: MeshMovement, steps: int, rng: np.random.Generator) -> Track:
    """Sample a track from the adversary's own movement model.

    The part of a cell and the point in it are sampled anew at each move, and with probability ``redrawn`` during a
    stay.
    """
    matrix, side = chain.transition_matrix(1), chain.mesh.cell_km
    state, points = int(rng.choice(chain.grid.size, p=chain.initial)), []
    for t in range(steps):
        before = state
        state = state if t == 0 else int(rng.choice(chain.grid.size, p=matrix[state]))
        if t == 0 or state != before or rng.random() < chain.redraw_rate:
            part = chain.mesh.points[state * chain.parts**2 + rng.integers(chain.parts**2)]
            place = part + side * (rng.random(2) - 0.5)
        points.append(place)
    return build_track(chain, np.array(points), 1000 + np.arange(steps))
