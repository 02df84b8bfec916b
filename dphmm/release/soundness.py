"""An independent check, before sampling, that a plan satisfies the bounds in its record.

The check verifies three conditions from the measurements, the policy and the parameters of the noise alone. It shares
no code with the construction of the hull, the degrees of protection or the repair. An error in those is therefore
detected here, before anything is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, make_read_only
from dphmm.caching import BoundedCache
from dphmm.compilation import compile_if_hot
from dphmm.errors import GuaranteeError
from dphmm.geometry import soundness_loops
from dphmm.geometry.gauge import Gauge
from dphmm.mechanisms.base import Mechanism, Table
from dphmm.mechanisms.conformance import NUM_LATER_DRAWS, NUM_SAMPLES, check_mechanism, check_origin
from dphmm.mechanisms.noise_tables import ROW_WEIGHT
from dphmm.mechanisms.registry import MECHANISMS, translate_mechanism_errors
from dphmm.model.belief import Belief
from dphmm.policy.graph import PolicyGraph
from dphmm.release.soundness_neighbours import StateNeighbours
from dphmm.release.step_plan import StepPlan
from dphmm.tolerances import RELATIVE_TOLERANCE

# A difference of two doubles near the largest coordinate has an error of one machine epsilon of that coordinate. The
# factor 64 allows for coordinates that were projected, subtracted and scaled.
_RELATIVE_ROUNDING = 64 * float(np.finfo(np.float64).eps)
# Constraint sets that move produce the same bodies again.
_CACHE_SIZE = 256
_MAX_EDGES_PER_BLOCK = 1 << 12
# Above this number of exposed candidates, one tree over the gauge is faster than the nine nearest states of each.
_MAX_CANDIDATES = 4096
_NO_EDGES: IntArray = make_read_only(np.zeros((0, 2), dtype=np.int64))


@dataclass(frozen=True)
class _VerifiedEdges:
    """The states between which all edges of the policy were verified for one noise body.

    Parameters
    ----------
    states
        ``(N,)``; None for all states.
    fails_elsewhere
        Whether edges between other states, which are not possible yet, are known to fail.
    """

    states: BoolArray | None
    fails_elsewhere: bool = False

    def covers(self, states: BoolArray) -> bool:
        return self.states is None or not (states & ~self.states).any()


@dataclass(frozen=True)
class _Evidence:
    """Everything on which conditions (ii) and (iii) depend, except policy and measurements."""

    parts: tuple[object, ...]
    part_of: IntArray
    constraint: BoolArray
    added: tuple[tuple[int, int], ...]
    epsilon: float

    def equals(self, other: _Evidence) -> bool:
        is_equal = (self.epsilon, self.parts, self.added) == (other.epsilon, other.parts, other.added)
        return is_equal and _are_equal(self.constraint, other.constraint) and _are_equal(self.part_of, other.part_of)


class SoundnessCheck:
    """The check of every plan of an engine before it is sampled.

    A noise body that occurs twice is verified for the whole policy, and a plan equal to the last one is not verified
    again.

    Parameters
    ----------
    policy
        Policy graph over ``N`` states.
    values
        ``(N, d)``: the values to which noise is added, as floats or as integer coordinates of a lattice.
    delta
        Probability mass that a constraint set may omit; None if it may omit none.
    allow_singleton
        Whether a single possible state may be released exactly.
    mechanism
        The name under which the noise is published; empty to accept any noise.
    """

    def __init__(
        self,
        policy: PolicyGraph,
        values: npt.NDArray[Any],
        delta: float | None = None,
        allow_singleton: bool = False,
        mechanism: str = "",
    ) -> None:
        self._mechanism = mechanism
        # Registered mechanisms of which all samples were checked for some noise body.
        self._sampled: set[type[Mechanism]] = set()
        self._conforming: WeakSet[Mechanism] = WeakSet()
        self._policy = policy
        self._values = values
        self._delta = delta
        self._allow_singleton = allow_singleton
        # Relative to the first state, so that coordinates far from the origin do not lose digits in every difference.
        self._points: FloatArray = (values - values[:1]).astype(np.float64)
        is_integer = values.dtype.kind in "iu"
        self._rounding = 0.0 if is_integer else _RELATIVE_ROUNDING * float(np.abs(values).max())
        self._near = StateNeighbours(self._points)
        self._verified_edges: BoundedCache[bytes, _VerifiedEdges] = BoundedCache(_CACHE_SIZE)
        self._last: _Evidence | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Weak references cannot be pickled. A copy checks registered mechanisms again.
        return {name: value for name, value in vars(self).items() if name != "_conforming"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _conforming=WeakSet())

    def clear(self) -> None:
        """Forget the last plan. An equal one is then verified again."""
        self._last = None

    def __call__(self, plan: StepPlan) -> None:
        """Verify a plan before it is sampled.

        Raises
        ------
        GuaranteeError
            If the plan would violate a bound that its record states.
        """
        if plan.withheld:
            return
        self.check_constraint_set(plan.prior, plan.constraint)
        noise = plan.noise
        if self._mechanism:
            self._check_origin(plan)
        evidence = _Evidence(noise.parts, noise.part_of, plan.constraint, plan.protection.added, plan.epsilon)
        if self._last is not None and self._last.equals(evidence):
            return
        is_single = int(plan.constraint.sum()) == 1 and not self._policy.open[plan.constraint].any()
        if not noise.parts or (is_single and not self._allow_singleton):
            raise GuaranteeError(
                "no noise is added although the states of this step must be protected; the release was aborted"
            )
        if not is_single:
            self._check_noise(plan)
        self._last = evidence

    def _check_origin(self, plan: StepPlan) -> None:
        """Check the name of the noise, and the statements of a registered mechanism."""
        for mechanism, members in plan.noise.iterate_parts():
            if check_origin(mechanism, self._mechanism) and mechanism not in self._conforming:
                # Thousands of single draws take longer than the rest of the check. Later bodies need fewer.
                draws = NUM_LATER_DRAWS if type(mechanism) in self._sampled else NUM_SAMPLES
                with translate_mechanism_errors(self._mechanism):
                    check_mechanism(mechanism, self._values[members], draws=draws)
                if int(members.sum()) > 1:  # a single state has no pair to compare
                    self._sampled.add(type(mechanism))
                self._conforming.add(mechanism)

    def _check_noise(self, plan: StepPlan) -> None:
        constraint = plan.constraint
        added = np.array(plan.protection.added, dtype=np.int64).reshape(-1, 2) if plan.protection.added else _NO_EDGES
        protected = constraint
        if len(added) or self._policy.has_open:
            protected = constraint & ~self._policy.open
            # An open state that the repair connects has the noise of its partner, and an edge to be verified.
            protected[added.ravel()] = True
        part_of = plan.noise.part_of
        is_only_part = len(plan.noise.parts) == 1
        # States of different parts are released with different noise, and their likelihood ratio is not bounded.
        is_split = (part_of[added[:, 0]] != part_of[added[:, 1]]).any()
        is_split = is_split or (not is_only_part and self._policy.crosses(part_of, constraint))
        if is_split or (constraint & (part_of < 0)).any():
            raise GuaranteeError(
                "an edge of the repaired graph joins two states with different noise mechanisms; the release was "
                "aborted"
            )
        for mechanism, members in plan.noise.iterate_parts():
            part_edges = added[members[added[:, 0]]]
            if mechanism.table is not None:
                self._check_table(mechanism.table, plan.epsilon, members, protected, part_edges)
                continue
            # The differences of values between which the mechanism's privacy loss is at most epsilon, as a convex body.
            with translate_mechanism_errors(self._mechanism or MECHANISMS[0]):
                gauge = mechanism.gauge(plan.epsilon, self._rounding)
            self.check_edges(gauge, members, part_edges, is_only_part)
            if (members & ~protected).any() and (members & protected).any():
                raise GuaranteeError(
                    "unprotected states would be released with the noise of protected states; the release was aborted"
                )
            self.check_degrees(gauge, members, members & protected)

    # (i)   The constraint set C contains every possible state: p⁻(s) > 0 implies s ∈ C (Definition 4.1). With δ, its
    #       prior mass is at least 1 − δ (Theorem 4.1).

    def check_constraint_set(self, prior: Belief, constraint: BoolArray) -> None:
        """Verify condition (i) for a belief and its constraint set.

        Parameters
        ----------
        prior
            The belief. Its support is stored as booleans, so that no underflow removes a state from it.
        constraint
            ``(N,)``: the constraint set.
        """
        missing = prior.support & ~constraint
        if not missing.any():
            return
        # Masses are rounded, so their sum may be too small by up to the relative tolerance.
        mass = float(np.exp(prior.log_mass[constraint]).sum())
        if self._delta is None or mass < 1 - self._delta - RELATIVE_TOLERANCE:
            raise GuaranteeError(
                f"state {int(np.argmax(missing))} is possible but not in the constraint set of this step; the release "
                "was aborted"
            )

    # (ii)  |log p(z | j) − log p(z | k)| ≤ ε for all outputs z and all edges jk: those of the policy between possible
    #       states and those of the repair (Definition 4.4). The differences of values for which a mechanism bounds the
    #       loss by ε form a convex body K, its gauge. Condition (ii) is therefore ‖f_j − f_k‖_K ≤ 1 for every edge,
    #       up to the relative tolerance and rounding.

    def check_edges(self, gauge: Gauge, members: BoolArray, added: IntArray, is_only_part: bool) -> None:
        """Verify condition (ii) for the edges between the states of one mechanism.

        Parameters
        ----------
        gauge
            Body of the differences for which the mechanism bounds the privacy loss by epsilon.
        members
            ``(N,)``: the states of the mechanism.
        added
            ``(k, 2)``: the edges of the repair between them.
        is_only_part
            Whether all possible states have this mechanism.
        """
        norm = 0.0
        if len(added):
            norm = float(gauge(self._points[added[:, 0]] - self._points[added[:, 1]]).max())
        verified = self._verified_edges.get(gauge.key)
        if verified is None or not verified.covers(members):
            norm = max(norm, self._compute_max_edge_norm(gauge, members, verified, is_only_part))
        # Not `norm > 1`: NaN must fail.
        if not norm <= 1:
            raise GuaranteeError(
                f"the privacy loss on an edge must be at most epsilon, got {norm:.10g} times epsilon, which is more "
                "than rounding explains; the release was aborted. Round the measurements or use mechanism='lattice'"
            )

    def _compute_max_edge_norm(
        self, gauge: Gauge, members: BoolArray, verified: _VerifiedEdges | None, is_only_part: bool
    ) -> float:
        fails_elsewhere = verified is not None and verified.fails_elsewhere
        # A moving constraint set usually has the noise body of the whole policy. Verify it once for all states. The
        # body of one of several parts covers the edges of its own states only, and is not tried on all of them.
        if is_only_part and verified is not None and not fails_elsewhere:
            if self._policy.compute_max_gauge(self._points, gauge) <= 1:
                self._verified_edges.put(gauge.key, _VerifiedEdges(None))
                return 0.0
            fails_elsewhere = True
        norm = self._policy.compute_max_gauge(self._points, gauge, members)
        if norm <= 1:
            states = None if members.all() else members
            self._verified_edges.put(gauge.key, _VerifiedEdges(states, fails_elsewhere))
        return norm

    # (iii) Every possible state s that is protected has degree of protection at least 2 (Definition 5.2): there is a
    #       j ≠ s in C, released by the same mechanism, with ‖f_j − f_s‖_K ≤ 1.

    def check_degrees(self, gauge: Gauge, members: BoolArray, protected: BoolArray) -> None:
        """Verify condition (iii) for the states of one mechanism that must not be exposed.

        Parameters
        ----------
        gauge
            Body of the differences for which the mechanism bounds the privacy loss by epsilon.
        members
            ``(N,)``: the states of the mechanism.
        protected
            ``(N,)``: the members that must not be exposed.
        """
        # Three attempts, each for the states that the previous one leaves: the nearest state, if it lies within the
        # largest ball in the body (which settles a grid in one pass); the nine nearest states; and the nearest state by
        # the gauge itself.
        buffer = np.empty(len(members), dtype=np.int64)
        exposed = buffer[: _find_without_partner(*self._near.nearest, members, protected, gauge.inner, buffer)]
        if 0 < len(exposed) <= _MAX_CANDIDATES:
            exposed = self._find_without_near_partner(gauge, members, exposed)
        if len(exposed):
            norms = self._near.compute_nearest_norms(gauge, members, exposed)
            if not (norms <= 1).all():  # NaN must fail
                raise GuaranteeError(
                    f"state {int(exposed[np.argmax(norms)])} has no indistinguishable partner under this step's noise; "
                    "the release was aborted. Round the measurements or use mechanism='lattice'"
                )

    def _find_without_near_partner(self, gauge: Gauge, members: BoolArray, states: IntArray) -> IntArray:
        near, distances = self._near.find_neighbours(states)
        is_other = members.take(near) & (near != states)
        is_left = ~(is_other & (distances <= gauge.inner)).any(axis=0)
        states = states[is_left]
        if not len(states):
            return states
        near = near[:, is_left]
        is_other = is_other[:, is_left]
        differences = (self._points[states] - self._points[near]).reshape(-1, self._points.shape[1])
        is_exposed = ~(is_other & (gauge(differences).reshape(near.shape) <= 1)).any(axis=0)
        return np.asarray(states[is_exposed])

    # Conditions (ii) and (iii) for a table of integer weights w_s(z), which have the same sum for every state s:
    #       w_j(z) ≤ e^ε w_k(z) for all outputs z and all edges jk, and every protected state has an edge.

    def _check_table(
        self, table: Table, epsilon: float, members: BoolArray, protected: BoolArray, added: IntArray
    ) -> None:
        weights = table.weights
        limit = _compute_exp_lower_bound(epsilon)
        # Adding zero turns -0.0 into 0.0, which has other bytes.
        row_of = {place.tobytes(): row for row, place in enumerate(table.points + 0.0)}
        rows = np.full(len(members), -1)
        states = np.flatnonzero(members)
        rows[states] = [row_of.get((place + 0.0).tobytes(), -1) for place in self._values[states]]
        is_distribution = (rows[states] >= 0).all() and (weights >= 0).all()
        if not (is_distribution and all(sum(row) == ROW_WEIGHT for row in weights.tolist())):
            raise GuaranteeError(
                "a table of this step is not a probability distribution over the locations of its states; the release "
                "was aborted"
            )
        has_edge = np.zeros(len(members), dtype=np.bool_)
        for edges in (added, *self._policy.restrict(members).edge_blocks()):
            has_edge[edges.ravel()] = True
            for block in np.array_split(edges, 1 + len(edges) // _MAX_EDGES_PER_BLOCK):
                if not _is_within(weights[rows[block[:, 0]]], weights[rows[block[:, 1]]], limit):
                    raise GuaranteeError(
                        "the privacy loss on an edge must be at most epsilon, got more in a table of this step; the "
                        "release was aborted"
                    )
        exposed = members & protected & ~has_edge
        if exposed.any():
            raise GuaranteeError(
                f"state {int(np.argmax(exposed))} has no indistinguishable partner in this step's table; the release "
                "was aborted"
            )


@compile_if_hot(soundness_loops.find_without_partner)
def _find_without_partner(
    partner: IntArray, distance: FloatArray, members: BoolArray, protected: BoolArray, inner: float, out: IntArray
) -> int:
    states = np.flatnonzero(protected & ~(members.take(partner) & (distance <= inner)))
    out[: len(states)] = states
    return len(states)


def _are_equal(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    # Plans of one repair share their read-only arrays. Identity avoids comparing a million numbers with themselves.
    return first is second or np.array_equal(first, second)


# Weights of tables have at most 62 bits, so no two of them differ by more than a factor of 2^62 < e^43.
_MAX_EXPONENT = 43
_MAX_TERMS = 200
_PRECISION = 1 << 400


# Consecutive steps mostly have one budget, and the fractions take longer than the comparison of a small table.
@lru_cache(maxsize=64)
def _compute_exp_lower_bound(epsilon: float) -> Fraction:
    """Return a fraction that is at most ``exp(epsilon)``.

    It is the sum of the first terms of the exponential series, none of which is negative.
    """
    x = Fraction(epsilon)
    if x > _MAX_EXPONENT:
        return Fraction(2) ** 62
    term = total = Fraction(1)
    for k in range(1, _MAX_TERMS):
        term = term * x / k
        total += term
        # Denominators grow with every term. Rounding a term down keeps the sum below the exponential.
        if term.denominator > _PRECISION:
            term = Fraction(term.numerator * _PRECISION // term.denominator, _PRECISION)
    return total


def _is_within(first: IntArray, second: IntArray, limit: Fraction) -> bool:
    """Return whether no entry of either array exceeds a limit times that of the other."""
    # Doubles exclude all entries except those near the limit, which are compared as integers. The relative error of
    # converting the limit and of multiplying by it is below 1e-15 each.
    bound = float(limit) * (1 - 1e-12)
    for larger, smaller in ((first, second), (second, first)):
        is_near = larger > bound * smaller
        pairs = zip(larger[is_near].tolist(), smaller[is_near].tolist(), strict=True)
        if any(a * limit.denominator > limit.numerator * b for a, b in pairs):
            return False
    return True
