"""Recognition of files by their first bytes and their structure.

Signatures are those of the formats' specifications. XML is recognised by its root element, JSON by its outer keys and
the keys of its first items. A file that the package does not read is named, with the command that converts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from dphmm.errors import NotRecordingError

# Number of first bytes of a file from which it is recognised.
HEAD_BYTES = 1 << 16

_GDAL = "convert it: ogr2ogr -f GeoJSON out.geojson FILE"
_CSV = "export it as CSV in UTF-8"
_BABEL = "convert it: gpsbabel -t -i {0} -f FILE -o gpx -F out.gpx"
_UNPACK = "unpack it, and read the files inside"
_NO_RECORDS = "it is not a recording of locations; name one"


@dataclass(frozen=True)
class Kind:
    """The type of a file's content.

    Parameters
    ----------
    name
        Its name in messages, such as ``"FIT"``.
    format
        The reader in `dphmm.readers.FORMATS`; None if there is none.
    advice
        What to do with a file that has no reader. ``FILE`` stands for its name.
    """

    name: str
    format: str | None = None
    advice: str = ""

    def build_error(self, source: str, wanted: str = "a recording") -> NotRecordingError:
        """Build the error for a file of this type that cannot be read.

        Parameters
        ----------
        source
            The file.
        wanted
            The content that the caller expects.
        """
        name = PurePosixPath(source).name
        advice = self.advice.replace("FILE", name) or f"export {wanted} instead"
        return NotRecordingError(source, f"is {self.name}, which is not read here; {advice}")


# Offset, bytes, kind. The first match counts.
_SIGNATURES: tuple[tuple[int, bytes, Kind], ...] = (
    (8, b".FIT", Kind("FIT", "fit")),
    (0, b"PAR1", Kind("Parquet", "table")),
    (0, b"\x1f\x8b", Kind("gzip", None, _UNPACK)),
    (0, b"BZh", Kind("bzip2", None, _UNPACK)),
    (0, b"\xfd7zXZ\0", Kind("xz", None, _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", Kind("Zstandard", None, _UNPACK)),
    (0, b"PK\x03\x04", Kind("ZIP", None, _UNPACK)),
    (0, b"PK\x05\x06", Kind("an empty ZIP archive", None, "name an archive with files")),
    (257, b"ustar", Kind("tar", None, "name it .tar, or .tar.gz if it is packed")),
    (0, b"7z\xbc\xaf\x27\x1c", Kind("7-Zip", None, _UNPACK)),
    (0, b"Rar!\x1a\x07", Kind("RAR", None, _UNPACK)),
    (0, b"\x04\x22\x4d\x18", Kind("LZ4", None, "unpack it: lz4 -d FILE")),
    (0, b"\x1f\x9d", Kind("compress (.Z)", None, "unpack it: gzip -d FILE")),
    (0, b"LZIP", Kind("lzip", None, "unpack it: lzip -d FILE")),
    (68, b"GPKG", Kind("GeoPackage", None, _GDAL)),
    (0, b"SQLite format 3\0", Kind("an SQLite database", None, "export a table: sqlite3 -header -csv FILE 'SELECT …'")),
    (0, b"\0\0\x27\x0a", Kind("Shapefile", None, _GDAL)),
    (0, b"fgb\x03fgb", Kind("FlatGeobuf", None, _GDAL)),
    (4, b"\n\tOSMHeader", Kind("OpenStreetMap PBF", None, _NO_RECORDS)),
    (0, b"PMTiles", Kind("PMTiles", None, _NO_RECORDS)),
    (0, b"mapsforge binary OSM", Kind("a Mapsforge map", None, _NO_RECORDS)),
    (0, b"ARROW1", Kind("Arrow IPC (Feather)", None, "convert it to Parquet: pyarrow.feather.read_table")),
    (0, b"FEA1", Kind("Feather", None, "convert it to Parquet: pyarrow.feather.read_table")),
    (0, b"ORC", Kind("ORC", None, "convert it to Parquet: pyarrow.orc.read_table")),
    (0, b"Obj\x01", Kind("Avro", None, "convert it to Parquet")),
    (0, b"\x89HDF\r\n\x1a\n", Kind("HDF5", None, "export the table as CSV or Parquet")),
    (0, b"CDF\x01", Kind("NetCDF", None, "export the table as CSV: ncdump")),
    (0, b"CDF\x02", Kind("NetCDF", None, "export the table as CSV: ncdump")),
    (0, b"\x93NUMPY", Kind("a NumPy array", None, _CSV)),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Kind("an Excel workbook (.xls)", None, _CSV)),
    (0, b"MsRcd\0", Kind("Garmin MapSource (GDB)", None, _BABEL.format("gdb"))),
    (0, b"MsRcf\0", Kind("Garmin MapSource (GDB)", None, _BABEL.format("gdb"))),
    (0, b"bplist00", Kind("an Apple property list", None, "convert it: plutil -convert json FILE")),
    (0, b"%PDF", Kind("PDF", None, _NO_RECORDS)),
    (0, b"\x89PNG\r\n\x1a\n", Kind("a PNG picture", None, _NO_RECORDS)),
    (0, b"\xff\xd8\xff", Kind("a JPEG picture", None, _NO_RECORDS)),
    (0, b"GIF8", Kind("a GIF picture", None, _NO_RECORDS)),
    (0, b"II*\0", Kind("TIFF", None, _NO_RECORDS)),
    (0, b"MM\0*", Kind("TIFF", None, _NO_RECORDS)),
    (8, b"WEBP", Kind("a WebP picture", None, _NO_RECORDS)),
    (4, b"ftyp", Kind("a film or picture (MP4, HEIC)", None, "export its track as GPX: exiftool -ee -p gpx.fmt FILE")),
    (0, b"ID3", Kind("MP3", None, _NO_RECORDS)),
    (0, b"RIFF", Kind("RIFF (sound or film)", None, _NO_RECORDS)),
    (0, b"\x7fELF", Kind("a program", None, _NO_RECORDS)),
    (0, b"MZ\x90\0", Kind("a program", None, _NO_RECORDS)),
    (0, b"{\\rtf", Kind("RTF", None, "save it as plain text")),
    (0, b"$FL2", Kind("SPSS", None, _CSV)),
    (0, b"<stata_dta>", Kind("Stata", None, _CSV)),
    (0, b"RDX", Kind("R data", None, f"{_CSV}: write.csv")),
    (0, b"%!PS", Kind("PostScript", None, _NO_RECORDS)),
    (0, b"OziExplorer Track", Kind("an OziExplorer track", None, _BABEL.format("ozi"))),
    (0, b"\x80\x04\x95", Kind("a Python pickle", None, _CSV)),
    (0, b"\x80\x05\x95", Kind("a Python pickle", None, _CSV)),
    (0, b"OziExplorer", Kind("a file of OziExplorer", None, _BABEL.format("ozi"))),
    (0, b"#!", Kind("a script", None, _NO_RECORDS)),
    (0, b"version https://git-lfs", Kind("a Git LFS pointer", None, "fetch the file: git lfs pull")),
)

# Root element of XML, in lower case and without namespace → kind.
_ROOTS: Mapping[str, Kind] = {
    "gpx": Kind("GPX", "gpx"),
    "trainingcenterdatabase": Kind("TCX", "tcx"),
    "kml": Kind("KML", "kml"),
    "osm": Kind("OpenStreetMap XML", None, _NO_RECORDS),
    "html": Kind("a web page (HTML)", None, "download the file itself; the page may ask you to log in"),
    "svg": Kind("an SVG picture", None, _NO_RECORDS),
    "healthdata": Kind("an export of Apple Health", None, "its tracks are GPX files in the folder workout-routes"),
    "sml": Kind("Suunto SML", None, "export the activity as FIT or GPX from Suunto's app"),
    "pwx": Kind("TrainingPeaks PWX", None, "export the activity as FIT or TCX"),
    "folders": Kind("Garmin TCX courses", None, _BABEL.format("gtrnctr")),
    "featurecollection": Kind("GML", None, _GDAL),
    "plist": Kind("an Apple property list", None, "convert it: plutil -convert json FILE"),
    "workbook": Kind("an Excel workbook (XML)", None, _CSV),
    "error": Kind("an error message in XML, not a file", None, "download the file again"),
}
# Atomic groups: otherwise the time would grow exponentially with the number of unrelated instructions.
_ROOT = re.compile(
    r"\s*+(?:(?><\?.*?\?>|<!--.*?-->|<!(?i:DOCTYPE)\s++[\w:.-]++[^\[>]*+(?:\[.*?\]\s*+)?>)\s*+)*+<(?P<root>[\w:.-]+)",
    re.S,
)

# Names of files in a ZIP archive of one document → kind.
_ZIPPED: tuple[tuple[str, Kind], ...] = (
    ("xl/", Kind("an Excel workbook (.xlsx)", None, _CSV)),
    ("word/", Kind("a Word document", None, "save it as plain text")),
    ("ppt/", Kind("a presentation", None, _NO_RECORDS)),
    ("content.xml", Kind("an OpenDocument file", None, _CSV)),
    ("AndroidManifest.xml", Kind("an Android app", None, _NO_RECORDS)),
    ("META-INF/MANIFEST.MF", Kind("a Java archive", None, _NO_RECORDS)),
)

_TEXTS: tuple[tuple[re.Pattern[bytes], Kind], ...] = (
    (re.compile(rb"\$(?:GP|GN|GL|GA|BD|PM)[A-Z]{2,3}\w?,"), Kind("NMEA 0183", None, _BABEL.format("nmea"))),
    (re.compile(rb"!(?:AI|BS)VD[MO],"), Kind("AIS (NMEA)", None, f"decode it, and {_CSV}")),
    (re.compile(rb"A[A-Z0-9]{3}[^\n]{0,80}\r?\nH[FOP][A-Z]{3}"), Kind("IGC", None, _BABEL.format("igc"))),
    (re.compile(rb"H\s+SOFTWARE NAME|U\s+1\r?\n"), Kind("CompeGPS", None, _BABEL.format("compegps"))),
    (re.compile(rb"BEGIN:V(?:CARD|CALENDAR)"), Kind("a vCard or calendar", None, _NO_RECORDS)),
    (re.compile(rb"(?:From|Received|Return-Path): ?"), Kind("an e-mail", None, "save its attachment")),
    (re.compile(rb"-----BEGIN (?:PGP|AGE|[A-Z ]*KEY)|age-encryption\.org"), Kind("encrypted", None, "decrypt it")),
    (re.compile(rb"%YAML|---\s*\n"), Kind("YAML", None, "convert it to JSON lines")),
    (re.compile(rb"\[[\w .-]+\]\r?\n"), Kind("a settings file (INI or TOML)", None, _NO_RECORDS)),
    (
        re.compile(rb"(?:SRID=\d+;)?(?:MULTI)?(?:POINT|LINESTRING|POLYGON)\s*[ZM]{0,2}\s*\("),
        Kind("well-known text (WKT)", None, "write it to the column geometry of a CSV file with times"),
    ),
    (re.compile(rb"(?:(?:CREATE|INSERT|DROP|BEGIN)\b|--\s)[^\n]*\n|PGDMP"), Kind("a dump of a database", None, _CSV)),
)

# A line of the San Francisco taxis: latitude, longitude, occupancy, seconds since 1970.
CAB_LINE = re.compile(rb"-?\d+(\.\d+)? -?\d+(\.\d+)? [01] \d{1,11}\r?$")


def identify(head: bytes) -> Kind | None:
    """Recognise the content of a file.

    Parameters
    ----------
    head
        Its first bytes, `HEAD_BYTES` of them if the file has as many. Unpacked, unless the type of the packed file is
        required.

    Returns
    -------
    Kind or None
        The type. None if it is none of the known ones.

    Examples
    --------
    >>> identify(b"<?xml version='1.0'?><g:gpx xmlns:g='http://www.topografix.com/GPX/1/1'>").format
    'gpx'
    >>> identify(bytes.fromhex("0000270a")).name
    'Shapefile'
    >>> identify(b"certainly nothing") is None
    True
    """
    for offset, magic, kind in _SIGNATURES:
        if head.startswith(magic, offset):
            return _identify_zip(head) or kind if kind.name == "ZIP" else kind
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = head.decode("utf-16", errors="replace").encode("utf-8", errors="replace")
    if _UTF16.match(head):
        return Kind("UTF-16 without a byte order mark", None, "convert it: iconv -f UTF-16LE -t UTF-8 FILE")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<"):
        return _identify_xml(text)
    if text[:1] in (b"{", b"[", b"\x1e"):
        json_kind = identify_json(text)
        if json_kind is not None:
            return json_kind
    text_kind = next((kind for pattern, kind in _TEXTS if pattern.match(text)), None)
    return text_kind or _identify_lines(text)


# Eight characters of ASCII.
_UTF16 = re.compile(rb"(?:[\t\r\n -~]\0){8}")


def _identify_zip(head: bytes) -> Kind | None:
    # Local headers precede the members; names are readable without the directory at the end of the archive.
    names = [head[at + 30 : at + 230] for at in (match.start() for match in re.finditer(b"PK\x03\x04", head))]
    return next(
        (kind for prefix, kind in _ZIPPED if any(name.startswith(prefix.encode()) for name in names)),
        None,
    )


def _identify_xml(text: bytes) -> Kind | None:
    match = _ROOT.match(text.decode("utf-8", errors="replace"))
    if match is None:
        return None
    root = match["root"].rpartition(":")[2].lower()
    return _ROOTS.get(root) or Kind(f"XML with the root element <{root[:40]}>", None, "export it as GPX, KML or TCX")


def _identify_lines(text: bytes) -> Kind | None:
    line = text.split(b"\n", 1)[0]
    if _CHECKIN.match(text):
        return Kind("check-ins", "checkins")
    if CAB_LINE.fullmatch(line):
        return Kind("records of San Francisco taxis", "cabspotting")
    if (b"\t" in line and b"{" in line) or _OLD_OWNTRACKS.match(line):
        return Kind("a recording of OwnTracks", "owntracks")
    if line.startswith(b"Geolife trajectory"):
        return Kind("GeoLife", "geolife")
    if _REFERENCE_SYSTEM.match(text):
        return Kind("a coordinate reference system", None, "name the file that it describes")
    has_rows = b"\n" in text.strip()
    for delimiters, kind in _TABLES:
        if (has_rows or kind.format is not None) and _is_table(text, delimiters):
            return kind
    rows = _COMMENTS.sub(b"", text) if text.startswith(b"#") else b""
    is_commented = rows.strip().count(b"\n") > 0 and _is_table(rows, _TABLES[0][0])
    return _COMMENTED_TABLE if is_commented else None


# Older recorders of OwnTracks separate by spaces.
_OLD_OWNTRACKS = re.compile(rb"\d{4}-\d\d-\d\dT\S+\s+\S+\s+\{")
# The first check-in, also after some without a time and location.
_CHECKIN = re.compile(
    rb"(?:[^\t\n]*\t\t\t\t[^\t\n]*\n){0,20}[^\t\n]*\t\d{4}-\d\d-\d\d[^\t\n]*\t[^\t\n]*\t[^\t\n]*\t[^\t\n]*\r?(?:\n|$)"
)
# Well-known text, as in the .prj file of a Shapefile.
_REFERENCE_SYSTEM = re.compile(rb"\s*(?:GEOG|GEOD|PROJ|COMPD_|COMPOUND|BOUND)(?:CRS|CS)\s*\[\s*\"")
_NUM_SNIFFED_LINES = 20
_MAX_CONTROL_SHARE = 0.05  # an eighth of random bytes
_TABLES = (
    ((b",", b";", b"\t"), Kind("a table", "table")),
    ((b"|",), Kind("a table with other separators", None, "separate its columns by commas, semicolons or tabs")),
)
_COMMENTS = re.compile(rb"^#.*\n", re.M)
_COMMENTED_TABLE = Kind("a table with comments", None, "remove the lines that begin with #")
_DIGIT = re.compile(rb"\d")


def _is_table(text: bytes, delimiters: Iterable[bytes]) -> bool:
    """Return whether most lines have equally many delimiters, and rows contain digits."""
    lines = [line for line in text.split(b"\n")[: _NUM_SNIFFED_LINES + 1] if line.strip()]
    if lines and _NAMED_SEPARATOR.match(lines[0]):
        return True
    # A few control characters are refused where they are read, with their line. Binary files have zeros or many.
    num_controls = sum(byte < 32 and byte not in b"\t\r\n\f" for byte in text)
    if not lines or b"\0" in text or num_controls > _MAX_CONTROL_SHARE * len(text):
        return False
    if len(lines) > 1 and not _DIGIT.search(b"\n".join(lines[1:])):  # prose
        return False
    for delimiter in delimiters:
        counts = [line.count(delimiter) for line in lines]
        # Quoted cells can contain delimiters and newlines, and the last line may be cut off. The reader describes rows
        # of another length than the header.
        maximum = counts[0] if len(set(counts[1:])) != 1 else counts[-1]
        if counts[0] > 0 and (2 * counts.count(maximum) >= len(lines) - 1 or b'"' in text):
            return True
    return False


# The first line of spreadsheets.
_NAMED_SEPARATOR = re.compile(rb'"?sep=[,;\t]')


# ---- JSON ------------------------------------------------------------------------------------------------------------

# A string that is cut off extends to the end: otherwise each of its quotes would be searched to the end.
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)("|\\?\Z)|([{}\[\]:,])|[^\s{}\[\]:,"]+', re.S)
_MAX_DEPTH = 16


def scan_json(text: str) -> dict[str, str]:
    """Return the keys in the beginning of a JSON text, with the path to each.

    Parameters
    ----------
    text
        The text, which may be cut off. Several values may follow each other.

    Returns
    -------
    dict
        Path → the first string under it, empty if it is not a string. Keys are joined by full stops; the items of an
        array have the path of the array, with ``[]``.

    Examples
    --------
    >>> scan_json('{"locations": [{"type": "Feature", "properties": {"timest')
    {'locations': '', 'locations[].type': 'Feature', 'locations[].properties': ''}
    """
    paths: dict[str, str] = {}
    stack: list[tuple[str, bool]] = []  # of open values: path, and whether it is an array
    key, is_value = "", False
    for match in _TOKEN.finditer(text):
        string, mark = match[1], match[3]
        if string is not None and match[2] != '"':
            break
        path, is_array = stack[-1] if stack else ("", True)
        if string is not None and is_value:
            paths[key] = paths.get(key) or string[:80]
            is_value = False
        elif string is not None and not is_array:
            key = f"{path}.{string}" if path else string
            paths.setdefault(key, "")
        elif mark == ":":
            is_value = not is_array
        elif mark in ("{", "["):
            opened = key if is_value else path
            stack.append((f"{opened}[]", True) if mark == "[" else (opened, False))
            is_value = False
            if len(stack) > _MAX_DEPTH:
                break
        else:
            if mark in ("}", "]") and stack:
                stack.pop()
            is_value = False
    return paths


_TIMELINE = Kind("Google Timeline", "timeline")
_GEOJSON = Kind("GeoJSON", "geojson")
_JSON_KINDS: tuple[tuple[tuple[str, ...], Kind], ...] = (
    # All of these paths occur → kind. The first match counts.
    (("locations[].latitudeE7",), Kind("Google's Records.json", "timeline")),
    (("locations[].timestampMs",), Kind("Google's Records.json", "timeline")),
    (("semanticSegments",), _TIMELINE),
    (("rawSignals",), _TIMELINE),
    (("timelineObjects",), Kind("Google's Semantic Location History", "timeline")),
    (("[].startTime", "[].endTime"), _TIMELINE),
    (("locations[].geometry",), Kind("a batch of Overland", "geojson")),
    (("data[].tst",), Kind("OwnTracks API JSON", "owntracks")),
    (("[].tst",), Kind("OwnTracks API JSON", "owntracks")),
    (("tst", "_type"), Kind("OwnTracks JSON", "owntracks")),
    (("geometry",), _GEOJSON),
    (("features",), _GEOJSON),
    (("[].geometry",), _GEOJSON),
)
_GEOMETRIES = (
    *("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon"),
    *("GeometryCollection", "Feature", "FeatureCollection"),
)
_REFUSED_TYPES: Mapping[str, Kind] = {
    "Topology": Kind("TopoJSON", None, _GDAL),
    "CityJSON": Kind("CityJSON", None, _NO_RECORDS),
    "MovingFeatures": Kind("OGC Moving Features JSON", None, "convert it to GeoJSON with coordTimes"),
}
_ROW_KEYS = (("latitude", "lat"), ("longitude", "lon", "lng", "long"))


def identify_json(text: bytes) -> Kind | None:
    """Recognise JSON by its keys.

    Parameters
    ----------
    text
        The beginning of the file.

    Returns
    -------
    Kind or None
        The type; None if the text does not begin as JSON does.
    """
    paths = scan_json(text.decode("utf-8", errors="replace"))
    outer = paths.get("type", "")
    if outer in _REFUSED_TYPES:
        return _REFUSED_TYPES[outer]
    if any(path in paths for path in ("features[].attributes", "displayFieldName", "spatialReference")):
        return Kind("Esri JSON", None, _GDAL)
    if "temporalGeometry" in paths or "features[].temporalGeometry" in paths:
        return _REFUSED_TYPES["MovingFeatures"]
    for needed, kind in _JSON_KINDS:
        if all(path in paths for path in needed):
            return kind
    if outer in _GEOMETRIES:
        return _GEOJSON
    if "encryptedLocations" in paths or paths.get("_type") == "encrypted":
        return Kind("encrypted", None, "decrypt it")
    for prefix in ("", "[]."):
        keys = {path.removeprefix(prefix).lower() for path in paths if path.startswith(prefix)}
        if all(any(alias in keys for alias in aliases) for aliases in _ROW_KEYS):
            return Kind("JSON rows", "json")
    if any(path.startswith(("cells", "nbformat")) for path in paths):
        return Kind("a Jupyter notebook", None, _NO_RECORDS)
    if not paths and not re.match(rb"\s*[\[{]\s*[\]}\"\[{]", text):
        return None
    listed = ", ".join(list(paths)[:6]) or "no keys"
    return Kind(
        f"JSON of another kind ({listed})",
        None,
        "convert it to GeoJSON, or to JSON lines with user, time, latitude and longitude",
    )
