"""Tables of flows as files: CSV, Parquet, JSON of aggregates, and GeoPackage with areas and lines for QGIS."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.arrays import as_integers
from dphmm.errors import DataFileError, need
from dphmm.flows.areas import Areas
from dphmm.flows.noisy_tables import KEYS, NUMBERS, in_words
from dphmm.tables import check_output, new_file, read_document, write_csv
from dphmm.tables.binary_files import OpenParquet, write_parquet
from dphmm.writers.formats import check_format
from dphmm.writers.geopackage import write_layers
from dphmm.writers.table import CRS

FORMAT = "dphmm-flows-1"
_KEY = b"dphmm-flows"
_COLUMNS = (*KEYS, *NUMBERS)

LAYERS: Mapping[str, str] = {
    "areas": "Areas with their visits, departures and arrivals, each with its interval.",
    "flows": "Lines from where trips begin to where they end, as wide as there are many.",
}
"""The layers of a GeoPackage of flows → what each is; `styles` has how QGIS is to draw it."""

MEASURES = {
    "visits": ("visits", "area", ("area in all", "area")),
    "departures": ("flows", "area", ("departures",)),
    "arrivals": ("flows", "to", ("arrivals",)),
}
"""Published figure of an area → its table, the column of areas, and the levels of which the first present counts."""


class FlowNumber(NamedTuple):
    """A published number of tables of flows.

    Parameters
    ----------
    whole
        The count of which all sums agree.
    low, high
        Its interval; None where it is a sum of several counts.
    sure
        Whether it is surely more than noise.
    """

    whole: int
    low: int | None
    high: int | None
    sure: bool

    def __str__(self) -> str:
        return f"{self.whole:,}" if self.low is None or self.high is None else in_words(self.whole, self.low, self.high)


@dataclass(frozen=True, eq=False)
class FlowRows:
    """Rows of tables of flows that may be published, with their areas and what they promise.

    Parameters
    ----------
    columns
        `dphmm.flows.noisy_tables.KEYS` and ``NUMBERS`` → ``(n,)``.
    features
        The areas as GeoJSON features, with ``name`` and ``district``.
    facts
        What is promised, and how they were made: plain JSON values.
    """

    columns: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.columns["count"])

    @classmethod
    def of(cls, columns: Mapping[str, Any], areas: Areas, facts: Mapping[str, Any]) -> FlowRows:
        """Rows between some areas.

        Parameters
        ----------
        columns, facts
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
                "properties": {"name": name, "district": areas.districts[of], "at": [float(at[1]), float(at[0])]},
                "geometry": json.loads(shapely.to_geojson(outline)),
            }
            for name, of, at, outline in zip(
                areas.names, areas.district_of.tolist(), areas.places, areas.outlines, strict=True
            )
        ]
        return cls(columns, features, facts)

    def some(self, table: str, *levels: str) -> dict[str, Any]:
        """The columns of a table's rows at one of some levels.

        Parameters
        ----------
        table
            Its name.
        *levels
            The first of them that has rows is meant.

        Returns
        -------
        dict
            Column → array.
        """
        for level in levels:
            chosen = (self.columns["table"] == table) & (self.columns["level"] == level)
            if chosen.any():
                break
        return {name: column[chosen] for name, column in self.columns.items()}

    def numbers(self, table: str, levels: Sequence[str], *keys: str) -> dict[tuple[str, ...], FlowNumber]:
        """Counts with their intervals, and whether they are sure; of tables of days their sums, without intervals.

        Parameters
        ----------
        table, levels
            As `some` takes them.
        *keys
            The columns by which they are found.

        Returns
        -------
        dict
            Texts of these columns → the number.
        """
        columns = self.some(table, *levels)
        found: dict[tuple[str, ...], FlowNumber] = {}
        texts = zip(*(columns[key].tolist() for key in keys), strict=True)
        numbers = zip(*(columns[name].tolist() for name in ("count", "low", "high", "sure")), strict=True)
        for key, number in zip(texts, map(FlowNumber._make, numbers), strict=True):
            known = found.get(key)
            if known is not None:
                number = FlowNumber(known.whole + number.whole, None, None, known.sure or number.sure)
            found[key] = number
        return found

    @property
    def places(self) -> dict[str, tuple[float, float]]:
        """Area → longitude and latitude of its point."""
        return {one["properties"]["name"]: tuple(one["properties"]["at"]) for one in self.features}

    def to_json(self, rows: bool = True) -> dict[str, Any]:
        """Aggregates as JSON, after the metrics of the Mobility Data Specification: what is counted by what, and rows.

        Parameters
        ----------
        rows
            Whether they are in it.

        Returns
        -------
        dict
            What JSON can hold.
        """
        told: dict[str, Any] = {
            "format": FORMAT,
            "facts": dict(self.facts),
            "dimensions": list(KEYS),
            "measures": list(NUMBERS),
        }
        told["areas"] = {"type": "FeatureCollection", "features": list(self.features)}
        if rows:
            columns: list[Any] = [self.columns[name].tolist() for name in _COLUMNS]
            told["rows"] = [list(row) for row in zip(*columns, strict=True)]
        return told

    @checked
    def write(self, path: str | Path, overwrite: bool = False) -> None:
        """Write them in the format of the file's ending, whole or not at all.

        Parameters
        ----------
        path
            The file.
        overwrite
            Whether one that exists may be replaced.

        Raises
        ------
        ConfigurationError, MissingDependencyError, OutputError
            As `check_flow_file`, and when the file cannot be written.
        """
        path = check_flow_file(path, overwrite)
        with new_file(path, overwrite) as part:
            _FORMATS[path.suffix.lower()](self, part)

    @classmethod
    @checked
    def read(cls, path: str | Path) -> FlowRows:
        """Read a .parquet or .json file that `write` wrote.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        FlowRows
            What it holds.

        Raises
        ------
        DataFileError
            When it is no such file.
        """
        document = read_document(path)
        try:
            if Path(path).suffix.lower() == ".parquet":
                need("pyarrow", "files")
                file = OpenParquet(document)
                found = file.read()
                told = json.loads(file.metadata[_KEY])
                columns = {name: found[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
            else:
                told = json.loads(document.text())
                given = list(zip(*told["rows"], strict=True)) or [()] * len(_COLUMNS)
                columns = dict(zip(_COLUMNS, given, strict=True))
            if told["format"] != FORMAT:
                raise ValueError
            typed = {name: np.array(columns[name], dtype=object) for name in KEYS}
            typed |= {"unbiased": np.array(columns["unbiased"], float), "sure": np.array(columns["sure"], bool)}
            typed |= {name: as_integers(columns[name], name) for name in NUMBERS if name not in typed}
            return cls(typed, told["areas"]["features"], told["facts"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise DataFileError(
                path, "holds no tables of flows; give a .parquet or .json file of 'dphmm flows'"
            ) from None


def is_flow_file(path: str | Path) -> bool:
    """Whether a file's beginning or end says that it has tables of flows."""
    path = Path(path)
    if path.suffix.lower() not in (".parquet", ".json") or not path.is_file():
        return False
    with path.open("rb") as stream:
        if path.suffix.lower() == ".json":
            return f'"format": "{FORMAT}"'.encode() in stream.read(200)
        stream.seek(max(path.stat().st_size - 2_000_000, 0))
        return _KEY in stream.read()


@checked
def check_flow_file(path: str | Path, overwrite: bool = False) -> Path:
    """Refuse a file of flows that cannot be written, before any work.

    Parameters
    ----------
    path
        The file.
    overwrite
        Whether one that exists may be replaced.

    Returns
    -------
    Path
        The same.

    Raises
    ------
    ConfigurationError
        For another ending.
    MissingDependencyError
        Without the libraries of its format.
    OutputError
        As `dphmm.tables.check_output`.
    """
    return check_output(check_format(path, _FORMATS, "table of flows"), overwrite)


def _write_csv(rows: FlowRows, path: Path) -> None:
    columns: list[list[Any]] = [rows.columns[name].tolist() for name in _COLUMNS]
    columns[-2:] = [f"{value:.6g}" for value in columns[-2]], [str(value).lower() for value in columns[-1]]
    write_csv(path, _COLUMNS, zip(*columns, strict=True))


def _write_parquet(rows: FlowRows, path: Path) -> None:
    said = json.dumps(rows.to_json(rows=False), ensure_ascii=False).encode()
    write_parquet(path, {name: rows.columns[name] for name in _COLUMNS}, {_KEY: said})


def _write_json(rows: FlowRows, path: Path) -> None:
    path.write_text(json.dumps(rows.to_json(), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _write_geopackage(rows: FlowRows, path: Path) -> None:
    """Layers of areas and of flow lines with styles, and all rows as a table without places."""
    geopandas, pandas = need("geopandas", "files"), need("pandas", "files")
    said = {"generator": "dphmm", **{name: json.dumps(one) for name, one in rows.facts.items()}}
    outlines = [shapely.from_geojson(json.dumps(one["geometry"])) for one in rows.features]
    areas: dict[str, Any] = {name: [one["properties"][name] for one in rows.features] for name in ("name", "district")}
    for name, (table, key, levels) in MEASURES.items():
        of = rows.numbers(table, levels, key)
        for place, number in enumerate(("", "_low", "_high")):
            values = [of[(one,)][place] if (one,) in of else None for one in areas["name"]]
            areas[f"{name}{number}"] = pandas.array(values, dtype="Int64")
    some = rows.some("flows", "area in all", "area")
    moving = np.flatnonzero((some["area"] != some["to"]) & (some["count"] > 0))
    moving = moving[np.argsort(some["count"][moving], kind="stable")]
    at = rows.places
    ends = zip(some["area"][moving].tolist(), some["to"][moving].tolist(), strict=True)
    lines = [shapely.LineString([at[one], at[other]]) for one, other in ends]
    flows = {name: some[name][moving] for name in ("day", "area", "to", *NUMBERS)}
    width = 5.0 * np.sqrt(flows["count"] / max(float(flows["count"].max(initial=1)), 1.0))
    width = np.where(flows["sure"], 0.4 + width, 0.1)
    layers = {
        "areas": (geopandas.GeoDataFrame(areas, geometry=outlines, crs=CRS), "Unknown"),
        "flows": (geopandas.GeoDataFrame({**flows, "width_mm": width}, geometry=lines, crs=CRS), "LineString"),
        "rows": (pandas.DataFrame({name: rows.columns[name] for name in _COLUMNS}), None),
    }
    write_layers(path, layers, LAYERS, said, np.datetime64("2024-01-01", "ms"))


_FORMATS: Mapping[str, Callable[[FlowRows, Path], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
    ".gpkg": _write_geopackage,
}
"""Ending → what writes the file."""
