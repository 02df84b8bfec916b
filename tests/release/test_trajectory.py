"""Whole trajectories: gaps, places outside, budgets per place; and the real data under every policy."""

from __future__ import annotations

import numpy as np
import pytest
from pyproj import Geod

from dphmm import Grid, MarkovModel, PolicyGraph, Releaser, release_trajectory
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.space.trajectory import SlottedTrajectory
from tests.release.test_place_on_earth import horseshoe
from tests.sizes import slow

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)


def model() -> MarkovModel:
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.integers(-1, 2, (400, 2)), axis=0) % [GRID.columns, GRID.rows]
    states = GRID.state_at(walk)
    return MarkovModel.fit([states], GRID.size, smoothing=0.1, states=GRID, step_seconds=300)


def trajectory(slots, states) -> SlottedTrajectory:
    latitude, longitude = GRID.latlon(np.array(states)).T
    return SlottedTrajectory("anna", 300, np.array(slots), latitude, longitude)


def releaser(**options) -> Releaser:
    return Releaser(model(), GRID.points, PolicyGraph.utility(GRID.points, 1.0), 1.0, rng=1, **options)


def test_times_and_gaps_follow_the_clock():
    released = list(release_trajectory(releaser(), GRID, trajectory([100, 101, 105], [3, 4, 4])))
    assert [r.record.steps for r in released] == [0, 1, 4]
    assert [str(r.time) for r in released] == [str(np.datetime64(300 * s, "s")) + ".000000" for s in (100, 101, 105)]


def test_places_on_earth_are_the_released_measurements():
    released = next(iter(release_trajectory(releaser(), GRID, trajectory([7], [5]))))
    back = GRID.projection.to_plane(released.latitude, released.longitude).ravel()
    np.testing.assert_allclose(back, released.record.released, atol=1e-5)


def test_places_outside_the_space_are_at_its_border_or_omitted():
    inside = trajectory([1, 2, 3], [0, 1, 2])
    away = SlottedTrajectory("anna", 300, inside.slots, np.array([45.01, 50.0, 45.01]), np.array([7.01, 7.0, 7.01]))
    assert [r.record.steps for r in release_trajectory(releaser(), GRID, away)] == [0, 1, 1]
    assert [r.record.steps for r in release_trajectory(releaser(outside="omit"), GRID, away)] == [0, 2]


def test_budgets_per_place_and_private_diagnostics():
    private = []
    budgets = np.array([0.5, 1.5])
    released = list(release_trajectory(releaser(), GRID, trajectory([1, 2], [3, 4]), budgets, private.append))
    assert [r.record.epsilon for r in released] == [0.5, 1.5]
    assert [p.diagnostics.true_state for p in private] == [3, 4]


def test_private_errors_are_geodesics_to_the_fix_inside_a_cell_and_far_outside():
    """The oracle is the distance on the ellipsoid; the last three fixes are 3, 35 and 900 km away from the region."""
    latitude = np.array([45.0112, 45.0158, 45.05, 45.3, 53.0])
    longitude = np.array([7.0117, 7.0032, 7.01, 7.2, 7.0])
    private, geod = [], Geod(ellps="WGS84")
    track = SlottedTrajectory("anna", 300, np.arange(5), latitude, longitude)
    table = list(release_trajectory(releaser(), GRID, track, private=private.append))
    for one, told, north, east in zip(private, table, latitude, longitude, strict=True):
        released = geod.inv(east, north, told.longitude, told.latitude)[2] / 1000
        estimate = geod.inv(east, north, told.estimate_longitude, told.estimate_latitude)[2] / 1000
        assert one.diagnostics.error == pytest.approx(released, rel=0.003)
        assert one.diagnostics.estimate_error == pytest.approx(estimate, rel=0.003)
        assert one.within_radius == (estimate <= told.estimate_radius)
    assert [one.outside for one in private] == [False, False, True, True, True]
    assert [one.within_radius for one in private[2:]] == [False] * 3
    assert private[3].diagnostics.estimate_error > 30
    assert private[4].diagnostics.estimate_error > 800


def test_a_private_error_is_of_the_published_estimate_where_that_was_moved_into_a_bent_region(tmp_path):
    engine, private = horseshoe(tmp_path), []
    space, latitude, longitude = engine.model.space, np.full(40, 45.05), np.where(np.arange(40) % 2, 7.008, 7.052)
    track = SlottedTrajectory("anna", 60, np.arange(40), latitude, longitude)
    table = list(release_trajectory(engine, space, track, private=private.append))
    assert any(one.moved > 0 for one in table)
    for one, told, north, east in zip(private, table, latitude, longitude, strict=True):
        away = Geod(ellps="WGS84").inv(east, north, told.estimate_longitude, told.estimate_latitude)[2] / 1000
        assert one.diagnostics.estimate_error == pytest.approx(away, rel=0.001)


def test_a_second_trajectory_starts_anew():
    engine = releaser()
    first = [r.record.index for r in release_trajectory(engine, GRID, trajectory([1, 2], [3, 4]))]
    second = [r.record.index for r in release_trajectory(engine, GRID, trajectory([1, 2], [3, 4]))]
    assert first == second == [0, 1]


def test_another_step_than_the_models_is_refused():
    wrong = SlottedTrajectory("anna", 60, np.array([1]), np.array([45.01]), np.array([7.01]))
    with pytest.raises(ConfigurationError, match="resample it"):
        list(release_trajectory(releaser(), GRID, wrong))


def test_budgets_must_match_the_places():
    with pytest.raises(InvalidInputError, match="one per place"):
        list(release_trajectory(releaser(), GRID, trajectory([1, 2], [3, 4]), np.array([1.0])))


@pytest.mark.parametrize(
    ("source", "preset", "step"),
    [slow("geolife/geolife_beijing.tar.gz", "geolife", 60.0), ("gowalla/loc-gowalla_LA.txt.gz", "gowalla", 3600.0)],
)
def test_real_trajectories_under_every_policy_leave_nobody_exposed(real_trajectories, source, preset, step):
    grid = Grid.preset(preset)
    slotted = [t.resample(step) for t in real_trajectories(source) if len(t) >= 30]
    learned, held_out = slotted[::2], slotted[1::2]
    sequences = [(t.slots, grid.locate(t.latitude, t.longitude)) for t in learned]
    sequences = [(slots[states >= 0], states[states >= 0]) for slots, states in sequences]
    made = MarkovModel.fit(sequences, grid.size, smoothing=0.01, states=grid, step_seconds=step)
    policies = {
        "utility": PolicyGraph.utility(grid.points, 1.0),
        "complete": PolicyGraph.complete(grid.size),
        "transition": PolicyGraph.transition(made.transition),
        "categorical": PolicyGraph.categorical(grid.lattice[:, 0] // 6 + 100 * (grid.lattice[:, 1] // 6)),
    }
    for name, policy in policies.items():
        engine = Releaser(made, grid.points, policy, 1.0, rng=2, allow_known=True, delta=None)
        for person in held_out[:3]:
            part = SlottedTrajectory(person.user, step, person.slots[:40], person.latitude[:40], person.longitude[:40])
            for released in release_trajectory(engine, grid, part):
                record = released.record
                assert record.already_known or record.least_protection >= 2, name
