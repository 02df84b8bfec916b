"""Noise mechanisms."""

from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.conformance import check_mechanism
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.noise_tables import TableMechanism
from dphmm.mechanisms.norm_noise import (
    KNormMechanism,
    LaplaceMechanism,
    NormMechanism,
    PlanarIsotropicMechanism,
    PlanarLaplaceMechanism,
)
from dphmm.mechanisms.registry import (
    BODY_BY_MECHANISM,
    EXACT_COLUMN,
    MECHANISMS,
    PLANAR_MECHANISMS,
    TABLE_MECHANISMS,
    MechanismName,
    register_mechanism,
)

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
    "NormMechanism",
    "PlanarIsotropicMechanism",
    "PlanarLaplaceMechanism",
    "TableMechanism",
    "check_mechanism",
    "register_mechanism",
]
