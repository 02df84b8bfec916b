"""Budgets that protect significant timestamps.

A person names the timestamps that matter (`timeline`), or finds them in their own trajectory (`stay_points`,
`repeated_places`). A scheme divides the budget (`skip`, `uniform`, `Adaptive`), `release_series` draws (with `laplace`
or `planar_laplace` noise), and `leakage` says what correlation over time adds.
"""

from dphmm.landmarks.adaptive import Adaptive, Release
from dphmm.landmarks.budget import LandmarkBudget, skip, uniform
from dphmm.landmarks.series import ReleasedSeries, laplace, planar_laplace, release_series
from dphmm.landmarks.stays import RepeatedPlaces, Stays, repeated_places, stay_points
from dphmm.landmarks.temporal_loss import leakage
from dphmm.landmarks.timestamps import Timeline, timeline

__all__ = [
    "Adaptive",
    "LandmarkBudget",
    "Release",
    "ReleasedSeries",
    "RepeatedPlaces",
    "Stays",
    "Timeline",
    "laplace",
    "leakage",
    "planar_laplace",
    "release_series",
    "repeated_places",
    "skip",
    "stay_points",
    "timeline",
    "uniform",
]
