"""Tests of user-supplied channels: tables and samples, accepted or rejected."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.attack import SampledChannel, TableChannel, attack_tracks
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.space import Trajectory
from tests.attack.scene import build_moves, walk

LONG = """state,output,probability,latitude,longitude
0,a,0.5,45.001,-30.001
0,b,0.5,,
1,a,1,45.001,-30.001
2,b,1,,
3,b,0.25,,
3,a,0.75,45.001,-30.001
"""


def test_csv_and_npz_tables_are_equivalent(tmp_path):
    (tmp_path / "mine.csv").write_text(LONG)
    table = np.array([[0.5, 0.5], [1, 0], [0, 1], [0.75, 0.25]])
    places = np.array([[45.001, -30.001], [np.nan, np.nan]])
    np.savez(tmp_path / "mine.npz", probabilities=table, places=places)
    for name in ("mine.csv", "mine.npz"):
        channel = TableChannel.read(tmp_path / name, 4)
        assert channel.name == "table mine"
        np.testing.assert_array_equal(channel.probabilities, table)
        np.testing.assert_array_equal(channel.places, places)
    np.savez(tmp_path / "nowhere.npz", probabilities=table)
    assert np.isnan(TableChannel.read(tmp_path / "nowhere.npz", 4).places).all(), "outputs need not be places"


def test_table_channel_samples_its_probabilities_and_returns_column_likelihoods():
    chain = build_moves(2, 1)
    table = np.array([[0.5, 0.5], [1, 0], [0, 1], [0.75, 0.25]])
    channel = TableChannel("mine", table, np.array([[45.001, -30.001], [np.nan, np.nan]]))
    user_track = walk(chain, 4000, np.random.default_rng(1))
    obfuscated = channel.obfuscate(user_track, chain, np.random.default_rng(2))
    for state in range(4):  # four standard errors of about 1,000 samples
        assert obfuscated.observed[user_track.states == state].mean() == pytest.approx(table[state, 1], abs=0.07)
    assert (np.isnan(obfuscated.points[:, 0]) == (obfuscated.observed == 1)).all()
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(
            channel.log_likelihood_rows(obfuscated, chain, slice(0, 9)), np.log(table.T[obfuscated.observed[:9]])
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LONG.replace("0,a,0.5", "0,a,0.6"), r"probabilities of state 0 .*\b1\.1\b"),
        (LONG.replace("2,b,1", "2,b,-1"), r"probabilities of state 2 .*-1\b"),
        (LONG.replace("3,b", "7,b"), "state must be from 0 to 3, got '7'"),
        (LONG.replace("1,a,1", "one,a,1"), "state must be from 0 to 3, got 'one'"),
        (LONG.replace("probability", "p"), "column 'probability'"),
        (LONG.replace("45.001", "145.001"), "places must be latitudes and longitudes in degrees"),
        (LONG.replace("0,a,0.5", "0,a,nan"), "probabilities of state 0 .*nan"),
        (LONG.replace("0,a,0.5", "0,a,inf"), "probabilities of state 0 .*inf"),
    ],
)
def test_invalid_csv_table_raises_with_file_name(tmp_path, text, message):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataFileError, match=message) as problem:
        TableChannel.read(tmp_path / "mine.csv", 4)
    assert str(problem.value).count("mine.csv") == 1


def test_second_place_of_output_raises_with_both_places_and_line(tmp_path):
    (tmp_path / "mine.csv").write_text(LONG.replace("3,a,0.75,45.001", "3,a,0.75,45.002"))
    with pytest.raises(DataFileError, match="'a'") as problem:
        TableChannel.read(tmp_path / "mine.csv", 4)
    assert problem.value.line == 7
    assert all(place in str(problem.value) for place in ("(45.001, -30.001)", "(45.002, -30.001)"))
    (tmp_path / "mine.csv").write_text(LONG.replace("3,a,0.75,45.001,-30.001", "3,a,0.75,,"))
    assert TableChannel.read(tmp_path / "mine.csv", 4).places[0].tolist() == [45.001, -30.001]


def test_invalid_archive_raises(tmp_path):
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


def make_users(chain, count=3, steps=60, offset=0.0, seed=0):
    """Return walks, their trajectories, and app output with normal noise about an east offset."""
    rng = np.random.default_rng(seed)
    tracks = []
    true = {}
    released = {}
    for number in range(count):
        walked = walk(chain, steps, rng)
        walked = type(walked)(**{**vars(walked), "user": f"u{number}"})
        times = (walked.slots * 600).astype("datetime64[s]").astype("datetime64[us]")
        moved = chain.grid.projection.to_latlon(walked.points + rng.normal(0, 0.05, walked.points.shape) + [offset, 0])
        tracks.append(walked)
        true[walked.user] = Trajectory(walked.user, times, walked.latitude, walked.longitude)
        released[walked.user] = Trajectory(walked.user, times, *moved.T)
    return tracks, true, released


def test_app_offset_is_learned_from_other_users_pairs():
    chain = build_moves(3, 1, stay=0.9)
    tracks, true, released = make_users(chain, offset=0.25)
    result = attack_tracks(tracks, [SampledChannel("app", released, true)], chain, 200.0, 0)[0]
    outcome = dict(vars(result.outcomes[0]))
    assert outcome["released_error_m"] > 240
    assert result.estimate_mean("top_1_accuracy").mean > 0.8


def test_user_is_never_attacked_with_their_own_pairs():
    chain = build_moves(3, 1, stay=0.9)
    tracks, true, released = make_users(chain)
    channel = SampledChannel("app", released, true)
    others = channel.obfuscate(tracks[0], chain, np.random.default_rng(0)).observed
    assert len(others) == 2 * 60
    alone = SampledChannel("app", {"u0": released["u0"]}, true)
    with pytest.raises(InvalidInputError, match="other than u0"):
        alone.obfuscate(tracks[0], chain, np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="true location of u1"):
        SampledChannel("app", {"u0": released["u0"]}, true).obfuscate(tracks[1], chain, np.random.default_rng(0))


def test_missing_app_releases_are_uninformative():
    chain = build_moves(3, 1)
    tracks, true, released = make_users(chain)
    released["u0"] = released["u0"].select_time_range(true["u0"].times[10], true["u0"].times[20])
    channel = SampledChannel("app", released, true)
    obfuscated = channel.obfuscate(tracks[0], chain, np.random.default_rng(0))
    assert np.isnan(obfuscated.points[:, 0]).sum() == 50
    assert (channel.log_likelihood_rows(obfuscated, chain, slice(0, 10)) == 0).all()
