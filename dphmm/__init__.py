"""Private locations for people who move.

A trajectory is put on a state space (`dphmm.space`, read by `dphmm.readers`); a Markov model says where the person
can be (`dphmm.markov`); a policy graph says what must stay indistinguishable (`dphmm.policy`); the hull of what is
left of it shapes the noise (`dphmm.geometry`); a mechanism draws (`dphmm.mechanisms`); the belief is updated and a
record says what happened (`dphmm.release`).

Apart from that loop: `dphmm.leakage` (temporal privacy leakage), `dphmm.landmarks` (significant timestamps),
`dphmm.counts` (count streams), `dphmm.audit`, `dphmm.evaluation` and `dphmm.plots`.

The names below are imported on first use, so that ``import dphmm`` costs nothing that is not needed.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "DphmmError": "dphmm.errors",
}
"""Public name → the module it lives in."""

__all__ = ["DphmmError"]


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
