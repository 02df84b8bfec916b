# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .attack.flows import TableAttackResult, attack_tables
from .attack.tracks import AttackResult, attack
from .audit.adversaries import Adversaries
from .audit.events import EventAudits, audit_event
from .audit.identity import IdentityAudit, audit_identity
from .audit.mechanism import MechanismAudit, audit_mechanism
from .audit.membership import MembershipAudit, audit_membership
from .audit.policy import PolicyAudit, SecretsAudit, audit_policy, audit_secrets
from .audit.session import SessionAudit, audit_session
from .audit.target import AuditTarget, Constraint
from .audit.uses import ReleasedUses, UsesComparison, UsesSettings, compare_uses, sample_users
from .audit.utility import UtilityAudit, audit_utility
from .batch.batch import Batch, batch
from .calibrate.calibrate import calibrate
from .calibrate.results import BudgetOutcome, CalibrationResult, CalibrationTargets, EventLimitResult
from .certificate import CertificateSummary, certify
from .counts import CountResult, Counts, DayAlignment, compare_counts, count_users, repair_counts
from .flows import FlowPlan, Flows, flows, plan_flows
from .hide.hide import HideResult, hide
from .input_data import Data, UserTracks
from .landmarks import (
    LandmarkFinder,
    LandmarkResult,
    Scheme,
    release_landmark_series,
    release_track_with_engine,
    release_track_with_planar_noise,
)
from .leakage import LeakageResult, budget, compute_release_leakage, compute_stream_leakage, realized_leakage
from .model.blank import RegionModelResult, build_blank_model
from .model.goodness_of_fit import Coverage, Fit, evaluate_fit
from .model.learn import LearnResult, learn
from .model.loading import load_model
from .model.mobility import Budgets, Mobility
from .model.private import PrivateModel, fit_private
from .model.region import region
from .model.synthesis import Comparison, SynthesisResult, compare_users, synthesize
from .progress import ProgressCallback
from .release.release import ReleaseResult, release, release_live
from .release.stored import ReplayResult, StoredReleases, export_sessions, read_released, read_sessions, replay
from .state_sequences import StateRelease, learn_states, release_states

__all__ = [
    "Adversaries",
    "AttackResult",
    "AuditTarget",
    "Batch",
    "BudgetOutcome",
    "Budgets",
    "CalibrationResult",
    "CalibrationTargets",
    "CertificateSummary",
    "Comparison",
    "Constraint",
    "CountResult",
    "Counts",
    "Coverage",
    "Data",
    "DayAlignment",
    "EventAudits",
    "EventLimitResult",
    "Fit",
    "FlowPlan",
    "Flows",
    "HideResult",
    "IdentityAudit",
    "LandmarkFinder",
    "LandmarkResult",
    "LeakageResult",
    "LearnResult",
    "MechanismAudit",
    "MembershipAudit",
    "Mobility",
    "PolicyAudit",
    "PrivateModel",
    "ProgressCallback",
    "RegionModelResult",
    "ReleaseResult",
    "ReleasedUses",
    "ReplayResult",
    "Scheme",
    "SecretsAudit",
    "SessionAudit",
    "StateRelease",
    "StoredReleases",
    "SynthesisResult",
    "TableAttackResult",
    "UserTracks",
    "UsesComparison",
    "UsesSettings",
    "UtilityAudit",
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
    "budget",
    "build_blank_model",
    "calibrate",
    "compare_counts",
    "compare_users",
    "compare_uses",
    "compute_release_leakage",
    "compute_stream_leakage",
    "count_users",
    "evaluate_fit",
    "export_sessions",
    "fit_private",
    "flows",
    "hide",
    "learn",
    "learn_states",
    "load_model",
    "plan_flows",
    "read_released",
    "read_sessions",
    "realized_leakage",
    "region",
    "release",
    "release_landmark_series",
    "release_live",
    "release_states",
    "release_track_with_engine",
    "release_track_with_planar_noise",
    "repair_counts",
    "replay",
    "sample_users",
    "synthesize",
]
