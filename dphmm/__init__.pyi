# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from . import (
    attack,
    audit,
    calibrate,
    certificate,
    cli,
    counts,
    evaluation,
    events,
    flows,
    geometry,
    hide,
    jobs,
    landmarks,
    leakage,
    mechanisms,
    model,
    plots,
    policy,
    readers,
    release,
    serve,
    space,
    tables,
    writers,
)
from .errors import DphmmError, SingletonConstraintError
from .geometry.measurements import Measurements
from .geometry.sensitivity_hull import SensitivityHull
from .mechanisms.lattice import LatticeKNormMechanism
from .mechanisms.norm_noise import KNormMechanism, LaplaceMechanism, PlanarIsotropicMechanism, PlanarLaplaceMechanism
from .model.belief import Belief
from .model.model import MarkovModel
from .policy.expression import parse_policy
from .policy.graph import PolicyGraph
from .policy.protection_degrees import Protection, degree_of_protection, exposed_states
from .policy.repair import protect
from .readers import read
from .release.engine import Releaser, ReleaseSettings
from .release.ledger import Ledger
from .release.record import PrivateDiagnostics, ReleaseRecord
from .release.session import Session
from .release.session_limits import Limits
from .release.settings import Schedule
from .release.trajectory_release import release_trajectory
from .serve.explore_page import explore
from .space.grid import Grid
from .space.states import Places
from .space.trajectory import Trajectory

__all__ = [
    "Belief",
    "DphmmError",
    "Grid",
    "KNormMechanism",
    "LaplaceMechanism",
    "LatticeKNormMechanism",
    "Ledger",
    "Limits",
    "MarkovModel",
    "Measurements",
    "Places",
    "PlanarIsotropicMechanism",
    "PlanarLaplaceMechanism",
    "PolicyGraph",
    "PrivateDiagnostics",
    "Protection",
    "ReleaseRecord",
    "ReleaseSettings",
    "Releaser",
    "Schedule",
    "SensitivityHull",
    "Session",
    "SingletonConstraintError",
    "Trajectory",
    "degree_of_protection",
    "explore",
    "exposed_states",
    "parse_policy",
    "protect",
    "read",
    "release_trajectory",
]
__version__: str
