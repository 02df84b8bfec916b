"""Town of the benchmarks: square cells of 340 m with moves to the eight neighbours."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csr_array

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser
from dphmm.geometry.measurements import _build_polygon_forms
from dphmm.release.soundness import SoundnessCheck

CELL_KM = 0.34
RADIUS_KM = 1.0


def make_points(height: int, width: int) -> np.ndarray:
    """Return the centres of cells in kilometres, ``(N, 2)``, row by row."""
    y, x = np.divmod(np.arange(height * width), width)
    return CELL_KM * np.stack([x, y], axis=1)


def walk(height: int, width: int, rng: np.random.Generator | None = None, hub: bool = False) -> csr_array:
    """Return the transition matrix, with equal or random weights.

    With a hub, every cell also leads to the first.
    """
    size = height * width
    y, x = np.divmod(np.arange(size), width)
    moves = [(np.arange(size), np.zeros(size, dtype=np.int64))] if hub else []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            inside = (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
            moves.append((np.flatnonzero(inside), ((y + dy) * width + x + dx)[inside]))
    rows, columns = (np.concatenate(parts) for parts in zip(*moves, strict=True))
    weights = np.ones(rows.size) if rng is None else rng.random(rows.size) + 0.05
    totals = np.bincount(rows, weights)
    return coo_array((weights / totals[rows], (rows, columns)), shape=(size, size)).tocsr()


def build_model(height: int, width: int, rng: np.random.Generator | None = None) -> MarkovModel:
    return MarkovModel(walk(height, width, rng), np.full(height * width, 1 / (height * width)))


def sample_path(moves: MarkovModel, length: int, rng: np.random.Generator) -> list[int]:
    """Sample a path."""
    path = [int(rng.integers(moves.size))]
    while len(path) < length:
        row = slice(*moves.transition.indptr[path[-1] : path[-1] + 2])
        path.append(int(rng.choice(moves.transition.indices[row], p=moves.transition.data[row])))
    return path


def forget(engine: Releaser, look: SoundnessCheck) -> None:
    """Clear an engine's cached plans, hulls and noise. Its belief is unchanged."""
    engine.planner.clear()
    _build_polygon_forms.cache_clear()
    for measured in (engine.measurements, engine.planner.surrogate_measurements):
        measured._extremes = None
    look.clear()


def make_releaser(side: int, policy: str = "utility", mechanism: str = "lattice") -> Releaser:
    """Return an engine over a square town with all states possible."""
    f, moves = Measurements(make_points(side, side)), build_model(side, side)
    graphs = {
        "utility": lambda: PolicyGraph.utility(f, RADIUS_KM),
        "transition": lambda: PolicyGraph.transition(moves.transition),
        "complete": lambda: PolicyGraph.complete(f.size),
    }
    return Releaser(moves, f, graphs[policy](), 1.0, mechanism)
