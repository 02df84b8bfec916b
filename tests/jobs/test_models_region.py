"""What is chosen where nothing is said: the city, cells that fit, and with a budget no more than it pays for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import MarkovModel
from dphmm.errors import ConfigurationError
from dphmm.jobs import learn
from dphmm.jobs import models as choices
from dphmm.jobs.models import MOST_STATES, choose, choose_privately
from dphmm.readers.synthetic_city import synthetic_trajectories
from dphmm.space import Trajectory
from tests.sizes import fewer

TOWN = synthetic_trajectories(users=8, days=1)


def _at(user, latitude, longitude, count=50, every=60):
    times = np.datetime64("2024-03-07", "us") + np.arange(count) * np.timedelta64(every, "s")
    spread = np.linspace(-0.01, 0.01, count)
    return Trajectory(user, times, latitude + spread, longitude - spread)


def test_the_city_of_most_people_is_chosen_whoever_was_abroad_and_however_often():
    tourist = _at("t", 10.0, 10.0, 5000)
    made = choose((*TOWN, tourist))
    south, west, north, east = made.bbox
    assert 44.9 < south < 44.99 < 45.01 < north < 45.1
    assert -30.1 < west < -30.01 < -29.99 < east < -29.9
    fixes = np.concatenate([np.stack([one.latitude, one.longitude], axis=1) for one in TOWN])
    inside = ((fixes >= [south, west]) & (fixes <= [north, east])).all(axis=1)
    assert inside.mean() > 0.97
    assert made.step_seconds == 300
    assert made.space.size <= MOST_STATES
    words = made.options.split()
    assert [float(word) for word in words[1:5]] == [*made.bbox]
    assert words[5:] == ["--cell", f"{made.cell:g}", "--step", "300"]


@pytest.mark.parametrize(("every", "step"), [(2, 60), (61, 120), (300, 300), (86400, 3600)])
def test_the_step_is_the_shortest_in_which_most_are_seen_anew(every, step):
    assert choose([_at("a", 45.0, 7.0, every=every)]).step_seconds == step
    assert choose([_at("a", 45.0, 7.0, every=every)], 42).step_seconds == 42


def test_who_was_seen_twice_tells_of_steps_too():
    often, twice = _at("a", 45.0, 7.0, every=300), [_at(name, 45.0, 7.0, 2, 60) for name in "bc"]
    assert choose([often, *twice]).step_seconds == 60
    assert choose([often, *(_at(name, 45.0, 7.0, 1) for name in "bc")]).step_seconds == 300


def test_the_private_choice_is_the_tile_of_most_people_to_whom_each_adds_one(monkeypatch):
    votes = []

    def recorded(decay, size, source):
        votes.append((decay, size))
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(choices, "laplace_steps", recorded)
    everyone = [*(_at(f"a{i}", 45.2, 7.3) for i in range(3)), *(_at(f"b{i}", 10.2, 20.7, 900) for i in range(2))]
    made = choose_privately(everyone, Fraction(1, 10))
    assert made.bbox == (45.0, 7.0, 45.5, 7.5)
    assert (made.step_seconds, made.epsilon) == (300, Fraction(1, 10))
    assert votes == [(Fraction(1, 10), 720 * 360)]  # one person, one vote: sensitivity 1
    assert choose_privately([_at("x", 89.98, 179.98)], Fraction(1)).bbox[2:] == (90.0, 180.0)


def test_noise_decides_for_few_and_not_for_many():
    """Seed 3: with 600 people at epsilon 1/10 another tile wins with probability below 1e-20."""
    one = _at("a", 45.2, 7.3, 3)
    many = [one] * 600
    assert choose_privately(many, Fraction(1, 10), rng=3).bbox == (45.0, 7.0, 45.5, 7.5)
    assert choose_privately([one], Fraction(1, 10), rng=3).bbox != (45.0, 7.0, 45.5, 7.5)


def test_learn_without_a_region_says_what_it_chose_and_what_it_paid(tmp_path, monkeypatch):
    monkeypatch.setattr(choices, "MOST_STATES", fewer(MOST_STATES, 300))
    text = "user_id,tracked_at,latitude,longitude\n" + "".join(
        f"{one.user},{time}Z,{lat},{lon}\n"
        for one in TOWN
        for time, lat, lon in zip(one.times.astype("M8[s]"), one.latitude, one.longitude, strict=True)
    )
    (tmp_path / "town.csv").write_text(text)
    found = learn(tmp_path / "town.csv", output=tmp_path / "m.npz")
    assert found.choice is not None
    assert found.choice.epsilon is None
    again = learn(tmp_path / "town.csv", found.choice.space, found.choice.step_seconds)
    assert again.model.content_hash == found.model.content_hash == MarkovModel.load(tmp_path / "m.npz").content_hash
    private = learn(tmp_path / "town.csv", user_epsilon="3")
    assert private.private is not None
    assert private.private.epsilon == sum(private.private.spent.values()) == 3
    assert private.private.spent["region"] == Fraction(3, 10)
    told = private.model.learned
    assert told is not None
    assert (told["epsilon"], told["spent_on"]["region"]) == ("3", "3/10")


def test_a_region_that_is_too_wide_for_its_cells_is_refused(monkeypatch):
    monkeypatch.setattr(choices, "_CELLS", (0.25,))
    wide = [_at("a", 45.0 + shift, 7.0 + shift) for shift in np.linspace(-0.15, 0.15, 9)]
    with pytest.raises(ConfigurationError, match="--bbox"):
        choose(wide, 60)
