"""Tables of fixes (CSV, GeoJSON, Parquet and GeoParquet), and tables of named places.

Columns are recognised by the names that trackintel, movingpandas, scikit-mobility and Movebank use, in any case, unless
the caller names them:

==========  ============================================
quantity    recognised columns
==========  ============================================
user        ``user_id``, ``uid``, ``user``, ``individual-local-identifier``, ``traj_id``
time        ``tracked_at``, ``datetime``, ``timestamp``, ``time``, ``t``
latitude    ``latitude``, ``lat``, ``location-lat``
longitude   ``longitude``, ``lon``, ``lng``, ``long``, ``location-long``
geometry    ``geometry``, ``geom``, ``the_geom``, ``wkt``: points
==========  ============================================

`dphmm.tables.ALIASES` lists all of them. Points are well-known text or binary, also in the extended forms of PostGIS
and in hexadecimal, GeoJSON or, in Parquet, GeoArrow; GeoParquet names their column in its metadata. The caller numbers
the columns of a CSV without a header from 1. See `dphmm.readers.tabular_data_sets` for public tables of another layout.

A table without a user column has no user information. In a table with trajectories instead (``traj_id``) each
trajectory is treated as a separate user, with a warning. Times are ISO 8601 strings or, in Parquet, timestamps. A time
with a zone is converted to UTC; the zone of others is specified by the caller and defaults to UTC. Numeric times need a
unit from the caller: see `dphmm.readers.instants.Instants`. Coordinates are WGS 84 degrees; a GeoParquet geometry in
another reference system is converted. All other columns are ignored. Parquet is read by whole columns, and large files
in batches of users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError, EmptyDataError, StateError, import_library
from dphmm.readers.column_conversion import (
    MAX_MICROSECONDS,
    Rows,
    UserIndex,
    build_fixes,
    collect,
    is_plain,
    resolve,
    warn_of_times,
    warn_of_unit,
)
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions
from dphmm.readers.fixes_on_disk import FixesOnDisk
from dphmm.readers.instants import UNITS
from dphmm.readers.tabular_data_sets import (
    FOURSQUARE,
    Layout,
    find_numbered,
    find_trips,
    find_unnamed,
    has_no_fix,
    looks_like_row,
)
from dphmm.space.states import Places
from dphmm.tables import Table
from dphmm.tables.file_identification import identify
from dphmm.tables.parquet_files import PARQUET_MAGIC, PARQUET_SUFFIXES, Metadata, OpenParquet, is_point_type
from dphmm.tables.source import Document, get_suffix
from dphmm.tables.table import find_column, iterate_csv_rows
from dphmm.tables.values import parse_number, shorten_message, with_decimal_point
from dphmm.tables.vector_files import get_column_system, get_geometry_column, parse_points, read_features, to_degrees
from dphmm.validation import Interval, check_arguments

# Maximum number of fixes in a batch of users of a large file. A user with more fixes is read separately.
MAX_FIXES = 1_000_000

# Number of rows of a large file that are parsed together.
PART_ROWS = 1 << 18


def count_parquet_rows(path: str | Path) -> int:
    """Return the number of rows of a Parquet file. 0 for other or compressed files.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    int
        The number of rows that its metadata states.

    Raises
    ------
    DataFileError
        If a file with the extension of Parquet is not Parquet.
    """
    path = Path(path)
    if path.suffix.lower() not in PARQUET_SUFFIXES or not path.is_file():
        return 0
    return sum(OpenParquet(path, lambda _: (), by_group=True).rows)


class ParquetFixes:
    """The fixes in a Parquet file, read in parts on request.

    Only the required columns are read. The format stores a timestamp with a zone in UTC; the zone of others is
    specified by the caller. Times are truncated to microseconds.

    Parameters
    ----------
    document
        The file or its path. With a path, row groups are read on request.
    options
        Options of the caller.

    Raises
    ------
    DataFileError
        If the file is not Parquet or lacks a column.
    MissingDependencyError
        Without pyarrow.
    """

    def __init__(self, document: Document | Path, options: ReadOptions) -> None:
        self._names: dict[str, str] = {}
        self._options = options
        source = str(document) if isinstance(document, Path) else document.source

        def choose(names: list[str], metadata: Metadata) -> Iterable[str]:
            self._names.update(resolve(names, source, options, get_geometry_column(metadata)))
            warn_of_times(self._names, names, source, options)
            return self._names.values()

        self._file = OpenParquet(document, by_group=isinstance(document, Path), choose_with_metadata=choose)
        nested = find_column(self._file.nested, "time")
        if "time" not in self._names and nested is not None:  # in a recording, times may be missing
            raise DataFileError(source, f"contains lists or structures in {nested!r}, which must be a time")

    def read_fixes(self) -> Fixes:
        """Read all fixes.

        Returns
        -------
        Fixes
            The fixes in the order of the file.

        Raises
        ------
        DataFileError
            For a malformed row, unless such rows are skipped; its number counts from one over the whole file.
        """
        fixes = build_fixes(self._extract_cells(self._file.read()), self._file.source, self._options)
        warn_of_unit(fixes, self._options)
        return fixes

    def gather(self) -> FixesOnDisk:
        """Read the file once, and gather the fixes of its users on disk.

        Returns
        -------
        FixesOnDisk
            The fixes, to be closed after use.

        Raises
        ------
        DataFileError
            As for `read_fixes`.
        OutputError
            If the temporary file cannot be written.
        """
        users = UserIndex()
        options = self._options
        return FixesOnDisk(
            self._iterate_parts(users),
            users.names,
            self._file.source,
            options.region,
            has_accuracy="accuracy" in self._names,
        )

    def _iterate_parts(self, users: UserIndex) -> Iterator[tuple[IntArray, Fixes]]:
        """Yield the user of each row of each part of the file, and the fixes."""
        start = 0
        for table in _read_ahead(self._file.iterate_parts(PART_ROWS)):
            rows = start + np.arange(table.num_rows)
            cells = self._extract_cells(table)
            owner = users.encode(cells["user"])
            if users.are_valid(owner):
                # The users are known: the other columns are parsed as those of one user.
                others = {what: column for what, column in cells.items() if what != "user"}
                fixes = build_fixes(others, self._file.source, replace(self._options, user="-"), rows)
            if not users.are_valid(owner) or fixes.skipped:
                fixes = build_fixes(cells, self._file.source, self._options, rows)
            else:
                fixes = replace(fixes, names=tuple(users.names), owner=owner)
            if start == 0:
                warn_of_unit(fixes, self._options)
            yield owner, fixes
            start += table.num_rows

    @property
    def has_users(self) -> bool:
        """Whether the file contains user information that the caller does not override."""
        return self._options.user is None and "user" in self._names

    def _extract_cells(self, table: Any) -> dict[str, Any]:
        system = get_column_system(self._file.metadata, self._names.get("geometry", ""))
        return extract_arrow_cells(table, self._names, system, self._file.source)


def extract_arrow_cells(table: Any, names: Mapping[str, str], system: Any, source: str) -> dict[str, Any]:
    """Return the cells of an Arrow table for `dphmm.readers.column_conversion.build_fixes`.

    Parameters
    ----------
    table
        The table, a `pyarrow.Table`.
    names
        Quantity → name of its column.
    system
        The reference system of geometries, as for `dphmm.tables.vector_files.to_degrees`.
    source
        The file or frame, for messages.

    Returns
    -------
    dict
        Quantity → Arrow array. A geometry becomes longitude and latitude, a timestamp ``clock`` or ``microseconds``.

    Raises
    ------
    DataFileError
        If a column is of another type, or the reference system is unknown.
    """
    pa = import_library("pyarrow", "files")
    held = {what: _convert_decimals(table[name].combine_chunks(), what) for what, name in names.items()}
    if "time" in held and pa.types.is_timestamp(held["time"].type):
        stamps = held.pop("time")
        try:
            kind = "clock" if stamps.type.tz is None else "microseconds"
        except UnicodeDecodeError:
            raise DataFileError(source, f"has times in {names['time']!r} with an invalid zone name") from None
        held[kind] = _convert_to_microseconds(stamps)
    if "geometry" in held:
        shapes = held.pop("geometry")
        if is_point_type(shapes.type):
            points = _extract_arrow_points(shapes)
        else:
            _check_plain("geometry", shapes, names, source)
            try:
                points = parse_points(shapes.to_pylist())
            except ValueError as problem:
                raise DataFileError(source, f"has an unknown reference system ({problem})") from None
        held["longitude"], held["latitude"] = (pa.array(part) for part in _convert_to_degrees(points, system, source).T)
    for what, column in held.items():
        _check_plain(what, column, names, source)
    return held


def _convert_to_microseconds(stamps: Any) -> Any:
    """Return timestamps as integers, truncated to microseconds.

    Seconds and milliseconds that would overflow are replaced by a time far outside the years 1 to 9999, so that their
    rows are refused, and not all of them.
    """
    pa = import_library("pyarrow", "files")
    compute = import_library("pyarrow.compute", "files")
    factor = UNITS[stamps.type.unit]
    if factor == 1:
        return stamps.cast(pa.timestamp("us", tz=stamps.type.tz), safe=False).cast(pa.int64())
    limit = MAX_MICROSECONDS // factor
    counts = compute.max_element_wise(stamps.cast(pa.int64()), -limit, skip_nulls=False)
    return compute.multiply(compute.min_element_wise(counts, limit, skip_nulls=False), factor)


def _check_plain(what: str, column: Any, names: Mapping[str, str], source: str) -> None:
    if not is_plain(column.type):
        raise DataFileError(source, f"contains {column.type} values in {names[what]!r}, which must be a {what}")


def _convert_decimals(column: Any, what: str) -> Any:
    """Convert DECIMAL cells to numbers, and those of users to strings."""
    pa = import_library("pyarrow", "files")
    if not pa.types.is_decimal(column.type):
        return column
    if what == "user":
        return column.cast(pa.string())
    if column.type.scale == 0:
        with suppress(pa.ArrowInvalid):
            return column.cast(pa.int64())
    return column.cast(pa.float64())


def _extract_arrow_points(column: Any) -> FloatArray:
    """Return the coordinates ``(n, 2)`` of GeoArrow points. NaN for missing ones."""
    pa = import_library("pyarrow", "files")
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    if pa.types.is_struct(column.type):
        axes = column.flatten()[:2]
    else:
        lists = column.to_pylist()
        axes = [pa.array([None if point is None else point[axis] for point in lists], pa.float64()) for axis in (0, 1)]
    return np.column_stack([axis.cast(pa.float64()).to_numpy(zero_copy_only=False) for axis in axes])


def _read_ahead(parts: Iterator[Any]) -> Iterator[Any]:
    """Yield parts of a file while another thread reads the next one."""
    context = copy_context()  # contains the limit of unpacked bytes

    def advance() -> Any:
        return next(parts, None)

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(context.run, advance)
        while (part := following.result()) is not None:
            following = pool.submit(context.run, advance)
            yield part


def _convert_to_degrees(points: FloatArray, system: Any, source: str) -> FloatArray:
    """Convert points to WGS 84 from a reference system."""
    # Without one, the specification prescribes WGS 84 degrees.
    try:
        convert = to_degrees(system)
    except ValueError as problem:
        reason = f"has an unknown reference system ({shorten_message(problem)})"
        raise DataFileError(source, f"{reason}; export it in EPSG:4326") from None
    return points if convert is None else np.column_stack(convert(*points.T))


def read_table_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the fixes in the rows of a table. By default of all users that it names.

    Parameters
    ----------
    document
        CSV (UTF-8; separated by comma, semicolon or tab), GeoJSON or Parquet, by its extension. Parquet is also
        recognised by its first bytes. Other files are read as CSV.
    options
        Options of the caller.

    Yields
    ------
    Fixes
        All rows.

    Raises
    ------
    DataFileError
        For a missing column, a malformed row (unless skipped), a damaged file.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    if get_suffix(document.name) in PARQUET_SUFFIXES or document.head().startswith(PARQUET_MAGIC):
        yield ParquetFixes(document, options).read_fixes()
        return
    kind = identify(document.head())  # a table may be named .json
    is_csv = kind is not None and kind.format == "table"
    suffix = ".csv" if is_csv else get_suffix(document.name)
    read_rows, unit = _FORMATS.get(suffix, (_read_csv_rows, "line"))
    collector = FixCollector(document.source, options)
    collect(read_rows(document, options), unit, collector)
    fixes = collector.get_fixes()
    warn_of_unit(fixes, options)
    yield fixes


def _read_csv_rows(document: Document, options: ReadOptions) -> Rows:
    """Yield the rows of a CSV file. See `iterate_csv_rows` and `tabular_data_sets`."""
    is_foursquare = FOURSQUARE.match(document.data[: document.data.find(b"\n")]) is not None
    lines = iterate_csv_rows(document, "latin-1" if is_foursquare else "utf-8-sig")
    first, names = next(lines, (1, []))
    if not names:
        raise EmptyDataError(document.source, "is empty; a table needs a header")
    sample = list(islice(lines, _NUM_SAMPLED_ROWS))
    while sample and has_no_fix(sample[-1][1]) and (row := next(lines, None)) is not None:
        sample.append(row)
    layout = _find_layout([names, *(fields for _, fields in sample)], document.source, options)
    index = layout.columns
    rows = chain([] if layout.has_header else [(first, names)], sample, lines)
    for number, fields in rows:
        if len(fields) != len(names):
            header = "header" if layout.has_header else "first line"
            yield number, f"has {len(fields)} fields, but the {header} has {len(names)}"
            continue
        cells = {what: fields[at] for what, at in index.items()}
        if layout.split is None:
            yield number, cells
        else:
            try:
                for fix in layout.split(cells):
                    yield number, fix
            except ValueError as problem:
                yield number, str(problem)


# The first row of a taxi may be an outlier. Rows without a fix at the end of the sample do not determine the layout.
_NUM_SAMPLED_ROWS = 100


def _find_layout(first_rows: Sequence[list[str]], source: str, options: ReadOptions) -> Layout:
    """Return the layout of a CSV file, the first line of which may be a header."""
    names = first_rows[0]
    layout = find_numbered(names, source, options) or find_unnamed(first_rows) or find_trips(names, options)
    if layout is not None:
        return layout
    if looks_like_row(names):
        reason = "needs a header, and its first line contains data; number its columns with columns="
        example = "--column user=1 --column time=2 --column longitude=3 --column latitude=4, or the reverse"
        raise DataFileError(source, f"{reason} ({example})")
    columns = resolve(names, source, options)
    if repeated := [name for name in columns.values() if names.count(name) > 1]:
        raise DataFileError(source, f"must have unique column names, got {repeated[0]!r} twice; rename one of them")
    warn_of_times(columns, names, source, options)
    return Layout({what: names.index(name) for what, name in columns.items()})


def _read_geojson_rows(document: Document, options: ReadOptions) -> Rows:
    """Yield the features of a GeoJSON collection, with the properties as columns."""
    features = read_features(document)
    if not features:
        return
    names = [*dict.fromkeys(name for feature in features for name in feature.properties), "geometry"]
    columns = {"geometry": "geometry", **options.columns}
    resolved = resolve(names, document.source, replace(options, columns=columns))
    for number, (properties, geometry) in enumerate(features, start=1):
        yield number, {what: properties.get(name) for what, name in resolved.items()} | {"geometry": geometry}


# Extension → reader of its rows, and the name of a row in messages.
_FORMATS: Mapping[str, tuple[Callable[[Document, ReadOptions], Rows], str]] = {
    ".csv": (_read_csv_rows, "line"),
    ".tsv": (_read_csv_rows, "line"),
    ".geojson": (_read_geojson_rows, "feature"),
    ".json": (_read_geojson_rows, "feature"),
}

TABLE_SUFFIXES = PARQUET_SUFFIXES.union(_FORMATS)


@check_arguments
def read_places(
    path: str | Path, within_km: Annotated[float, Interval(0, inf, "right", "kilometres", ConfigurationError)] = inf
) -> Places:
    """Read named places from a table, CSV with a header line or Parquet.

    Parameters
    ----------
    path
        Columns ``name`` (or ``place``, ``label``), ``latitude`` (``lat``) and ``longitude`` (``lon``, ``lng``,
        ``long``), WGS 84 degrees. Others are ignored.
    within_km
        Maximum distance of a fix from its place, in kilometres.

    Returns
    -------
    Places
        The places in the order of the file.

    Raises
    ------
    DataFileError
        If the file cannot be read, lacks a column, or has a line that is not a place; with the line's number.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    table = Table.read(path)
    name, latitude, longitude = (table.find(what) for what in ("name", "latitude", "longitude"))
    try:
        north, east = (np.array(table.values(what, partial(_parse_cell, what=what))) for what in (latitude, longitude))
        return Places(table.texts(name), north, east, within_km)
    except (StateError, CoordinateError) as problem:
        raise DataFileError(path, str(problem)) from None


def _parse_cell(cell: str, what: str) -> float:
    return parse_number(with_decimal_point(cell), what)
