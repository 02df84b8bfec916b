"""Tests of points in tables in all their forms, and of columns of DECIMAL."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
import shapely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dphmm
from dphmm.errors import DataFileError
from dphmm.tables.vector_files import parse_geometry, parse_points

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PLACES = [(-30.02, 45.0), (-30.0197, 45.00005)]
POINTS = [shapely.Point(place) for place in PLACES]
TIMES = ["2024-03-07T12:00:00Z", "2024-03-07T12:00:20Z"]
FORMS = {
    "text": [point.wkt for point in POINTS],
    "extended text": [f"SRID=4326;{point.wkt}" for point in POINTS],
    "hexadecimal": [point.wkb_hex for point in POINTS],
    "extended hexadecimal": [
        shapely.to_wkb(shapely.set_srid(point, 4326), hex=True, include_srid=True) for point in POINTS
    ],
    "Z": [f"POINT Z ({x} {y} 7)" for x, y in PLACES],
    "JSON": [json.dumps({"type": "Point", "coordinates": place}) for place in PLACES],
    "Web Mercator": [
        shapely.to_wkb(
            shapely.set_srid(shapely.Point(np.radians(x) * 6378137, np.arcsinh(np.tan(np.radians(y))) * 6378137), 3857),
            hex=True,
            include_srid=True,
        )
        for x, y in PLACES
    ],
}


def read_places(path, **options):
    (track,) = dphmm.read(path, **options).trajectories
    return np.column_stack([track.longitude, track.latitude])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_points_in_every_form_are_read_from_tables(tmp_path, form, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        rows = [f"1;{time};'{cell}'" for time, cell in zip(TIMES, FORMS[form], strict=True)]
        path.write_text("\n".join(["user;tracked_at;geom", *rows]).replace('"', '""').replace("'", '"'))
    else:
        parquet.write_table(pa.table({"user": ["1"] * 2, "time": TIMES, "geom": FORMS[form]}), path)
    np.testing.assert_allclose(read_places(path), PLACES, rtol=0, atol=1e-12)


def test_arrow_points_and_the_column_that_metadata_name_are_read(tmp_path):
    axes = np.array(PLACES)
    columns = {
        "separated": pa.StructArray.from_arrays([pa.array(axes[:, 0]), pa.array(axes[:, 1])], ["x", "y"]),
        "interleaved": pa.FixedSizeListArray.from_arrays(pa.array(axes.ravel()), 2),
        "WKB": pa.array([point.wkb for point in POINTS]),
    }
    path = tmp_path / "a.parquet"
    for encoding, column in columns.items():
        geo = {"version": "1.1.0", "primary_column": "where", "columns": {"where": {"encoding": encoding}}}
        table = pa.table({"user": ["1"] * 2, "time": TIMES, "where": column})
        parquet.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)
        np.testing.assert_array_equal(read_places(path), PLACES, err_msg=encoding)
        parquet.write_table(table.rename_columns(["user", "time", "geometry"]), path)
        np.testing.assert_array_equal(read_places(path), PLACES, err_msg=encoding)
        parquet.write_table(table, path)  # neither the name nor metadata
        with pytest.raises(DataFileError, match="has no column of locations"):
            dphmm.read(path)
        np.testing.assert_array_equal(read_places(path, columns={"geometry": "where"}), PLACES, err_msg=encoding)


def test_missing_points_raise_or_are_skipped(tmp_path):
    point = pa.array([{"x": -30.0, "y": 45.0}, None], pa.struct([("x", pa.float64()), ("y", pa.float64())]))
    parquet.write_table(pa.table({"user": ["1"] * 2, "time": TIMES, "geometry": point}), tmp_path / "a.parquet")
    with pytest.raises(DataFileError, match=r"row 2: latitude must be in .*--skip-bad"):
        dphmm.read(tmp_path / "a.parquet")
    assert dphmm.read(tmp_path / "a.parquet", skip_bad=True).points == 1


def test_decimal_columns_are_numbers_and_names(tmp_path):
    second = int(np.datetime64(TIMES[0][:-1], "s").astype(int))
    table = pa.table(
        {
            "uid": pa.array([Decimal(7), Decimal(7)], pa.decimal128(20, 0)),
            "time": pa.array([Decimal(second), Decimal(second + 20)], pa.decimal128(20, 0)),
            "lat": pa.array([Decimal("45.000000"), Decimal("45.000050")], pa.decimal128(9, 6)),
            "lon": pa.array([Decimal("-30.020000"), Decimal("-30.019700")], pa.decimal256(40, 6)),
            "accuracy": pa.array([Decimal("5.5"), Decimal("55000.0")], pa.decimal128(9, 1)),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    result = dphmm.read(tmp_path / "a.parquet", time_format="s")
    (track,) = result.trajectories
    assert (track.user, track.longitude.tolist(), track.latitude.tolist()) == ("7", [-30.02], [45.0])
    assert result.refused == {"accuracy radius is too large": 1}


coordinates = st.tuples(st.floats(-180, 180), st.floats(-90, 90))


@settings(deadline=None, max_examples=60)
@given(places=st.lists(coordinates, min_size=1, max_size=5), form=st.sampled_from(["wkt", "wkb", "hex", "json"]))
def test_points_in_every_form_are_parsed_exactly(places, form):
    points = [shapely.Point(place) for place in places]
    cells = {
        "wkt": [f"POINT ({x!r} {y!r})" for x, y in places],
        "wkb": [point.wkb for point in points],
        "hex": [point.wkb_hex for point in points],
        "json": [{"type": "Point", "coordinates": place} for place in places],
    }[form]
    assert parse_points([*cells, None, "POINT EMPTY", "LINESTRING (0 0, 1 1)", b"\1", 7])[: len(places)].tolist() == [
        list(place) for place in places
    ]
    for cell, place in zip(cells, places, strict=True):
        point = parse_geometry(cell, ("Point",))
        assert (point.x, point.y) == place


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cell=st.binary(max_size=30) | st.text(max_size=30) | st.builds("SRID={};POINT(1 2)".format, st.integers()))
def test_other_cells_have_no_point_or_raise(cell):
    try:
        points = parse_points([cell])
    except ValueError:  # an unknown SRID
        return
    assert points.shape == (1, 2)


def test_unknown_reference_system_raises(tmp_path):
    parquet.write_table(
        pa.table({"user": ["1"], "time": TIMES[:1], "geom": ["SRID=999999;POINT(1 2)"]}), tmp_path / "a.parquet"
    )
    with pytest.raises(DataFileError, match="unknown reference system"):
        dphmm.read(tmp_path / "a.parquet")
