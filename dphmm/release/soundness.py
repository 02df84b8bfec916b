"""The last look before a draw: does the noise keep what the record will say?

Everything here is worked out from the measurements, the policy and what the noise is made of, and with none of the code
that made the hull, the degrees or the repair: what goes wrong there is found here, before anything is drawn.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray, locked
from dphmm.compilation import often
from dphmm.errors import PromiseError
from dphmm.geometry import check_loops
from dphmm.geometry.gauge import Gauge
from dphmm.mechanisms.base import Mechanism, Table
from dphmm.mechanisms.optimal_table import TOTAL
from dphmm.policy.graph import PolicyGraph
from dphmm.release.noise import StepNoise
from dphmm.release.step import PreparedStep

_ROUNDING = 64 * float(np.finfo(np.float64).eps)
_REMEMBERED = 256
_EDGES = 1 << 12
_NONE: IntArray = locked(np.zeros((0, 2), dtype=np.int64))
_STEEP = 43
_TERMS = 200
_ROWS = 256
_FEW, _NEAR = 4096, 9
"""Up to the first number of states whose nearest other one is too far, the second number of near ones is looked at."""
_KEPT = 1 << 14
"""Up to this number of states the near ones are kept."""


class SoundnessCheck:
    """What is checked of every step of an engine before it is drawn.

    1. No possible state is missing: the constraint set holds the belief's support, or with ``delta`` a share of
       ``1 - delta`` of it.
    2. Both ends of every edge of the policy between possible states, and of every edge that the repair added, are
       released by the same mechanism, and the loss between them is at most the step's epsilon, to within
       `dphmm.arrays.RELATIVE_TOLERANCE` and the rounding of the measurements.
    3. Every possible state that is not open has another within that loss that the same mechanism releases: its degree
       of protection is at least 2. One possible state alone is let through where that is allowed.

    A step that was found sound is not looked at twice, nor is a body of noise under which the whole policy is sound, or
    all that it has edges among the states that it serves, or served when it was looked at.

    Parameters
    ----------
    policy
        The policy graph over ``N`` states.
    values
        ``(N, d)``: what noise is added to: floats, or whole steps of a lattice.
    """

    def __init__(self, policy: PolicyGraph, values: npt.NDArray[Any]) -> None:
        self._policy, self._values = policy, values
        self._points: FloatArray = (values - values[:1]).astype(np.float64)
        whole = values.dtype.kind in "iu"
        self._rounding = 0.0 if whole else _ROUNDING * float(np.abs(values).max())
        self._bodies: dict[bytes, bool | None] = {}
        self._held: dict[bytes, BoolArray] = {}
        self._sound: tuple[object, ...] = (None,)
        self._around: tuple[IntArray, FloatArray] | None = None

    def __call__(self, step: PreparedStep, delta: float | None, allow_known: bool) -> None:
        """Look at a step about to be drawn.

        Raises
        ------
        PromiseError
            When it would not keep what its record says.
        """
        plan = step.plan
        if step.reason:
            return  # nothing is drawn
        _check_nobody_missing(step, delta)
        sound, *seen = self._sound
        if sound is plan and seen == [step.noise, step.epsilon]:
            return
        known = int(plan.constraint.sum()) == 1 and not self._policy.open[plan.constraint].any()
        if not step.noise.parts or (known and not allow_known):
            raise PromiseError("nothing hides the possible states of this step; nothing was drawn")
        if not known:
            added = plan.protection.added
            self._check_noise(step, step.noise, np.array(added, dtype=np.int64).reshape(-1, 2) if added else _NONE)
        self._sound = (plan, step.noise, step.epsilon)

    def _check_noise(self, step: PreparedStep, noise: StepNoise, added: IntArray) -> None:
        hidden = constraint = step.plan.constraint
        if len(added) or self._policy.has_open:
            hidden = constraint & ~self._policy.open
            hidden[added.ravel()] = True
        part, several = noise.part_of, len(noise.parts) > 1
        apart = part[added[:, 0]] != part[added[:, 1]]
        if (part[constraint] < 0).any() or apart.any() or (several and self._policy.crosses(part, constraint)):
            raise PromiseError(
                "states that must stay indistinguishable would be released by different noise; nothing was drawn"
            )
        for mechanism, members in noise.each_part():
            if mechanism.table is not None:
                self._check_table(mechanism.table, step.epsilon, members, hidden, added[members[added[:, 0]]])
                continue
            gauge = mechanism.gauge(step.epsilon, self._rounding)
            self._check_edges(gauge, members, added[members[added[:, 0]]], whole=not several)
            exposed = members & hidden
            if (members & ~hidden).any() and exposed.any():
                raise PromiseError("open states would be released with the noise of others; nothing was drawn")
            self._check_degrees(gauge, members, exposed)

    def _check_table(
        self, table: Table, epsilon: float, members: BoolArray, hidden: BoolArray, added: IntArray
    ) -> None:
        """Look at every edge and every output of a table, in whole numbers, and for a neighbour of every state."""
        weights, limit = table.weights, _power_below(epsilon)
        row_of = {place.tobytes(): row for row, place in enumerate(table.points + 0.0)}
        rows = np.full(len(members), -1)
        states = np.flatnonzero(members)
        rows[states] = [row_of.get((place + 0.0).tobytes(), -1) for place in self._values[states]]
        whole = (rows[states] >= 0).all() and (weights >= 0).all()
        if not (whole and all(sum(row) == TOTAL for row in weights.tolist())):
            raise PromiseError("a table of this step is no law over the places of its states; nothing was drawn")
        joined = np.zeros(len(members), dtype=np.bool_)
        for edges in (added, *self._policy.restrict(members).edge_blocks()):
            joined[edges.ravel()] = True
            for block in np.array_split(edges, 1 + len(edges) // _EDGES):
                if not _keeps(weights[rows[block[:, 0]]], weights[rows[block[:, 1]]], limit):
                    raise PromiseError(
                        "states that must stay indistinguishable would differ by more than epsilon in this step's "
                        "table; nothing was drawn"
                    )
        alone = members & hidden & ~joined
        if alone.any():
            raise PromiseError(
                f"state {int(np.argmax(alone))} would be hidden among no other states in this step's table; nothing "
                "was drawn"
            )

    def _check_edges(self, gauge: Gauge, members: BoolArray, added: IntArray, whole: bool) -> None:
        """Look at the edges between states of one mechanism, ``whole`` where that is all possible ones."""
        loss = 0.0
        if len(added):
            loss = float(gauge(self._points[added[:, 0]] - self._points[added[:, 1]]).max())
        if not (whole and self._holds_everywhere(gauge)) and not self._held_among(gauge, members):
            loss = max(loss, self._policy.widest(self._points, gauge, members))
            if loss <= 1 and whole and members.all():
                self._bodies[gauge.key] = True
            elif loss <= 1:
                self._held[gauge.key] = members
        if not loss <= 1:
            raise PromiseError(
                f"states that must stay indistinguishable would differ by {loss:.10g} times epsilon in this step's "
                "noise, beyond what doubles can tell; nothing was drawn: round the measurements, or use 'lattice'"
            )

    def _held_among(self, gauge: Gauge, members: BoolArray) -> bool:
        """Whether all edges of the policy were found sound among states of which these are some."""
        if len(self._held) > _REMEMBERED:
            self._held.clear()
        known = self._held.get(gauge.key)
        return known is not None and not (members & ~known).any()

    def _holds_everywhere(self, gauge: Gauge) -> bool:
        """Whether all edges of the policy are sound, possible or not: looked up, or looked at when met again."""
        if gauge.key not in self._bodies:
            if len(self._bodies) >= _REMEMBERED:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[gauge.key] = None
            return False
        known = self._bodies[gauge.key]
        if known is None:
            known = self._policy.widest(self._points, gauge) <= 1
            self._bodies[gauge.key] = known
        return known

    def _check_degrees(self, gauge: Gauge, members: BoolArray, hidden: BoolArray) -> None:
        """Look for a neighbour of every state to be hidden among the states of the same mechanism."""
        alone = np.empty(len(members), dtype=np.int64)
        alone = alone[: _alone_among(*self._nearest, members, hidden, gauge.inner, alone)]
        if 0 < len(alone) <= _FEW:
            near, far = self._near(alone)
            others = members.take(near) & (near != alone)
            left = ~(others & (far <= gauge.inner)).any(axis=0)
            alone = alone[left]
            if len(alone):
                near, others = near[:, left], others[:, left]
                steps = (self._points[alone] - self._points[near]).reshape(-1, self._points.shape[1])
                alone = alone[~(others & (gauge(steps).reshape(near.shape) <= 1)).any(axis=0)]
        if len(alone):
            found = self.nearest(gauge, members, alone)[1]
            if not (found <= 1).all():
                state = int(alone[np.argmax(found)])
                raise PromiseError(
                    f"state {state} would be hidden among no other states in this step's noise; nothing was drawn: "
                    "round the measurements, or use 'lattice'"
                )

    def nearest_in(self, noise: StepNoise, loss: float, states: IntArray) -> IntArray:
        """The possible state that a step's noise tells each of some possible states from least, ``(k,)``."""
        found = np.empty(len(states), dtype=np.int64)
        for mechanism, members in noise.each_part():
            if (here := members[states]).any():
                if mechanism.table is not None:
                    found[here] = self._nearest_by_table(mechanism, members, states[here])
                else:
                    found[here] = self.nearest(mechanism.gauge(loss), members, states[here])[0]
        return found

    def _nearest_by_table(self, table: Mechanism, members: BoolArray, states: IntArray) -> IntArray:
        others = np.flatnonzero(members)
        losses = table.privacy_loss(self._values[states][:, None], self._values[others][None])
        return np.asarray(others[np.where(others == states[:, None], np.inf, losses).argmin(axis=1)])

    def nearest(self, gauge: Gauge, constraint: BoolArray, states: IntArray) -> tuple[IntArray, FloatArray]:
        """The possible state nearest by a gauge to each of some possible states, itself excluded; and how near."""
        from scipy.spatial import cKDTree

        possible = np.flatnonzero(constraint)
        places, order = gauge.embedded(self._points)
        distance, found = map(np.asarray, cKDTree(places[possible]).query(places[states], k=2, p=order))
        other = (possible[np.minimum(found, len(possible) - 1)] == states[:, None]).argmin(axis=1)
        rows = np.arange(len(states))
        return possible[np.minimum(found, len(possible) - 1)][rows, other], distance[rows, other]

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self._points)

    def _near(self, states: IntArray) -> tuple[IntArray, FloatArray]:
        """Some states that are near each of these, and how far they are, ``(_NEAR, k)`` at most; kept where few are."""
        size = len(self._points)
        if size > _KEPT:
            return self._look_around(states)
        if self._around is None:
            shape = min(_NEAR, size), size
            self._around = np.full(shape, -1, dtype=np.int64), np.empty(shape)
        near, far = self._around
        unknown = states[near[0].take(states) < 0]
        if len(unknown):
            near[:, unknown], far[:, unknown] = self._look_around(unknown)
        return near.take(states, axis=1), far.take(states, axis=1)

    def _look_around(self, states: IntArray) -> tuple[IntArray, FloatArray]:
        far, near = self._tree.query(self._points[states], k=min(_NEAR, len(self._points)))
        return np.asarray(near).reshape(len(states), -1).T, np.asarray(far).reshape(len(states), -1).T

    @cached_property
    def _nearest(self) -> tuple[IntArray, FloatArray]:
        """The state nearest to each other one, ``(N,)``, and how far it is."""
        size = len(self._points)
        if size == 1:
            return np.zeros(1, dtype=np.int64), np.full(1, np.inf)
        if size <= _FEW:  # in less time than it takes to load the tree
            found, distance = np.empty(size, dtype=np.int64), np.empty(size)
            for start in range(0, size, _ROWS):
                rows = np.arange(start, min(start + _ROWS, size))
                apart = sum((column[rows, None] - column) ** 2 for column in self._points.T)
                apart[rows - start, rows] = np.inf
                found[rows] = apart.argmin(axis=1)
                distance[rows] = np.sqrt(apart[rows - start, found[rows]])
            return found, distance
        distance, found = map(np.asarray, self._tree.query(self._points, k=2))
        own = found[:, 0] == np.arange(size)
        return np.where(own, found[:, 1], found[:, 0]), np.where(own, distance[:, 1], distance[:, 0])


@often(check_loops.alone_among)
def _alone_among(
    partner: IntArray, distance: FloatArray, members: BoolArray, hidden: BoolArray, inner: float, out: IntArray
) -> int:
    found = np.flatnonzero(hidden & ~(members.take(partner) & (distance <= inner)))
    out[: len(found)] = found
    return len(found)


def _power_below(epsilon: float) -> Fraction:
    """A fraction at most ``exp(epsilon)``, by the first terms of its series, of which none is negative."""
    x = Fraction(epsilon)
    if x > _STEEP:  # beyond what whole numbers of 62 digits can differ by
        return Fraction(2) ** 62
    term = total = Fraction(1)
    for k in range(1, _TERMS):
        term = term * x / k
        total += term
        if term.denominator > 1 << 400:  # cut, downwards
            term = Fraction((term.numerator << 400) // term.denominator, 1 << 400)
    return total


def _keeps(first: IntArray, second: IntArray, limit: Fraction) -> bool:
    """Whether no entry of either passes a limit times that of the other; what doubles leave open is decided exactly."""
    bound = float(limit) * (1 - 1e-12)
    for one, other in ((first, second), (second, first)):
        near = one > bound * other
        pairs = zip(one[near].tolist(), other[near].tolist(), strict=True)
        if any(a * limit.denominator > limit.numerator * b for a, b in pairs):
            return False
    return True


def _check_nobody_missing(step: PreparedStep, delta: float | None) -> None:
    prior, constraint = step.prior, step.plan.constraint
    if constraint is prior.support:
        return
    missing = prior.support & ~constraint
    if not missing.any():
        return
    if delta is None or float(np.exp(prior.log_mass[constraint]).sum()) < 1 - delta - RELATIVE_TOLERANCE:
        raise PromiseError(
            f"state {int(np.argmax(missing))} is possible and not among those that this step hides; nothing was drawn"
        )
