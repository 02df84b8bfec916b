"""From a belief to the constraint set and its repaired graph: the part of a step that no draw has a say in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.geometry.measurements import Measurements
from dphmm.markov.belief import Belief
from dphmm.mechanisms.catalogue import BODY_OF, TABLES
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import Protecting, Protection
from dphmm.release.settings import ReleaseSettings
from dphmm.release.step import StepPlan
from dphmm.release.tables import with_hops

Edges = tuple[tuple[int, int], ...]


class Planner:
    """What beliefs lead to under some settings; the last plan is kept, as it often serves the next step too.

    Parameters
    ----------
    settings, policy, measurements
        As of a `dphmm.Releaser`.
    """

    def __init__(self, settings: ReleaseSettings, policy: PolicyGraph, measurements: Measurements) -> None:
        self._settings, self._policy = settings, policy
        self._draws_tables = settings.mechanism in TABLES
        self._protect = Protecting(
            measurements,
            settings.repair,
            settings.objective,
            BODY_OF[settings.mechanism],
            settings.membership,
            settings.repair_limit,
            settings.calibration,
        )
        self._last: StepPlan | None = None

    def __call__(self, prior: Belief, also: Edges = ()) -> StepPlan:
        """The plan of a belief, with some edges added before the repair; see `dphmm.Releaser.plan`."""
        delta = self._settings.delta
        constraint = prior.support if delta is None else prior.location_set(delta)
        if self._last is None or not self._last.serves(prior, constraint, also):
            if self._draws_tables and self._last is not None and self._last.serves_repaired(constraint, also):
                self._last = replace(self._last, prior=prior)
                return self._last
            protection = self._protection(prior, constraint, also)
            if protection is not None and self._draws_tables:
                protection = with_hops(protection)
            # Which partners are best for components depends on how probable these are.
            chosen = protection is not None and bool(protection.added) and self._settings.calibration == "component"
            if protection is not None and also:
                protection = replace(protection, added=(*also, *protection.added))
            self._last = StepPlan(constraint, protection, also, prior if chosen or self._draws_tables else None)
        return self._last

    def _protection(self, prior: Belief, constraint: BoolArray, also: Edges) -> Protection | None:
        settings = self._settings
        if settings.allow_known and np.count_nonzero(constraint) == 1 and not self._policy.open[constraint].any():
            return None
        weights = _weights(prior, constraint) if settings.calibration == "component" else None
        return self._protect(self._policy.with_edges(also), constraint, weights)


def _weights(prior: Belief, constraint: BoolArray) -> FloatArray | None:
    """A belief's probabilities; None, for all alike, where doubles hold nothing of them on the constraint set."""
    found = prior.probabilities
    return found if found[constraint].any() else None
