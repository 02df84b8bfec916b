"""The removal of points in zones, and of errors of the receiver, from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.hide.public_recording import build_public_recording
from dphmm.hide.receiver_errors import are_many, find_errors
from dphmm.hide.recording_points import Points
from dphmm.hide.zone import HiddenZone
from dphmm.space.trajectory import Recording


@dataclass(frozen=True)
class RecordedTrack:
    """The points of a recording, and the errors of the receiver.

    Parameters
    ----------
    points
        The points.
    order
        ``(n,)``: the rows in order of time.
    errors
        ``(n,)``: mask of the errors.
    trips
        The other points, in order of time.
    """

    points: Points
    order: IntArray
    errors: BoolArray
    trips: Points

    @classmethod
    def from_recording(cls, recording: Recording, kind: str | None) -> RecordedTrack:
        """Find the errors of a recording of an activity."""
        points = Points.from_recording(recording)
        order = points.order_by_time()
        errors = np.zeros(len(points), dtype=np.bool_)
        errors[order] = find_errors(points.take(order), kind)
        return cls(points, order, errors, points.take(order[~errors[order]]))


@dataclass(frozen=True)
class RecordingParts:
    """The published and the removed points of a recording.

    Parameters
    ----------
    public
        The published recording.
    masks
        ``(n,)`` each: the points in each zone.
    removed
        ``(n,)``: the points in any zone.
    dropped
        The rows of points outside the zones that are not published, because they are errors of the receiver.
    wrong
        The rows of published points that are errors if the removed points are taken into account.
    """

    public: Recording
    masks: list[BoolArray]
    removed: BoolArray
    dropped: IntArray
    wrong: IntArray


def remove_points(
    track: RecordedTrack, zones: Sequence[HiddenZone], sensors: tuple[str, ...], times: bool, kind: str | None
) -> RecordingParts:
    """Remove the points in any of the zones."""
    points, errors = track.points, track.errors
    masks = [zone.contains(points.values.latitude, points.values.longitude) for zone in zones]
    removed = np.logical_or.reduce(masks) if masks else np.zeros(len(points), dtype=np.bool_)
    kept = np.flatnonzero(~removed)
    public, is_dropped = build_public_recording(points.take(kept), list(zones), sensors, times, kind)
    dropped = kept[is_dropped]
    # Only the removed points show that these are errors. Therefore they are not dropped. A recording with many of them
    # has another activity, and its location may be the one that is out of reach.
    wrong = np.setdiff1d(np.flatnonzero(errors & ~removed & (not are_many(errors))), dropped)
    return RecordingParts(public, masks, removed, dropped, wrong)
