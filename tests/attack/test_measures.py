"""What is measured of an attack, worked out by hand on a few places."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from dphmm.attack import Moves, Outcome, Posterior, Track, attack_tracks
from dphmm.attack.deployed_channels import AndroidCoarse, Exact
from dphmm.attack.measures import ChannelResult
from dphmm.attack.noise_channel import Blurred
from dphmm.errors import StochasticError
from dphmm.space import Trajectory
from tests.attack.scene import moves, track, walk


def made(of: Moves, points, released, slots=None, begins=None) -> tuple[Track, Blurred]:
    person = track(of, np.array(points), np.arange(len(points)) + 1000 if slots is None else np.array(slots), begins)
    return person, Blurred(np.array(released, dtype=float), None)


def test_distances_ways_and_what_was_left_out_by_hand():
    of = moves(2, 1)
    person, blurred = made(
        of,
        [[0.01, 0.01], [0.11, 0.01], [0.11, 0.21], [-0.09, 0.21]],
        [[0.04, 0.05], [0.24, 0.01], [np.nan, np.nan], [-0.09, 0.11]],
    )
    found = Posterior.empty(person, of)
    found.hindsight[:, person.states[0]] = [1.0, 0.4, 1.0, 0.0]
    found.hindsight[:, person.states[3]] += [0.0, 0.6, 0.0, 1.0]
    outcome = Outcome.measure(person, blurred, found)
    assert outcome.released_error_m == pytest.approx((50 + 130 + 100) / 3)
    assert outcome.length_ratio == pytest.approx(np.hypot(0.2, 0.04) / 0.1)  # one pair of neighbours is released
    assert outcome.withheld == pytest.approx(0.25)
    assert outcome.certainty == pytest.approx((1 + 0.6 + 1 + 1) / 4)
    assert outcome.right == pytest.approx(0.75)
    middle, other = of.grid.points[person.states[0]], of.grid.points[person.states[3]]
    estimates = [middle, 0.4 * middle + 0.6 * other, middle, other]
    assert outcome.hindsight_m == pytest.approx(1000 * np.hypot(*(np.array(estimates) - person.points).T).mean())
    assert outcome.at_once_m == pytest.approx(1000 * np.hypot(*person.points.T).mean())


def test_a_home_is_where_nights_are_and_its_guess_where_the_mass_of_nights_is():
    of = moves(2, 1)
    night = np.arange(12, 15) * 6  # 12 to 14 h UTC are 10 to 12 h at 30 W
    day, night = night, night - 60  # 2 to 4 h UTC are 0 to 2 h there
    person, blurred = made(
        of, [[0.1, 0.1], [0.12, 0.1], [-0.1, 0.1], *3 * [[-0.1, -0.1]]], np.zeros((6, 2)), [*night, *day]
    )
    assert person.night.tolist() == [True, True, True, False, False, False]
    np.testing.assert_allclose(person.home, [0.11, 0.1])
    found = Posterior.empty(person, of)
    found.hindsight[:3, person.states[0]] = [0.9, 0.9, 0.1]
    found.hindsight[:3, person.states[2]] = [0.1, 0.1, 0.9]
    found.hindsight[3:, person.states[3]] = 1.0
    found.places[0, person.states[0]] = [0.05, 0.1]
    outcome = Outcome.measure(person, blurred, found)
    middle = of.grid.points[person.states[0]]
    guess = (0.9 * np.array([0.05, 0.1]) + 1.0 * middle) / 1.9
    assert outcome.home_error_m == pytest.approx(1000 * np.hypot(*(guess - [0.11, 0.1])))
    told = replace(found, home=np.array([0.11, 0.13]))
    assert Outcome.measure(person, blurred, told).home_error_m == pytest.approx(30)


def test_who_has_no_night_has_no_home_but_a_haunt():
    of = moves(2, 1)
    person, blurred = made(of, [[0.1, 0.1], [0.1, 0.1], [-0.1, 0.1]], np.zeros((3, 2)), [72, 73, 74])
    assert person.home is None
    np.testing.assert_allclose(person.usual_place, [0.1, 0.1])
    found = Posterior.empty(person, of)
    outcome = Outcome.measure(person, blurred, found)
    assert isnan(outcome.home_error_m)
    result = ChannelResult("a", "b", (outcome,), 200.0)
    assert result.homes == (0, 0)
    assert result.facts()["people"][0]["home_error_m"] is None
    assert result.facts()["right_give_or_take"] is None


def test_homes_and_means_of_some_people():
    one = Outcome("a", 3, 100.0, 50.0, 0.5, 0.5, 150.0, 10.0, 1.0, 0.0)
    two = replace(one, user="b", hindsight_m=150.0, home_error_m=250.0, released_error_m=float("nan"))
    result = ChannelResult("a", "b", (one, two), 200.0)
    assert result.homes == (1, 2)
    assert result.figure("hindsight_m").mean == 100.0
    assert result.figure("hindsight_m").margin == pytest.approx(63.657 * 50.0, rel=1e-3)  # Student's t, one degree
    assert result.figure("released_error_m").mean == 10.0


def test_a_track_begins_anew_after_a_day_and_after_what_the_model_thinks_impossible():
    of = moves(2, 1)
    matrix = of.model.transition.toarray()
    matrix[0, 3] = 0.0
    matrix /= matrix.sum(axis=1, keepdims=True)
    of = Moves(type(of.model)(matrix, of.model.initial, of.grid, 600.0), 1)
    places = of.grid.latlon([0, 3, 3, 0, 0])
    seconds = np.array([0, 600, 1200, 1800, 1800 + 86400 + 600]) + 600 * 1000
    outside = np.array([[46.0, -30.0]])
    trajectory = Trajectory(
        "ann",
        np.append(seconds, seconds[-1] + 600).astype("datetime64[s]").astype("datetime64[us]"),
        *np.concatenate([places, outside]).T,
    )
    person = Track.from_trajectory(trajectory, of, 100)
    assert person is not None
    assert person.states.tolist() == [0, 3, 3, 0, 0]
    assert person.begins.tolist() == [True, True, False, False, True]
    assert len(Track.from_trajectory(trajectory, of, 2) or ()) == 2
    away = Trajectory("ann", trajectory.times, np.full(6, 46.0), np.full(6, -30.0))
    assert Track.from_trajectory(away, of, 100) is None


def test_an_attack_that_the_model_cannot_explain_names_the_channel_and_the_person():
    of = moves(2, 1)
    person = track(of, of.grid.points[[0, 1]] + 0.01, np.array([0, 1]))
    with pytest.raises(StochasticError, match="torn, user ann: release 1: no possible state"):
        attack_tracks([person], [_Torn()], of, 200.0, 0)


class _Torn(Exact):
    """The exact place, but the second release can come from nowhere."""

    name: str = "torn"

    def log_rows(self, blurred, moves, some):
        rows = super().log_rows(blurred, moves, some)
        rows[1] = -np.inf
        return rows


@pytest.mark.parametrize("seed", range(4))
def test_an_offset_of_android_beyond_the_adversarys_squares_ends_no_attack(seed, monkeypatch):
    of = moves(4, 1, seed)
    person = walk(of, 8, np.random.default_rng(seed))
    far = 2500.0 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[seed]
    plain = AndroidCoarse.blur_with
    monkeypatch.setattr(AndroidCoarse, "blur_with", lambda self, places, _: plain(self, places, np.tile(far, (8, 1))))
    found = attack_tracks([person], [AndroidCoarse()], of, 200.0, 0)[0]
    assert found.outcomes[0].hindsight_m < 1500
