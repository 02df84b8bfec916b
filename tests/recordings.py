"""Files of one invented track in every format of recordings, built without the package."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from io import BytesIO

import numpy as np

START = datetime(2024, 3, 9, 10, tzinfo=UTC)
STEP = 20
# Times, latitudes and longitudes of a straight track of 30 points. FIT rounds to 2**31 parts of 180 degrees.
LATITUDES = [round(45 + at * 5e-5, 7) for at in range(30)]
LONGITUDES = [round(-30.02 + at * 3e-4, 7) for at in range(30)]
TIMES = [START + timedelta(seconds=STEP * at) for at in range(30)]
POINTS = list(zip(TIMES, LATITUDES, LONGITUDES, strict=True))
INSTANTS = np.array([time.replace(tzinfo=None) for time in TIMES], "datetime64[us]")


def format_iso(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def make_gpx(prefix: str = "") -> bytes:
    name = f"{prefix}:" if prefix else ""
    space = f"xmlns:{prefix}" if prefix else "xmlns"
    points = "".join(
        f'<{name}trkpt lat="{lat}" lon="{lon}"><{name}ele>12.5</{name}ele><{name}time>{format_iso(time)}</{name}time>'
        f"</{name}trkpt>"
        for time, lat, lon in POINTS
    )
    return (
        f'<?xml version="1.0"?><!-- a comment --><{name}gpx {space}="http://www.topografix.com/GPX/1/1" version="1.1">'
        f"<{name}trk><{name}trkseg>{points}</{name}trkseg></{name}trk></{name}gpx>"
    ).encode()


def make_tcx() -> bytes:
    points = "".join(
        f"<Trackpoint><Time>{format_iso(time)}</Time><Position><LatitudeDegrees>{lat}</LatitudeDegrees><LongitudeDegrees>{lon}"
        "</LongitudeDegrees></Position><AltitudeMeters>12.5</AltitudeMeters><HeartRateBpm><Value>120</Value>"
        "</HeartRateBpm></Trackpoint>"
        for time, lat, lon in POINTS
    )
    indoors = f"<Trackpoint><Time>{format_iso(START)}</Time></Trackpoint>"
    return (
        '<TrainingCenterDatabase xmlns="http://www.garmin.com/xmlschemas/TrainingCenterDatabase/v2"><Activities>'
        f'<Activity Sport="Biking"><Lap><Track>{indoors}{points}</Track></Lap></Activity></Activities>'
        "</TrainingCenterDatabase>"
    ).encode()


def make_kml_track() -> bytes:
    whens = "".join(f"<when>{format_iso(time)}</when>" for time in TIMES)
    coords = "".join(f"<gx:coord>{lon} {lat} 12.5</gx:coord>" for _, lat, lon in POINTS)
    return (
        '<kml xmlns="http://www.opengis.net/kml/2.2" xmlns:gx="http://www.google.com/kml/ext/2.2"><Document><Placemark>'
        f"<gx:Track>{whens}{coords}</gx:Track></Placemark></Document></kml>"
    ).encode()


def make_kml_points() -> bytes:
    marks = "".join(
        f"<Placemark><TimeStamp><when>{format_iso(time)}</when></TimeStamp><Point><coordinates>{lon},{lat},0</coordinates>"
        "</Point></Placemark>"
        for time, lat, lon in POINTS
    )
    return f'<kml xmlns="http://www.opengis.net/kml/2.2"><Folder>{marks}</Folder></kml>'.encode()


def make_kmz() -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("doc.kml", make_kml_track())
    return stream.getvalue()


def _compute_fit_checksum(data: bytes) -> int:
    checksum = 0
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = (checksum >> 1) ^ (0xA001 if checksum & 1 else 0)
    return checksum


def make_fit(is_extended: bool = False) -> bytes:
    """A file of records with time, position and altitude, after the protocol of FIT.

    If it is extended, each record has a field of a developer that no message declares.
    """
    epoch = datetime(1989, 12, 31, tzinfo=UTC)
    fields = [(253, 4, 0x86), (0, 4, 0x85), (1, 4, 0x85), (2, 2, 0x84), (3, 1, 0x02)]
    body = struct.pack("<BBBHB", 0x60 if is_extended else 0x40, 0, 0, 20, len(fields)) + b"".join(
        struct.pack("<BBB", *field) for field in fields
    )
    body += bytes([1, 0, 2, 0]) if is_extended else b""
    for time, lat, lon in POINTS:
        steps = (round(degrees * 2**31 / 180) for degrees in (lat, lon))
        height = round((12.4 + 500) * 5)
        body += struct.pack("<BIiiHB", 0, int((time - epoch).total_seconds()), *steps, height, 120)
        body += b"ab" if is_extended else b""
    head = struct.pack("<BBHI4s", 14, 0x20, 2132, len(body), b".FIT")
    head += struct.pack("<H", _compute_fit_checksum(head))
    return head + body + struct.pack("<H", _compute_fit_checksum(head + body))


def _make_features() -> list[dict[str, object]]:
    return [
        {
            "type": "Feature",
            "properties": {"timestamp": format_iso(time), "horizontal_accuracy": 5, "wifi": "net"},
            "geometry": {"type": "Point", "coordinates": [lon, lat, 12.5]},
        }
        for time, lat, lon in POINTS
    ]


def make_geojson_line() -> bytes:
    shape = {"type": "LineString", "coordinates": [[lon, lat, 12.5] for _, lat, lon in POINTS]}
    feature = {"type": "Feature", "properties": {"coordTimes": [format_iso(time) for time in TIMES]}, "geometry": shape}
    return json.dumps({"type": "FeatureCollection", "features": [feature]}).encode()


def make_geojson_points() -> bytes:
    return json.dumps({"features": _make_features(), "type": "FeatureCollection"}, indent=1).encode()


def make_geojson_sequence() -> bytes:
    return b"".join(b"\x1e" + json.dumps(feature).encode() + b"\n" for feature in _make_features())


def make_geojson_lines() -> bytes:
    return b"\n".join(json.dumps(feature).encode() for feature in _make_features())


def make_overland() -> bytes:
    return json.dumps({"locations": _make_features(), "current": {}}).encode()


def make_json_lines() -> bytes:
    rows = ({"time": format_iso(time), "latitude": lat, "longitude": lon} for time, lat, lon in POINTS)
    return b"\n".join(json.dumps(row).encode() for row in rows)


def make_records() -> bytes:
    items = [
        {"latitudeE7": round(lat * 1e7), "longitudeE7": round(lon * 1e7), "accuracy": 12, "timestamp": format_iso(time)}
        for time, lat, lon in POINTS
    ]
    return json.dumps({"locations": [{"source": "WIFI"}, *items]}).encode()


def make_timeline_android() -> bytes:
    first, *middle, last = POINTS
    path = [{"point": f"{lat}°, {lon}°", "time": format_iso(time)} for time, lat, lon in middle[:20]]
    end = {"latLng": f"{last[1]}°, {last[2]}°"}
    segments = [
        {"startTime": format_iso(first[0]), "endTime": format_iso(first[0]), "visit": {
            "topCandidate": {"placeLocation": {"latLng": f"{first[1]}°, {first[2]}°"}}}},
        {"startTime": format_iso(first[0]), "endTime": format_iso(last[0]), "timelinePath": path},
        {"startTime": format_iso(last[0]), "endTime": format_iso(last[0]), "activity": {"start": end, "end": end}},
    ]  # fmt: skip
    signals = [
        {"position": {"LatLng": f"{lat}°, {lon}°", "timestamp": format_iso(time), "accuracyMeters": 9}}
        for time, lat, lon in middle[20:]
    ]
    profile = {"frequentPlaces": [{"placeLocation": "1.0°, 1.0°"}]}
    content = {"semanticSegments": segments, "rawSignals": [*signals, {"wifiScan": {}}], "userLocationProfile": profile}
    return json.dumps(content, ensure_ascii=False).encode()


def make_timeline_ios() -> bytes:
    path = [
        {"point": f"geo:{lat},{lon}", "durationMinutesOffsetFromStartTime": str((time - START).total_seconds() / 60)}
        for time, lat, lon in POINTS
    ]
    return json.dumps(
        [{"startTime": format_iso(START), "endTime": format_iso(TIMES[-1]), "timelinePath": path}]
    ).encode()


def make_semantic() -> bytes:
    points = [
        {"latE7": round(lat * 1e7), "lngE7": round(lon * 1e7), "timestamp": format_iso(time)}
        for time, lat, lon in POINTS
    ]
    ends = {
        name: {"latitudeE7": point["latE7"], "longitudeE7": point["lngE7"]}
        for name, point in (("startLocation", points[0]), ("endLocation", points[-1]))
    }
    span = {"startTimestamp": format_iso(START), "endTimestamp": format_iso(TIMES[-1])}
    part = {**ends, "duration": span, "simplifiedRawPath": {"points": points[1:-1]}}
    return json.dumps({"timelineObjects": [{"activitySegment": part}]}).encode()


def make_owntracks_api() -> bytes:
    rows = [
        {"_type": "location", "lat": lat, "lon": lon, "tst": int(time.timestamp()), "acc": 5, "alt": 12}
        for time, lat, lon in POINTS
    ]
    return json.dumps({"count": len(rows), "data": [*rows, {"_type": "lwt", "tst": 1}]}).encode()


def make_csv() -> bytes:
    rows = (f"{format_iso(time)},{lat},{lon},12.5\n" for time, lat, lon in POINTS)
    return b"time,latitude,longitude,elevation\n" + "".join(rows).encode()


# Name → format and content.
FILES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "r.gpx": ("gpx", make_gpx),
    "prefix.gpx": ("gpx", lambda: make_gpx("g")),
    "r.tcx": ("tcx", make_tcx),
    "r.kml": ("kml", make_kml_track),
    "points.kml": ("kml", make_kml_points),
    "r.kmz": ("kml", make_kmz),
    "r.fit": ("fit", make_fit),
    "line.geojson": ("geojson", make_geojson_line),
    "points.geojson": ("geojson", make_geojson_points),
    "r.geojsons": ("geojson", make_geojson_sequence),
    "r.geojsonl": ("geojson", make_geojson_lines),
    "overland.json": ("geojson", make_overland),
    "r.jsonl": ("json", make_json_lines),
    "Records.json": ("timeline", make_records),
    "Timeline.json": ("timeline", make_timeline_android),
    "location-history.json": ("timeline", make_timeline_ios),
    "2024_MARCH.json": ("timeline", make_semantic),
    "owntracks.json": ("owntracks", make_owntracks_api),
    "r.csv": ("table", make_csv),
}
