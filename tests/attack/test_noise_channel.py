"""Channels that a user brings: tables and samples, read or refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.attack import Samples, TableChannel, attack_tracks
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.space import Trajectory
from tests.attack.scene import moves, walk

LONG = """state,output,probability,latitude,longitude
0,a,0.5,45.001,-30.001
0,b,0.5,,
1,a,1,45.001,-30.001
2,b,1,,
3,b,0.25,,
3,a,0.75,45.001,-30.001
"""


def test_a_table_of_rows_and_an_archive_say_the_same(tmp_path):
    (tmp_path / "mine.csv").write_text(LONG)
    table = np.array([[0.5, 0.5], [1, 0], [0, 1], [0.75, 0.25]])
    places = np.array([[45.001, -30.001], [np.nan, np.nan]])
    np.savez(tmp_path / "mine.npz", probabilities=table, places=places)
    for name in ("mine.csv", "mine.npz"):
        found = TableChannel.read(tmp_path / name, 4)
        assert found.name == "table mine"
        np.testing.assert_array_equal(found.probabilities, table)
        np.testing.assert_array_equal(found.places, places)
    np.savez(tmp_path / "nowhere.npz", probabilities=table)
    assert np.isnan(TableChannel.read(tmp_path / "nowhere.npz", 4).places).all(), "outputs need not be places"


def test_a_table_draws_what_it_says_and_its_columns_are_the_likelihood():
    of = moves(2, 1)
    table = np.array([[0.5, 0.5], [1, 0], [0, 1], [0.75, 0.25]])
    found = TableChannel("mine", table, np.array([[45.001, -30.001], [np.nan, np.nan]]))
    person = walk(of, 4000, np.random.default_rng(1))
    blurred = found.blur(person, of, np.random.default_rng(2))
    for state in range(4):  # four standard errors of about 1,000 draws
        assert blurred.seen[person.states == state].mean() == pytest.approx(table[state, 1], abs=0.07)
    assert (np.isnan(blurred.points[:, 0]) == (blurred.seen == 1)).all()
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(found.log_rows(blurred, of, slice(0, 9)), np.log(table.T[blurred.seen[:9]]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LONG.replace("0,a,0.5", "0,a,0.6"), "probabilities of state 0 sum to 1.1"),
        (LONG.replace("2,b,1", "2,b,-1"), "probabilities of state 2 sum to -1"),
        (LONG.replace("3,b", "7,b"), "state '7' is none of 0 to 3"),
        (LONG.replace("1,a,1", "one,a,1"), "state 'one' is none of 0 to 3"),
        (LONG.replace("probability", "p"), "has no column 'probability'"),
        (LONG.replace("45.001", "145.001"), "degrees that are not on the Earth"),
        (LONG.replace("0,a,0.5", "0,a,nan"), "probabilities of state 0 sum to nan"),
        (LONG.replace("0,a,0.5", "0,a,inf"), "probabilities of state 0 sum to inf"),
    ],
)
def test_a_table_that_is_none_is_refused_by_name(tmp_path, text, said):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataFileError, match=said) as problem:
        TableChannel.read(tmp_path / "mine.csv", 4)
    assert "mine.csv" in str(problem.value)


def test_an_archive_that_is_none_is_refused(tmp_path):
    for name, arrays in (
        ("a", {"x": np.zeros(3)}),
        ("b", {"probabilities": np.eye(3)}),
        ("c", {"probabilities": "no"}),
        ("d", {"probabilities": [[1.0, 0.0]] * 3 + [[np.inf, -np.inf]]}),
        ("e", {"probabilities": [[1e308, 1e308]] * 4}),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(DataFileError, match=f"{name}.npz"):
            TableChannel.read(tmp_path / f"{name}.npz", 4)
    with pytest.raises(InvalidInputError, match="shape"):
        TableChannel("mine", np.eye(2), np.zeros((3, 2)))


def people(of, count=3, steps=60, offset=0.0, seed=0):
    """Walks, their trajectories, and what an app made of them: normal noise about an offset to the east."""
    rng = np.random.default_rng(seed)
    tracks, true, released = [], {}, {}
    for number in range(count):
        one = walk(of, steps, rng)
        one = type(one)(**{**vars(one), "user": f"u{number}"})
        times = (one.slots * 600).astype("datetime64[s]").astype("datetime64[us]")
        moved = of.grid.projection.to_latlon(one.points + rng.normal(0, 0.05, one.points.shape) + [offset, 0])
        tracks.append(one)
        true[one.user] = Trajectory(one.user, times, one.latitude, one.longitude)
        released[one.user] = Trajectory(one.user, times, *moved.T)
    return tracks, true, released


def test_an_offset_of_an_app_is_learned_from_the_other_peoples_pairs():
    of = moves(3, 1, stay=0.9)
    tracks, true, released = people(of, offset=0.25)
    found = attack_tracks(tracks, [Samples("app", released, true)], of, 200.0, 0)[0]
    told = dict(vars(found.outcomes[0]))
    assert told["released_error_m"] > 240
    assert found.figure("right").mean > 0.8


def test_a_person_is_never_judged_by_their_own_pairs():
    of = moves(3, 1, stay=0.9)
    tracks, true, released = people(of)
    channel = Samples("app", released, true)
    others = channel.blur(tracks[0], of, np.random.default_rng(0)).seen
    assert len(others) == 2 * 60
    alone = Samples("app", {"u0": released["u0"]}, true)
    with pytest.raises(InvalidInputError, match="of anyone other than u0"):
        alone.blur(tracks[0], of, np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="no pair of a released and a true place of u1"):
        Samples("app", {"u0": released["u0"]}, true).blur(tracks[1], of, np.random.default_rng(0))


def test_times_without_a_release_of_the_app_tell_nothing():
    of = moves(3, 1)
    tracks, true, released = people(of)
    released["u0"] = released["u0"].between(true["u0"].times[10], true["u0"].times[20])
    channel = Samples("app", released, true)
    blurred = channel.blur(tracks[0], of, np.random.default_rng(0))
    assert np.isnan(blurred.points[:, 0]).sum() == 50
    assert (channel.log_rows(blurred, of, slice(0, 10)) == 0).all()
