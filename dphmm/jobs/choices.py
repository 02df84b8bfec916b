"""A region, cells and a step chosen out of people's data, where nobody said them.

What is chosen is in the model's file, and tells where the people are: public only as far as they are. With a budget the
region is chosen with noise, and all else follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dphmm.arrays import FloatArray, Rng, random_source
from dphmm.errors import ConfigurationError
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.space.grid import Grid
from dphmm.space.projection import LocalProjection
from dphmm.space.trajectory import Trajectory

MOST_STATES = 2000
"""No more states are chosen: beliefs then go through gaps of any length at once."""

OF_REGION = Fraction(1, 10)
"""The part of a budget that choosing a region takes."""

_STEPS = (60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_CELLS = (0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
_PRIVATE_STEP = 300.0
_TILES = 2
"""Tiles per degree among which a private choice is made: 55 km from south to north."""
_NEAR_KM = 25.0
_BINS = 20
_EDGE = 0.02
_LEAST = 0.005


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    bbox
        South, west, north, east, degrees.
    cell
        Kilometres.
    step_seconds
        One time step.
    epsilon
        What the choice took of a budget; None where it was made without noise.
    """

    bbox: tuple[float, float, float, float]
    cell: float
    step_seconds: float
    epsilon: Fraction | None = None

    @property
    def options(self) -> str:
        """The options of the command that say the same."""
        box = " ".join(f"{side:g}" for side in self.bbox)
        return f"--bbox {box} --cell {self.cell:g} --step {self.step_seconds:g}"

    @property
    def space(self) -> Grid:
        """The grid."""
        return Grid.over(self.bbox, self.cell)


def choose(people: Sequence[Trajectory], step_seconds: float | None = None) -> Choice:
    """The city where most of the people are, without noise.

    The box holds all but the outermost hundredths of the fixes within 25 km of where most people are, each person
    counting alike. Cells are the smallest, from 250 m, of which there are at most `MOST_STATES`; the step is the
    shortest, from one minute to an hour, in which half of the people are seen anew half of the time.
    """
    latitude, longitude = (np.concatenate([getattr(one, axis) for one in people]) for axis in ("latitude", "longitude"))
    weight = np.concatenate([np.full(len(one), 1.0 / len(one)) for one in people])
    bins = np.floor(np.stack([latitude, longitude]) * _BINS).astype(np.int64)
    found, at = np.unique(bins, axis=1, return_inverse=True)
    best = found[:, np.bincount(at.ravel(), weight).argmax()]
    centre = LocalProjection(*((best + 0.5) / _BINS).tolist())
    near = np.abs(centre.to_plane(latitude, longitude)).max(axis=1) <= _NEAR_KM
    south, north = _within(latitude[near], weight[near])
    west, east = _within(longitude[near], weight[near])
    box = south, west, north, east
    if step_seconds is None:
        step_seconds = _step(people)
    return Choice(box, _cell(box), float(step_seconds))


def choose_privately(
    people: Sequence[Trajectory], epsilon: Fraction, step_seconds: float | None = None, rng: Rng = None
) -> Choice:
    """The tile of half a degree in which most people spend most of their fixes, by noisy counts.

    Each person counts in one tile, so that discrete Laplace noise of scale ``1 / epsilon`` on each of the Earth's
    tiles makes the choice epsilon-differentially private for whole people. With fewer than some ``15 / epsilon``
    people in it noise alone may choose another. The step is 300 s unless it is said.
    """
    wide, high = 360 * _TILES, 180 * _TILES
    votes = np.zeros(wide * high, dtype=np.int64)
    for one in people:
        row = np.minimum(np.floor((one.latitude + 90) * _TILES).astype(np.int64), high - 1)
        column = np.floor((one.longitude + 180) * _TILES).astype(np.int64) % wide
        tiles, counts = np.unique(row * wide + column, return_counts=True)
        votes[tiles[counts.argmax()]] += 1
    noisy = votes + laplace_steps(epsilon, votes.size, random_source(rng))
    south, west = divmod(int(noisy.argmax()), wide)
    box = south / _TILES - 90, west / _TILES - 180, (south + 1) / _TILES - 90, (west + 1) / _TILES - 180
    return Choice(box, _cell(box), _PRIVATE_STEP if step_seconds is None else float(step_seconds), epsilon)


def _within(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """From where to where all but the outermost hundredths lie, rounded outwards to hundredths of a degree."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = values[order][np.searchsorted(share, [_EDGE / 2, 1 - _EDGE / 2])]
    return float(np.floor((low - _LEAST) * 100) / 100), float(np.ceil((high + _LEAST) * 100) / 100)


def _cell(box: tuple[float, float, float, float]) -> float:
    for cell in _CELLS:
        grid = Grid.over(box, cell)
        if grid.size <= MOST_STATES:
            return cell
    raise ConfigurationError(f"the region {box} is too large to choose cells for; give --bbox and --cell")


def _step(people: Sequence[Trajectory]) -> float:
    usual = [float(np.median(np.diff(one.times).astype(np.int64)) / 1e6) for one in people if len(one) > 1]
    wanted = float(np.median(usual)) if usual else _STEPS[-1]
    return next((step for step in _STEPS if step >= wanted), _STEPS[-1])
