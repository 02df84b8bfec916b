"""Files of flow tables: CSV, Parquet, JSON, and GeoPackage with areas and lines for QGIS."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from dphmm.arrays import as_integers
from dphmm.errors import DataFileError, import_library
from dphmm.flows.areas import Areas
from dphmm.flows.noisy_tables import KEY_COLUMNS, NUMERIC_COLUMNS, REST, format_interval
from dphmm.tables import check_output, create_file, read_document, write_csv
from dphmm.tables.parquet_files import OpenParquet, write_parquet
from dphmm.tables.sqlite_files import connect
from dphmm.validation import check_arguments
from dphmm.writers.formats import check_format
from dphmm.writers.geopackage import write_layers
from dphmm.writers.release_table import CRS

FORMAT = "dphmm-flows-1"
_KEY = b"dphmm-flows"
_COLUMNS = (*KEY_COLUMNS, *NUMERIC_COLUMNS)

# The layers of a GeoPackage of flows → their descriptions. The folder `styles` contains their styles for QGIS.
LAYERS: Mapping[str, str] = {
    "areas": "Areas with their visits, departures and arrivals, each with its interval.",
    "flows": "Lines from the start to the end of trips; their width grows with the count.",
}

# Published metric of an area → its table, the column of areas, and the levels; the first level of the file is used.
MEASURES = {
    "visits": ("visits", "area", ("area in all", "area")),
    "departures": ("flows", "area", ("departures",)),
    "arrivals": ("flows", "to", ("arrivals",)),
}


class FlowNumber(NamedTuple):
    """A published number of tables of flows.

    Parameters
    ----------
    whole
        The count, consistent with all sums of its table.
    low, high
        Its interval; None for a sum of several counts.
    is_significant
        Whether the interval excludes zero.
    num_values
        The number of values that it sums: 1, except for the rest of a level.
    """

    whole: int
    low: int | None
    high: int | None
    is_significant: bool
    num_values: int = 1

    def __str__(self) -> str:
        return (
            f"{self.whole:,}"
            if self.low is None or self.high is None
            else format_interval(self.whole, self.low, self.high)
        )


@dataclass(frozen=True, eq=False)
class FlowRows:
    """Rows of flow tables that may be published, with their areas and guarantee.

    Parameters
    ----------
    columns
        `dphmm.flows.noisy_tables.KEY_COLUMNS` and ``NUMERIC_COLUMNS`` → ``(n,)``.
    features
        The areas as GeoJSON features, with ``name`` and ``district``.
    summary
        The guarantee and the settings: plain JSON values.
    """

    columns: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.columns["count"])

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], areas: Areas, summary: Mapping[str, Any]) -> FlowRows:
        """Create rows with their areas.

        Parameters
        ----------
        columns, summary
            As for the class.
        areas
            The areas.

        Returns
        -------
        FlowRows
            The rows.
        """
        features = [
            {
                "type": "Feature",
                "properties": {
                    "name": name,
                    "district": areas.districts[district],
                    "at": [float(place[1]), float(place[0])],
                },
                "geometry": json.loads(shapely.to_geojson(outline)),
            }
            for name, district, place, outline in zip(
                areas.names, areas.district_of.tolist(), areas.places, areas.outlines, strict=True
            )
        ]
        return cls(columns, features, summary)

    def select(self, table: str, *levels: str) -> dict[str, Any]:
        """Return the columns of a table's rows at the first of several levels in the file.

        A level is in the file if it has a row, or a row that sums all its values.

        Parameters
        ----------
        table
            The name of the table.
        *levels
            The levels.

        Returns
        -------
        dict
            Column → array.
        """
        of_table = self.columns["table"] == table
        for level in levels:
            mask = of_table & (self.columns["level"] == level)
            if mask.any() or (of_table & (self.columns["level"] == REST + level)).any():
                break
        return {name: column[mask] for name, column in self.columns.items()}

    def numbers(self, table: str, levels: Sequence[str], *keys: str) -> dict[tuple[str, ...], FlowNumber]:
        """Return counts with intervals and significance, by keys.

        Daily tables are summed, without intervals.

        Parameters
        ----------
        table, levels
            As for `select`.
        *keys
            The key columns.

        Returns
        -------
        dict
            Values of the key columns → the number.
        """
        columns = self.select(table, *levels)
        sums: dict[tuple[str, ...], FlowNumber] = {}
        key_values = zip(*(columns[key].tolist() for key in keys), strict=True)
        names = ("count", "low", "high", "is_significant", "num_values")
        numbers = zip(*(columns[name].tolist() for name in names), strict=True)
        for key, number in zip(key_values, map(FlowNumber._make, numbers), strict=True):
            previous = sums.get(key)
            if previous is not None:
                number = FlowNumber(
                    previous.whole + number.whole,
                    None,
                    None,
                    previous.is_significant or number.is_significant,
                    max(previous.num_values, number.num_values),
                )
            sums[key] = number
        return sums

    def rest(self, table: str, *levels: str) -> FlowNumber | None:
        """Return the sum of the values without a row, at the first of several levels in the file.

        Parameters
        ----------
        table, *levels
            As for `select`.

        Returns
        -------
        FlowNumber or None
            The sum. Without an interval if it is of several days. None if every value has a row.
        """
        for level in levels:
            numbers = self.numbers(table, (REST + level,), "table")
            if numbers or len(self.select(table, level)["count"]):
                return numbers.get((table,))
        return None

    @property
    def places(self) -> dict[str, tuple[float, float]]:
        """Area → longitude and latitude of its point."""
        properties = (feature["properties"] for feature in self.features)
        return {area["name"]: tuple(area["at"]) for area in properties}

    def to_json(self, rows: bool = True) -> dict[str, Any]:
        """Return the tables as JSON values.

        The format is modelled on the metrics of the Mobility Data Specification.

        Parameters
        ----------
        rows
            Whether the rows are included.

        Returns
        -------
        dict
            Dimensions, measures, areas and rows.
        """
        document: dict[str, Any] = {
            "format": FORMAT,
            "facts": dict(self.summary),
            "dimensions": list(KEY_COLUMNS),
            "measures": list(NUMERIC_COLUMNS),
        }
        document["areas"] = {"type": "FeatureCollection", "features": list(self.features)}
        if rows:
            columns: list[Any] = [self.columns[name].tolist() for name in _COLUMNS]
            document["rows"] = [list(row) for row in zip(*columns, strict=True)]
        return document

    @check_arguments
    def write(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the tables in the format of the file's extension, atomically.

        Parameters
        ----------
        path
            The file.
        overwrite
            Whether an existing file may be replaced.

        Raises
        ------
        ConfigurationError, MissingDependencyError, OutputError
            As `check_flow_file`, and if the file cannot be written.
        """
        path = check_flow_file(path, overwrite)
        with create_file(path, overwrite) as part:
            _FORMATS[path.suffix.lower()](self, part)

    @classmethod
    @check_arguments
    def read(cls, path: str | Path) -> FlowRows:
        """Read a .parquet or .json file of `write`.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        FlowRows
            Its tables.

        Raises
        ------
        DataFileError
            If it is not such a file.
        """
        document = read_document(path)
        try:
            if Path(path).suffix.lower() == ".parquet":
                import_library("pyarrow", "files")
                file = OpenParquet(document)
                table = file.read()
                content = json.loads(file.metadata[_KEY])
                columns = {name: table[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
            else:
                content = json.loads(document.text())
                values = list(zip(*content["rows"], strict=True)) or [()] * len(_COLUMNS)
                columns = dict(zip(_COLUMNS, values, strict=True))
            if content["format"] != FORMAT:
                raise ValueError
            typed = {name: np.array(columns[name], dtype=object) for name in KEY_COLUMNS}
            typed |= {
                "unbiased": np.array(columns["unbiased"], float),
                "is_significant": np.array(columns["is_significant"], bool),
            }
            typed |= {name: as_integers(columns[name], name) for name in NUMERIC_COLUMNS if name not in typed}
            return cls(typed, content["areas"]["features"], content["facts"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise DataFileError(
                path, "does not contain flow tables and areas: use a .parquet or .json file of 'dphmm flows'"
            ) from None


def is_flow_file(path: str | Path) -> bool:
    """Return whether a file is marked as one of flow tables at its start or end.

    `FlowRows.read` refuses a CSV file, which lacks the areas, and a GeoPackage, which lacks the summary.
    """
    path = Path(path)
    if path.suffix.lower() not in (".parquet", ".json", ".csv", ".gpkg") or not path.is_file():
        return False
    if path.suffix.lower() == ".gpkg":
        with suppress(sqlite3.Error), closing(connect(path, "ro&immutable=1")) as opened:
            query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('areas', 'rows')"
            return bool(opened.execute(query).fetchone() == (2,))
        return False
    with path.open("rb") as stream:
        if path.suffix.lower() == ".csv":
            return stream.readline(200).decode(errors="replace").strip() == ",".join(_COLUMNS)
        if path.suffix.lower() == ".json":
            return f'"format": "{FORMAT}"'.encode() in stream.read(200)
        stream.seek(max(path.stat().st_size - 2_000_000, 0))
        return _KEY in stream.read()


@check_arguments
def check_flow_file(path: str | Path, overwrite: bool = False) -> Path:
    """Check, before any work, that a file of flow tables can be written.

    Parameters
    ----------
    path
        The file.
    overwrite
        Whether an existing file may be replaced.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigurationError
        If the extension is not supported.
    MissingDependencyError
        If a library of the format is not installed.
    OutputError
        As `dphmm.tables.check_output`.
    """
    return check_output(check_format(path, _FORMATS, "table of flows"), overwrite)


def _write_csv(rows: FlowRows, path: Path) -> None:
    columns: list[list[Any]] = [rows.columns[name].tolist() for name in _COLUMNS]
    columns[-2:] = [f"{value:.6g}" for value in columns[-2]], [str(value).lower() for value in columns[-1]]
    write_csv(path, _COLUMNS, zip(*columns, strict=True))


def _write_parquet(rows: FlowRows, path: Path) -> None:
    metadata = json.dumps(rows.to_json(rows=False), ensure_ascii=False).encode()
    write_parquet(path, {name: rows.columns[name] for name in _COLUMNS}, {_KEY: metadata})


def _write_json(rows: FlowRows, path: Path) -> None:
    path.write_text(json.dumps(rows.to_json(), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _build_line(start: tuple[float, float], end: tuple[float, float]) -> shapely.MultiLineString:
    """Return the line between two points, in two parts if it crosses the date line."""
    if abs(end[0] - start[0]) <= 180.0:
        return shapely.MultiLineString([[start, end]])
    border = float(np.copysign(180.0, start[0]))
    width = end[0] + 2.0 * border - start[0]
    share = (border - start[0]) / width if width else 0.0  # both are on the date line if the width is 0
    latitude = start[1] + share * (end[1] - start[1])
    return shapely.MultiLineString([[start, (border, latitude)], [(-border, latitude), end]])


def _write_geopackage(rows: FlowRows, path: Path) -> None:
    """Write layers of areas and flow lines with styles, and all rows as a table."""
    geopandas = import_library("geopandas", "files")
    pandas = import_library("pandas", "files")
    metadata = {"generator": "dphmm", **{name: json.dumps(value) for name, value in rows.summary.items()}}
    outlines = [shapely.from_geojson(json.dumps(feature["geometry"])) for feature in rows.features]
    properties = [feature["properties"] for feature in rows.features]
    areas: dict[str, Any] = {name: [area[name] for area in properties] for name in ("name", "district")}
    for name, (table, key, levels) in MEASURES.items():
        numbers = rows.numbers(table, levels, key)
        for index, suffix in enumerate(("", "_low", "_high")):
            values = [numbers[(area,)][index] if (area,) in numbers else None for area in areas["name"]]
            areas[f"{name}{suffix}"] = pandas.array(values, dtype="Int64")
    columns = rows.select("flows", "area in all", "area")
    moving = np.flatnonzero((columns["area"] != columns["to"]) & (columns["count"] > 0))
    moving = moving[np.argsort(columns["count"][moving], kind="stable")]
    places = rows.places
    ends = zip(columns["area"][moving].tolist(), columns["to"][moving].tolist(), strict=True)
    lines = [_build_line(places[origin], places[destination]) for origin, destination in ends]
    flows = {name: columns[name][moving] for name in ("day", "area", "to", *NUMERIC_COLUMNS)}
    width = 5.0 * np.sqrt(flows["count"] / max(float(flows["count"].max(initial=1)), 1.0))
    width = np.where(flows["is_significant"], 0.4 + width, 0.1)
    layers = {
        "areas": (geopandas.GeoDataFrame(areas, geometry=outlines, crs=CRS), "Unknown"),
        "flows": (geopandas.GeoDataFrame({**flows, "width_mm": width}, geometry=lines, crs=CRS), "MultiLineString"),
        "rows": (pandas.DataFrame({name: rows.columns[name] for name in _COLUMNS}), None),
    }
    write_layers(path, layers, LAYERS, metadata, np.datetime64("2024-01-01", "ms"))


# Extension → the function that writes the file.
_FORMATS: Mapping[str, Callable[[FlowRows, Path], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
    ".gpkg": _write_geopackage,
}
