"""Features on a map: GeoJSON (RFC 7946), other vector files through GDAL, and GPX 1.0 and 1.1 through gpxpy.

The standard library reads GeoJSON, so that times stay the texts they are and a message can name the feature. RFC 7946
fixes the reference system to WGS 84; the ``crs`` member of the older specification says so once more in what is
written, for readers that look for it (GDAL, QGIS).

GDAL (pyogrio) reads GeoPackage, KML, FlatGeobuf, Shapefile and extracts of OpenStreetMap. It recognises a file by its
content, and some of what it recognises names other files and addresses; so a file has to begin as its extension says
before GDAL sees it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.parsers import expat

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import DataFileError, check_installed, need
from dphmm.tables.binary_files import check_schema
from dphmm.tables.json_toml import read_json
from dphmm.tables.output import check_output
from dphmm.tables.source import Document, read_document, readable, suffix_of
from dphmm.tables.values import one_line, shorten

if TYPE_CHECKING:
    import shapely

Box = tuple[float, float, float, float]
"""South, west, north, east, in degrees."""

_CRS = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
_WGS84 = re.compile(r"CRS:?84|\b4326\b")


class Feature(NamedTuple):
    """What a feature says, and where it is.

    Parameters
    ----------
    properties
        Its columns.
    geometry
        A GeoJSON geometry, longitude first, or well-known binary, as it stands in the file; None where there is none.
    """

    properties: dict[str, Any]
    geometry: Any


@checked
def read_features(document: Document) -> list[Feature]:
    """Read the features of a GeoJSON collection in WGS 84.

    Parameters
    ----------
    document
        The file.

    Returns
    -------
    list of Feature
        The features, in the order of the file.

    Raises
    ------
    DataFileError
        When the file is no GeoJSON feature collection, is cut off, or is in another reference system than WGS 84.
    """
    features, system = read_collection(document)
    if system is not None and not _WGS84.search(system):
        raise DataFileError(document.source, "is in another reference system than WGS 84; export it in EPSG:4326")
    return features


def read_collection(document: Document) -> tuple[list[Feature], str | None]:
    """Read the features of a GeoJSON collection, and the name of its reference system.

    Parameters
    ----------
    document
        The file.

    Returns
    -------
    features, system
        The features in the order of the file, and what the reference system is called, where the file says so.

    Raises
    ------
    DataFileError
        When the file is no GeoJSON feature collection, or is cut off.
    """
    collection = read_json(document)
    features = collection.get("features") if isinstance(collection, dict) else None
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise DataFileError(document.source, "is no GeoJSON feature collection; export the features as one")
    system = collection.get("crs")
    kept = []
    for feature in features:
        properties = feature.get("properties")
        kept.append(Feature(properties if isinstance(properties, dict) else {}, feature.get("geometry")))
    return kept, None if system is None else _name(system)


def _name(system: object) -> str:
    """Return what the member ``crs`` of the older specification calls a reference system."""
    properties = system.get("properties") if isinstance(system, dict) else None
    return str(properties.get("name")) if isinstance(properties, dict) else ""


@checked
def write_features(path: str | Path, name: str, features: Iterable[Feature]) -> None:
    """Write a GeoJSON collection, one feature a line.

    Parameters
    ----------
    path
        The file.
    name
        What the collection is called.
    features
        The features, their geometries as GeoJSON has them.

    Raises
    ------
    ValueError
        When a number is not finite, which JSON cannot say.
    """
    path = Path(path)
    check_output(path, overwrite=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(f'{{"type": "FeatureCollection", "name": {json.dumps(name)},\n')
        stream.write(f'"crs": {json.dumps(_CRS)},\n"features": [\n')
        for number, feature in enumerate(features):
            stream.write(",\n" if number else "")
            written = {"type": "Feature", "geometry": feature.geometry, "properties": feature.properties}
            stream.write(json.dumps(written, ensure_ascii=False, allow_nan=False))
        stream.write("\n]}\n")


def geometry_of(value: object, kinds: Collection[str]) -> shapely.Geometry | None:
    """Make a geometry out of a GeoJSON object, well-known text or well-known binary.

    Only geometries of the given kinds are made: collections may be nested so deeply that the library crashes.
    Coordinates may be infinite, or NaN.

    Parameters
    ----------
    value
        What the file holds.
    kinds
        Some of `KINDS`.

    Returns
    -------
    shapely.Geometry or None
        None where there is no value.

    Raises
    ------
    ValueError
        When it does not read, or is of another kind.
    """
    if value is None:
        return None
    kind = geometry_kind(value)
    if kind not in kinds:
        said = f"a {kind}" if kind in KINDS else shorten(value)
        raise ValueError(f"geometry is {said}; give a {' or '.join(kinds)}")
    import shapely  # here, since most tables need no map

    try:
        if isinstance(value, str):
            with np.errstate(over="ignore"):  # numbers beyond all floats become infinite
                return shapely.from_wkt(value)
        if isinstance(value, bytes):
            with np.errstate(all="ignore"):  # the caller looks for numbers that are none
                return shapely.from_wkb(value)
        return shapely.from_geojson(json.dumps(value))
    except (shapely.errors.ShapelyError, RecursionError):
        raise ValueError(f"geometry is {shorten(value)}, which does not read") from None


KINDS = ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon")
"""The kinds of geometries by their numbers in well-known binary, from 1."""
_WORD = re.compile(r"\s*([A-Za-z]+)")


def geometry_kind(value: object) -> str | None:
    """Return what a geometry in one of the forms of `geometry_of` says it is; None where it does not say."""
    if isinstance(value, Mapping):
        kind = value.get("type")
        return kind if isinstance(kind, str) else None
    if isinstance(value, str):
        word = _WORD.match(value)
        return next((kind for kind in KINDS if word and kind.upper() == word[1].upper()), None)
    if isinstance(value, bytes) and value[:1] in (b"\0", b"\1") and len(value) >= 5:
        number = int.from_bytes(value[1:5], "little" if value[0] else "big") & 0x1FFFFFFF  # three bits say Z, M, SRID
        return dict(enumerate(KINDS, start=1)).get(number % 1000) if number < 4000 else None  # and so do thousands
    return None


# ---- files that GDAL reads -------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A layer of a vector file.

    Attributes
    ----------
    name
        What it is called; empty in GeoJSON.
    features
        Its features, whose geometries are GeoJSON objects or well-known binary.
    system
        Its reference system: an authority's code, or well-known text; None where the file names none and its format
        prescribes WGS 84, empty where nothing says it.
    """

    name: str
    features: list[Feature]
    system: str | None


_BEGINNINGS: Mapping[str, bytes] = {
    ".gpkg": b"SQLite format 3\0",
    ".kml": b"",  # which is parsed
    ".fgb": b"fgb\x03fgb",
    ".shp": b"\0\0\x27\x0a",
    ".pbf": b"\n\tOSMHeader",  # after the length of a header, four bytes
}
"""Extension → how such a file begins."""
_DRIVERS = ("GPKG", "LIBKML", "KML", "FlatGeobuf", "ESRI Shapefile", "OSM")
_TILES = (".pmtiles", ".mbtiles", ".mvt")


@checked
def check_vector_file(path: str | Path) -> Path:
    """Refuse a vector file that cannot be read, by its extension, before any work is done for it.

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
    DataFileError
        For an archive of map tiles; naming the command that converts it.
    MissingDependencyError
        For anything but GeoJSON without pyogrio.
    """
    path, suffix = Path(path), suffix_of(Path(path))
    if suffix in _TILES:
        reason = "is an archive of map tiles, which are not read; convert it to another vector file"
        raise DataFileError(path, f"{reason}: ogr2ogr map.gpkg {path.name}")
    if suffix in _BEGINNINGS:
        check_installed("pyogrio", "files")
    return path


@checked
def read_layers(
    path: str | Path,
    box: Box | None = None,
    names: Collection[str] | None = None,
    where: Mapping[str, str] | None = None,
) -> list[Layer]:
    """Read the layers of a vector file, by its extension; what has none of the following is read as GeoJSON.

    GeoPackage, KML, FlatGeobuf, Shapefile, and ``.osm.pbf``, an extract of OpenStreetMap.

    Parameters
    ----------
    path
        The file; KML and GeoJSON may be gzipped.
    box
        South, west, north, east in degrees: features elsewhere may be left out.
    names
        The layers that are read; left out, all that have geometries.
    where
        Layer → a condition of OGR's SQL on the features that are read of it; it narrows down no GeoJSON.

    Returns
    -------
    list of Layer
        The layers in the order of the file.

    Raises
    ------
    DataFileError
        When the file is not of the kind that its extension says, is damaged, could stand for another file or go on for
        ever, or holds map tiles.
    MissingDependencyError
        For anything but GeoJSON without pyogrio.
    """
    path = check_vector_file(path)
    suffix = suffix_of(path)
    if suffix not in _BEGINNINGS:
        return [Layer("", *read_collection(read_document(path)))]
    pyogrio, raw = need("pyogrio", "files"), need("pyogrio.raw", "files")
    given = _checked_kml(read_document(path)) if suffix == ".kml" else _checked_path(path, suffix)
    size, found = len(given) if isinstance(given, bytes) else path.stat().st_size, []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what GDAL finds odd and reads all the same
            pyogrio.set_gdal_config_options({"GDAL_PAM_ENABLED": False})  # which writes a file beside
            for number, (name, kind) in enumerate(pyogrio.list_layers(given).tolist()):
                if (kind is None) if names is None else (name not in names):
                    continue
                info = pyogrio.read_info(given, layer=number)
                if info["driver"] not in _DRIVERS or info["features"] > size:
                    raise ValueError(f"a {info['driver']} file of {info['features']} features")
                system = None if suffix == ".kml" else info["crs"] or ""
                part = None if box is None else _bounds(box, system)
                asked = {"bbox": part, "where": None if where is None else where.get(name)}
                meta, _, shapes, columns = raw.read(given, layer=number, datetime_as_string=True, **asked)
                found.append(Layer(name, _features(list(meta["fields"]), columns, shapes), system))
    except (RuntimeError, ValueError) as problem:
        raise DataFileError(path, f"is no whole {suffix} file ({one_line(problem)}); export it again") from None
    finally:
        pyogrio.set_gdal_config_options({"GDAL_PAM_ENABLED": None})
    if suffix == ".kml":
        return [layer._replace(features=[_of_kml(feature) for feature in layer.features]) for layer in found]
    return found


def _features(fields: list[str], columns: list[Any], shapes: Any) -> list[Feature]:
    cells = [[None if cell != cell else cell for cell in column.tolist()] for column in columns]  # NaN where it is NULL
    shapes = [None] * len(cells[0]) if shapes is None else shapes.tolist()
    rows = zip(*cells, strict=True) if cells else [()] * len(shapes)
    return [Feature(dict(zip(fields, row, strict=True)), shape) for row, shape in zip(rows, shapes, strict=True)]


def _checked_path(path: Path, suffix: str) -> Path:
    """Return the path of a file, refused unless it begins as its extension says."""
    with readable(path), path.open("rb") as stream:
        begins = stream.read(4 * (suffix == ".pbf") + len(_BEGINNINGS[suffix])).endswith(_BEGINNINGS[suffix])
    if not begins:
        raise DataFileError(path, f"is no {suffix} file; export it again")
    if suffix == ".gpkg":
        check_schema(path)
    return path.absolute()


_ELEMENT, _CORNER, _DEEPEST = 400, 150, 64
"""What an element of KML and a place in it take in memory, in bytes; and how deep elements may be in one another."""
_FLOAT = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_PLACES = re.compile(rf"\s*(?:{_FLOAT},{_FLOAT}(?:,(?:{_FLOAT})?)?(?:\s+|$))*", re.ASCII)
_KML_NAMES = {"Name": "name", "Description": "description"}
_KML_SETTINGS = frozenset(
    ("id", "timestamp", "begin", "end", "altitudeMode", "tessellate", "extrude", "visibility", "drawOrder", "icon")
)
"""Columns that GDAL makes for every KML file."""


def _checked_kml(document: Document) -> bytes:
    """Return the bytes of a KML file (OGC 12-007r2, and Google's older ones), refused unless its coordinates are plain.

    GDAL takes a coordinate that is no number for another one, and people rely on a polygon as their zone.
    """
    document.check_objects((b"<",), _ELEMENT)
    document.check_objects((b",",), _CORNER)
    inside, said, parser = list[str](), list[str](), expat.ParserCreate()

    def start(name: str, _: object) -> None:
        inside.append(name.rpartition(":")[2])
        said.clear()
        if inside[0] != "kml" or len(inside) > _DEEPEST:
            raise ValueError(f"its root is {shorten(inside[0])}" if len(inside) == 1 else "it is nested too deeply")

    def end(_: str) -> None:
        if inside.pop() == "coordinates" and not _PLACES.fullmatch("".join(said)):
            raise ValueError("coordinates are not lon,lat,altitude with a space between two places")

    def refuse(*_: object) -> None:
        raise ValueError("it declares a document type, which KML has none of")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, said.append
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(document.data, True)
    except (expat.ExpatError, ValueError, LookupError) as problem:
        raise DataFileError(document.source, f"is no well-formed KML ({one_line(problem)}); export it again") from None
    return document.data


def _of_kml(feature: Feature) -> Feature:
    """Return a placemark with the properties that its author gave it, and its rings closed."""
    import shapely

    said = {_KML_NAMES.get(name, name): cell for name, cell in feature.properties.items() if name not in _KML_SETTINGS}
    shape = shapely.to_wkb(shapely.from_wkb(feature.geometry, on_invalid="fix"), output_dimension=2)
    return Feature({name: cell for name, cell in said.items() if cell is not None}, shape)


# ---- reference systems -----------------------------------------------------------------------------------------------

_CODE = re.compile(r"\b(EPSG|ESRI|OGC|IAU_\d{4})\W+(?:[\d.]*\W+)?(\w{1,20})$", re.ASCII | re.IGNORECASE)
_WELL_KNOWN_TEXT = re.compile(r"\s*[A-Z]{4,12}(?:CRS|CS|CRS\d)?\s*\[", re.ASCII)


def to_degrees(system: object) -> Callable[..., Any] | None:
    """Return what turns coordinates of a reference system into longitudes and latitudes on WGS 84.

    Parameters
    ----------
    system
        An authority's code (``EPSG:32650``, also as a URN), well-known text, or a PROJJSON object; None for WGS 84.

    Returns
    -------
    callable or None
        From two arrays to two arrays; None where the coordinates are longitudes and latitudes on WGS 84 already.

    Raises
    ------
    ValueError
        When it is none of these, or is not known.
    """
    transformer = _transformer(system)
    return None if transformer is None else transformer.transform


def _transformer(system: object) -> Any:
    """A `pyproj.Transformer` from a reference system to longitude and latitude on WGS 84; None where it is that."""
    if system is None or (isinstance(system, str) and len(system) < 100 and _WGS84.search(system)):
        return None
    from pyproj import CRS, Transformer
    from pyproj.exceptions import ProjError

    if isinstance(system, str):  # PROJ would look into files
        code = _CODE.search(system)
        if code is None and not _WELL_KNOWN_TEXT.match(system):
            raise ValueError(f"{shorten(system)} is no code of a reference system")
        system = system if code is None else f"{code[1].upper()}:{code[2]}"
    elif not isinstance(system, Mapping):
        raise ValueError(f"{shorten(system)} is no reference system")
    try:
        found, degrees = CRS.from_user_input(system), CRS("OGC:CRS84")
        if found.equals(degrees, ignore_axis_order=True) or found.to_epsg() == 4326:
            return None
        return Transformer.from_crs(found, degrees, always_xy=True)
    except ProjError as problem:
        raise ValueError(one_line(problem)) from None


def _bounds(box: Box, system: str | None) -> Box:
    """West, south, east, north of a box in a reference system; in degrees where it is not known."""
    south, west, north, east = box
    transformer = _transformer(system or None)
    if transformer is None:
        return west, south, east, north
    bounds: Box = transformer.transform_bounds(west, south, east, north, direction="INVERSE")
    return bounds


# ---- GPX -------------------------------------------------------------------------------------------------------------

_ENCODING = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z][\w.-]{0,40})["']""")
_ENCODINGS = re.compile(r"utf-?8|us-ascii|ascii|latin-?1|iso-8859-\d{1,2}|windows-125\d|cp125\d", re.IGNORECASE)
"""Encodings of text; Python knows others, some of which take very long, and some are none."""
_POINT = 1300
"""What a point takes in memory while it is parsed, in bytes."""
_LINE = re.compile(r"\bline (\d{1,9})\b")


def read_gpx(document: Document) -> Any:
    """Parse a GPX file.

    Parameters
    ----------
    document
        The file.

    Returns
    -------
    gpxpy.gpx.GPX
        Its tracks, routes and waypoints.

    Raises
    ------
    DataFileError
        When it is no well-formed GPX (a coordinate that is no number included), or declares a document type, with which
        a few lines can stand for gigabytes or for other files; with the line where it is known.
    MissingDependencyError
        When gpxpy is not installed.
    """
    gpxpy, gpx = need("gpxpy", "files"), need("gpxpy.gpx", "files")
    document.check_objects((b"<trkpt", b"<rtept", b"<wpt"), _POINT)
    try:
        text = _text(document.data)
        if "<!DOCTYPE" in text:
            raise ValueError("it declares a document type, which GPX has none of")
        return gpxpy.parse(text)
    except (gpx.GPXException, ValueError, TypeError, LookupError, AttributeError) as problem:
        reason = one_line(problem)
        place = _LINE.search(reason)
        line = int(place.group(1)) if place else None
        raise DataFileError(document.source, f"is no well-formed GPX ({reason}); export it again", line) from None


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    data = data.removeprefix(b"\xef\xbb\xbf")
    declared = _ENCODING.match(data)
    encoding = declared.group(1).decode("ascii") if declared else "utf-8"
    if not _ENCODINGS.fullmatch(encoding):
        raise ValueError(f"its encoding is {encoding}, not UTF-8")
    return data.decode(encoding)
