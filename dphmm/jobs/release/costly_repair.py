"""Announcements of repairs that raise the error of releases.

They name the edge, the exposed state, the errors with and without the repair, and remedies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

import numpy as np

from dphmm.formatting import Result, exported, format_kilometres
from dphmm.policy.component_bodies import NoiseScope
from dphmm.policy.repair import REPAIR_MAX_WORK, Protector
from dphmm.policy.repair_effect import RepairEffect
from dphmm.release.engine import Releaser
from dphmm.space.states import Places, StateSpace


@dataclass(frozen=True)
class CostlyRepair(Result):
    """A repair that raises the expected error of releases by more than a tenth. Public.

    Errors are those of K-norm noise on the noise body, averaged over the possible states that were not exposed.

    Parameters
    ----------
    state, partner
        The exposed state, and the state to which the repair connects it. Of several added edges, this one raises the
        error most.
    distance
        The distance between the two, kilometres.
    num_edges
        Number of added edges.
    num_exposed
        Number of states that the policy left exposed.
    error, error_without
        The expected error of a release with and without the added edges, kilometres.
    epsilon
        The budget to which the errors apply.
    noise_scope
        The scope of the noise.
    component_error
        The error with noise by component, kilometres. None if that is the scope already.
    has_lengths
        Whether lengths are kilometres. Otherwise they are in the unit of the measurements.
    """

    state: str = field(metadata=exported())
    partner: str = field(metadata=exported())
    distance: float = field(metadata=exported())
    num_edges: int = field(metadata=exported())
    num_exposed: int = field(metadata=exported())
    error: float = field(metadata=exported())
    error_without: float = field(metadata=exported())
    epsilon: float = field(metadata=exported())
    noise_scope: NoiseScope = field(metadata=exported())
    component_error: float | None = field(default=None, metadata=exported())
    has_lengths: bool = True

    @property
    def ratio(self) -> float:
        """The error with the added edges, divided by the error without them."""
        return self.error / self.error_without if self.error_without else float("inf")

    def describe(self) -> str:
        """Describe the edge, the errors and the remedies.

        Returns
        -------
        str
            One line, without a full stop.
        """
        unit = format_kilometres if self.has_lengths else "{:.4g}".format
        others = self.num_edges - 1
        more = f" (and adds {others:,} other edge{'s' * (others > 1)})" if others else ""
        states = (
            "at every possible state" if self.noise_scope == "graph" else "on average over the states that have edges"
        )
        remedies = [
            "connect the exposed state to nearer ones in the policy",
            f"declare it unprotected{' (| open:LAYER)' * self.has_lengths}",
            "remove it from the model",
        ]
        if self.component_error is not None and self.component_error < self.error:
            remedies.append(f"use --noise-scope component (an average error of {unit(self.component_error)})")
        remedies.append("or exclude it with --delta at timesteps when it is improbable")
        return (
            f"the policy leaves {self.state} exposed, and the repair connects it with {self.partner} at a distance of "
            f"{unit(self.distance)}{more}: this raises the expected error of a release {states} from "
            f"{unit(self.error_without)} to {unit(self.error)} (ε = {self.epsilon:g}); {', '.join(remedies)}"
        )


def describe_costly_repair(
    effect: RepairEffect | None,
    names: Sequence[str],
    space: StateSpace | None,
    epsilon: float,
    noise_scope: NoiseScope,
) -> CostlyRepair | None:
    """Return the announcement of a repair. None if the error rises by at most a tenth.

    Parameters
    ----------
    effect
        The effect of the repair; None without added edges.
    names
        The names of all states.
    space
        Their locations; None if the measurements are not locations.
    epsilon
        The budget for the errors.
    noise_scope
        The scope of the noise.
    """
    if effect is None or not effect.is_large:
        return None
    state, partner = (_name_state(number, names, space) for number in effect.edge)
    component_error = None if noise_scope == "component" else _compute_component_error(effect) / epsilon
    return CostlyRepair(
        state,
        partner,
        effect.edge_length,
        len(effect.added),
        len(effect.exposed),
        effect.error / epsilon,
        effect.error_without / epsilon,
        epsilon,
        noise_scope,
        component_error,
        space is not None,
    )


def find_costly_repair(engine: Releaser, names: Sequence[str]) -> CostlyRepair | None:
    """Return the repair that raised the error most among the plans of an engine.

    Plans of its copies count. None if no repair raised the error by more than a tenth.
    """
    settings = engine.settings
    return _find(engine.planner.repairs.worst, tuple(names), engine.model.space, settings.epsilon, settings.noise_scope)


# The users of a batch share one worst repair; its alternatives are computed once.
_find = lru_cache(maxsize=4)(describe_costly_repair)


def _name_state(state: int, names: Sequence[str], space: StateSpace | None) -> str:
    if space is None or isinstance(space, Places):
        return f"state {names[state]!r}" if space is None else f"{names[state]!r}"
    latitude, longitude = space.latlon([state])[0].tolist()
    return f"state {names[state]} ({latitude:.4f}, {longitude:.4f})"


def _compute_component_error(effect: RepairEffect) -> float:
    """Return the error at epsilon one with noise by component and a uniform prior."""
    protector = Protector(effect.measurements, "exact", "error", effect.body, "halfspace", REPAIR_MAX_WORK, "component")
    by_component = protector(effect.graph, np.asarray(effect.graph.node_mask)).effect
    return effect.error if by_component is None or not isfinite(by_component.error) else by_component.error
