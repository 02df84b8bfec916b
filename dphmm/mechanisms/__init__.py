"""Noise mechanisms."""

from dphmm.mechanisms.base import (
    BODY_BY_MECHANISM,
    EXACT_COLUMN,
    MECHANISMS,
    PLANAR_MECHANISMS,
    TABLE_MECHANISMS,
    Mechanism,
    MechanismName,
)
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.norm_noise import (
    KNormMechanism,
    LaplaceMechanism,
    PlanarIsotropicMechanism,
    PlanarLaplaceMechanism,
)
from dphmm.mechanisms.optimal_table import TableMechanism

__all__ = [
    "BODY_BY_MECHANISM",
    "EXACT_COLUMN",
    "MECHANISMS",
    "PLANAR_MECHANISMS",
    "TABLE_MECHANISMS",
    "KNormMechanism",
    "LaplaceMechanism",
    "LatticeKNormMechanism",
    "Mechanism",
    "MechanismName",
    "PlanarIsotropicMechanism",
    "PlanarLaplaceMechanism",
    "TableMechanism",
]
