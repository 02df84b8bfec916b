"""States of a model's chain for users outside its region.

A *context* is a state of the model's chain. Contexts ``0 .. N - 1`` are the model's states, for users inside the
region. Context ``N + m`` is the outside state of the m-th border state, for users outside who are nearest to it. It is
released as that border state.
`OutsideStates.state_of_context` maps each context to the state that it is released as. Measurements, policies and
releases use states only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array
from scipy.special import erf

from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers, hash_content, make_read_only
from dphmm.errors import StateError, StochasticError
from dphmm.model.transition_operator import log_sums
from dphmm.space.grid import Grid
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import SlottedTrajectory, Trajectory
from dphmm.validation import check_arguments

# The weight of all border states, in timesteps, to which the distances and shares of each one are shrunk.
PRIOR_TIMESTEPS = 10.0


class OutsideBelief(NamedTuple):
    """The part of a belief that concerns a user outside the region.

    Parameters
    ----------
    states
        ``(m,)``: the border states.
    masses
        ``(m,)``: the probability of being outside and nearest to each. It is included in the probability of the state.
    mean_distances, mean_squares
        ``(m,)``: the mean distance of such a user from the point of the state, in km, and the mean squared distance.
    mean_deviations
        ``(m,)``: the mean absolute deviation of this distance from its median; see `OutsideStates.mean_deviations`.
    """

    states: IntArray
    masses: FloatArray
    mean_distances: FloatArray
    mean_squares: FloatArray
    mean_deviations: FloatArray


@check_arguments
class OutsideStates:
    """The outside states of a region, one for each border state.

    Context ``N + m`` is 'outside, nearest to the m-th border state'. It is released as this border state. It has the
    same measurement and the same neighbours in every policy, and no release distinguishes the two. Policies, hulls and
    repairs therefore use states only. The parameters of outside states are the moves into, between and out of them, and
    the distances from the region.

    Parameters
    ----------
    size
        The number of states ``N``.
    border
        ``(m,)``: the border states, ascending, at least one.
    mean_distances, mean_squares
        ``(m,)``: the mean distance of a user outside from the point of the border state, in km, and the mean squared
        distance; positive.
    outside_shares
        ``(m,)``: the probability that a user in the border state, or nearest to it, is outside at the first timestep;
        between 0 and 1.

    Raises
    ------
    StateError
        If a border state does not exist, or the border states are not ascending.
    StochasticError
        If there is not one number for each border state, or one is out of range.
    """

    def __init__(
        self,
        size: int,
        border: npt.ArrayLike,
        mean_distances: npt.ArrayLike,
        mean_squares: npt.ArrayLike,
        outside_shares: npt.ArrayLike,
    ) -> None:
        self.size = int(size)
        self.border: IntArray = make_read_only(as_integers(border, "border states", StateError).copy())
        borders = self.border
        if (
            borders.ndim != 1
            or not len(borders)
            or borders.min() < 0
            or borders.max() >= size
            or (np.diff(borders) <= 0).any()
        ):
            raise StateError(f"border must be distinct ascending states from 0 to {size - 1}, at least one")
        parameters = {
            "mean_distances": (mean_distances, 1e9),
            "mean_squares": (mean_squares, 1e18),
            "outside_shares": (outside_shares, 1),
        }
        self.mean_distances, self.mean_squares, self.outside_shares = (
            make_read_only(as_floats(values, name, StochasticError).copy()) for name, (values, _) in parameters.items()
        )
        for name, (_, upper) in parameters.items():
            values = getattr(self, name)
            if values.shape != borders.shape or not ((values > 0) & (values < upper)).all():
                raise StochasticError(
                    f"{name} must be {len(borders)} numbers above 0 and below {upper:g}, one for each border state"
                )
        # The state that each context is released as, ``(P,)``.
        self.state_of_context: IntArray = make_read_only(np.concatenate([np.arange(self.size), borders]))

    @property
    def content_hash(self) -> str:
        """A hash of the border states and their parameters."""
        return hash_content("away", self.size, self.border, self.mean_distances, self.mean_squares, self.outside_shares)

    @property
    def inside_state(self) -> IntArray:
        """The state that contains the user, ``(P,)``. ``N`` if the user is outside."""
        return np.minimum(np.arange(len(self)), self.size)

    @cached_property
    def mean_deviations(self) -> FloatArray:
        """The mean absolute deviation of the distances from their median, ``(m,)``.

        Distances are lognormal with the mean and mean square of the border state. With ``s² = log(mean square /
        mean²)`` the deviation is ``mean erf(s / √2)``.
        """
        variances = np.log(np.maximum(self.mean_squares / self.mean_distances**2, 1.0))
        return make_read_only(self.mean_distances * erf(np.sqrt(variances / 2)))

    def __len__(self) -> int:
        return len(self.state_of_context)

    def split_initial(self, values: FloatArray) -> FloatArray:
        """Split an initial distribution over states into one over contexts.

        The probability of a border state is split by its share outside.

        Parameters
        ----------
        values
            ``(N,)``: a distribution of states.

        Returns
        -------
        FloatArray
            ``(P,)``: a distribution of contexts.
        """
        outside = values[self.border] * self.outside_shares
        inside = values.copy()
        inside[self.border] -= outside
        return np.concatenate([inside, outside])

    def expand(self, values: FloatArray) -> FloatArray:
        """Return the value of the state of each context.

        Parameters
        ----------
        values
            ``(…, N)``: a number for each state.

        Returns
        -------
        FloatArray
            ``(…, P)``: a number for each context.
        """
        return values[..., self.state_of_context]

    def sum_contexts(self, logs: FloatArray) -> FloatArray:
        """Sum log masses over the contexts of each state.

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

    def project_moves(self, structure: csr_array) -> csr_array:
        """Project moves between contexts to moves between their states.

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
        sources, targets = self.state_of_context[rows], self.state_of_context[structure.indices]
        matrix = csr_array((np.ones(len(sources), dtype=np.int64), (sources, targets)), shape=(self.size, self.size))
        return matrix.astype(np.bool_)

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray]:
        """The contexts sorted by state, and the first index of each state."""
        order = np.argsort(self.state_of_context, kind="stable")
        return order, np.searchsorted(self.state_of_context[order], np.arange(self.size))

    def locate_contexts(self, space: StateSpace, latitude: FloatArray, longitude: FloatArray) -> IntArray:
        """Return the context of each location: its state, or the nearest outside state.

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
        contexts = space.locate(latitude, longitude)
        out = np.flatnonzero(contexts == OUTSIDE)
        contexts[out] = self.size + np.searchsorted(
            self.border, space.find_nearest_states(latitude[out], longitude[out])
        )
        return contexts

    def observe(self, trajectory: Trajectory, space: StateSpace, step_seconds: float) -> tuple[IntArray, FloatArray]:
        """Return the context of a user and the distance from the region at each timestep.

        Parameters
        ----------
        trajectory
            The locations of the user.
        space
            The states.
        step_seconds
            The timestep, in seconds.

        Returns
        -------
        contexts, distances
            ``(t,)`` each. Distances are from the point of the border state, in kilometres, 0 inside.
        """
        return self.observe_track(trajectory.resample(step_seconds), space)

    def observe_track(self, track: SlottedTrajectory, space: StateSpace) -> tuple[IntArray, FloatArray]:
        """Return `observe` of a resampled trajectory."""
        contexts = self.locate_contexts(space, track.latitude, track.longitude)
        out = contexts >= self.size
        distances = np.zeros(len(contexts))
        places = space.projection.to_plane(track.latitude[out], track.longitude[out])
        distances[out] = np.linalg.norm(places - space.points[self.state_of_context[contexts[out]]], axis=1)
        return contexts, distances

    def build_outside_belief(self, logs: FloatArray) -> OutsideBelief:
        """Return the part of a belief that concerns a user outside.

        Parameters
        ----------
        logs
            ``(P,)``: log masses of contexts that sum to one.

        Returns
        -------
        OutsideBelief
            The masses of the outside states and their distances.
        """
        return self.create_belief(np.exp(logs[self.size :]))

    def create_belief(self, masses: FloatArray) -> OutsideBelief:
        """Return the part of a belief about a user outside from its masses ``(m,)``."""
        return OutsideBelief(self.border, masses, self.mean_distances, self.mean_squares, self.mean_deviations)

    def build_inside_transition(self, matrix: csr_array) -> csr_array:
        """Return the transition matrix of users inside the region.

        A user who leaves the region counts as in the border state.

        Parameters
        ----------
        matrix
            ``(P, P)``: the transition matrix of the chain.

        Returns
        -------
        csr_array
            ``(N, N)``.
        """
        moves = csr_array(matrix[: self.size]).tocoo()
        return csr_array(coo_array((moves.data, (moves.row, self.state_of_context[moves.col])), shape=(self.size,) * 2))

    def build_chain(
        self, inside: csr_array, outside: csr_array, entering: FloatArray, staying: FloatArray
    ) -> csr_array:
        """Build the transition matrix of the chain from moves between states and shares outside.

        Parameters
        ----------
        inside, outside
            ``(N, N)`` each: transition probabilities between states for users who are inside or outside. The target is
            the state, or the border state nearest to a target outside. Only rows of border states are used of
            ``outside``.
        entering, staying
            ``(m,)`` each: the share of arrivals at each border state that are outside, of users who were inside or
            outside before.

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
            row = moves.row.astype(np.int64) + first
            column = moves.col.astype(np.int64)
            data = moves.data
            out = np.flatnonzero(share[column] > 0)
            contexts = self.size + np.searchsorted(self.border, column[out])
            parts += [(row, column, data * (1 - share[column])), (row[out], contexts, data[out] * share[column[out]])]
        row, column, data = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        matrix = csr_array(coo_array((data, (row, column)), shape=(len(self),) * 2))
        matrix.sort_indices()
        return matrix


def find_border_states(space: StateSpace) -> IntArray:
    """Return the cells of a grid that lack one of four neighbours. Empty for other spaces."""
    if not isinstance(space, Grid):
        return np.zeros(0, dtype=np.int64)
    neighbours = [space.state_at(space.lattice + step) for step in ([0, 1], [1, 0], [0, -1], [-1, 0])]
    return np.flatnonzero((np.array(neighbours) == OUTSIDE).any(axis=0))


def create_outside_states(space: StateSpace) -> OutsideStates | None:
    """Return outside states with placeholder parameters. None if space is not a grid."""
    border = find_border_states(space)
    halves = np.full(len(border), 0.5)
    return OutsideStates(space.size, border, halves, halves, halves) if len(border) else None


def learn_outside_states(
    trajectories: Iterable[Trajectory], space: StateSpace, step_seconds: float
) -> OutsideStates | None:
    """Estimate the distances and shares of outside states from trajectories.

    The estimates of each border state are shrunk towards those of all border states, with a weight of
    `PRIOR_TIMESTEPS`.

    Parameters
    ----------
    trajectories
        One for each user.
    space
        The states.
    step_seconds
        The timestep, in seconds.

    Returns
    -------
    OutsideStates or None
        The outside states. None if no user is outside, or the space is not a grid.
    """
    outside = create_outside_states(space)
    if outside is None:
        return None
    seen = [BorderTimesteps.select(outside, *outside.observe(track, space, step_seconds)) for track in trajectories]
    return BorderTimesteps.concatenate(seen).fit(outside)


@dataclass(frozen=True, eq=False)
class BorderTimesteps:
    """The timesteps of users who are outside a region, or inside in a border state.

    Parameters
    ----------
    outside
        ``(n,)``: the outside state, from 0, at each timestep outside.
    distances
        ``(n,)``: the distance from the border state, in kilometres.
    inside
        ``(k,)``: the border state, from 0, at each timestep inside.
    """

    outside: IntArray
    distances: FloatArray
    inside: IntArray

    @classmethod
    def select(cls, states: OutsideStates, contexts: IntArray, distances: FloatArray) -> BorderTimesteps:
        """Select the timesteps of what `OutsideStates.observe` returns for one user."""
        is_outside = contexts >= states.size
        at_border = np.isin(contexts, states.border)
        inside = np.searchsorted(states.border, contexts[at_border])
        return cls(contexts[is_outside] - states.size, distances[is_outside], inside)

    @classmethod
    def concatenate(cls, parts: Iterable[BorderTimesteps]) -> BorderTimesteps:
        """Concatenate the timesteps of several users, in their order."""
        empty = np.zeros(0, dtype=np.int64)
        columns = [(empty, np.zeros(0), empty), *((part.outside, part.distances, part.inside) for part in parts)]
        return cls(*map(np.concatenate, zip(*columns, strict=True)))

    def fit(self, states: OutsideStates) -> OutsideStates | None:
        """Return outside states with distances and shares. None if no timestep is outside."""
        if not len(self.outside):
            return None
        num_borders = len(states.border)
        counts, inside = (np.bincount(part, minlength=num_borders) for part in (self.outside, self.inside))
        mean_distances, mean_squares = (
            (np.bincount(self.outside, values, num_borders) + PRIOR_TIMESTEPS * values.mean())
            / (counts + PRIOR_TIMESTEPS)
            for values in (self.distances, self.distances**2)
        )
        return OutsideStates(states.size, states.border, mean_distances, mean_squares, shrink_shares(counts, inside))


def shrink_shares(out: npt.NDArray[Any], inside: npt.NDArray[Any]) -> FloatArray:
    """Return the share of timesteps outside at each border state, shrunk to the overall one."""
    overall = (out.sum() + 0.5) / (out.sum() + inside.sum() + 1.0)
    return np.asarray((out + PRIOR_TIMESTEPS * overall) / (out + inside + PRIOR_TIMESTEPS))
