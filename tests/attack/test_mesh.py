"""Tests of meshes with missing cells."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from dphmm.attack.mesh import Mesh
from dphmm.space import Grid


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_mesh_locates_parts_if_cells_are_missing(parts):
    round_one = Grid.over(shapely.Point(-30.0, 45.0).buffer(0.01), 0.2)
    assert round_one.size < round_one.columns * round_one.rows
    mesh, rng = Mesh(round_one, parts), np.random.default_rng(0)
    points = rng.uniform(-1.5, 1.5, (2000, 2))
    part_index = mesh.locate(points)
    np.testing.assert_array_equal(
        np.where(part_index < 0, -1, part_index // parts**2),
        round_one.locate(*round_one.projection.to_latlon(points).T),
    )
    inside = part_index >= 0
    assert np.abs(points[inside] - mesh.points[part_index[inside]]).max() <= mesh.cell_km / 2 + 1e-9
    np.testing.assert_allclose(mesh.points.reshape(round_one.size, -1, 2).mean(axis=1), round_one.points, atol=1e-12)
