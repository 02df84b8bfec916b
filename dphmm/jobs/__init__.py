"""Whole jobs, one function each: what the command line does, for Python.

The names below are imported on first use, so that a job costs only the stages that it joins.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Batch": "batches",
    "batch": "batches",
    "Data": "people",
    "export_sessions": "sessions",
    "learn": "models",
    "Learned": "models",
    "live": "releases",
    "load_model": "models",
    "read_sessions": "sessions",
    "People": "people",
    "region": "models",
    "release": "releases",
    "Released": "releases",
    "Watch": "watch",
}
"""Public name → the module it lives in."""

__all__ = [
    "Batch",
    "Data",
    "Learned",
    "People",
    "Released",
    "Watch",
    "batch",
    "export_sessions",
    "learn",
    "live",
    "load_model",
    "read_sessions",
    "region",
    "release",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dphmm.jobs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dphmm.jobs.{_HOME[name]}"), name)
