"""How noise is drawn."""

from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.catalogue import BODY_OF, EXACT, MECHANISMS, PLANAR_ONLY, TABLES, MechanismName
from dphmm.mechanisms.isotropic import PlanarIsotropicMechanism
from dphmm.mechanisms.knorm import KNormMechanism
from dphmm.mechanisms.laplace import LaplaceMechanism
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.planar_laplace import PlanarLaplaceMechanism
from dphmm.mechanisms.table import TableMechanism

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
