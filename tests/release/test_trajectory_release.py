"""Trajectories: gaps, outside locations, budgets per location, and the real data."""

from __future__ import annotations

import numpy as np
import pytest
from pyproj import Geod

from dphmm import Grid, MarkovModel, PolicyGraph, Releaser, release_trajectory
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.space.trajectory import SlottedTrajectory
from tests.release.test_place_on_earth import build_horseshoe
from tests.sizes import mark_slow

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)


def build_model() -> MarkovModel:
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.integers(-1, 2, (400, 2)), axis=0) % [GRID.columns, GRID.rows]
    states = GRID.state_at(walk)
    return MarkovModel.fit([states], GRID.size, smoothing=0.1, states=GRID, step_seconds=300)


def make_trajectory(slots, states) -> SlottedTrajectory:
    latitude, longitude = GRID.latlon(np.array(states)).T
    return SlottedTrajectory("anna", 300, np.array(slots), latitude, longitude)


def make_releaser(**options) -> Releaser:
    return Releaser(build_model(), GRID.points, PolicyGraph.utility(GRID.points, 1.0), 1.0, rng=1, **options)


def test_release_times_and_steps_match_slots():
    released = list(release_trajectory(make_releaser(), GRID, make_trajectory([100, 101, 105], [3, 4, 4])))
    assert [r.record.steps for r in released] == [0, 1, 4]
    assert [str(r.time) for r in released] == [str(np.datetime64(300 * s, "s")) + ".000000" for s in (100, 101, 105)]


def test_coordinates_match_released_measurements():
    released = next(iter(release_trajectory(make_releaser(), GRID, make_trajectory([7], [5]))))
    back = GRID.projection.to_plane(released.latitude, released.longitude).ravel()
    np.testing.assert_allclose(back, released.record.released, atol=1e-5)


def test_outside_locations_are_clamped_or_dropped():
    inside = make_trajectory([1, 2, 3], [0, 1, 2])
    away = SlottedTrajectory("anna", 300, inside.slots, np.array([45.01, 50.0, 45.01]), np.array([7.01, 7.0, 7.01]))
    assert [r.record.steps for r in release_trajectory(make_releaser(), GRID, away)] == [0, 1, 1]
    assert [r.record.steps for r in release_trajectory(make_releaser(outside="drop"), GRID, away)] == [0, 2]


def test_budgets_and_private_diagnostics_per_location():
    private = []
    budgets = np.array([0.5, 1.5])
    released = list(release_trajectory(make_releaser(), GRID, make_trajectory([1, 2], [3, 4]), budgets, private.append))
    assert [r.record.epsilon for r in released] == [0.5, 1.5]
    assert [p.diagnostics.true_state for p in private] == [3, 4]


def test_private_errors_are_geodesic_distances_to_fix():
    """Compare with distances on the ellipsoid.

    The last three fixes are 3, 35 and 900 km away from the region.
    """
    latitude = np.array([45.0112, 45.0158, 45.05, 45.3, 53.0])
    longitude = np.array([7.0117, 7.0032, 7.01, 7.2, 7.0])
    private, geod = [], Geod(ellps="WGS84")
    track = SlottedTrajectory("anna", 300, np.arange(5), latitude, longitude)
    table = list(release_trajectory(make_releaser(), GRID, track, private=private.append))
    for private_row, public_row, north, east in zip(private, table, latitude, longitude, strict=True):
        released = geod.inv(east, north, public_row.longitude, public_row.latitude)[2] / 1000
        estimate = geod.inv(east, north, public_row.estimate_longitude, public_row.estimate_latitude)[2] / 1000
        assert private_row.diagnostics.error == pytest.approx(released, rel=0.003)
        assert private_row.diagnostics.estimate_error == pytest.approx(estimate, rel=0.003)
        assert private_row.is_within_expected_error == (estimate <= public_row.expected_estimate_error)
    assert [private_row.outside for private_row in private] == [False, False, True, True, True]
    assert [private_row.is_within_expected_error for private_row in private[2:]] == [False] * 3
    assert private[3].diagnostics.estimate_error > 30
    assert private[4].diagnostics.estimate_error > 800


def test_private_error_uses_estimate_moved_into_bent_region(tmp_path):
    engine, private = build_horseshoe(tmp_path), []
    space = engine.model.space
    latitude = np.full(40, 45.05)
    longitude = np.where(np.arange(40) % 2, 7.008, 7.052)
    track = SlottedTrajectory("anna", 60, np.arange(40), latitude, longitude)
    table = list(release_trajectory(engine, space, track, private=private.append))
    assert any(release.moved_km > 0 for release in table)
    for private_row, public_row, north, east in zip(private, table, latitude, longitude, strict=True):
        away = (
            Geod(ellps="WGS84").inv(east, north, public_row.estimate_longitude, public_row.estimate_latitude)[2] / 1000
        )
        assert private_row.diagnostics.estimate_error == pytest.approx(away, rel=0.001)


def test_each_trajectory_restarts_engine():
    engine = make_releaser()
    first = [r.record.index for r in release_trajectory(engine, GRID, make_trajectory([1, 2], [3, 4]))]
    second = [r.record.index for r in release_trajectory(engine, GRID, make_trajectory([1, 2], [3, 4]))]
    assert first == second == [0, 1]


def test_different_step_seconds_raise():
    wrong = SlottedTrajectory("anna", 60, np.array([1]), np.array([45.01]), np.array([7.01]))
    with pytest.raises(ConfigurationError, match="resample the trajectory"):
        list(release_trajectory(make_releaser(), GRID, wrong))


def test_wrong_number_of_budgets_raises():
    with pytest.raises(InvalidInputError, match="one entry for each of 2 locations"):
        list(release_trajectory(make_releaser(), GRID, make_trajectory([1, 2], [3, 4]), np.array([1.0])))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "preset", "step"),
    [
        mark_slow("geolife/geolife_beijing.tar.gz", "geolife", 60.0),
        ("gowalla/loc-gowalla_LA.txt.gz", "gowalla", 3600.0),
    ],
)
def test_real_trajectories_have_no_exposed_state_under_any_policy(real_trajectories, source, preset, step):
    grid = Grid.preset(preset)
    slotted = [t.resample(step) for t in real_trajectories(source) if len(t) >= 30]
    learned, held_out = slotted[::2], slotted[1::2]
    sequences = [(t.slots, grid.locate(t.latitude, t.longitude)) for t in learned]
    sequences = [(slots[states >= 0], states[states >= 0]) for slots, states in sequences]
    fitted = MarkovModel.fit(sequences, grid.size, smoothing=0.01, states=grid, step_seconds=step)
    policies = {
        "utility": PolicyGraph.utility(grid.points, 1.0),
        "complete": PolicyGraph.complete(grid.size),
        "transition": PolicyGraph.transition(fitted.transition),
        "categorical": PolicyGraph.categorical(grid.lattice[:, 0] // 6 + 100 * (grid.lattice[:, 1] // 6)),
    }
    for name, policy in policies.items():
        engine = Releaser(fitted, grid.points, policy, 1.0, rng=2, allow_singleton=True, delta=None)
        for trajectory in held_out[:3]:
            part = SlottedTrajectory(
                trajectory.user, step, trajectory.slots[:40], trajectory.latitude[:40], trajectory.longitude[:40]
            )
            for released in release_trajectory(engine, grid, part):
                record = released.record
                assert record.is_singleton or record.min_degree_of_protection >= 2, name
