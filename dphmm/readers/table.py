"""Tables of fixes (CSV, GeoJSON, Parquet and GeoParquet), and tables of named places.

Columns go by the names that trackintel, movingpandas and scikit-mobility use, in any case, unless the caller names
them:

==========  ============================================
what        recognised columns
==========  ============================================
user        ``user_id``, ``uid``, ``user``, ``traj_id``
time        ``tracked_at``, ``datetime``, ``timestamp``, ``time``, ``t``
latitude    ``latitude``, ``lat``
longitude   ``longitude``, ``lon``, ``lng``, ``long``
geometry    ``geometry``, ``geom``: points
==========  ============================================

A table without a user column does not say whose fixes it holds; one with trajectories instead (``traj_id``) takes each
for a person, with a warning. Times are ISO 8601 texts or, in Parquet, timestamps; one with a zone is converted to UTC,
one without is in the zone that the caller names, or in UTC. Numbers are times only where the caller says what they
count: see `dphmm.readers.instants.Instants`. Coordinates are WGS 84 degrees; a GeoParquet geometry in another reference
system is converted. All other columns are left unread. Parquet is read by whole columns, and large files a few people
at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import CoordinateError, DataFileError, StateError, need
from dphmm.readers.columns import Rows, collect, fixes_of_columns, is_plain, people_of, resolve
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions, ReadResult, trajectories
from dphmm.space.states import Places
from dphmm.tables import Table
from dphmm.tables.binary_files import OpenParquet
from dphmm.tables.json_toml import parse_json
from dphmm.tables.source import Document, suffix_of
from dphmm.tables.table import PARQUET, csv_rows
from dphmm.tables.values import one_line
from dphmm.tables.vector_files import geometry_kind, read_features, to_degrees

MOST_FIXES = 1_000_000
"""How many fixes people have together who are read together, of a larger file; a person who has more is read alone."""


def fixes_in(path: str | Path) -> int:
    """Return how many rows a Parquet file has; 0 for a path of anything else, or of a file that is packed once more.

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
        When a file that is called one is none.
    """
    path = Path(path)
    if path.suffix.lower() not in PARQUET or not path.is_file():
        return 0
    return sum(OpenParquet(path, lambda _: (), by_group=True).rows)


class ParquetFixes:
    """The fixes in a Parquet file, of which as many are in memory as are asked for.

    Only the columns that are needed are read. A timestamp with a zone is stored in UTC by the format; of one without,
    the caller says the zone. What is finer than a microsecond is cut off.

    Parameters
    ----------
    document
        The file, or its path; by its path, row groups are read when they are asked for.
    options
        What the caller says of it.

    Raises
    ------
    DataFileError
        For a file that is no Parquet, or lacks a column.
    MissingDependencyError
        Without pyarrow.
    """

    def __init__(self, document: Document | Path, options: ReadOptions) -> None:
        self._names: dict[str, str] = {}
        self._options = options
        source = str(document) if isinstance(document, Path) else document.source

        def choose(names: list[str]) -> Iterable[str]:
            self._names.update(resolve(names, source, options))
            return self._names.values()

        self._file = OpenParquet(document, choose, by_group=isinstance(document, Path))

    def fixes(self, group: int | None = None, people: Collection[str] | None = None) -> Fixes:
        """Read the fixes of a row group, and of some people.

        Parameters
        ----------
        group
            The number of the row group; left out, all of them.
        people
            The names of the people; left out, all of them.

        Returns
        -------
        Fixes
            Their fixes in the order of the file.

        Raises
        ------
        DataFileError
            For a malformed row, unless such rows are skipped; its number is counted from one over the whole file.
        """
        table = self._file.read(None if group is None else [group])
        rows = sum(self._file.rows[: group or 0]) + np.arange(table.num_rows)
        if people is not None:
            owner, names = self._people(table[self._names["user"]])
            meant = np.flatnonzero(np.array([name in people for name in names], dtype=bool)[owner])
            try:
                table, rows = table.take(meant), rows[meant]
            except need("pyarrow", "files").ArrowException as problem:
                said = f"holds values that cannot be read ({one_line(problem)}); write it anew with plain columns"
                raise DataFileError(self._file.source, said) from None
        return fixes_of_columns(self._cells(table), self._file.source, self._options, rows)

    def by_people(self, most: int = MOST_FIXES) -> Iterator[ReadResult]:
        """Yield the trajectories of a few people after another.

        The file is read once for the names, and then each row group as often as it holds people who are taken at
        another time: once where the rows are sorted by user.

        Parameters
        ----------
        most
            How many fixes are in memory at most, or one person's where they are more.

        Yields
        ------
        ReadResult
            The trajectories of a few people.

        Raises
        ------
        DataFileError
            As `fixes`; when there are no usable fixes.
        """
        owners: list[frozenset[str]] = []
        totals: Counter[str] = Counter()
        for group in range(len(self._file.rows)):
            owner, names = self._people(self._file.read([group], [self._names["user"]])[self._names["user"]])
            found = Counter(dict(zip(names, np.bincount(owner, minlength=len(names)).tolist(), strict=True)))
            owners.append(frozenset(found))
            totals.update(found)
        for people in _together(totals, most):
            where = [group for group, there in enumerate(owners) if not there.isdisjoint(people)]
            yield trajectories(self.fixes(group, people) for group in where)

    @property
    def names_people(self) -> bool:
        """Whether the file says whose fixes it holds, and the caller does not."""
        return self._options.user is None and "user" in self._names

    def _people(self, column: Any) -> tuple[IntArray, list[str]]:
        self._check_plain("user", column)
        return people_of(column)

    def _check_plain(self, what: str, column: Any) -> None:
        if not is_plain(column.type):
            said = f"holds {column.type} values in {self._names[what]!r}, which is no {what}"
            raise DataFileError(self._file.source, said)

    def _cells(self, table: Any) -> dict[str, Any]:
        """The columns by what they hold, as arrays of Arrow; a geometry as longitude and latitude."""
        pa = need("pyarrow", "files")
        held = {what: table[name].combine_chunks() for what, name in self._names.items()}
        if pa.types.is_timestamp(held["time"].type):
            stamps = held.pop("time")
            try:
                kind = "clock" if stamps.type.tz is None else "microseconds"
                held[kind] = stamps.cast(pa.timestamp("us", tz=stamps.type.tz), safe=False).cast(pa.int64())
            except (pa.ArrowInvalid, UnicodeDecodeError) as problem:
                what = "beyond the year 9999" if isinstance(problem, pa.ArrowInvalid) else "of a zone that is no text"
                raise DataFileError(self._file.source, f"has times in {self._names['time']!r} {what}") from None
        for what, column in held.items():
            self._check_plain(what, column)
        if "geometry" in held:
            found = held.pop("geometry").to_pylist()
            binaries = [value if geometry_kind(value) == "Point" else None for value in found]
            geometries = shapely.from_wkb(np.array(binaries, dtype=object), on_invalid="ignore")
            geometries[shapely.is_empty(geometries)] = None
            points = np.column_stack([shapely.get_x(geometries), shapely.get_y(geometries)])  # NaN for what is no point
            degrees = _in_degrees(points, self._file.metadata, self._names["geometry"], self._file.source)
            held["longitude"], held["latitude"] = (pa.array(part) for part in degrees.T)
        return held


def _together(totals: Mapping[str, int], most: int) -> Iterator[set[str]]:
    """People in the order in which they are met, a few after another."""
    people: set[str] = set()
    count = 0
    for name, fixes in totals.items():
        if people and count + fixes > most:
            yield people
            people, count = set(), 0
        people.add(name)
        count += fixes
    if people:
        yield people


def _in_degrees(points: FloatArray, metadata: Mapping[bytes, bytes], column: str, source: str) -> FloatArray:
    """Points in WGS 84, out of the system that the GeoParquet metadata names; none, the default, is WGS 84 degrees."""
    try:
        convert = to_degrees(parse_json(metadata.get(b"geo", b"{}")).get("columns", {}).get(column, {}).get("crs"))
    except (ValueError, AttributeError) as problem:
        reason = f"says in no known way which reference system it is in ({one_line(problem)})"
        raise DataFileError(source, f"{reason}; write it anew in EPSG:4326") from None
    return points if convert is None else np.column_stack(convert(*points.T))


def table_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the rows of a table; by default of the users that it names, where it names any.

    Parameters
    ----------
    document
        CSV (UTF-8; separated by comma, semicolon or tab), GeoJSON or Parquet, by its extension; any other is read as
        CSV.
    options
        What the caller says of it.

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
    if suffix_of(document.name) in PARQUET:
        yield ParquetFixes(document, options).fixes()
        return
    take_apart, unit = _FORMATS.get(suffix_of(document.name), (_rows_of_csv, "line"))
    collector = FixCollector(document.source, options)
    collect(take_apart(document, options), unit, collector)
    yield collector.fixes()


def _rows_of_csv(document: Document, options: ReadOptions) -> Rows:
    """Yield the rows of a CSV file with a header; see `dphmm.tables.table.csv_rows`."""
    lines = csv_rows(document)
    _, names = next(lines, (1, []))
    index = {what: names.index(name) for what, name in resolve(names, document.source, options).items()}
    for number, fields in lines:
        if len(fields) == len(names):
            yield number, {what: fields[at] for what, at in index.items()}
        else:
            yield number, f"has {len(fields)} fields; the header has {len(names)}"


def _rows_of_geojson(document: Document, options: ReadOptions) -> Rows:
    """Yield the features of a GeoJSON collection, whose properties are the columns; see `read_features`."""
    features = read_features(document)
    names = [*dict.fromkeys(name for feature in features for name in feature.properties), "geometry"]
    columns = {"geometry": "geometry", **options.columns}
    found = resolve(names, document.source, replace(options, columns=columns))
    for number, (properties, geometry) in enumerate(features, start=1):
        yield number, {what: properties.get(name) for what, name in found.items()} | {"geometry": geometry}


_FORMATS: Mapping[str, tuple[Callable[[Document, ReadOptions], Rows], str]] = {
    ".csv": (_rows_of_csv, "line"),
    ".tsv": (_rows_of_csv, "line"),
    ".geojson": (_rows_of_geojson, "feature"),
    ".json": (_rows_of_geojson, "feature"),
}
"""Extension → what takes the file apart, and what its records are called."""

TABLE_SUFFIXES = PARQUET.union(_FORMATS)


@checked
def read_places(path: str | Path, within_km: float = float("inf")) -> Places:
    """Read named places from a table, CSV with a header line or Parquet.

    Parameters
    ----------
    path
        Columns ``name`` (or ``place``, ``label``), ``latitude`` (``lat``) and ``longitude`` (``lon``, ``lng``,
        ``long``), WGS 84 degrees; others are passed over.
    within_km
        How far from its place a fix may lie, in kilometres.

    Returns
    -------
    Places
        In the order of the file.

    Raises
    ------
    DataFileError
        When the file cannot be read, lacks a column, or has a line that is no place; with the line's number.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    table = Table.read(path)
    name, latitude, longitude = (table.find(what) for what in ("name", "latitude", "longitude"))
    try:
        return Places(table.texts(name), table.numbers(latitude), table.numbers(longitude), within_km)
    except (StateError, CoordinateError) as problem:
        raise DataFileError(path, str(problem)) from None
