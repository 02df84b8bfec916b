"""Releases as files in the format that the extension asks for, recordings, and paths of people who do not exist.

All are in WGS 84: a CSV of releases has it in a column of its own, a GPX in its description.
A GPX of releases has one track per user, the other columns in extensions of each point; what has no place is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, OutputError, need
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import SENSORS, Recording, Segment
from dphmm.tables import Feature, Table, iso_time, new_file, read_document, read_features, write_csv, write_features
from dphmm.tables.output import check_extras
from dphmm.tables.source import readable
from dphmm.tables.values import one_line, since_epoch
from dphmm.tables.vector_files import read_gpx
from dphmm.writers import geopackage
from dphmm.writers.geopackage import Geometry, in_words, places
from dphmm.writers.table import COLUMNS, CRS, Column, ReleaseTable


def write_delimited(path: Path, table: ReleaseTable, *_: object) -> None:
    """Write a CSV; numbers are written so that they read back bit for bit, an unknown one as an empty field."""
    columns = [_texts(column, table) for column in COLUMNS]
    rows = ([*values, CRS] for values in zip(*columns, strict=True))
    write_csv(path, [column.name for column in COLUMNS] + ["crs"], rows)


def _texts(column: Column, table: ReleaseTable) -> Iterable[str]:
    values = table[column.name]
    if column.kind == "time":
        return map(iso_time, values)
    if column.kind == "number":
        return ("" if math.isnan(value) else repr(value) for value in values.tolist())
    return (str(value).lower() if column.kind == "flag" else str(value) for value in values.tolist())


def read_delimited(path: Path) -> ReleaseTable:
    """Read what `write_delimited` wrote; columns may stand in any order, and further ones are not read."""
    table = Table.read(path, empty=True)
    return ReleaseTable({column.name: table.values(column.name, column.parse) for column in COLUMNS})


def write_geojson(path: Path, table: ReleaseTable, geometry: Geometry = "estimate", *_: object) -> None:
    """Write GeoJSON, one feature a line; a row without the place asked for has a null geometry."""
    latitude, longitude, known = places(table, geometry)
    found = zip(table.rows(), latitude.tolist(), longitude.tolist(), known.tolist(), strict=True)
    features = (Feature(row, {"type": "Point", "coordinates": [x, y]} if there else None) for row, y, x, there in found)
    write_features(path, "releases", features)


def read_geojson(path: Path) -> ReleaseTable:
    """Read what `write_geojson` wrote."""
    rows = [properties for properties, _ in read_features(read_document(path))]
    for row in rows:
        if row.get("constrained_factor", 0) is None:  # JSON has no infinity
            row["constrained_factor"] = math.inf
    return ReleaseTable.parse(rows)


NAMESPACE = "urn:dphmm:release"
_EXTENDED = [column.name for column in COLUMNS if column.name not in ("user", "time")]
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")


def write_gpx(path: Path, table: ReleaseTable, geometry: Geometry = "estimate", is_private: bool = True) -> None:
    """Write GPX 1.1: one track per user, in the order in which they first occur; rows without the place are left out.

    What an estimate is expected to be off is each point's comment, the other columns are its extensions.
    """
    gpx = need("gpxpy.gpx", "files")
    document = gpx.GPX()
    document.creator = "dphmm"
    document.description = f"{in_words(is_private, geometry)} Coordinates are WGS 84 ({CRS})."
    document.nsmap["dphmm"] = NAMESPACE
    segments: dict[str, Any] = {}
    latitude, longitude, known = places(table, geometry)
    cells = [values.tolist() for values in table.select(known).columns.values()]
    for y, x, *values in zip(latitude[known].tolist(), longitude[known].tolist(), *cells, strict=True):
        row = dict(zip(table.columns, values, strict=True))
        segment = segments.setdefault(row["user"], gpx.GPXTrackSegment())
        segment.points.append(_gpx_point(gpx, row, y, x, geometry == "estimate"))
    for user, segment in segments.items():
        track = gpx.GPXTrack(name=user)
        track.segments.append(segment)
        document.tracks.append(track)
    text = document.to_xml(version="1.1")
    if _NO_XML.search(text):
        raise OutputError(f"{path}: a user's name holds a control character, which GPX cannot; write another format")
    path.write_text(text, encoding="utf-8")


def _gpx_point(gpx: Any, row: dict[str, Any], latitude: float, longitude: float, is_estimate: bool) -> Any:
    off = f"expected to be {row['estimate_radius_m']:.0f} m off" if is_estimate else None
    point = gpx.GPXTrackPoint(latitude, longitude, time=row["time"].replace(tzinfo=UTC), comment=off)
    for name in _EXTENDED:
        element = ElementTree.Element(f"{{{NAMESPACE}}}{name}")
        element.text = str(row[name])
        point.extensions.append(element)
    return point


def read_gpx_releases(path: Path) -> ReleaseTable:
    """Read what `write_gpx` wrote."""
    tracks = read_gpx(read_document(path)).tracks
    return ReleaseTable.parse([_row(track.name or "", point) for track in tracks for point in track.walk(True)])


def _row(user: str, point: Any) -> dict[str, Any]:
    extended = {str(element.tag).split("}")[-1]: element.text or "" for element in point.extensions}
    try:
        time = None if point.time is None else np.datetime64(since_epoch(point.time), "us")
    except ValueError as problem:  # of an offset from UTC of over a day
        raise InvalidInputError(f"a time of {user} is none ({problem})") from None
    return extended | {"user": user, "time": time}


class Format(NamedTuple):
    """A format of releases: what writes a table to a path, and what reads it from there."""

    write: Callable[..., None]
    read: Callable[[Path], ReleaseTable]


_GEOJSON = Format(write_geojson, read_geojson)
_GEOPARQUET = Format(geopackage.write_geoparquet, geopackage.read_geoparquet)

FORMATS: Mapping[str, Format] = {
    ".gpkg": Format(geopackage.write_geopackage, geopackage.read_geopackage),
    ".geojson": _GEOJSON,
    ".json": _GEOJSON,
    ".csv": Format(write_delimited, read_delimited),
    ".gpx": Format(write_gpx, read_gpx_releases),
    ".parquet": _GEOPARQUET,
    ".geoparquet": _GEOPARQUET,
}
"""Extension → the format."""


@checked
def check_format(path: str | Path, formats: Iterable[str] = tuple(FORMATS), what: str = "format") -> Path:
    """Refuse the path of an output for which there is no format, or whose format needs a library that is missing.

    Parameters
    ----------
    path
        The file.
    formats
        The extensions that there are.
    what
        What goes by them, for the message.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        When no format goes by its extension; naming those that do.
    MissingDependencyError
        When a library is not installed; naming the command that installs it.
    """
    path = Path(path)
    if path.suffix.lower() not in formats:
        raise ConfigurationError(
            f"{path}: no {what} goes by {path.suffix or 'no extension'!r}; use {', '.join(formats)}"
        )
    check_extras(path)
    return path


def write_releases(
    path: str | Path,
    table: ReleaseTable,
    overwrite: bool = False,
    geometry: Geometry = "estimate",
    is_private: bool = True,
) -> None:
    """Write releases in the format of the file's extension, whole or not at all.

    Parameters
    ----------
    path
        The file.
    table
        The releases.
    overwrite
        Whether a file that exists may be replaced.
    geometry
        Where formats with one place for each row (GeoJSON, GPX, GeoParquet) have it: at the ``"estimate"``, or where
        something was ``"released"``. A GeoPackage has a layer of each; all columns are in every format.
    is_private
        Whether noise came from the operating system. Where it follows from a seed, files that say what is promised
        (GeoPackage, GPX) say that nothing is.

    Raises
    ------
    ConfigurationError
        When no format goes by the extension.
    InvalidInputError
        For another geometry.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    path = check_format(path)
    places(table, geometry)  # refuses another geometry
    with new_file(path, overwrite) as part:
        FORMATS[path.suffix.lower()].write(part, table, geometry, is_private)


@checked
def read_releases(path: str | Path) -> ReleaseTable:
    """Read the releases in a file that `write_releases` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    ReleaseTable
        The releases in the order of the file.

    Raises
    ------
    DataFileError
        When the file is missing, damaged, or holds something else than releases.
    ConfigurationError
        When no format goes by the extension.
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    path = check_format(path)
    with readable(path), path.open("rb") as stream:
        empty = not stream.read(1)
    if empty:
        raise DataFileError(path, "is empty; write the releases anew")
    try:
        return FORMATS[path.suffix.lower()].read(path)
    except InvalidInputError as problem:
        reason = one_line(problem)
        if isinstance(problem, DataFileError):
            reason = problem.problem if problem.line is None else f"line {problem.line}: {problem.problem}"
        raise DataFileError(path, f"does not hold releases ({reason}); write it with 'dphmm release'") from None


# ---- recordings ------------------------------------------------------------------------------------------------------

_GARMIN = "http://www.garmin.com/xmlschemas/TrackPointExtension/v2"
_RECORDED = 7
"""Decimals of a degree: a centimetre."""


def _recording_gpx(path: Path, recording: Recording) -> None:
    gpx = need("gpxpy.gpx", "files")
    document, track = gpx.GPX(), gpx.GPXTrack()
    document.creator, track.type = "dphmm", recording.activity
    document.nsmap["gpxtpx"] = _GARMIN
    document.tracks.append(track)
    for segment in recording.segments:
        track.segments.append(gpx.GPXTrackSegment([_sensor_point(gpx, segment, at) for at in range(len(segment))]))
    path.write_text(document.to_xml(version="1.1"), encoding="utf-8", newline="\n")


def _sensor_point(gpx: Any, segment: Segment, at: int) -> Any:
    when, high = segment.times[at], float(segment.elevation[at])
    time = None if np.isnat(when) else when.astype("datetime64[us]").item().replace(tzinfo=UTC)
    place = (round(float(values[at]), _RECORDED) for values in (segment.latitude, segment.longitude))
    point = gpx.GPXTrackPoint(*place, None if math.isnan(high) else high, time)
    said = {name: float(values[at]) for name, values in segment.sensors.items() if not math.isnan(values[at])}
    if "power" in said:
        power = ElementTree.Element("power")
        power.text = f"{said.pop('power'):g}"
        point.extensions.append(power)
    if said:
        sensors = ElementTree.Element(f"{{{_GARMIN}}}TrackPointExtension")
        for name in (name for name in ("atemp", "hr", "cad", "speed", "course") if name in said):  # the schema's order
            ElementTree.SubElement(sensors, f"{{{_GARMIN}}}{name}").text = f"{said[name]:g}"
        point.extensions.append(sensors)
    return point


def _recording_geojson(path: Path, recording: Recording) -> None:
    def features() -> Iterator[Feature]:
        for segment in recording.segments:
            corners = np.round(np.stack([segment.longitude, segment.latitude], axis=1), _RECORDED).tolist()
            alone = len(corners) == 1
            shape = {"type": "Point" if alone else "LineString", "coordinates": corners[0] if alone else corners}
            times = [None if np.isnat(one) else iso_time(one) for one in segment.times]
            yield Feature({"coordTimes": times, "activity": recording.activity}, shape)

    write_features(path, "recording", features())


def _recording_csv(path: Path, recording: Recording) -> None:
    said = [name for name in SENSORS if any(name in one.sensors for one in recording.segments)]

    def rows() -> Iterator[Iterable[str]]:
        for number, one in enumerate(recording.segments):
            blank = np.full(len(one), np.nan)
            columns = [one.latitude.round(_RECORDED), one.longitude.round(_RECORDED), one.elevation]
            columns += [one.sensors.get(name, blank) for name in said]
            for time, *values in zip(one.times, *columns, strict=True):
                told = ("" if math.isnan(value) else repr(float(value)) for value in values)
                yield [str(number), "" if np.isnat(time) else iso_time(time), *told]

    write_csv(path, ["segment", "time", "latitude", "longitude", "elevation", *said], rows())


_RECORDINGS: Mapping[str, Callable[[Path, Recording], None]] = {
    ".gpx": _recording_gpx,
    ".geojson": _recording_geojson,
    ".csv": _recording_csv,
}


@checked
def check_recording(path: str | Path) -> Path:
    """Refuse the path of a recording for which there is no format.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        When no format goes by its extension; naming those that do.
    MissingDependencyError
        For GPX without gpxpy.
    """
    return check_format(path, _RECORDINGS, "recording")


@checked
def write_recording(path: str | Path, recording: Recording, overwrite: bool = False) -> None:
    """Write a recording in the format of the file's extension, whole or not at all.

    Parameters
    ----------
    path
        The file: .gpx, .geojson or .csv.
    recording
        What is written; the same recording makes the same file.
    overwrite
        Whether a file that exists may be replaced.

    Raises
    ------
    ConfigurationError, MissingDependencyError
        As `check_recording`.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    path = check_recording(path)
    with new_file(path, overwrite) as part:
        _RECORDINGS[path.suffix.lower()](part, recording)


# ---- paths -----------------------------------------------------------------------------------------------------------

_HEADER = ("user", "time", "latitude", "longitude")
_LAYER = "people"
_ROUNDED = 6
"""Degrees are rounded to about a decimetre."""


Add = Callable[[Sequence[str], npt.NDArray[Any]], object]
"""Writes some people, whose states at every time are ``(n, T)``, to a file of paths."""


@contextmanager
def _paths_csv(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """One line for each person and time, their cells made once for each time and state."""
    when = [f",{iso_time(time)}," for time in times]
    where = np.array([f"{latitude!r},{longitude!r}\r\n" for latitude, longitude in points.tolist()], object)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(_HEADER) + "\r\n")

        def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
            for user, row in zip(users, states, strict=True):
                between = zip(when, where[row].tolist(), strict=True)
                file.write("".join([user + time + place for time, place in between]))

        yield add


@contextmanager
def _paths_parquet(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """A group of rows for each block."""
    arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
    kinds = (arrow.string(), arrow.timestamp("us", tz="UTC"), *[arrow.float64()] * 2)
    schema = arrow.schema(list(zip(_HEADER, kinds, strict=True)))
    with path.open("wb") as stream, parquet.ParquetWriter(stream, schema, write_page_checksum=True) as writer:

        def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
            count, length = states.shape
            number = np.repeat(np.arange(count, dtype=np.int32), length)
            names = arrow.DictionaryArray.from_arrays(number, arrow.array(list(users))).cast(arrow.string())
            when = arrow.array(np.tile(times, count), type=schema.field("time").type)
            where = (arrow.array(np.ascontiguousarray(part)) for part in points[states.ravel()].T)
            writer.write_table(arrow.table([names, when, *where], schema=schema))

        yield add


@contextmanager
def _paths_geopackage(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """One layer of points, to which each block is added."""
    geopandas, pyogrio = need("geopandas", "files"), need("pyogrio", "files")
    file = path.absolute()

    def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
        count, length = states.shape
        latitude, longitude = points[states.ravel()].T
        cells = {"user": np.repeat(np.array(users, dtype=object), length), "time": np.tile(times, count)}
        where = geopandas.points_from_xy(longitude, latitude, crs=CRS)
        frame = geopandas.GeoDataFrame(cells, geometry=where).assign(latitude=latitude, longitude=longitude)
        frame["time"] = frame["time"].dt.tz_localize("UTC")
        about = {"layer": _LAYER, **geopackage.GPKG, "geometry_type": "Point"}
        with geopackage.written_by_gdal(file, times[-1]):
            pyogrio.write_dataframe(frame, file, append=file.exists(), **about)

    yield add


_Open = Callable[[Path, npt.NDArray[np.datetime64], FloatArray], AbstractContextManager[Add]]
PATH_FORMATS: Mapping[str, _Open] = {
    ".csv": _paths_csv,
    ".parquet": _paths_parquet,
    ".gpkg": _paths_geopackage,
}
"""Extension → what writes paths."""


def open_paths(path: Path, space: StateSpace, step: int, slots: IntArray) -> AbstractContextManager[Add]:
    """Open a new file of paths in the format of its extension.

    Parameters
    ----------
    path
        The file.
    space
        What the states are.
    step
        How long a step is, microseconds.
    slots
        ``(T,)``: the slots of the times.

    Returns
    -------
    context manager
        What writes people; at its end the file is finished.

    Raises
    ------
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    times = (slots * step).astype("datetime64[us]")
    return PATH_FORMATS[path.suffix.lower()](path, times, np.round(space.latlon(), _ROUNDED))
