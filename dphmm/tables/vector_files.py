"""Map features: GeoJSON, GeoParquet, vector files through GDAL, GPX through gpxpy.

The standard library reads GeoJSON (RFC 7946), so that times remain strings and messages can name the feature. The
format prescribes the reference system WGS 84. Written files also have the ``crs`` member of the older specification,
for programs that look for it (GDAL, QGIS).

GDAL (pyogrio) reads GeoPackage, KML, FlatGeobuf, Shapefile and extracts of OpenStreetMap. It recognises a file by its
content, and some of its formats refer to other files and addresses. Therefore GDAL is called only if a file begins with
the signature of its extension. Layers in a zip archive (KMZ, zipped Shapefiles) are unpacked first.
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.parsers import expat

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import DataFileError, check_installed, import_library
from dphmm.tables.file_identification import identify
from dphmm.tables.json_toml import parse_json, read_json
from dphmm.tables.output import check_output
from dphmm.tables.parquet_files import PARQUET_SUFFIXES, Metadata, OpenParquet
from dphmm.tables.source import Allowance, Document, convert_read_errors, get_suffix, read_document
from dphmm.tables.sqlite_files import check_schema
from dphmm.tables.values import shorten, shorten_message
from dphmm.tables.xml_files import ELEMENT_BYTES, MAX_DEPTH, decode_xml
from dphmm.validation import check_arguments

if TYPE_CHECKING:
    import shapely

# South, west, north, east, in degrees.
Box = tuple[float, float, float, float]

_CRS = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
_WGS84 = re.compile(r"CRS:?84|\b4326\b")


class Feature(NamedTuple):
    """A feature: its properties and its geometry.

    Parameters
    ----------
    properties
        Its columns.
    geometry
        A GeoJSON geometry, longitude first, or well-known binary, unchanged from the file; None if there is none.
    """

    properties: dict[str, Any]
    geometry: Any


@check_arguments
def read_features(document: Document) -> list[Feature]:
    """Read the features of a GeoJSON file in WGS 84: a collection, a feature or a geometry.

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
        If the file is not a GeoJSON feature collection, is cut off, or is in another reference system than WGS 84.
    """
    features, system = read_collection(document)
    if system is not None and not _WGS84.search(system):
        raise DataFileError(document.source, "is in another reference system than WGS 84; export it in EPSG:4326")
    return features


def read_collection(document: Document, required: str = "GeoJSON") -> tuple[list[Feature], str | None]:
    """Return the features of a GeoJSON collection, and the name of its reference system.

    Parameters
    ----------
    document
        The file.
    required
        The required formats, for the message about a file of another one.

    Returns
    -------
    features, system
        The features in the order of the file, and the name of the reference system, if the file contains it. A single
        feature, or a geometry without properties, is a collection of one.

    Raises
    ------
    DataFileError
        If the file is not GeoJSON, or is cut off.
    """
    content = identify(document.head())
    if content is not None and content.format != "geojson" and not content.name.startswith(("JSON", "TopoJSON")):
        raise DataFileError(document.source, f"must be {required}, got {content.name}")
    collection = read_json(document)
    kind = collection.get("type") if isinstance(collection, dict) else None
    if kind == "Topology":
        reason = "is TopoJSON, which is not supported; convert it to GeoJSON"
        raise DataFileError(document.source, f"{reason}: ogr2ogr layer.geojson {document.name.name}")
    features = collection.get("features") if isinstance(collection, dict) else None
    if kind == "Feature":
        features = [collection]
    elif kind in GEOMETRY_TYPES or kind == "GeometryCollection":
        features = [{"geometry": collection}]
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise DataFileError(document.source, "is not a GeoJSON feature collection; export the features as one")
    system = collection.get("crs")
    kept = []
    for feature in features:
        properties = feature.get("properties")
        kept.append(Feature(properties if isinstance(properties, dict) else {}, feature.get("geometry")))
    return kept, None if system is None else _get_name(system)


def is_wgs84(system: object) -> bool:
    """Return whether the member ``crs`` of a GeoJSON file, None if it has none, names WGS 84."""
    return system is None or _WGS84.search(_get_name(system)) is not None


def _get_name(system: object) -> str:
    """Return the name of a reference system in the member ``crs`` of the older specification."""
    properties = system.get("properties") if isinstance(system, dict) else None
    return str(properties.get("name")) if isinstance(properties, dict) else ""


@check_arguments
def write_features(path: str | Path, name: str, features: Iterable[Feature]) -> None:
    """Write a GeoJSON collection, one feature per line.

    Parameters
    ----------
    path
        The file.
    name
        The name of the collection.
    features
        The features, with GeoJSON geometries.

    Raises
    ------
    ValueError
        If a number is not finite, which JSON cannot represent.
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


def parse_geometry(value: object, kinds: Collection[str]) -> shapely.Geometry | None:
    """Convert a GeoJSON object, well-known text or well-known binary to a geometry.

    Only geometries of the specified types are built: collections may be nested so deeply that the library crashes.
    Coordinates may be infinite or NaN. The extended forms of PostGIS with a number of a reference system (SRID) are
    converted to degrees on WGS 84.

    Parameters
    ----------
    value
        The value in the file: an object, text, bytes, or text with a GeoJSON object or hexadecimal bytes.
    kinds
        Types out of `GEOMETRY_TYPES`.

    Returns
    -------
    shapely.Geometry or None
        None if there is no value.

    Raises
    ------
    ValueError
        If it is invalid, or of another type.
    """
    if value is None or value == "":
        return None
    value, system = _unwrap_geometry(value)
    kind = get_geometry_type(value)
    if kind not in kinds:
        description = f"a {kind}" if kind in GEOMETRY_TYPES else shorten(value)
        raise ValueError(f"geometry must be a {' or '.join(kinds)}, got {description}")
    import shapely  # here because most tables have no geometries

    try:
        if isinstance(value, str):
            with np.errstate(over="ignore"):  # numbers beyond the range of floats become infinite
                geometry = shapely.from_wkt(value)
        elif isinstance(value, bytes):
            with np.errstate(all="ignore"):  # the caller checks for NaN
                geometry = shapely.from_wkb(value)
            system = int(shapely.get_srid(geometry))
        else:
            geometry = shapely.from_geojson(json.dumps(value))
    except (shapely.errors.ShapelyError, RecursionError):
        raise ValueError(f"geometry is invalid, got {shorten(value)}") from None
    convert = _get_converter(system)
    return geometry if convert is None else shapely.transform(geometry, convert, interleaved=False)


_EXTENDED_TEXT = re.compile(r"\s*SRID\s*=\s*(\d{1,6})\s*;", re.ASCII | re.IGNORECASE)
_HEXADECIMAL = re.compile(r"\s*0[01](?:[0-9A-Fa-f]{2}){4,}\s*", re.ASCII)


def _unwrap_geometry(value: object) -> tuple[object, int]:
    """Return a geometry's plain form, and the SRID of its extended text. 0 if it has none."""
    if not isinstance(value, str):
        return value, 0
    if _HEXADECIMAL.fullmatch(value):
        return bytes.fromhex(value), 0
    if value.lstrip().startswith("{"):
        with suppress(ValueError):
            return parse_json(value), 0
    extended = _EXTENDED_TEXT.match(value)
    return (value, 0) if extended is None else (value[extended.end() :], int(extended[1]))


@lru_cache(maxsize=16)
def _get_converter(system: int) -> Callable[..., Any] | None:
    """Return the function from the system of an SRID to degrees. None for WGS 84."""
    return to_degrees(f"EPSG:{system}") if system > 0 else None


def parse_points(values: Sequence[object]) -> FloatArray:
    """Convert geometries in the forms of `parse_geometry` to coordinates.

    Parameters
    ----------
    values
        The n values.

    Returns
    -------
    array ``(n, 2)``
        Longitude and latitude of each point, or x and y if the file names another reference system elsewhere; NaN for
        values that are missing, invalid or not a point.
    """
    if all(value is None or isinstance(value, bytes) for value in values):
        # One pass over the usual case, the geometries of a GeoParquet file.
        return _parse_alike(
            [value if isinstance(value, bytes) and _is_point(value) else None for value in values], bytes, 0
        )
    points = np.full((len(values), 2), np.nan)
    groups: dict[tuple[type, int], list[tuple[int, object]]] = {}
    for at, value in enumerate(values):
        plain, system = _unwrap_geometry(value)
        if get_geometry_type(plain) == "Point":
            groups.setdefault((type(plain), system), []).append((at, plain))
    for (form, system), members in groups.items():
        points[[at for at, _ in members]] = _parse_alike([plain for _, plain in members], form, system)
    return points


_POINT_HEADERS = frozenset((b"\1\1\0\0\0", b"\0\0\0\0\1"))


def _is_point(value: bytes) -> bool:
    return value[:5] in _POINT_HEADERS or get_geometry_type(value) == "Point"


def _parse_alike(values: Sequence[object], form: type, system: int) -> FloatArray:
    """Return the coordinates of points of one form and SRID, ``(n, 2)``. NaN for None."""
    import shapely

    if form is bytes or form is str:
        parse = shapely.from_wkb if form is bytes else shapely.from_wkt
        with np.errstate(all="ignore"):
            geometries = parse(np.array(values, dtype=object), on_invalid="ignore")
    else:
        geometries = np.full(len(values), None, dtype=object)
        for at, value in enumerate(values):
            with suppress(ValueError):
                geometries[at] = parse_geometry(value, ("Point",))
    geometries[shapely.is_empty(geometries)] = None
    points = np.column_stack([shapely.get_x(geometries), shapely.get_y(geometries)])
    systems = shapely.get_srid(geometries) if form is bytes else np.full(len(values), system)
    for number in np.unique(systems):
        convert = _get_converter(int(number))
        if convert is not None:
            chosen = systems == number
            points[chosen] = np.column_stack(convert(*points[chosen].T))
    return points


# The types of geometries in the order of their numbers in well-known binary, from 1.
GEOMETRY_TYPES = ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon")
_WORD = re.compile(r"\s*([A-Za-z]+)")


def get_geometry_type(value: object) -> str | None:
    """Return the type that a geometry in a form of `parse_geometry` states, or None."""
    if isinstance(value, Mapping):
        kind = value.get("type")
        return kind if isinstance(kind, str) else None
    if isinstance(value, str):
        word = _WORD.match(value)
        return next((kind for kind in GEOMETRY_TYPES if word and kind.upper() == word[1].upper()), None)
    if isinstance(value, bytes) and value[:1] in (b"\0", b"\1") and len(value) >= 5:
        # Z, M and SRID are stored in the three highest bits or, in the ISO form, in the thousands.
        number = int.from_bytes(value[1:5], "little" if value[0] else "big") & 0x1FFFFFFF
        return dict(enumerate(GEOMETRY_TYPES, start=1)).get(number % 1000) if number < 4000 else None
    return None


# ---- files that GDAL reads -------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A layer of a vector file.

    Attributes
    ----------
    name
        The name of the layer; empty in GeoJSON.
    features
        Its features, with geometries as GeoJSON objects or well-known binary.
    system
        Its reference system: an authority's code, well-known text, or a PROJJSON object. None if the file names none
        and its format prescribes WGS 84; empty if it is unknown.
    """

    name: str
    features: list[Feature]
    system: str | Mapping[str, Any] | None


# Extension → first bytes of such a file. KML and ``.osm`` are parsed instead. In PBF they follow the length of a
# header, four bytes.
_FIRST_BYTES: Mapping[str, bytes] = {
    ".gpkg": b"SQLite format 3\0",
    ".kml": b"",
    ".fgb": b"fgb\x03fgb",
    ".shp": b"\0\0\x27\x0a",
    ".pbf": b"\n\tOSMHeader",
    ".osm": b"",
}
# The extensions of extracts in the formats of OpenStreetMap.
OPENSTREETMAP_SUFFIXES = (".pbf", ".osm")
_DRIVERS = ("GPKG", "LIBKML", "KML", "FlatGeobuf", "ESRI Shapefile", "OSM")
_TILE_SUFFIXES = (".pmtiles", ".mbtiles", ".mvt")
_ZIP_SUFFIXES = (".kmz", ".zip")
_GEOJSON_SUFFIXES = (".geojson", ".json")
_REQUIRED = "GeoJSON, or a vector file with the extension of its format, such as .osm.pbf or .gpkg"
# The other files of a Shapefile: index, attributes, reference system, encoding.
_SHAPEFILE_PARTS = (".shx", ".dbf", ".prj", ".cpg")


@check_arguments
def check_vector_file(path: str | Path) -> Path:
    """Check by its extension that a vector file can be read, before any work is done.

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
        For an archive of map tiles, with the command that converts it.
    MissingDependencyError
        For GeoParquet without pyarrow, and for any other format except GeoJSON without pyogrio.
    """
    path, suffix = Path(path), get_suffix(Path(path))
    if suffix in _TILE_SUFFIXES:
        reason = "is an archive of map tiles, which is not supported; convert it to another vector file"
        raise DataFileError(path, f"{reason}: ogr2ogr map.gpkg {path.name}")
    if suffix in _FIRST_BYTES or suffix in _ZIP_SUFFIXES:
        check_installed("pyogrio", "files")
    elif suffix in PARQUET_SUFFIXES:
        check_installed("pyarrow", "files")
    return path


@check_arguments
def read_layers(
    path: str | Path,
    box: Box | None = None,
    names: Collection[str] | None = None,
    where: Mapping[str, str] | None = None,
) -> list[Layer]:
    """Read the layers of a vector file.

    The format is determined by the extension: GeoPackage, KML, FlatGeobuf, Shapefile, GeoParquet, or an extract of
    OpenStreetMap, ``.osm.pbf`` or ``.osm``. Other files are read as GeoJSON. A zip archive (KMZ, a zipped Shapefile)
    must contain one of these files.

    Parameters
    ----------
    path
        The file; KML, ``.osm`` and GeoJSON may be gzipped.
    box
        South, west, north, east in degrees: features outside may be omitted.
    names
        The layers to read. Defaults to all that have geometries.
    where
        Layer → condition in OGR's SQL that selects its features; ignored for GeoJSON.

    Returns
    -------
    list of Layer
        The layers in the order of the file.

    Raises
    ------
    DataFileError
        If the file does not have the format of its extension, is damaged, could refer to another file or never end,
        or contains map tiles.
    MissingDependencyError
        As for `check_vector_file`.
    """
    path = check_vector_file(path)
    suffix = get_suffix(path)
    if suffix in _ZIP_SUFFIXES:
        return _read_zipped(path, box, names, where)
    if suffix in PARQUET_SUFFIXES:
        return [read_geoparquet(read_document(path))]
    if suffix not in _FIRST_BYTES:
        return [Layer("", *read_collection(read_document(path), _REQUIRED))]
    pyogrio = import_library("pyogrio", "files")
    raw = import_library("pyogrio.raw", "files")
    source = _CHECKS[suffix](read_document(path)) if suffix in _CHECKS else _check_path(path, suffix)
    size = len(source) if isinstance(source, bytes) else path.stat().st_size
    layers = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GDAL warns about irregularities of files that it can read
            pyogrio.set_gdal_config_options({"GDAL_PAM_ENABLED": False})  # it would write an auxiliary file
            for number, (name, kind) in enumerate(pyogrio.list_layers(source).tolist()):
                if (kind is None) if names is None else (name not in names):
                    continue
                info = pyogrio.read_info(source, layer=number)
                if info["driver"] not in _DRIVERS or info["features"] > size:
                    raise ValueError(f"a {info['driver']} file of {info['features']} features")
                system = None if suffix == ".kml" else info["crs"] or ""
                part = None if box is None else _convert_box(box, system)
                selection = {"bbox": part, "where": None if where is None else where.get(name)}
                meta, _, shapes, columns = raw.read(source, layer=number, datetime_as_string=True, **selection)
                layers.append(Layer(name, _build_features(list(meta["fields"]), columns, shapes), system))
    except (RuntimeError, ValueError) as problem:
        raise DataFileError(
            path, f"is not a complete {suffix} file ({shorten_message(problem)}); export it again"
        ) from None
    finally:
        pyogrio.set_gdal_config_options({"GDAL_PAM_ENABLED": None})
    if suffix == ".kml":
        return [
            layer._replace(features=[_clean_kml_feature(feature) for feature in layer.features]) for layer in layers
        ]
    return layers


def _build_features(fields: list[str], columns: list[Any], shapes: Any) -> list[Feature]:
    cells = [[None if cell != cell else cell for cell in column.tolist()] for column in columns]  # NaN where it is NULL
    shapes = [None] * len(cells[0]) if shapes is None else shapes.tolist()
    rows = zip(*cells, strict=True) if cells else [()] * len(shapes)
    return [Feature(dict(zip(fields, row, strict=True)), shape) for row, shape in zip(rows, shapes, strict=True)]


def _read_zipped(
    path: Path, box: Box | None, names: Collection[str] | None, where: Mapping[str, str] | None
) -> list[Layer]:
    """Read the one vector file in a zip archive, after unpacking it to a temporary folder."""
    with convert_read_errors(path):
        if not zipfile.is_zipfile(path):
            raise DataFileError(path, f"is not a {get_suffix(path)} file; export it again")
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not _is_hidden(info.filename)]
            readers = (*_FIRST_BYTES, *PARQUET_SUFFIXES, *_GEOJSON_SUFFIXES)
            layers = [info for info in members if get_suffix(info.filename) in readers]
            if get_suffix(path) == ".kmz":  # the first file is the document, others are linked from it
                layers = [info for info in layers if get_suffix(info.filename) == ".kml"][:1]
            if len(layers) != 1:
                listed = ", ".join(shorten(info.filename) for info in layers[:8]) or "none"
                raise DataFileError(path, f"must contain one file of polygons, got {listed}; export a single layer")
            name = PurePosixPath(layers[0].filename)
            parts = [
                info
                for info in members
                if info is layers[0]
                or (name.suffix.lower() == ".shp" and _belongs_to(PurePosixPath(info.filename), name))
            ]
            allowance = Allowance(path, path.stat().st_size)
            with TemporaryDirectory(prefix="dphmm-") as folder:
                for info in parts:
                    with archive.open(info) as content:
                        file = Path(folder, f"layer{PurePosixPath(info.filename).suffix.lower()}")
                        file.write_bytes(allowance.read_all(content))
                unpacked = Path(folder, f"layer{name.suffix.lower()}")
                try:
                    return read_layers(unpacked, box, names, where)
                except DataFileError as problem:
                    raise DataFileError(f"{path}/{name}", problem.problem, problem.line) from None


def _is_hidden(name: str) -> bool:
    """Return whether a member of an archive is hidden, such as those that macOS adds."""
    return PurePosixPath(name).name.startswith(".") or name.startswith("__MACOSX/")


def _belongs_to(part: PurePosixPath, name: PurePosixPath) -> bool:
    """Return whether a file belongs to the Shapefile of a name."""
    return part.suffix.lower() in _SHAPEFILE_PARTS and part.with_suffix("") == name.with_suffix("")


def read_geoparquet(document: Document) -> Layer:
    """Read a GeoParquet file with geometries in well-known binary.

    Parameters
    ----------
    document
        The file.

    Returns
    -------
    Layer
        The rows with the geometry of the primary column.

    Raises
    ------
    DataFileError
        If the file is not Parquet, its metadata name no geometry column, or its encoding is another one.
    MissingDependencyError
        If pyarrow is not installed.
    """
    file = OpenParquet(document)
    name = get_geometry_column(file.metadata)
    if name is None:
        reason = "does not name a geometry column in its metadata (GeoParquet)"
        raise DataFileError(document.source, f"{reason}; export it with geopandas or GDAL")
    if name not in file.columns:
        reason = f"must have geometries in well-known binary in column {shorten(name)}"
        raise DataFileError(document.source, f"{reason}; export it with the encoding WKB")
    columns = file.read().to_pydict()
    geometries = columns.pop(name)
    rows = zip(*columns.values(), strict=True) if columns else [()] * len(geometries)
    features = [
        Feature(dict(zip(columns, row, strict=True)), shape) for row, shape in zip(rows, geometries, strict=True)
    ]
    return Layer("", features, get_column_system(file.metadata, name))


def _parse_geometry_metadata(metadata: Metadata) -> Mapping[str, Any]:
    """Return the GeoParquet metadata of a file's schema. Empty if they are invalid."""
    with suppress(ValueError, UnicodeDecodeError):
        value = parse_json(metadata.get(b"geo", b"{}"))
        return value if isinstance(value, dict) else {}
    return {}


def get_geometry_column(metadata: Metadata) -> str | None:
    """Return the primary geometry column that GeoParquet metadata name, or None."""
    name = _parse_geometry_metadata(metadata).get("primary_column")
    return name if isinstance(name, str) else None


def get_column_system(metadata: Metadata, column: str) -> Any:
    """Return the reference system of a column in GeoParquet metadata. None for WGS 84."""
    columns = _parse_geometry_metadata(metadata).get("columns")
    about = columns.get(column) if isinstance(columns, dict) else None
    return about.get("crs") if isinstance(about, dict) else None


def _check_path(path: Path, suffix: str) -> Path:
    """Return the absolute path of a file that begins with the signature of its extension."""
    with convert_read_errors(path), path.open("rb") as stream:
        begins = stream.read(4 * (suffix == ".pbf") + len(_FIRST_BYTES[suffix])).endswith(_FIRST_BYTES[suffix])
    if not begins:
        raise DataFileError(path, f"is not a {suffix} file; export it again")
    if suffix == ".gpkg":
        check_schema(path)
    return path.absolute()


_CORNER_BYTES = 150  # memory of a coordinate tuple
_FLOAT = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_PLACES = re.compile(rf"\s*(?:{_FLOAT},{_FLOAT}(?:,(?:{_FLOAT})?)?(?:\s+|$))*", re.ASCII)
_KML_NAMES = {"Name": "name", "Description": "description"}
# Columns that GDAL creates for every KML file.
_KML_SETTINGS = frozenset(
    ("id", "timestamp", "begin", "end", "altitudeMode", "tessellate", "extrude", "visibility", "drawOrder", "icon")
)


def _check_kml(document: Document) -> bytes:
    """Return the bytes of a KML file (OGC 12-007r2, and Google's older ones) after checks.

    GDAL replaces an invalid coordinate by another number, but users rely on a polygon as their zone. Therefore files
    with such coordinates are refused.
    """
    document.check_objects((b"<",), ELEMENT_BYTES)
    document.check_objects((b",",), _CORNER_BYTES)
    inside = list[str]()
    cells = list[str]()
    parser = expat.ParserCreate()

    def start(name: str, _: object) -> None:
        inside.append(name.rpartition(":")[2])
        cells.clear()
        if inside[0] != "kml" or len(inside) > MAX_DEPTH:
            raise ValueError(f"its root is {shorten(inside[0])}" if len(inside) == 1 else "it is nested too deeply")

    def end(_: str) -> None:
        if inside.pop() == "coordinates" and not _PLACES.fullmatch("".join(cells)):
            raise ValueError("coordinates must be lon,lat,altitude with a space between two points")

    def refuse(*_: object) -> None:
        raise ValueError("it declares a document type, which KML does not have")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = cells.append
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(document.data, True)
    except (expat.ExpatError, ValueError, LookupError) as problem:
        raise DataFileError(
            document.source, f"is not well-formed KML ({shorten_message(problem)}); export it again"
        ) from None
    return document.data


_OSM_ROOT = re.compile(rb"\s*(?:<\?xml[^>]{0,200}>)?\s*(?:<!--.{0,1000}?-->\s*)*<osm[\s>]", re.DOTALL)


def _check_osm(document: Document) -> bytes:
    """Return the bytes of an OpenStreetMap XML file without a document type."""
    try:
        for _ in decode_xml(document):
            pass
        if not _OSM_ROOT.match(document.data.removeprefix(b"\xef\xbb\xbf")):
            raise ValueError("its root is not osm")
    except ValueError as problem:
        raise DataFileError(
            document.source, f"is not OpenStreetMap XML ({shorten_message(problem)}); export it again"
        ) from None
    return document.data


_CHECKS: Mapping[str, Callable[[Document], bytes]] = {".kml": _check_kml, ".osm": _check_osm}


def _clean_kml_feature(feature: Feature) -> Feature:
    """Return a placemark with the properties of its author only, and its rings closed."""
    import shapely

    properties = {
        _KML_NAMES.get(name, name): cell for name, cell in feature.properties.items() if name not in _KML_SETTINGS
    }
    shape = shapely.to_wkb(shapely.from_wkb(feature.geometry, on_invalid="fix"), output_dimension=2)
    return Feature({name: cell for name, cell in properties.items() if cell is not None}, shape)


# ---- reference systems -----------------------------------------------------------------------------------------------

_CODE = re.compile(r"\b(EPSG|ESRI|OGC|IAU_\d{4})\W+(?:[\d.]*\W+)?(\w{1,20})$", re.ASCII | re.IGNORECASE)
_WELL_KNOWN_TEXT = re.compile(r"\s*[A-Z]{4,12}(?:CRS|CS|CRS\d)?\s*\[", re.ASCII)


def to_degrees(system: object) -> Callable[..., Any] | None:
    """Return a function from a reference system to longitudes and latitudes on WGS 84.

    Parameters
    ----------
    system
        An authority's code (``EPSG:32650``, also as a URN), well-known text, or a PROJJSON object; None for WGS 84.

    Returns
    -------
    callable or None
        From two arrays to two arrays; None if the coordinates are longitudes and latitudes on WGS 84 already.

    Raises
    ------
    ValueError
        If it has another form, or is unknown.
    """
    transformer = _build_transformer(system)
    return None if transformer is None else transformer.transform


def _build_transformer(system: object) -> Any:
    """Return a `pyproj.Transformer` to longitude and latitude on WGS 84. None if not needed."""
    if system is None or (isinstance(system, str) and len(system) < 100 and _WGS84.search(system)):
        return None
    from pyproj import CRS, Transformer
    from pyproj.exceptions import ProjError

    if isinstance(system, str):  # PROJ would open files
        code = _CODE.search(system)
        if code is None and not _WELL_KNOWN_TEXT.match(system):
            raise ValueError(f"reference system must be a code or well-known text, got {shorten(system)}")
        system = system if code is None else f"{code[1].upper()}:{code[2]}"
    elif not isinstance(system, Mapping):
        raise ValueError(f"reference system must be a string or a PROJJSON object, got {shorten(system)}")
    try:
        reference = CRS.from_user_input(system)
        degrees = CRS("OGC:CRS84")
        if reference.equals(degrees, ignore_axis_order=True) or reference.to_epsg() == 4326:
            return None
        return Transformer.from_crs(reference, degrees, always_xy=True)
    except ProjError as problem:
        raise ValueError(shorten_message(problem)) from None


def _convert_box(box: Box, system: object) -> Box:
    """Return west, south, east, north of a box in a reference system. Degrees if unknown."""
    south, west, north, east = box
    transformer = _build_transformer(system or None)
    if transformer is None:
        return west, south, east, north
    bounds: Box = transformer.transform_bounds(west, south, east, north, direction="INVERSE")
    return bounds


# ---- GPX -------------------------------------------------------------------------------------------------------------

_POINT_BYTES = 1300  # memory of a point during parsing
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
        If it is not well-formed GPX (this includes invalid coordinates), or declares a document type, with which a few
        lines can represent gigabytes or other files; with the line if it is known.
    MissingDependencyError
        If gpxpy is not installed.
    """
    gpxpy = import_library("gpxpy", "files")
    gpx = import_library("gpxpy.gpx", "files")
    document.check_objects((b"<trkpt", b"<rtept", b"<wpt"), _POINT_BYTES)
    try:
        return gpxpy.parse("".join(decode_xml(document)))
    except (gpx.GPXException, ValueError, TypeError, LookupError, AttributeError) as problem:
        reason = shorten_message(problem)
        place = _LINE.search(reason)
        line = int(place.group(1)) if place else None
        raise DataFileError(document.source, f"is not well-formed GPX ({reason}); export it again", line) from None
