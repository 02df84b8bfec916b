"""Budgets that protect significant timestamps.

A person names the timestamps that matter (`timeline`), or finds them in their own trajectory (`stay_points`,
`repeated_places`). A scheme divides the budget (`skip`, `uniform`, `Adaptive`), `release_series` draws, and `leakage`
says what correlation over time adds.
"""

from dphmm.landmarks.adaptive import Adaptive, Release
from dphmm.landmarks.budget import LandmarkBudget, skip, uniform, worst_sum
from dphmm.landmarks.loss import leakage
from dphmm.landmarks.series import ReleasedSeries, laplace, planar_laplace, release_series
from dphmm.landmarks.stays import Places, Stays, repeated_places, stay_points
from dphmm.landmarks.timeline import Timeline, timeline

__all__ = [
    "Adaptive",
    "LandmarkBudget",
    "Places",
    "Release",
    "ReleasedSeries",
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
    "worst_sum",
]
