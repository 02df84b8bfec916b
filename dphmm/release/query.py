"""The measured values of all states, and their conversion to and from mechanism units."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry.exact_linear_algebra import exact_span
from dphmm.geometry.measurements import Measurements
from dphmm.mechanisms.lattice import Spacing
from dphmm.mechanisms.registry import PLANAR_MECHANISMS, TABLE_MECHANISMS, is_lattice_mechanism
from dphmm.policy.protection_degrees import Protection
from dphmm.release.settings import Settings
from dphmm.tolerances import RELATIVE_TOLERANCE

# A table releases the location of a state, but a file may contain only the first digits of its coordinates. The
# location is recognised if it is a hundred times nearer than any other one.
_MAX_WRITING_ERROR = 0.01


class Query:
    """The measurement of each state, in the units of the mechanism and of publication.

    Parameters
    ----------
    settings
        The mechanism, and the lattice spacing for exact noise.
    measurements
        The measurements. For exact noise they are rounded to the published lattice.

    Raises
    ------
    InvalidInputError
        If the mechanism needs planar measurements and these are not planar; for exact noise, if they span more than two
        dimensions.
    CoordinateError
        If measurements are too far from the origin for the lattice.
    """

    def __init__(self, settings: Settings, measurements: Measurements) -> None:
        if settings.mechanism in PLANAR_MECHANISMS and measurements.dimension != 2:
            raise InvalidInputError(
                f"mechanism {settings.mechanism!r} cannot be combined with {measurements.dimension}-dimensional "
                "measurements: it needs planar ones"
            )
        self._unrounded = measurements
        self._releases_places = settings.mechanism in TABLE_MECHANISMS
        # Whether noise is sampled with integer arithmetic only.
        self.is_exact = settings.is_exact
        # The measurements, on the published lattice for exact noise.
        self.measurements = measurements
        # (N, d): the values to which the mechanism adds noise: points, or integer coordinates of the published lattice.
        self.values: npt.NDArray[Any] = measurements.points
        # The length of one unit of the values in the unit of the measurements.
        self.unit = 1.0
        # The published lattice; None without one.
        self.lattice: Spacing | None = None
        if is_lattice_mechanism(settings.mechanism):
            self.lattice = Spacing(settings.spacing)
            self.values = self.lattice.round_to_steps(measurements.points, "measurements")
            self.unit = float(self.lattice.step)
            # A repair may connect any two states, so the span of all measurements counts, not that of the policy.
            rank = len(exact_span(self.values - self.values[:1]).axes) if measurements.dimension > 2 else 0
            if rank > 2:
                raise InvalidInputError(
                    f"mechanism {settings.mechanism!r} must have measurements that span at most 2 dimensions, got "
                    f"{rank}; use mechanism 'k-norm'"
                )
            self.measurements = Measurements.on_lattice(self.values, self.unit)

    def check_distinct(self) -> None:
        """Check that rounding to the lattice does not make different measurements equal.

        Raises
        ------
        CoordinateError
            If it does.
        """
        if self.lattice is None:
            return
        points = self._unrounded.points
        if np.abs(points - self.values * self.unit).max() <= RELATIVE_TOLERANCE * self.unit:
            return
        if len(np.unique(self.values, axis=0)) < len(np.unique(points, axis=0)):
            raise CoordinateError(
                f"spacing must keep different measurements distinct, got {self.lattice.step}; choose a smaller spacing"
            )

    def compute_volume(self, protection: Protection) -> float:
        """Compute the volume of a hull. On a planar lattice the double nearest to the area."""
        hull = protection.hull
        if self.lattice is None or not hull.dimension == hull.ambient_dimension == 2:
            # Above two dimensions a hull that no noise is sampled from may have too many facets to enumerate.
            return (hull if hull.ambient_dimension <= 2 else protection.body).volume
        # Without rounding until the end, a verifier recomputes every digit.
        corners = np.rint(protection.coordinate_hull.vertices).astype(np.int64).tolist()
        doubled_area = sum(ax * by - ay * bx for (ax, ay), (bx, by) in pairwise([*corners, corners[0]]))
        width, height = self.measurements.steps_per_coordinate.tolist()
        return float(Fraction(doubled_area * width * height, 2) * self.lattice.step**2)

    def to_point(self, released: npt.NDArray[Any]) -> tuple[float, ...]:
        """Convert a release from mechanism units to the unit of the measurements."""
        point = released if self.lattice is None else self.lattice.to_points(released)
        # A number has one text: without the sign of zero, and as a float also if the step of the lattice is one.
        return tuple((point + 0.0).tolist())

    def to_value(self, released: npt.ArrayLike) -> npt.NDArray[Any]:
        """Convert a release from the unit of the measurements to mechanism units.

        Raises
        ------
        CoordinateError
            If it has another dimension, is not finite, or is not a lattice point.
        """
        point = as_floats(released, "the coordinates of a release", CoordinateError)
        if point.shape != (self.measurements.dimension,):
            raise CoordinateError(f"the release must have shape ({self.measurements.dimension},), got {point.shape}")
        if self._releases_places:
            return self._find_nearest_place(point)
        return point if self.lattice is None else self.lattice.to_steps(point, "released")

    def _find_nearest_place(self, point: FloatArray) -> FloatArray:
        places = self.measurements.points
        distances = np.linalg.norm(places - point, axis=1)
        state = int(np.argmin(distances))
        others = distances[(places != places[state]).any(axis=1)]
        if distances[state] > _MAX_WRITING_ERROR * others.min(initial=inf):
            raise CoordinateError(f"the release of a table must be the location of a state, got {point.tolist()}")
        return np.asarray(places[state])

    @cached_property
    def columns(self) -> FloatArray:
        """The coordinates of the values as doubles, ``(d, N)``. Exact for lattice coordinates."""
        return np.ascontiguousarray(self.values.T, dtype=np.float64)

    @cached_property
    def max_abs_coordinate(self) -> float:
        """The largest absolute coordinate of the values."""
        return float(np.abs(self.columns).max())
