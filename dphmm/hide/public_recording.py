"""The public recording: the points outside the zones, without errors of the receiver.

`build_public_recording` is a function of the kept points, each with its time, elevation, sensors and activity, and of
the zones. The tracks and segments of the file are not used: an end of a segment next to a zone can depend on the
removed points. Lines are instead broken where they would cross a zone, and where the kept points pause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import shapely

from dphmm.arrays import BoolArray, FloatArray
from dphmm.hide.receiver_errors import check_errors, find_errors
from dphmm.hide.recording_points import Points, distance_km
from dphmm.hide.zone import HiddenZone
from dphmm.space.trajectory import Recording

# A line is broken at a pause of this multiple of the median interval, and of at least this time or distance.
_PAUSE_RATIO = 10
_MIN_PAUSE_SECONDS = 60
_MIN_PAUSE_KM = 0.2


def build_public_recording(
    kept: Points, zones: Sequence[HiddenZone], sensors: Collection[str], times: bool, kind: str | None
) -> tuple[Recording, BoolArray]:
    """Return the public recording, a function of the kept points and the zones.

    Parameters
    ----------
    kept
        The points outside the zones, in the order of the file.
    zones
        The zones.
    sensors
        The names of the sensors to publish.
    times
        Whether times are published.
    kind
        As in `dphmm.hide.receiver_errors.get_max_speeds`.

    Returns
    -------
    tuple
        The recording in order of time without errors of the receiver, and the mask of these errors, ``(n,)``.

    Raises
    ------
    ConfigurationError
        If too many points are out of reach; see `dphmm.hide.receiver_errors.check_errors`.
    """
    order = kept.order_by_time()
    points = kept.take(order)
    is_error = find_errors(points, kind)
    check_errors(points, is_error, kind)
    errors = np.zeros(len(kept), dtype=np.bool_)
    errors[order] = is_error
    points = points.take(~is_error)
    columns = {name: values for name, values in points.values.sensors.items() if name in sensors}
    values = replace(
        points.values, sensors={name: column for name, column in columns.items() if not np.isnan(column).all()}
    )
    if not times:
        values = replace(values, times=np.full(len(values), np.datetime64("NaT", "us")))
    points = replace(points, values=values)
    pieces = np.split(np.arange(len(points)), np.flatnonzero(_find_breaks(points, zones)) + 1)
    activity = next((activity for activity in points.activity if activity is not None), None)
    return Recording(tuple(values.select_points(piece) for piece in pieces if len(piece)), activity), errors


def _find_breaks(points: Points, zones: Sequence[HiddenZone]) -> BoolArray:
    """Return after which points but the last the line is broken, ``(n - 1,)``."""
    values = points.values
    if len(values) < 2:
        return np.zeros(0, dtype=np.bool_)
    seconds = np.diff(values.times) / np.timedelta64(1, "s")
    kilometres = distance_km(values.latitude[:-1], values.longitude[:-1], values.latitude[1:], values.longitude[1:])
    breaks: BoolArray = np.where(
        np.isnan(seconds),
        kilometres > max(_MIN_PAUSE_KM, _PAUSE_RATIO * _compute_median_step(kilometres)),
        seconds > max(_MIN_PAUSE_SECONDS, _PAUSE_RATIO * _compute_median_step(seconds)),
    )
    for zone in zones:
        rows = np.flatnonzero(zone.may_be_near(values.latitude[:-1], values.longitude[:-1], kilometres))
        plane = [zone.projection.to_plane(values.latitude[at], values.longitude[at]) for at in (rows, rows + 1)]
        # The antipode of the zone has no image.
        lines = shapely.linestrings(np.nan_to_num(np.stack(plane, axis=1), posinf=1e6, neginf=-1e6))
        breaks[rows] |= shapely.intersects(lines, shapely.Polygon(zone.corners))
    return np.asarray(breaks, dtype=np.bool_)


def _compute_median_step(steps: FloatArray) -> float:
    """Return the median of the positive steps between consecutive points. 0 without one."""
    positive = steps[steps > 0]  # NaN compares false
    return float(np.median(positive)) if len(positive) else 0.0
