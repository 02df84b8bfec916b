# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .adversaries import Adversaries
from .attacks import Attacked, attack
from .audits import (
    Constraint,
    EventAudits,
    MechanismAudit,
    PolicyAudit,
    SecretsAudit,
    SessionAudit,
    Subject,
    audit_event,
    audit_mechanism,
    audit_policy,
    audit_secrets,
    audit_session,
)
from .batches import Batch, batch
from .calibrations import Achieved, Calibrated, EventLimited, Targets, calibrate
from .certificates import Certified, certify
from .counting import Counted, Counts, Days, compare_counts, count_people, repair_counts
from .flow_attacks import AttackedTable, attack_tables
from .goodness_of_fit import Coverage, Fit, fit_of
from .hiding import Hidden, hide
from .identity import IdentityAudit, MembershipAudit, audit_identity, audit_membership
from .input_data import Data, People
from .landmarks import Find, Landmarked, Scheme, landmark_engine, landmark_planar, landmark_series
from .leaks import Leaked, budget, leak, leak_of_releases, realised_of_releases
from .mobility import Budgets, Mobility
from .models import Blank, Learned, blank_model, learn, load_model, region
from .people_flows import Flows, Planned, flows, plan_flows
from .private_models import PrivateModel, fit_private
from .progress import Watch
from .releases import Released, live, release
from .stored_releases import Replayed, StoredReleases, export_sessions, read_released, read_sessions, replay
from .synthesis import Comparison, Synthesized, compare_people, synthesize
from .utility import UtilityAudit, audit_utility

__all__ = [
    "Achieved",
    "Adversaries",
    "Attacked",
    "AttackedTable",
    "Batch",
    "Blank",
    "Budgets",
    "Calibrated",
    "Certified",
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
    "Flows",
    "Hidden",
    "IdentityAudit",
    "Landmarked",
    "Leaked",
    "Learned",
    "MechanismAudit",
    "MembershipAudit",
    "Mobility",
    "People",
    "Planned",
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
    "UtilityAudit",
    "Watch",
    "attack",
    "attack_tables",
    "audit_event",
    "audit_identity",
    "audit_mechanism",
    "audit_membership",
    "audit_policy",
    "audit_secrets",
    "audit_session",
    "audit_utility",
    "batch",
    "blank_model",
    "budget",
    "calibrate",
    "compare_counts",
    "compare_people",
    "count_people",
    "export_sessions",
    "fit_of",
    "fit_private",
    "flows",
    "hide",
    "landmark_engine",
    "landmark_planar",
    "landmark_series",
    "leak",
    "leak_of_releases",
    "learn",
    "live",
    "load_model",
    "plan_flows",
    "read_released",
    "read_sessions",
    "realised_of_releases",
    "region",
    "release",
    "repair_counts",
    "replay",
    "synthesize",
]
