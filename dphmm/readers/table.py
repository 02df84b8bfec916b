"""Tables of fixes: CSV, GeoJSON, Parquet and GeoParquet.

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
count: see `Instants`. Coordinates are WGS 84 degrees; a GeoParquet geometry in another reference system is converted.
All other columns are left unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dphmm.readers.fixes import FixCollector, Fixes
from dphmm.readers.instants import Instants
from dphmm.readers.parquet import ParquetFixes
from dphmm.readers.rows import Rows, check_columns, collect, resolve
from dphmm.tables.delimited import csv_rows
from dphmm.tables.geojson import read_features
from dphmm.tables.source import Document, suffix_of
from dphmm.tables.table import PARQUET


def fixes(
    document: Document,
    skip_bad: bool,
    user: str | None,
    columns: Mapping[str, str] | None = None,
    instants: Instants | None = None,
) -> Iterator[Fixes]:
    """The rows of a table; by default of the users that it names, where it names any.

    Parameters
    ----------
    document
        CSV (UTF-8; separated by comma, semicolon or tab), GeoJSON or Parquet, by its extension; any other is read as
        CSV.
    skip_bad
        True to pass over malformed rows and count them.
    user
        The user whose fixes these are.
    columns
        What a column holds (``user``, ``time``, ``latitude``, ``longitude``, ``geometry``) → its name in the file.
    instants
        How its times are to be understood; left out, texts and timestamps alone, in UTC where they do not say.

    Raises
    ------
    DataFileError
        For a missing column, a malformed row (unless skipped), a damaged file.
    ConfigurationError
        When `columns` names something else than the five.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    check_columns(columns)
    if suffix_of(document.name) in PARQUET:
        yield ParquetFixes(document, skip_bad, user, columns or {}, instants or Instants()).fixes()
        return
    take_apart, unit = _FORMATS.get(suffix_of(document.name), (_rows_of_csv, "line"))
    collector = FixCollector(document.source, skip_bad, user)
    collect(take_apart(document, columns or {}, user), unit, collector, instants or Instants())
    yield collector.fixes()


def _rows_of_csv(document: Document, columns: Mapping[str, str], user: str | None) -> Rows:
    """The rows of a CSV file with a header; see `dphmm.tables.delimited.csv_rows`."""
    lines = csv_rows(document)
    _, names = next(lines, (1, []))
    index = {what: names.index(name) for what, name in resolve(names, columns, document.source, user).items()}
    for number, fields in lines:
        if len(fields) == len(names):
            yield number, {what: fields[at] for what, at in index.items()}
        else:
            yield number, f"has {len(fields)} fields; the header has {len(names)}"


def _rows_of_geojson(document: Document, columns: Mapping[str, str], user: str | None) -> Rows:
    """The features of a GeoJSON collection, whose properties are the columns; see `dphmm.tables.read_features`."""
    features = read_features(document)
    names = [*dict.fromkeys(name for feature in features for name in feature.properties), "geometry"]
    found = resolve(names, {"geometry": "geometry"} | dict(columns), document.source, user)
    for number, (properties, geometry) in enumerate(features, start=1):
        yield number, {what: properties.get(name) for what, name in found.items()} | {"geometry": geometry}


_FORMATS: Mapping[str, tuple[Callable[[Document, Mapping[str, str], str | None], Rows], str]] = {
    ".csv": (_rows_of_csv, "line"),
    ".tsv": (_rows_of_csv, "line"),
    ".geojson": (_rows_of_geojson, "feature"),
    ".json": (_rows_of_geojson, "feature"),
}
"""Extension → what takes the file apart, and what its records are called."""

SUFFIXES = PARQUET.union(_FORMATS)
