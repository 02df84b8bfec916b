"""Symmetric convex bodies and sets of measured points. No graph in sight."""

from dphmm.geometry.hull import Body, Disc, Membership, SensitivityHull
from dphmm.geometry.measurements import Measurements

__all__ = ["Body", "Disc", "Measurements", "Membership", "SensitivityHull"]
