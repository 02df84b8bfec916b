"""What zones cost that a person draws, in metres: who is exposed, and what is added so that nobody is.

Everything here follows from the model and the zones, which are public; neither the person's place nor what was released
of it goes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.policy.protection import exposed_states
from dphmm.policy.zones import zones as members
from dphmm.release.engine import Releaser

_LISTED = 500
"""At most so many places are listed."""


def price(engine: Releaser, layer: Path | None) -> dict[str, Any]:
    """What an engine's policy does: who would be exposed, what is added so that nobody is, how far off releases are.

    Figures are for whoever knows the model alone, before the first release; root mean squares, in metres.

    Parameters
    ----------
    engine
        An engine of the settings that has released nothing.
    layer
        The file of zones, whose errors are told by name; None where there is none.

    Raises
    ------
    DphmmError
        When the policy cannot be used.
    """
    places, calibration = engine.model.space.latlon(), engine.settings.calibration
    prior = engine.prior()
    plan = engine.plan(prior)
    exposed = exposed_states(engine.policy, engine.measurements, plan.constraint, calibration=calibration)
    noise = engine.mechanism(plan, engine.settings.epsilon)
    errors = 1000 * np.array([engine.query.error_at(noise, state) for state in range(engine.model.size)])
    zones = {} if layer is None else members(layer, engine.model.space)
    inside = np.zeros(len(places), dtype=np.bool_)
    for states in zones.values():
        inside[states] = True
    exact = np.flatnonzero(plan.protection.open) if plan.protection is not None else np.zeros(0, dtype=np.int64)
    added = () if plan.protection is None else plan.protection.added
    return {
        "error_m": round(1000 * engine.query.expected_error(noise, prior), 1),
        "error_m_elsewhere": None if inside.all() else _root_mean_square(errors[~inside]),
        "zones": [
            {"name": name, "places": len(states), "error_m": _root_mean_square(errors[states])}
            for name, states in zones.items()
        ],
        "exposed": _rounded(places[exposed[:_LISTED]]),
        "exposed_count": len(exposed),
        "added": [_rounded(places[list(pair)]) for pair in added[:_LISTED]],
        "added_count": len(added),
        "exact_count": len(exact),
        "places": len(places),
        "gap": 0.0 if plan.protection is None else round(plan.protection.gap, 3),
        "calibration": calibration,
    }


def _root_mean_square(errors: np.ndarray) -> float | None:
    return round(sqrt(float((errors**2).mean())), 1) if len(errors) else None


def _rounded(places: Sequence[Any] | np.ndarray) -> list[list[float]]:
    found: list[list[float]] = np.round(np.asarray(places, dtype=np.float64).reshape(-1, 2), 6).tolist()
    return found
