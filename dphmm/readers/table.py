"""Tables of fixes: CSV, GeoJSON, Parquet and GeoParquet.

Columns go by the names that trackintel and scikit-mobility use, in any case, unless the caller names them:

==========  ============================================
what        recognised columns
==========  ============================================
user        ``user_id``, ``uid``, ``user``
time        ``tracked_at``, ``datetime``, ``timestamp``, ``time``
latitude    ``latitude``, ``lat``
longitude   ``longitude``, ``lon``, ``lng``, ``long``
geometry    ``geometry``, ``geom``: points
==========  ============================================

A table without a user column is one person, named after the file. Times are ISO 8601 texts or, in Parquet, timestamps;
one with a zone is converted to UTC, one without is taken as UTC. Numbers are refused as times: nothing says whether
they count seconds or milliseconds. Coordinates are WGS 84 degrees; a GeoParquet geometry in another reference system is
converted. All other columns are left unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dphmm.errors import ConfigurationError
from dphmm.readers.fixes import FixCollector, Fixes, user_of_file
from dphmm.readers.parquet import rows_of_parquet
from dphmm.readers.rows import HELD, Row, rows_of_csv, rows_of_geojson
from dphmm.tables.source import Document, suffix_of

_FORMATS: Mapping[str, tuple[Callable[[Document, Mapping[str, str]], Iterator[Row]], str]] = {
    ".csv": (rows_of_csv, "line"),
    ".tsv": (rows_of_csv, "line"),
    ".geojson": (rows_of_geojson, "feature"),
    ".json": (rows_of_geojson, "feature"),
    ".parquet": (rows_of_parquet, "row"),
    ".geoparquet": (rows_of_parquet, "row"),
}
"""Extension → what takes the file apart, and what its records are called."""

SUFFIXES = frozenset(_FORMATS)


def fixes(
    document: Document, skip_bad: bool, user: str | None, columns: Mapping[str, str] | None = None
) -> Iterator[Fixes]:
    """The rows of a table; by default of the users that it names, or of one named after the file.

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

    Raises
    ------
    DataFileError
        For a missing column, a malformed row (unless skipped), a damaged file.
    ConfigurationError
        When `columns` names something else than the five.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    unknown = set(columns or {}) - set(HELD)
    if unknown:
        raise ConfigurationError(f"columns name {sorted(unknown)}; what a column may hold is one of {sorted(HELD)}")
    take_apart, unit = _FORMATS.get(suffix_of(document.name), (rows_of_csv, "line"))
    collector = FixCollector(document.source, skip_bad, user)
    fallback = user_of_file(document.source)
    for row in take_apart(document, columns or {}):
        try:
            row.add_to(collector, fallback)
        except ValueError as problem:
            if unit == "line":
                collector.refuse(str(problem), row.number)
            else:
                collector.refuse(f"{unit} {row.number}: {problem}")
    yield collector.fixes()
