from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.space import LocalProjection
from dphmm.writers import COLUMNS, ReleaseTable
from dphmm.writers.table import degrees


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_a_missing_column_is_named(table, name):
    with pytest.raises(InvalidInputError, match=f"column '{name}' is missing"):
        ReleaseTable({other: values for other, values in table.columns.items() if other != name})


def test_an_unknown_column_is_refused(table):
    with pytest.raises(InvalidInputError, match="column 'true_latitude' is unknown"):
        ReleaseTable({**table.columns, "true_latitude": np.zeros(4)})


def test_columns_of_different_length_are_refused(table):
    with pytest.raises(InvalidInputError, match="one value per release"):
        ReleaseTable({**table.columns, "epsilon": np.ones(3)})


def test_a_value_of_another_kind_is_refused(table):
    with pytest.raises(InvalidInputError, match="'epsilon' does not hold a number"):
        ReleaseTable({**table.columns, "epsilon": ["much", "more", "too", "full"]})


def test_columns_cannot_be_written_to(table):
    with pytest.raises(ValueError, match="read-only"):
        table["epsilon"][0] = 2.0


def test_rows_are_plain_json(table):
    rows = list(table.rows())
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert rows[0]["time"] == "2009-10-11T14:04:30Z"
    assert rows[3]["latitude"] is None


def test_a_draw_beyond_the_earths_plane_has_no_degrees_and_harms_no_other():
    projection = LocalProjection(39.92, 116.375)
    found = degrees(projection, np.array([[0.0, 0.0], [1e6, 0.0], [10.0, 10.0]]))
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[0], [39.92, 116.375], rtol=0, atol=1e-7)
    np.testing.assert_allclose(projection.to_plane(*found[2]), [[10.0, 10.0]], rtol=0, atol=1e-5)
