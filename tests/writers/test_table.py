from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.record import PrivateDiagnostics
from dphmm.release.trajectory import release_trajectory
from dphmm.space import Places, SlottedTrajectory
from dphmm.writers import COLUMNS, ReleaseTable


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_a_missing_column_is_named(table, name):
    with pytest.raises(InvalidInputError, match=f"column '{name}' is missing"):
        ReleaseTable({other: values for other, values in table.columns.items() if other != name})
    rows = [{other: value for other, value in row.items() if other != name} for row in table.rows()]
    with pytest.raises(InvalidInputError, match=f"release 1 has no column '{name}'"):
        ReleaseTable.parse(rows)


def test_an_unknown_column_is_refused(table):
    with pytest.raises(InvalidInputError, match="column 'true_latitude' is unknown"):
        ReleaseTable({**table.columns, "true_latitude": np.zeros(4)})


def test_columns_of_different_length_are_refused(table):
    with pytest.raises(InvalidInputError, match="one value per release"):
        ReleaseTable({**table.columns, "epsilon": np.ones(3)})


def test_a_value_of_another_kind_is_refused(table):
    with pytest.raises(InvalidInputError, match="'epsilon' does not hold a number"):
        ReleaseTable({**table.columns, "epsilon": ["much", "more", "too", "full"]})


@pytest.mark.parametrize("name", ["estimate_radius_m", "hull_area_km2", "latitude"])
@pytest.mark.parametrize("said", ["1.7e+308", -1e101])
def test_a_number_that_no_release_can_say_is_refused(table, name, said):
    rows = list(table.rows())
    with pytest.raises(InvalidInputError, match=rf"release 2: {name} is .*give a number within 1e\+100"):
        ReleaseTable.parse([rows[0], rows[1] | {name: said}])


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -1.0])
def test_a_budget_that_cannot_be_summed_is_refused_and_its_release_named(table, said):
    rows = list(table.rows())
    with pytest.raises(InvalidInputError, match=r"release 2: epsilon is .*; give a budget of 0 or more"):
        ReleaseTable.parse([rows[0], rows[1] | {"epsilon": said}])


def test_columns_cannot_be_written_to(table):
    with pytest.raises(ValueError, match="read-only"):
        table["epsilon"][0] = 2.0


def test_rows_are_plain_json(table):
    rows = list(table.rows())
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert rows[0]["time"] == "2009-10-11T14:04:30Z"
    assert rows[3]["latitude"] is None


def test_a_table_says_of_an_engine_run_what_its_records_say():
    space = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05])
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), space, 60.0)
    releaser = Releaser(model, space.points, PolicyGraph.complete(3), epsilon=0.5, rng=1)
    track = SlottedTrajectory("u", 60.0, np.array([1, 2, 5]), *space.latlon([0, 1, 1]).T)
    made = list(release_trajectory(releaser, space, track))
    table = ReleaseTable.from_releases(made)
    assert table["time"].tolist() == track.times.tolist()
    told = [float(f"{one.record.expected_error * 1000:.7g}") for one in made]
    assert table["expected_error_m"].tolist() == told, "to seven digits"
    assert table["x_km"].tolist() == [one.record.released[0] for one in made]
    assert table["latitude"].tolist() == [round(one.latitude, 6) for one in made]
    plane = space.projection.to_plane(table["latitude"], table["longitude"])
    np.testing.assert_allclose(plane, np.column_stack([table["x_km"], table["y_km"]]), rtol=0, atol=1e-4)


def test_no_column_can_hold_what_needs_the_truth():
    private = {field.name for field in fields(PrivateDiagnostics)} - {"index"}
    assert private.isdisjoint(column.name for column in COLUMNS)
