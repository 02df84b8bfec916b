from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC

import numpy as np
import pyarrow
import pytest

from dphmm.errors import InvalidInputError
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.record import PrivateDiagnostics
from dphmm.release.trajectory_release import release_trajectory
from dphmm.space import Places, SlottedTrajectory, Trajectory
from dphmm.writers import COLUMNS, ReleaseTable


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_missing_column_raises_with_its_name(table, name):
    with pytest.raises(InvalidInputError, match=f"'{name}'"):
        ReleaseTable({other: values for other, values in table.columns.items() if other != name})
    rows = [{other: value for other, value in row.items() if other != name} for row in table.rows()]
    with pytest.raises(InvalidInputError, match=f"release 1 .*'{name}'"):
        ReleaseTable.parse(rows)


def test_unknown_column_raises(table):
    with pytest.raises(InvalidInputError, match="'true_latitude'"):
        ReleaseTable({**table.columns, "true_latitude": np.zeros(4)})


def test_columns_of_different_length_raise(table):
    with pytest.raises(InvalidInputError, match="one value"):
        ReleaseTable({**table.columns, "epsilon": np.ones(3)})


def test_value_of_other_type_raises(table):
    with pytest.raises(InvalidInputError, match="'epsilon'"):
        ReleaseTable({**table.columns, "epsilon": ["much", "more", "too", "full"]})


@pytest.mark.parametrize("name", ["estimate_error_m", "hull_area_km2", "latitude"])
@pytest.mark.parametrize("value", ["1.7e+308", -1e101])
def test_too_large_number_raises(table, name, value):
    rows = list(table.rows())
    with pytest.raises(InvalidInputError, match=rf"release 2: {name} .*1e\+100"):
        ReleaseTable.parse([rows[0], rows[1] | {name: value}])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_invalid_epsilon_raises_with_number_of_release(table, value):
    rows = list(table.rows())
    with pytest.raises(InvalidInputError, match="release 2: epsilon "):
        ReleaseTable.parse([rows[0], rows[1] | {"epsilon": value}])


def test_columns_are_read_only(table):
    with pytest.raises(ValueError, match="read-only"):
        table["epsilon"][0] = 2.0


def test_rows_serialise_to_json(table):
    rows = list(table.rows())
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert rows[0]["time"] == "2009-10-11T14:04:30Z"
    assert rows[3]["latitude"] is None


def test_table_of_releases_matches_records():
    space = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05])
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), space, 60.0)
    releaser = Releaser(model, space.points, PolicyGraph.complete(3), epsilon=0.5, rng=1)
    track = SlottedTrajectory("u", 60.0, np.array([1, 2, 5]), *space.latlon([0, 1, 1]).T)
    releases = list(release_trajectory(releaser, space, track))
    table = ReleaseTable.from_releases(releases)
    assert table["time"].tolist() == track.times.tolist()
    expected = [float(f"{placed.record.expected_error * 1000:.7g}") for placed in releases]
    assert table["expected_error_m"].tolist() == expected, "to seven digits"
    assert table["x_km"].tolist() == [placed.record.released[0] for placed in releases]
    assert table["latitude"].tolist() == [round(placed.latitude, 6) for placed in releases]
    plane = space.projection.to_plane(table["latitude"], table["longitude"])
    np.testing.assert_allclose(plane, np.column_stack([table["x_km"], table["y_km"]]), rtol=0, atol=1e-4)


def test_every_fix_lies_between_start_and_time_of_its_row():
    """Fixes at random instants (seed 3). Intervals closed at the other end lose a fix."""
    space = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05])
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), space, 60.0)
    releaser = Releaser(model, space.points, PolicyGraph.complete(3), epsilon=0.5, rng=1)
    seconds = np.union1d([0, 60], np.random.default_rng(3).choice(np.arange(61, 3000), 38, replace=False))
    times = np.datetime64("2024-03-07T09:00", "us") + seconds * np.timedelta64(1, "s")
    fixes = Trajectory("u", times, *space.latlon(np.zeros(40, dtype=np.int64)).T)
    table = ReleaseTable.from_releases(release_trajectory(releaser, space, fixes.resample(60.0)))
    starts = table.step_starts(60)
    rows_of_fix = ((starts < times[:, None]) & (times[:, None] <= table["time"])).sum(axis=1)
    assert (rows_of_fix == 1).all()
    assert not ((starts <= times[:, None]) & (times[:, None] < table["time"])).any(axis=1).all()
    with pytest.raises(InvalidInputError, match="step_seconds must be that of the releases, got 7 s"):
        table.step_starts(7)


def test_columns_exclude_private_diagnostics():
    private = {field.name for field in fields(PrivateDiagnostics)} - {"index"}
    assert private.isdisjoint(column.name for column in COLUMNS)


@pytest.mark.slow
def test_libraries_of_data_frames_read_table(table):
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    wanted = {column.name: table[column.name].tolist() for column in COLUMNS}
    wanted["time"] = [time.replace(tzinfo=UTC) for time in wanted["time"]]
    read = [polars.DataFrame(table).to_dict(as_series=False), pyarrow.table(table).to_pydict()]
    releases = table  # DuckDB finds the variable by its name
    read.append(duckdb.sql("SELECT * FROM releases").to_arrow_table().to_pydict())
    assert releases is table
    read.append({name: column.tolist() for name, column in table.to_pandas().items()})
    for columns in read:
        assert list(columns) == list(wanted)
        for name, values in wanted.items():
            np.testing.assert_equal(columns[name], values)
