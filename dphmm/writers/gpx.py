"""Releases as GPX 1.1: one track per user, the other columns in extensions of each point.

The format has but one reference system, WGS 84, which the file's description states. A release beyond the Earth's
plane has no point and is left out.
"""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from dphmm.errors import need
from dphmm.writers.formats import CRS, parsed
from dphmm.writers.table import COLUMNS, ReleaseTable

NAMESPACE = "urn:dphmm:release"
_IN_POINT = {"user", "time", "latitude", "longitude"}
_EXTENDED = [column for column in COLUMNS if column.name not in _IN_POINT]


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table, users in the order in which they first occur."""
    gpx = need("gpxpy.gpx", "files")
    document = gpx.GPX()
    document.creator = "dphmm"
    document.description = f"Private releases, not true places. Coordinates are WGS 84 ({CRS})."
    document.nsmap["dphmm"] = NAMESPACE
    placed = table.select(table.placed)
    for user in dict.fromkeys(placed["user"].tolist()):
        track = gpx.GPXTrack(name=user)
        segment = gpx.GPXTrackSegment()
        rows = placed.select(placed["user"] == user)
        segment.points = [_point(gpx, rows, row) for row in range(len(rows))]
        track.segments.append(segment)
        document.tracks.append(track)
    path.write_text(document.to_xml(version="1.1"), encoding="utf-8")


def _point(gpx: Any, table: ReleaseTable, row: int) -> Any:
    latitude, longitude = float(table["latitude"][row]), float(table["longitude"][row])
    time = table["time"][row].item().replace(tzinfo=UTC)
    point = gpx.GPXTrackPoint(latitude, longitude, time=time)
    for column in _EXTENDED:
        element = ElementTree.Element(f"{{{NAMESPACE}}}{column.name}")
        element.text = str(table[column.name][row].item() if column.kind != "text" else table[column.name][row])
        point.extensions.append(element)
    return point


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    gpxpy = need("gpxpy", "files")
    try:
        document = gpxpy.parse(path.read_text(encoding="utf-8"))
    except gpxpy.gpx.GPXException as problem:
        raise ValueError(str(problem)) from None
    rows = [
        _row(track.name, point) for track in document.tracks for segment in track.segments for point in segment.points
    ]
    return ReleaseTable({column.name: [row[column.name] for row in rows] for column in COLUMNS})


def _row(user: str, point: Any) -> dict[str, Any]:
    texts = {element.tag.split("}")[-1]: element.text for element in point.extensions}
    moment = np.datetime64(point.time.astimezone(UTC).replace(tzinfo=None), "us")
    known = {"user": user, "time": moment, "latitude": point.latitude, "longitude": point.longitude}
    return known | {column.name: parsed(column, texts[column.name]) for column in _EXTENDED}
