"""Whole jobs, one function each: what the command line does, for Python.

The names below are imported on first use, so that a job costs only the stages that it joins.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "audit_mechanism": "audits",
    "audit_policy": "audits",
    "audit_secrets": "audits",
    "audit_session": "replays",
    "Batch": "batches",
    "batch": "batches",
    "Constraint": "subjects",
    "Data": "people",
    "export_sessions": "sessions",
    "learn": "models",
    "Learned": "models",
    "live": "releases",
    "load_model": "models",
    "MechanismAudit": "audits",
    "People": "people",
    "PolicyAudit": "audits",
    "read_sessions": "sessions",
    "region": "models",
    "release": "releases",
    "Released": "releases",
    "replay": "replays",
    "Replayed": "replays",
    "SecretsAudit": "audits",
    "SessionAudit": "replays",
    "Subject": "subjects",
    "Watch": "watch",
}
"""Public name → the module it lives in."""

__all__ = [
    "Batch",
    "Constraint",
    "Data",
    "Learned",
    "MechanismAudit",
    "People",
    "PolicyAudit",
    "Released",
    "Replayed",
    "SecretsAudit",
    "SessionAudit",
    "Subject",
    "Watch",
    "audit_mechanism",
    "audit_policy",
    "audit_secrets",
    "audit_session",
    "batch",
    "export_sessions",
    "learn",
    "live",
    "load_model",
    "read_sessions",
    "region",
    "release",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dphmm.jobs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dphmm.jobs.{_HOME[name]}"), name)
