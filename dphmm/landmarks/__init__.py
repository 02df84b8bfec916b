"""Budgets that protect significant timestamps.

The user names significant timestamps (`timeline`) or finds them in their own trajectory (`stay_points`,
`repeated_places`). A scheme allocates the budget (`skip_scheme`, `uniform_scheme`, `Adaptive`). `release_series` adds
noise (exact with `lattice_noise` or `planar_lattice`, or Laplace as in the papers). `leakage` bounds the leakage under
correlation.
"""

from dphmm.landmarks.budget_schemes import (
    Adaptive,
    LandmarkBudget,
    Release,
    Timeline,
    skip_scheme,
    timeline,
    uniform_scheme,
)
from dphmm.landmarks.noisy_series import (
    Noise,
    ReleasedSeries,
    laplace_noise,
    lattice_noise,
    planar_laplace,
    planar_lattice,
    release_series,
)
from dphmm.landmarks.stays import RepeatedPlaces, Stays, repeated_places, stay_points
from dphmm.landmarks.temporal_loss import leakage, paper_leakage

__all__ = [
    "Adaptive",
    "LandmarkBudget",
    "Noise",
    "Release",
    "ReleasedSeries",
    "RepeatedPlaces",
    "Stays",
    "Timeline",
    "laplace_noise",
    "lattice_noise",
    "leakage",
    "paper_leakage",
    "planar_laplace",
    "planar_lattice",
    "release_series",
    "repeated_places",
    "skip_scheme",
    "stay_points",
    "timeline",
    "uniform_scheme",
]
