"""The adversary's filter and smoother over a track: cells, places within them, and what was drawn once and kept.

A fixed offset, a slowly moving one, the centre of a zone: each is a hidden variable beside the place. None is ignored
or averaged away here: all its values are gone through, and each is weighed by how well it explains the releases. Parts
of cells and moving offsets go through the model's forward–backward, along the steps of `dphmm.attack.mesh.Change`;
where cells are whole and nothing else is hidden, that is `dphmm.model.filter` and `dphmm.model.smooth`. A fixed offset
makes one path of the releases; a zone about home is a mixture of chains over the few cells that it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.attack.mesh import Change, Moves, logs_of
from dphmm.errors import StochasticError
from dphmm.model.forward_backward import backward_pass, forward_pass
from dphmm.model.habits import NIGHT
from dphmm.model.path_sampling import draw_paths
from dphmm.model.transition_operator import log_normalised, plain_masses
from dphmm.space import OUTSIDE, Trajectory

_LONGEST_GAP_SECONDS = 86400.0


@dataclass(frozen=True, eq=False)
class Track:
    """Where one person was, at the ``T`` slots of a model's clock with a fix within its region.

    Private: these are true places.

    Parameters
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
    def home(self) -> FloatArray | None:
        """``(2,)``: the mean of the places at night in the cell with most nights; None without a night."""
        if not self.night.any():
            return None
        cell = np.bincount(self.states[self.night]).argmax()
        return np.asarray(self.points[self.night & (self.states == cell)].mean(axis=0))

    @property
    def usual_place(self) -> FloatArray:
        """``(2,)``: the home, or without one the mean of the places in the cell with most fixes."""
        home = self.home
        return self.points[self.states == np.bincount(self.states).argmax()].mean(axis=0) if home is None else home

    @classmethod
    def from_trajectory(cls, person: Trajectory, moves: Moves, most: int, first: int | None = None) -> Track | None:
        """The first slots of a trajectory, at most `most`, with a fix within the region; None where there is none.

        Parameters
        ----------
        person
            The trajectory.
        moves
            The model's clock, grid and moves.
        most
            How many slots at most.
        first
            Slots before this one are left out.

        Returns
        -------
        Track or None
            None where no fix lies within the region.
        """
        grid, step = moves.grid, moves.model.step
        slotted = person.resample(step)
        states = grid.locate(slotted.latitude, slotted.longitude)
        inside = states != OUTSIDE
        kept = np.flatnonzero(inside if first is None else inside & (slotted.slots >= first))[:most]
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

    @classmethod
    def drawn(cls, user: str, count: int, first: int, moves: Moves, rng: np.random.Generator) -> Track:
        """Somebody who moves as the model says, through places of its cells as the mesh says; their home is not known.

        Parameters
        ----------
        user
            Who.
        count
            How many slots they are seen at, one after the other, at least one.
        first
            The first of these slots.
        moves
            The model, and how often somebody who stays in a cell goes to another place of it.
        rng
            Where places come from.

        Returns
        -------
        Track
            With a place at each slot.
        """
        grid = moves.grid
        states = draw_paths(moves.model, 1, count, first, rng)[0].astype(np.int64)
        stays = np.append(False, states[1:] == states[:-1]) & (rng.random(count) >= moves.redrawn)
        since = np.maximum.accumulate(np.where(stays, 0, np.arange(count)))
        points = grid.points[states] + grid.cell_km * (rng.random((count, 2)) - 0.5)[since]
        latitude, longitude = grid.projection.to_latlon(points).T
        never, begins = np.zeros(count, dtype=np.bool_), np.arange(count) == 0
        return cls(user, first + np.arange(count), latitude, longitude, points, states, begins, never, moves.model.step)


_KEPT = 1 << 24
"""About how many numbers of a pass are kept at a time; earlier ones are worked out again."""
_FAINT = 1e-12
"""Zones less probable than this, given all releases, are left out of the pass backwards."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the adversary holds of each of ``T`` times.

    Parameters
    ----------
    at_once
        ``(T, 2)``: the mean place given the releases up to then, kilometres.
    hindsight
        ``(T, N)``: the smoother, ``p(s_t | z_1..T)``, of the model's cells.
    places
        ``(T, N, 2)``: the mean place within each cell given all releases; the cell's middle where it has no mass.
    filtered
        ``(T, N)``: the filter, ``p(s_t | z_1..t)``.
    home
        ``(2,)``: a guess of the home, where a channel gives one away by itself.
    """

    at_once: FloatArray = field(repr=False)
    hindsight: FloatArray = field(repr=False)
    places: FloatArray = field(repr=False)
    filtered: FloatArray = field(repr=False)
    home: FloatArray | None = None

    @classmethod
    def empty(cls, track: Track, moves: Moves) -> Posterior:
        """Arrays to be filled in.

        Parameters
        ----------
        track
            The times.
        moves
            The model's cells.

        Returns
        -------
        Posterior
            Zeros, and the middles of the cells.
        """
        shape = (len(track), moves.grid.size)
        middles = np.repeat(moves.grid.points[None], len(track), axis=0)
        return cls(np.zeros((len(track), 2)), np.zeros(shape), middles, np.zeros(shape))

    @property
    def estimates(self) -> FloatArray:
        """``(T, 2)``: the mean place given all releases, kilometres."""
        return np.asarray(np.einsum("tn,tnk->tk", self.hindsight, self.places))

    def write_filter(self, t: int, mass: FloatArray, moves: Moves) -> None:
        """Write down the filter of a time, ``(N, Q)``.

        Parameters
        ----------
        t
            The time.
        mass
            ``(N, Q)``, of sum one.
        moves
            The model's cells.
        """
        self.filtered[t] = mass.sum(axis=1)
        self.at_once[t] = (
            mass.ravel() @ moves.mesh.points if mass.shape[1] > 1 else self.filtered[t] @ moves.grid.points
        )

    def write_smoother(self, t: int, mass: FloatArray, moves: Moves) -> None:
        """Write down the smoother of a time, ``(N, Q)``.

        Parameters
        ----------
        t
            The time.
        mass
            ``(N, Q)``, of sum one.
        moves
            The model's cells.
        """
        sums = mass.sum(axis=1)
        self.hindsight[t] = sums
        if mass.shape[1] > 1:
            some = np.flatnonzero(sums > 0)
            parts = moves.mesh.points.reshape(len(sums), -1, 2)[some]
            self.places[t, some] = np.einsum("nq,nqk->nk", mass[some] / sums[some, None], parts)


Steps = tuple[list[Change], FloatArray]
"""What leads to each of some times, and the log densities ``(n, N Q)`` of their releases."""


def _smooth(
    moves: Moves, track: Track, start: FloatArray, steps: Callable[[range], Steps], are_parts: bool
) -> Posterior:
    """Filter and smoother of a cell and a second hidden variable ``(N, Q)``, which is the part of the cell or not.

    Masses of a block of times are kept; those of earlier blocks are worked out again on the way back.

    Parameters
    ----------
    moves, track
        The model's moves and the times.
    start
        ``(N, Q)``: log masses before the first step.
    steps
        Times → what leads to them, and their releases.
    are_parts
        Whether the hidden variable is the part of the cell.
    """

    def by_place(logs: FloatArray) -> FloatArray:
        masses = plain_masses(logs - logs.max()).reshape(start.shape)
        masses /= masses.sum()
        return np.asarray(masses if are_parts else masses.sum(axis=1, keepdims=True))

    found, length = Posterior.empty(track, moves), max(1, _KEPT // start.size)
    blocks = [range(at, min(at + length, len(track))) for at in range(0, len(track), length)]
    befores, before = list[FloatArray](), start.ravel()
    for times in blocks:
        befores.append(before)
        operators, rows = steps(times)
        at = times.start
        try:
            logs = forward_pass(operators, rows, before).logs
        except StochasticError as problem:
            raise problem if at == 0 else StochasticError(f"counted from release {at}, {problem}") from None
        before = logs[-1]
        for t, row in zip(times, logs, strict=True):
            found.write_filter(t, by_place(row), moves)
    later = np.zeros(start.size)
    for times, before in zip(reversed(blocks), reversed(befores), strict=True):
        if times is not blocks[-1]:
            operators, rows = steps(times)
            logs = forward_pass(operators, rows, before).logs
        rows[-1] += later
        beyond = backward_pass(operators, rows)
        logs += beyond
        logs[-1] += later
        for t, row in zip(times, logs, strict=True):
            found.write_smoother(t, by_place(row), moves)
        later = operators[0].backward(beyond[0] + rows[0])
    return found


def posterior_of_rows(
    moves: Moves, track: Track, log_rows: Callable[[slice], FloatArray], held: BoolArray | None = None
) -> Posterior:
    """Of releases that depend on nothing but the place at their time.

    Parameters
    ----------
    moves, track
        The model's moves and the times.
    log_rows
        A slice of the times → log densities ``(n, N)`` by cell, or ``(n, N Q)`` by part.
    held
        For a channel without randomness, ``(T,)``: whether a release is the same as the one before. At a place that was
        kept it then is for certain, and another is impossible: the release again is no new evidence. The rows are then
        probabilities, not densities up to a factor. Left out, each release of a place is drawn by itself.

    Returns
    -------
    Posterior
        The filter and the smoother.

    Raises
    ------
    StochasticError
        When no possible place could have given a release.
    """
    size, parts = moves.grid.size, moves.parts**2

    def steps(times: range) -> Steps:
        given = log_rows(slice(times.start, times.stop)).reshape(len(times), size, -1)
        rows = np.broadcast_to(given, (len(times), size, parts)).reshape(len(times), -1).copy()
        changes = [moves.beginning if track.begins[t] else moves.change(int(track.steps[t])) for t in times]
        if held is not None:
            changes = [one.with_release(row, held[t]) for t, one, row in zip(times, changes, rows, strict=True)]
        return changes, rows

    return _smooth(moves, track, np.zeros((size, parts)), steps, are_parts=True)


def posterior_of_paths(
    moves: Moves, track: Track, released: FloatArray, offsets: FloatArray, cells: Callable[[FloatArray], IntArray]
) -> Posterior:
    """Of places that were all moved by the same one of ``K`` offsets, each as probable beforehand.

    An offset that leads out of the region is ruled out. The evidence for one is the probability under the model of the
    path that it makes of the releases; both posteriors are mixtures by it.

    Parameters
    ----------
    moves, track
        The model's moves and the times.
    released
        ``(T, 2)``, kilometres.
    offsets
        ``(K, 2)``, kilometres.
    cells
        Points → their cells, -1 for none.

    Raises
    ------
    StochasticError
        When every offset is ruled out.
    """
    found, size = Posterior.empty(track, moves), moves.grid.size
    paths = [cells(place - offsets) for place in released]
    logs = np.zeros(len(offsets))
    with np.errstate(divide="ignore"):
        for t, now in enumerate(paths):
            if track.begins[t]:
                gained = np.log(moves.initial[now])
            else:
                gained = np.log(moves.matrix(int(track.steps[t]))[paths[t - 1], now])
            logs = np.where(now < 0, -np.inf, logs + gained)
            weights = _weights(logs, t)
            found.filtered[t] = np.bincount(np.maximum(now, 0), weights, size)
            found.at_once[t] = released[t] - weights @ offsets
    for t, now in enumerate(paths):
        cell = np.maximum(now, 0)
        found.hindsight[t] = sums = np.bincount(cell, weights, size)
        some = np.flatnonzero(sums > 0)
        for axis in (0, 1):
            moved = np.bincount(cell, weights * offsets[:, axis], size)
            found.places[t, some, axis] = released[t, axis] - moved[some] / sums[some]
    return found


def _weights(logs: FloatArray, t: int) -> FloatArray:
    found, total = log_normalised(logs)
    if total == -np.inf:
        raise StochasticError(f"release {t}: no possible state could have given it; model and release do not match")
    return np.asarray(np.exp(found))


def posterior_of_drift(
    moves: Moves,
    track: Track,
    likelihood: Callable[[int], FloatArray],
    held: BoolArray,
    prior: FloatArray,
    drift: FloatArray,
    drifts: BoolArray,
) -> Posterior:
    """Of releases that follow from the place and from an offset that moves slowly, on its own.

    Parameters
    ----------
    moves, track
        The model's moves, whose cells are taken whole, and the times.
    likelihood
        A time → ``(N, K)``: the probability of its release in each cell under each offset.
    held
        As in `posterior_of_rows`, for an offset that stays too.
    prior
        ``(K,)``: the distribution of the first offset.
    drift
        ``(K, K)``: where an offset goes when it moves.
    drifts
        ``(T,)``: whether it moves just before a time.

    Raises
    ------
    StochasticError
        When no cell and offset could have given a release.
    """
    anywhere = np.tile(moves.initial, (moves.grid.size, 1))

    @cache
    def change(begins: bool, steps: int, drifts: bool) -> Change:
        if begins:
            return Change(np.zeros((1, 1)), anywhere, drift if drifts else None)
        kept = moves.kept(steps)[:, None]
        if not drifts:
            return Change(kept, moves.change(steps).cells)
        return Change(kept * drift.diagonal(), moves.matrix(steps), drift, excess=kept * drift.diagonal())

    def steps(times: range) -> Steps:
        changes, rows = list[Change](), np.empty((len(times), moves.grid.size * len(prior)))
        for t, row in zip(times, rows, strict=True):
            row[:] = logs_of(likelihood(t)).ravel()
            one = change(bool(track.begins[t]), int(track.steps[t]), bool(drifts[t]))
            changes.append(one.with_release(row, held[t]))
        return changes, rows

    start = np.repeat(logs_of(prior)[None], moves.grid.size, axis=0)
    return _smooth(moves, track, start, steps, are_parts=False)


class Zones:
    """Zones that hide every place within them, one of which is a person's, and the cells that each touches.

    Parameters
    ----------
    shares
        ``(K, N)``: the share of each cell that lies in each zone.
    """

    def __init__(self, shares: FloatArray) -> None:
        most = max(1, int((shares > 0).sum(axis=1).max()))
        self.cells = np.argsort(-shares, axis=1, kind="stable")[:, :most]
        self.shares = np.take_along_axis(shares, self.cells, axis=1)
        self._within: dict[int, FloatArray] = {}

    def part(self, some: IntArray) -> Zones:
        """Some of the zones."""
        found = Zones.__new__(Zones)
        found.cells, found.shares, found._within = self.cells[some], self.shares[some], {}
        return found

    def within(self, moves: Moves, steps: int) -> FloatArray:
        """``(K, m, m)``: the moves from cell to cell of each zone, but for places that are kept."""
        if steps not in self._within:
            changed = moves.change(steps).cells
            self._within[steps] = changed[self.cells[:, :, None], self.cells[:, None, :]]
        return self._within[steps]

    def spread(self, values: FloatArray, size: int) -> FloatArray:
        """``(N, 1)``: the sums of ``(K, m)`` by cell."""
        return np.asarray(np.bincount(self.cells.ravel(), values.ravel(), size)[:, None], dtype=np.float64)


def posterior_of_zones(
    moves: Moves, track: Track, released: FloatArray, alive: Sequence[BoolArray], zones: Zones, centres: FloatArray
) -> Posterior:
    """Of a track that is released as it is but for what lies in one of ``K`` zones, each as probable beforehand.

    Parameters
    ----------
    moves, track
        The model's moves, and the times; of the states only those of released places are looked at.
    released
        ``(T, 2)``: the places, NaN where nothing was released.
    alive
        For each time the zones ``(K,)`` that do not hold the released place; not looked at where there is none.
    zones, centres
        The zones, and their centres ``(K, 2)``, one of which is the home.

    Raises
    ------
    StochasticError
        When every zone is ruled out.
    """
    found, hidden = Posterior.empty(track, moves), np.isnan(released[:, 0])
    seen = np.flatnonzero(~hidden)
    found.at_once[seen] = found.places[seen, track.states[seen]] = released[seen]
    found.filtered[seen, track.states[seen]] = found.hindsight[seen, track.states[seen]] = 1.0
    logs, _ = _through(moves, track, hidden, alive, zones, found)
    weights = _weights(logs, len(track) - 1)
    best = weights >= weights.max() * (1 - 1e-9)
    some = np.flatnonzero(weights > _FAINT)
    left = zones.part(some)
    _, kept = _through(moves, track, hidden, [one[some] for one in alive], left, None)
    weights, later = weights[some] / weights[some].sum(), np.ones(left.cells.shape)
    for t in range(len(track) - 1, -1, -1):
        if hidden[t]:
            joint = kept[t] * later
            joint *= (weights / joint.sum(axis=1))[:, None]
            found.write_smoother(t, left.spread(joint, moves.grid.size), moves)
        if t == 0 or not hidden[t - 1]:
            continue
        if track.begins[t]:
            later = np.ones(left.cells.shape)
            continue
        steps = int(track.steps[t])
        if hidden[t]:
            drawn = np.einsum("kij,kj->ki", left.within(moves, steps), left.shares * later)
            later = moves.kept(steps)[left.cells] * later + drawn
        else:
            later = moves.change(steps).cells[left.cells, int(track.states[t])]
        later = later / np.maximum(later.max(axis=1, keepdims=True), np.finfo(float).tiny)
    return Posterior(found.at_once, found.hindsight, found.places, found.filtered, centres[best].mean(axis=0))


def _through(
    moves: Moves,
    track: Track,
    hidden: BoolArray,
    alive: Sequence[BoolArray],
    zones: Zones,
    found: Posterior | None,
) -> tuple[FloatArray, dict[int, FloatArray]]:
    """The log evidence of each zone, and what a pass forwards holds of its cells; the filter is written down."""
    logs, mass, kept = np.zeros(len(zones.cells)), np.zeros(zones.cells.shape), {}
    for t in range(len(track)):
        begins, before = bool(track.begins[t]), int(track.states[t - 1])
        steps, now = 1 if begins else int(track.steps[t]), int(track.states[t])
        if hidden[t]:
            stayed: FloatArray | float = 0.0
            if begins:
                mass = moves.initial[zones.cells]
            elif hidden[t - 1]:
                stayed = moves.kept(steps)[zones.cells] * mass
                mass = np.einsum("ki,kij->kj", mass, zones.within(moves, steps))
            else:
                mass = moves.change(steps).cells[before, zones.cells]
            mass = mass * zones.shares + stayed
            gained = mass.sum(axis=1)
            mass = mass / np.where(gained > 0, gained, 1.0)[:, None]
        elif begins:
            gained = np.where(alive[t], moves.initial[now], 0.0)
        elif hidden[t - 1]:
            gained = (mass * moves.change(steps).cells[zones.cells, now]).sum(axis=1) * alive[t]
        else:
            gained = np.where(alive[t], moves.matrix(steps)[before, now], 0.0)
        with np.errstate(divide="ignore"):
            logs = logs + np.log(gained)
        weights = _weights(logs, t)
        if hidden[t] and found is None:
            kept[t] = mass
        elif hidden[t] and found is not None:
            found.write_filter(t, zones.spread(weights[:, None] * mass, moves.grid.size), moves)
    return logs, kept
