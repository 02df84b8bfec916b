"""People outside a model's region: states of the chain that are released as the border cell they are nearest to.

A *context* is a state of the model's chain. Contexts ``0 .. N - 1`` are the model's states, with people inside them;
context ``N + m`` is the twin of the m-th border state, for people outside who are nearest to it. `Away.last` maps each
context to the state that it is released as: measurements, policies and releases know states alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers, content_hash, locked
from dphmm.errors import StateError, StochasticError
from dphmm.model.transition_operator import log_sums
from dphmm.space.grid import Grid
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import Trajectory

SHRUNK_BY = 10.0
"""How many moments of all border cells count beside a cell's own, in what is said of distances and shares."""


class Beyond(NamedTuple):
    """What a belief says of a person outside the region.

    Parameters
    ----------
    states
        ``(m,)``: the border states.
    masses
        ``(m,)``: the probability of being outside, nearest to each: part of that of the state.
    reach, square
        ``(m,)``: how far from the state's point such a person is on average, and the mean square; kilometres.
    """

    states: IntArray
    masses: FloatArray
    reach: FloatArray
    square: FloatArray


@checked
class Away:
    """Twins of border states: context ``N + m`` is 'outside the region, nearest to the m-th border state'.

    A twin is released as its border state is: it is measured there, has its neighbours in every policy, and no release
    tells the two apart. So policies, hulls and repairs know of states alone. What is learned of twins is how people
    move into, among and out of them, and how far outside they are.

    Parameters
    ----------
    size
        The number of states ``N``.
    border
        ``(m,)``: the border states, ascending, at least one.
    reach, square
        ``(m,)``: the mean distance of a person outside from the border state's point, kilometres, and the mean square
        of it; positive.
    share
        ``(m,)``: how probable it is that a person in the border state, or nearest to it, is outside at the first
        moment; between 0 and 1.

    Raises
    ------
    StateError
        When a border state does not exist, or they are not ascending.
    StochasticError
        When there is not one number for each border state, or one is out of range.
    """

    def __init__(
        self, size: int, border: npt.ArrayLike, reach: npt.ArrayLike, square: npt.ArrayLike, share: npt.ArrayLike
    ) -> None:
        self.size = int(size)
        self.border: IntArray = locked(as_integers(border, "border states", StateError).copy())
        given = self.border
        if given.ndim != 1 or not len(given) or given.min() < 0 or given.max() >= size or (np.diff(given) <= 0).any():
            raise StateError(f"border states are not ascending, each once, from 0 to {size - 1}; give at least one so")
        self.reach, self.square, self.share = (
            locked(as_floats(values, name, StochasticError).copy())
            for name, values in (("reach", reach), ("square", square), ("share", share))
        )
        for name, values, most in (("reach", self.reach, 1e9), ("square", self.square, 1e18), ("share", self.share, 1)):
            if values.shape != given.shape or not ((values > 0) & (values < most)).all():
                raise StochasticError(
                    f"{name} of border states has shape {values.shape} or is out of range; give one number each"
                )
        self.last: IntArray = locked(np.concatenate([np.arange(self.size), given]))
        """The state that each context is released as, ``(P,)``."""

    @property
    def content_hash(self) -> str:
        """A hash of the border states and what is known of each."""
        return content_hash("away", self.size, self.border, self.reach, self.square, self.share)

    @property
    def present(self) -> IntArray:
        """The state whose places the person is in, ``(P,)``: ``N``, which is none, outside."""
        return np.minimum(np.arange(len(self)), self.size)

    def __len__(self) -> int:
        return len(self.last)

    def begun(self, values: FloatArray) -> FloatArray:
        """A distribution of first states ``(N,)``, over contexts ``(P,)``: of a border state its share is outside.

        Parameters
        ----------
        values
            ``(N,)``: a distribution of states.

        Returns
        -------
        FloatArray
            ``(P,)``: a distribution of contexts.
        """
        outside = values[self.border] * self.share
        inside = values.copy()
        inside[self.border] -= outside
        return np.concatenate([inside, outside])

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of states ``(…, N)`` for each context ``(…, P)``.

        Parameters
        ----------
        values
            ``(…, N)``: a number for each state.

        Returns
        -------
        FloatArray
            ``(…, P)``: the number of each context's state.
        """
        return values[..., self.last]

    def summed(self, logs: FloatArray) -> FloatArray:
        """Return log masses of contexts ``(P,)``, summed over the contexts of each state ``(N,)``.

        Parameters
        ----------
        logs
            ``(P,)``: log masses of contexts.

        Returns
        -------
        FloatArray
            ``(N,)``: log masses of states.
        """
        order, starts = self._order
        return log_sums(logs[order], starts)

    def moves(self, structure: csr_array) -> csr_array:
        """Return which moves between states some moves between contexts make.

        Parameters
        ----------
        structure
            ``(P, P)``: the moves between contexts.

        Returns
        -------
        csr_array
            ``(N, N)``, boolean.
        """
        rows = np.repeat(np.arange(len(self)), np.diff(structure.indptr))
        from_, to = self.last[rows], self.last[structure.indices]
        found = csr_array((np.ones(len(from_), dtype=np.int64), (from_, to)), shape=(self.size, self.size))
        return found.astype(np.bool_)

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray]:
        """The contexts sorted by their states, and the position at which each state's contexts start."""
        order = np.argsort(self.last, kind="stable")
        return order, np.searchsorted(self.last[order], np.arange(self.size))

    def located(self, space: StateSpace, latitude: FloatArray, longitude: FloatArray) -> IntArray:
        """The context of each place, ``(n,)``: its state, or the twin of the state that it is nearest to.

        Parameters
        ----------
        space
            The states.
        latitude, longitude
            ``(n,)``: degrees.

        Returns
        -------
        IntArray
            ``(n,)``: contexts.
        """
        found = space.locate(latitude, longitude)
        out = np.flatnonzero(found == OUTSIDE)
        found[out] = self.size + np.searchsorted(self.border, space.nearest(latitude[out], longitude[out]))
        return found

    def seen(self, trajectory: Trajectory, space: StateSpace, step_seconds: float) -> tuple[IntArray, FloatArray]:
        """The context of a person at each moment of a clock, and how far from the border state they are outside.

        Parameters
        ----------
        trajectory
            Where the person was.
        space
            The states.
        step_seconds
            The step of the clock.

        Returns
        -------
        contexts, distances
            ``(t,)`` each: kilometres, 0 inside.
        """
        slotted = trajectory.resample(step_seconds)
        found = self.located(space, slotted.latitude, slotted.longitude)
        out, distances = found >= self.size, np.zeros(len(found))
        places = space.projection.to_plane(slotted.latitude[out], slotted.longitude[out])
        distances[out] = np.linalg.norm(places - space.points[self.last[found[out]]], axis=1)
        return found, distances

    def beyond(self, logs: FloatArray) -> Beyond:
        """What log masses of contexts ``(P,)`` say of a person outside.

        Parameters
        ----------
        logs
            ``(P,)``: log masses that sum to one.

        Returns
        -------
        Beyond
            The masses of twins, with how far outside they are.
        """
        return Beyond(self.border, np.exp(logs[self.size :]), self.reach, self.square)

    def moves_inside(self, matrix: csr_array) -> csr_array:
        """The moves of people inside, ``(N, N)``, where who gets outside is at the border state.

        Parameters
        ----------
        matrix
            ``(P, P)``: the transition matrix.

        Returns
        -------
        csr_array
            ``(N, N)``.
        """
        moves = csr_array(matrix[: self.size]).tocoo()
        return csr_array(coo_array((moves.data, (moves.row, self.last[moves.col])), shape=(self.size,) * 2))

    def chain(self, inside: csr_array, outside: csr_array, entering: FloatArray, staying: FloatArray) -> csr_array:
        """The transition matrix ``(P, P)``: where people go, and whether who gets to a border state is outside then.

        Parameters
        ----------
        inside, outside
            ``(N, N)`` each: from each state to each, or to places nearest to it, for people inside, and for people who
            are outside, of which only rows of border states count.
        entering, staying
            ``(m,)`` each: the part of those who get to, or near, each border state that is outside then; of people who
            were inside, and outside.

        Returns
        -------
        csr_array
            ``(P, P)``.
        """
        parts = []
        for first, rows, shares in ((0, inside, entering), (self.size, csr_array(outside[self.border]), staying)):
            share = np.zeros(self.size)
            share[self.border] = shares
            moves = rows.tocoo()
            row, column, data = moves.row.astype(np.int64) + first, moves.col.astype(np.int64), moves.data
            out = np.flatnonzero(share[column] > 0)
            twins = self.size + np.searchsorted(self.border, column[out])
            parts += [(row, column, data * (1 - share[column])), (row[out], twins, data[out] * share[column[out]])]
        row, column, data = (np.concatenate(some) for some in zip(*parts, strict=True))
        found = csr_array(coo_array((data, (row, column)), shape=(len(self),) * 2))
        found.sort_indices()
        return found


def border_of(space: StateSpace) -> IntArray:
    """The cells of a grid that a place outside it may be nearest to: those that lack one of four neighbours, ``(m,)``.

    Empty for spaces of other kinds.
    """
    if not isinstance(space, Grid):
        return np.zeros(0, dtype=np.int64)
    beside = [space.state_at(space.lattice + step) for step in ([0, 1], [1, 0], [0, -1], [-1, 0])]
    return np.flatnonzero((np.array(beside) == OUTSIDE).any(axis=0))


def twins_of(space: StateSpace) -> Away | None:
    """Twins of a grid's border states of which nothing is known yet, to number places by; None for other spaces."""
    border = border_of(space)
    some = np.full(len(border), 0.5)
    return Away(space.size, border, some, some, some) if len(border) else None


def away_of(trajectories: Iterable[Trajectory], space: StateSpace, step_seconds: float) -> Away | None:
    """What people on a clock say of how far outside a region, and how often, people are; None where nobody is outside.

    Of each border state the mean over its own moments and `SHRUNK_BY` of all.

    Parameters
    ----------
    trajectories
        One for each person.
    space
        The states; None is found of spaces that are no grid.
    step_seconds
        The step of the clock.

    Returns
    -------
    Away or None
        The twins.
    """
    twins = twins_of(space)
    if twins is None:
        return None
    border = twins.border
    seen = [(np.zeros(0, dtype=np.int64), np.zeros(0)), *(twins.seen(one, space, step_seconds) for one in trajectories)]
    every, length = (np.concatenate(some) for some in zip(*seen, strict=True))
    out, length, count = every[every >= space.size] - space.size, length[every >= space.size], len(border)
    if not len(out):
        return None
    many = np.bincount(out, minlength=count)
    inside = np.bincount(every[every < space.size], minlength=space.size)[border]
    reach, square = (
        (np.bincount(out, values, count) + SHRUNK_BY * values.mean()) / (many + SHRUNK_BY)
        for values in (length, length**2)
    )
    return Away(space.size, border, reach, square, shares(many, inside))


def shares(out: npt.NDArray[np.int64], inside: npt.NDArray[np.int64]) -> FloatArray:
    """The part of moments outside at each border state, shrunk towards that of all; between 0 and 1."""
    everyone = (out.sum() + 0.5) / (out.sum() + inside.sum() + 1.0)
    return np.asarray((out + SHRUNK_BY * everyone) / (out + inside + SHRUNK_BY))
