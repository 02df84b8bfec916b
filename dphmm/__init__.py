"""Private locations for people who move.

A trajectory is put on a state space (`dphmm.space`, read by `dphmm.readers`); a Markov model says where the person
can be (`dphmm.markov`); a policy graph says what must stay indistinguishable (`dphmm.policy`); the hull of what is
left of it shapes the noise (`dphmm.geometry`); a mechanism draws (`dphmm.mechanisms`); the belief is updated and a
record says what happened (`dphmm.release`).

Apart from that loop: `dphmm.leakage` (temporal privacy leakage), `dphmm.landmarks` (significant timestamps),
`dphmm.counts` (count streams), `dphmm.audit`, `dphmm.evaluation` and `dphmm.plots`. Whole jobs, each a function that
the command line only wraps, are in `dphmm.jobs`.

The names below are imported on first use, so that ``import dphmm`` costs nothing that is not needed.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "AlreadyKnownError": "dphmm.errors",
    "Belief": "dphmm.markov.belief",
    "degree_of_protection": "dphmm.policy.protection",
    "DphmmError": "dphmm.errors",
    "exposed_states": "dphmm.policy.protection",
    "Grid": "dphmm.space.grid",
    "KNormMechanism": "dphmm.mechanisms.knorm",
    "LaplaceMechanism": "dphmm.mechanisms.laplace",
    "LatticeKNormMechanism": "dphmm.mechanisms.lattice",
    "Ledger": "dphmm.release.ledger",
    "MarkovModel": "dphmm.markov.model",
    "Measurements": "dphmm.geometry.measurements",
    "Places": "dphmm.space.states",
    "PlanarIsotropicMechanism": "dphmm.mechanisms.isotropic",
    "PlanarLaplaceMechanism": "dphmm.mechanisms.planar_laplace",
    "PolicyGraph": "dphmm.policy.graph",
    "PrivateDiagnostics": "dphmm.release.record",
    "protect": "dphmm.policy.protection",
    "Protection": "dphmm.policy.protection",
    "read": "dphmm.readers",
    "release_trajectory": "dphmm.release.trajectory",
    "Releaser": "dphmm.release.engine",
    "ReleaseRecord": "dphmm.release.record",
    "Limits": "dphmm.release.ledger",
    "parse_policy": "dphmm.policy.expression",
    "ReleaseSettings": "dphmm.release.settings",
    "Session": "dphmm.release.session",
    "SensitivityHull": "dphmm.geometry.hull",
    "Trajectory": "dphmm.space.trajectory",
}
"""Public name → the module it lives in."""

__all__ = [
    "AlreadyKnownError",
    "Belief",
    "DphmmError",
    "Grid",
    "KNormMechanism",
    "LaplaceMechanism",
    "LatticeKNormMechanism",
    "Ledger",
    "Limits",
    "MarkovModel",
    "Measurements",
    "Places",
    "PlanarIsotropicMechanism",
    "PlanarLaplaceMechanism",
    "PolicyGraph",
    "PrivateDiagnostics",
    "Protection",
    "ReleaseRecord",
    "ReleaseSettings",
    "Releaser",
    "SensitivityHull",
    "Session",
    "Trajectory",
    "degree_of_protection",
    "exposed_states",
    "parse_policy",
    "protect",
    "read",
    "release_trajectory",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"dphmm.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"dphmm.{name}":
                raise
    raise AttributeError(f"module 'dphmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
