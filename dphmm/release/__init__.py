"""The loop of the hidden Markov model: constrain, repair, draw, update; and how that is said, kept and paid for."""

from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import Ledger, Limits
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore, StoredRelease
from dphmm.release.session_terms import StoredSession, Terms
from dphmm.release.settings import Schedule
from dphmm.release.step import PreparedStep, StepPlan
from dphmm.release.trajectory import (
    Accepted,
    RecordedPeople,
    ReleaseStream,
    TimedDiagnostics,
    TimedRelease,
    release_trajectory,
)

__all__ = [
    "Accepted",
    "Ledger",
    "Limits",
    "PreparedStep",
    "PrivateDiagnostics",
    "RecordedPeople",
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
