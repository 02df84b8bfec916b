"""Adversaries who know more, or less, or something else than the public belief (§10.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, as_distribution
from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import Body
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy.protection import Protection, noise_body

Relation = Literal["equal", "narrower", "wider", "overlapping", "disjoint"]


@dataclass(frozen=True)
class AdversaryAudit:
    """What a step's release means for an adversary whose possible states are ``C^A`` rather than ``C``.

    Parameters
    ----------
    support
        ``(N,)``: ``C^A``, the states that the adversary thinks possible.
    relation
        How ``C^A`` compares with ``C``: ``"narrower"`` is the paper's case I, ``"wider"`` its case II.
    shared
        The size of ``C^A ∩ C``.
    known
        Whether ``C^A`` holds one state only: this adversary knew it before the release.
    factor
        ``max ‖f_j - f_k‖`` over ``C^A ∩ C``: those states stay indistinguishable to within this times epsilon; 0 where
        fewer than two are left. For an adversary who holds the true state to be in that set, no state's posterior
        probability is more than ``exp(factor epsilon)`` times its prior (Theorem 10.10).
    exposed
        States of ``C^A`` with no other state of ``C^A`` within the noise body about them, each taken at its own
        measurement: what the paper's mechanism, which releases any state as it is, would expose.
    exposed_with_stand_ins
        The same for the mechanism as this package runs it: a state outside ``C`` is released as the nearest state of
        ``C``, from which no release can tell it apart.
    """

    support: BoolArray = field(repr=False)
    relation: Relation
    shared: int
    known: bool
    factor: float
    exposed: tuple[int, ...]
    exposed_with_stand_ins: tuple[int, ...]


def audit_adversary(protection: Protection, f: npt.ArrayLike | Measurements, prior: npt.ArrayLike) -> AdversaryAudit:
    """What a step's release means for an adversary with a prior of their own.

    Parameters
    ----------
    protection
        The step's repaired graph and noise body, as `dphmm.policy.protection.protect` gives them.
    f
        ``(N, d)`` measurements.
    prior
        ``(N,)``: the adversary's distribution of the state just before the release.

    Raises
    ------
    StochasticError
        When the prior has another length, a negative entry, or does not sum to one.
    """
    measurements = protection.graph.check_measurements(f)
    support = as_distribution(prior, measurements.size, "the adversary's prior") > 0
    return audit_support(protection, measurements, support)


def audit_support(protection: Protection, f: npt.ArrayLike | Measurements, support: npt.ArrayLike) -> AdversaryAudit:
    """`audit_adversary` for an adversary of whom only the possible states ``(N,)`` are given.

    Raises
    ------
    ConstraintError
        When the support has another length, is not boolean, or is empty.
    """
    measurements = protection.graph.check_measurements(f)
    believed = as_constraint(support, measurements.size)
    constraint = protection.graph.nodes
    body = noise_body(measurements, protection.coordinate_hull, body_kind(protection))
    looked = CoordinateBody(measurements, body)
    shared = believed & constraint
    return AdversaryAudit(
        support=believed,
        relation=_relation(believed, constraint),
        shared=int(shared.sum()),
        known=int(believed.sum()) == 1,
        factor=looked.diameter(shared) if int(shared.sum()) > 1 else 0.0,
        exposed=tuple(np.flatnonzero(count_within(looked, believed) == 1).tolist()),
        exposed_with_stand_ins=_exposed_as_released(looked, believed, constraint, measurements.points),
    )


def body_kind(protection: Protection) -> Body:
    """Which kind of body the noise of a repaired step is drawn from."""
    if isinstance(protection.body, Disc):
        return "disc"
    return "hull" if protection.body is protection.hull else "cross-polytope"


def _relation(believed: BoolArray, constraint: BoolArray) -> Relation:
    if np.array_equal(believed, constraint):
        return "equal"
    if not (believed & constraint).any():
        return "disjoint"
    if not (believed & ~constraint).any():
        return "narrower"
    return "wider" if not (constraint & ~believed).any() else "overlapping"


def _exposed_as_released(
    looked: CoordinateBody, believed: BoolArray, constraint: BoolArray, points: FloatArray
) -> tuple[int, ...]:
    """States released as nobody else in ``believed`` is, nor as anybody within the body about them."""
    released_as = np.arange(len(points))
    outside = np.flatnonzero(believed & ~constraint)
    if len(outside):
        released_as[outside] = _nearest(outside, constraint, points)
    counts = np.bincount(released_as[believed], minlength=len(points))
    alone = (count_within(looked, counts > 0) == 1) & (counts == 1)
    return tuple(np.flatnonzero(believed & alone[released_as]).tolist())


def _nearest(states: IntArray, constraint: BoolArray, points: FloatArray) -> IntArray:
    from scipy.spatial import cKDTree

    possible = np.flatnonzero(constraint)
    return np.asarray(possible[cKDTree(points[possible]).query(points[states])[1]])
