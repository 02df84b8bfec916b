"""Budgets that protect significant timestamps.

A person names the timestamps that matter (`timeline`), or finds them in their own trajectory (`stay_points`,
`repeated_places`). A scheme divides the budget (`skip`, `uniform`, `Adaptive`), `release_series` draws (with noise that
is exact on a `lattice` or `planar_lattice`, or Laplace as in the papers), and `leakage` bounds what correlation adds.
"""

from dphmm.landmarks.schemes import Adaptive, LandmarkBudget, Release, Timeline, skip, timeline, uniform
from dphmm.landmarks.series import (
    Noise,
    ReleasedSeries,
    laplace,
    lattice,
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
    "laplace",
    "lattice",
    "leakage",
    "paper_leakage",
    "planar_laplace",
    "planar_lattice",
    "release_series",
    "repeated_places",
    "skip",
    "stay_points",
    "timeline",
    "uniform",
]
