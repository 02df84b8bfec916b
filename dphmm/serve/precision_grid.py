"""Messages rounded to a public grid, for recipients with a precision.

There is one release per user and timestep. A recipient with a precision gets a fixed public function of it: the
released location and the estimate, each replaced by the centre of its cell, and radii that count the rounding. By
post-processing every guarantee of the release holds for them and for every coalition of recipients. They can infer at
most what a recipient of the release itself can infer. Nothing less is guaranteed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np

from dphmm.errors import CoordinateError
from dphmm.serve.outgoing_messages import LatLon, Message
from dphmm.space import LocalProjection

# Centres are sent with six decimals (0.06 m per axis), radii are read from rows with one decimal of a metre.
_DECIMALS = 6
_SLACK_M = 1.0


@dataclass(frozen=True)
class PrecisionGrid:
    """Square cells in the plane of the model, to the centres of which messages are rounded.

    Cell ``(i, j)`` is ``[i * side, (i + 1) * side) x [j * side, (j + 1) * side)``, east and north of the centre of the
    model's projection. The grid is a function of that centre, which the model's file states, and of the side, which the
    relay's file states. It depends on no location and no release.

    Parameters
    ----------
    projection : LocalProjection
        The projection of the model's state space, in which releases are made and radii are measured.
    side_m : int
        Side of a cell, metres.
    """

    projection: LocalProjection
    side_m: int

    def get_centre(self, latitude: float, longitude: float) -> LatLon:
        """Return the centre of the cell of a location, degrees with six decimals.

        Raises
        ------
        CoordinateError
            If the centre lies beyond the plane's image of the Earth.
        """
        side = self.side_m / 1000
        cell = np.floor(self.projection.to_plane(latitude, longitude)[0] / side)
        north, east = np.round(self.projection.to_latlon((cell + 0.5) * side)[0], _DECIMALS).tolist()
        return north, east

    def enlarge_radius(self, radius_m: float) -> float:
        """Return a radius around a cell's centre that covers the one around any of its points.

        No point of the cell is farther from its centre than half the diagonal. By the triangle inequality a circle
        about the point lies in the returned one, and an expected distance from the point grows by no more. The sum is
        rounded up to a multiple of the side: an exact radius would be finer than the location.
        """
        return float(self.side_m * ceil((radius_m + self.side_m / sqrt(2) + _SLACK_M) / self.side_m))

    def round_message(self, message: Message) -> Message:
        """Return what a recipient with this precision is sent instead of a message.

        The result is a function of the user, the time, whether something was drawn, when it last was, the cells of the
        released location and of the estimate, and the rounded radii. Its keys are always the same. Figures that follow
        from exact releases (the adversary's error and posterior probability, epsilon and its sums) are not in it.

        Parameters
        ----------
        message : Message
            A release as a recipient without a precision is sent it.
        """
        latitude, longitude = self.get_centre(message.latitude, message.longitude)
        row = message.row
        assert message.radius_m is not None, "releases have a radius"
        calibrated_radius = row["calibrated_radius_90_m"]
        released: tuple[float | None, float | None] = None, None
        # A release may lie at the edge of the plane's image of the Earth; an estimate is a location of the region.
        with suppress(CoordinateError):
            if row["latitude"] is not None:
                released = self.get_centre(row["latitude"], row["longitude"])
        return replace(
            message,
            latitude=latitude,
            longitude=longitude,
            radius_m=self.enlarge_radius(message.radius_m),
            row={
                "released": row["released"],
                "user": row["user"],
                "time": row["time"],
                "precision_m": self.side_m,
                "latitude": released[0],
                "longitude": released[1],
                "estimate_latitude": latitude,
                "estimate_longitude": longitude,
                "estimate_error_m": self.enlarge_radius(row["estimate_error_m"]),
                "calibrated_radius_90_m": None if calibrated_radius is None else self.enlarge_radius(calibrated_radius),
                "last_known": row["last_known"],
            },
            exact_posterior=None,
        )
