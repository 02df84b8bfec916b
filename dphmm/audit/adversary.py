"""Adversaries who know more, or less, or something else than the public belief (§10.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, IntArray, as_constraint
from dphmm.audit.facts import Facts, finite, named
from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import Body
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy.by_component import NoiseBodies, degrees_within, noise_body
from dphmm.policy.protection import Protection

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
    factor: float
    exposed: tuple[int, ...]
    exposed_with_stand_ins: tuple[int, ...]

    @property
    def known(self) -> bool:
        """Whether ``C^A`` holds one state only: this adversary knew it before the release."""
        return int(self.support.sum()) == 1

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON, the log ratio at a budget of one."""
        return {
            "possible": int(self.support.sum()),
            "relation": self.relation,
            "shared": self.shared,
            "already_known": self.known,
            "factor": finite(self.factor),
            "log_ratio": finite(self.factor),
            "exposed": named(self.exposed, names),
            "exposed_with_stand_ins": named(self.exposed_with_stand_ins, names),
        }


@checked
def audit_support(protection: Protection, f: npt.ArrayLike | Measurements, support: npt.ArrayLike) -> AdversaryAudit:
    """What a step's release means for an adversary with a support of their own.

    Parameters
    ----------
    protection
        The step's repaired graph and noise body, as `dphmm.policy.protection.protect` gives them.
    f
        ``(N, d)`` measurements.
    support
        ``(N,)``: the states that the adversary thinks possible just before the release.

    Raises
    ------
    ConstraintError
        When the support has another length, is not boolean, or is empty.
    """
    measurements = protection.graph.check_measurements(f)
    believed = as_constraint(support, measurements.size)
    constraint = protection.graph.nodes
    if protection.components is not None:
        return _by_component(protection, protection.components, measurements, believed)
    body = CoordinateBody(measurements, noise_body(measurements, protection.coordinate_hull, body_kind(protection)))
    shared = believed & constraint
    return AdversaryAudit(
        support=believed,
        relation=_relation(believed, constraint),
        shared=int(shared.sum()),
        factor=body.diameter(shared) if int(shared.sum()) > 1 else 0.0,
        exposed=tuple(np.flatnonzero(count_within(body, believed) == 1).tolist()),
        exposed_with_stand_ins=_exposed_as_released(body, believed, constraint, measurements),
    )


def _by_component(
    protection: Protection, components: IntArray, measurements: Measurements, believed: BoolArray
) -> AdversaryAudit:
    """The same where components have noise of their own: hidden is who shares one with another believed state.

    A state outside ``C`` has no noise of its own, so that it counts as released as its stand-in in both lists.
    """
    constraint, kind = protection.graph.nodes, body_kind(protection)
    shared = believed & constraint
    numbers = np.unique(components[shared])
    factor = np.inf if len(numbers) > 1 else protection.diameter
    released_as = np.arange(len(believed))
    outside = np.flatnonzero(believed & ~constraint)
    if len(outside):
        released_as[outside] = measurements.surrogates(outside, constraint)
    counts = np.bincount(released_as[believed], minlength=len(believed))
    within = np.where(counts > 0, components, -1)
    assert protection.part_of is not None, "components have bodies"
    of_component = np.zeros(int(components.max()) + 1, dtype=np.int64)
    of_component[components[constraint]] = protection.part_of[constraint]
    degrees = degrees_within(measurements, within, NoiseBodies(protection.parts, of_component), kind, "halfspace")
    alone = (degrees == 1) & (counts == 1) & ~protection.open
    exposed = tuple(np.flatnonzero(believed & alone[released_as]).tolist())
    return AdversaryAudit(
        support=believed,
        relation=_relation(believed, constraint),
        shared=int(shared.sum()),
        factor=float(factor) if int(shared.sum()) > 1 else 0.0,
        exposed=exposed,
        exposed_with_stand_ins=exposed,
    )


def body_kind(protection: Protection) -> Body:
    """Which kind of body the noise of a repaired step is drawn from."""
    if isinstance(protection.body, Disc):
        return "disc"
    return "hull" if protection.body is protection.hull else "cross-polytope"


def _relation(believed: BoolArray, constraint: BoolArray) -> Relation:
    if not (believed & constraint).any():
        return "disjoint"
    inside, around = not (believed & ~constraint).any(), not (constraint & ~believed).any()
    if inside:
        return "equal" if around else "narrower"
    return "wider" if around else "overlapping"


def _exposed_as_released(
    body: CoordinateBody, believed: BoolArray, constraint: BoolArray, measurements: Measurements
) -> tuple[int, ...]:
    """States released as nobody else in ``believed`` is, nor as anybody within the body about them."""
    released_as = np.arange(len(believed))
    outside = np.flatnonzero(believed & ~constraint)
    if len(outside):
        released_as[outside] = measurements.surrogates(outside, constraint)
    counts = np.bincount(released_as[believed], minlength=len(believed))
    alone = (count_within(body, counts > 0) == 1) & (counts == 1)
    return tuple(np.flatnonzero(believed & alone[released_as]).tolist())
