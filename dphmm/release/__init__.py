"""The release engine of the hidden Markov model, with its records, schedules and sessions.

A step predicts the belief, restricts and repairs the policy graph, samples a release and updates the belief.
"""

from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import Ledger
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.session import Session
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import SessionStore, StoredRelease
from dphmm.release.session_terms import StoredSession, Terms
from dphmm.release.settings import Schedule
from dphmm.release.state_between_steps import FilterState
from dphmm.release.step_plan import StepPlan
from dphmm.release.trajectory_release import (
    FixFilter,
    RecordedReleaseStream,
    ReleaseStream,
    TimedDiagnostics,
    TimedRelease,
    release_trajectory,
)

__all__ = [
    "FilterState",
    "FixFilter",
    "Ledger",
    "Limits",
    "PrivateDiagnostics",
    "RecordedReleaseStream",
    "ReleaseRecord",
    "ReleaseSettings",
    "ReleaseStream",
    "Releaser",
    "Schedule",
    "Session",
    "SessionStore",
    "StepPlan",
    "StoredRelease",
    "StoredSession",
    "Terms",
    "TimedDiagnostics",
    "TimedRelease",
    "release_trajectory",
]
