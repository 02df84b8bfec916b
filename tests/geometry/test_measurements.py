"""Measurements: exact lattice detection, and neighbour counts against brute force."""

from __future__ import annotations

from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dphmm import Measurements, SensitivityHull
from dphmm.arrays import copy_read_only
from dphmm.compilation import compile_at_first_call
from dphmm.errors import CoordinateError
from dphmm.geometry import neighbours, planar
from dphmm.geometry.incremental_hull import build_growing_body, build_origin
from dphmm.geometry.measurements import _POLYGON_CACHE_SIZE, _build_polygon_forms
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.geometry.sensitivity_hull import CrossPolytope, Disc


@pytest.mark.parametrize("cell", [0.34, 0.89, 1e-3, 7.0, 1 / 3])
@pytest.mark.parametrize("origin", [0.0, -4.21, 117.3])
def test_grid_centres_are_recognized_as_lattice(cell, origin):
    steps = np.random.default_rng(3).integers(0, 40, (200, 2))
    measurements = Measurements(origin + cell * steps)
    assert measurements.is_lattice
    np.testing.assert_array_equal(measurements.coordinates, steps - steps.min(axis=0))
    np.testing.assert_allclose(measurements.spacing, cell, rtol=1e-9)


def test_lattice_is_recognized_if_smallest_gap_is_not_its_step():
    measurements = Measurements(np.array([[0.0], [0.2], [0.5]]))
    assert measurements.coordinates.ravel().tolist() == [0, 2, 5]


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
def test_different_values_never_share_a_coordinate(values):
    measurements = Measurements(np.array(values)[:, None])
    assert len(np.unique(measurements.coordinates)) == len(values)
    places = measurements.points[0] + measurements.spacing * (measurements.coordinates - measurements.coordinates[0])
    gap = np.diff(sorted(values)).min()
    assert np.abs(places - measurements.points).max() <= 1e-9 * gap


@given(
    st.floats(-1e12, 1e12).map(lambda x: x if abs(x) > 1e-20 else 0.0),
    st.sampled_from([1e-9, 0.34, 0.5, 7.0, 1e6]),
    st.lists(st.integers(0, 60), min_size=2, max_size=12),
    st.sampled_from([0.0, 1e-16, 1e-12, 1e-9]),
    st.integers(0, 2**32 - 1),
)
def test_coordinates_are_equal_if_and_only_if_values_are(origin, step, steps, jitter, seed):
    values = origin + step * np.array(steps) + jitter * np.random.default_rng(seed).normal(size=len(steps))
    measurements = Measurements(values[:, None])
    same = values[:, None] == values
    np.testing.assert_array_equal(measurements.coordinates == measurements.coordinates.T, same)
    lengths = np.abs(measurements.coordinates - measurements.coordinates.T) * measurements.spacing
    np.testing.assert_allclose(lengths, np.abs(values[:, None] - values), rtol=3e-9)


def test_nearly_commensurable_axes_keep_their_own_step():
    many = np.arange(1000.0)
    measurements = Measurements(np.stack([many, (1 + 1e-10) * many], axis=1))
    assert measurements.spacing.tolist() != [1.0, 1.0]
    np.testing.assert_allclose(
        measurements.points[0] + measurements.spacing * measurements.coordinates, measurements.points, rtol=1e-15
    )


def test_scattered_points_form_no_lattice():
    points = np.random.default_rng(4).normal(size=(50, 2))
    measurements = Measurements(points)
    assert not measurements.is_lattice
    np.testing.assert_array_equal(measurements.coordinates, points)


def test_rationals_have_exact_coordinates():
    measurements = Measurements([[Fraction(1, 3), Fraction(1, 2)], [Fraction(2, 3), Fraction(-1, 2)], [1, 0]])
    assert measurements.coordinates.tolist() == [[0, 2], [1, 0], [2, 1]]
    np.testing.assert_allclose(measurements.spacing, [1 / 3, 1 / 2])


def test_integers_use_their_common_step():
    measurements = Measurements([[340, 0], [1020, 340], [340, 680]])
    assert measurements.coordinates.tolist() == [[0, 0], [2, 1], [0, 2]]
    assert measurements.spacing.tolist() == [340.0, 340.0]


def test_commensurable_axes_share_shorter_step():
    measurements = Measurements([[0.0, 0.0], [0.68, 0.34], [1.36, 1.02]])
    assert measurements.coordinates.tolist() == [[0, 0], [2, 1], [4, 3]]
    np.testing.assert_allclose(measurements.spacing, 0.34)


@pytest.mark.parametrize(
    ("unit", "origin"), [(0.34, None), (0.34, [-4.21, 117.3]), (0.3333, [12.345, 12.345]), (7.0, [0.5, 0.0])]
)
@pytest.mark.parametrize("stride", [1, 3])
def test_given_lattice_matches_recognized_lattice(unit, origin, stride):
    steps = stride * np.random.default_rng(3).integers(-20, 20, (200, 2))
    lattice = Measurements.on_lattice(steps, unit, origin)
    np.testing.assert_array_equal(lattice.points, (0 if origin is None else np.array(origin)) + unit * steps)
    measurements = Measurements(lattice.points)
    assert lattice.is_lattice
    assert measurements.is_lattice
    np.testing.assert_array_equal(lattice.coordinates, measurements.coordinates)
    np.testing.assert_allclose(lattice.spacing, measurements.spacing, rtol=1e-9)
    np.testing.assert_array_equal(lattice.coordinates * lattice.steps_per_coordinate, steps - steps.min(axis=0))
    all_states = np.ones(200, dtype=bool)
    hull = SensitivityHull([[2, 1], [0, 3]])
    counts = [count_within(CoordinateBody(m, hull), all_states).tolist() for m in (lattice, measurements)]
    assert counts[0] == counts[1]


def test_given_lattice_is_kept_despite_rounding():
    """Steps of a tenth of a millimetre, 9,000 km away: exact in floats, but not detectable."""
    steps = np.random.default_rng(4).integers(0, 50, (40, 2))
    steps[0] = 0
    lattice = Measurements.on_lattice(steps, 1e-7, origin=[9000.0, 9000.0])
    assert lattice.is_lattice
    assert lattice.coordinates.tolist() == steps.tolist()
    assert not np.array_equal(Measurements(lattice.points).coordinates, steps)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9])
def test_neighbours_and_extremes_do_not_depend_on_origin(offset):
    # Dyadic noise: the offset causes no rounding. More points than one block of the hull's scan.
    points = np.random.default_rng(5).integers(0, 2**12, (600, 2)) / 2**12
    points[7] += 2.0**-20
    near, far = Measurements(points), Measurements(points + offset)
    all_states = np.ones(600, dtype=bool)
    corners = [np.unique(m.extremes(all_states) - m.coordinates[0], axis=0) for m in (near, far)]
    np.testing.assert_allclose(corners[0] * near.spacing, corners[1] * far.spacing, atol=1e-12)
    reach = np.array([[0.25, 0.0], [0.0, 0.25]])
    counts = [count_within(CoordinateBody(m, SensitivityHull(reach / m.spacing)), all_states) for m in (near, far)]
    np.testing.assert_array_equal(counts[0], counts[1])


def test_diameter_is_infinite_one_step_off_flat_body():
    wide = Measurements([[0, 0], [10**7, 1], [10**7, 2], [1, 0]])
    line = CoordinateBody(wide, SensitivityHull([[10**7, 1]]))
    assert line.diameter(np.array([True, True, False, False])) == 1.0
    assert line.diameter(np.array([True, False, True, False])) == np.inf


def test_too_wide_lattice_keeps_float_steps():
    lattice = Measurements.on_lattice([[0, 0], [1, 2**40], [3, 5]], 0.001)
    assert not lattice.is_lattice
    assert lattice.coordinates.tolist() == [[0, 0], [1, 2**40], [3, 5]]
    assert lattice.spacing.tolist() == [0.001, 0.001]


@pytest.mark.parametrize(
    ("steps", "unit", "origin", "message"),
    [
        ([[0.5, 1.0]], 1.0, None, "float64"),
        ([0, 1], 1.0, None, "shape"),
        ([[0, 1]], 0.0, None, "unit must be a positive, finite number"),
        ([[0, 1]], np.nan, None, "unit must be a positive, finite number"),
        ([[0, 1]], 1.0, [0.0], "origin must be one number for each"),
        ([[0, 1]], 1.0, [0.0, np.inf], "finite"),
        ([[0, 2**53]], 1.0, None, "longer step"),
    ],
)
def test_invalid_lattice_raises(steps, unit, origin, message):
    with pytest.raises(CoordinateError, match=message):
        Measurements.on_lattice(steps, unit, origin)


def test_non_finite_measurements_raise():
    with pytest.raises(CoordinateError, match="row 1"):
        Measurements([[0.0, 0.0], [np.nan, 1.0]])


points_and_masks = st.tuples(
    hnp.arrays(np.int64, st.tuples(st.integers(1, 25), st.integers(1, 3)), elements=st.integers(0, 6)),
    st.randoms(use_true_random=False),
    st.sampled_from(["lattice", "scaled", "scattered"]),
)


def build_case(drawn):
    points, random, kind = drawn
    f = points.astype(float)
    if kind == "scaled":
        f = 0.34 * f + 0.17
    elif kind == "scattered":
        f = f + np.array([[0.5 + random.random() for _ in row] for row in f])
    mask = np.array([random.random() < 0.7 for _ in points])
    mask[0] = True
    differences = f[: max(1, len(f) // 2)] - f[len(f) - max(1, len(f) // 2) :]
    return Measurements(f), mask, differences


@given(points_and_masks)
def test_counts_within_hull_match_brute_force(drawn):
    measurements, mask, differences = build_case(drawn)
    hull = SensitivityHull(np.rint(differences / measurements.spacing) if measurements.is_lattice else differences)
    counts = count_within(CoordinateBody(measurements, hull), mask)
    coordinates = measurements.coordinates
    for state in range(measurements.size):
        expected = hull.contains(coordinates[mask] - coordinates[state]).sum() if mask[state] else 0
        assert counts[state] == expected


@given(points_and_masks, st.floats(0.1, 5))
def test_counts_within_disc_match_brute_force(drawn, radius):
    measurements, mask, _ = build_case(drawn)
    counts = count_within(CoordinateBody(measurements, Disc(radius, measurements.dimension)), mask)
    distances = np.linalg.norm(measurements.points[:, None] - measurements.points[None], axis=2)
    expected = np.where(mask, ((distances <= radius * (1 + 1e-9)) & mask).sum(axis=1), 0)
    np.testing.assert_array_equal(counts, expected)


def build_cloud(seed):
    """Sample points, some repeated or far from the origin, and a body of one of three kinds."""
    rng = np.random.default_rng(seed)
    dimension = 1 + seed % 3
    points = rng.normal(size=(400, dimension))[rng.integers(0, (400, 80)[seed % 2], 400)] + (0, 1e6)[seed % 5 == 0]
    measurements = Measurements(points)
    differences = points[:6] - points[6:12]
    reach = np.abs(differences).max(axis=0)
    bodies = [SensitivityHull(differences), CrossPolytope(reach), Disc(float(reach.max()), dimension)]
    return CoordinateBody(measurements, bodies[seed // 3 % 3]), rng.random(400) < 0.8


def count_all_pairs(body, mask):
    points = body.measurements.coordinates
    return np.array([body.contains(points[mask] - point).sum() for point in points]) * mask


@pytest.mark.parametrize("seed", range(27))
def test_counts_by_tree_of_balls_match_all_pairs(seed):
    body, mask = build_cloud(seed)
    np.testing.assert_array_equal(count_within(body, mask), count_all_pairs(body, mask))


@pytest.mark.parametrize("margin", [-0.05, -1])
def test_balls_that_decide_too_much_are_found(monkeypatch, margin):
    monkeypatch.setattr(neighbours, "_BALL_MARGIN", margin)
    clouds = [build_cloud(seed) for seed in range(27)]
    assert any((count_within(*cloud) != count_all_pairs(*cloud)).any() for cloud in clouds)


def build_lattice_cloud(seed):
    """Sample scattered lattice points, some repeated, and a polygon of differences."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 10**4, (150, 2))[rng.integers(0, 150, 200)] + (0, 10**6)[seed % 2]
    measurements = Measurements.on_lattice(points, 1e-3)
    assert measurements.raster is None
    differences = (measurements.coordinates[:8] - measurements.coordinates[8:16]) // (1 + seed % 4)
    hull = SensitivityHull(np.concatenate([differences, measurements.coordinates[:1] - measurements.coordinates[1:2]]))
    return CoordinateBody(measurements, hull), rng.random(200) < 0.8


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_compiled", [False, True])
def test_counts_on_scattered_lattice_points_match_all_pairs(seed, is_compiled):
    body, mask = build_lattice_cloud(seed)
    with compile_at_first_call() if is_compiled else nullcontext():
        np.testing.assert_array_equal(count_within(body, mask), count_all_pairs(body, mask))


def count_sorted_strictly(heights, limits, stops, counts):
    return neighbours._count_sorted_loop(heights, limits - 1, stops, counts)


@pytest.mark.parametrize(("loop", "is_exact"), [(neighbours._count_sorted_loop, True), (count_sorted_strictly, False)])
def test_loop_over_sorted_heights_is_exact_on_the_boundary(loop, is_exact, monkeypatch):
    monkeypatch.setattr(neighbours, "_count_sorted", loop)
    monkeypatch.delattr(neighbours, "_count_by_tree")  # the loop alone counts
    clouds = [build_lattice_cloud(seed) for seed in range(12)]
    assert all((count_within(*cloud) == count_all_pairs(*cloud)).all() for cloud in clouds) == is_exact


def test_undecided_pairs_are_counted_block_by_block(monkeypatch):
    body, mask = build_cloud(1)
    wanted = count_within(body, mask)
    monkeypatch.setattr(neighbours, "_PAIR_BLOCK", 100)
    np.testing.assert_array_equal(count_within(body, mask), wanted)


def test_row_sums_and_fourier_transform_agree(monkeypatch):
    rng = np.random.default_rng(5)
    x, y = np.meshgrid(np.arange(60), np.arange(45))
    measurements = Measurements(np.stack([x.ravel(), y.ravel()], axis=1))
    mask = rng.random(measurements.size) < 0.4
    body = CoordinateBody(measurements, SensitivityHull([[9, 3], [-2, 11], [7, -8]]))
    by_rows = count_within(body, mask)
    monkeypatch.setattr(neighbours, "_MAX_SUMMED_ROWS", 0)
    np.testing.assert_array_equal(by_rows, count_within(body, mask))


@given(points_and_masks)
def test_diameter_is_largest_norm_of_pairs(drawn):
    measurements, mask, differences = build_case(drawn)
    hull = SensitivityHull(np.rint(differences / measurements.spacing) if measurements.is_lattice else differences)
    points = measurements.coordinates[mask].astype(float)
    pairs = (points[:, None] - points[None]).reshape(-1, measurements.dimension)
    assert CoordinateBody(measurements, hull).diameter(mask) == pytest.approx(hull.norm(pairs).max(), rel=1e-12)


def test_raster_covers_bounding_box():
    raster = Measurements([[0, 0], [3, 0], [3, 1], [1, 1]]).raster
    assert (raster.width, raster.height) == (4, 2)
    assert raster.count_per_cell(np.array([True, False, True, True])).tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]


def test_constant_axis_has_exact_differences():
    for points in ([[5, 1], [5, 2], [5, 9]], [[0.5, 0.25], [0.5, 1.5], [0.5, 0.75]]):
        measurements = Measurements(points)
        assert measurements.is_lattice
        assert measurements.differences(np.array([[0, 1], [2, 0]])).tolist() == (
            [[0, -1], [0, 8]] if points[0][0] == 5 else [[0, -5], [0, 2]]
        )
        assert Measurements(points).lengths(np.array([[0, 1]]))[0] == (1.0 if points[0][0] == 5 else 0.25)


@pytest.mark.parametrize("cell", [1, 0.25, 1 / 3, (0.1, 7.0)], ids=repr)
@pytest.mark.parametrize("shape", [(9, 14), (1, 30), (17, 1)], ids=repr)
def test_surrogates_are_nearest_and_do_not_depend_on_other_queries(cell, shape):
    rng = np.random.default_rng(int(1000 * np.sum(cell)) + shape[0])
    steps = np.argwhere(rng.random(shape) < 0.7)[:, ::-1]
    steps = rng.permutation(np.concatenate([steps, steps[:5]]))  # some repeated places
    measurements = Measurements(steps * np.asarray(cell))
    assert measurements.raster is not None
    all_states = np.arange(measurements.size)
    for share in (0.05, 0.4, 0.9):
        mask = rng.random(measurements.size) < share
        mask[rng.integers(measurements.size)] = True
        partners = measurements.surrogates(all_states, mask)
        apart = np.linalg.norm(measurements.points[:, None] - measurements.points[None, mask], axis=2)
        distances = np.linalg.norm(measurements.points - measurements.points[partners], axis=1)
        assert mask[partners].all()
        np.testing.assert_allclose(distances, apart.min(axis=1), rtol=1e-9, atol=1e-9)
        fresh = Measurements(steps * np.asarray(cell))
        for state in all_states[::7].tolist():
            assert fresh.surrogates(np.array([state]), mask)[0] == partners[state]
        mask[partners[0]] = mask.sum() == 1  # changed in place: cached results are not used
        assert mask[measurements.surrogates(all_states, mask)].all()


def test_raster_extremes_match_all_points_and_are_cached_for_read_only_masks():
    rng = np.random.default_rng(8)
    y, x = np.divmod(np.arange(60 * 70), 70)
    measurements = Measurements(np.stack([x, y], axis=1))
    for share in (0.002, 0.1, 0.9, 1.0):
        for _ in range(10):
            near = np.hypot(
                *(measurements.points - measurements.points[rng.integers(measurements.size)]).T
            ) < rng.uniform(2, 40)
            possible = near & (rng.random(measurements.size) < share)
            possible[rng.integers(measurements.size)] = True
            wanted = planar.build_convex_polygon(measurements.coordinates[possible])
            np.testing.assert_array_equal(measurements.extremes(possible), wanted)
            possible[:] = True
            assert len(measurements.extremes(possible)) == 4, "a changed mask is computed again"
            possible = copy_read_only(near)
            assert measurements.extremes(possible) is measurements.extremes(possible)


def test_equal_polygons_share_cached_hull():
    measurements = Measurements(0.34 * np.argwhere(np.ones((9, 9))))
    body = build_origin(measurements.coordinates).grow(np.array([[2, 1], [0, 3]]))
    hull = measurements.compute_hull(body)
    assert measurements.compute_hull(build_growing_body(body.vertices)) is hull
    assert measurements.to_units(hull) is measurements.to_units(hull)
    assert measurements.compute_hull(body.grow(np.array([[4, 0]]))) is not hull
    for k in range(1, 200):
        larger = measurements.compute_hull(body.grow(np.array([[k, 5]])))
        np.testing.assert_array_equal(larger.vertices, SensitivityHull([[2, 1], [0, 3], [k, 5]]).vertices)
    assert _build_polygon_forms.cache_info().currsize <= _POLYGON_CACHE_SIZE


@pytest.mark.parametrize("height", [5, 60])
def test_half_plane_rows_match_general_counting(height, monkeypatch):
    rng = np.random.default_rng(height)
    y, x = np.divmod(np.arange(height * 23), 23)
    measured = Measurements(np.stack([x, 3 * y], axis=1) * [1.0, 1 / 3])
    for _ in range(25):
        possible = rng.random(measured.size) < 0.7
        hull = SensitivityHull(rng.integers(-9, 10, (3, 2)) * [1, rng.choice([1, 4])])
        quick = count_within(CoordinateBody(measured, hull), possible)
        with monkeypatch.context() as patched:
            patched.setattr(neighbours, "_clip_lattice_rows", lambda *_: None)
            np.testing.assert_array_equal(count_within(CoordinateBody(measured, hull), possible), quick)


def test_no_state_raises():
    with pytest.raises(CoordinateError, match="a row for each state, got no row"):
        Measurements(np.zeros((0, 2)))
