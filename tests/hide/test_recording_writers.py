"""Files of recordings, read back by parsers that share no code with the writers."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from datetime import datetime
from xml.etree import ElementTree

import gpxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.hide.recording_writers import RECORDING_FORMATS, check_recording, find_losses, write_recording
from dphmm.readers.reading import read_recording
from dphmm.space.trajectory import SENSORS, Recording, Segment

# A point: time in microseconds or None, latitude, longitude, elevation or None, and sensors.
Row = tuple[int | None, float, float, float | None, dict[str, float]]
NAT = np.datetime64("NaT", "us")


def _list_rows(segment: Segment) -> list[Row]:
    return [
        (
            None if np.isnat(segment.times[at]) else int(segment.times[at].astype("datetime64[us]").astype(np.int64)),
            float(segment.latitude[at]),
            float(segment.longitude[at]),
            _convert_number(segment.elevation[at]),
            {name: float(values[at]) for name, values in segment.sensors.items() if not math.isnan(values[at])},
        )
        for at in range(len(segment))
    ]


def _convert_number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _parse_microseconds(text: str | None) -> int | None:
    if not text:
        return None
    difference = datetime.fromisoformat(text.replace("Z", "+00:00")) - datetime.fromisoformat("1970-01-01T00:00+00:00")
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds


def _read_gpx(text: str) -> list[list[Row]]:
    (track,) = gpxpy.parse(text).tracks
    segments = []
    for segment in track.segments:
        rows: list[Row] = []
        for point in segment.points:
            leaves = [leaf for top in point.extensions for leaf in top.iter() if not len(leaf)]
            sensors = {leaf.tag.rpartition("}")[2]: float(leaf.text) for leaf in leaves}
            time = None if point.time is None else _parse_microseconds(point.time.isoformat())
            rows.append((time, point.latitude, point.longitude, point.elevation, sensors))
        segments.append(rows)
    return segments


def _read_geojson(text: str) -> list[list[Row]]:
    segments = []
    for feature in json.loads(text)["features"]:
        shape, properties = feature["geometry"], feature["properties"]
        positions = [shape["coordinates"]] if shape["type"] == "Point" else shape["coordinates"]
        columns = properties.get("coordinateProperties", {})
        segments.append(
            [
                (
                    _parse_microseconds(time),
                    position[1],
                    position[0],
                    position[2] if len(position) > 2 else None,
                    {name: values[at] for name, values in columns.items() if values[at] is not None},
                )
                for at, (time, position) in enumerate(zip(properties["coordTimes"], positions, strict=True))
            ]
        )
    return segments


def _split_at_date_line(rows: list[Row]) -> list[list[Row]]:
    """Return the parts between steps of more than half a turn, which GeoJSON forbids."""
    parts = [rows[:1]]
    for row in rows[1:]:
        if abs(row[2] - parts[-1][-1][2]) > 180:
            parts.append([])
        parts[-1].append(row)
    return parts


def _read_csv(text: str) -> list[list[Row]]:
    segments: dict[str, list[Row]] = {}
    for row in csv.DictReader(text.splitlines()):
        sensors = {name: float(row[name]) for name in SENSORS if row.get(name)}
        elevation = float(row["elevation"]) if row["elevation"] else None
        place = float(row["latitude"]), float(row["longitude"])
        segments.setdefault(row["segment"], []).append((_parse_microseconds(row["time"]), *place, elevation, sensors))
    return list(segments.values())


def _read_kml(text: str) -> list[list[Row]]:
    names = {"": "http://www.opengis.net/kml/2.2", "gx": "http://www.google.com/kml/ext/2.2"}
    segments = []
    for placemark in ElementTree.fromstring(text).iterfind(".//Placemark", names):
        line = placemark.find("LineString/coordinates", names)
        if line is not None:
            times: list[str | None] = [None] * len((line.text or "").split())
            places = [place.split(",") for place in (line.text or "").split()]
        else:
            times = [when.text for when in placemark.iterfind("gx:Track/when", names)]
            places = [(place.text or "").split() for place in placemark.iterfind("gx:Track/gx:coord", names)]
        has_elevation = placemark.find(".//altitudeMode", names) is not None
        assert has_elevation == all(len(place) == 3 for place in places)
        rows: list[Row] = []
        for time, (longitude, latitude, *height) in zip(times, places, strict=True):
            elevation = float(height[0]) if height else None
            rows.append((_parse_microseconds(time), float(latitude), float(longitude), elevation, {}))
        segments.append(rows)
    return segments


def _read_tcx(text: str) -> list[list[Row]]:
    names = {"": "http://www.garmin.com/xmlschemas/TrainingCenterDatabase/v2"}
    sensors_of = {"Value": "hr", "Cadence": "cad", "Speed": "speed", "Watts": "power"}
    segments = []
    for track in ElementTree.fromstring(text).iterfind(".//Track", names):
        rows: list[Row] = []
        for point in track.iterfind("Trackpoint", names):
            leaves = {leaf.tag.rpartition("}")[2]: str(leaf.text) for leaf in point.iter() if not len(leaf)}
            elevation = leaves.get("AltitudeMeters")
            rows.append(
                (
                    _parse_microseconds(leaves["Time"]),
                    float(leaves["LatitudeDegrees"]),
                    float(leaves["LongitudeDegrees"]),
                    None if elevation is None else float(elevation),
                    {sensor: float(leaves[name]) for name, sensor in sensors_of.items() if name in leaves},
                )
            )
        segments.append(rows)
    return segments


READERS = {"gpx": _read_gpx, "geojson": _read_geojson, "csv": _read_csv, "kml": _read_kml, "tcx": _read_tcx}
SENSORS_OF_FORMATS = {"kml": (), "tcx": ("hr", "cad", "power", "speed")}


INSTANTS = st.integers(-(10**15), 10**15)
OPTIONAL_INSTANTS = st.none() | INSTANTS


@st.composite
def recordings(draw, times):
    segments = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 4))

        def draw_column(values, size=size):
            return draw(st.lists(values, min_size=size, max_size=size))

        # The sensors of TCX are integers.
        names = draw(st.sets(st.sampled_from(SENSORS)))
        sensors = {name: np.array(draw_column(st.just(math.nan) | st.integers(1, 250).map(float))) for name in names}
        has_values = {name: values for name, values in sensors.items() if not np.isnan(values).all()}
        instants = [NAT if time is None else np.datetime64(time, "us") for time in draw_column(times)]
        heights = st.integers(-40_000, 900_000).map(lambda value: value / 100)
        segments.append(
            Segment(
                np.array(draw_column(st.integers(-(9 * 10**8), 9 * 10**8))) / 1e7,
                np.array(draw_column(st.integers(-(18 * 10**8), 18 * 10**8))) / 1e7,
                np.array(instants, "datetime64[us]"),
                np.array(draw_column(heights if draw(st.booleans()) else heights | st.just(math.nan))),
                has_values,
            )
        )
    activity = draw(st.sampled_from([None, "cycling", "running", "hiking"]))
    return Recording(tuple(segments), activity)


@pytest.mark.parametrize("name", RECORDING_FORMATS)
def test_recording_is_read_back_by_an_independent_parser(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("recordings")

    @settings(max_examples=15)  # each writes a file to the disk twice
    @given(recordings(INSTANTS if name == "tcx" else OPTIONAL_INSTANTS))
    def read_back(recording):
        path = folder / f"track.{name}"
        write_recording(path, recording, overwrite=True)
        text = path.read_text(encoding="utf-8")
        kept = SENSORS_OF_FORMATS.get(name, SENSORS)
        expected = [
            [
                (*row, {sensor: value for sensor, value in sensors.items() if sensor in kept})
                for *row, sensors in _list_rows(part)
            ]
            for part in recording.segments
        ]
        if name == "geojson":
            expected = [part for whole in expected for part in _split_at_date_line(whole)]
        assert READERS[name](text) == expected
        assert [_list_rows(part) for part in read_recording(path).segments] == expected
        lost = {sensor for part in recording.segments for sensor in part.sensors} - set(kept)
        assert {loss.removesuffix(" of points") for loss in find_losses(path, recording)} - {"activity"} == lost
        write_recording(path.with_name("other.txt"), recording, overwrite=True, format=name)
        assert path.with_name("other.txt").read_text(encoding="utf-8") == text

    read_back()


RIDE = Recording(
    (
        Segment(
            np.array([45.0, 45.001, 45.002]),
            np.array([-30.0, -30.0, -30.0]),
            np.array(["2024-05-01T08:00", "2024-05-01T08:00:20", "2024-05-01T08:00:40"], "datetime64[us]"),
            np.array([10.0, 11.5, 12.0]),
        ),
        Segment(
            np.array([45.1, 45.101]),
            np.array([-30.0, -30.0]),
            np.array(["2024-05-01T09:00", "2024-05-01T09:00:10"], "datetime64[us]"),
            np.array([10.0, 11.5]),
        ),
    ),
    "cycling",
)


@pytest.mark.parametrize(("name", "layer"), [("gpx", "track_points"), ("geojson", None), ("kml", None)])
def test_gdal_reads_the_same_locations(tmp_path, name, layer):
    pyogrio = pytest.importorskip("pyogrio")
    shapely = pytest.importorskip("shapely")
    write_recording(tmp_path / f"track.{name}", RIDE)
    frame = pyogrio.read_dataframe(tmp_path / f"track.{name}", layer=layer)
    corners = shapely.get_coordinates(frame.geometry.values)
    expected = [(-30.0, 45.0), (-30.0, 45.001), (-30.0, 45.002), (-30.0, 45.1), (-30.0, 45.101)]
    np.testing.assert_allclose(corners, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["gpx", "geojson", "csv"])
def test_sensors_keep_all_digits(tmp_path, name):
    """Receivers write speeds and courses with seven digits or more."""
    sensors = {"power": np.array([1234.5678, 250.0, 0.0]), "speed": np.array([12.3456789, 1.25e-5, 0.1 + 0.2])}
    write_recording(tmp_path / f"track.{name}", Recording((replace(RIDE.segments[0], sensors=sensors),)))
    (segment,) = read_recording(tmp_path / f"track.{name}").segments
    for sensor, values in sensors.items():
        assert segment.sensors[sensor].tolist() == values.tolist()


def test_totals_of_tcx_are_those_of_its_points(tmp_path):
    """A thousandth of a degree of latitude at 45 degrees is 111.14 m. The gap does not count."""
    write_recording(tmp_path / "track.tcx", RIDE)
    text = (tmp_path / "track.tcx").read_text(encoding="utf-8")
    values = {leaf.tag.rpartition("}")[2]: leaf.text for leaf in ElementTree.fromstring(text).iter() if not len(leaf)}
    assert float(values["TotalTimeSeconds"]) == 50
    assert float(values["DistanceMeters"]) == pytest.approx(333.4, abs=0.2)
    assert values["Id"] == "2024-05-01T08:00:00Z"
    assert 'Sport="Biking"' in text


def test_format_that_cannot_contain_the_recording_is_refused(tmp_path):
    untimed = replace(RIDE, segments=(replace(RIDE.segments[0], times=np.array([NAT] * 3)),))
    for path, recording, match in (
        ("track.tcx", untimed, "TCX requires the time of every point, and 3 of the 3 kept points have no time: use"),
        ("track.fit", RIDE, "extension of a recording must be one of .gpx, .geojson, .csv, .kml, .tcx, got '.fit'"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            write_recording(tmp_path / path, recording)
    with pytest.raises(ConfigurationError, match="format must be one of gpx, "):
        check_recording("track.gpx", "fit")
    assert not list(tmp_path.iterdir())


def test_values_that_tcx_cannot_contain_are_listed_as_lost(tmp_path):
    """The schema has one byte for pulse and for cadence, and two for watts."""
    sensors = {"hr": [0.0, 256.0, 255.0], "cad": [255.0, 254.4, math.nan], "power": [65_535.0, 1e6, -1.0]}
    columns = {name: np.array(values) for name, values in sensors.items()}
    ride = Recording((replace(RIDE.segments[0], sensors=columns), RIDE.segments[1]), "cycling")
    write_recording(tmp_path / "track.tcx", ride)
    (first, _) = _read_tcx((tmp_path / "track.tcx").read_text(encoding="utf-8"))
    assert [sensors for *_, sensors in first] == [{"power": 65_535.0}, {"cad": 254.0}, {"hr": 255.0}]
    lost = ["hr outside 1 to 255 of points", "cad outside 0 to 254 of points", "power outside 0 to 65,535 of points"]
    assert find_losses(tmp_path / "track.tcx", ride) == lost
    assert find_losses(tmp_path / "track.gpx", ride) == []
    inside = {"power": np.array([65_535.0, 0.0, math.nan])}
    assert find_losses(tmp_path / "t.tcx", replace(ride, segments=(replace(ride.segments[0], sensors=inside),))) == []
