"""The one list of mechanisms: their names, the bodies they draw from, and what sets some of them apart."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from dphmm.geometry.hull import Body

MechanismName = Literal[
    "lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace", "optimal", "graph-exponential"
]
"""What a mechanism is called in settings, on the command line and in records."""

MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)
"""All names, the exact one first."""

BODY_OF: Mapping[MechanismName, Body] = MappingProxyType(
    {
        "lattice": "hull",
        "k-norm": "hull",
        "laplace": "cross-polytope",
        "planar-isotropic": "hull",
        "planar-laplace": "disc",
        "optimal": "hull",
        "graph-exponential": "hull",
    }
)
"""The body that each mechanism's noise is drawn from: a state may be exposed under one and protected under another."""

EXACT: frozenset[MechanismName] = frozenset({"lattice", "optimal", "graph-exponential"})
"""Those that draw by integers alone, so that the guarantee holds on a computer and not only for real numbers."""

TABLES: frozenset[MechanismName] = frozenset({"optimal", "graph-exponential"})
"""Those that draw from a table over the states of a connected component, and not noise of a norm."""

PLANAR_ONLY: frozenset[MechanismName] = frozenset({"planar-isotropic", "planar-laplace"})
"""Those for measurements in two dimensions only."""
