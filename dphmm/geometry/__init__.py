"""Symmetric convex bodies and sets of measured points. No graph in sight."""

from dphmm.geometry.measurements import Measurements
from dphmm.geometry.sensitivity_hull import Body, Disc, Membership, SensitivityHull

__all__ = ["Body", "Disc", "Measurements", "Membership", "SensitivityHull"]
