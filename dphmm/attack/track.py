"""The true places of one person on a model's clock, as an attack is tried on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.attack.mesh import Moves
from dphmm.space.states import OUTSIDE
from dphmm.space.trajectory import Trajectory

NIGHT = (0, 6)
"""Hours of the night, mean solar time: whoever is somewhere then is taken to live there."""

_LONGEST_GAP_SECONDS = 86400.0


@dataclass(frozen=True, eq=False)
class Track:
    """Where one person was, at the ``T`` slots of a model's clock with a fix within its region.

    Private: these are true places.

    Attributes
    ----------
    user
        Who.
    slots
        ``(T,)``, increasing.
    latitude, longitude
        ``(T,)``, degrees.
    points
        ``(T, 2)``: the same in the plane, kilometres.
    states
        ``(T,)``: the cells that they lie in.
    begins
        ``(T,)``: where the adversary knows nothing of where the person comes from: at the first, after a gap of more
        than a day, and after a move that the model thinks impossible.
    night
        ``(T,)``: whether it is between the hours of `NIGHT` where the region is.
    step_seconds
        The length of a slot.
    """

    user: str
    slots: IntArray
    latitude: FloatArray = field(repr=False)
    longitude: FloatArray = field(repr=False)
    points: FloatArray = field(repr=False)
    states: IntArray = field(repr=False)
    begins: BoolArray = field(repr=False)
    night: BoolArray = field(repr=False)
    step_seconds: float

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def steps(self) -> IntArray:
        """``(T,)``: the steps since the fix before; 0 at the first."""
        return np.diff(self.slots, prepend=self.slots[0])

    @property
    def pieces(self) -> Iterator[slice]:
        """The parts between beginnings."""
        edges = [*np.flatnonzero(self.begins).tolist(), len(self)]
        return (slice(*ends) for ends in pairwise(edges))

    @property
    def home(self) -> FloatArray | None:
        """``(2,)``: the mean of the places at night in the cell with most nights; None without a night."""
        if not self.night.any():
            return None
        cell = np.bincount(self.states[self.night]).argmax()
        return np.asarray(self.points[self.night & (self.states == cell)].mean(axis=0))

    @property
    def haunt(self) -> FloatArray:
        """``(2,)``: the home, or without one the mean of the places in the cell with most fixes."""
        home = self.home
        return self.points[self.states == np.bincount(self.states).argmax()].mean(axis=0) if home is None else home

    @classmethod
    def of(cls, person: Trajectory, moves: Moves, most: int) -> Track | None:
        """The first slots of a trajectory, at most so many, with a fix within the region; None where there is none."""
        grid, step = moves.grid, moves.model.step
        slotted = person.resample(step)
        states = grid.locate(slotted.latitude, slotted.longitude)
        kept = np.flatnonzero(states != OUTSIDE)[:most]
        if not len(kept):
            return None
        slots, states = slotted.slots[kept], states[kept]
        gaps = np.diff(slots)
        begins = np.ones(len(slots), dtype=np.bool_)
        begins[1:] = gaps * step > _LONGEST_GAP_SECONDS
        if moves.model.possible_moves < grid.size**2:
            for t in np.flatnonzero(~begins).tolist():
                begins[t] = moves.matrix(int(gaps[t - 1]))[states[t - 1], states[t]] == 0
        hours = (slots * step / 3600 + grid.projection.longitude / 15) % 24
        latitude, longitude = slotted.latitude[kept], slotted.longitude[kept]
        points = grid.projection.to_plane(latitude, longitude)
        night = (hours >= NIGHT[0]) & (hours < NIGHT[1])
        return cls(person.user, slots, latitude, longitude, points, states, begins, night, step)
