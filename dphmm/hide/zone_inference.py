"""Inference of adversaries about a location in a protected zone.

A recording is exact outside a zone and contains nothing inside it. The zone is a square of `dphmm.space.grid` (the
core, which contains the protected location) and a ring around it. The published recording does not depend on the
location within the core, given the recording outside. The posterior odds of two locations are therefore the prior odds
times the ratio of the probabilities that a user with one or the other location leaves and enters in this way. They
depend on the adversary's knowledge of movement. Two adversaries are computed. For both, the prior is uniform over the
core, without the parts that belong to other zones. A recording that starts or ends in the zone does so at the location,
after or before an unknown time. The adversaries are assumed to know which recordings cross the zone with a stop (see
`HiddenZone.is_stop`). A stop is at the location, and a crossing without a stop reveals nothing.

- The *Markov* adversary uses a Markov model of the region without training data. With Q the moves within the zone and R
  those out of it, a user who starts at h leaves by cell b with probability ``((I - Q)^-1 R)_hb``: the distribution of
  exits (harmonic measure; Legramanti, arXiv 1806.08998, uses Brownian motion). A user who entered from b and stays for
  an unknown time is at h in proportion to the visits there, ``(P_b (I - Q)^-1)_h``. A user who stops at h for an
  unknown part of n steps between b and b' does so in proportion to ``sum over k + l <= n - 2 of (P_b Q^k)_h
  (Q^l R_b')_h``.
- The *extrapolating* adversary weights the angle between the direction at the border and the direction to the location
  by a normal density with standard deviation `TURN_STD`.

Neither knows streets and buildings; see `dphmm.hide.streets` for an adversary who does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.caching import BoundedCache
from dphmm.errors import InvalidInputError
from dphmm.model.blank_model import get_kind, region_prior
from dphmm.model.point_estimate import Inference
from dphmm.space.grid import Grid, Square
from dphmm.space.projection import LocalProjection
from dphmm.validation import checked

CELLS = 10
"""The number of cells along a side of the core."""

MIN_STOP_SECONDS = 120.0
"""The time by which a crossing with a stop takes longer than the straight way at the typical speed."""

TURN_STD = np.radians(30.0)
"""The standard deviation of the turn that the extrapolating adversary assumes."""

MAX_STEPS = 2000
"""The largest number of steps in the zone that is evaluated. A longer time does not restrict the way to a stop."""

ADVERSARIES = ("markov", "extrapolating")
"""The names of the two adversaries."""

# The ring is wider than the distance by this share of it. A location outside the core by less is also protected.
_TOLERANCE_SHARE = 0.1
# The sides of a square in degrees differ from its nominal side by up to 1 %, a tenth of a cell.
_SIDE_ERROR_CELLS = 0.1
# Points per cell and axis at which the parts of the core that belong to other zones are sampled.
_SUBCELLS = 20

# Cells of the grid around the zone.
_MARGIN_CELLS = 6

# Sizes of zones of which the moves are kept. The moves of a size take about 10 MB.
_MAX_SIZES = 4
# Gates of a size of which the powers of the moves are kept. The powers of a gate take up to 10 MB, at `MAX_STEPS`.
_MAX_GATES = 16

# Replaces a likelihood of zero before the logarithm.
_MIN_LIKELIHOOD = 1e-300


class Gate(NamedTuple):
    """The point at which a recording leaves or enters a zone.

    Parameters
    ----------
    point
        ``(2,)``: the first exact location outside, or the last; kilometres.
    outwards
        ``(2,)``: a location further along the recording outside, kilometres, which defines the direction. NaN
        without such a location.
    ahead
        ``(2,)``: a location much further along, kilometres, at which an adversary with a street map assumes that the
        user aimed. None for the point itself.
    time
        The time at the point; NaT if unknown. It does not depend on whether times are published.
    """

    point: FloatArray
    outwards: FloatArray
    ahead: FloatArray | None = None
    time: np.datetime64 = np.datetime64("NaT", "us")

    @property
    def towards(self) -> FloatArray:
        """``(2,)``: `ahead`, or the point itself."""
        return self.point if self.ahead is None else self.ahead


@dataclass(frozen=True)
class Stretch:
    """A removed stretch of a recording in a zone.

    Parameters
    ----------
    entered, left
        The gates. One of them is None if the recording starts or ends in the zone, and both if it does not leave it.
    seconds
        The time between the gates; None if unknown.
    has_stop
        Whether the user stopped in the zone, for a recording that crosses it. By default the time decides; see
        `HiddenZone.is_stop`.
    """

    entered: Gate | None
    left: Gate | None
    seconds: float | None = None
    has_stop: bool | None = None


def find_gates(stretches: Sequence[Stretch]) -> list[Gate]:
    """Return the gates of stretches in order."""
    return [gate for stretch in stretches for gate in (stretch.entered, stretch.left) if gate is not None]


class HiddenZone:
    """A core and a ring around it, in a plane centred on the core.

    Parameters
    ----------
    square
        The core.
    within_km
        The minimum width of the ring, kilometres.
    kind
        The type of movement, one of `dphmm.model.blank_model.KINDS` with a typical speed.
    others
        Squares that take precedence, each with a distance in kilometres: a location of the core that
        is not farther outside one of them belongs to that square's zone.

    Raises
    ------
    InvalidInputError
        If `within_km` is not positive, or larger than four times the side of the core.
    ConfigurationError
        For an unknown kind.
    """

    @checked
    def __init__(
        self, square: Square, within_km: float, kind: str = "cycling", others: Sequence[tuple[Square, float]] = ()
    ) -> None:
        cell = square.side_km / CELLS
        if not 0 < within_km <= 4 * square.side_km:
            raise InvalidInputError(f"within_km must be in (0, {4 * square.side_km:g}], got {within_km}")
        movement = get_kind(kind)
        if not movement.speed_kmh:
            raise InvalidInputError(f"kind must be walking, cycling or driving, got {kind!r}")
        self.square = square
        self.within_km = float(within_km)
        self.kind = kind
        self.others = tuple(others)
        self.projection = LocalProjection(*square.centre)
        ring = _num_ring_cells(square, within_km)
        self.half_km = cell * (CELLS / 2 + ring)
        """Half of the zone's side, kilometres."""
        across = CELLS + 2 * (ring + _MARGIN_CELLS)
        first = -round(1000 * cell * (across - 1) / 2)
        self.grid = Grid(self.projection, (first, first), cell, across, across)
        self.step_seconds = 3600 * cell / movement.speed_kmh

    def contains(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> BoolArray:
        """Return which locations lie in the zone.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.

        Returns
        -------
        BoolArray
            ``(n,)``.
        """
        inside = self.may_be_near(latitude, longitude, 0.0)
        plane = self.projection.to_plane(np.asarray(latitude)[inside], np.asarray(longitude)[inside])
        inside[inside] = np.abs(plane).max(axis=1) <= self.half_km
        return inside

    def may_be_near(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike, margin_km: npt.ArrayLike) -> BoolArray:
        """Return which locations are not certainly farther from the zone than a margin.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.
        margin_km
            The margin, kilometres; a number or ``(n,)``.

        Returns
        -------
        BoolArray
            ``(n,)``: from differences in degrees, without a projection.
        """
        north, east = self.square.centre
        turn = np.abs((np.asarray(longitude, float) - east + 180) % 360 - 180)
        reach = 2 * self.half_km + np.asarray(margin_km, float)
        # Degrees are at least 110 km long, and within 50 km the length of one of longitude varies by less than 10 %.
        is_near = np.abs(np.asarray(latitude, float) - north) <= reach / 110
        return np.asarray(is_near & ((turn * np.cos(np.radians(north)) <= reach / 99) | (reach > 50)))

    @cached_property
    def prior(self) -> FloatArray:
        """``(100,)``: the prior probabilities of the cells, in proportion to their areas.

        Areas that belong to other squares are not counted.
        """
        steps = self.grid.cell_km * ((np.arange(_SUBCELLS) + 0.5) / _SUBCELLS - 0.5)
        offsets = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        weights = np.ones((len(self.core), len(offsets)))
        if self._near_others:
            points = self.projection.to_latlon((self.grid.points[self.core, None] + offsets).reshape(-1, 2))
            weights[self.belongs_to_others(*points.T).reshape(weights.shape)] = 0.0
        areas = weights.sum(axis=1)
        # A remainder of the core between the sampled points: its cell is unknown.
        return np.asarray(areas / areas.sum() if areas.any() else np.full(len(areas), 1 / len(areas)))

    @cached_property
    def _near_others(self) -> list[tuple[Square, float]]:
        return [(square, reach) for square, reach in self.others if _is_near(square, self.square, reach)]

    def belongs_to_others(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> BoolArray:
        """Return which locations of the core belong to the zones of other squares.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.

        Returns
        -------
        BoolArray
            ``(n,)``.
        """
        belongs = np.zeros(np.shape(latitude), dtype=np.bool_)
        for square, reach in self._near_others:
            belongs |= distance_outside(square, latitude, longitude) <= reach
        return belongs

    @property
    def corners(self) -> FloatArray:
        """``(5, 2)``: the zone's outline in its plane, kilometres, closed."""
        return self.half_km * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]], float)

    @cached_property
    def core(self) -> IntArray:
        """``(100,)``: the indices of the cells of the core."""
        half = self.square.side_km / 2
        return np.flatnonzero(np.abs(self.grid.points).max(axis=1) < half)

    @cached_property
    def inside(self) -> BoolArray:
        """``(N,)``: mask of the grid's cells in the zone."""
        return np.asarray(np.abs(self.grid.points).max(axis=1) < self.half_km)

    @cached_property
    def moves(self) -> ZoneMoves:
        """The moves between the grid's cells, which zones of one size share.

        The grid is centred on the core: grids of one size differ in their projections only, and moves do not depend on
        the projection.
        """

        def build() -> ZoneMoves:
            model = region_prior(self.grid, self.step_seconds, self.kind)
            return ZoneMoves(np.asarray(model.transition.toarray()), self.inside)

        return _MOVES.get_or_make((self.square.side_km, self.half_km, self.kind), build)

    def is_stop(self, stretch: Stretch) -> bool:
        """Return whether the adversaries assume that the user was at the location.

        Parameters
        ----------
        stretch
            The stretch.

        Returns
        -------
        bool
            True if the recording starts or ends in the zone. For a crossing, `Stretch.has_stop`; by default whether
            its time is unknown, or exceeds the time of the straight way between the gates at the typical speed by
            `MIN_STOP_SECONDS`.
        """
        if stretch.entered is None or stretch.left is None:
            return True
        if stretch.has_stop is not None or stretch.seconds is None:
            return stretch.has_stop is not False
        straight_km = np.hypot(*(stretch.entered.point - stretch.left.point))
        return bool(stretch.seconds >= straight_km / self.grid.cell_km * self.step_seconds + MIN_STOP_SECONDS)

    def log_likelihoods(self, stretch: Stretch) -> dict[str, FloatArray]:
        """Return the log-likelihood of a stretch for each cell of the core.

        Parameters
        ----------
        stretch
            The stretch.

        Returns
        -------
        dict
            Each of `ADVERSARIES` → ``(100,)``: log-likelihoods, up to a common constant.
        """
        if not self.is_stop(stretch) or (stretch.entered is None and stretch.left is None):
            return {adversary: np.zeros(len(self.core)) for adversary in ADVERSARIES}
        gates = [None if gate is None else self._cell(gate.point) for gate in (stretch.entered, stretch.left)]
        steps = None if stretch.seconds is None else max(2, round(stretch.seconds / self.step_seconds))
        weight = self.moves.visits(gates[0], gates[1], steps)[self.core]
        if not weight.any():  # faster than the model allows: the time is ignored
            weight = self.moves.visits(gates[0], gates[1])[self.core]
        markov = np.log(np.maximum(weight / weight.max(), _MIN_LIKELIHOOD))
        straight = sum(self._straight(gate) for gate in (stretch.entered, stretch.left) if gate is not None)
        return dict(zip(ADVERSARIES, (markov, np.asarray(straight)), strict=True))

    def _cell(self, point: FloatArray) -> int:
        """Return the nearest cell outside the zone with a move into the zone and a move out of it."""
        distance = np.hypot(*(self.grid.points - point).T)
        return int(np.where(self.moves.is_gate, distance, np.inf).argmin())

    def _straight(self, gate: Gate) -> FloatArray:
        """Return the log density of the turn for each cell of the core, ``(100,)``."""
        ahead = gate.outwards - gate.point
        from_cell = gate.point - self.grid.points[self.core]
        if not np.isfinite(ahead).all() or not ahead.any():
            return np.zeros(len(self.core))
        turn = np.angle(np.exp(1j * (np.arctan2(from_cell[:, 1], from_cell[:, 0]) - np.arctan2(ahead[1], ahead[0]))))
        return np.asarray(-0.5 * (turn / TURN_STD) ** 2)


class ZoneMoves:
    """The moves between states, and the ways through a set of them.

    Results for the states next to the set are kept: the recordings of a location, and zones of one size, share them.

    Parameters
    ----------
    matrix
        ``(N, N)``: the transition matrix.
    inside
        ``(N,)``: mask of the set.
    """

    def __init__(self, matrix: FloatArray, inside: BoolArray) -> None:
        self.matrix = matrix
        self.inside = inside
        self.is_gate: BoolArray = ~inside & (matrix[:, inside] > 0).any(axis=1) & (matrix[inside] > 0).any(axis=0)
        """``(N,)``: mask of the states outside with a move into the set and a move out of it."""
        self._within = matrix[np.ix_(inside, inside)]
        self._solutions: dict[tuple[str, int], FloatArray] = {}
        self._powers: BoundedCache[tuple[str, int], list[FloatArray]] = BoundedCache(_MAX_GATES)

    def visits(self, entered: int | None, left: int | None, steps: int | None = None) -> FloatArray:
        """Return the weight of the ways to each state of the set and from there out.

        Parameters
        ----------
        entered, left
            The last state before the set, and the first one after it. None if the path starts in the set, uniformly,
            or ends there.
        steps
            The number of steps between the two, at least 2, of which an unknown part is spent at the state; None if
            unknown.

        Returns
        -------
        FloatArray
            ``(N,)``: 0 outside the set. Proportional to the probability of the state, for a uniform prior.

        Raises
        ------
        InvalidInputError
            If both `entered` and `left` are None.
        """
        if entered is None and left is None:
            raise InvalidInputError("entered or left must be a state, got None for both")
        expected = np.zeros(len(self.matrix))
        if entered is not None and left is not None and steps is not None and steps <= MAX_STEPS:
            total = np.zeros(len(self._within))
            # The ways out in at most as many steps as a way in leaves.
            for mass, ways_out in zip(self._ways_in(entered, steps)[::-1], self._ways_out(left, steps), strict=True):
                total += mass * ways_out
            expected[self.inside] = total
            return expected
        expected[self.inside] = 1.0
        if entered is not None:
            expected[self.inside] *= self._solve("entered", entered)
        if left is not None:
            expected[self.inside] *= self._solve("left", left)
        return expected

    def _solve(self, side: str, state: int) -> FloatArray:
        """Return the visits after a state outside, or the probabilities of leaving to it."""
        if (side, state) not in self._solutions:
            from scipy.linalg import lu_solve

            outside = self.matrix[state, self.inside] if side == "entered" else self.matrix[self.inside, state]
            self._solutions[side, state] = np.asarray(lu_solve(self._factors[side], outside))
        return self._solutions[side, state]

    @cached_property
    def _factors(self) -> dict[str, Any]:
        """The LU factors of ``I - Q`` for ways out, and of its transpose for ways in."""
        from scipy.linalg import lu_factor

        stays = np.eye(len(self._within)) - self._within
        return {"entered": lu_factor(stays.T), "left": lu_factor(stays)}

    def _ways_in(self, entered: int, steps: int) -> list[FloatArray]:
        """Return the distributions after 1 to ``steps - 1`` steps from a state outside."""
        ways = self._powers.get_or_make(("entered", entered), lambda: [self.matrix[entered, self.inside]])
        while len(ways) < steps - 1:
            ways.append(ways[-1] @ self._within)
        return ways[: steps - 1]

    def _ways_out(self, left: int, steps: int) -> list[FloatArray]:
        """Return the weights of ways to a state outside in at most 1 to ``steps - 1`` steps."""
        backward = self._powers.get_or_make(("left", left), lambda: [self.matrix[self.inside, left]])
        while len(backward) < steps - 1:
            backward.append(self._within @ backward[-1])
        return list(accumulate(backward[: steps - 1]))


_MOVES: BoundedCache[tuple[float, float, str], ZoneMoves] = BoundedCache(_MAX_SIZES)


@dataclass(frozen=True)
class ZoneInference:
    """The inference of one adversary about the location.

    Parameters
    ----------
    adversary
        One of `ADVERSARIES`.
    max_posterior
        The posterior probability of the most probable cell.
    prior
        The prior probability of the most probable cell.
    error_km
        The root mean square distance of the location from the posterior mean, kilometres.
    prior_error_km
        The root mean square distance from the prior mean, kilometres.
    posterior
        ``(100,)``: the posterior probability of each cell of the core.
    max_candidate_posterior
        With a street map, the posterior probability of the most probable candidate, such as an address.
    """

    adversary: str
    max_posterior: float
    prior: float
    error_km: float
    prior_error_km: float
    posterior: FloatArray
    max_candidate_posterior: float | None = None


def infer_location(zone: HiddenZone, stretches: Sequence[Mapping[str, FloatArray]]) -> tuple[ZoneInference, ...]:
    """Return each adversary's inference from stretches.

    The stretches are independent given the location.

    Parameters
    ----------
    zone
        The zone.
    stretches
        The result of `HiddenZone.log_likelihoods` for each stretch.

    Returns
    -------
    tuple of ZoneInference
        One for each of `ADVERSARIES`.
    """
    # The location is uniform within its cell.
    points = zone.grid.points[zone.core]
    prior = Inference(zone.prior, points, zone.grid.cell_km)
    inferences = []
    for name in ADVERSARIES:
        log = np.sum([stretch[name] for stretch in stretches], axis=0) if stretches else np.zeros(len(points))
        mass = zone.prior * np.exp(log - log[zone.prior > 0].max())
        mass /= mass.sum()
        posterior = Inference(mass, points, zone.grid.cell_km)
        inferences.append(
            ZoneInference(
                name, posterior.max_probability, prior.max_probability, posterior.rms_error, prior.rms_error, mass
            )
        )
    return tuple(inferences)


def _num_ring_cells(square: Square, within_km: float) -> int:
    """Return the width of the ring in cells."""
    return int(np.ceil((1 + _TOLERANCE_SHARE) * within_km * CELLS / square.side_km + _SIDE_ERROR_CELLS))


def tolerance_km(square: Square, within_km: float) -> float:
    """Return the distance outside a core up to which its zone protects a location.

    Parameters
    ----------
    square
        The core.
    within_km
        The distance, kilometres.

    Returns
    -------
    float
        Kilometres: at least a tenth of the distance.
    """
    return (_num_ring_cells(square, within_km) - _SIDE_ERROR_CELLS) * square.side_km / CELLS - within_km


@lru_cache(maxsize=1024)
def _projection(square: Square) -> LocalProjection:
    return LocalProjection(*square.centre)


def distance_outside(square: Square, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> FloatArray:
    """Return the distances of locations from a square, in the direction of its sides.

    Parameters
    ----------
    square
        The square.
    latitude, longitude
        ``(n,)``: degrees.

    Returns
    -------
    FloatArray
        ``(n,)``: kilometres; negative inside.
    """
    plane = _projection(square).to_plane(latitude, longitude)
    return np.asarray(np.abs(plane).max(axis=1) - square.side_km / 2)


def is_certainly_far(square: Square, latitude: float, longitude: float) -> bool:
    """Return whether a location is certainly farther outside a square than twice its side.

    It needs no projection: hundreds of squares would need as many, each of which takes a millisecond.

    Parameters
    ----------
    square
        The square.
    latitude, longitude
        Degrees.

    Returns
    -------
    bool
        False for every location within four sides of the centre.
    """
    north, east = square.centre
    cosines = np.cos(np.radians(north)) * np.cos(np.radians(latitude))
    # The squared half chord of the unit sphere (haversine).
    half_chord = np.sin(np.radians(latitude - north) / 2) ** 2 + cosines * np.sin(np.radians(longitude - east) / 2) ** 2
    # In the equal-area plane a location is at its chord from the centre, and one of its coordinates is at least 0.7 of
    # that. The sphere is smaller than the ellipsoid by enough: 2.5 / 0.7 is less than 4.
    return bool(2 * 6300.0 * np.sqrt(half_chord) > 4 * square.side_km)


def _is_near(square: Square, other: Square, reach_km: float) -> bool:
    """Return whether a square can be within a distance, at most a side, of another."""
    if square.level == other.level and is_certainly_far(square, *other.centre):
        return False
    # Half a side from the centre, and a tenth for sides that differ from their nominal length.
    return float(distance_outside(square, *other.centre)[0]) < reach_km + 0.6 * other.side_km
