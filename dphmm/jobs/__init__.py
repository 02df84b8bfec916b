"""Whole jobs, one function each: what the command line does, for Python.

The names below are imported on first use, so that a job costs only the stages that it joins.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Data": "people",
    "learn": "models",
    "Learned": "models",
    "live": "releases",
    "load_model": "models",
    "People": "people",
    "region": "models",
    "release": "releases",
    "Released": "releases",
    "Watch": "watch",
}
"""Public name → the module it lives in."""

__all__ = ["Data", "Learned", "People", "Released", "Watch", "learn", "live", "load_model", "region", "release"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dphmm.jobs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dphmm.jobs.{_HOME[name]}"), name)
