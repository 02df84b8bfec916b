"""Locations of a user: trajectories, a local projection, state spaces."""

from dphmm.space.conformance import check_space
from dphmm.space.grid import Grid
from dphmm.space.projection import LocalProjection
from dphmm.space.states import OUTSIDE, Places, StateSpace, register_space
from dphmm.space.streets import Streets
from dphmm.space.trajectory import SlottedTrajectory, Trajectory

__all__ = [
    "OUTSIDE",
    "Grid",
    "LocalProjection",
    "Places",
    "SlottedTrajectory",
    "StateSpace",
    "Streets",
    "Trajectory",
    "check_space",
    "register_space",
]
