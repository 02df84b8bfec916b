"""The adversary's filter and smoother over a track, with hidden locations and offsets.

In addition to the cell, the hidden variables are the location within it and variables that a channel samples once or
changes slowly: a fixed offset, a drifting offset, the centre of a zone. The adversary considers all their values and
weights them by the likelihood of the releases. Parts of cells and drifting offsets use the model's forward–backward
algorithm with the transitions of `dphmm.attack.mesh.MeshTransition`. If cells are whole and there is no other hidden
variable, it is equivalent to `dphmm.model.filter` and `dphmm.model.smooth`. Each fixed offset implies one path. A zone
around home is a mixture of chains over the few cells that it intersects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.attack.mesh import MeshMovement, MeshTransition, log_or_neg_inf
from dphmm.caching import BoundedCache
from dphmm.errors import StochasticError
from dphmm.model.forward_backward import run_backward_pass, run_forward_pass
from dphmm.model.habits import NIGHT_HOURS
from dphmm.model.path_sampling import sample_paths
from dphmm.model.transition_operator import exponentiate_logs, normalize_logs
from dphmm.space import OUTSIDE, Trajectory

# After a longer gap a track restarts: earlier locations contain little information about later ones.
_MAX_GAP_SECONDS = 86400.0


@dataclass(frozen=True, eq=False)
class Track:
    """True locations of one user at the ``T`` slots with a fix in a model's region.

    Private: it contains true locations.

    Parameters
    ----------
    user
        The user.
    slots
        ``(T,)``, increasing.
    latitude, longitude
        ``(T,)``, degrees.
    points
        ``(T, 2)``: the locations in the plane, kilometres.
    states
        ``(T,)``: the cells that contain them.
    restarts
        ``(T,)``: whether the adversary has no information about the previous location. True at the first time, after a
        gap of more than a day, and after a move that the model considers impossible.
    is_night
        ``(T,)``: whether the time is between the hours of `NIGHT` in the region.
    step_seconds
        The length of a slot.
    """

    user: str
    slots: IntArray
    latitude: FloatArray = field(repr=False)
    longitude: FloatArray = field(repr=False)
    points: FloatArray = field(repr=False)
    states: IntArray = field(repr=False)
    restarts: BoolArray = field(repr=False)
    is_night: BoolArray = field(repr=False)
    step_seconds: float

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def steps(self) -> IntArray:
        """The steps since the previous fix, 0 at the first, ``(T,)``."""
        return np.diff(self.slots, prepend=self.slots[0])

    @property
    def home(self) -> FloatArray | None:
        """The mean location at night in the most frequent cell, ``(2,)``. None without a night."""
        if not self.is_night.any():
            return None
        cell = np.bincount(self.states[self.is_night]).argmax()
        return np.asarray(self.points[self.is_night & (self.states == cell)].mean(axis=0))

    @property
    def usual_place(self) -> FloatArray:
        """The home or, without one, the mean location in the most frequent cell, ``(2,)``."""
        home = self.home
        return self.points[self.states == np.bincount(self.states).argmax()].mean(axis=0) if home is None else home

    @classmethod
    def from_trajectory(
        cls, trajectory: Trajectory, moves: MeshMovement, max_slots: int, first: int | None = None
    ) -> Track | None:
        """Take the first slots of a trajectory with a fix in the region.

        Parameters
        ----------
        trajectory
            The trajectory.
        moves
            The model's clock, grid and movement.
        max_slots
            Maximum number of slots.
        first
            Slots before this one are omitted.

        Returns
        -------
        Track or None
            None if no fix lies in the region.
        """
        grid = moves.grid
        step = moves.model.step
        slotted = trajectory.resample(step)
        states = grid.locate(slotted.latitude, slotted.longitude)
        inside = states != OUTSIDE
        kept = np.flatnonzero(inside if first is None else inside & (slotted.slots >= first))[:max_slots]
        if not len(kept):
            return None
        slots = slotted.slots[kept]
        states = states[kept]
        gaps = np.diff(slots)
        begins = np.ones(len(slots), dtype=np.bool_)
        begins[1:] = gaps * step > _MAX_GAP_SECONDS
        if moves.model.num_possible_moves < grid.size**2:
            for t in np.flatnonzero(~begins).tolist():
                begins[t] = moves.transition_matrix(int(gaps[t - 1]))[states[t - 1], states[t]] == 0
        hours = (slots * step / 3600 + grid.projection.longitude / 15) % 24
        latitude = slotted.latitude[kept]
        longitude = slotted.longitude[kept]
        points = grid.projection.to_plane(latitude, longitude)
        night = (hours >= NIGHT_HOURS[0]) & (hours < NIGHT_HOURS[1])
        return cls(trajectory.user, slots, latitude, longitude, points, states, begins, night, step)

    @classmethod
    def sample(cls, user: str, count: int, first: int, moves: MeshMovement, rng: np.random.Generator) -> Track:
        """Sample a user that moves as the model and the mesh specify, without a home.

        Parameters
        ----------
        user
            Name of the user.
        count
            Number of consecutive slots, at least one.
        first
            The first slot.
        moves
            The movement model.
        rng
            The source of randomness.

        Returns
        -------
        Track
            A track with a location at each slot.
        """
        grid = moves.grid
        states = sample_paths(moves.model, 1, count, first, rng)[0].astype(np.int64)
        stays = np.append(False, states[1:] == states[:-1]) & (rng.random(count) >= moves.redraw_rate)
        since = np.maximum.accumulate(np.where(stays, 0, np.arange(count)))
        points = grid.points[states] + grid.cell_km * (rng.random((count, 2)) - 0.5)[since]
        latitude, longitude = grid.projection.to_latlon(points).T
        never = np.zeros(count, dtype=np.bool_)
        begins = np.arange(count) == 0
        return cls(user, first + np.arange(count), latitude, longitude, points, states, begins, never, moves.model.step)


# Approximate number of values of a pass kept at a time. Earlier ones are recomputed.
_BLOCK_NUMBERS = 1 << 24
# Number of gaps with cached transitions within zones, as for the matrices in `dphmm.attack.mesh`.
_CACHE_SIZE = 32
# Zones with a smaller posterior probability are omitted from the backward pass.
_NEGLIGIBLE_ZONE = 1e-12


@dataclass(frozen=True, eq=False)
class Posterior:
    """The adversary's filtered and smoothed beliefs at each of ``T`` times.

    Parameters
    ----------
    filtered_means
        ``(T, 2)``: the mean location given the releases up to each time, kilometres.
    smoothed
        ``(T, N)``: the smoother, ``p(s_t | z_1..T)``, over the model's cells.
    smoothed_cell_means
        ``(T, N, 2)``: the mean location within each cell given all releases, or the cell's centre if it has no mass.
    filtered
        ``(T, N)``: the filter, ``p(s_t | z_1..t)``.
    home
        ``(2,)``: an estimate of the home, for a channel that reveals one directly.
    """

    filtered_means: FloatArray = field(repr=False)
    smoothed: FloatArray = field(repr=False)
    smoothed_cell_means: FloatArray = field(repr=False)
    filtered: FloatArray = field(repr=False)
    home: FloatArray | None = None

    @classmethod
    def empty(cls, track: Track, moves: MeshMovement) -> Posterior:
        """Allocate the arrays.

        Parameters
        ----------
        track
            The times.
        moves
            The model's cells.

        Returns
        -------
        Posterior
            Zeros, and the centres of the cells.
        """
        shape = (len(track), moves.grid.size)
        middles = np.repeat(moves.grid.points[None], len(track), axis=0)
        return cls(np.zeros((len(track), 2)), np.zeros(shape), middles, np.zeros(shape))

    @property
    def smoothed_means(self) -> FloatArray:
        """The mean location given all releases, ``(T, 2)``, kilometres."""
        return np.asarray(np.einsum("tn,tnk->tk", self.smoothed, self.smoothed_cell_means))

    def write_filter(self, t: int, mass: FloatArray, moves: MeshMovement) -> None:
        """Store the filter at one time.

        Parameters
        ----------
        t
            Index of the time.
        mass
            ``(N, Q)`` with sum one.
        moves
            The model's cells.
        """
        self.filtered[t] = mass.sum(axis=1)
        self.filtered_means[t] = (
            mass.ravel() @ moves.mesh.points if mass.shape[1] > 1 else self.filtered[t] @ moves.grid.points
        )

    def write_smoother(self, t: int, mass: FloatArray, moves: MeshMovement) -> None:
        """Store the smoother at one time.

        Parameters
        ----------
        t
            Index of the time.
        mass
            ``(N, Q)`` with sum one.
        moves
            The model's cells.
        """
        sums = mass.sum(axis=1)
        self.smoothed[t] = sums
        if mass.shape[1] > 1:
            positive = np.flatnonzero(sums > 0)
            parts = moves.mesh.points.reshape(len(sums), -1, 2)[positive]
            self.smoothed_cell_means[t, positive] = np.einsum(
                "nq,nqk->nk", mass[positive] / sums[positive, None], parts
            )


# Transitions to each of some times, and the log densities ``(n, N Q)`` of their releases.
Steps = tuple[list[MeshTransition], FloatArray]


def _smooth(
    moves: MeshMovement, track: Track, start: FloatArray, steps: Callable[[range], Steps], are_parts: bool
) -> Posterior:
    """Compute filter and smoother of a cell and a second hidden variable ``(N, Q)``.

    Masses are kept for one block of times. Those of earlier blocks are recomputed during the backward pass.

    Parameters
    ----------
    moves, track
        The movement model and the times.
    start
        ``(N, Q)``: log masses before the first step.
    steps
        Function from times to their transitions and log densities.
    are_parts
        Whether the second variable is the part of the cell.
    """

    def compute_place_masses(logs: FloatArray) -> FloatArray:
        masses = exponentiate_logs(logs - logs.max()).reshape(start.shape)
        masses /= masses.sum()
        return np.asarray(masses if are_parts else masses.sum(axis=1, keepdims=True))

    posterior = Posterior.empty(track, moves)
    length = max(1, _BLOCK_NUMBERS // start.size)
    blocks = [range(at, min(at + length, len(track))) for at in range(0, len(track), length)]
    befores = list[FloatArray]()
    before = start.ravel()
    for times in blocks:
        befores.append(before)
        operators, rows = steps(times)
        at = times.start
        try:
            logs = run_forward_pass(operators, rows, before).logs
        except StochasticError as problem:
            raise problem if at == 0 else StochasticError(f"counted from release {at}, {problem}") from None
        before = logs[-1]
        for t, row in zip(times, logs, strict=True):
            posterior.write_filter(t, compute_place_masses(row), moves)
    later = np.zeros(start.size)
    for times, before in zip(reversed(blocks), reversed(befores), strict=True):
        if times is not blocks[-1]:
            operators, rows = steps(times)
            logs = run_forward_pass(operators, rows, before).logs
        rows[-1] += later
        beyond = run_backward_pass(operators, rows)
        logs += beyond
        logs[-1] += later
        for t, row in zip(times, logs, strict=True):
            posterior.write_smoother(t, compute_place_masses(row), moves)
        later = operators[0].propagate_backward(beyond[0] + rows[0])
    return posterior


def infer_from_rows(
    moves: MeshMovement, track: Track, log_rows: Callable[[slice], FloatArray], held: BoolArray | None = None
) -> Posterior:
    """Infer the beliefs from releases that depend only on the location at their time.

    Parameters
    ----------
    moves, track
        The movement model and the times.
    log_rows
        Function from a slice of the times to log densities ``(n, N)`` by cell, or ``(n, N Q)`` by part.
    held
        For a deterministic channel, ``(T,)``: whether a release equals the previous one. At an unchanged location this
        is certain, and any other release is impossible, so the repetition is not evidence. The rows are then
        probabilities, not densities up to a factor. None means that releases are independent given the locations.

    Returns
    -------
    Posterior
        The filter and the smoother.

    Raises
    ------
    StochasticError
        If no possible location can produce a release.
    """
    size = moves.grid.size
    parts = moves.parts**2

    def build_steps(times: range) -> Steps:
        log_likelihood = log_rows(slice(times.start, times.stop)).reshape(len(times), size, -1)
        rows = np.broadcast_to(log_likelihood, (len(times), size, parts)).reshape(len(times), -1).copy()
        changes = [
            moves.initial_transition if track.restarts[t] else moves.build_transition(int(track.steps[t]))
            for t in times
        ]
        if held is not None:
            changes = [change.with_release(row, held[t]) for t, change, row in zip(times, changes, rows, strict=True)]
        return changes, rows

    return _smooth(moves, track, np.zeros((size, parts)), build_steps, are_parts=True)


def infer_from_fixed_offset(
    moves: MeshMovement,
    track: Track,
    released: FloatArray,
    offsets: FloatArray,
    cells: Callable[[FloatArray], IntArray],
) -> Posterior:
    """Infer the beliefs from locations that were moved by one of ``K`` offsets.

    The offsets are equally probable beforehand.

    Offsets that lead out of the region are excluded. The evidence of an offset is the model's probability of the
    implied path. Both posteriors are mixtures over offsets.

    Parameters
    ----------
    moves, track
        The movement model and the times.
    released
        ``(T, 2)``, kilometres.
    offsets
        ``(K, 2)``, kilometres.
    cells
        Function from points to their cells, -1 for none.

    Raises
    ------
    StochasticError
        If every offset is excluded.
    """
    posterior = Posterior.empty(track, moves)
    size = moves.grid.size
    logs = np.zeros(len(offsets))
    before = np.zeros(len(offsets), dtype=np.int64)
    with np.errstate(divide="ignore"):
        for t, place in enumerate(released):
            now = cells(place - offsets)
            if track.restarts[t]:
                gained = np.log(moves.initial[now])
            else:
                gained = np.log(moves.transition_matrix(int(track.steps[t]))[before, now])
            logs = np.where(now < 0, -np.inf, logs + gained)
            weights = _normalize_weights(logs, t)
            posterior.filtered[t] = np.bincount(np.maximum(now, 0), weights, size)
            posterior.filtered_means[t] = place - weights @ offsets
            # An excluded offset remains excluded, and most offsets are within a few steps.
            possible = logs > -np.inf
            offsets = offsets[possible]
            logs = logs[possible]
            weights = weights[possible]
            before = now[possible]
    for t, place in enumerate(released):
        cell = cells(place - offsets)
        posterior.smoothed[t] = sums = np.bincount(cell, weights, size)
        positive = np.flatnonzero(sums > 0)
        for axis in (0, 1):
            moved = np.bincount(cell, weights * offsets[:, axis], size)
            posterior.smoothed_cell_means[t, positive, axis] = released[t, axis] - moved[positive] / sums[positive]
    return posterior


def _normalize_weights(logs: FloatArray, t: int) -> FloatArray:
    normalised, total = normalize_logs(logs)
    if total == -np.inf:
        raise StochasticError(f"release {t}: no possible state can produce it; check that it belongs to this model")
    return np.asarray(np.exp(normalised))


def infer_from_drifting_offset(
    moves: MeshMovement,
    track: Track,
    likelihood: Callable[[int], FloatArray],
    held: BoolArray,
    prior: FloatArray,
    drift: FloatArray,
    drifts: BoolArray,
) -> Posterior:
    """Infer the beliefs from releases that depend on the location and a drifting offset.

    Parameters
    ----------
    moves, track
        The movement model, with whole cells, and the times.
    likelihood
        Function from a time to ``(N, K)``: the probability of its release in each cell under each offset.
    held
        See `infer_from_rows`, for an unchanged offset.
    prior
        ``(K,)``: the distribution of the first offset.
    drift
        ``(K, K)``: the transition matrix of the offset.
    drifts
        ``(T,)``: whether the offset changes just before a time.

    Raises
    ------
    StochasticError
        If no cell and offset can produce a release.
    """
    anywhere = np.tile(moves.initial, (moves.grid.size, 1))

    @cache
    def build_operator(begins: bool, steps: int, drifts: bool) -> MeshTransition:
        if begins:
            return MeshTransition(np.zeros((1, 1)), anywhere, drift if drifts else None)
        kept = moves.stay_probability(steps)[:, None]
        if not drifts:
            return MeshTransition(kept, moves.build_transition(steps).cells)
        return MeshTransition(
            kept * drift.diagonal(), moves.transition_matrix(steps), drift, excess=kept * drift.diagonal()
        )

    def build_steps(times: range) -> Steps:
        changes = list[MeshTransition]()
        rows = np.empty((len(times), moves.grid.size * len(prior)))
        for t, row in zip(times, rows, strict=True):
            row[:] = log_or_neg_inf(likelihood(t)).ravel()
            operator = build_operator(bool(track.restarts[t]), int(track.steps[t]), bool(drifts[t]))
            changes.append(operator.with_release(row, held[t]))
        return changes, rows

    start = np.repeat(log_or_neg_inf(prior)[None], moves.grid.size, axis=0)
    return _smooth(moves, track, start, build_steps, are_parts=False)


class Zones:
    """Zones that contain a user's protected locations, and the cells that each intersects.

    Parameters
    ----------
    shares
        ``(K, N)``: the share of each cell in each zone.
    """

    def __init__(self, shares: FloatArray) -> None:
        max_cells = max(1, int((shares > 0).sum(axis=1).max()))
        self.cells = np.argsort(-shares, axis=1, kind="stable")[:, :max_cells]
        self.shares = np.take_along_axis(shares, self.cells, axis=1)
        self._within = BoundedCache[int, FloatArray](_CACHE_SIZE)

    def select(self, index: IntArray) -> Zones:
        """Select some of the zones."""
        zones = Zones.__new__(Zones)
        zones.cells = self.cells[index]
        zones.shares = self.shares[index]
        zones._within = BoundedCache(_CACHE_SIZE)
        return zones

    def get_transitions(self, moves: MeshMovement, steps: int) -> FloatArray:
        """Return the transitions between the cells of each zone, except for stays, ``(K, m, m)``."""

        def build() -> FloatArray:
            return moves.build_transition(steps).cells[self.cells[:, :, None], self.cells[:, None, :]]

        return self._within.get_or_make(steps, build)

    def sum_by_cell(self, values: FloatArray, size: int) -> FloatArray:
        """Sum values ``(K, m)`` by cell, ``(N, 1)``."""
        return np.asarray(np.bincount(self.cells.ravel(), values.ravel(), size)[:, None], dtype=np.float64)


def infer_from_zones(
    moves: MeshMovement,
    track: Track,
    released: FloatArray,
    alive: Sequence[BoolArray],
    zones: Zones,
    centres: FloatArray,
) -> Posterior:
    """Infer the beliefs from exact locations that are withheld in one of ``K`` zones.

    The zones are equally probable beforehand.

    Parameters
    ----------
    moves, track
        The movement model and the times. Only the states of released locations are used.
    released
        ``(T, 2)``: the locations, NaN if withheld.
    alive
        For each time, the mask ``(K,)`` of the zones that do not contain the released location. Ignored if withheld.
    zones, centres
        The zones and their centres ``(K, 2)``, one of which is the home.

    Raises
    ------
    StochasticError
        If every zone is excluded.
    """
    posterior = Posterior.empty(track, moves)
    hidden = np.isnan(released[:, 0])
    seen = np.flatnonzero(~hidden)
    posterior.filtered_means[seen] = posterior.smoothed_cell_means[seen, track.states[seen]] = released[seen]
    posterior.filtered[seen, track.states[seen]] = posterior.smoothed[seen, track.states[seen]] = 1.0
    logs, _ = _filter_zones(moves, track, hidden, alive, zones, posterior)
    weights = _normalize_weights(logs, len(track) - 1)
    best = weights >= weights.max() * (1 - 1e-9)
    kept_zones = np.flatnonzero(weights > _NEGLIGIBLE_ZONE)
    left = zones.select(kept_zones)
    _, kept = _filter_zones(moves, track, hidden, [row[kept_zones] for row in alive], left, None)
    weights = weights[kept_zones] / weights[kept_zones].sum()
    later = np.ones(left.cells.shape)
    for t in range(len(track) - 1, -1, -1):
        if hidden[t]:
            joint = kept[t] * later
            joint *= (weights / joint.sum(axis=1))[:, None]
            posterior.write_smoother(t, left.sum_by_cell(joint, moves.grid.size), moves)
        if t == 0 or not hidden[t - 1]:
            continue
        if track.restarts[t]:
            later = np.ones(left.cells.shape)
            continue
        steps = int(track.steps[t])
        if hidden[t]:
            drawn = np.einsum("kij,kj->ki", left.get_transitions(moves, steps), left.shares * later)
            later = moves.stay_probability(steps)[left.cells] * later + drawn
        else:
            later = moves.build_transition(steps).cells[left.cells, int(track.states[t])]
        later = later / np.maximum(later.max(axis=1, keepdims=True), np.finfo(float).tiny)
    return Posterior(
        posterior.filtered_means,
        posterior.smoothed,
        posterior.smoothed_cell_means,
        posterior.filtered,
        centres[best].mean(axis=0),
    )


def _filter_zones(
    moves: MeshMovement,
    track: Track,
    hidden: BoolArray,
    alive: Sequence[BoolArray],
    zones: Zones,
    posterior: Posterior | None,
) -> tuple[FloatArray, dict[int, FloatArray]]:
    """Run the forward pass in each zone. Return the log evidence and the masses.

    The filter is stored if ``posterior`` is given.
    """
    logs = np.zeros(len(zones.cells))
    mass = np.zeros(zones.cells.shape)
    kept = {}
    for t in range(len(track)):
        begins = bool(track.restarts[t])
        before = int(track.states[t - 1])
        steps = 1 if begins else int(track.steps[t])
        now = int(track.states[t])
        if hidden[t]:
            stayed: FloatArray | float = 0.0
            if begins:
                mass = moves.initial[zones.cells]
            elif hidden[t - 1]:
                stayed = moves.stay_probability(steps)[zones.cells] * mass
                mass = np.einsum("ki,kij->kj", mass, zones.get_transitions(moves, steps))
            else:
                mass = moves.build_transition(steps).cells[before, zones.cells]
            mass = mass * zones.shares + stayed
            gained = mass.sum(axis=1)
            mass = mass / np.where(gained > 0, gained, 1.0)[:, None]
        elif begins:
            gained = np.where(alive[t], moves.initial[now], 0.0)
        elif hidden[t - 1]:
            gained = (mass * moves.build_transition(steps).cells[zones.cells, now]).sum(axis=1) * alive[t]
        else:
            gained = np.where(alive[t], moves.transition_matrix(steps)[before, now], 0.0)
        with np.errstate(divide="ignore"):
            logs = logs + np.log(gained)
        weights = _normalize_weights(logs, t)
        if hidden[t] and posterior is None:
            kept[t] = mass
        elif hidden[t] and posterior is not None:
            posterior.write_filter(t, zones.sum_by_cell(weights[:, None] * mass, moves.grid.size), moves)
    return logs, kept
