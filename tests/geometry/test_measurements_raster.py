"""Rasters and polygons, against a check of every cell."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.geometry import Measurements, neighbours, planar
from dphmm.policy import radius


def sample_cells(seed: int) -> np.ndarray:
    """Sample occupied cells: scattered, a disc, three cells, a row, a column or all cells."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 14, 2)
    y, x = np.indices((height, width))
    kind = seed % 6
    if kind == 0:
        cells = rng.random((height, width)) < rng.random()
    elif kind == 1:
        cells = (x - rng.integers(width)) ** 2 + (y - rng.integers(height)) ** 2 < rng.integers(1, 60)
    elif kind == 2:
        cells = rng.permutation(height * width).reshape(height, width) < 3
    elif kind == 3:
        cells = y == rng.integers(height)
    elif kind == 4:
        cells = x == rng.integers(width)
    else:
        cells = np.ones((height, width), dtype=bool)
    cells[rng.integers(height), rng.integers(width)] = True
    return cells


@pytest.mark.parametrize("kind", range(6))
def test_raster_corners_match_convex_polygon(kind):
    for seed in range(kind, 300, 6):
        cells = sample_cells(seed)
        wanted = planar.build_convex_polygon(np.argwhere(cells)[:, ::-1])
        everywhere = Measurements(np.argwhere(np.ones(cells.shape))[:, ::-1])
        assert everywhere.raster is not None
        np.testing.assert_array_equal(everywhere.raster.find_hull_corners(cells.ravel()), wanted)


@pytest.mark.parametrize("kind", range(6))
def test_row_sums_match_every_cell(kind):
    for seed in range(kind, 60, 6):
        rng = np.random.default_rng(seed)
        cells = sample_cells(seed) * rng.integers(1, 4, sample_cells(seed).shape).astype(np.int32)
        top = int(rng.integers(0, len(cells)))
        high = rng.integers(0, cells.shape[1], 2 * top + 1)
        low = -high[::-1]
        rows = np.stack([np.arange(-top, top + 1), low, high], axis=1)[low <= high]
        wanted = np.zeros(cells.shape, dtype=np.int64)
        for y, x in np.ndindex(cells.shape):
            for dy, first, last in rows.tolist():
                if 0 <= y + dy < len(cells):
                    wanted[y, x] += cells[y + dy, max(0, x + first) : max(0, x + last + 1)].sum()
        np.testing.assert_array_equal(neighbours._sum_row_by_row(cells, rows), wanted)


@pytest.mark.parametrize("kind", range(6))
def test_difference_occurs_if_two_occupied_cells_have_it(kind):
    for seed in range(kind, 60, 6):
        cells = sample_cells(seed)
        at = np.argwhere(cells)
        differences = {(int(x), int(y)) for y, x in (at[:, None] - at[None]).reshape(-1, 2)}
        for dx in range(-cells.shape[1] - 1, cells.shape[1] + 2):
            for dy in range(len(cells) + 2):
                assert radius._occurs(cells, dx, dy) == ((dx, dy) in differences)


@pytest.mark.parametrize("seed", range(40))
def test_difference_polygon_and_polygon_sums_match_pairs_and_triangles(seed):
    rng = np.random.default_rng(seed)
    polygon = planar.build_convex_polygon(rng.integers(-9, 10, (int(rng.integers(3, 40)), 2)))
    wanted = planar.build_convex_polygon((polygon[:, None] - polygon[None]).reshape(-1, 2))
    np.testing.assert_array_equal(planar.build_difference_polygon(polygon), wanted)
    corners = rng.normal(size=(len(polygon), 2))
    before = np.roll(corners, 1, axis=0)
    doubles = planar.cross(before, corners)
    squares = sum((corner_array**2).sum(axis=1) for corner_array in (before, corners, before + corners))
    reach = (corners**2).sum(axis=1).max()
    assert planar.integrate_polygon(corners) == pytest.approx(
        (doubles.sum(), doubles @ squares, reach), rel=1e-12, abs=1e-12
    )
