"""The loop of the hidden Markov model: constrain, repair, draw, update; and how that is said, kept and paid for."""

from dphmm.release.engine import Releaser
from dphmm.release.ledger import Ledger, Limits
from dphmm.release.people import Accepted, RecordedPeople, ReleaseStream
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.schedule import Schedule
from dphmm.release.session import Session
from dphmm.release.settings import ReleaseSettings
from dphmm.release.step import PreparedStep, StepPlan
from dphmm.release.store import SessionStore
from dphmm.release.stored import StoredRelease, StoredSession
from dphmm.release.terms import Terms
from dphmm.release.trajectory import TimedDiagnostics, TimedRelease, release_trajectory

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
