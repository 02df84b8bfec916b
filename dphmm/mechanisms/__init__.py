"""How noise is drawn."""

from dphmm.mechanisms.base import BODY_OF, EXACT, MECHANISMS, PLANAR_ONLY, TABLES, Mechanism, MechanismName
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.norm_noise import (
    KNormMechanism,
    LaplaceMechanism,
    PlanarIsotropicMechanism,
    PlanarLaplaceMechanism,
)
from dphmm.mechanisms.optimal_table import TableMechanism

__all__ = [
    "BODY_OF",
    "EXACT",
    "MECHANISMS",
    "PLANAR_ONLY",
    "TABLES",
    "KNormMechanism",
    "LaplaceMechanism",
    "LatticeKNormMechanism",
    "Mechanism",
    "MechanismName",
    "PlanarIsotropicMechanism",
    "PlanarLaplaceMechanism",
    "TableMechanism",
]
