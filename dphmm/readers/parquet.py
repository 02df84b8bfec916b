"""Fixes out of Parquet and GeoParquet: whole columns at once, and of large files a few people after another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import DataFileError, need
from dphmm.readers.columnar import is_plain, people_of, whole_columns
from dphmm.readers.fixes import FixCollector, Fixes, ReadResult, trajectories
from dphmm.readers.instants import Instants
from dphmm.readers.rows import collect, resolve
from dphmm.tables.geojson import geometry_kind
from dphmm.tables.json_text import parse_json
from dphmm.tables.parquet import OpenParquet
from dphmm.tables.source import Document
from dphmm.tables.table import PARQUET
from dphmm.tables.values import one_line, shorten

MOST_FIXES = 1_000_000
"""Of how many fixes people are taken together where a file is larger; who alone has more is taken alone."""


def fixes_in(path: str | Path) -> int:
    """How many rows a Parquet file has; none for a path of anything else, or of a file that is packed once more.

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
    """The fixes in a file, of which as many are in memory as are asked for.

    Only the columns that are needed are read. A timestamp with a zone is stored in UTC by the format; of one without,
    the caller says the zone. What is finer than a microsecond is cut off.

    Parameters
    ----------
    document
        The file, or its path; by its path, row groups are read when they are asked for.
    skip_bad, user, columns, instants
        As for `dphmm.readers.table.fixes`.

    Raises
    ------
    DataFileError
        For a file that is no Parquet, or lacks a column.
    MissingDependencyError
        Without pyarrow.
    """

    def __init__(
        self,
        document: Document | Path,
        skip_bad: bool,
        user: str | None,
        columns: Mapping[str, str],
        instants: Instants,
    ) -> None:
        self._names: dict[str, str] = {}
        source = str(document) if isinstance(document, Path) else document.source

        def choose(names: list[str]) -> Iterable[str]:
            self._names.update(resolve(names, columns, source, user))
            return self._names.values()

        self._file = OpenParquet(document, choose, by_group=isinstance(document, Path))
        self._skip_bad, self._user, self._instants = skip_bad, user, instants

    def fixes(self, group: int | None = None, people: Collection[str] | None = None) -> Fixes:
        """The fixes of a row group (left out, of all) and people (left out, of everyone).

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
        cells = self._cells(table)
        quick = whole_columns(cells, self._file.source, self._user, self._instants)
        return self._row_by_row(cells, rows) if quick is None else quick

    def by_people(self, most: int = MOST_FIXES) -> Iterator[ReadResult]:
        """The trajectories of a few people after another, with no more than so many fixes, or one person's, in memory.

        The file is read once for the names, and then each row group as often as it holds people who are taken at
        another time: once where the rows are sorted by user.

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
        """Whether the file says whose fixes it holds, and nobody else does."""
        return self._user is None and "user" in self._names

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
            except pa.ArrowInvalid:
                said = f"has times in {self._names['time']!r} beyond the year 9999"
                raise DataFileError(self._file.source, said) from None
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

    def _row_by_row(self, cells: Mapping[str, Any], rows: IntArray) -> Fixes:
        collector = FixCollector(self._file.source, self._skip_bad, self._user)
        lists = {what: column.to_pylist() for what, column in cells.items()}
        numbered = zip((rows + 1).tolist(), zip(*lists.values(), strict=True), strict=True)
        found = ((number, dict(zip(lists, values, strict=True))) for number, values in numbered)
        collect(found, "row", collector, self._instants)
        return collector.fixes()


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
        crs = parse_json(metadata.get(b"geo", b"{}")).get("columns", {}).get(column, {}).get("crs")
        if crs is None:
            return points
        if not (isinstance(crs, dict) or (isinstance(crs, str) and _CRS.match(crs))):  # PROJ would look into files
            raise ValueError(f"crs is {shorten(crs)}, no PROJJSON")
        from pyproj import CRS, Transformer
        from pyproj.exceptions import ProjError

        try:
            system = CRS.from_user_input(crs)
            if system.equals(CRS("OGC:CRS84"), ignore_axis_order=True) or system.to_epsg() == 4326:
                return points
            return np.column_stack(Transformer.from_crs(system, "OGC:CRS84", always_xy=True).transform(*points.T))
        except ProjError as problem:
            raise ValueError(one_line(problem)) from None
    except (ValueError, AttributeError) as problem:
        reason = f"says in no known way which reference system it is in ({one_line(problem)})"
        raise DataFileError(source, f"{reason}; write it anew in EPSG:4326") from None


_CRS = re.compile(r"(?:EPSG|OGC|ESRI|IAU_\d{4}):\w{1,20}$|\s*[A-Z]{4,12}(?:CRS|CS|CRS\d)?\s*\[", re.ASCII)
"""The texts for reference systems that earlier versions of GeoParquet had: an authority's code, or well-known text."""
