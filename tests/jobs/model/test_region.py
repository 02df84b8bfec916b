"""Tests of default regions: city, cell size, timestep and private choice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import MarkovModel
from dphmm.errors import ConfigurationError
from dphmm.jobs import learn
from dphmm.jobs.model import region as choices
from dphmm.jobs.model.region import MAX_STATES, choose_city, choose_privately
from dphmm.readers.synthetic_city import sample_synthetic_trajectories
from dphmm.space import Trajectory
from tests.sizes import choose_count

TOWN = sample_synthetic_trajectories(users=8, days=1)


def _make_trajectory(user, latitude, longitude, count=50, seconds=60):
    times = np.datetime64("2024-03-07", "us") + np.arange(count) * np.timedelta64(seconds, "s")
    spread = np.linspace(-0.01, 0.01, count)
    return Trajectory(user, times, latitude + spread, longitude - spread)


def test_region_covers_city_of_most_users():
    tourist = _make_trajectory("t", 10.0, 10.0, 5000)
    choice = choose_city((*TOWN, tourist))
    south, west, north, east = choice.bbox
    assert 44.9 < south < 44.99 < 45.01 < north < 45.1
    assert -30.1 < west < -30.01 < -29.99 < east < -29.9
    fixes = np.concatenate([np.stack([trajectory.latitude, trajectory.longitude], axis=1) for trajectory in TOWN])
    inside = ((fixes >= [south, west]) & (fixes <= [north, east])).all(axis=1)
    assert inside.mean() > 0.97
    assert choice.step_seconds == 300
    assert choice.space.size <= MAX_STATES
    words = choice.options.split()
    assert [float(word) for word in words[1:5]] == [*choice.bbox]
    assert words[5:] == ["--cell", f"{choice.cell:g}", "--step", "300"]


def _wrap(degrees):
    return (degrees + 180.0) % 360.0 - 180.0


@pytest.mark.parametrize("longitude", [179.97, 179.996, 180.0, -179.99, -179.96])
def test_region_at_the_180th_meridian_is_the_one_elsewhere_turned(longitude):
    turn = longitude - 10.0
    users = [_make_trajectory(f"u{i}", -17.01 + 0.01 * i, 10.0 + 0.005 * i) for i in range(5)]
    turned = [Trajectory(user.user, user.times, user.latitude, _wrap(user.longitude.round(6) + turn)) for user in users]
    south, west, north, east = choose_city(turned).bbox
    plain = choose_city(users).bbox
    assert (south, north) == (plain[0], plain[2])
    # The bins and the hundredths of a degree are not turned exactly.
    assert _wrap(west - turn) == pytest.approx(plain[1], abs=0.011)
    assert _wrap(east - turn) == pytest.approx(plain[3], abs=0.011)
    assert all(-180 <= side <= 180 for side in (west, east))
    space = choose_city(turned).space
    states = np.concatenate([space.locate(user.latitude, user.longitude) for user in turned])
    assert (states >= 0).mean() > 0.95


@pytest.mark.parametrize(("sign", "latitude"), [(1, 89.97), (1, 89.99), (-1, 89.97), (1, 90.0), (-1, 90.0), (1, 89.7)])
def test_region_at_a_pole_contains_its_users(sign, latitude):
    times = np.datetime64("2024-03-07", "us") + np.arange(60) * np.timedelta64(60, "s")
    around = np.linspace(-180.0, 180.0, 60)
    users = [Trajectory(name, times, np.full(60, sign * latitude), around) for name in "ab"]
    choice = choose_city(users)
    south, west, north, east = choice.bbox
    assert -90 <= south < north <= 90
    assert -180 <= west <= 180 >= east >= -180
    states = choice.space.locate(np.full(60, sign * latitude), around)
    assert (states >= 0).mean() > (0.95 if latitude > 89.9 else 0)


@pytest.mark.parametrize(("seconds", "step"), [(2, 60), (61, 120), (300, 300), (86400, 3600)])
def test_step_is_shortest_with_mostly_new_fixes(seconds, step):
    assert choose_city([_make_trajectory("a", 45.0, 7.0, seconds=seconds)]).step_seconds == step
    assert choose_city([_make_trajectory("a", 45.0, 7.0, seconds=seconds)], 42).step_seconds == 42


def test_users_with_two_fixes_count_for_step():
    often, twice = (
        _make_trajectory("a", 45.0, 7.0, seconds=300),
        [_make_trajectory(name, 45.0, 7.0, 2, 60) for name in "bc"],
    )
    assert choose_city([often, *twice]).step_seconds == 60
    assert choose_city([often, *(_make_trajectory(name, 45.0, 7.0, 1) for name in "bc")]).step_seconds == 300


def test_private_choice_is_tile_with_most_users(monkeypatch):
    votes = []

    def record(decay, size, source):
        votes.append((decay, size))
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(choices, "sample_discrete_laplace", record)
    trajectories = [
        *(_make_trajectory(f"a{i}", 45.2, 7.3) for i in range(3)),
        *(_make_trajectory(f"b{i}", 10.2, 20.7, 900) for i in range(2)),
    ]
    choice = choose_privately(trajectories, Fraction(1, 10))
    assert choice.bbox == (45.0, 7.0, 45.5, 7.5)
    assert (choice.step_seconds, choice.epsilon) == (300, Fraction(1, 10))
    assert votes == [(Fraction(1, 10), 720 * 360)]  # one vote per user: sensitivity 1
    assert choose_privately([_make_trajectory("x", 89.98, 179.98)], Fraction(1)).bbox[2:] == (90.0, 180.0)


def test_private_choice_is_random_for_few_users_and_not_for_many():
    """Seed 3: for 600 users and epsilon 1/10 another tile wins with probability below 1e-20."""
    user_track = _make_trajectory("a", 45.2, 7.3, 3)
    many = [user_track] * 600
    assert choose_privately(many, Fraction(1, 10), rng=3).bbox == (45.0, 7.0, 45.5, 7.5)
    assert choose_privately([user_track], Fraction(1, 10), rng=3).bbox != (45.0, 7.0, 45.5, 7.5)


def test_learn_without_region_reports_choice_and_its_epsilon(tmp_path, monkeypatch):
    monkeypatch.setattr(choices, "MAX_STATES", choose_count(MAX_STATES, 300))
    text = "user_id,tracked_at,latitude,longitude\n" + "".join(
        f"{trajectory.user},{time}Z,{lat},{lon}\n"
        for trajectory in TOWN
        for time, lat, lon in zip(
            trajectory.times.astype("M8[s]"), trajectory.latitude, trajectory.longitude, strict=True
        )
    )
    (tmp_path / "town.csv").write_text(text)
    result = learn(tmp_path / "town.csv", output=tmp_path / "m.npz")
    assert result.choice is not None
    assert result.choice.epsilon is None
    again = learn(tmp_path / "town.csv", result.choice.space, result.choice.step_seconds)
    assert again.model.content_hash == result.model.content_hash == MarkovModel.load(tmp_path / "m.npz").content_hash
    private = learn(tmp_path / "town.csv", user_epsilon="3")
    assert private.private is not None
    assert private.private.epsilon == sum(private.private.spent.values()) == 3
    assert private.private.spent["region"] == Fraction(3, 10)
    provenance = private.model.provenance
    assert provenance is not None
    assert (provenance["epsilon"], provenance["spent_on"]["region"]) == ("3", "0.3")


def test_region_too_wide_for_cells_raises(monkeypatch):
    monkeypatch.setattr(choices, "_CELLS", (0.25,))
    wide = [_make_trajectory("a", 45.0 + shift, 7.0 + shift) for shift in np.linspace(-0.15, 0.15, 9)]
    with pytest.raises(ConfigurationError, match="--bbox"):
        choose_city(wide, 60)
