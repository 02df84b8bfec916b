"""Lattices are recognised, and only lattices; counting neighbours equals brute force in every way it is done."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dphmm import Measurements, SensitivityHull
from dphmm.arrays import frozen
from dphmm.errors import CoordinateError
from dphmm.geometry import neighbours, planar
from dphmm.geometry.hull import Disc
from dphmm.geometry.incremental_hull import growing_body, origin
from dphmm.geometry.neighbours import CoordinateBody, count_within


@pytest.mark.parametrize("cell", [0.34, 0.89, 1e-3, 7.0, 1 / 3])
@pytest.mark.parametrize("origin", [0.0, -4.21, 117.3])
def test_grid_centres_are_recognised_as_a_lattice(cell, origin):
    steps = np.random.default_rng(3).integers(0, 40, (200, 2))
    found = Measurements(origin + cell * steps)
    assert found.is_lattice
    np.testing.assert_array_equal(found.coordinates, steps - steps.min(axis=0))
    np.testing.assert_allclose(found.spacing, cell, rtol=1e-9)


def test_lattice_whose_smallest_gap_is_not_its_step_is_recognised():
    found = Measurements(np.array([[0.0], [0.2], [0.5]]))
    assert found.coordinates.ravel().tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    "values",
    [
        [1e9, 1e9 + 0.5, 1e9 + 1.5],
        [1e12, 1e12 + 500.0],
        [0.3, 0.1 + 0.2],
        [0.0, 1e-9, 1.0],
        [0.0, 1.0, 1.0 + 1e-15, 2.0],
        [0.0, 1.0, 2.0 + 1e-10, 3.0],
        [1e9, 1e9 + 20.9, 1e9 + 40.1, 1e9 + 59.2],
    ],
)
def test_values_that_differ_never_share_a_coordinate_and_stay_where_they_are(values):
    found = Measurements(np.array(values)[:, None])
    assert len(np.unique(found.coordinates)) == len(values)
    places = found.points[0] + found.spacing * (found.coordinates - found.coordinates[0])
    gap = np.diff(sorted(values)).min()
    assert np.abs(places - found.points).max() <= 1e-9 * gap


@given(
    st.floats(-1e12, 1e12).map(lambda x: x if abs(x) > 1e-20 else 0.0),
    st.sampled_from([1e-9, 0.34, 0.5, 7.0, 1e6]),
    st.lists(st.integers(0, 60), min_size=2, max_size=12),
    st.sampled_from([0.0, 1e-16, 1e-12, 1e-9]),
    st.integers(0, 2**32 - 1),
)
def test_coordinates_are_equal_exactly_where_values_are(origin, step, steps, jitter, seed):
    values = origin + step * np.array(steps) + jitter * np.random.default_rng(seed).normal(size=len(steps))
    found = Measurements(values[:, None])
    same = values[:, None] == values
    np.testing.assert_array_equal(found.coordinates == found.coordinates.T, same)
    lengths = np.abs(found.coordinates - found.coordinates.T) * found.spacing
    np.testing.assert_allclose(lengths, np.abs(values[:, None] - values), rtol=3e-9)


def test_axes_of_nearly_commensurable_steps_keep_their_own():
    many = np.arange(1000.0)
    found = Measurements(np.stack([many, (1 + 1e-10) * many], axis=1))
    assert found.spacing.tolist() != [1.0, 1.0]
    np.testing.assert_allclose(found.points[0] + found.spacing * found.coordinates, found.points, rtol=1e-15)


def test_scattered_points_are_no_lattice():
    points = np.random.default_rng(4).normal(size=(50, 2))
    found = Measurements(points)
    assert not found.is_lattice
    np.testing.assert_array_equal(found.coordinates, points)


def test_rationals_keep_exact_coordinates():
    found = Measurements([[Fraction(1, 3), Fraction(1, 2)], [Fraction(2, 3), Fraction(-1, 2)], [1, 0]])
    assert found.coordinates.tolist() == [[0, 2], [1, 0], [2, 1]]
    np.testing.assert_allclose(found.spacing, [1 / 3, 1 / 2])


def test_integers_are_counted_in_their_common_step():
    found = Measurements([[340, 0], [1020, 340], [340, 680]])
    assert found.coordinates.tolist() == [[0, 0], [2, 1], [0, 2]]
    assert found.spacing.tolist() == [340.0, 340.0]


def test_axes_of_commensurable_steps_share_the_shorter_one():
    found = Measurements([[0.0, 0.0], [0.68, 0.34], [1.36, 1.02]])
    assert found.coordinates.tolist() == [[0, 0], [2, 1], [4, 3]]
    np.testing.assert_allclose(found.spacing, 0.34)


@pytest.mark.parametrize(
    ("unit", "origin"), [(0.34, None), (0.34, [-4.21, 117.3]), (0.3333, [12.345, 12.345]), (7.0, [0.5, 0.0])]
)
@pytest.mark.parametrize("stride", [1, 3])
def test_known_lattice_decides_as_the_recognised_one(unit, origin, stride):
    steps = stride * np.random.default_rng(3).integers(-20, 20, (200, 2))
    known = Measurements.on_lattice(steps, unit, origin)
    np.testing.assert_array_equal(known.points, (0 if origin is None else np.array(origin)) + unit * steps)
    found = Measurements(known.points)
    assert known.is_lattice
    assert found.is_lattice
    np.testing.assert_array_equal(known.coordinates, found.coordinates)
    np.testing.assert_allclose(known.spacing, found.spacing, rtol=1e-9)
    np.testing.assert_array_equal(known.coordinates * known.steps_per_coordinate, steps - steps.min(axis=0))
    everyone = np.ones(200, dtype=bool)
    hull = SensitivityHull([[2, 1], [0, 3]])
    counts = [count_within(CoordinateBody(m, hull), everyone).tolist() for m in (known, found)]
    assert counts[0] == counts[1]


def test_known_lattice_is_kept_where_rounding_hides_it():
    """Steps of a tenth of a millimetre, 9,000 km away: doubles still hold them, but no tolerance would find them."""
    steps = np.random.default_rng(4).integers(0, 50, (40, 2))
    steps[0] = 0
    known = Measurements.on_lattice(steps, 1e-7, origin=[9000.0, 9000.0])
    assert known.is_lattice
    assert known.coordinates.tolist() == steps.tolist()
    assert not np.array_equal(Measurements(known.points).coordinates, steps)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9])
def test_neighbours_and_extremes_do_not_depend_on_how_far_away_the_origin_is(offset):
    # Dyadic noise, so that the offset rounds nothing; more points than the hull's scan takes at once.
    points = np.random.default_rng(5).integers(0, 2**12, (600, 2)) / 2**12
    points[7] += 2.0**-20
    near, far = Measurements(points), Measurements(points + offset)
    everyone = np.ones(600, dtype=bool)
    corners = [np.unique(m.extremes(everyone) - m.coordinates[0], axis=0) for m in (near, far)]
    np.testing.assert_allclose(corners[0] * near.spacing, corners[1] * far.spacing, atol=1e-12)
    reach = np.array([[0.25, 0.0], [0.0, 0.25]])
    counts = [count_within(CoordinateBody(m, SensitivityHull(reach / m.spacing)), everyone) for m in (near, far)]
    np.testing.assert_array_equal(counts[0], counts[1])


def test_off_the_line_of_a_flat_body_by_one_step_in_millions_the_diameter_is_infinite():
    wide = Measurements([[0, 0], [10**7, 1], [10**7, 2], [1, 0]])
    line = CoordinateBody(wide, SensitivityHull([[10**7, 1]]))
    assert line.diameter(np.array([True, True, False, False])) == 1.0
    assert line.diameter(np.array([True, False, True, False])) == np.inf


def test_lattice_too_wide_for_exact_geometry_keeps_its_steps_in_floating_point():
    known = Measurements.on_lattice([[0, 0], [1, 2**40], [3, 5]], 0.001)
    assert not known.is_lattice
    assert known.coordinates.tolist() == [[0, 0], [1, 2**40], [3, 5]]
    assert known.spacing.tolist() == [0.001, 0.001]


@pytest.mark.parametrize(
    ("steps", "unit", "origin", "message"),
    [
        ([[0.5, 1.0]], 1.0, None, "float64"),
        ([0, 1], 1.0, None, "shape"),
        ([[0, 1]], 0.0, None, "length of a step is 0.0"),
        ([[0, 1]], np.nan, None, "length of a step is nan"),
        ([[0, 1]], 1.0, [0.0], "origin has shape"),
        ([[0, 1]], 1.0, [0.0, np.inf], "finite"),
        ([[0, 2**53]], 1.0, None, "longer step"),
    ],
)
def test_what_is_no_lattice_is_refused(steps, unit, origin, message):
    with pytest.raises(CoordinateError, match=message):
        Measurements.on_lattice(steps, unit, origin)


def test_measurements_that_are_not_finite_are_refused():
    with pytest.raises(CoordinateError, match="row 1"):
        Measurements([[0.0, 0.0], [np.nan, 1.0]])


points_and_masks = st.tuples(
    hnp.arrays(np.int64, st.tuples(st.integers(1, 25), st.integers(1, 3)), elements=st.integers(0, 6)),
    st.randoms(use_true_random=False),
    st.sampled_from(["lattice", "scaled", "scattered"]),
)


def case(drawn):
    points, random, kind = drawn
    f = points.astype(float)
    if kind == "scaled":
        f = 0.34 * f + 0.17
    elif kind == "scattered":
        f = f + np.array([[random.random() for _ in row] for row in f])
    mask = np.array([random.random() < 0.7 for _ in points])
    mask[0] = True
    differences = f[: max(1, len(f) // 2)] - f[len(f) - max(1, len(f) // 2) :]
    return Measurements(f), mask, differences


@given(points_and_masks)
def test_counts_within_a_hull_equal_brute_force(drawn):
    measurements, mask, differences = case(drawn)
    hull = SensitivityHull(np.rint(differences / measurements.spacing) if measurements.is_lattice else differences)
    counts = count_within(CoordinateBody(measurements, hull), mask)
    coordinates = measurements.coordinates
    for state in range(measurements.size):
        expected = hull.contains(coordinates[mask] - coordinates[state]).sum() if mask[state] else 0
        assert counts[state] == expected


@given(points_and_masks, st.floats(0.1, 5))
def test_counts_within_a_disc_equal_brute_force(drawn, radius):
    measurements, mask, _ = case(drawn)
    counts = count_within(CoordinateBody(measurements, Disc(radius, measurements.dimension)), mask)
    distances = np.linalg.norm(measurements.points[:, None] - measurements.points[None], axis=2)
    expected = np.where(mask, ((distances <= radius * (1 + 1e-9)) & mask).sum(axis=1), 0)
    np.testing.assert_array_equal(counts, expected)


def test_counting_by_rows_and_by_fourier_transform_agree(monkeypatch):
    rng = np.random.default_rng(5)
    x, y = np.meshgrid(np.arange(60), np.arange(45))
    measurements = Measurements(np.stack([x.ravel(), y.ravel()], axis=1))
    mask = rng.random(measurements.size) < 0.4
    body = CoordinateBody(measurements, SensitivityHull([[9, 3], [-2, 11], [7, -8]]))
    by_rows = count_within(body, mask)
    monkeypatch.setattr(neighbours, "_FEW_ROWS", 0)
    np.testing.assert_array_equal(by_rows, count_within(body, mask))


@given(points_and_masks)
def test_diameter_is_the_largest_norm_of_a_pair(drawn):
    measurements, mask, differences = case(drawn)
    hull = SensitivityHull(np.rint(differences / measurements.spacing) if measurements.is_lattice else differences)
    points = measurements.coordinates[mask].astype(float)
    pairs = (points[:, None] - points[None]).reshape(-1, measurements.dimension)
    assert CoordinateBody(measurements, hull).diameter(mask) == pytest.approx(hull.norm(pairs).max(), rel=1e-12)


def test_a_raster_has_a_cell_for_each_place_of_the_bounding_box_and_no_more():
    raster = Measurements([[0, 0], [3, 0], [3, 1], [1, 1]]).raster
    assert (raster.width, raster.height) == (4, 2)
    assert raster.counts(np.array([True, False, True, True])).tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]


def test_an_axis_on_which_all_are_equal_has_no_step_and_no_rounding():
    for points in ([[5, 1], [5, 2], [5, 9]], [[0.5, 0.25], [0.5, 1.5], [0.5, 0.75]]):
        found = Measurements(points)
        assert found.is_lattice
        assert found.differences(np.array([[0, 1], [2, 0]])).tolist() == (
            [[0, -1], [0, 8]] if points[0][0] == 5 else [[0, -5], [0, 2]]
        )
        assert Measurements(points).lengths(np.array([[0, 1]]))[0] == (1.0 if points[0][0] == 5 else 0.25)


@pytest.mark.parametrize("cell", [1, 0.25, 1 / 3, (0.1, 7.0)])
@pytest.mark.parametrize("shape", [(9, 14), (1, 30), (17, 1)])
def test_who_stands_in_is_as_near_as_anybody_possible_and_the_same_whoever_asks(cell, shape):
    rng = np.random.default_rng(int(1000 * np.sum(cell)) + shape[0])
    steps = np.argwhere(rng.random(shape) < 0.7)[:, ::-1]
    steps = rng.permutation(np.concatenate([steps, steps[:5]]))  # some at the same place
    measurements = Measurements(steps * np.asarray(cell))
    assert measurements.raster is not None
    everyone = np.arange(measurements.size)
    for share in (0.05, 0.4, 0.9):
        mask = rng.random(measurements.size) < share
        mask[rng.integers(measurements.size)] = True
        found = measurements.surrogates(everyone, mask)
        apart = np.linalg.norm(measurements.points[:, None] - measurements.points[None, mask], axis=2)
        own = np.linalg.norm(measurements.points - measurements.points[found], axis=1)
        assert mask[found].all()
        np.testing.assert_allclose(own, apart.min(axis=1), rtol=1e-9, atol=1e-9)
        fresh = Measurements(steps * np.asarray(cell))
        for state in everyone[::7].tolist():
            assert fresh.surrogates(np.array([state]), mask)[0] == found[state]
        mask[found[0]] = mask.sum() == 1  # changed in place: what was known is not used
        assert mask[measurements.surrogates(everyone, mask)].all()


def test_extremes_of_a_raster_are_those_of_all_points_and_kept_only_where_nobody_can_change_the_constraint():
    rng = np.random.default_rng(8)
    y, x = np.divmod(np.arange(60 * 70), 70)
    found = Measurements(np.stack([x, y], axis=1))
    for share in (0.002, 0.1, 0.9, 1.0):
        for _ in range(10):
            near = np.hypot(*(found.points - found.points[rng.integers(found.size)]).T) < rng.uniform(2, 40)
            possible = near & (rng.random(found.size) < share)
            possible[rng.integers(found.size)] = True
            wanted = planar.convex_polygon(found.coordinates[possible])
            np.testing.assert_array_equal(found.extremes(possible), wanted)
            possible[:] = True
            assert len(found.extremes(possible)) == 4, "one that changed is looked at again"
            possible = frozen(near)
            assert found.extremes(possible) is found.extremes(possible)


def test_a_polygon_that_is_met_again_is_the_same_hull_and_others_are_not():
    found = Measurements(0.34 * np.argwhere(np.ones((9, 9))))
    body = origin(found.coordinates).grow(np.array([[2, 1], [0, 3]]))
    hull = found.hull_of(body)
    assert found.hull_of(growing_body(body.vertices)) is hull
    assert found.to_units(hull) is found.to_units(hull)
    assert found.hull_of(body.grow(np.array([[4, 0]]))) is not hull
    for k in range(1, 200):
        larger = found.hull_of(body.grow(np.array([[k, 5]])))
        np.testing.assert_array_equal(larger.vertices, SensitivityHull([[2, 1], [0, 3], [k, 5]]).vertices)
    assert len(found._polygons) <= 64


@pytest.mark.parametrize("height", [5, 60])
def test_rows_straight_from_half_planes_count_as_those_of_every_offset_that_is_asked(height, monkeypatch):
    rng = np.random.default_rng(height)
    y, x = np.divmod(np.arange(height * 23), 23)
    measured = Measurements(np.stack([x, 3 * y], axis=1) * [1.0, 1 / 3])
    for _ in range(25):
        possible = rng.random(measured.size) < 0.7
        hull = SensitivityHull(rng.integers(-9, 10, (3, 2)) * [1, rng.choice([1, 4])])
        quick = count_within(CoordinateBody(measured, hull), possible)
        with monkeypatch.context() as patched:
            patched.setattr(neighbours, "_exact_rows", lambda *_: None)
            np.testing.assert_array_equal(count_within(CoordinateBody(measured, hull), possible), quick)
