"""Symmetric convex bodies and sets of measured points; no graph in sight."""

from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import Body, Membership, SensitivityHull
from dphmm.geometry.measurements import Measurements

__all__ = ["Body", "Disc", "Measurements", "Membership", "SensitivityHull"]
