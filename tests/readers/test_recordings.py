"""Recordings of apps and services, packed and mixed, and files of other content."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sys
import time
import tracemalloc
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, DataFileError, DphmmError, EmptyDataError, MissingDependencyError
from dphmm.hide.recording_writers import write_recording
from dphmm.jobs import hide
from dphmm.readers import FORMATS, read, recognise
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.reading import read_recording
from dphmm.space.trajectory import Recording, Segment
from dphmm.tables import json_toml
from dphmm.tables import source as unpacking
from dphmm.tables.file_identification import identify
from dphmm.tables.json_toml import JsonItems
from dphmm.tables.source import Document
from tests import recordings

HOME = (recordings.LATITUDES[0], recordings.LONGITUDES[0])


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def write_file(tmp_path, name):
    if name.endswith(".fit"):
        pytest.importorskip("fitdecode")
    return write(tmp_path, name, recordings.FILES[name][1]())


def test_every_format_of_recordings_has_a_file():
    built = {name for name, _ in recordings.FILES.values()}
    assert built == set(FORMATS) - {"geolife", "checkins", "cabspotting"}


@pytest.mark.parametrize("name", recordings.FILES)
def test_track_is_equal_in_every_format(tmp_path, name):
    path = write_file(tmp_path, name)
    assert recognise(path) == recordings.FILES[name][0]
    result = read(path)
    (track,) = result.trajectories
    assert track.user == path.name.removesuffix(path.suffix)
    assert np.array_equal(track.times, recordings.INSTANTS)
    # FIT rounds to 8e-8 degrees, Timeline to 1e-7.
    assert np.allclose(track.latitude, recordings.LATITUDES, rtol=0, atol=1e-7)
    assert np.allclose(track.longitude, recordings.LONGITUDES, rtol=0, atol=1e-7)
    recording = read_recording(path)
    assert recording.source == recordings.FILES[name][0]
    merged = Segment.concatenate(recording.segments)
    assert set(merged.times.tolist()) == set(recordings.INSTANTS.tolist())


@pytest.mark.parametrize("name", recordings.FILES)
def test_hide_reads_every_format(tmp_path, name):
    result = hide(write_file(tmp_path, name), near=[HOME], within_km=0.1, output=tmp_path / "public.gpx")
    assert 0 < len(result.public) < result.num_points
    kept = Segment.concatenate(result.public.segments)
    assert not np.isnat(kept.times).any()


def test_recording_keeps_accuracy_elevation_and_sensors(tmp_path):
    pytest.importorskip("fitdecode")
    for name, elevation, accuracy, heart_rate in (
        ("r.gpx", 12.5, np.nan, None),
        ("r.tcx", 12.5, np.nan, 120),
        ("r.kml", 12.5, np.nan, None),
        ("r.fit", 12.4, np.nan, 120),
        ("line.geojson", 12.5, np.nan, None),
        ("overland.json", 12.5, 5, None),
        ("Records.json", np.nan, 12, None),
        ("owntracks.json", 12, 5, None),
        ("r.csv", 12.5, np.nan, None),
    ):
        segment = Segment.concatenate(read_recording(write_file(tmp_path, name)).segments)
        assert np.allclose(segment.elevation, elevation, rtol=0, atol=1e-9, equal_nan=True), name
        assert np.array_equal(segment.accuracy_m, np.full(30, accuracy), equal_nan=True), name
        assert (heart_rate is None) == ("hr" not in segment.sensors), name
        if heart_rate is not None:
            assert set(segment.sensors["hr"].tolist()) == {heart_rate}


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_packed_file_is_read(tmp_path, suffix):
    packers = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    if suffix == "zst":
        packers["zst"] = pytest.importorskip("zstandard").compress
    packed = packers[suffix](recordings.make_gpx())
    (track,) = read(write(tmp_path, f"walk.gpx.{suffix}", packed)).trajectories
    assert (track.user, len(track)) == ("walk", 30)
    with pytest.raises(DataFileError, match="truncated or damaged"):
        read(write(tmp_path, f"cut.gpx.{suffix}", packed[:-9]))


@pytest.mark.slow
def test_zstandard_frames_are_joined_and_bounded(tmp_path, monkeypatch):
    library = pytest.importorskip("zstandard")
    data = recordings.make_gpx()
    path = write(tmp_path, "r.gpx.zst", library.compress(data[:700]) + library.compress(data[700:]))
    assert read(path).points == 30
    monkeypatch.setattr(unpacking, "MIN_LIMIT_BYTES", 1 << 20)
    write(tmp_path, "r.gpx.zst", library.compress(b"<" * (1 << 27)))
    tracemalloc.start()
    with pytest.raises(DataFileError, match="unpacks to more"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 << 20


def test_archive_of_several_formats_is_read_and_names_other_files(tmp_path, caplog):
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("activities.csv", "Activity ID,Activity Date,Name\n1,2,3\n")
        archive.writestr("activities/1.gpx", recordings.make_gpx())
        archive.writestr("activities/2.tcx.gz", gzip.compress(recordings.make_tcx()))
        archive.writestr("media/a.jpg", b"\xff\xd8\xff\xe0")
        archive.writestr("places.zip", recordings.make_kmz())
    result = read(path, user="ann")
    assert result.points == 30
    assert result.merged == 60
    assert {PurePosixPath(name).name for name in result.passed_over} == {"activities.csv", "a.jpg"}
    assert "passed over 2 files without a recording: activities.csv, a.jpg" in caplog.text
    with pytest.raises(ConfigurationError, match="several formats, gpx, kml, table, tcx"):
        recognise(path)


def test_table_without_columns_among_tables_raises(tmp_path):
    write(tmp_path, "a.csv", recordings.make_csv())
    write(tmp_path, "b.csv", b"when,where\n1,2\n")
    with pytest.raises(DataFileError, match=r"b\.csv: has no column of times"):
        read(tmp_path, user="ann")


def test_folder_without_recording_raises_first_reason(tmp_path):
    write(tmp_path, "a.shp", bytes.fromhex("0000270a") + bytes(96))
    with pytest.raises(DataFileError, match="is Shapefile, which is not read here; convert it: ogr2ogr"):
        read(tmp_path)


OTHERS = {
    "a.gpkg": (b"SQLite format 3\0" + bytes(52) + b"GPKG", "GeoPackage.*ogr2ogr -f GeoJSON out.geojson a.gpkg"),
    "a.db": (b"SQLite format 3\0" + bytes(84), "SQLite.*sqlite3"),
    "a.nmea": (b"$GPRMC,100000,A,4500.0,N,03001.2,W,0,0,090324,,*00\n", "NMEA 0183.*gpsbabel -t -i nmea -f a.nmea"),
    "a.igc": (b"AXXX001 Device\r\nHFDTE090324\r\n", "IGC.*gpsbabel -t -i igc"),
    "a.gdb": (b"MsRcf\0l\0", "MapSource.*gpsbabel -t -i gdb"),
    "a.osm": (b"<?xml version='1.0'?><osm version='0.6'/>", "OpenStreetMap XML"),
    "a.html": (b"<!DOCTYPE html>\n<html><body>Log in</body></html>", "web page"),
    "a.xml": (b"<workout/>", "XML with the root element <workout>"),
    "a.7z": (b"7z\xbc\xaf\x27\x1c\0\4", "7-Zip.*unpack"),
    "a.rar": (b"Rar!\x1a\x07\1\0", "RAR"),
    "a.xls": (bytes.fromhex("d0cf11e0a1b11ae1"), "Excel"),
    "a.pdf": (b"%PDF-1.7\n", "PDF"),
    "a.mp4": (bytes(4) + b"ftypisom", "film"),
    "a.feather": (b"ARROW1\0\0", "Arrow.*Parquet"),
    "a.topojson": (b'{"type": "Topology", "objects": {}}', "TopoJSON"),
    "a.json": (b'{"settings": {"a": 1}}', r"JSON of another kind \(settings"),
    "a.bin": (bytes(range(1, 200)), "no known format"),
    "polyline.txt": (b"_p~iF~ps|U_ulLnnqC_mqNvxq`@\n", "no known format"),
    "esri.json": (b'{"spatialReference": {"wkid": 4326}, "features": [{"attributes": {}}]}', "Esri JSON"),
    "mf.json": (b'{"type": "Feature", "temporalGeometry": {"type": "MovingPoint"}}', "Moving Features"),
    "dump.sql": (b"-- a dump\n--\nCREATE TABLE a (b int);\n", "dump of a database"),
    "run.sh": (b"#!/bin/sh\necho 1, 2\n", "a script"),
    "a.wpt": (b"OziExplorer Waypoint File Version 1.1\r\n", "OziExplorer.*gpsbabel -t -i ozi"),
    "utf16.json": ('[{"time": 1}]'.encode("utf-16-le"), "UTF-16 without a byte order mark.*iconv"),
    "upper.html": (b"<!doctype html><html lang=en>", "web page"),
    "ais.nmea": (b"!AIVDM,1,1,,B,177KQJ5000G?tO`K>RA1wUbN0TKH,0*5C\n", "AIS"),
    "a.pkl": (b"\x80\x04\x95\x10\0\0", "Python pickle"),
    "a.wkt": (b"LINESTRING (1 2, 3 4)\n", "well-known text"),
    "pipe.csv": (b"time|lat|lon\n2024-03-09T10:00:00Z|45|-30\n", "other separators"),
    "comment.csv": (b"# by an app\ntime,lat,lon\n2024-03-09T10:00:00Z,45,-30\n", "lines that begin with #"),
    "prose.txt": (b"Dear Ann,\nsee you, tomorrow.\nBob\n", "no known format"),
    "cut.zip": (b"PK\x03\x04" + bytes(60), "ZIP archive that is cut off or damaged"),
    "empty.gpx": (b"", "is empty; export or copy it again"),
    "blank.json": (b" \n", "is empty; export or copy it again"),
    "a.txt": (b"Dear Ann,\nthe file is attached.\nYours\nBob\n", "no known format"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_file_is_named_in_one_line(tmp_path, name):
    data, message = OTHERS[name]
    path = write(tmp_path, name, data)
    for reader in (read, read_recording, recognise):
        with pytest.raises(DataFileError, match=message) as caught:
            reader(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_longer_rows_than_the_header_are_described(tmp_path):
    path = write(tmp_path, "a.csv", b"time,lat,lon\n" + b"2024-03-09T10:00:00Z,45,-30,\n" * 5)
    with pytest.raises(DataFileError, match="line 2: has 4 fields, but the header has 3"):
        read(path)


def test_file_without_positions_names_the_reason(tmp_path):
    indoors = (
        b"<Activity><Lap><Track><Trackpoint><Time>2024-03-09T10:00:00Z</Time></Trackpoint></Track></Lap></Activity>"
    )
    data = b"<TrainingCenterDatabase><Activities>" + indoors + b"</Activities></TrainingCenterDatabase>"
    for reader in (read, read_recording):
        with pytest.raises(EmptyDataError, match="records without a position"):
            reader(write(tmp_path, "r.tcx", data))
    path = write(tmp_path, "r.geojson", b'{"type": "GeometryCollection", "geometries": []}')
    with pytest.raises(DataFileError, match=r"geometry must be a Point.*GeometryCollection"):
        read(path)
    with pytest.raises(EmptyDataError, match="links to other files"):
        read(write(tmp_path, "r.kml", b"<kml><NetworkLink><Link><href>a.kml</href></Link></NetworkLink></kml>"))


def test_encrypted_archive_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "r.zip", "w") as archive:
        archive.writestr("r.gpx", recordings.make_gpx())
    data = bytearray((tmp_path / "r.zip").read_bytes())
    data[6] |= 1  # the flag of encryption, in both headers
    data[data.rfind(b"PK\1\2") + 8] |= 1
    with pytest.raises(DataFileError, match=r"r\.gpx: is encrypted; unpack it with its password"):
        read(write(tmp_path, "r.zip", bytes(data)))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_text_in_utf16_is_read(tmp_path, encoding):
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    for name in ("r.csv", "line.geojson", "r.jsonl", "r.gpx"):
        data = recordings.FILES[name][1]().decode().encode(encoding)
        assert read(write(tmp_path, name, mark + data)).points == 30, name


def test_table_is_read_though_its_extension_is_that_of_json(tmp_path):
    assert read(write(tmp_path, "r.json", recordings.make_csv())).points == 30


def test_features_of_owntracks_with_unknown_elevation_are_read(tmp_path):
    features = [
        {
            "type": "Feature",
            "properties": {"tst": 1, "isotst": recordings.format_iso(time)},
            "geometry": {"type": "Point", "coordinates": [lon, lat, None]},
        }
        for time, lat, lon in recordings.POINTS
    ]
    path = write(tmp_path, "r.geojson", json.dumps({"type": "FeatureCollection", "features": features}).encode())
    assert read(path).trajectories[0].times.tolist() == recordings.INSTANTS.tolist()
    assert np.isnan(read_recording(path).segments[0].elevation).all()


def test_unrecognised_column_of_times_is_named(tmp_path, caplog):
    for name in ("r.csv", "r.jsonl"):
        data = recordings.FILES[name][1]().replace(b"time", b"last_changed")
        assert np.isnat(read_recording(write(tmp_path, name, data)).segments[0].times).all()
        assert f"{name}: is read without times; name it with --column time=NAME, if it is one of last_" in caplog.text


def test_hemispheres_in_columns_raise(tmp_path):
    path = write(tmp_path, "r.csv", b"time,latitude,N/S,longitude,E/W\n2024-03-09T10:00:00Z,45,N,30,W\n")
    for reader in (read, read_recording):
        with pytest.raises(DataFileError, match=r"hemispheres in 'N/S'.*negative"):
            reader(path)


def test_spaces_before_the_declaration_of_xml_are_ignored(tmp_path):
    assert read(write(tmp_path, "r.gpx", b"  \n " + recordings.make_gpx())).points == 30


def test_table_of_five_columns_is_not_taken_for_check_ins(tmp_path):
    rows = (f"{recordings.format_iso(time)}\t{lat}\t{lon}\t3\ta" for time, lat, lon in recordings.POINTS)
    path = write(tmp_path, "r.txt", "\n".join(["time\tlat\tlon\televation\tname", *rows]).encode())
    assert read(path).points == 30
    checkins = "".join(f"7\t{recordings.format_iso(time)}\t{lat}\t{lon}\tp\n" for time, lat, lon in recordings.POINTS)
    path = write(tmp_path, "c.txt", f"7\t\t\t\t\n{checkins}".encode())
    assert recognise(path) == "checkins"
    assert read(path, skip_bad=True).points == 30


def test_hide_passes_over_rows_without_a_position(tmp_path):
    path = write(tmp_path, "r.csv", recordings.make_csv() + b"2024-03-09T11:00:00Z,,,\n")
    recording = read_recording(path)
    assert (len(recording), recording.dropped) == (30, ("records without a position",))
    with pytest.raises(DataFileError, match=r"line 32: latitude must be a decimal number, got ''.*--skip-bad"):
        read(path)
    path = write(tmp_path, "r.csv", recordings.make_csv() + b"2024-03-09T11:00:00Z,95,1,\n")
    with pytest.raises(DataFileError, match=r"latitude must be in \[-90, 90\], got 95.0$"):  # hide has no --skip-bad
        read_recording(path)


def test_workbook_is_named_though_it_is_a_zip_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(DataFileError, match=r"Excel workbook \(.xlsx\).*CSV"):
        read(tmp_path / "a.xlsx")


@pytest.mark.parametrize(
    "data",
    [b"<?x?>a" * 10_000, b"<!--x-->a" * 7_000, b"<!DOCTYPE " + b"a" * 65_000, b'{"a": ' + b'\\"' * 32_000],
    ids=["instructions", "comments", "document type", "quotes"],
)
def test_time_of_recognition_is_linear(data):
    start = time.process_time()
    identify(data)
    assert time.process_time() - start < 1  # milliseconds; exponential or quadratic: at least several seconds


@given(st.binary(max_size=300))
def test_any_bytes_are_identified_without_error(data):
    kind = identify(data)
    assert kind is None or (kind.format is None) != (kind.format in FORMATS)


# ---- times, routes, versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["2024-03-09T10:00:00,000Z", "2024-03-09T10:00:00 UTC", "2024-03-09 10:00:00", " 2024-03-09T11:00:00+01:00 "],
)
def test_variants_of_times_are_read(tmp_path, text):
    data = recordings.make_gpx().replace(recordings.format_iso(recordings.START).encode(), text.encode())
    assert np.array_equal(read(write(tmp_path, "r.gpx", data)).trajectories[0].times, recordings.INSTANTS)


def test_missing_time_is_unknown_for_hide_and_invalid_time_is_named(tmp_path):
    first = recordings.format_iso(recordings.START).encode()
    path = write(tmp_path, "null.gpx", recordings.make_gpx().replace(first, b"null"))
    assert np.isnat(read_recording(path).segments[0].times).tolist() == [True] + 29 * [False]
    with pytest.raises(DataFileError, match="track 1, segment 1, point 1: has no time"):
        read(path)
    path = write(tmp_path, "odd.gpx", recordings.make_gpx().replace(first, b"9 March"))
    for reader in (read, read_recording):
        with pytest.raises(DataFileError, match=r"track 1, segment 1, point 1: time must be ISO 8601 .*9 March"):
            reader(path)


def test_route_is_hidden_but_not_a_trajectory(tmp_path):
    points = "".join(f'<rtept lat="{lat}" lon="{lon}"/>' for _, lat, lon in recordings.POINTS)
    path = write(tmp_path, "r.gpx", f"<gpx><wpt lat='1' lon='1'/><rte><name>plan</name>{points}</rte></gpx>".encode())
    with pytest.raises(EmptyDataError, match="1 waypoints and 1 routes"):
        read(path)
    result = hide(path, near=[HOME], within_km=0.1)
    assert result.num_points == 30
    assert "waypoints" in result.removed


def test_line_of_kml_has_times_at_its_ends(tmp_path):
    places = " ".join(f"{lon},{lat}" for _, lat, lon in recordings.POINTS)
    begin, end = map(recordings.format_iso, (recordings.START, recordings.TIMES[-1]))
    span = f"<begin>{begin}</begin><end>{end}</end>"
    line = f"<LineString><coordinates>{places}</coordinates></LineString>"
    data = f"<kml><Placemark><TimeSpan>{span}</TimeSpan>{line}</Placemark></kml>"
    result = read(write(tmp_path, "r.kml", data.encode()))
    assert result.trajectories[0].times.tolist() == recordings.INSTANTS[[0, -1]].tolist()
    assert sum(result.refused.values()) == 28
    assert len(read_recording(tmp_path / "r.kml")) == 30
    untimed = write(tmp_path, "plain.kml", f"<kml><Placemark>{line}</Placemark></kml>".encode())
    with pytest.raises(EmptyDataError, match="1 shapes without times"):
        read(untimed)
    assert len(read_recording(untimed)) == 30


def test_fit_with_undeclared_fields_of_developers_is_read(tmp_path):
    pytest.importorskip("fitdecode")
    assert read(write(tmp_path, "r.fit", recordings.make_fit(is_extended=True))).points == 30


def test_fit_that_is_damaged_or_without_library_raises(tmp_path, monkeypatch):
    pytest.importorskip("fitdecode")
    data = recordings.make_fit()
    for damaged in (data[:-30], data[:100] + bytes([data[100] ^ 255]) + data[101:], data[:20]):
        with pytest.raises(DataFileError, match="damaged or cut off"):
            read(write(tmp_path, "r.fit", damaged))
    monkeypatch.setitem(sys.modules, "fitdecode", None)
    with pytest.raises(MissingDependencyError, match=r"dphmm\[files\]"):
        read(write(tmp_path, "r.fit", data))


# ---- large and hostile files -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_large_records_are_read_in_constant_memory(tmp_path, monkeypatch):
    item = b'{"latitudeE7": 450000000, "longitudeE7": -300200000, "timestamp": "2024-03-09T10:%02d:%02dZ"},'
    items = b"".join(item % divmod(second % 3600, 60) for second in range(3600))
    path = tmp_path / "Records.json"
    with path.open("wb") as stream:
        stream.write(b'{"locations": [')
        for _ in range(20):
            stream.write(items)
        stream.write(b'{"source": "WIFI"}]}')
    monkeypatch.setattr(unpacking, "_MAX_EAGER_BYTES", 1 << 20)
    monkeypatch.setattr(json_toml, "_BUFFER_CHARACTERS", 1 << 16)
    monkeypatch.setattr("dphmm.readers.fixes._BLOCK_FIXES", 4096)
    (document,) = unpacking.documents(path)
    tracemalloc.start()
    num_fixes = sum(len(block.times) for block in FORMATS["timeline"].fixes(document, ReadOptions()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_fixes == 72000
    assert peak < 6 << 20 < path.stat().st_size


@pytest.mark.parametrize("name", ["r.json", "r.geojson"])
@pytest.mark.parametrize("opening", [b'{"features":', b"[", b'{"locations":[{"a":'])
def test_deeply_nested_json_raises(tmp_path, name, opening):
    with pytest.raises(DataFileError) as caught:
        read(write(tmp_path, name, opening * 100_000), "geojson")
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


class _Pieces:
    def __init__(self, data, size):
        self._data, self._size = data, size

    def read(self, _):
        part, self._data = self._data[: self._size], self._data[self._size :]
        return part


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(JSON, st.lists(JSON, max_size=4), st.integers(1, 9), st.integers(1, 40), st.booleans())
def test_items_of_any_json_do_not_depend_on_buffer(value, items, piece, buffer, is_ascii):
    text = json.dumps({"a": value, "locations": items, "b": [value]}, ensure_ascii=is_ascii)
    data = f"{text}\n\x1e{text}".encode("utf-8", "surrogatepass")
    expected = [*(("locations", item) for item in items), ("", {"a": value, "b": [value]})] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_toml, "_BUFFER_CHARACTERS", buffer)
        for content in (data, partial(_Pieces, data, piece)):
            document = Document("a.json", PurePosixPath("a.json"), content)
            assert list(JsonItems(document).walk(("locations",))) == expected


# ---- written and read again ------------------------------------------------------------------------------------------


@st.composite
def tracks(draw):
    segments = []
    second = 1_700_000_000
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 5))

        def draw_numbers(low, high, size=size):
            return np.array(draw(st.lists(st.integers(low, high), min_size=size, max_size=size)))

        times = (second + np.cumsum(draw_numbers(1, 4000))).astype("datetime64[s]")
        second = int(times[-1].astype(int))
        latitude, longitude = (draw_numbers(-899_999_999, 899_999_999) / 1e7 for _ in range(2))
        heart_rate = draw_numbers(0, 220).astype(float)
        sensors = {"hr": np.where(heart_rate < 30, np.nan, heart_rate)}
        height = draw_numbers(-4000, 80000) / 10
        segments.append(Segment(latitude, longitude, times.astype("datetime64[us]"), height, sensors))
    return Recording(tuple(segments))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(tracks(), st.sampled_from([".gpx", ".geojson", ".csv", ".kml", ".tcx"]), st.booleans())
def test_written_recording_is_read_again(tmp_path_factory, recording, suffix, has_times):
    if not has_times and suffix != ".tcx":
        nothing = [np.full(len(segment), "NaT", "datetime64[us]") for segment in recording.segments]
        parts = [replace(segment, times=times) for segment, times in zip(recording.segments, nothing, strict=True)]
        recording = Recording(tuple(parts))
    path = tmp_path_factory.mktemp("written") / f"r{suffix}"
    write_recording(path, recording)
    copy = read_recording(path)
    assert list(map(len, copy.segments)) == list(map(len, recording.segments))
    again, whole = (Segment.concatenate(part.segments) for part in (copy, recording))
    for name in ("times", "latitude", "longitude", "elevation"):
        assert np.array_equal(getattr(again, name), getattr(whole, name), equal_nan=True), name
    if suffix != ".kml":
        hr = again.sensors.get("hr", np.full(len(again), np.nan))
        assert np.array_equal(hr, whole.sensors["hr"], equal_nan=True)


# ---- files of bug reports --------------------------------------------------------------------------------------------

_CASES = Path(os.environ.get("DPHMM_CASES", "absent"))
# Folder → options, and whether `read` reads it, and `hide`.
_EXPECTED = {
    "e00_plain": ({}, True, True),
    "e01_null_first": ({}, True, True),
    "e03_unordered": ({}, True, True),
    "e04_two_days": ({}, True, True),
    "f00_plain": ({}, True, True),
    "f01_null_before": ({}, True, True),
    "g11_timenull": ({}, False, True),
    "g12_route": ({}, False, True),
    "g18_time_comma": ({}, True, True),
    "g18_time_utc": ({}, True, True),
    "g19b_prefix": ({}, True, True),
    "g20d_xz": ({}, True, True),
    "j01_linestring_coordTimes": ({}, True, True),
    "j02_linestring": ({}, False, True),
    "j04_overland_batch": ({}, True, True),
    "j06_ndjson": ({}, True, True),
    "j07_epoch_ms": ({"time_format": "ms"}, True, True),
    "k01_timeline_android": ({}, True, True),
    "k03_records": ({}, True, True),
    "k04_semantic": ({}, True, False),
    "o05_api_json": ({}, True, True),
    "s12_ndjson": ({}, True, True),
    "s13_strava_zip": ({"user": "ann"}, True, None),
    "t01_tcx": ({}, True, True),
    "t02_kml_gxtrack": ({}, True, True),
    "t02c_kmz": ({}, True, True),
    "t03_fit": ({}, True, True),
}


@pytest.mark.skipif(not _CASES.is_dir(), reason="files of bug reports are absent: set DPHMM_CASES to their folder")
@pytest.mark.parametrize("name", _EXPECTED)
def test_files_of_bug_reports(tmp_path, name):
    options, is_read, is_hidden = _EXPECTED[name]
    (path,) = (path for path in (_CASES / name).iterdir() if path.name != "EXPECTED.txt")
    if name.startswith("t03"):
        pytest.importorskip("fitdecode")
    calls = [(partial(read, path, **options), is_read)]
    if is_hidden is not None:
        near = () if name.startswith("e") else [(45.0, -30.02)]
        ends = {"hide_endpoints": True} if name.startswith("e") else {}
        output = tmp_path / "public.gpx"
        calls.append((partial(hide, path, near=near, within_km=0.2, output=output, **ends, **options), is_hidden))
    for call, succeeds in calls:
        problem = None
        try:
            call()
        except DphmmError as caught:
            problem = caught
        assert (problem is None) == succeeds, problem
        assert "\n" not in str(problem)
