"""Budgets that protect significant timestamps.

A person names the timestamps that matter (`timeline`), or finds them in their own trajectory (`stay_points`,
`repeated_places`). A scheme divides the budget (`skip`, `uniform`, `Adaptive`), `release_series` draws (with noise that
is exact on a `lattice` or `planar_lattice`, or Laplace as in the papers), and `leakage` bounds what correlation adds.
"""

from dphmm.landmarks.adaptive import Adaptive, Release
from dphmm.landmarks.budget import LandmarkBudget, skip, uniform
from dphmm.landmarks.noise import Noise, laplace, lattice, planar_laplace, planar_lattice
from dphmm.landmarks.paper_loss import paper_leakage
from dphmm.landmarks.series import ReleasedSeries, release_series
from dphmm.landmarks.stays import RepeatedPlaces, Stays, repeated_places, stay_points
from dphmm.landmarks.temporal_loss import leakage
from dphmm.landmarks.timestamps import Timeline, timeline

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
