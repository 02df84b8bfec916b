"""Releases as GPX 1.1: one track per user, the other columns in extensions of each point.

The format has but one reference system, WGS 84, which the file's description states. Points are estimates, or released
places; what has no such place is left out.
"""

from __future__ import annotations

import re
from datetime import UTC
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from dphmm.errors import InvalidInputError, OutputError, need
from dphmm.tables import read_document
from dphmm.tables.gpx_file import read_gpx
from dphmm.tables.values import since_epoch
from dphmm.writers.frame import Geometry, places
from dphmm.writers.table import COLUMNS, CRS, ReleaseTable

NAMESPACE = "urn:dphmm:release"
_EXTENDED = [column.name for column in COLUMNS if column.name not in ("user", "time")]
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")


def write(path: Path, table: ReleaseTable, geometry: Geometry = "estimate") -> None:
    """Write the table, users in the order in which they first occur; rows without the place asked for are left out.

    What an estimate is expected to be off is each point's comment.
    """
    gpx = need("gpxpy.gpx", "files")
    document = gpx.GPX()
    document.creator = "dphmm"
    what = "Estimates from private releases" if geometry == "estimate" else "Private releases"
    document.description = f"{what}, not true places. Coordinates are WGS 84 ({CRS})."
    document.nsmap["dphmm"] = NAMESPACE
    segments: dict[str, Any] = {}
    known = places(table, geometry)[2]
    kept = table.select(known)
    latitude, longitude, _ = places(kept, geometry)
    placed = {name: values.tolist() for name, values in kept.columns.items()}
    points = iter(zip(latitude.tolist(), longitude.tolist(), strict=True))
    for values in zip(*placed.values(), strict=True):
        row = dict(zip(placed, values, strict=True))
        segment = segments.setdefault(row["user"], gpx.GPXTrackSegment())
        segment.points.append(_point(gpx, row, *next(points), geometry == "estimate"))
    for user, segment in segments.items():
        track = gpx.GPXTrack(name=user)
        track.segments.append(segment)
        document.tracks.append(track)
    text = document.to_xml(version="1.1")
    if _NO_XML.search(text):
        raise OutputError(f"{path}: a user's name holds a control character, which GPX cannot; write another format")
    path.write_text(text, encoding="utf-8")


def _point(gpx: Any, row: dict[str, Any], latitude: float, longitude: float, is_estimate: bool) -> Any:
    off = f"expected to be {row['estimate_radius_m']:.0f} m off" if is_estimate else None
    point = gpx.GPXTrackPoint(latitude, longitude, time=row["time"].replace(tzinfo=UTC), comment=off)
    for name in _EXTENDED:
        element = ElementTree.Element(f"{{{NAMESPACE}}}{name}")
        element.text = str(row[name])
        point.extensions.append(element)
    return point


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    tracks = read_gpx(read_document(path)).tracks
    return ReleaseTable.parse([_row(track.name or "", point) for track in tracks for point in track.walk(True)])


def _row(user: str, point: Any) -> dict[str, Any]:
    extended = {str(element.tag).split("}")[-1]: element.text or "" for element in point.extensions}
    try:
        time = None if point.time is None else np.datetime64(since_epoch(point.time), "us")
    except ValueError as problem:  # of an offset from UTC of over a day
        raise InvalidInputError(f"a time of {user} is none ({problem})") from None
    return extended | {"user": user, "time": time}
