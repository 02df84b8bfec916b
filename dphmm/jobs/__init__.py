"""Whole jobs, one function each: what the command line does, for Python.

The names below are imported on first use, so that a job costs only the stages that it joins.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "audits": "MechanismAudit PolicyAudit SecretsAudit audit_mechanism audit_policy audit_secrets",
    "batches": "Batch batch",
    "counting": "Counted Counts Days compare_counts count_people repair_counts",
    "landmarked": "Landmarked Scheme landmark_engine landmark_planar landmark_series",
    "leaks": "Leaked budget leak leak_of_releases",
    "mobility": "Budgets Mobility",
    "models": "Learned learn load_model region",
    "moments": "Find",
    "people": "Data People",
    "releases": "Released live release",
    "replays": "Replayed SessionAudit audit_session replay",
    "sessions": "export_sessions read_sessions",
    "subjects": "Constraint Subject",
    "watch": "Watch",
}
"""Module → the public names that live in it."""

_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Batch",
    "Budgets",
    "Constraint",
    "Counted",
    "Counts",
    "Data",
    "Days",
    "Find",
    "Landmarked",
    "Leaked",
    "Learned",
    "MechanismAudit",
    "Mobility",
    "People",
    "PolicyAudit",
    "Released",
    "Replayed",
    "Scheme",
    "SecretsAudit",
    "SessionAudit",
    "Subject",
    "Watch",
    "audit_mechanism",
    "audit_policy",
    "audit_secrets",
    "audit_session",
    "batch",
    "budget",
    "compare_counts",
    "count_people",
    "export_sessions",
    "landmark_engine",
    "landmark_planar",
    "landmark_series",
    "leak",
    "leak_of_releases",
    "learn",
    "live",
    "load_model",
    "read_sessions",
    "region",
    "release",
    "repair_counts",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dphmm.jobs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dphmm.jobs.{_HOME[name]}"), name)
