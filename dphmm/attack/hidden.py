"""The adversary's filter and smoother, over cells, places within them, and what was drawn once and kept.

A fixed offset, a slowly moving one, the centre of a zone: each is a hidden variable beside the place. None is ignored
or averaged away here: the passes go over all its values, and weigh each by how well it explains the releases. Where
cells are whole and nothing else is hidden, all this is `dphmm.markov.filter` and `dphmm.markov.smooth`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.attack.mesh import Moves
from dphmm.attack.track import Track
from dphmm.errors import StochasticError

_KEPT = 1 << 24
"""About so many numbers of a pass are kept at a time; what lies before is worked out again."""
_FAINT = 1e-12
"""Zones less probable than this, given all releases, are left out of the pass backwards."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the adversary holds of each of ``T`` times.

    Attributes
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
        """Arrays to be filled in."""
        shape = (len(track), moves.grid.size)
        middles = np.repeat(moves.grid.points[None], len(track), axis=0)
        return cls(np.zeros((len(track), 2)), np.zeros(shape), middles, np.zeros(shape))

    @property
    def estimates(self) -> FloatArray:
        """``(T, 2)``: the mean place given all releases, kilometres."""
        return np.asarray(np.einsum("tn,tnk->tk", self.hindsight, self.places))

    def filter_is(self, t: int, mass: FloatArray, moves: Moves) -> None:
        """Write down the filter of a time, ``(N, Q)``."""
        self.filtered[t] = mass.sum(axis=1)
        self.at_once[t] = (
            mass.ravel() @ moves.mesh.points if mass.shape[1] > 1 else self.filtered[t] @ moves.grid.points
        )

    def smoother_is(self, t: int, mass: FloatArray, moves: Moves) -> None:
        """Write down the smoother of a time, ``(N, Q)``."""
        sums = mass.sum(axis=1)
        self.hindsight[t] = sums
        if mass.shape[1] > 1:
            some = np.flatnonzero(sums > 0)
            parts = moves.mesh.points.reshape(len(sums), -1, 2)[some]
            self.places[t, some] = np.einsum("nq,nqk->nk", mass[some] / sums[some, None], parts)


Likelihood = Callable[[int], FloatArray]
"""A time → the densities of its release, up to a factor."""


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

    Raises
    ------
    StochasticError
        When no possible place could have given a release.
    """
    found, size = Posterior.empty(track, moves), moves.grid.size
    parts = moves.parts**2
    blocks = _blocks(len(track), size * parts)

    def rows(some: slice) -> FloatArray:
        logs = log_rows(some)
        logs = logs.reshape(len(logs), size, -1)
        top = logs.max(axis=(1, 2), keepdims=True)
        if held is None:  # where a place that was kept counts as one, nothing may be scaled
            logs = logs - np.where(top > -np.inf, top, 0.0)
        weights = np.exp(logs)
        return np.broadcast_to(weights, (len(logs), size, parts))

    def onward(mass: FloatArray, t: int, row: FloatArray) -> FloatArray:
        if track.begins[t]:
            mass = np.repeat(moves.initial[:, None] / parts, parts, axis=1) * row
        else:
            kept, drawn = moves.redraw(mass, int(track.steps[t]))
            mass = (kept + drawn) * row if held is None else kept * held[t] + drawn * row
        return _scaled(mass, t)

    mass, kept = np.zeros((size, parts)), []
    for some in blocks:
        kept.append(mass)
        weights, block = rows(some), []
        for t in range(some.start, some.stop):
            mass = onward(mass, t, weights[t - some.start])
            found.filter_is(t, mass, moves)
            block.append(mass)
    later = np.ones((size, parts))
    for some, mass in zip(reversed(blocks), reversed(kept), strict=True):
        if some is not blocks[-1]:
            weights, block = rows(some), []
            for t in range(some.start, some.stop):
                mass = onward(mass, t, weights[t - some.start])
                block.append(mass)
        for t in range(some.stop - 1, some.start - 1, -1):
            found.smoother_is(t, _scaled(block.pop() * later, t), moves)
            if track.begins[t]:
                later = np.ones((size, parts))
                continue
            after = weights[t - some.start] * later
            stayed = after if held is None else later * held[t]
            later = moves.redraw_back(stayed, after, int(track.steps[t]))
            later = later / later.max()
    return found


def _blocks(count: int, each: int) -> list[slice]:
    """The times in parts whose masses, so many numbers at each, fit into memory."""
    length = max(1, _KEPT // each)
    return [slice(at, min(at + length, count)) for at in range(0, count, length)]


def _scaled(mass: FloatArray, t: int) -> FloatArray:
    total = mass.sum()
    if not total > 0:
        raise StochasticError(f"release {t}: no possible state could have given it; model and release do not match")
    return np.asarray(mass / total)


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
    most = logs.max()
    if most == -np.inf:
        raise StochasticError(f"release {t}: no possible state could have given it; model and release do not match")
    return _scaled(np.exp(logs - most), t)


def posterior_of_drift(
    moves: Moves,
    track: Track,
    likelihood: Likelihood,
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
    found, count, rest = Posterior.empty(track, moves), len(track), drift.diagonal()

    def onward(mass: FloatArray, t: int) -> FloatArray:
        if track.begins[t]:
            offsets = prior if t == 0 else mass.sum(axis=0)
            return _scaled(moves.initial[:, None] * (offsets @ drift if drifts[t] else offsets) * likelihood(t), t)
        steps = int(track.steps[t])
        stayed = moves.kept(steps)[:, None] * mass * (rest if drifts[t] else 1.0)
        moved = moves.matrix(steps).T @ (mass @ drift if drifts[t] else mass) - stayed
        return _scaled(stayed * held[t] + np.maximum(moved, 0.0) * likelihood(t), t)

    mass, kept = np.zeros((moves.grid.size, len(prior))), []
    blocks = _blocks(count, mass.size)
    for some in blocks:
        kept.append(mass)
        for t in range(some.start, some.stop):
            mass = onward(mass, t)
            found.filter_is(t, mass.sum(axis=1, keepdims=True), moves)
    later = np.ones_like(mass)
    for some, mass in zip(reversed(blocks), reversed(kept), strict=True):
        block = []
        for t in range(some.start, some.stop):
            mass = onward(mass, t)
            block.append(mass)
        for t in range(some.stop - 1, some.start - 1, -1):
            found.smoother_is(t, _scaled(block.pop() * later, t).sum(axis=1, keepdims=True), moves)
            after = likelihood(t) * later
            if track.begins[t]:
                before = np.broadcast_to(moves.initial @ after, after.shape)
                later = before @ drift.T if drifts[t] else before
            else:
                steps = int(track.steps[t])
                stays = moves.kept(steps)[:, None] * (rest if drifts[t] else 1.0)
                before = moves.matrix(steps) @ after
                before = before @ drift.T if drifts[t] else before
                later = stays * later * held[t] + np.maximum(before - stays * after, 0.0)
            later = later / later.max()
    return found


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
            found = moves.matrix(steps)[self.cells[:, :, None], self.cells[:, None, :]]
            each = np.arange(self.cells.shape[1])
            found[:, each, each] = np.maximum(found[:, each, each] - moves.kept(steps)[self.cells], 0.0)
            self._within[steps] = found
        return self._within[steps]

    def moved(self, moves: Moves, steps: int, state: int) -> FloatArray:
        """``(K, m)``: the probability of having gone to each cell of each zone from a place outside it in a state."""
        return np.asarray(moves.matrix(steps)[state, self.cells] - moves.kept(steps)[state] * (self.cells == state))

    def left(self, moves: Moves, steps: int, state: int) -> FloatArray:
        """``(K, m)``: that of going from each cell of each zone to a place outside it in a state."""
        return np.asarray(moves.matrix(steps)[self.cells, state] - moves.kept(steps)[state] * (self.cells == state))

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
            found.smoother_is(t, left.spread(joint, moves.grid.size), moves)
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
            later = left.left(moves, steps, int(track.states[t]))
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
                mass = zones.moved(moves, steps, before)
            mass = mass * zones.shares + stayed
            gained = mass.sum(axis=1)
            mass = mass / np.where(gained > 0, gained, 1.0)[:, None]
        elif begins:
            gained = np.where(alive[t], moves.initial[now], 0.0)
        elif hidden[t - 1]:
            gained = (mass * zones.left(moves, steps, now)).sum(axis=1) * alive[t]
        else:
            gained = np.where(alive[t], moves.matrix(steps)[before, now], 0.0)
        with np.errstate(divide="ignore"):
            logs = logs + np.log(gained)
        weights = _weights(logs, t)
        if hidden[t] and found is None:
            kept[t] = mass
        elif hidden[t] and found is not None:
            found.filter_is(t, zones.spread(weights[:, None] * mass, moves.grid.size), moves)
    return logs, kept
