# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .attacks import Attacked, attack
from .audits import MechanismAudit, PolicyAudit, SecretsAudit, audit_mechanism, audit_policy, audit_secrets
from .batched import Batch
from .batches import batch
from .calibrated import Achieved, Calibrated, EventLimited, Targets
from .calibrations import calibrate
from .counting import Counted, Counts, Days, compare_counts, count_people, repair_counts
from .event_audits import EventAudits, audit_event
from .fit import Coverage, Fit, fit_of
from .landmarked import Landmarked, Scheme, landmark_engine, landmark_planar, landmark_series
from .leaks import Leaked, budget, leak, leak_of_releases, realised_of_releases
from .mobility import Budgets, Mobility
from .models import Learned, learn, load_model, region
from .moments import Find
from .people import Data, People
from .private_models import PrivateModel, fit_private
from .released import StoredReleases, read_released
from .releases import Released, live, release
from .replays import Replayed, replay
from .session_audits import SessionAudit, audit_session
from .sessions import export_sessions, read_sessions
from .subjects import Constraint, Subject
from .synthesis import Comparison, Synthesized, compare_people, synthesize
from .watch import Watch

__all__ = [
    "Achieved",
    "Attacked",
    "Batch",
    "Budgets",
    "Calibrated",
    "Comparison",
    "Constraint",
    "Counted",
    "Counts",
    "Coverage",
    "Data",
    "Days",
    "EventAudits",
    "EventLimited",
    "Find",
    "Fit",
    "Landmarked",
    "Leaked",
    "Learned",
    "MechanismAudit",
    "Mobility",
    "People",
    "PolicyAudit",
    "PrivateModel",
    "Released",
    "Replayed",
    "Scheme",
    "SecretsAudit",
    "SessionAudit",
    "StoredReleases",
    "Subject",
    "Synthesized",
    "Targets",
    "Watch",
    "attack",
    "audit_event",
    "audit_mechanism",
    "audit_policy",
    "audit_secrets",
    "audit_session",
    "batch",
    "budget",
    "calibrate",
    "compare_counts",
    "compare_people",
    "count_people",
    "export_sessions",
    "fit_of",
    "fit_private",
    "landmark_engine",
    "landmark_planar",
    "landmark_series",
    "leak",
    "leak_of_releases",
    "learn",
    "live",
    "load_model",
    "read_released",
    "read_sessions",
    "realised_of_releases",
    "region",
    "release",
    "repair_counts",
    "replay",
    "synthesize",
]
