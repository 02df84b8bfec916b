"""Inference of adversaries about a location in a protected zone.

A recording is exact outside a zone and contains nothing inside it. The published recording does not depend on the
location within the core of the zone, given the recording outside. The posterior odds of two locations are therefore the
prior odds times the ratio of the probabilities that a user with one or the other location leaves and enters in this
way. They depend on the adversary's knowledge of movement. Two adversaries are computed. For both, the prior is uniform
over the core, without the parts that belong to other zones. A recording that starts or ends in the zone does so at the
location, after or before an unknown time. The adversaries are assumed to know which recordings cross the zone with a
stop (see `HiddenZone.is_stop`). A stop is at the location, and a crossing without a stop reveals nothing.

- The *Markov* adversary uses a Markov model of the region without training data. With Q the moves within the zone and R
  those out of it, a user who starts at h leaves by cell b with probability ``((I - Q)^-1 R)_hb``: the distribution of
  exits (harmonic measure; Legramanti, arXiv 1806.08998, uses Brownian motion). A user who entered from b and stays for
  an unknown time is at h in proportion to the visits there, ``(P_b (I - Q)^-1)_h``. A user who stops at h for an
  unknown part of n steps between b and b' does so in proportion to ``sum over k + l <= n - 2 of (P_b Q^k)_h
  (Q^l R_b')_h``.
- The *extrapolating* adversary weights the angle between the direction at the border and the direction to the location
  by a normal density with standard deviation `TURN_STD`.

Neither knows streets and buildings; see `dphmm.hide.street_inference` for an adversary who does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.caching import BoundedCache
from dphmm.errors import InvalidInputError
from dphmm.hide.zone import Gate, HiddenZone, Stretch
from dphmm.model.blank_model import region_prior
from dphmm.model.point_estimate import Inference

# The standard deviation of the turn that the extrapolating adversary assumes.
TURN_STD = np.radians(30.0)

# The largest number of steps in the zone that is evaluated. A longer time does not restrict the way to a stop.
MAX_STEPS = 2000

# The names of the two adversaries.
ADVERSARIES = ("markov", "extrapolating")

# Sizes of zones of which the moves are kept. The moves of a size take about 10 MB.
_MAX_SIZES = 4
# Gates of a size of which the powers of the moves are kept. The powers of a gate take up to 10 MB, at `MAX_STEPS`.
_MAX_GATES = 16

# Replaces a likelihood of zero before the logarithm.
MIN_LIKELIHOOD = 1e-300


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
        # ``(N,)``: mask of the states outside with a move into the set and a move out of it.
        self.is_gate: BoolArray = ~inside & (matrix[:, inside] > 0).any(axis=1) & (matrix[inside] > 0).any(axis=0)
        self._within = matrix[np.ix_(inside, inside)]
        self._solutions: dict[tuple[str, int], FloatArray] = {}
        self._powers: BoundedCache[tuple[str, int], list[FloatArray]] = BoundedCache(_MAX_GATES)

    def compute_visits(self, entered: int | None, left: int | None, steps: int | None = None) -> FloatArray:
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
            for mass, ways_out in zip(
                self._compute_ways_in(entered, steps)[::-1], self._compute_ways_out(left, steps), strict=True
            ):
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

    def _compute_ways_in(self, entered: int, steps: int) -> list[FloatArray]:
        """Return the distributions after 1 to ``steps - 1`` steps from a state outside."""
        ways = self._powers.get_or_make(("entered", entered), lambda: [self.matrix[entered, self.inside]])
        while len(ways) < steps - 1:
            ways.append(ways[-1] @ self._within)
        return ways[: steps - 1]

    def _compute_ways_out(self, left: int, steps: int) -> list[FloatArray]:
        """Return the weights of ways to a state outside in at most 1 to ``steps - 1`` steps."""
        backward = self._powers.get_or_make(("left", left), lambda: [self.matrix[self.inside, left]])
        while len(backward) < steps - 1:
            backward.append(self._within @ backward[-1])
        return list(accumulate(backward[: steps - 1]))


_MOVES: BoundedCache[tuple[float, float, str], ZoneMoves] = BoundedCache(_MAX_SIZES)


def get_moves(zone: HiddenZone) -> ZoneMoves:
    """Return the moves between the cells of a zone's grid, which zones of one size share.

    The grid is centred on the core: grids of one size differ in their projections only, and moves do not depend on the
    projection.
    """

    def build() -> ZoneMoves:
        model = region_prior(zone.grid, zone.step_seconds, zone.kind)
        return ZoneMoves(np.asarray(model.transition.toarray()), zone.inside)

    return _MOVES.get_or_make((zone.square.side_km, zone.half_km, zone.kind), build)


def compute_log_likelihoods(zone: HiddenZone, stretch: Stretch) -> dict[str, FloatArray]:
    """Return the log-likelihood of a stretch for each cell of the core.

    Parameters
    ----------
    zone
        The zone.
    stretch
        The stretch.

    Returns
    -------
    dict
        Each of `ADVERSARIES` → ``(100,)``: log-likelihoods, up to a common constant.
    """
    if not zone.is_stop(stretch) or (stretch.entered is None and stretch.left is None):
        return {adversary: np.zeros(len(zone.core)) for adversary in ADVERSARIES}
    gates = [None if gate is None else find_gate_cell(zone, gate.point) for gate in (stretch.entered, stretch.left)]
    steps = None if stretch.seconds is None else max(2, round(stretch.seconds / zone.step_seconds))
    weight = get_moves(zone).compute_visits(gates[0], gates[1], steps)[zone.core]
    if not weight.any():  # faster than the model allows: the time is ignored
        weight = get_moves(zone).compute_visits(gates[0], gates[1])[zone.core]
    markov = np.log(np.maximum(weight / weight.max(), MIN_LIKELIHOOD))
    straight = sum(_compute_turn_density(zone, gate) for gate in (stretch.entered, stretch.left) if gate is not None)
    return dict(zip(ADVERSARIES, (markov, np.asarray(straight)), strict=True))


def find_gate_cell(zone: HiddenZone, point: FloatArray) -> int:
    """Return the nearest cell outside the zone with a move into the zone and a move out of it."""
    distance = np.hypot(*(zone.grid.points - point).T)
    return int(np.where(get_moves(zone).is_gate, distance, np.inf).argmin())


def _compute_turn_density(zone: HiddenZone, gate: Gate) -> FloatArray:
    """Return the log density of the turn for each cell of the core, ``(100,)``."""
    ahead = gate.outwards - gate.point
    from_cell = gate.point - zone.grid.points[zone.core]
    if not np.isfinite(ahead).all() or not ahead.any():
        return np.zeros(len(zone.core))
    turn = np.angle(np.exp(1j * (np.arctan2(from_cell[:, 1], from_cell[:, 0]) - np.arctan2(ahead[1], ahead[0]))))
    return np.asarray(-0.5 * (turn / TURN_STD) ** 2)


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
        The result of `compute_log_likelihoods` for each stretch.

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
